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

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Generic, Self

import trio

from ..admission import Admission
from ..endings import client_closed
from ..errors import LocalProtocolError
from ..models import GenerateRequest, Outcome
from ..models.result import ResultT
from ..models.scalars import to_int
from .member import Member
from .outcomes import Outcomes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..protocol.preparation import Preparation, Prepared
    from ..reply import Terms

__all__ = ["RequestGroup", "check_request"]

CLOSED: Final = "the group is closed"


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
        outcomes: what became of them, as they finish. Receiving waits for the first submission, and
            ends (`trio.EndOfChannel`) when nothing that was submitted is outstanding; after the
            next submission it goes on. Any number of tasks may receive; each outcome goes to one,
            which decodes it. Cancelling a ``receive`` loses nothing. Closing it closes the group.
            Where outcomes are there already, ``async for`` heeds cancellation at each, but lets
            other tasks run once for some fifty of them; ``receive`` does each time.
    """

    def __init__(
        self,
        terms: Terms,
        preparation: Preparation,
        *,
        max_concurrency: int | None,
    ) -> None:
        self.outcomes: trio.abc.ReceiveChannel[Outcome[ResultT]]
        self.outcomes = self._outcomes = Outcomes(self)
        self._terms = terms
        self._exchange = terms.exchange
        self._preparation = preparation
        self._members: dict[int, Member[ResultT]] = {}
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
    async def __aexit__(self, *_: object) -> None:
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
        nothing was submitted. Of a group that is closed it keeps nothing open; submitting says so.

        Raises:
            LocalProtocolError: the group's block has not been entered.
        """
        if self._closed:
            self._exchange.home.check()
        else:
            self.check_open()
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
        member: Member[ResultT] = Member(self._terms, prepared.asked, request, self._outcomes.put)
        if not self._admission.is_limited:
            return self._add(member, self._exchange.hand_over_nowait(prepared, member))
        self._admission.enter_nowait()
        try:
            return self._add(member, self._exchange.hand_over_nowait(prepared, member))
        finally:
            self._admission.leave()

    async def _begin(self, request: GenerateRequest, prepared: Prepared) -> int:
        await self._admission.enter()
        try:
            member: Member[ResultT] = Member(
                self._terms, prepared.asked, request, self._outcomes.put
            )
            return self._add(member, await self._exchange.hand_over(prepared, member))
        finally:
            self._admission.leave()

    def _add(self, member: Member[ResultT], request_id: int) -> int:
        index = member.index = self._next_index
        member.begin(request_id)
        self._members[index] = member
        self._next_index += 1
        self._began = True
        if self._closed:  # by an instrument, in the middle of this
            self._drop([index])
            raise trio.ClosedResourceError(CLOSED)
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
            member.note_left()
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

    def find(self, index: int | None) -> Member[ResultT] | None:
        """The member of that index, if it still is one."""
        return None if index is None else self._members.get(index)

    def take(self, member: Member[ResultT]) -> bool:
        """Lets a member go. Returns whether it still was one."""
        if self._members.pop(member.index, None) is None:
            return False
        if self._admission.is_limited:
            self._admission.admit()
        if not self._members:
            self._tell_end()
        return True
