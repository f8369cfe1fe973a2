"""One request of a group, and its inbox: its reply stays packed until somebody receives it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic

from ..errors import RemoteProtocolError
from ..models import Outcome
from ..models.result import ResultT
from ..protocol.assembly import Assembler
from ..protocol.conversion import Known
from ..protocol.packing import MalformedMessage, unpack_map
from ..protocol.unpacking import HEAVY_BODY, Unpacking
from ..reception import client_closed, conclude, connection_lost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..exchange import Exchange
    from ..instruments import Observation
    from ..models import GenerateRequest
    from ..protocol.packing import Frame

__all__ = ["Member"]


class Member(Generic[ResultT]):
    """A request of a group, and its inbox.

    Args:
        exchange: where it runs.
        request: as it was submitted.
        asked: the sampling parameters that were sent.
        deserialize: whether it ends in a `Completion`, or else in the fields of the reply.
        tell_end: told its index when it has ended.

    Attributes:
        index: its place in the group.
        request_id: the client's number of it.
        ended: whether nothing will come any more.
        observation: what instruments are told of it, if there are any.
    """

    __slots__ = (
        *("_asked", "_began_at", "_body", "_deserialize", "_ended_at", "_error", "_exchange"),
        *("_request", "_tell_end", "_unpacking"),
        *("ended", "index", "observation", "request_id"),
    )

    heir = None

    def __init__(
        self,
        exchange: Exchange,
        request: GenerateRequest,
        asked: Mapping[str, Any],
        *,
        deserialize: bool,
        tell_end: Callable[[int], None],
    ) -> None:
        self._exchange = exchange
        self._request = request
        self._asked = asked
        self._deserialize = deserialize
        self._tell_end = tell_end
        self.index = self.request_id = -1
        self.ended = False
        self.observation: Observation | None = None
        self._began_at = self._ended_at = 0.0
        self._body: Frame = b""
        self._error: Exception | None = None
        self._unpacking: Unpacking | None = None  # of a large reply

    def begin(self, index: int, request_id: int) -> None:
        """It was handed over just now."""
        self.index, self.request_id = index, request_id
        self._began_at = self._exchange.now()

    # The inbox: called by the receiving task

    def partial(self, body: Frame) -> None:
        """A partial result came, for which nobody has asked."""

    def final(self, body: Frame) -> None:
        """The final reply came."""
        self._body = body
        if self.observation is not None:
            self.observation.final()
        self._end()

    def malformed(self, error: MalformedMessage) -> None:
        """A reply came that makes no sense."""
        if error.is_final:
            self._exchange.recount_as_failed()
        broken = RemoteProtocolError(str(error))
        if self.observation is not None:
            self.observation.failed(broken, 0, aborted=False)
        self._end(broken)

    def lost(self, reason: str) -> None:
        """The connection is gone."""
        error = connection_lost(reason)
        if self.observation is not None:
            self.observation.lost(error, 0, aborted=False)
        self._end(error)

    def closed(self) -> None:
        """The client was closed."""
        if self.observation is not None:
            self.observation.left(0, aborted=False)
        self._end(client_closed())

    def _end(self, error: Exception | None = None) -> None:
        self._error = error
        self.ended = True
        self._ended_at = self._exchange.now()
        self._tell_end(self.index)

    # Called by the task that receives the outcome

    @property
    def size(self) -> int:
        """How many bytes its reply has; from `HEAVY_BODY` on it should be unpacked in pieces."""
        return len(self._body)

    def unpack_some(self) -> bool:
        """Unpacks a piece of a large reply; returns whether there may be more of it."""
        return self._in_pieces().go_on()

    def _in_pieces(self) -> Unpacking:
        if self._unpacking is None:
            self._unpacking = Unpacking(self._body, lazily=self._deserialize)
        return self._unpacking

    def outcome(self) -> Outcome[ResultT]:
        """What became of it, decoded here and now, and counted."""
        try:
            return Outcome(self.index, self._request, completion=self._completion())
        except Exception as error:  # noqa: BLE001 - is the outcome
            plain = error.with_traceback(None)  # which would keep the reply for as long
            return Outcome(self.index, self._request, error=plain)

    def _completion(self) -> ResultT:
        if self._error is not None:
            raise self._error
        known = Known(
            request_id=self.request_id,
            latency=self._ended_at - self._began_at,
            time_to_first_token=None,
            asked=self._asked,
            aborted=False,
        )
        arrived = Assembler(deserialize=self._deserialize)
        try:
            fields = self._unpacked()
            completion: ResultT = conclude(self._exchange, arrived, fields, known, self.observation)
        except MalformedMessage as error:
            self._exchange.fail(self.request_id, error, finished=True, heir=None)
            broken = RemoteProtocolError(str(error))
            if self.observation is not None:
                self.observation.failed(broken, 0, aborted=False)
            raise broken from None
        return completion

    def _unpacked(self) -> dict[str, Any]:
        if self.size < HEAVY_BODY:
            return unpack_map(self._body)
        return self._in_pieces().fields()
