"""The channel of a group: which of its requests have ended, decoded by whoever receives."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Generic, Protocol

import trio

from ..models import Outcome
from ..models.result import ResultT
from ..protocol.unpacking import HEAVY_BODY

if TYPE_CHECKING:
    from .member import Member

__all__ = ["TOLERATED_UNWANTED", "Outcomes"]

BYTES_IN_A_ROW: Final = 2**18
BYTES_BESIDE: Final = 2**12
"""So many bytes of replies, and so many for each, are decoded before other tasks have their turn,
where outcomes are iterated over: a turn of all others costs more than a request.
"""

TOLERATED_UNWANTED: Final = 64
"""So many indices of cancelled requests may lie in the channel before they are taken out."""


class Source(Protocol[ResultT]):
    """What a group is to its channel."""

    def check_open(self) -> None:
        """Raises what using the group outside of its block raises."""

    def check_more(self) -> None:
        """Raises what receiving raises when no outcome will come."""

    def find(self, index: int | None) -> Member[ResultT] | None:
        """The member of that index, if it still is one."""

    def take(self, member: Member[ResultT]) -> bool:
        """Lets a member go. Returns whether it still was one."""

    def close(self) -> None:
        """Ends all requests. May be called again."""


class Outcomes(trio.abc.ReceiveChannel[Outcome[ResultT]], Generic[ResultT]):
    """What has become of a group's requests, decoded by whoever receives it.

    The indices of those that nobody wants any more stay in the channel for a while. None tells
    whoever waits to look again.
    """

    def __init__(self, group: Source[ResultT]) -> None:
        self._group = group
        self._send, self._receive = trio.open_memory_channel[int | None](math.inf)
        self._unwanted = 0
        self._in_a_row = 0

    @trio.lowlevel.enable_ki_protection
    async def __anext__(self) -> Outcome[ResultT]:
        """As `receive`, and heeds cancellation each time.

        But while there are outcomes, others run only once for `BYTES_IN_A_ROW` of them.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._in_a_row < BYTES_IN_A_ROW:
            try:
                member = self._next_nowait()
            except (trio.WouldBlock, trio.EndOfChannel):
                pass
            else:
                size = member.size
                self._in_a_row += size + BYTES_BESIDE
                if size >= HEAVY_BODY:
                    await self._unpack(member)
                if self._group.take(member):
                    return member.outcome()
        self._in_a_row = 0
        return await super().__anext__()

    @trio.lowlevel.enable_ki_protection
    async def receive(self) -> Outcome[ResultT]:
        """Waits for the next outcome.

        Raises:
            trio.EndOfChannel: nothing that was submitted is outstanding.
            trio.ClosedResourceError: the group is closed, or the client, and nothing is unread.
        """
        self._group.check_open()
        await trio.lowlevel.checkpoint()
        while True:  # noqa: ASYNC913 - what goes round waits for the channel
            try:
                member: Member[ResultT] | None = self._next_nowait()
            except trio.WouldBlock:
                member = self._group.find(await self._receive.receive())
            if member is not None and member.size >= HEAVY_BODY:
                await self._unpack(member)
            if member is not None and self._group.take(member):
                return member.outcome()

    @trio.lowlevel.enable_ki_protection
    def receive_nowait(self) -> Outcome[ResultT]:
        """As `receive`, without waiting.

        Raises:
            trio.WouldBlock: nothing has finished.
        """
        self._group.check_open()
        while True:
            member = self._next_nowait()
            if self._group.take(member):
                return member.outcome()

    def _next_nowait(self) -> Member[ResultT]:
        """A member that has ended."""
        self._group.check_open()
        while True:
            try:
                index = self._receive.receive_nowait()
            except trio.WouldBlock:
                self._group.check_more()
                raise
            member = self._group.find(index)
            if member is not None:
                return member
            self._unwanted -= 1

    async def _unpack(self, member: Member[ResultT]) -> None:  # noqa: ASYNC910 - as one piece
        """Unpacks a large reply, and lets others run meanwhile. Cancelled, it waits again."""
        try:
            while self._group.find(member.index) is not None and member.unpack_some():
                await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            if self._group.find(member.index) is not None:
                self.put(member.index)
            raise

    async def aclose(self) -> None:
        """Closes the group."""
        self._group.close()
        await trio.lowlevel.checkpoint()

    def put(self, index: int) -> None:
        """A member has ended."""
        self._send.send_nowait(index)

    def wake_all(self) -> None:
        """Lets whoever waits look again."""
        for _ in range(self._receive.statistics().tasks_waiting_receive):
            self._send.send_nowait(None)

    def note_unwanted(self) -> None:
        """One that has ended is not wanted any more."""
        self._unwanted += 1
        unread = self._receive.statistics().current_buffer_used
        if self._unwanted > TOLERATED_UNWANTED and self._unwanted > unread / 2:
            self._take_out_unwanted()

    def _take_out_unwanted(self) -> None:
        self._unwanted = 0
        for _ in range(self._receive.statistics().current_buffer_used):
            index = self._receive.receive_nowait()
            if self._group.find(index) is not None:
                self._send.send_nowait(index)
