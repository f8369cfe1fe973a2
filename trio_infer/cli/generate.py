"""``trio-infer generate``: text from a prompt."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import attrs
import click
import trio

from ..embedded import open_coordinator
from ..models import SamplingParams
from ..opening import open_client
from .display import TOKENIZERS, ByteDecoder, Display
from .exits import EXIT_CODES
from .interruption import Interruption
from .options import dialect_option, read_prompt
from .output import Output

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from ..models import Completion
    from ..streams import CompletionStream

__all__ = ["generate"]

NUM_TOKENS: Final = 256
STREAM_STEP_SECONDS: Final = 0.005
"""The embedded model's pace where people watch it; at its own nobody could see it stream."""

GRACE_SECONDS: Final = 1.0
"""How long an interrupted request's text is waited for."""


EXAMPLES: Final = """
\b
Examples:
  trio-infer generate --stream "Structured concurrency is"
  trio-infer generate -n 64 --temperature 0.7 --seed 1 "A generator"
  trio-infer generate --address tcp://localhost:5555 - < prompt.txt
"""


@attrs.frozen(kw_only=True)
class _Job:
    """What the command line asks for."""

    prompt: str | None
    sampling_params: SamplingParams
    stream: bool
    address: str | None
    dialect: str
    connect_timeout: float
    tokenizer: str | None
    seed: int | None
    step_time: float


@click.command(short_help="Text from a prompt.", epilog=EXAMPLES + EXIT_CODES)
@click.argument("prompt", required=False)
@click.option("--stream", is_flag=True, help="Show the text while it is generated.")
@click.option(
    "--address",
    envvar="TRIO_INFER_ADDRESS",
    show_envvar=True,
    metavar="ADDRESS",
    help="The coordinator to ask, such as tcp://host:5555.  [default: an embedded one]",
)
@dialect_option
@click.option(
    "-n",
    "--num-tokens",
    type=click.IntRange(min=0),
    default=NUM_TOKENS,
    show_default=True,
    help="Generate so many tokens at most.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Below 1 favours the likely tokens, above it the unlikely.",
)
@click.option("--top-k", type=click.IntRange(min=0), help="Sample among the K likeliest tokens.")
@click.option(
    "--top-p",
    type=click.FloatRange(0, 1),
    help="Sample among the likeliest tokens that together reach this probability.",
)
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this text. Repeatable.")
@click.option(
    "--tokenizer",
    type=click.Choice(list(TOKENIZERS)),
    help="Read tokens of the coordinator at --address so, to stream their text: bytes, if it runs"
    " the embedded model.",
)
@click.option(
    "--connect-timeout",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Give up connecting after this time.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Let the embedded coordinator give the same text each time.",
)
@click.option(
    "--step-time",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long the embedded coordinator takes for a token.  [default: 0; with --stream"
    f" {STREAM_STEP_SECONDS}]",
)
def generate(
    *,
    prompt: str | None,
    num_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    stop: Sequence[str],
    step_time: float | None,
    **options: Any,
) -> int:
    """Generate text from PROMPT and print it.

    Where PROMPT is -, or absent and standard input is no terminal, it is read from there; a
    newline at its end is not part of it. Without --address an embedded coordinator answers, which
    runs in this process on a small model counted from Python's own help.

    Standard output carries the text and nothing else. With --stream it carries it as it is
    generated, where the tokenizer is known: that of an embedded coordinator is, and --tokenizer
    names that of another. Otherwise the ids of the tokens come on standard error as they are
    generated, and the text at the end.

    Ctrl-C aborts the request, prints what there is, and exits with 130; a second one leaves at
    once. SIGTERM and SIGHUP do the same, with 143 and 129.
    """
    if options["address"] is not None and (options["seed"], step_time) != (None, None):
        msg = "--seed and --step-time are for the embedded coordinator, not for one at an address"
        raise click.UsageError(msg)
    params = SamplingParams(
        num_tokens_to_generate=num_tokens,
        temperature=temperature,
        top_k=top_k or 0,
        top_p=top_p or 0.0,
        stop_words=list(stop) or None,
    )
    if step_time is None:
        step_time = STREAM_STEP_SECONDS if options["stream"] else 0.0
    job = _Job(prompt=prompt, sampling_params=params, step_time=step_time, **options)
    return trio.run(_run, job)


async def _run(job: _Job) -> int:
    interruption = Interruption()
    logging.getLogger("trio_infer").addHandler(logging.NullHandler())  # what matters is told here
    async with interruption.watching():
        prompt = ""
        with interruption.cancels():
            prompt = await read_prompt(job.prompt)
        if interruption.signal is None:
            await _answer(prompt, job, interruption)
    return interruption.exit_code


async def _answer(prompt: str, job: _Job, interruption: Interruption) -> None:
    output = Output()
    # The coordinator outside: it has to outlive whatever ends the client.
    async with _coordinator(job) as address, output.writing():
        with interruption.cancels():
            await _ask(address, prompt, job, output, interruption)
            if interruption.signal is None:
                await output.flush()


async def _ask(
    address: str, prompt: str, job: _Job, output: Output, interruption: Interruption
) -> None:
    display = Display(output, _decoder(job), stream=job.stream)
    async with open_client(
        address, dialect=job.dialect, connect_timeout=job.connect_timeout
    ) as client:
        stream = client.stream(prompt, job.sampling_params)
        can_abort = client.dialect.can_abort
        await _show(stream, display, interruption, can_abort=can_abort)
        if interruption.signal is not None:
            _tell(stream, output)
    undelivered = client.statistics().undelivered
    if undelivered:
        output.note(f"{address} owed its last reply still, and may crash when it sends it")


@asynccontextmanager
async def _coordinator(job: _Job) -> AsyncGenerator[str]:
    """The address of the coordinator to ask, an embedded one where none is given."""
    if job.address is not None:
        yield job.address
        return
    async with open_coordinator(
        dialect=job.dialect, seed=job.seed, step_time=job.step_time
    ) as coordinator:
        yield coordinator.address


def _decoder(job: _Job) -> ByteDecoder | None:
    name = "bytes" if job.address is None else job.tokenizer
    return None if name is None else TOKENIZERS[name]()


async def _show(
    stream: CompletionStream, display: Display, interruption: Interruption, *, can_abort: bool
) -> None:
    """Runs the request and shows it, whatever it ends with."""
    completion = None
    try:
        async with stream:
            completion = await _follow(stream, display, interruption, can_abort=can_abort)
    finally:
        display.finish(stream.tokens, completion)


async def _follow(
    stream: CompletionStream, display: Display, interruption: Interruption, *, can_abort: bool
) -> Completion | None:
    """Receives the request until its end or the first signal; None if its text did not come."""
    with interruption.cancels() as receiving:
        async for delta in stream:
            display.show(delta.tokens)
    if receiving.cancelled_caught and can_abort:
        with trio.move_on_after(GRACE_SECONDS):
            await stream.finish_early()
    return stream.completion


def _tell(stream: CompletionStream, output: Output) -> None:
    if stream.finished:
        output.note(f"interrupted after {len(stream.tokens)} tokens")
    else:
        output.note("interrupted; waiting for the coordinator's last reply, Ctrl-C leaves at once")
