"""The coordinator's core on a ROUTER socket, with a clock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import trio

from ..sockets import NotConnected, Socket

if TYPE_CHECKING:
    from ..protocol.packing import Frames
    from .core import CoordinatorCore

__all__ = ["Serving"]


class Serving:
    """Passes messages between a socket and a core, and lets the engines step.

    Args:
        core: what decides everything.
        socket: a ROUTER, bound.
        step_time: seconds that a step takes beyond its computation.
    """

    def __init__(self, core: CoordinatorCore, socket: Socket, step_time: float) -> None:
        self.core = core
        self.step_time = step_time
        self._socket = socket
        self._changed = trio.Event()

    def change(self) -> None:
        """Says that something has changed, to whoever waits for that."""
        self._changed.set()
        self._changed = trio.Event()

    async def wait_changed(self) -> None:
        """Waits for the next change."""
        await self._changed.wait()

    # A Ctrl-C is the block's, not these tasks', which could lose a message to it.

    @trio.lowlevel.enable_ki_protection
    async def read(self) -> None:
        """Takes messages, until cancelled or shut down."""
        await self._socket.read(self._receive)

    @trio.lowlevel.enable_ki_protection
    async def decode(self) -> None:  # noqa: ASYNC910 - may be shut down already
        """Steps the engines while they have something to do, until cancelled or shut down."""
        while not self.core.stopped:
            if not self.core.wants_step:
                await self.wait_changed()
                continue
            await trio.sleep(self.step_time)
            self.core.step(time.time())
            self._flush()
        self._socket.close()

    def _receive(self, frames: Frames) -> None:
        if not self.core.stopped:
            self.core.receive(bytes(frames[0]), frames[1:], time.time())
            self._flush()

    def _flush(self) -> None:
        for identity, frames in self.core.take_outgoing():
            try:
                self._socket.send([identity, *frames])
            except NotConnected:
                self.core.undeliverable(identity)
        self.change()
