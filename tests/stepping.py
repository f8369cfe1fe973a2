"""Cancelling something at each moment that there is, one run of trio after another.

A moment lies before a task's step, or behind it: between two checkpoints nothing happens. The steps
of all tasks count, so that a task which waits is cancelled before, between and behind all that
happens meanwhile. Before a step, what the task was woken for has happened, and it goes on in a
cancelled scope; behind the step, it waits.

Under a mocked clock, over ``memory://`` and with a seed for the scheduler each run is like the
last, up to the moment.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import attrs
import trio
import trio.testing

from tests.scheduling import scheduled_by

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

__all__ = ["Moment", "run_at_each_step"]


@attrs.define(eq=False)
class Moment(trio.abc.Instrument):
    """When something is cancelled.

    Attributes:
        nth: at which step; 0: before all of them.
        ahead: whether before that step, or behind it.
        steps: how many there were so far.
        time: when it came.
        scope: what is cancelled.
    """

    nth: int
    ahead: bool
    steps: int = 0
    time: float | None = None
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    @property
    def came(self) -> bool:
        """Whether it was not over before."""
        return self.time is not None

    async def cancel(self, act: Callable[[], Awaitable[object]]) -> None:
        """Does something that is cancelled when the moment comes, and then has to end at once."""
        with self.scope:
            self._note(ahead=False)
            trio.lowlevel.add_instrument(self)
            try:
                await act()
            finally:
                trio.lowlevel.remove_instrument(self)
        assert self.time in (None, trio.current_time()), "it went on for a while"

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1
        self._note(ahead=True)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._note(ahead=False)

    def _note(self, *, ahead: bool) -> None:
        if self.steps == self.nth and self.ahead == ahead:
            self.time = trio.current_time()
            self.scope.cancel()


def run_at_each_step(main: Callable[[Moment], Awaitable[None]], *, seed: int = 0) -> int:
    """Runs ``main`` with one moment after another, until one does not come any more.

    Args:
        main: does what is to be cancelled in `Moment.cancel`, once.
        seed: of the order in which tasks run that are ready at the same time.

    Returns:
        How many moments came.
    """
    for came, moment in enumerate(_moments()):
        clock = trio.testing.MockClock(autojump_threshold=0)
        with scheduled_by(seed):
            trio.run(main, moment, clock=clock)
        if not moment.came:
            return came
    raise AssertionError


def _moments() -> Iterator[Moment]:
    for nth in count():
        yield Moment(nth, ahead=False)
        yield Moment(nth + 1, ahead=True)
