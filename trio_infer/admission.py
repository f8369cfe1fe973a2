"""Who may start: so many requests at a time, first come first served."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Admission"]

LET_IN: Final = 64
"""So many are let in at once, lest those that run too soon be too many."""


class Admission:
    """Places, which whoever has to wait for one gets in turn.

    A place is promised by `enter`, and from `leave` on it is taken only if ``occupied`` says so:
    what took it tells `admit` when that changes. Tasks that are woken at once run in any order: of
    those let in, whoever runs too soon waits again, until the ones before it have passed.

    Args:
        limit: how many places there are; None: as many as are wanted.
        occupied: how many are taken.

    Attributes:
        is_limited: whether there is a limit. Where there is none, nobody need ask, or tell.
    """

    __slots__ = (
        *("_let_in", "_limit", "_occupied", "_promised", "_queue", "_too_soon", "is_limited"),
    )

    def __init__(self, limit: int | None, occupied: Callable[[], int]) -> None:
        self.is_limited: bool = limit is not None
        self._limit = math.inf if limit is None else limit
        self._occupied = occupied
        self._promised = 0
        self._queue = trio.lowlevel.ParkingLot()
        self._let_in: deque[trio.lowlevel.Task] = deque()  # in order, and not passed yet
        self._too_soon = trio.lowlevel.ParkingLot()

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return len(self._queue) + len(self._let_in)

    def enter_nowait(self) -> None:
        """Gets a place.

        Raises:
            trio.WouldBlock: there is none, or others wait already.
        """
        if self.is_limited and (self.waiting or not self._has_room):
            raise trio.WouldBlock
        self._promised += 1

    @trio.lowlevel.enable_ki_protection
    async def enter(self) -> None:
        """Gets a place, waiting for it if need be. Cancelled, it has none, and waits no more."""
        if not self.is_limited or (not self.waiting and self._has_room):
            self._promised += 1
            return  # noqa: ASYNC910 - as it says
        await self._queue.park()  # until `admit`, which has promised it
        task = trio.lowlevel.current_task()
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            while self._let_in[0] is not task:
                await self._too_soon.park()
                await trio.lowlevel.checkpoint_if_cancelled()
        except BaseException:
            self._promised -= 1
            raise
        finally:
            self._let_in.remove(task)
            self._too_soon.unpark_all()
            self.admit()

    def leave(self) -> None:
        """The place is not promised any more: it is taken by now, or is another's."""
        self._promised -= 1
        self.admit()

    def admit(self) -> None:
        """Lets in who waits, as far as there is room."""
        while self.is_limited and self._queue and len(self._let_in) < LET_IN and self._has_room:
            self._promised += 1
            self._let_in.extend(self._queue.unpark())

    def close(self) -> None:
        """Lets everybody in, to find that there is nothing any more."""
        self._limit = math.inf
        self.admit()

    @property
    def _has_room(self) -> bool:
        return self._occupied() + self._promised < self._limit
