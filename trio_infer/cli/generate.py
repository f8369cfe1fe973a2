"""``trio-infer generate``: text from a prompt."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import click
import trio

from ..models import SamplingParams
from ..protocol.dialects import DIALECTS
from .console import width_of
from .display import Display, JsonDisplay
from .exits import EXIT_CODES
from .interruption import Interruption, run_interruptible
from .log_probs import WIDTH, log_prob_table
from .model import speaks_bytes
from .options import check_finite
from .prompt import read_prompt
from .sampling import sampling_options
from .session import Session, run_session
from .target import Target, single_options
from .tokenizing import BYTES, ByteDecoder, Decoder, ModelDecoder, decoders
from .vocabularies import tokenizer_option

if TYPE_CHECKING:
    from ..models import Completion
    from ..streams import CompletionStream

__all__ = ["generate"]

STREAM_STEP_SECONDS: Final = 0.005
"""The embedded model's pace where people watch it; at its own nobody could see it stream."""

EXAMPLES: Final = """
\b
Examples:
  trio-infer generate --stream "Structured concurrency is"
  trio-infer generate -n 64 --temperature 0.7 --seed 1 "A generator"
  trio-infer generate -n 20 --log-probs --top-n-logprobs 3 "A generator"
  trio-infer generate --deadline 2 --json "A generator" | jq .finish_reason
  trio-infer generate --stream --model smollm2 "A generator"
  trio-infer generate --address tcp://localhost:5555 - < prompt.txt
  trio-infer generate --address tcp://localhost:5555 --stream --tokenizer smollm2 "A generator"
"""


@attrs.frozen(kw_only=True)
class _Job:
    """What the command line asks for."""

    target: Target
    prompt: str | None
    prompt_file: Path | None
    sampling_params: SamplingParams
    stream: bool
    as_json: bool
    deadline: float
    decoders: Callable[[], Decoder] | None

    @property
    def decoder(self) -> Decoder | None:
        """What makes text of tokens, if anything does."""
        if self.target.address is not None:
            return None if self.decoders is None else self.decoders()
        model = self.target.model
        return ByteDecoder() if model is None or speaks_bytes(model) else ModelDecoder(model)


@click.command(short_help="Text from a prompt.", epilog=EXAMPLES + EXIT_CODES)
@click.argument("prompt", required=False)
@click.option(
    "-f",
    "--prompt-file",
    type=click.Path(path_type=Path),
    help="Read the prompt from this file.",
)
@click.option("--stream", is_flag=True, help="Show the text while it is generated.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the completion as JSON, on one line; with --stream, deltas on lines before it.",
)
@click.option(
    "--deadline",
    type=click.FloatRange(min=0, min_open=True),
    callback=check_finite,
    metavar="SECONDS",
    help="End it after this time, and keep what there is.",
)
@tokenizer_option(
    BYTES,
    text="Read tokens of the coordinator at --address so, to stream their text: bytes, if it runs"
    " the small model; ",
)
@sampling_options
@single_options
def generate(
    *,
    target: Target,
    stream: bool,
    deadline: float | None,
    tokenizer: str | None,
    **options: Any,
) -> int:
    """Generate text from PROMPT and print it.

    Where PROMPT is -, or absent and standard input is no terminal, it is read from there; a
    newline at its end is not part of it. Without --address an embedded coordinator answers, which
    runs in this process on a small model counted from Python's own help, or on that of --model.

    Standard output carries the text and nothing else, or with --json the completion. With --stream
    it carries it as it is generated, where the tokenizer is known: that of an embedded coordinator
    is, and --tokenizer names that of another. Otherwise the ids of the tokens come on standard
    error as they are generated, and the text at the end. --log-probs adds a table on standard
    error, a line for each token.

    At the --deadline the request is aborted, and what there is gets printed; the exit code is 0.

    Ctrl-C aborts the request, prints what there is, and exits with 130; a second one leaves at
    once. SIGTERM and SIGHUP do the same, with 143 and 129.
    """
    target.check_tokenizer(tokenizer)
    if deadline is not None and not DIALECTS[target.dialect].can_abort:
        msg = f"--deadline is nothing for the dialect {target.dialect}, which has no abort"
        raise click.UsageError(msg)
    if stream and target.model is None and (target.address, target.step_time) == (None, None):
        target = attrs.evolve(target, step_time=STREAM_STEP_SECONDS)
    job = _Job(
        target=target,
        stream=stream,
        deadline=math.inf if deadline is None else deadline,
        decoders=None if tokenizer is None else decoders(tokenizer),
        **options,
    )
    return run_interruptible(_run, job)


async def _run(interruption: Interruption, job: _Job) -> None:
    prompt = ""
    with interruption.cancels():
        prompt = await read_prompt(job.prompt, job.prompt_file)
    if interruption.signal is None:
        await run_session(job.target, interruption, lambda each: _Asking(job, each).run(prompt))


class _Asking:
    """One request, and what is shown of it."""

    def __init__(self, job: _Job, session: Session) -> None:
        self._job = job
        self._session = session
        self._output = session.output
        make = JsonDisplay if job.as_json else Display
        self._display = make(session.output, job.decoder, stream=job.stream)
        self._is_late = False

    async def run(self, prompt: str) -> None:
        """Makes the request and shows it, whatever it ends with."""
        stream = self._session.stream(prompt, self._job.sampling_params)
        completion = None
        try:
            async with stream:
                completion = await self._follow(stream)
        finally:
            self._display.finish(stream.tokens, completion)
        if completion is not None and self._job.sampling_params.return_log_probs:
            self._tell_log_probs(completion)
        if self._session.interruption.signal is not None:
            self._tell_interruption(stream)
        elif self._is_late:
            seconds, count = self._job.deadline, len(stream.tokens)
            self._output.note(f"ended at the deadline of {seconds:g} s, after {count} tokens")

    async def _follow(self, stream: CompletionStream[Completion]) -> Completion | None:
        """Receives the request until its end, its deadline or the first signal.

        None if its text did not come.
        """
        with (
            self._session.interruption.cancels() as receiving,
            trio.move_on_after(self._job.deadline) as deadline,
        ):
            async for delta in stream:
                self._display.show(delta)
        self._is_late = deadline.cancelled_caught
        if receiving.cancelled_caught or self._is_late:
            await self._session.end(stream)
        return stream.completion

    def _tell_log_probs(self, completion: Completion) -> None:
        if not self._job.as_json:
            width = width_of(sys.stderr, WIDTH)
            self._output.aside(log_prob_table(completion, self._job.decoder, width))

    def _tell_interruption(self, stream: CompletionStream[Completion]) -> None:
        if stream.finished:
            self._output.note(f"interrupted after {len(stream.tokens)} tokens")
        else:
            self._output.note(
                "interrupted; waiting for the coordinator's last reply, Ctrl-C leaves at once"
            )
