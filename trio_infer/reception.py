"""What comes back for one request: packed bodies, in order, decoded by whoever reads.

The receiving task only puts things in, notes when they came, and wakes the reader. Everything that
takes time, and everything that can go wrong with a body, happens in the task that reads. It finds
the bodies here: a memory channel would hand one of them to a parked reader, out of sight of a task
that closes or looks at the stream in the same tick.

What is large, a body or a number of them, is decoded in pieces, and other tasks run in between. How
far that has come is kept here and not in the task: when it is cancelled, whoever reads next goes on
from there; and who cannot wait, such as `CompletionStream.completion`, does the rest at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias

import attrs
import trio

from .endings import client_closed, connection_lost, note_failed
from .errors import RemoteProtocolError, RequestFailed
from .models import Completion
from .models.result import ResultT
from .protocol.assembly import Assembler, Body
from .protocol.conversion import request_failed
from .protocol.packing import Frame, MalformedMessage
from .protocol.unpacking import HEAVY_BODY, Unpacking
from .wakeup import Wakeup

if TYPE_CHECKING:
    from .exchange import Exchange, Inbox
    from .observation import Observation

__all__ = ["CLOSED", "Reception"]

CLOSED: Final = "the stream is closed; what had arrived is in its tokens and completion"

DECODED_AT_ONCE: Final = 256
"""So many arrivals are decoded, or `HEAVY_BODY` bytes, before other tasks have their turn."""

MAX_UNREAD_BYTES: Final = 2**29
"""So many bytes of partial results wait for whoever reads a request; more fail it."""

BYTES_BESIDE: Final = 64
"""What a partial result that waits takes beside its own bytes."""


@attrs.define
class _Final:
    """A final reply, still packed."""

    body: Frame


@attrs.frozen
class _Broken:
    """An end without a final reply; the error is made for each who asks."""

    make_error: Callable[[list[int]], Exception]


_Arrival: TypeAlias = Frame | _Final | _Broken


def _size(arrival: _Arrival) -> int:
    """What it counts for, among what nobody has read."""
    return 0 if isinstance(arrival, _Final | _Broken) else len(arrival) + BYTES_BESIDE


def _not_ended(_: list[int]) -> Exception:
    return trio.WouldBlock()


class Reception(Generic[ResultT]):
    """The inbox of one request, what has been read out of it so far, and what is `Known` of it.

    Attributes:
        asked: the sampling parameters that were sent.
        request_id: the client's number of the request; -1 before it is handed over.
        arrived: what the decoded replies hold.
        completion: what the request ended in, once its final reply was decoded and is none of a
            failure: a `Completion`, or its fields.
        ended: whether nothing will come any more; `has_ended` says that this has been read as well.
        aborted: whether the request was aborted while its final reply was still wanted.
        heir: who gets the final reply when nobody else wants it.
        epoch: how many connections had been lost when the final reply came.
        final_body: that, packed, if there is an heir.
        observation: what instruments are told of it, if there are any.
    """

    __slots__ = (
        "_closed",
        "_decoding",
        "_exchange",
        "_final_at",
        "_first_at",
        "_make_error",
        "_submitted_at",
        "_undecoded",
        "_unpacking",
        "_unread_bytes",
        "_wakeup",
        "aborted",
        "arrived",
        "asked",
        "completion",
        "ended",
        "epoch",
        "final_body",
        "heir",
        "observation",
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
        self.asked: Mapping[str, Any] = asked
        self._wakeup = Wakeup()
        self._undecoded: list[_Arrival] = []
        self._decoding: list[_Arrival] = []  # the next one last
        self._unpacking: Unpacking | None = None  # the body of that one
        self._closed = False
        self._unread_bytes = 0
        self._final_at: float | None = None
        self._submitted_at = 0.0
        self._first_at: float | None = None
        self._make_error: Callable[[list[int]], Exception] = _not_ended
        self.request_id: int = -1
        self.arrived: Assembler = Assembler(deserialize=deserialize)
        self.completion: ResultT | None = None
        self.ended: bool = False
        self.aborted: bool = False
        self.heir: Inbox | None = heir
        self.epoch: int = -1
        self.final_body: Frame | None = None
        self.observation: Observation | None = None

    def note_abort(self) -> None:
        """The request was aborted while its final reply is still wanted."""
        self.aborted = True

    def begin(self, request_id: int) -> None:
        """The request was handed over just now."""
        self.request_id = request_id
        self._submitted_at = self._exchange.now()

    # The inbox: called by the receiving task

    def partial(self, body: Frame) -> None:
        """A partial result came."""
        if self._first_at is None:
            self._first_at = self._exchange.now()
        if self.observation is not None:
            self.observation.partial(len(body))
        self._unread_bytes += len(body) + BYTES_BESIDE
        if self._unread_bytes <= MAX_UNREAD_BYTES:
            self._undecoded.append(body)
            if len(self._undecoded) == 1:  # else somebody has been woken already
                self._wakeup.set()
        else:
            msg = f"more than {MAX_UNREAD_BYTES} bytes of partial results that nobody has read"
            error = MalformedMessage(msg)
            self._exchange.fail(self.request_id, error, finished=False, heir=self.heir)
            self._break(msg)

    def final(self, body: Frame) -> None:
        """The final reply came; nothing follows."""
        self._final_at = self._exchange.now()
        self.epoch = self._exchange.signals.epoch
        if self.heir is not None:
            self.final_body = body
        if self.observation is not None:
            self.observation.final()
        self._end(_Final(body))

    def malformed(self, error: MalformedMessage) -> None:
        """A reply came that makes no sense; nothing follows."""
        if error.is_final and not self.aborted:
            self._exchange.recount_as_failed()
        self._break(str(error))

    def lost(self, reason: str) -> None:
        """The connection is gone; nothing follows."""
        if self.observation is not None:
            error = connection_lost(reason)
            self.observation.lost(error, len(self.arrived.tokens), aborted=self.aborted)
        self._end(_Broken(lambda tokens: connection_lost(reason, tokens)))

    def closed(self) -> None:
        """The client was closed; nothing follows."""
        if self.observation is not None:
            self.observation.left(len(self.arrived.tokens), aborted=self.aborted)
        self._end(_Broken(lambda _: client_closed()))

    def _break(self, message: str) -> None:
        self._tell_failure(message)
        self._end(_Broken(lambda _: RemoteProtocolError(message)))

    def _tell_failure(self, message: str) -> None:
        if self.observation is not None:
            error = RemoteProtocolError(message)
            self.observation.failed(error, len(self.arrived.tokens), aborted=self.aborted)

    def _end(self, arrival: _Arrival) -> None:
        self.ended = True
        self._undecoded.append(arrival)
        if len(self._undecoded) == 1:
            self._wakeup.set()

    # Called by the task that reads

    @property
    def handed_over(self) -> bool:
        """Whether the request has an id."""
        return self.request_id >= 0

    @property
    def latency(self) -> float:
        """Seconds from handing over to the final reply; until that comes, to this moment."""
        end = self._exchange.now() if self._final_at is None else self._final_at
        return end - self._submitted_at

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from handing over to the first partial result, if any."""
        return None if self._first_at is None else self._first_at - self._submitted_at

    @property
    def has_news(self) -> bool:
        """Whether waiting would return at once."""
        return bool(self._undecoded or self._decoding or self.arrived.has_untaken or self.has_ended)

    @property
    def has_ended(self) -> bool:
        """Whether the end has been decoded."""
        return self.completion is not None or self._make_error is not _not_ended

    @property
    def error(self) -> Exception | None:
        """What `outcome` raises, once the end has been decoded and is no completion."""
        if self.completion is not None or not self.has_ended:
            return None
        return self._make_error(self.arrived.tokens)

    def outcome(self) -> ResultT:
        """The completion; or raises what the request ended with instead.

        Raises:
            trio.WouldBlock: the end has not been decoded yet.
        """
        if self.completion is None:
            raise self._make_error(self.arrived.tokens)
        return self.completion

    def so_far(self) -> Completion:
        """A completion of what has arrived, made of partial results alone.

        Raises:
            RemoteProtocolError: something of it makes no sense.
        """
        self.decode()
        if isinstance(self.error, RemoteProtocolError):
            raise self.error
        whole = self.arrived.whole()
        return Completion(
            request_id=self.request_id,
            generated_tokens=whole.tokens,
            generated_length=len(whole.tokens),
            generated_log_probs=whole.log_probs,
            generated_top_n_logprobs=whole.top_n_logprobs,
            finish_reason="abort",
            from_deltas=True,
            latency=self.latency,
            time_to_first_token=self.time_to_first_token,
            status="UNKNOWN",
        )

    async def read_news(self) -> None:
        """Decodes what has come, or, if there is none, what comes next; a checkpoint in any case.

        Of what comes while it decodes it takes nothing up. Cancelled, it loses nothing.

        Raises:
            trio.ClosedResourceError: `close` was called.
        """
        if self.has_news:
            await trio.lowlevel.checkpoint()
        else:
            await self._wakeup.wait()
        self._take_up()
        if self._decode_some():
            await self._decode_in_turns()

    async def read_next(self) -> None:
        """As `read_news`, with all that had come decoded: waits until there may be more."""
        await self._wakeup.wait()
        self._take_up()
        if self._decode_some():
            await self._decode_in_turns()

    async def _decode_in_turns(self) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            if self._closed:
                raise trio.ClosedResourceError(CLOSED)
            if not self._decode_some():
                return

    def close(self) -> None:
        """Wakes who waits. What has come can still be decoded."""
        self._closed = True
        self._wakeup.close()

    @trio.lowlevel.enable_ki_protection
    def decode(self) -> None:
        """Decodes what has come, in order, all of it at once."""
        self._take_up()
        while self._decode_some():
            pass

    @trio.lowlevel.enable_ki_protection
    def _take_up(self) -> None:
        arrivals, self._undecoded = self._undecoded, []
        if len(arrivals) > 1:
            arrivals.reverse()
        self._decoding = arrivals + self._decoding if self._decoding else arrivals

    @trio.lowlevel.enable_ki_protection
    def _decode_some(self) -> bool:
        """Decodes some of what was taken up; returns whether there is more of it."""
        arrivals, add_partial, size = self._decoding, self.arrived.add_partial, 0
        if self._make_error is not _not_ended:  # an instrument reads while it is told of that
            arrivals.clear()
        try:
            for _ in range(min(len(arrivals), DECODED_AT_ONCE)):
                arrival = arrivals.pop()
                if type(arrival) is bytes and len(arrival) < HEAVY_BODY:  # by far the most
                    add_partial(arrival)
                    size += len(arrival) + BYTES_BESIDE
                elif self._decode_one(arrival):
                    size += _size(arrival)
                else:
                    arrivals.append(arrival)
                    break
                if size >= HEAVY_BODY:
                    break
        except MalformedMessage as error:
            self._fail(error)
        self._unread_bytes -= size
        if self._make_error is not _not_ended:
            arrivals.clear()
        return bool(arrivals)

    def _decode_one(self, arrival: _Arrival) -> bool:
        """Returns whether it is done with, and not just a piece of it."""
        if isinstance(arrival, _Broken):
            self._make_error = arrival.make_error
            return True
        body = self._unpacked(arrival.body if isinstance(arrival, _Final) else arrival)
        if body is None:
            return False
        if isinstance(arrival, _Final):
            self._decode_final(body)
        else:
            self.arrived.add_partial(body)
        return True

    def _unpacked(self, body: Frame) -> Body | None:
        """A body, unpacked if that wants to be done in pieces; None if there are more of them."""
        if len(body) < HEAVY_BODY:
            return body
        if self._unpacking is None:
            self._unpacking = Unpacking(body, lazily=self.arrived.deserialize)
        if self._unpacking.go_on():
            return None
        fields, self._unpacking = self._unpacking.fields(), None
        return fields

    def _decode_final(self, body: Body) -> None:
        try:
            result = self.completion = self.arrived.finish(body, self)
        except RequestFailed as error:
            completion = error.completion
            self._make_error = lambda _: request_failed(completion)
            note_failed(self._exchange, error, self.observation, aborted=self.aborted)
            return
        if self.observation is not None:
            self.observation.decoded(result, aborted=self.aborted)

    def _fail(self, error: MalformedMessage) -> None:
        """A body made no sense: the request has failed, and is aborted if it still runs."""
        message, self._unpacking = str(error), None
        self._make_error = lambda _: RemoteProtocolError(message)
        finished = self._final_at is not None and not self.aborted
        self._exchange.fail(self.request_id, error, finished=finished, heir=self.heir)
        self._tell_failure(message)
        self.ended = True
