"""Sockets without a network: both ends in one trio run, for tests under a mocked clock.

An address ``memory://name`` leads to whoever has bound it in the same run. What is sent is there at
once and in order, nothing blocks but a reader without anything to read, and no thread takes part:
so a clock that jumps whenever all tasks wait jumps past nothing.

A peer may be frozen. Then it takes nothing, new links to it come up when it thaws, and once that
has lasted for ``heartbeat_timeout`` seconds of trio's clock the other end counts it as gone.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from typing import TYPE_CHECKING, Final

import trio

from ..errors import ConnectError
from .draining import Draining
from .link import MEMORY_SCHEME, ROUTER
from .link_event import NOBODY, SILENT, LinkEvent
from .zmq_socket import NotConnected

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..protocol.packing import Frame, Frames
    from .link import Link

__all__ = ["MemorySocket"]

_ANY_NAME: Final = f"{MEMORY_SCHEME}*"
_THE_PEER: Final = b""
"""By which a DEALER knows its only peer."""


class _Run:
    """What one trio run knows: who has bound which address, and what numbers are used up."""

    def __init__(self) -> None:
        self.bound: dict[str, MemorySocket] = {}
        self.numbers = itertools.count(1)


_run: Final[trio.lowlevel.RunVar[_Run]] = trio.lowlevel.RunVar("memory network")


def _this_run() -> _Run:
    try:
        return _run.get()
    except LookupError:
        run = _Run()
        _run.set(run)
        return run


class MemorySocket(Draining):
    """A socket of either role, which does what a `ZmqSocket` does.

    Args:
        role: `DEALER` or `ROUTER`.
        link: how to treat connections.

    Attributes:
        max_message_size: bytes; a larger frame breaks the link that it comes by.
        frozen_since: when it was frozen, by trio's clock; None if it is not.
    """

    def __init__(self, role: int, *, link: Link) -> None:
        super().__init__()
        self.max_message_size: int = link.max_message_size
        self.frozen_since: float | None = None
        self._heartbeat_timeout = link.heartbeat_timeout
        self._is_router = role == ROUTER
        self._address: str | None = None
        self._peers: dict[bytes, tuple[MemorySocket, bytes]] = {}  # and what they call this one
        self._inbox: deque[Frames] = deque()
        self._events: deque[tuple[LinkEvent, str]] = deque()
        self._woken = trio.Event()

    # What a ZmqSocket has as well

    def connect(self, address: str) -> None:
        """Connects to whoever has bound the address. `watch` tells whether anybody has."""
        self._check()
        run = _this_run()
        router = run.bound.get(address)
        if router is None:
            self.note(LinkEvent.FAILED, NOBODY)
            return
        identity = b"\0" + next(run.numbers).to_bytes(4, "big")
        self._peers[_THE_PEER] = router, identity
        router.admit(identity, self)
        if router.frozen_since is None:
            self.note(LinkEvent.UP)
        else:
            self.note(LinkEvent.REACHED, SILENT)

    def bind(self, address: str) -> str:
        """Binds, and returns the address, with a name of its own if that is ``*``.

        Raises:
            ConnectError: the name is taken.
        """
        self._check()
        run = _this_run()
        if address == _ANY_NAME:
            address = f"{MEMORY_SCHEME}{next(run.numbers)}"
        if run.bound.setdefault(address, self) is not self:
            msg = f"cannot use {address}: the name is taken"
            raise ConnectError(msg)
        self._address = address
        return address

    @trio.lowlevel.enable_ki_protection
    def send(self, frames: Sequence[Frame]) -> None:
        """Hands a message to the peer, whole. Of a ROUTER's the first frame says to which.

        Raises:
            NotConnected: there is no such peer.
            trio.ClosedResourceError: if the socket is closed.
            RuntimeError: in another thread or process than the socket's own.
        """
        self._check()
        key, body = (bytes(frames[0]), frames[1:]) if self._is_router else (_THE_PEER, frames)
        if key not in self._peers:
            raise NotConnected
        peer, own_name = self._peers[key]
        if any(len(frame) > peer.max_message_size for frame in body):
            self._part(key, LinkEvent.DOWN)  # without RETRIED: for a reason of the peer's own
            self.note(LinkEvent.RETRIED)
        else:
            peer.take([*([] if self._is_router else [own_name]), *map(bytes, body)])

    @trio.lowlevel.enable_ki_protection
    async def watch(  # noqa: ASYNC910 - a closed socket is watched no more
        self, notice: Callable[[LinkEvent, str], None]
    ) -> None:
        """Passes what becomes of a connected socket to ``notice``, until cancelled or closed."""
        self._check()
        while not self._closed:
            woken = self._woken
            while self._events:
                notice(*self._events.popleft())
            with trio.CancelScope(deadline=self._patience_ends()) as patience:
                await woken.wait()
            if patience.cancelled_caught and self._patience_ends() <= trio.current_time():
                self._part(_THE_PEER, LinkEvent.DOWN, LinkEvent.RETRIED)

    @trio.lowlevel.enable_ki_protection
    def close(self, *, linger: bool = True) -> None:  # noqa: ARG002 - all has left already
        """Closes the socket. A task that reads or watches it returns, and the peers are told."""
        if self._closed:
            return
        self._check()
        self._closed = True
        if self._address is not None:
            del _this_run().bound[self._address]
        for key in tuple(self._peers):
            self._part(key, LinkEvent.DOWN, LinkEvent.RETRIED)
        self.wake()

    def freeze(self) -> None:
        """Falls silent, as a process that was stopped."""
        if self.frozen_since is None:
            self.frozen_since = trio.current_time()
            for peer, _ in self._peers.values():
                peer.wake()

    def thaw(self) -> None:
        """Goes on with what has come meanwhile."""
        if self.frozen_since is not None:
            self.frozen_since = None
            self.wake()
            for peer, _ in self._peers.values():
                peer.note(LinkEvent.UP)

    def _has_arrival(self) -> bool:
        return bool(self._inbox) and not self._closed and self.frozen_since is None

    def _receive(self) -> Frames | None:
        return self._inbox.popleft() if self._has_arrival() else None

    async def _wait_arrival(self) -> None:
        await self._woken.wait()

    def _now(self) -> float:
        return trio.current_time()  # a mocked one stands still meanwhile: each run is like the last

    # What one says to another

    def admit(self, identity: bytes, peer: MemorySocket) -> None:
        """Takes a peer that has connected."""
        self._peers[identity] = peer, _THE_PEER

    def take(self, frames: Frames) -> None:
        """Takes a message."""
        self._inbox.append(frames)
        self.wake()

    def forget(self, key: bytes, *events: LinkEvent) -> None:
        """Hears that a peer is gone."""
        del self._peers[key]
        for event in events:
            self.note(event)

    def note(self, event: LinkEvent, words: str = "") -> None:
        """Keeps an event for whoever watches, which of a ROUTER nobody does."""
        if not self._is_router:
            self._events.append((event, words))
            self.wake()

    def wake(self) -> None:
        """Lets reader and watcher look again."""
        self._woken.set()
        self._woken = trio.Event()

    def _part(self, key: bytes, *events: LinkEvent) -> None:
        peer, own_name = self._peers.pop(key)
        peer.forget(own_name, *events)
        for event in events:
            self.note(event)

    def _patience_ends(self) -> float:
        """When the silence of a frozen peer will have lasted too long."""
        frozen = [peer.frozen_since for peer, _ in self._peers.values()]
        since = min((time for time in frozen if time is not None), default=math.inf)
        return since + self._heartbeat_timeout
