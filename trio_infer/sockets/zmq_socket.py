"""One ZeroMQ socket, driven through trio's fd wait.

ZeroMQ's descriptor is edge-triggered: it tells once that something happened, and *any* call on the
socket may be the one to take notice. So whoever touches the socket for another reason than to read
it looks afterwards whether there is something to read, and if so wakes the reader, which would
otherwise sleep on an edge that has gone. The reader drains before it waits for the first time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import trio
import zmq

from ..errors import ConnectError
from .draining import Draining
from .link import LINGER_MS, configure
from .link_event import WATCHED, read_event

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..protocol.packing import Frame, Frames
    from .link import Link, ZmqContext
    from .link_event import LinkEvent

__all__ = ["NotConnected", "ZmqSocket"]

MAX_FRAMES: Final = 64
"""Frames of one message that are kept; no message has more than a handful."""

NOBLOCK: Final = int(zmq.NOBLOCK)
MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)

SKIPPED_AT_ONCE: Final = 256
"""So many of the frames behind them are thrown away before other tasks may have their turn."""

COPY_BELOW: Final = 64 * 1024
"""Frames smaller than this are cheaper copied than kept in ZeroMQ's own memory."""


COPY_SENT_BELOW: Final = 2**20
"""Larger frames stay where they are until they have left: copying them would be felt."""


class NotConnected(Exception):
    """There is no connection that the message could go to; none of it was taken."""


