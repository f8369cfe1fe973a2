"""What happens in a run, read off bytes, so that whoever finds better bytes finds more."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Choices"]

_Item = TypeVar("_Item")


class Choices:
    """Makes choices by bytes, as long as there are any; after that always the first one."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    @property
    def are_left(self) -> bool:
        return self._place < len(self._data)

    def below(self, limit: int) -> int:
        """A number from 0 up to a limit, which it does not reach."""
        size = 1 if limit <= 256 else 2
        taken = self._data[self._place : self._place + size]
        self._place += size
        return int.from_bytes(taken, "big") % limit

    def one_in(self, count: int) -> bool:
        """Whether to do what should happen once in so many times."""
        return self.below(count) == count - 1

    def of(self, items: Sequence[_Item]) -> _Item:
        return items[self.below(len(items))]

    def bytes(self) -> bytes:
        length = self.below(16)
        taken = self._data[self._place : self._place + length]
        self._place += length
        return taken
