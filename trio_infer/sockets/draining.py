"""How what comes to a socket is passed on: in turns, so that a flood stops nobody else."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

import trio

from .home import Home

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..protocol.packing import Frames

__all__ = ["Draining"]

DRAIN_MESSAGES: Final = 4096
DRAIN_SECONDS: Final = 0.008
"""After so many messages, or so long, the reader lets other tasks run.

With a quarter of it, a thousand streams that flow at once are woken for each token alone, and take
twice as long.
"""


class Draining(ABC):
    """The receiving half of a socket, for one task that reads it, and what it needs for that."""

    _now: Callable[[], float] = staticmethod(time.perf_counter)
    """Seconds of whatever clock the budget is counted by."""

    def __init__(self) -> None:
        self._home = Home()
        self._closed = False
        self._draining = False

    @abstractmethod
    def _receive(self) -> Frames | None:
        """The next message; None if there is none, or the socket is closed.

        One without frames is none, but there may be more to receive.
        """

    @abstractmethod
    def _has_arrival(self) -> bool:
        """Whether there is something to receive: asked in less time than receiving nothing takes.

        It takes notice of what happened as receiving does. Of a closed socket there is nothing.
        """

    @abstractmethod
    async def _wait_arrival(self) -> None:
        """Returns when there may be something to receive, or the socket is closed."""

    @trio.lowlevel.enable_ki_protection
    async def read(  # noqa: ASYNC910 - a closed socket is read no more
        self, deliver: Callable[[Frames], None]
    ) -> None:
        """Passes every message to ``deliver``, until it is cancelled or the socket is closed.

        Cancelling it loses nothing: what was not delivered stays in the socket.
        """
        while not self._closed:
            if not self.drain(deliver):
                await trio.lowlevel.checkpoint()
            elif not self._closed:
                await self._wait_arrival()

    @trio.lowlevel.enable_ki_protection
    def drain(self, deliver: Callable[[Frames], None]) -> bool:
        """Passes what has come to ``deliver``, as far as the budget goes.

        Returns whether nothing was left. Calls from within ``deliver`` do nothing.

        Raises:
            RuntimeError: in another thread or process than the socket's own.
        """
        if self._draining or self._closed:
            return True
        self._home.check()  # in a forked process ZeroMQ would wait for itself, and never return
        self._draining = True
        now, receive = self._now, self._receive
        deadline = now() + DRAIN_SECONDS
        try:
            for number in range(DRAIN_MESSAGES):
                frames = receive()
                if frames is None:
                    return True
                if frames:
                    deliver(frames)
                if now() > deadline:
                    return False
                if not number and not self._has_arrival():  # behind one there often is no other
                    return True
            return False
        finally:
            self._draining = False

    def _check(self) -> None:
        if self._closed:
            msg = "the socket is closed"
            raise trio.ClosedResourceError(msg)
        self._home.check()
