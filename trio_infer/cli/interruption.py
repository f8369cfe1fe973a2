"""What Ctrl-C and its like do: the first ends what is being done, the second everything.

In a conversation Ctrl-C ends an answer and no more, if it does not come twice.
"""

from __future__ import annotations

import logging
import math
import os
import signal
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from ..background import running_behind
from .exits import by_signal

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator

    from rich.console import Console

__all__ = ["Interruption", "run_interruptible"]

JobT = TypeVar("JobT")

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

ECHO_SECONDS: Final = 0.1
"""A signal so soon after another is the same one: ``timeout`` and other parents send it twice."""

AGAIN_SECONDS: Final = 2.0
"""Ctrl-C so soon after it has stopped something means everything."""

LATE_SECONDS: Final = 1.0
"""Ctrl-C so soon after the end of what it stops was meant for that."""

WAIT_SECONDS: Final = 1.0
"""After this time with no end it is told why."""


class Interruption:
    """Whether and by which signal the program was interrupted.

    Attributes:
        signal: the first signal that came; None if none did.
        too_late: called where Ctrl-C comes in the moment after what it would have stopped.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.too_late: Callable[[], object] = lambda: None
        self._came = trio.Event()
        self._console: Console | None = None
        self._scope = trio.CancelScope()
        self._stoppable: trio.CancelScope | None = None
        self._stopped_at = -math.inf
        self._at = -math.inf

    @property
    def exit_code(self) -> int:
        """0, or what shells make of the signal."""
        return 0 if self.signal is None else by_signal(self.signal)

    @asynccontextmanager
    async def watching(self) -> AsyncGenerator[None]:
        """The block in which signals are heard, but for those that this program's parent ignores.

        The first cancels the innermost block of `cancels`. A later one ends the process at once.
        """
        heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        with trio.open_signal_receiver(*heard) as arrivals:
            async with running_behind(partial(self._watch, arrivals)):
                yield

    @contextmanager
    def cancels(self) -> Iterator[trio.CancelScope]:
        """A block that the first signal cancels, and none around it; at once if it has come."""
        with trio.CancelScope() as scope:
            outer, self._scope = self._scope, scope
            if self.signal is not None:
                scope.cancel()
            try:
                yield scope
            finally:
                self._scope = outer

    @contextmanager
    def stops(self) -> Iterator[trio.CancelScope]:
        """A block that Ctrl-C cancels with no further consequence, unless it comes twice.

        In the moment after the block it has none at all, but that `too_late` is called.
        """
        with trio.CancelScope() as scope:
            self._stoppable = scope
            try:
                yield scope
            finally:
                self._stoppable = None
                self._stopped_at = trio.current_time()

    @asynccontextmanager
    async def told_on(self, console: Console) -> AsyncGenerator[None]:
        """The block in which a console has a live view.

        It tells there what the program still waits for, and gives it its cursor back where a second
        signal ends the process.
        """
        self._console = console
        async with running_behind(partial(self._tell_wait, console)):
            yield

    async def _tell_wait(self, console: Console) -> None:
        await self._came.wait()
        await trio.sleep(WAIT_SECONDS)
        line = "interrupted; waiting for the coordinator's last replies, Ctrl-C leaves at once"
        console.print(f"trio-infer: {line}", soft_wrap=True)

    async def _watch(self, arrivals: AsyncIterator[int]) -> None:
        async for number in arrivals:
            now = trio.current_time()
            since = now - self._at
            if self.signal is None:
                if number != signal.SIGINT or since > ECHO_SECONDS:
                    self._at = now
                    self._end(signal.Signals(number), since)
            elif number != signal.SIGHUP and since > ECHO_SECONDS:
                with suppress(OSError):
                    if self._console is not None:
                        self._console.show_cursor()
                os._exit(by_signal(number))

    def _end(self, number: signal.Signals, since: float) -> None:
        """Ends what is to be stopped, if it has been so long since the last time, or else all."""
        is_first = number == signal.SIGINT and since > AGAIN_SECONDS
        if is_first and self._stoppable:
            self._stoppable.cancel()
        elif is_first and trio.current_time() - self._stopped_at <= LATE_SECONDS:
            self.too_late()
        else:
            self.signal = number
            self._scope.cancel()
            self._came.set()


def run_interruptible(
    command: Callable[[Interruption, JobT], Awaitable[int | None]], job: JobT
) -> int:
    """Runs a command that minds its signals itself, and returns its exit code, or a signal's."""

    async def run() -> int:
        interruption = Interruption()
        async with interruption.watching():
            code = await command(interruption, job)
        return interruption.exit_code or code or 0

    logging.getLogger("trio_infer").addHandler(logging.NullHandler())  # what matters is told here
    return trio.run(run)
