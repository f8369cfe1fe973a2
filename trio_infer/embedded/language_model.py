"""What an engine asks of a language model."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, runtime_checkable

import attrs

__all__ = [
    "CachingModel",
    "Interruption",
    "LanguageModel",
    "ModelSequence",
    "Question",
    "Traits",
    "Vocabulary",
]


@runtime_checkable
class Vocabulary(Protocol):
    """Token ids and their texts: so much of a `LanguageModel` as makes a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """How many token ids there are; they are counted from 0."""
        ...

    @property
    def end_token(self) -> int:
        """The id that ends a text, and, where a prompt asks for one, begins it."""
        ...

    def tokenize(self, text: str) -> list[int]:
        """The token ids of a text, without any that begins or ends it.

        Raises:
            ValueError: if the text has no ids in this vocabulary.
        """
        ...

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of token ids, whatever they are and wherever they were cut."""
        ...


@runtime_checkable
class LanguageModel(Vocabulary, Protocol):
    """A model that continues token sequences.

    Engines ask it once per step. It may be shared by any number of engines, and by coordinators of
    the same trio run.

    Some attributes are optional, for models that are larger than a toy:

    - ``runs_in_thread``: true if it is to be asked in a worker thread, so that the coordinator goes
      on taking messages meanwhile. It is asked one thing at a time by one coordinator, while
      `tokenize` and `detokenize` are called in other threads. Otherwise it is asked in the trio
      thread, and should answer within milliseconds.
    - ``max_sequence_length``: how many tokens a prompt and what follows it may have; engines allow
      no more.
    - ``end_tokens``: all the ids that end a text, where there are others than ``end_token``.
    - ``begin_token``: the id that begins a text where a prompt asks for one, if not ``end_token``.
    - ``begins_prompts``: true if every prompt that is text is to begin with that one.
    - ``chat_template``: a template of Jinja's that makes the prompt of a conversation, as the files
      of chat models have it; ``trio-infer chat`` wants one.

    A model that keeps what it has computed of a sequence is a `CachingModel`.
    """

    def next_token_log_probs(self, sequences: Sequence[Sequence[int]]) -> Sequence[Sequence[float]]:
        """What may come next, for each of a batch of sequences.

        Returns:
            For each sequence the natural logarithms of the probabilities of all ``vocab_size`` ids,
            which add up to one. Callers do not change them: they may be cached.
        """
        ...


class ModelSequence(Protocol):
    """A sequence that a `CachingModel` keeps, for one request."""

    @property
    def num_cached_tokens(self) -> int:
        """How many tokens the model had computed for others already when it was first asked."""
        ...

    def close(self) -> None:
        """Says that nothing more will be asked about it, at any time, in the trio thread."""
        ...


@attrs.frozen
class Question:
    """What is asked about one sequence.

    Attributes:
        sequence: which; it is the same for all questions of a request.
        tokens: all of its tokens so far. Between questions they only become more.
        places: for each of these, what may follow ``tokens[:place]`` is asked. They never go back.
    """

    sequence: ModelSequence
    tokens: Sequence[int]
    places: range


class Interruption:
    """Whether nobody waits for an answer any more.

    Attributes:
        flag: two bytes, of which the first becomes 1 then. Code in C may look at it as well.
    """

    __slots__ = ("flag",)

    def __init__(self) -> None:
        self.flag: bytearray = bytearray(2)

    def set(self) -> None:
        """Nobody does."""
        self.flag[0] = 1

    def __bool__(self) -> bool:
        return bool(self.flag[0])


@runtime_checkable
class CachingModel(LanguageModel, Protocol):
    """A language model that keeps what it has computed of sequences, as in a KV cache.

    It is asked by `answer` in place of `LanguageModel.next_token_log_probs`, and a completion's
    ``num_cached_tokens`` is its word.
    """

    def open_sequence(self) -> ModelSequence | None:
        """Makes room for one more sequence; None if there is none, and so the request waits.

        Called in the trio thread, perhaps while the model answers in another.
        """
        ...

    def answer(
        self, questions: Sequence[Question], interruption: Interruption
    ) -> Sequence[Sequence[Sequence[float]]]:
        """What may come next in some sequences, all of them different.

        Args:
            questions: one for each sequence.
            interruption: once it is true, the sooner this returns the better, whatever it returns.

        Returns:
            For each question, for the first of its places, as many as it likes, what
            `LanguageModel.next_token_log_probs` returns. The others are asked for again, so that a
            long prompt may take several turns, in which the others go on.
        """
        ...


@attrs.frozen
class Traits:
    """What a model says of itself, and what holds where it says nothing.

    See `LanguageModel` for the attributes.
    """

    runs_in_thread: bool
    max_sequence_length: int | None
    end_tokens: frozenset[int]
    begin_token: int
    begins_prompts: bool

    @classmethod
    def of(cls, model: Vocabulary) -> Traits:
        """Those of a model."""
        others: Collection[int] = getattr(model, "end_tokens", ())
        return cls(
            runs_in_thread=bool(getattr(model, "runs_in_thread", False)),
            max_sequence_length=getattr(model, "max_sequence_length", None),
            end_tokens=frozenset((model.end_token, *others)),
            begin_token=getattr(model, "begin_token", model.end_token),
            begins_prompts=bool(getattr(model, "begins_prompts", False)),
        )
