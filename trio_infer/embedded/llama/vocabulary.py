"""The tokenizer that a GGUF file has in it."""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from typing import TYPE_CHECKING, Any, Final

from .files import find_file
from .library import last_error, load_library

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

__all__ = ["Vocabulary", "open_vocabulary"]

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}".encode()


def open_vocabulary(path: str | PathLike[str]) -> Vocabulary:
    """The tokenizer of a GGUF file or name, as `find_file` has them, without the model.

    Raises:
        ImportError: a package is missing.
        OSError: the file cannot be read.
        ValueError: it is no GGUF file, or llama.cpp cannot load it.
    """
    found = find_file(path)
    library = load_library()
    last_error()
    params = library.llama_model_default_params()
    params.vocab_only = True
    model = library.llama_model_load_from_file(os.fsencode(found), params)
    if not model:
        msg = f"llama.cpp cannot load the vocabulary of {found}: {last_error()}"
        raise ValueError(msg)
    vocabulary = Vocabulary(library, model)
    weakref.finalize(vocabulary, library.llama_model_free, model)
    return vocabulary


class Vocabulary:
    """Tokens and their texts. Any thread may ask at any time.

    Args:
        library: llama_cpp.
        model: its model, which has to outlive this.
    """

    def __init__(self, library: Any, model: Any) -> None:
        self._library = library
        self._vocab = vocab = library.llama_model_get_vocab(model)
        self.vocab_size: int = library.llama_vocab_n_tokens(vocab)
        ends = (
            token for token in range(self.vocab_size) if library.llama_vocab_is_eog(vocab, token)
        )
        self.end_tokens: frozenset[int] = frozenset(ends)
        eos, eot = library.llama_vocab_eos(vocab), library.llama_vocab_eot(vocab)
        self.end_token: int = eos if eos >= 0 else eot
        bos: int = library.llama_vocab_bos(vocab)
        self.begin_token: int = bos if bos >= 0 else self.end_token
        template = library.llama_model_chat_template(model, None)
        self.chat_template: str | None = (
            None if template is None else template.decode(errors="replace")
        )
        self.begins_prompts: bool = bool(library.llama_vocab_get_add_bos(vocab)) and bos >= 0
        self._piece = functools.cache(self._read_piece)

    def tokenize(self, text: str) -> list[int]:
        """The ids of a text; those that stand for marks of the model's, such as turns, too."""
        data = text.encode()
        room = len(data) + 16  # a token has a byte at least, and some models begin with a space
        tokens = (ctypes.c_int32 * room)()
        count = self._library.llama_tokenize(
            self._vocab,
            data,
            len(data),
            tokens,
            room,
            *(False, True),
        )
        if count < 0:
            msg = f"llama.cpp has no tokens for this text ({count})"
            raise ValueError(msg)
        return tokens[:count]

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Their text; half a character is U+FFFD, and so is no token; marks are visible."""
        return b"".join(map(self._piece, tokens)).decode(errors="replace")

    def _read_piece(self, token: int) -> bytes:
        if not 0 <= token < self.vocab_size:  # llama.cpp would end the process
            return _REPLACEMENT
        length, size = 0, 64
        while length == 0 or length > size:
            size = max(size, length)
            buffer = ctypes.create_string_buffer(size)
            length = self._library.llama_token_to_piece(
                self._vocab,
                token,
                buffer,
                size,
                0,
                True,  # noqa: FBT003 - C
            )
            if 0 <= length <= size:
                return buffer.raw[:length]
            length = -length
        return b""
