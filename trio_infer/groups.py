"""Many requests, and one channel for what becomes of them: no task and no channel for each.

=========== ================================ =====================================================
a request   is left by                       then
=========== ================================ =====================================================
waiting     its turn, and a connection       *running*; cancelled, it never was
running     its end                          *unread*: in the channel, still packed
running     `cancel`, or the block's end     ABORT is sent; it yields no outcome
unread      `receive`                        decoded by the task that receives it
unread      `cancel`, or the block's end     forgotten; it yields no outcome
=========== ================================ =====================================================

Running and unread ones are the group's members: they take up ``max_concurrency``, and as long as
there is one, or one waits, the outcomes go on. The channel holds their indices, and nothing else.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Generic, Self

import trio

from .admission import Admission
from .errors import LocalProtocolError, RemoteProtocolError
from .models import GenerateRequest, Outcome
from .models.result import ResultT
from .models.scalars import to_int
from .protocol.assembly import Assembler
from .protocol.conversion import Known
from .protocol.packing import MalformedMessage, unpack_map
from .protocol.unpacking import HEAVY_BODY, unpack_map_in_pieces
from .reception import client_closed, conclude, connection_lost

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from .exchange import Exchange
    from .protocol.packing import Frame
    from .protocol.preparation import Preparation, Prepared

__all__ = ["RequestGroup", "check_request"]

CLOSED: Final = "the group is closed"

TOLERATED_UNWANTED: Final = 64
"""So many indices of cancelled requests may lie in the channel before they are taken out."""


def check_request(request: object) -> None:
    """Raises `TypeError` for what is no `GenerateRequest`."""
    if not isinstance(request, GenerateRequest):
        msg = f"request must be a GenerateRequest, not {type(request).__name__}"
        raise TypeError(msg)


class RequestGroup(Generic[ResultT]):
    """Many requests at once. Made by `InferenceClient.open_group`; to be used in ``async with``.

    Leaving the block, in whatever way, ends all of them: ABORT is sent for each that runs before
    control moves on. Any task may submit, cancel and receive.

    Attributes:
        deserialize: whether requests end in a `Completion`, or else in the fields of the reply.
        outcomes: what became of them, as they finish. Receiving waits for the first submission, and
            ends (`trio.EndOfChannel`) when nothing that was submitted is outstanding; after the
            next submission it goes on. Any number of tasks may receive; each outcome goes to one,
            which decodes it. Cancelling a ``receive`` loses nothing. Closing it closes the group.
    """

    def __init__(
        self,
        exchange: Exchange,
        preparation: Preparation,
        *,
        deserialize: bool,
        max_concurrency: int | None,
    ) -> None:
        self.outcomes: trio.abc.ReceiveChannel[Outcome[ResultT]]
        self.outcomes = self._outcomes = _Outcomes(self)
        self._exchange = exchange
        self._preparation = preparation
        self.deserialize = deserialize
        self._members: dict[int, _Member[ResultT]] = {}
        self._admission = Admission(max_concurrency, self._members.__len__)
        self._next_index = 0
        self._coming = 0
        self._waiting: set[trio.CancelScope] = set()
        self._began = False
        self._entered = False
        self._closed = False

    # The block

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Self:
        if self._entered:
            msg = "the block of a group is entered once: open another one"
            raise LocalProtocolError(msg)
        self._exchange.home.check()
        if self._exchange.is_leaving:
            raise client_closed()
        self._entered = True
        self._exchange.on_closing.add(self._note_closing)
        try:
            await trio.lowlevel.checkpoint()
        except BaseException:
            self.close()
            raise
        return self

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends all requests. Never waits, so that nothing can replace the caller's exception."""
        self.close()

    @property
    def closed(self) -> bool:
        """Whether the block has ended, or the group was closed in it."""
        return self._closed

    @trio.lowlevel.enable_ki_protection
    def close(self) -> None:
        """Ends all requests as leaving the block does: at once. May be called again.

        Whoever submits or receives gets `trio.ClosedResourceError`.
        """
        if self._closed:
            return
        self._exchange.home.check()
        self._closed = True
        self._exchange.on_closing.discard(self._note_closing)
        for scope in self._waiting:
            scope.cancel()
        self._drop(list(self._members))
        self._outcomes.wake_all()

    def _note_closing(self) -> None:
        """The client closes: nobody need wait any more."""
        self._admission.close()
        self._outcomes.wake_all()

    # Submitting

    @trio.lowlevel.enable_ki_protection
    def submit_nowait(self, request: GenerateRequest) -> int:
        """Hands a request over, and returns its index: 0, 1, 2…, in this order.

        Large ones are hashed and packed here and now, however long that takes. As all that does not
        wait, it heeds no cancellation: what is submitted in a cancelled scope is aborted when the
        block ends.

        Raises:
            TypeError, ValueError, UnsupportedByDialect: as `InferenceClient.generate` raises them;
                nothing was sent.
            trio.WouldBlock: ``max_concurrency`` or ``max_in_flight`` are reached, or there is no
                connection; nothing was sent.
            trio.ClosedResourceError: the group or the client is closed.
            LocalProtocolError: the group's block has not been entered.
        """
        return self._begin_now(request, self._prepare(request))

    @trio.lowlevel.enable_ki_protection
    async def submit(self, request: GenerateRequest) -> int:
        """As `submit_nowait`, but waits for its turn and for a connection.

        Cancelled, it has sent nothing.
        """
        prepared = self._prepare(request)
        index = -1
        with self._more_to_come(), trio.CancelScope() as scope:
            self._waiting.add(scope)
            try:
                await trio.lowlevel.checkpoint()
                index = await self._begin(request, prepared)
            finally:
                self._waiting.discard(scope)
        if scope.cancelled_caught:
            raise trio.ClosedResourceError(CLOSED)
        return index

    @contextmanager
    @trio.lowlevel.enable_ki_protection
    def keep_open(self) -> Iterator[None]:
        """While this block lasts, the outcomes do not end: there is more to come.

        For tasks that submit now and then, while others receive. They end with the block even if
        nothing was submitted.
        """
        self._exchange.home.check()
        self._began = True
        with self._more_to_come():
            yield

    @contextmanager
    def _more_to_come(self) -> Iterator[None]:
        self._coming += 1
        try:
            yield
        finally:
            self._coming -= 1
            self._tell_end()

    def _prepare(self, request: GenerateRequest) -> Prepared:
        self.check_open()
        check_request(request)
        return self._preparation.prepare(
            request.prompt,
            request.sampling_params,
            multi_modal_data=request.multi_modal_data,
            offload_params=request.offload_params,
            kv_handoff=request.kv_handoff,
        )

    def _begin_now(self, request: GenerateRequest, prepared: Prepared) -> int:
        self._admission.enter_nowait()
        try:
            member = _Member(self, request, prepared.asked)
            return self._add(member, self._exchange.hand_over_nowait(prepared, member))
        finally:
            self._admission.leave()

    async def _begin(self, request: GenerateRequest, prepared: Prepared) -> int:
        await self._admission.enter()
        try:
            member = _Member(self, request, prepared.asked)
            return self._add(member, await self._exchange.hand_over(prepared, member))
        finally:
            self._admission.leave()

    def _add(self, member: _Member[ResultT], request_id: int) -> int:
        index = self._next_index
        member.begin(index, request_id)
        self._members[index] = member
        self._next_index += 1
        self._began = True
        return index

    # Cancelling

    @trio.lowlevel.enable_ki_protection
    def cancel(self, index: int | None = None) -> None:
        """Ends one request, or all that were submitted so far. They yield no outcome.

        ABORT is sent before this returns. One whose outcome was received, or that was cancelled
        before, is left alone.

        Raises:
            TypeError, ValueError: for what is not the index of a request of this group.
        """
        self._exchange.home.check()
        if index is None:
            self._drop(list(self._members))
            return
        number = to_int(index, "index")
        if not 0 <= number < self._next_index:
            msg = f"index must be what submitting a request of this group returned, not {index}"
            raise ValueError(msg)
        self._drop([number])

    def _drop(self, indices: list[int]) -> None:
        """Ends members that nobody wants to hear of any more."""
        for index in indices:
            member = self._members.pop(index, None)
            if member is None:
                continue
            if member.ended:
                self._outcomes.note_unwanted()
            else:
                self._exchange.abandon(member.request_id)
        self._admission.admit()
        self._tell_end()

    # What the outcomes need

    def check_open(self) -> None:
        """Raises what using the group outside of its block raises."""
        self._exchange.home.check()
        if self._closed:
            raise trio.ClosedResourceError(CLOSED)
        if not self._entered:
            msg = "the group's block has not been entered: use it in async with"
            raise LocalProtocolError(msg)

    def check_more(self) -> None:
        """Raises what receiving raises when no outcome will come."""
        if self._is_done:
            raise trio.EndOfChannel
        if self._exchange.is_leaving:
            raise client_closed()

    @property
    def _is_done(self) -> bool:
        return self._began and not self._members and not self._coming

    def _tell_end(self) -> None:
        if self._is_done:
            self._outcomes.wake_all()

    def note_end(self, index: int) -> None:
        """A member has ended."""
        self._outcomes.put(index)

    def note_failure(self) -> None:
        """A final reply that makes no sense was taken for a completion."""
        self._exchange.recount_as_failed()

    def find(self, index: int | None) -> _Member[ResultT] | None:
        """The member of that index, if it still is one."""
        return None if index is None else self._members.get(index)

    def take(self, index: int | None) -> Outcome[ResultT] | None:
        """Lets a member go, and tells what became of it; None, if it is none any more."""
        member = self.find(index)
        if member is None:
            return None
        del self._members[member.index]
        self._admission.admit()
        self._tell_end()
        try:
            return Outcome(member.index, member.request, completion=self._completion(member))
        except Exception as error:  # noqa: BLE001 - is the outcome
            plain = error.with_traceback(None)  # which would keep the reply for as long
            return Outcome(member.index, member.request, error=plain)

    def _completion(self, member: _Member[ResultT]) -> ResultT:
        if member.error is not None:
            raise member.error
        known = Known(
            request_id=member.request_id,
            latency=member.ended_at - member.began_at,
            time_to_first_token=None,
            asked=member.asked,
            aborted=False,
        )
        arrived = Assembler(deserialize=self.deserialize)
        try:
            fields = member.unpacked()
            completion: ResultT = conclude(self._exchange, arrived, fields, known)
        except MalformedMessage as error:
            self._exchange.fail(member.request_id, error, finished=True, heir=None)
            raise RemoteProtocolError(str(error)) from None
        return completion


