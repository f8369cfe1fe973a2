"""How often others have their turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["turns_during"]


async def turns_during(act: Callable[[], Awaitable[object]]) -> int:
    """How many turns a task has that wants nothing else, while this one does something."""
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_turns)
        await trio.lowlevel.checkpoint()
        before = turns
        await act()
        taken = turns - before
        nursery.cancel_scope.cancel()
    return taken
