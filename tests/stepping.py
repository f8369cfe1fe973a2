"""Cancelling what takes several steps at each of them, one after the other."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import attrs
import trio
import trio.testing

from tests.scheduling import scheduled_by

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["cancelled_at_each_step"]


async def cancelled_at_each_step(
    make: Callable[[], Awaitable[object]], check: Callable[[], Awaitable[None]]
) -> int:
    """Does something again and again, and cancels it each time one step later.

    A step is what a task does between two checkpoints. The steps of all tasks count that are begun
    meanwhile, and each is cancelled twice: as it is about to be taken, so that it is taken in a
    cancelled scope and what it was woken for has happened; and behind it, while the task waits.

    Over ``memory://`` and under a mocked clock, each run is like the last.

    Args:
        make: does it once; called in a task of its own.
        check: called after each time, once no task of it is left: raises if anything else is.

    Returns:
        How many steps it took to run through.
    """
    for nth in itertools.count(1):
        interrupted = [await _cancelled_at(nth, make, check, ahead=each) for each in (True, False)]
        if not any(interrupted):
            return nth - 1
    raise AssertionError


async def _cancelled_at(
    nth: int,
    make: Callable[[], Awaitable[object]],
    check: Callable[[], Awaitable[None]],
    *,
    ahead: bool,
) -> bool:
    """Does it once. Returns whether it took that many steps."""
    errors: list[Exception] = []
    steps = _Steps(nth, ahead=ahead)

    async def run() -> None:
        steps.root = trio.lowlevel.current_task()
        await trio.lowlevel.checkpoint()  # the first step that counts is the one behind it
        with steps.scope:
            try:
                await make()
            except Exception as error:  # noqa: BLE001 - raised below, bare
                errors.append(error)

    tasks = trio.lowlevel.current_statistics().tasks_living
    with scheduled_by(nth):
        trio.lowlevel.add_instrument(steps)
        try:
            async with trio.open_nursery() as nursery:  # noqa: ASYNC112 - a task of its own
                nursery.start_soon(run)
        finally:
            trio.lowlevel.remove_instrument(steps)
    for error in errors:
        raise error
    await check()
    assert trio.lowlevel.current_statistics().tasks_living == tasks, "a task is left"
    return steps.scope.cancel_called


@attrs.define(eq=False)
class _Steps(trio.abc.Instrument):
    """Counts the steps of a task and of its descendants, and cancels a scope at the n-th.

    Attributes:
        nth: which step.
        ahead: whether just before it, or just behind it.
        scope: what is cancelled.
        root: the task.
        count: how many steps there were.
    """

    nth: int
    ahead: bool
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    root: trio.lowlevel.Task | None = None
    count: int = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._is_of_root(task):
            self.count += 1
            if self.ahead and self.count == self.nth:
                self.scope.cancel()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if not self.ahead and self.count == self.nth and self._is_of_root(task):
            self.scope.cancel()

    def _is_of_root(self, task: trio.lowlevel.Task | None) -> bool:
        while task is not None and task is not self.root:
            nursery = task.parent_nursery
            task = None if nursery is None else nursery.parent_task
        return task is not None