class ZmqSocket(Draining):
    """A socket of either role, for one task that reads it and any number that send.

    Every method but the two coroutines is synchronous and never blocks, but for `close` where it
    has to wait until an address is free.

    Args:
        socket_type: `DEALER` or `ROUTER`.
        link: how to treat connections.
        context: the ZeroMQ context to live in; the socket does not end it.

    Raises:
        ValueError: if ZeroMQ refuses an option.
        ConnectError: if it cannot make a socket now.
    """

    def __init__(self, socket_type: int, *, link: Link, context: ZmqContext) -> None:
        super().__init__()
        self._parked = False
        self._looked = False
        self._has_rest = False
        try:
            self._zmq = context.socket(socket_type)
        except zmq.ZMQError as error:
            msg = f"cannot make a socket: {error.strerror}"
            raise ConnectError(msg) from error
        try:
            configure(self._zmq, socket_type, link)
        except BaseException:
            self._zmq.close(0)
            raise
        # What zmq.Socket adds to these two costs more than they do.
        self._send_frame = cast(
            "Callable[[Frame, int, bool], object]", super(zmq.Socket, self._zmq).send
        )
        self._receive_frame = super(zmq.Socket, self._zmq).recv
        self._fd = int(self._zmq.get(zmq.FD))
        self._readable = [(self._zmq, int(zmq.POLLIN))]
        self._monitor: zmq.Socket[bytes] | None = None
        self._bound: str | None = None

    def connect(self, address: str) -> None:
        """Starts to connect. What comes of it, `watch` tells.

        Raises:
            ValueError: if the address is none.
            ConnectError: if it cannot be used here.
        """
        self._check()
        try:
            if self._monitor is None:
                self._monitor = self._zmq.get_monitor_socket(WATCHED)
            self._let_ipv6(address)
            self._zmq.connect(address)
        except zmq.ZMQError as error:
            raise _address_error(address, error) from error
        self._look()

    def bind(self, address: str) -> str:
        """Binds, and returns the address with whatever wildcard it had filled in.

        Raises:
            ValueError: if the address is none.
            ConnectError: if it cannot be bound, such as when it is taken, or another machine's.
        """
        self._check()
        try:
            self._let_ipv6(address)
            self._zmq.bind(address)
        except zmq.ZMQError as error:
            raise _address_error(address, error) from error
        bound: str = self._zmq.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self._bound = bound
        self._look()
        return bound

    def _let_ipv6(self, address: str) -> None:
        """Allows IPv6, which ZeroMQ does not by itself, where an address is one of it."""
        if address.startswith("tcp://["):
            self._zmq.set(zmq.IPV6, 1)

    @trio.lowlevel.enable_ki_protection
    def send(self, frames: Sequence[Frame]) -> None:
        """Hands a message to ZeroMQ, whole.

        A `DEALER` takes it from `connect` on, whether or not there is a connection yet, or still:
        what is not sent by then is dropped at closing. So before `LinkEvent.UP` nothing should be.

        Raises:
            NotConnected: if a `ROUTER` has no connection to that peer; of a `DEALER`, only if
                ZeroMQ gave up its connection for good.
            trio.ClosedResourceError: if the socket is closed.
            RuntimeError: in another thread or process than the socket's own.
        """
        self._check()
        send_frame, last = self._send_frame, frames[-1]
        try:
            for frame in frames[:-1]:
                send_frame(frame, MORE, len(frame) < COPY_SENT_BELOW)
            send_frame(last, NOBLOCK, len(last) < COPY_SENT_BELOW)
        except zmq.Again:
            raise NotConnected from None
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            raise NotConnected from None
        finally:
            if self._parked:
                self._look()

    async def _wait_arrival(self) -> None:
        while True:  # noqa: ASYNC913 - what goes round waits again
            self._parked, self._looked = True, False
            try:
                await trio.lowlevel.wait_readable(self._fd)
            except trio.ClosedResourceError:  # woken by hand: an edge may have been missed
                if self._closed or self._has_arrival():
                    return  # noqa: ASYNC910 - woken by hand is woken
            else:
                return
            finally:
                self._parked = False

    def _has_arrival(self) -> bool:
        return not self._closed and bool(zmq.zmq_poll(self._readable, 0))

    def _receive(self) -> Frames | None:
        """The next message, or None. Of one with too many frames the first ones."""
        if self._closed:
            return None
        if self._has_rest:
            self._skip_rest()
            return []
        receive_frame = self._receive_frame
        try:
            frame = receive_frame(NOBLOCK, copy=False)
        except zmq.Again:
            return None
        frames: Frames = []
        while True:
            frames.append(frame.bytes if len(frame) < COPY_BELOW else frame.buffer)
            if not frame.more:
                return frames
            if len(frames) == MAX_FRAMES:
                self._has_rest = True
                return frames
            frame = receive_frame(NOBLOCK, copy=False)

    def _skip_rest(self) -> None:
        """Throws away frames of a message that had too many."""
        for _ in range(SKIPPED_AT_ONCE):
            self._has_rest = self._zmq.recv(copy=False).more
            if not self._has_rest:
                return

    @trio.lowlevel.enable_ki_protection
    async def watch(  # noqa: ASYNC910 - a closed socket is watched no more
        self, notice: Callable[[LinkEvent, str], None]
    ) -> None:
        """Passes what becomes of a connected socket to ``notice``, until cancelled or closed.

        Why a link did not come up is told in words.

        To be left to run: a monitor that nobody reads stops ZeroMQ's own work after some
        thousands of events.
        """
        self._check()
        monitor = self._monitor
        if monitor is None:
            msg = "connect first: there is nothing to watch yet"
            raise RuntimeError(msg)
        fd = int(monitor.get(zmq.FD))
        curve = self._zmq.get(zmq.MECHANISM) == zmq.CURVE
        self._look()
        while not self._closed:
            try:
                message = monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                try:
                    await trio.lowlevel.wait_readable(fd)
                except trio.ClosedResourceError:
                    return  # noqa: ASYNC910 - closed
                continue
            notice(*read_event(message, curve=curve))

    def freeze(self) -> None:
        """Does nothing: ZeroMQ's own thread goes on answering heartbeats, whoever is frozen."""

    def thaw(self) -> None:
        """Does nothing, as `freeze`."""

    @trio.lowlevel.enable_ki_protection
    def close(self, *, linger: bool = True) -> None:
        """Closes the socket. A task that reads or watches it returns.

        Args:
            linger: whether what is queued gets `LINGER_MS` to leave, in ZeroMQ's own thread. If
                not, an address that was bound is free when this returns.
        """
        if self._closed:
            return
        self._check()
        self._closed = True
        trio.lowlevel.notify_closing(self._fd)
        if self._monitor is not None:
            trio.lowlevel.notify_closing(int(self._monitor.get(zmq.FD)))
            self._zmq.disable_monitor()
            self._monitor.close(0)
        if self._bound is not None and not linger:
            self._unbind(self._bound)
        self._zmq.close(LINGER_MS if linger else 0)

    def _unbind(self, address: str) -> None:
        """Waits until ZeroMQ's thread has let go of the address: some tenths of a millisecond."""
        try:
            monitor = self._zmq.get_monitor_socket(zmq.EVENT_CLOSED)
        except zmq.ZMQError:  # such as for want of file descriptors: then it is free a little later
            self._zmq.disable_monitor()
            return
        self._zmq.set(zmq.LINGER, 0)
        self._zmq.unbind(address)
        monitor.poll(LINGER_MS)
        self._zmq.disable_monitor()
        monitor.close(0)

    def _look(self) -> None:
        """Wakes the reader if the call just made may have taken the edge that it waits for.

        The first call since it parked looks; with the second one it is woken unseen, since a look
        costs as much as a message, and where there are two there may be thousands.
        """
        if self._parked:
            if self._looked or self._has_arrival():
                self._parked = False
                trio.lowlevel.notify_closing(self._fd)
            self._looked = True


_NO_ADDRESS: Final = (zmq.EINVAL, zmq.EPROTONOSUPPORT, zmq.ENOCOMPATPROTO)


def _address_error(address: str, error: zmq.ZMQError) -> Exception:
    if error.errno in _NO_ADDRESS:
        msg = f"{address!r} is no address that ZeroMQ takes, such as 'tcp://host:5555': {error}"
        return ValueError(msg)
    return ConnectError(f"cannot use {address}: {error.strerror}")
