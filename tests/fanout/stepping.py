"""Cancelling a block at each moment that there is, one run of trio after another.

A moment is a task's step: between two of them nothing happens. Those of the other tasks count as
well, so that a task which waits is cancelled before, between and behind all that happens meanwhile.
Under a mocked clock, over ``memory://`` and with a seed for the scheduler each run is like the
last, up to the moment.
"""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import trio
import trio.testing

from tests.scheduling import scheduled_by

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["cancelled_at", "run_at_each_step"]


class _Stepper(trio.abc.Instrument):
    """Cancels a scope before the n-th step of any task."""

    def __init__(self, nth: int, scope: trio.CancelScope) -> None:
        self._left = nth
        self._scope = scope

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._left -= 1
        if self._left == 0:
            self._scope.cancel()


async def cancelled_at(nth: int, act: Callable[[], Awaitable[object]]) -> bool:
    """Does something that is cancelled before the n-th step; with 0, from the beginning.

    Returns:
        Whether it was cancelled before it was done.

    Raises:
        AssertionError: something else than a bare `trio.Cancelled` came out of it.
    """
    with trio.CancelScope() as scope:
        stepper = _Stepper(nth, scope)
        if nth == 0:
            scope.cancel()
        trio.lowlevel.add_instrument(stepper)
        try:
            await act()
        except trio.Cancelled:
            raise
        except BaseException as error:
            raise AssertionError(repr(error)) from error
        finally:
            trio.lowlevel.remove_instrument(stepper)
    return scope.cancelled_caught


def run_at_each_step(main: Callable[[int], Awaitable[bool]], *, seed: int = 0) -> int:
    """Runs ``main(0)``, ``main(1)`` and so on, until one was not cancelled any more.

    Args:
        main: tells whether it was cancelled, as `cancelled_at` does.
        seed: of the order in which tasks run that are ready at the same time.

    Returns:
        At how many steps it was cancelled.
    """
    for nth in count():
        clock = trio.testing.MockClock(autojump_threshold=0)
        with scheduled_by(seed):
            if not trio.run(partial(main, nth), clock=clock):
                return nth
    raise AssertionError
