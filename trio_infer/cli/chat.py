"""``trio-infer chat``: a conversation, turn by turn."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import attrs
import click

from ..embedded.language_model import Traits, Vocabulary
from ..errors import InferenceError, RequestFailed
from ..models import SamplingParams
from .answer import Answer
from .conversation import Conversation
from .exits import EXIT_CODES, FAILED
from .interruption import Interruption, run_interruptible
from .lines import Lines
from .sampling import chat_sampling_options
from .session import Session, run_session
from .target import Target, single_options
from .tokenizing import ModelDecoder
from .vocabularies import load_vocabulary, tokenizer_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..models import Completion

__all__ = ["chat"]

RESET: Final = "/reset begins a new conversation"

GREETING: Final = f"Ctrl-C stops an answer, Ctrl-D ends this program; {RESET}"

EXAMPLES: Final = """
\b
Examples:
  trio-infer chat --model smollm2
  trio-infer chat --model model.gguf --system "You answer in one sentence." --temperature 0.7
  trio-infer chat --model smollm2 --seed 1 --stats < questions.txt
  trio-infer chat --address tcp://localhost:5555 --tokenizer ~/models/Qwen3-4B
"""


@attrs.frozen(kw_only=True)
class _Job:
    """What the command line asks for."""

    target: Target
    vocabulary: Vocabulary
    conversation: Conversation
    sampling_params: SamplingParams
    stats: bool

    @property
    def context_length(self) -> int | None:
        """How many tokens a conversation may have, if that is known before the engine says it."""
        model = self.target.model
        return None if model is None else Traits.of(model).max_sequence_length


@click.command(short_help="A conversation with a chat model.", epilog=EXAMPLES + EXIT_CODES)
@click.option("--system", metavar="TEXT", help="Tell the model this before all else.")
@click.option("--stats", is_flag=True, help="Tell of each answer how many tokens it took.")
@tokenizer_option(text="The tokenizer, with a chat template, of the coordinator at --address: ")
@chat_sampling_options
@single_options
def chat(
    *,
    target: Target,
    system: str | None,
    tokenizer: str | None,
    sampling_params: SamplingParams,
    stats: bool,
) -> int:
    """Talk with a chat model: each line that you type is a turn, and each answer is the next.

    The model is that of --model, in this process, or that of the coordinator at --address, whose
    --tokenizer has to be told. Either needs a chat template, which says how turns look to it.
    Needs the extra chat.

    Ctrl-C stops an answer, and what was said is kept: the next turn goes on from there. Twice
    within two seconds, or where a turn is typed, it ends the program, as Ctrl-D does. The line
    /reset begins a new conversation. Standard output carries the answers alone; where standard
    input is no terminal, each of its lines is a turn, and the exit code tells whether all had
    their answers.
    """
    vocabulary = _vocabulary(target, tokenizer)
    conversation = Conversation(vocabulary, system)
    if target.model is None and sampling_params.termination_id is None:
        # Its own tokenizer's end may be that of texts, and not of turns.
        sampling_params = attrs.evolve(sampling_params, termination_id=conversation.end_of_turn)
    job = _Job(
        target=target,
        vocabulary=vocabulary,
        conversation=conversation,
        sampling_params=sampling_params,
        stats=stats,
    )
    return run_interruptible(_run, job)


def _vocabulary(target: Target, tokenizer: str | None) -> Vocabulary:
    target.check_tokenizer(tokenizer)
    if target.address is None:
        if target.model is None:
            msg = (
                "the small model cannot talk: take --model smollm2 or a GGUF file, or an --address"
            )
            raise click.UsageError(msg)
        return target.model
    if tokenizer is None:
        msg = "a coordinator at an --address needs its --tokenizer told, one with a chat template"
        raise click.UsageError(msg)
    return load_vocabulary(tokenizer)


async def _run(interruption: Interruption, job: _Job) -> int | None:
    return await run_session(job.target, interruption, lambda each: _Chat(job, each).run())


class _Chat:
    """The conversation, and what is shown of it."""

    def __init__(self, job: _Job, session: Session) -> None:
        self._job = job
        self._conversation = job.conversation
        self._session = session
        session.interruption.too_late = self._tell_late
        self._output = session.output
        self._asks = False
        self._lines = Lines()
        self._at_terminal = sys.stdin.isatty()
        self._failed = False

    async def run(self) -> int:
        """Answers line by line, and returns the exit code."""
        if self._at_terminal:
            self._output.note(GREETING)
        while (line := await self._read()) is not None:
            text = self._text(line)
            if text == "/reset":
                self._conversation.reset()
                self._output.note("this is a new conversation")
            elif text and (prompt := self._prompt(text)) is not None:
                await self._turn(text, prompt)
        return FAILED if self._failed and not self._at_terminal else 0

    async def _read(self) -> bytes | None:
        line = None
        self._ask()
        self._asks = True
        try:
            line = await self._lines.read()
        finally:
            self._asks = False
            if line is None and self._at_terminal:
                self._output.aside("\n")
        return line

    def _ask(self) -> None:
        if self._at_terminal:
            self._output.aside("> ")

    def _text(self, line: bytes) -> str:
        try:
            return line.decode().strip()
        except UnicodeDecodeError as error:
            self._fail(f"that is not UTF-8: {error.reason} at byte {error.start} of the line")
            return ""

    def _prompt(self, text: str) -> list[int] | None:
        """The tokens that ask; None, which is told, if they cannot be had, or there is no room."""
        try:
            prompt = self._conversation.prompt(text)
        except click.ClickException as refusal:
            self._fail(refusal.format_message())
            return None
        room = self._job.context_length
        if room is None or len(prompt) < room:
            return prompt
        self._fail(
            f"the model's context is full: {room} tokens, and with this turn the conversation"
            f" has {len(prompt)}; {RESET}"
        )
        return None

    async def _turn(self, text: str, prompt: list[int]) -> None:
        """Asks, and keeps what is answered, however that ends."""
        stream = self._session.stream(prompt, self._job.sampling_params)
        answer = Answer(stream, ModelDecoder(self._job.vocabulary), self._session)
        await answer.run(connect_timeout=self._job.target.connect_timeout)
        tokens, completion = answer.tokens, answer.completion
        if tokens or (completion is not None and not answer.stopped):
            self._conversation.keep(text, prompt, tokens)
        if answer.failure is not None:
            self._tell_failure(answer.failure, tokens)
        elif answer.stopped:
            self._tell_stop(answer)
        elif completion is not None and completion.finish_reason == "length":
            room = self._job.context_length
            full = room is not None and len(prompt) + len(tokens) >= room
            why = f"the model's context is full; {RESET}" if full else "-n allows more"
            self._output.note(f"cut off after {len(tokens)} tokens: {why}")
        if completion is not None and self._job.stats:
            self._tell_stats(len(prompt), completion)

    def _fail(self, line: str) -> None:
        self._failed = True
        self._output.note(" ".join(line.split()))

    def _tell_failure(self, error: InferenceError, tokens: Sequence[int]) -> None:
        kept = "what was said is kept" if tokens else "this turn does not count"
        offer = f"; {RESET}" if isinstance(error, RequestFailed) else ""
        self._fail(f"{error}; {kept}{offer}")

    def _tell_stop(self, answer: Answer) -> None:
        count = len(answer.tokens)
        if self._at_terminal and not count:
            self._output.aside("\n")  # behind the ^C
        line = f"stopped after {count} tokens" if count else "stopped; this turn does not count"
        if not self._session.can_abort:
            line += ", and the engine goes on: this dialect has no abort"
        elif answer.begun and answer.completion is None:
            line += ", and the coordinator has not answered that yet"
        self._output.note(line)

    def _tell_late(self) -> None:
        if self._at_terminal:
            self._output.aside("\n")  # behind the ^C
        self._output.note("the answer had ended by itself; Ctrl-C once more ends this program")
        if self._asks:
            self._ask()

    def _tell_stats(self, length: int, completion: Completion) -> None:
        cached = completion.num_cached_tokens
        known = "" if cached is None else f", {cached} of them cached"
        self._output.note(
            f"{length} tokens of prompt{known}; {completion.generated_length} generated"
            f" in {completion.latency:.2f} s"
        )
