"""One connection to a coordinator: one socket, from its connecting to its end.

=========== ========================== =======================================================
state       left when                  then
=========== ========================== =======================================================
linking     ZeroMQ's handshake ends    CONNECT is sent; *greeted*
greeted     CONNECT_ACK comes          *up*: requests may be handed over
up          the link breaks            *down*: nothing is sent any more; what has come is drained
down        drained, the cause known   closed; `transport` tells of it, and makes the next one
=========== ========================== =======================================================

From every state a broken link, or too long a silence, leads to *down*.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final

import attrs
import trio

from .protocol.client_codec import ClientCodec
from .protocol.dialect import Kind
from .protocol.packing import Frames, MalformedMessage
from .sockets import Link, LinkEvent, NotConnected, Socket

__all__ = ["CLOSED", "NO_ANSWER", "Connection", "State"]

LINK_SECONDS: Final = 10.0
"""How long one attempt may take to reach the peer, before a new one is made."""

LOOKUP_SECONDS: Final = 60.0
"""How long the name may be looked up before that. ZeroMQ can neither cancel it nor do anything
else meanwhile: what further attempts open would pile up.
"""

RETRY_SECONDS: Final = 0.3
"""How long ZeroMQ may take to say that it would try again: microseconds, by its own thread."""

CLOSED: Final = "the client is closed"
NO_ANSWER: Final = "no answer"
NO_ACK: Final = "no answer to CONNECT"
GONE: Final = "the peer is gone"
REFUSED: Final = (
    "it sent what ZeroMQ refuses, such as a frame of more than max_message_size ({size}) bytes"
)


class State(enum.Enum):
    """How far a connection has come."""

    LINKING = enum.auto()
    GREETED = enum.auto()
    UP = enum.auto()
    DOWN = enum.auto()


_GREETED: Final = State.GREETED
_UP: Final = State.UP  # to be looked up for each message: an enum's members are slow to find


@attrs.define(eq=False)
class Connection:
    """One epoch.

    Attributes:
        socket: its own.
        codec: of the dialect that the coordinator speaks.
        on_frames: what is called with each message but the end of the handshake.
        came_up: what is called when that has come.
        state: how far it has come.
        reason: of its end; before that, what its end would mean.
        up_since: when it came up, if it did.
        changed: set when the state changes, and then another one.
        tried: whether the attempt has begun, and is not waiting for a name server.
        retried: set when ZeroMQ says that it would try again.
    """

    socket: Socket
    codec: ClientCodec
    on_frames: Callable[[Frames], None]
    came_up: Callable[[], None]
    state: State = State.LINKING
    reason: str = NO_ANSWER
    up_since: float | None = None
    changed: trio.Event = attrs.field(factory=trio.Event)
    tried: bool = False
    retried: trio.Event = attrs.field(factory=trio.Event)

    @property
    def is_up(self) -> bool:
        """Whether requests can be handed over."""
        return self.state is _UP

    def move(self, state: State) -> None:
        """Goes on to a state; from *down* to none."""
        if self.state is not State.DOWN:
            self.state = state
            self.turn()

    def turn(self) -> None:
        """Wakes who waits for something to change."""
        self.changed.set()
        self.changed = trio.Event()

    def fail(self, reason: str) -> None:
        """Goes *down*, for that reason, unless it is down."""
        if self.state is not State.DOWN:
            self.reason = reason
            self.move(State.DOWN)

    def notice(self, event: LinkEvent, reason: str) -> None:
        """Heeds what becomes of the link."""
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
            if self.state is State.LINKING:
                self.reason = reason
        elif event is not LinkEvent.TRIED:
            self.fail(reason)

    def greet(self) -> None:
        """Sends CONNECT."""
        if self.state is not State.LINKING:
            return
        try:
            self.socket.send(self.codec.connect())
        except NotConnected:
            self.fail(GONE)
        else:
            self.reason = NO_ACK
            self.move(State.GREETED)

    def deliver(self, frames: Frames) -> None:
        """Takes in a message."""
        if self.state is _GREETED and self.is_ack(frames):
            self.up_since = trio.current_time()
            self.move(_UP)
            self.came_up()
        else:
            self.on_frames(frames)

    def is_ack(self, frames: Frames) -> bool:
        """Whether a message is the end of the handshake."""
        try:
            return self.codec.decode(frames).kind is Kind.CONNECT_ACK
        except MalformedMessage:
            return False

    def send(self, frames: Frames) -> None:
        """Hands a message to the socket, whole.

        Raises:
            NotConnected: if it is not up; nothing was taken.
        """
        if self.state is not _UP:
            raise NotConnected
        try:
            self.socket.send(frames)
        except NotConnected:
            self.fail(GONE)
            raise

    async def wait_while(self, *states: State) -> None:  # noqa: ASYNC910 - may not have to wait
        """Returns once it is in none of these states."""
        while self.state in states:
            await self.changed.wait()

    async def wait_tried(self) -> None:  # noqa: ASYNC910 - may not have to wait
        """Returns once the attempt has begun, or is over."""
        while self.state is State.LINKING and not self.tried:
            await self.changed.wait()

    async def live(self, link: Link) -> None:
        """Sees the connection up, and returns once it is down and drained, and the cause known."""
        patience = link.heartbeat_timeout
        with trio.move_on_after(LOOKUP_SECONDS):
            await self.wait_tried()
        with trio.move_on_after(min(LINK_SECONDS, patience)):
            await self.wait_while(State.LINKING)
        if self.state is State.GREETED:
            # Patiently: a coordinator that acks a client who has gone crashes.
            with trio.move_on_after(patience):
                await self.wait_while(State.GREETED)
        if self.state is not State.UP:
            self.fail(self.reason)
        await self.wait_while(State.UP)
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