class _Member(Generic[ResultT]):
    """A request of a group, and its inbox.

    Attributes:
        request: as it was submitted.
        asked: the sampling parameters that were sent.
        index: its place in the group.
        request_id: the client's number of it.
        began_at: when it was handed over.
        ended_at: when it ended.
        body: the final reply, packed.
        error: what it ended with instead.
        ended: whether it has.
    """

    __slots__ = (
        *("_group", "asked", "began_at", "body", "ended", "ended_at", "error", "index"),
        *("_fields", "_nonsense", "_pieces", "request", "request_id"),
    )

    heir = None

    def __init__(
        self, group: RequestGroup[ResultT], request: GenerateRequest, asked: Mapping[str, Any]
    ) -> None:
        self._group = group
        self.request = request
        self.asked = asked
        self.index = self.request_id = -1
        self.began_at = self.ended_at = 0.0
        self.body: Frame = b""
        self.error: Exception | None = None
        self.ended = False
        self._pieces: Iterator[dict[str, Any] | None] | None = None
        self._fields: dict[str, Any] | None = None
        self._nonsense: MalformedMessage | None = None

    def begin(self, index: int, request_id: int) -> None:
        """It was handed over just now."""
        self.index, self.request_id = index, request_id
        self.began_at = trio.current_time()

    def unpack_some(self) -> bool:
        """Unpacks a piece of a large reply; returns whether there is more of it."""
        if len(self.body) < HEAVY_BODY or self._fields is not None or self._nonsense is not None:
            return False
        if self._pieces is None:
            self._pieces = unpack_map_in_pieces(self.body, lazily=self._group.deserialize)
        try:
            self._fields = next(self._pieces)
        except MalformedMessage as error:
            self._nonsense = error
            return False
        return self._fields is None

    def unpacked(self) -> dict[str, Any]:
        """The reply.

        Raises:
            MalformedMessage: it makes no sense.
        """
        while self.unpack_some():
            pass
        if self._nonsense is not None:
            raise self._nonsense
        return unpack_map(self.body) if self._fields is None else self._fields

    def partial(self, body: Frame) -> None:
        """A partial result came, for which nobody has asked."""

    def final(self, body: Frame) -> None:
        """The final reply came."""
        self.body = body
        self._end()

    def malformed(self, error: MalformedMessage) -> None:
        """A reply came that makes no sense."""
        if error.is_final:
            self._group.note_failure()
        self._end(RemoteProtocolError(str(error)))

    def lost(self, reason: str) -> None:
        """The connection is gone."""
        self._end(connection_lost(reason))

    def closed(self) -> None:
        """The client was closed."""
        self._end(client_closed())

    def _end(self, error: Exception | None = None) -> None:
        self.error = error
        self.ended = True
        self.ended_at = trio.current_time()
        self._group.note_end(self.index)


