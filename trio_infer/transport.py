"""Connections to a coordinator, one after another: handshake, epochs, loss.

A connection is a new socket, and so a new routing id: the coordinator answers each one's CONNECT,
and nothing of an old one can reach whoever took its place. ZeroMQ's own reconnection is put off for
longer than any socket lives.

=========== ========================== =======================================================
state       left when                  then
=========== ========================== =======================================================
linking     ZeroMQ's handshake ends    CONNECT is sent; *greeted*
greeted     CONNECT_ACK comes          *up*: requests may be handed over
up          the link breaks            *down*: nothing is sent any more; what has come is drained
down        drained, the cause known   closed; the floor above is told; after a pause, *linking*
=========== ========================== =======================================================

From every state a broken link, or too long a silence, leads to *down*.
"""

from __future__ import annotations

import enum
import logging
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

import attrs
import trio

from .errors import ConnectError
from .protocol.client_codec import ClientCodec
from .protocol.dialect import Kind
from .protocol.packing import Frames, MalformedMessage
from .sockets import DEALER, Link, LinkEvent, Network, NotConnected, Socket

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CLOSED", "Listener", "Transport"]

_logger: Final = logging.getLogger(__name__)

LINK_SECONDS: Final = 10.0
"""How long one attempt may take to reach the peer, before a new one is made."""

LOOKUP_SECONDS: Final = 60.0
"""How long the name may be looked up before that. ZeroMQ can neither cancel it nor do anything
else meanwhile: what further attempts open would pile up.
"""

BACKOFF_SECONDS: Final = (0.05, 2.0)
"""The pause before the first new attempt, and the longest."""

LASTED_SECONDS: Final = 2.0
"""A connection that breaks before that counts as a failed attempt: the next one may do the same."""

RETRY_SECONDS: Final = 0.3
"""How long ZeroMQ may take to say that it would try again: microseconds, by its own thread."""

CLOSED: Final = "the client is closed"
NO_ANSWER: Final = "no answer"
NO_ACK: Final = "no answer to CONNECT"
GONE: Final = "the peer is gone"
REFUSED: Final = (
    "it sent what ZeroMQ refuses, such as a frame of more than max_message_size ({size}) bytes"
)


class Listener(Protocol):
    """The floor above, which hears what comes over a connection and what becomes of it."""

    def on_frames(self, frames: Frames) -> None:
        """Something came that is no end of a handshake, perhaps nonsense. Must not raise."""

    def on_up(self) -> None:
        """A connection came up; nothing has been sent over it yet. Must not raise."""

    def on_lost(self, reason: str) -> None:
        """The connection over which requests were handed over is gone. Must not raise."""


class _State(enum.Enum):
    LINKING = enum.auto()
    GREETED = enum.auto()
    UP = enum.auto()
    DOWN = enum.auto()


_GREETED: Final = _State.GREETED
_UP: Final = _State.UP  # to be looked up for each message: an enum's members are slow to find


def backoff() -> Iterator[float]:
    """Pauses between attempts: doubling, bounded, and jittered so that clients do not march."""
    pause, longest = BACKOFF_SECONDS
    while True:
        yield pause * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        pause = min(2 * pause, longest)


