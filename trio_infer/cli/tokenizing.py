"""What makes text of the ids of tokens: tokenizers, by name."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Final, Protocol

import click

from ..embedded import ModelTokenizer
from ..embedded.ngram import END_TOKEN
from ..protocol.detokenizing import Detokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..embedded import LanguageModel

__all__ = ["TOKENIZERS", "ByteDecoder", "Decoder", "ModelDecoder", "make_decoder"]


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
        return repr(bytes((token,)).decode(errors="backslashreplace"))


class ModelDecoder:
    """Takes ids for those of a model in this process.

    Args:
        model: the model.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._tokenizer = ModelTokenizer(model)
        self._detokenizer = Detokenizer(self._tokenizer)
        self._tokens: list[int] = []

    def decode(self, tokens: Sequence[int]) -> str:
        """As `Decoder` has it. The end token has no text."""
        self._tokens += tokens
        return self._detokenizer.take(self._tokens, ended=False)

    def piece(self, token: int) -> str:
        """As `Decoder` has it."""
        text = self._tokenizer.decode([token])
        return repr(text) if text else "(end)"


TOKENIZERS: Final[Mapping[str, Callable[[], Decoder]]] = {"bytes": ByteDecoder}
"""What makes the decoder of a request, by the name of its tokenizer."""


def make_decoder(name: str) -> Decoder:
    """A decoder for one request, by the name of its tokenizer."""
    return TOKENIZERS[name]()
