"""What comes back for one request: packed bodies, in order, decoded by whoever reads.

The receiving task only puts things in, notes when they came, and wakes the reader by a memory
channel. Everything that takes time, and everything that can go wrong with a body, happens in the
task that reads. The bodies themselves do not travel in the channel: it would hand one of them to a
parked reader, out of sight of a task that closes or looks at the stream in the same tick.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

import attrs
import trio

from .errors import ConnectionLost, RemoteProtocolError, RequestFailed
from .models.result import ResultT
from .protocol.assembly import Assembler
from .protocol.conversion import Known, request_failed
from .protocol.packing import Frame, MalformedMessage

if TYPE_CHECKING:
    from .exchange import Exchange, Inbox

__all__ = ["Reception"]


@attrs.frozen
class _Final:
    """A final reply, still packed, and when it came."""

    body: Frame
    at: float


@attrs.frozen
class _Broken:
    """An end without a final reply; the error is made for each who asks."""

    make_error: Callable[[list[int]], Exception]


_Arrival: TypeAlias = Frame | _Final | _Broken


def _not_ended(_: list[int]) -> Exception:
    return trio.WouldBlock()


class Reception(Generic[ResultT]):
    """The inbox of one request, and what has been read out of it so far.

    Attributes:
        request_id: the client's number of the request; -1 before it is handed over.
        arrived: what the decoded replies hold.
        completion: what the request ended in, once its final reply was decoded and is none of a
            failure: a `Completion`, or its fields.
        ended: whether nothing will come any more; `has_ended` says that this has been read as well.
        aborted: whether the request was aborted while its final reply was still wanted.
        heir: who gets the final reply when nobody else wants it.
        epoch: how many connections had been lost when the final reply came.
        final_body: that, packed, if there is an heir.
    """

    __slots__ = (
        "_asked",
        "_exchange",
        "_final_came",
        "_first_at",
        "_make_error",
        "_submitted_at",
        "_undecoded",
        "_wake",
        "_woken",
        "aborted",
        "arrived",
        "completion",
        "ended",
        "epoch",
        "final_body",
        "heir",
        "request_id",
    )

    def __init__(
        self,
        exchange: Exchange,
        asked: Mapping[str, Any],
        *,
        deserialize: bool,
        heir: Inbox | None = None,
    ) -> None:
        self._exchange = exchange
        self._asked = asked
        self._wake, self._woken = trio.open_memory_channel[None](1)
        self._undecoded: list[_Arrival] = []
        self._final_came = False
        self._submitted_at = 0.0
        self._first_at: float | None = None
        self._make_error: Callable[[list[int]], Exception] = _not_ended
        self.request_id = -1
        self.arrived = Assembler(deserialize=deserialize)
        self.completion: ResultT | None = None
        self.ended = False
        self.aborted = False
        self.heir = heir
        self.epoch = -1
        self.final_body: Frame | None = None

    def note_abort(self) -> None:
        """The request was aborted while its final reply is still wanted."""
        self.aborted = True

    def begin(self, request_id: int) -> None:
        """The request was handed over just now."""
        self.request_id = request_id
        self._submitted_at = trio.current_time()

    # The inbox: called by the receiving task

    def partial(self, body: Frame) -> None:
        """A partial result came."""
        if self._first_at is None:
            self._first_at = trio.current_time()
        self._put(body)

    def final(self, body: Frame) -> None:
        """The final reply came; nothing follows."""
        self._final_came = True
        self.epoch = self._exchange.signals.epoch
        if self.heir is not None:
            self.final_body = body
        self._end(_Final(body, trio.current_time()))

    def malformed(self, error: MalformedMessage) -> None:
        """A reply came that makes no sense; nothing follows."""
        if error.is_final and not self.aborted:
            self._exchange.recount_as_failed()
        self._end(_Broken(lambda _: RemoteProtocolError(str(error))))

    def lost(self, reason: str) -> None:
        """The connection is gone; nothing follows."""
        message = f"the connection was lost with the request in flight: {reason}"
        self._end(_Broken(lambda tokens: ConnectionLost(message, tokens=tokens)))

    def closed(self) -> None:
        """The client was closed; nothing follows."""
        self._end(_Broken(lambda _: trio.ClosedResourceError("the client was closed")))

    def _end(self, arrival: _Arrival) -> None:
        self.ended = True
        self._put(arrival)

    def _put(self, arrival: _Arrival) -> None:
        self._undecoded.append(arrival)
        if len(self._undecoded) == 1:  # else somebody has been woken already
            with contextlib.suppress(trio.WouldBlock, trio.BrokenResourceError):
                self._wake.send_nowait(None)

    # Called by the task that reads

    @property
    def handed_over(self) -> bool:
        """Whether the request has an id."""
        return self.request_id >= 0

    @property
    def has_news(self) -> bool:
        """Whether waiting would return at once."""
        return self.has_ended or self.arrived.has_untaken or bool(self._undecoded)

    @property
    def has_ended(self) -> bool:
        """Whether the end has been decoded."""
        return self.completion is not None or self._make_error is not _not_ended

    def outcome(self) -> ResultT:
        """The completion; or raises what the request ended with instead.

        Raises:
            trio.WouldBlock: the end has not been decoded yet.
        """
        if self.completion is None:
            raise self._make_error(self.arrived.tokens)
        return self.completion

    async def wait_for_news(self) -> None:
        """Waits like `wait` if there is nothing to read yet; a checkpoint in any case."""
        if self.has_news:
            await trio.lowlevel.checkpoint()
        else:
            await self.wait()

    async def wait(self) -> None:
        """Waits until there may be something to decode. Cancelled, it loses nothing.

        Raises:
            trio.ClosedResourceError: `close` was called.
        """
        await self._woken.receive()

    def close(self) -> None:
        """Wakes who waits. What has come can still be decoded."""
        self._woken.close()

    @trio.lowlevel.enable_ki_protection
    def decode(self) -> None:
        """Decodes what has come, in order."""
        arrivals, self._undecoded = self._undecoded, []
        for arrival in arrivals:
            if self.has_ended:
                return
            try:
                self._decode_one(arrival)
            except MalformedMessage as error:
                self._fail(error)

    def _decode_one(self, arrival: _Arrival) -> None:
        if isinstance(arrival, _Broken):
            self._make_error = arrival.make_error
        elif isinstance(arrival, _Final):
            self._decode_final(arrival)
        else:
            self.arrived.add_partial(arrival)

    def _decode_final(self, final: _Final) -> None:
        first = self._first_at
        known = Known(
            request_id=self.request_id,
            latency=final.at - self._submitted_at,
            time_to_first_token=None if first is None else first - self._submitted_at,
            asked=self._asked,
            aborted=self.aborted,
        )
        try:
            self.completion = self.arrived.finish(final.body, known)
        except RequestFailed as error:
            completion = error.completion
            if not self.aborted:
                self._exchange.recount_as_failed()
            self._make_error = lambda _: request_failed(completion)

    def _fail(self, error: MalformedMessage) -> None:
        """A body made no sense: the request has failed, and is aborted if it still runs."""
        message = str(error)
        self._make_error = lambda _: RemoteProtocolError(message)
        finished = self._final_came and not self.aborted
        self._exchange.fail(self.request_id, finished=finished, heir=self.heir)
        self.ended = True