@attrs.define(eq=False)
class _Connection:
    """One epoch: one socket, from its connecting to its end."""

    socket: Socket
    codec: ClientCodec
    listener: Listener
    came_up: Callable[[], None]
    state: _State = _State.LINKING
    reason: str = NO_ANSWER  # of its end, or, before that, what its end would mean
    up_since: float | None = None
    changed: trio.Event = attrs.field(factory=trio.Event)
    tried: bool = False  # whether the attempt has begun, and is not waiting for a name server
    retried: trio.Event = attrs.field(factory=trio.Event)

    def move(self, state: _State) -> None:
        if self.state is not _State.DOWN:
            self.state = state
            self.turn()

    def turn(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    def fail(self, reason: str) -> None:
        if self.state is not _State.DOWN:
            self.reason = reason
            self.move(_State.DOWN)

    def notice(self, event: LinkEvent, reason: str) -> None:
        if not self.tried:
            self.tried = True
            self.turn()
        if event is LinkEvent.RETRIED:
            self.retried.set()
        if event is LinkEvent.UP:
            self.greet()
        elif event is LinkEvent.DOWN:
            self.fail(GONE)
        elif event is LinkEvent.REACHED:
            if self.state is _State.LINKING:
                self.reason = reason
        elif event is not LinkEvent.TRIED:
            self.fail(reason)

    def greet(self) -> None:
        if self.state is not _State.LINKING:
            return
        try:
            self.socket.send(self.codec.connect())
        except NotConnected:
            self.fail(GONE)
        else:
            self.reason = NO_ACK
            self.move(_State.GREETED)

    def deliver(self, frames: Frames) -> None:
        if self.state is _GREETED and self.is_ack(frames):
            self.up_since = trio.current_time()
            self.move(_UP)
            self.came_up()
        else:
            self.listener.on_frames(frames)

    def is_ack(self, frames: Frames) -> bool:
        try:
            return self.codec.decode(frames).kind is Kind.CONNECT_ACK
        except MalformedMessage:
            return False

    def send(self, frames: Frames) -> None:
        if self.state is not _UP:
            raise NotConnected
        try:
            self.socket.send(frames)
        except NotConnected:
            self.fail(GONE)
            raise

    async def wait_while(self, *states: _State) -> None:  # noqa: ASYNC910 - may not have to wait
        while self.state in states:
            await self.changed.wait()

    async def wait_tried(self) -> None:  # noqa: ASYNC910 - may not have to wait
        while self.state is _State.LINKING and not self.tried:
            await self.changed.wait()

    async def live(self, link: Link) -> None:
        """Sees the connection up, and returns once it is down and drained, and the cause known."""
        patience = link.heartbeat_timeout
        with trio.move_on_after(LOOKUP_SECONDS):
            await self.wait_tried()
        with trio.move_on_after(min(LINK_SECONDS, patience)):
            await self.wait_while(_State.LINKING)
        if self.state is _State.GREETED:
            # Patiently: a coordinator that acks a client who has gone crashes.
            with trio.move_on_after(patience):
                await self.wait_while(_State.GREETED)
        if self.state is not _State.UP:
            self.fail(self.reason)
        await self.wait_while(_State.UP)
        while not self.socket.drain(self.deliver):
            await trio.lowlevel.checkpoint()
        if self.reason == GONE and not await self.would_retry():
            self.reason = REFUSED.format(size=link.max_message_size)

    async def would_retry(self) -> bool:
        """Whether ZeroMQ would connect to the lost peer again: not to one that broke its rules."""
        with trio.move_on_after(RETRY_SECONDS):
            await self.retried.wait()
        await trio.lowlevel.checkpoint()  # the news may have come while other tasks were busy
        return self.retried.is_set()


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
    _current: _Connection | None = None
    _closed: bool = False
    _turned: trio.Event = attrs.field(factory=trio.Event)

    @property
    def is_up(self) -> bool:
        """Whether a request can be handed over now."""
        return self._current is not None and self._current.state is _UP

    @property
    def awaits_ack(self) -> bool:
        """Whether an answer to a CONNECT is owed."""
        return self._current is not None and self._current.state is _State.GREETED

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
            await self._current.wait_while(_State.GREETED)

    def stop_waiting(self) -> None:
        """Lets nobody wait for a connection any more. One that is up goes on; none comes up."""
        self._closed = True
        if self._current is not None and self._current.state is _State.LINKING:
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
        connection = self._current = _Connection(
            socket, self.codec, self.listener, came_up=self._came_up
        )
        try:
            socket.connect(self.address)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(socket.watch, connection.notice)
                nursery.start_soon(socket.read, connection.deliver)
                await connection.live(self.link)
                nursery.cancel_scope.cancel()
        finally:
            is_alive = connection.state is not _State.DOWN
            connection.fail(CLOSED)
            self._reason = connection.reason
            self._current = None
            socket.close(linger=is_alive)
            _logger.debug("connection to %s ended: %s", self.address, self._reason)
            if connection.up_since is not None:
                self.listener.on_lost(self._reason)
        return None if connection.up_since is None else trio.current_time() - connection.up_since
