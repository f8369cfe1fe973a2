"""What an engine asks of a language model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LanguageModel"]


@runtime_checkable
class LanguageModel(Protocol):
    """A model that continues token sequences.

    Engines call it from the trio thread, once per step, so it should answer within milliseconds. It
    may be shared by any number of engines.
    """

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

    def next_token_log_probs(self, sequences: Sequence[Sequence[int]]) -> Sequence[Sequence[float]]:
        """What may come next, for each of a batch of sequences.

        Returns:
            For each sequence the natural logarithms of the probabilities of all ``vocab_size`` ids,
            which add up to one. Callers do not change them: they may be cached.
        """
        ...
