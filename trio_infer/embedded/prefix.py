"""The beginning of a list of tokens, as a sequence of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

__all__ = ["Prefix"]


class Prefix(Sequence[int]):
    """The beginning of a list, without a copy: a long prompt has as many as it has tokens."""

    __slots__ = ("_length", "_tokens")

    def __init__(self, tokens: list[int], length: int) -> None:
        self._tokens = tokens
        self._length = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        places = range(self._length)[index]
        if isinstance(places, int):
            return self._tokens[places]
        return [self._tokens[place] for place in places]
