"""What a client sends besides requests: signals to the engines, and releases of KV handoffs.

Nothing of it is acknowledged. A handoff is released over the connection that it came from or not at
all: its number is the engine's, and on another connection it may be somebody else's.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final

import attrs
import trio

from .errors import ConnectionLost
from .protocol.dialect import Kind
from .sockets import Home, NotConnected
from .transport import CLOSED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .instruments import Instruments
    from .protocol.client_codec import ClientCodec
    from .protocol.packing import Frames
    from .transport import Transport

__all__ = ["Held", "Signals"]

_logger: Final = logging.getLogger(__name__)


@attrs.frozen(eq=False)
class Held:
    """A handoff of this connection that has still to be released."""

    engine_id: int


class Signals:
    """Sends them, and remembers what has still to be sent.

    Args:
        home: the thread and process that may.
        codec: of the dialect.
        transport: the connections.
        instruments: who is told of what is sent, if anybody.

    Attributes:
        epoch: how many connections have been lost.
        unreleased: handoffs whose connection ended before they were released.
    """

    def __init__(
        self,
        home: Home,
        codec: ClientCodec,
        transport: Transport,
        instruments: Instruments | None,
    ) -> None:
        self.epoch: int = 0
        self.unreleased: int = 0
        self._home = home
        self._codec = codec
        self._transport = transport
        self._instruments = instruments
        self._held: set[Held] = set()
        self._owed: list[tuple[Kind, Frames, Mapping[str, int]]] = []
        self._closed = False
        self._ended = False

    # What users send

    @trio.lowlevel.enable_ki_protection
    def send(self, kind: Kind, **values: int) -> None:
        """Sends a signal.

        Raises:
            ConnectionLost: there is no connection.
            trio.ClosedResourceError: the client is closed.
            UnsupportedByDialect: there is no such signal.
        """
        self._send_now(kind, self._codec.signal(kind, **values), values)

    @trio.lowlevel.enable_ki_protection
    def release_by_number(self, engine_id: int) -> None:
        """Releases a handoff, whoever holds it. Raises what `send` does."""
        dialect = self._codec.dialect
        if not dialect.can_hand_off:
            dialect.refuse("KV handoff", "there is nothing to release")
        frames = self._codec.release(engine_id)
        self._send_now(Kind.RELEASE_KV, frames, {"request_id": engine_id})
        self._held = {held for held in self._held if held.engine_id != engine_id}

    def check_open(self) -> None:
        """Raises where nothing may be sent, whether or not there is a connection.

        Raises:
            trio.ClosedResourceError: the client is closed.
            RuntimeError: in another thread or process than the client's own.
        """
        self._home.check()
        if self._closed:
            raise trio.ClosedResourceError(CLOSED)

    def check(self) -> None:
        """Raises what `send` would, but for the dialect."""
        self.check_open()
        if not self._transport.is_up:
            raise self._no_connection()

    def _send_now(self, kind: Kind, frames: Frames, values: Mapping[str, int]) -> None:
        self.check()
        try:
            self._send(kind, frames, values)
        except NotConnected:
            raise self._no_connection() from None

    def _send(self, kind: Kind, frames: Frames, values: Mapping[str, int]) -> None:
        self._transport.send(frames)
        if self._instruments is not None:
            self._instruments.signal_sent(kind, values)

    def _no_connection(self) -> ConnectionLost:
        return ConnectionLost(
            f"no connection to {self._transport.address}: {self._transport.cause}"
        )

    # What blocks undo at their end

    @trio.lowlevel.enable_ki_protection
    def send_or_owe(self, kind: Kind, **values: int) -> None:
        """Sends a signal, over the next connection if there is none, before anything else."""
        frames = self._codec.signal(kind, **values)
        try:
            self._send(kind, frames, values)
        except NotConnected:
            self._owed.append((kind, frames, values))
            if self._ended:
                self.end()

    @trio.lowlevel.enable_ki_protection
    def hold(self, engine_id: int, epoch: int) -> Held:
        """A handoff came, to be released by this number.

        Args:
            engine_id: the number.
            epoch: as it was when it came.
        """
        held = Held(engine_id)
        if epoch != self.epoch:
            self.unreleased += 1
            return held
        self._held.add(held)
        if self._closed:
            self.release(held)
        return held

    @trio.lowlevel.enable_ki_protection
    def release(self, held: Held) -> None:
        """Releases a handoff if it is still held; if it is not, there is nothing to release."""
        if held in self._held:
            # Without a connection it stays held until `on_lost` counts it.
            with contextlib.suppress(NotConnected):
                frames = self._codec.release(held.engine_id)
                self._send(Kind.RELEASE_KV, frames, {"request_id": held.engine_id})
                self._held.discard(held)

    # What becomes of the connection

    def on_up(self) -> None:
        """Sends what is owed."""
        owed, self._owed = self._owed, []
        for kind, frames, values in owed:
            with contextlib.suppress(NotConnected):
                self._send(kind, frames, values)
                continue
            self._owed.append((kind, frames, values))

    def on_lost(self) -> None:
        """What is held cannot be released any more."""
        self.epoch += 1
        self.unreleased += len(self._held)
        self._held.clear()

    def close(self) -> None:
        """Releases what is held, since nobody could later, and refuses what users send."""
        self._closed = True
        for held in tuple(self._held):
            self.release(held)

    def end(self) -> None:
        """There will be no connection any more: tells what was not sent."""
        self._ended = True
        for kind, _, _ in self._owed:
            _logger.warning("the client is closed: %s was not sent to the engines", kind.name)
        self._owed.clear()
