"""The coordinator's core on a ROUTER socket, with a clock, and faults if there are to be any."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ..sockets import NotConnected, Socket

if TYPE_CHECKING:
    from ..protocol.packing import Frames
    from .core import CoordinatorCore
    from .faults import FaultInjector
    from .fleet import FleetStep
    from .received_request import ReceivedRequest

__all__ = ["Serving"]


STALLED_SECONDS: Final = 0.01
"""Where requests wait for room that others of the same model have, it is looked for so often."""


class Serving:
    """Passes messages between a socket and a core, and lets the engines step.

    Args:
        core: what decides everything.
        socket: a ROUTER, bound.
        step_time: seconds that a step takes beyond its computation.
        injector: what befalls the messages on their way to the socket.

    Attributes:
        frozen: whether it does nothing at all.
        computes: whether a thread computes a step.
    """

    def __init__(
        self, core: CoordinatorCore, socket: Socket, step_time: float, injector: FaultInjector
    ) -> None:
        self.core = core
        self.step_time = step_time
        self.injector = injector
        self.frozen: bool = False
        self.computes: bool = False
        self._socket = socket
        self._changed = trio.Event()
        self._backlog: list[Frames] = []
        self._until_due = trio.CancelScope()
        self._one_thread = trio.CapacityLimiter(1)
        self._epoch = time.time() - trio.current_time()

    @property
    def requests(self) -> tuple[ReceivedRequest, ...]:
        """What the core knows of requests, with trio's times."""
        return tuple(
            attrs.evolve(each, received_at=each.received_at - self._epoch)
            for each in self.core.requests
        )

    def change(self) -> None:
        """Says that something has changed, to whoever waits for that."""
        self._until_due.deadline = self._due
        self._changed.set()
        self._changed = trio.Event()

    async def wait_changed(self) -> None:
        """Waits for the next change."""
        await self._changed.wait()

    def freeze(self) -> None:
        """Takes nothing, steps nothing, sends nothing from now on."""
        self.frozen = True
        self._socket.freeze()
        self.change()

    @trio.lowlevel.enable_ki_protection
    def thaw(self) -> None:
        """Takes up what has come meanwhile, sends what is due, and goes on."""
        self.frozen = False
        self._socket.thaw()
        backlog, self._backlog = self._backlog, []
        for frames in backlog:
            self._receive(frames)
        self._flush()

    @trio.lowlevel.enable_ki_protection
    def die(self) -> None:
        """Ends at once. What has not left yet never does."""
        self.core.stopped = True
        self._end(linger=False)

    @trio.lowlevel.enable_ki_protection
    def end(self) -> None:
        """Ends, and gives what was sent the time to leave."""
        self.core.stopped = True
        self._end(linger=True)

    # A Ctrl-C is the block's, not these tasks', which could lose a message to it.

    @trio.lowlevel.enable_ki_protection
    async def read(self) -> None:
        """Takes messages, until cancelled or shut down."""
        await self._socket.read(self._receive)

    @trio.lowlevel.enable_ki_protection
    async def decode(self) -> None:  # noqa: ASYNC910 - may be shut down already
        """Steps the engines while they have something to do, until cancelled or shut down."""
        while not self.core.stopped:
            if self.frozen or not self.core.wants_step:
                await self.wait_changed()
                continue
            await trio.sleep(self.step_time)
            if not self._runs:
                continue
            if self.core.fleet.runs_in_thread:
                await self._step_in_thread()
            else:
                self.core.step(self._now())
            self._flush()
        self._end(linger=True)

    async def _step_in_thread(self) -> None:  # noqa: ASYNC910 - the caller has had its turn
        """A step that a thread computes, while messages are taken; frozen, it does not end.

        Cancelled, it waits for the thread, which models that mind an interruption make short.
        """
        step = self.core.begin(self._now())
        self._flush()
        if step.is_wanted:
            self.computes = True
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._interrupt_unwanted, step)
                    await trio.to_thread.run_sync(step.run, limiter=self._one_thread)
                    nursery.cancel_scope.cancel()
            finally:
                self.computes = False
            self.change()
        elif not step.steps:
            await trio.sleep(STALLED_SECONDS)
        while self.frozen and not self.core.stopped:
            await self.wait_changed()
        if not self.core.stopped:
            self.core.finish(step, self._now())

    @trio.lowlevel.enable_ki_protection
    async def _interrupt_unwanted(self, step: FleetStep) -> None:  # noqa: ASYNC910 - may be already
        try:
            while step.is_wanted and not self.core.stopped:
                await self.wait_changed()
        finally:
            step.interrupt()

    @trio.lowlevel.enable_ki_protection
    async def send_held(self) -> None:
        """Sends what faults held back when its time has come, until cancelled."""
        while True:
            with trio.CancelScope(deadline=self._due) as self._until_due:
                await trio.sleep_forever()
            self._flush()

    @property
    def _runs(self) -> bool:
        return not (self.frozen or self.core.stopped)

    @property
    def _due(self) -> float:
        return self.injector.due if self._runs else math.inf

    def _now(self) -> float:
        """The time of day, by trio's clock."""
        return self._epoch + trio.current_time()

    def _receive(self, frames: Frames) -> None:
        if self.frozen:
            self._backlog.append(frames)
        elif not self.core.stopped:
            self.core.receive(bytes(frames[0]), frames[1:], self._now())
            self._flush()

    def _flush(self) -> None:
        if self._runs:
            new, busy = self.core.take_outgoing(), self.core.wants_step
            for message in self.injector.pass_on(new, trio.current_time(), busy=busy):
                try:
                    self._socket.send([message.identity, *message.frames])
                except NotConnected:
                    self.core.undeliverable(message.identity)
        self.change()

    def _end(self, *, linger: bool) -> None:
        self._backlog.clear()
        self.core.fleet.let_go()
        self.injector.forget()
        self._socket.close(linger=linger)
        self.change()
