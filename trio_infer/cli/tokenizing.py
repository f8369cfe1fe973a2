"""What makes text of the ids of tokens: the decoder of a request."""

from __future__ import annotations

import codecs
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import click

from ..embedded import ModelTokenizer
from ..embedded.language_model import Traits
from ..embedded.ngram import END_TOKEN
from ..protocol.detokenizing import Detokenizer
from .vocabularies import load_vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..embedded.language_model import Vocabulary

__all__ = ["BYTES", "ByteDecoder", "Decoder", "ModelDecoder", "decoders"]

BYTES: Final = "bytes"
"""The tokenizer of the small model."""


class Decoder(Protocol):
    """Makes text of the tokens of one request, as they come."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text that these tokens complete, behind all before them; never half a character.

        Raises:
            click.UsageError: they are not of this tokenizer.
        """

    def piece(self, token: int) -> str:
        """What one token says by itself, for a cell of a table; empty if it is not known."""


class ByteDecoder:
    """Takes ids for bytes in UTF-8, as the embedded models have them."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def decode(self, tokens: Sequence[int]) -> str:
        """As `Decoder` has it. The end token has no text."""
        foreign = next((token for token in tokens if not 0 <= token <= END_TOKEN), None)
        if foreign is not None:
            msg = f"token {foreign} is no byte: --tokenizer bytes does not fit this coordinator"
            raise click.UsageError(msg)
        return self._decoder.decode(bytes(token for token in tokens if token != END_TOKEN))

    def piece(self, token: int) -> str:
        """As `Decoder` has it."""
        if token == END_TOKEN:
            return "(end)"
        if not 0 <= token < END_TOKEN:
            return ""
        return repr(bytes((token,)))[1:]


class ModelDecoder:
    """Takes ids for those of a vocabulary.

    Args:
        vocabulary: that of a model, or a model itself.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._size = vocabulary.vocab_size
        self._ends = Traits.of(vocabulary).end_tokens
        self._tokenizer = ModelTokenizer(vocabulary)
        self._detokenizer = Detokenizer(self._tokenizer)
        self._tokens: list[int] = []

    def decode(self, tokens: Sequence[int]) -> str:
        """As `Decoder` has it. The end token has no text."""
        foreign = next((token for token in tokens if not self._knows(token)), None)
        if foreign is not None:
            msg = f"there is no token {foreign}: --tokenizer does not fit this coordinator"
            raise click.UsageError(msg)
        self._tokens += tokens
        return self._detokenizer.take(self._tokens, ended=False)

    def rest(self) -> str:
        """What is left at the end of all tokens, such as half a character."""
        return self._detokenizer.take(self._tokens, ended=True)

    def piece(self, token: int) -> str:
        """As `Decoder` has it."""
        if not self._knows(token):
            return ""
        return "(end)" if token in self._ends else repr(self._tokenizer.decode([token]))

    def _knows(self, token: int) -> bool:
        return 0 <= token < self._size


def decoders(tokenizer: str) -> Callable[[], Decoder]:
    """What makes the decoder of a request, by the name of its tokenizer or where that is.

    Raises:
        click.ClickException: there is no such tokenizer.
    """
    if tokenizer == BYTES:
        return ByteDecoder
    return partial(ModelDecoder, load_vocabulary(tokenizer))
