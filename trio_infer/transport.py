"""Connections to a coordinator, one after another: epochs, pauses between them, loss.

A connection is a new socket, and so a new routing id: the coordinator answers each one's CONNECT,
and nothing of an old one can reach whoever took its place. ZeroMQ's own reconnection is put off for
longer than any socket lives.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Final, Protocol

import attrs
import trio

from .connection import CLOSED, NO_ANSWER, Connection, State
from .errors import ConnectError
from .protocol.client_codec import ClientCodec
from .sockets import DEALER, Link, Network, NotConnected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .protocol.packing import Frames

__all__ = ["CLOSED", "Listener", "Transport"]

_logger: Final = logging.getLogger(__name__)

BACKOFF_SECONDS: Final = (0.05, 2.0)
"""The pause before the first new attempt, and the longest."""

LASTED_SECONDS: Final = 2.0
"""A connection that breaks before that counts as a failed attempt: the next one may do the same."""


class Listener(Protocol):
    """The floor above, which hears what comes over a connection and what becomes of it."""

    def on_frames(self, frames: Frames) -> None:
        """Something came that is no end of a handshake, perhaps nonsense. Must not raise."""

    def on_up(self) -> None:
        """A connection came up; nothing has been sent over it yet. Must not raise."""

    def on_lost(self, reason: str) -> None:
        """The connection over which requests were handed over is gone. Must not raise."""


def backoff() -> Iterator[float]:
    """Pauses between attempts: doubling, bounded, and jittered so that clients do not march."""
    pause, longest = BACKOFF_SECONDS
    while True:
        yield pause * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        pause = min(2 * pause, longest)


@attrs.define(eq=False)
class Transport:
    """The way to one coordinator, over as many connections as it takes.

    Attributes:
        connections: how many times a handshake succeeded.
    """

    address: str
    codec: ClientCodec
    link: Link
    network: Network
    listener: Listener
    connections: int = 0
    _reason: str = NO_ANSWER  # of the end of the last attempt or connection
    _current: Connection | None = None
    _closed: bool = False
    _turned: trio.Event = attrs.field(factory=trio.Event)

    @property
    def is_up(self) -> bool:
        """Whether a request can be handed over now."""
        return self._current is not None and self._current.is_up

    @property
    def awaits_ack(self) -> bool:
        """Whether an answer to a CONNECT is owed."""
        return self._current is not None and self._current.state is State.GREETED

    @property
    def cause(self) -> str:
        """Why there is no connection: how the last one ended, or how far the first has come."""
        first = self._current if self._reason == NO_ANSWER else None
        return self._reason if first is None else first.reason

    def send(self, frames: Frames) -> None:
        """Hands a message to the connection, whole.

        Raises:
            NotConnected: if there is none; nothing was taken.
        """
        if self._current is None:
            raise NotConnected
        self._current.send(frames)

    async def wait_up(self) -> None:  # noqa: ASYNC910 - may not have to wait
        """Returns when a connection is up, at once if one is.

        Raises:
            trio.ClosedResourceError: the transport was closed.
        """
        while not self._closed and not self.is_up:
            await self._turned.wait()
        if self._closed:
            raise trio.ClosedResourceError(CLOSED)

    async def wait_answered(self) -> None:  # noqa: ASYNC910 - may not have to wait
        """Returns when no answer to a CONNECT is owed, at once if none is."""
        if self._current is not None:
            await self._current.wait_while(State.GREETED)

    def stop_waiting(self) -> None:
        """Lets nobody wait for a connection any more. One that is up goes on; none comes up."""
        self._closed = True
        if self._current is not None and self._current.state is State.LINKING:
            self._current.fail(CLOSED)
        self._turn()

    def _turn(self) -> None:
        self._turned.set()
        self._turned = trio.Event()

    def _came_up(self) -> None:
        self.connections += 1
        _logger.info("connected to %s", self.address)
        self.listener.on_up()
        self._turn()

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Keeps up a connection, until it is cancelled."""
        pauses = backoff()
        told = {CLOSED}
        while True:
            if self._closed:
                await trio.sleep_forever()  # there is nothing to greet anybody for
            lasted: float | None = None
            try:
                lasted = await self._connect_once()
            except ConnectError as error:  # want of descriptors, say: that may pass
                self._reason = str(error)
            if lasted is not None:
                told = {CLOSED}
                if lasted >= LASTED_SECONDS:
                    pauses = backoff()
            elif self._reason not in told:
                told.add(self._reason)
                _logger.warning("no connection to %s: %s", self.address, self._reason)
            await trio.sleep(next(pauses))

    async def _connect_once(self) -> float | None:
        """Connects, and returns how long the connection was up; None if it did not come up."""
        socket = self.network.socket(DEALER, self.link)
        connection = self._current = Connection(
            socket, self.codec, self.listener.on_frames, came_up=self._came_up
        )
        try:
            socket.connect(self.address)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(socket.watch, connection.notice)
                nursery.start_soon(socket.read, connection.deliver)
                await connection.live(self.link)
                nursery.cancel_scope.cancel()
        finally:
            is_alive = connection.state is not State.DOWN
            connection.fail(CLOSED)
            self._reason = connection.reason
            self._current = None
            socket.close(linger=is_alive)
            _logger.debug("connection to %s ended: %s", self.address, self._reason)
            if connection.up_since is not None:
                self.listener.on_lost(self._reason)
        return None if connection.up_since is None else trio.current_time() - connection.up_since
