"""Prompts as callers have them, and as the wire takes them: a `str` or a list of int."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ..models.scalars import INT64_MAX, INT64_MIN, to_int, to_text

if TYPE_CHECKING:
    from ..models import Prompt

__all__ = ["coerce_ints", "coerce_prompt"]

_INT: Final = frozenset((int,))


def coerce_prompt(prompt: Prompt) -> str | list[int]:
    """The prompt as the wire takes it; a list is always a new one.

    Args:
        prompt: text, or token ids as a one-dimensional sequence or array of ints.

    Raises:
        TypeError: for anything else; bytes, bools and floats are no token ids.
        ValueError: for an empty prompt, text with lone surrogates, ids beyond signed 64 bits.
    """
    if type(prompt) is list and prompt and _INT.issuperset(map(type, prompt)):
        coerced: str | list[int] = _in_range(prompt.copy(), "prompt")  # by far the most are so
    else:
        coerced = to_text(prompt, "prompt") if isinstance(prompt, str) else _token_ids(prompt)
    if not coerced:
        msg = "prompt is empty: give the engine at least one token to start from"
        raise ValueError(msg)
    return coerced


def _token_ids(prompt: object) -> list[int]:
    if isinstance(prompt, bytes | bytearray | memoryview):
        msg = f"prompt must be str or token ids, not {type(prompt).__name__}: decode it first"
        raise TypeError(msg)
    if isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], str):
        msg = "prompt must be str or token ids, not several str: each request has one prompt"
        raise TypeError(msg)
    return coerce_ints(prompt, "prompt")


def coerce_ints(value: object, name: str) -> list[int]:
    """A list of ints of its own, from a one-dimensional sequence or array.

    Raises:
        TypeError: for anything else.
        ValueError: for ints beyond signed 64 bits.
    """
    to_list = getattr(value, "tolist", None)
    items = to_list() if callable(to_list) else value
    if not isinstance(items, Sequence) or isinstance(items, str | bytes | bytearray | memoryview):
        what = "str or a sequence of token ids" if name == "prompt" else "a sequence of ints"
        msg = f"{name} must be {what}, not {type(value).__name__}"
        raise TypeError(msg)
    ints = list(items)
    if not _INT.issuperset(map(type, ints)):
        return [to_int(item, f"{name}[{index}]") for index, item in enumerate(ints)]
    return _in_range(ints, name)


def _in_range(ints: list[int], name: str) -> list[int]:
    if ints and (min(ints) < INT64_MIN or max(ints) > INT64_MAX):
        index = next(i for i, item in enumerate(ints) if not INT64_MIN <= item <= INT64_MAX)
        msg = f"{name}[{index}] must fit signed 64 bits"
        raise ValueError(msg)
    return ints