class _Outcomes(trio.abc.ReceiveChannel[Outcome[ResultT]], Generic[ResultT]):
    """What has become of a group's requests, decoded by whoever receives it.

    The indices of those that nobody wants any more stay in the channel for a while. None tells
    whoever waits to look again.
    """

    def __init__(self, group: RequestGroup[ResultT]) -> None:
        self._group = group
        self._send, self._receive = trio.open_memory_channel[int | None](math.inf)
        self._unwanted = 0

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
                index: int | None = self._next_nowait()
            except trio.WouldBlock:
                index = await self._receive.receive()
            await self._unpack(index)
            outcome = self._group.take(index)
            if outcome is not None:
                return outcome

    @trio.lowlevel.enable_ki_protection
    def receive_nowait(self) -> Outcome[ResultT]:
        """As `receive`, without waiting.

        Raises:
            trio.WouldBlock: nothing has finished.
        """
        self._group.check_open()
        while True:
            outcome = self._group.take(self._next_nowait())
            if outcome is not None:
                return outcome

    def _next_nowait(self) -> int:
        """The index of a member that has ended."""
        self._group.check_open()
        while True:
            try:
                index = self._receive.receive_nowait()
            except trio.WouldBlock:
                self._group.check_more()
                raise
            if index is not None and self._group.find(index) is not None:
                return index
            self._unwanted -= 1

    async def _unpack(self, index: int | None) -> None:  # noqa: ASYNC910 - small ones at once
        """Unpacks a large reply, and lets others run meanwhile. Cancelled, it waits again."""
        try:
            while (member := self._group.find(index)) is not None and member.unpack_some():
                await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            if index is not None and self._group.find(index) is not None:
                self.put(index)
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
