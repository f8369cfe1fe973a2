"""A language model's tokenizer, for those who talk to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .language_model import Traits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .language_model import Vocabulary

__all__ = ["ModelTokenizer"]


class ModelTokenizer:
    """The tokenizer of an embedded coordinator's language model: its attribute ``tokenizer``."""

    def __init__(self, model: Vocabulary) -> None:
        self._model = model
        self._ends = Traits.of(model).end_tokens

    def encode(self, text: str) -> list[int]:
        """The token ids of a text.

        Raises:
            ValueError: if the text has no ids in this vocabulary.
        """
        return self._model.tokenize(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids; as usual with tokenizers, the end token has none."""
        return self._model.detokenize([token for token in ids if token not in self._ends])
