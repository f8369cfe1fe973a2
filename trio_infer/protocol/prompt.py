"""Prompts as callers have them, and as the wire takes them: a `str` or a list of int."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from ..models.scalars import INT64_MAX, INT64_MIN, to_int, to_text

__all__ = ["Prompt", "SupportsToList", "coerce_prompt"]


class SupportsToList(Protocol):
    """An array of token ids: NumPy's, torch's, the standard library's."""

    def tolist(self) -> object:
        """The items as Python objects."""
        ...  # pragma: no cover


Prompt: TypeAlias = str | Sequence[int] | SupportsToList
"""Text, or token ids as a sequence of ints or a one-dimensional array that has ``tolist``."""


def coerce_prompt(prompt: Prompt) -> str | list[int]:
    """The prompt as the wire takes it; a list is always a new one.

    Args:
        prompt: text, or token ids as a one-dimensional sequence or array of ints.

    Raises:
        TypeError: for anything else; bytes, bools and floats are no token ids.
        ValueError: for an empty prompt, text with lone surrogates, ids beyond signed 64 bits.
    """
    coerced = to_text(prompt, "prompt") if isinstance(prompt, str) else _token_ids(prompt)
    if not coerced:
        msg = "prompt is empty: give the engine at least one token to start from"
        raise ValueError(msg)
    return coerced


def _token_ids(prompt: object) -> list[int]:
    if isinstance(prompt, bytes | bytearray | memoryview):
        msg = f"prompt must be str or token ids, not {type(prompt).__name__}: decode it first"
        raise TypeError(msg)
    to_list = getattr(prompt, "tolist", None)
    items = to_list() if callable(to_list) else prompt
    if not isinstance(items, Sequence) or isinstance(items, str | bytes):
        msg = f"prompt must be str or a sequence of token ids, not {type(prompt).__name__}"
        raise TypeError(msg)
    ids = list(items)
    if all(type(item) is int for item in ids):
        if ids and not (min(ids) >= INT64_MIN and max(ids) <= INT64_MAX):
            index = next(i for i, item in enumerate(ids) if not INT64_MIN <= item <= INT64_MAX)
            msg = f"prompt[{index}] does not fit signed 64 bits: it is the id of no token"
            raise ValueError(msg)
        return ids
    if isinstance(ids[0], str):
        msg = "prompt must be str or token ids, not several str: each request has one prompt"
        raise TypeError(msg)
    return [to_int(item, f"prompt[{index}]") for index, item in enumerate(ids)]
