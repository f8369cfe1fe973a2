"""How the one task that waits for news of a request is woken."""

from __future__ import annotations

import trio

__all__ = ["Wakeup"]


class Wakeup:
    """What a memory channel with one place for None would do, for one task that receives.

    It is made in a tenth of the time, and wakes in half: each request has one. Whoever is told that
    there is something to look at goes and looks; the things themselves do not travel in it.
    """

    __slots__ = ("_closed", "_is_set", "_sleeper")

    def __init__(self) -> None:
        self._closed = False
        self._is_set = False
        self._sleeper: trio.lowlevel.Task | None = None

    def set(self) -> None:
        """There is something to look at. Does not wait, nor run anybody."""
        if self._sleeper is None:
            self._is_set = True
        else:
            self._wake(self._sleeper)

    def close(self) -> None:
        """Nobody shall wait any more."""
        self._closed = True
        if self._sleeper is not None:
            self._wake(self._sleeper)

    def _wake(self, sleeper: trio.lowlevel.Task) -> None:
        self._sleeper = None
        trio.lowlevel.reschedule(sleeper)

    @trio.lowlevel.enable_ki_protection
    async def wait(self) -> None:
        """Returns once it was set since the last time. Cancelled, it has not taken anything.

        Raises:
            trio.ClosedResourceError: it was closed.
        """
        if self._closed:
            await trio.lowlevel.checkpoint()
        elif self._is_set:
            await trio.lowlevel.checkpoint_if_cancelled()
            self._is_set = False
            await trio.lowlevel.cancel_shielded_checkpoint()
        else:
            self._sleeper = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        if self._closed:
            raise trio.ClosedResourceError

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._sleeper = None
        return trio.lowlevel.Abort.SUCCEEDED
