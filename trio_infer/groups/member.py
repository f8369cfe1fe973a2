"""One request of a group, and its inbox: its reply stays packed until somebody receives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic

import attrs

from ..errors import RemoteProtocolError, RequestFailed
from ..exchange import Exchange
from ..models import Outcome
from ..models.result import ResultT
from ..protocol.assembly import result_at_once
from ..protocol.conversion import Known
from ..protocol.packing import MalformedMessage, unpack_map
from ..protocol.unpacking import HEAVY_BODY, Unpacking
from ..reception import client_closed, connection_lost, note_failed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..instruments import Observation
    from ..models import GenerateRequest
    from ..protocol.packing import Frame

__all__ = ["Member", "Terms"]


@attrs.frozen
class Terms:
    """What all requests of a group have in common.

    Attributes:
        exchange: where they run.
        deserialize: whether they end in a `Completion`, or else in the fields of the reply.
        tell_end: told the index of each that has ended.
    """

    exchange: Exchange
    deserialize: bool
    tell_end: Callable[[int], None]


class Member(Generic[ResultT]):
    """A request of a group, and its inbox.

    Args:
        terms: what it has in common with the others.
        request: as it was submitted.
        asked: the sampling parameters that were sent.

    Attributes:
        index: its place in the group.
        request_id: the client's number of it.
        ended: whether nothing will come any more.
        observation: what instruments are told of it, if there are any.
    """

    __slots__ = (
        *("_asked", "_began_at", "_body", "_ended_at", "_error", "_request", "_terms"),
        *("_unpacking", "ended", "index", "observation", "request_id"),
    )

    heir = None

    def __init__(self, terms: Terms, request: GenerateRequest, asked: Mapping[str, Any]) -> None:
        self._terms = terms
        self._request = request
        self._asked = asked
        self.ended = False
        self.observation: Observation | None = None

    def begin(self, index: int, request_id: int) -> None:
        """It was handed over just now."""
        self.index, self.request_id = index, request_id
        self._began_at = self._terms.exchange.now()

    # The inbox: called by the receiving task

    def partial(self, body: Frame) -> None:
        """A partial result came, for which nobody has asked."""

    def final(self, body: Frame) -> None:
        """The final reply came."""
        if self.observation is not None:
            self.observation.final()
        self._end(body)

    def malformed(self, error: MalformedMessage) -> None:
        """A reply came that makes no sense."""
        if error.is_final:
            self._terms.exchange.recount_as_failed()
        broken = RemoteProtocolError(str(error))
        if self.observation is not None:
            self.observation.failed(broken, 0, aborted=False)
        self._end(error=broken)

    def lost(self, reason: str) -> None:
        """The connection is gone."""
        error = connection_lost(reason)
        if self.observation is not None:
            self.observation.lost(error, 0, aborted=False)
        self._end(error=error)

    def closed(self) -> None:
        """The client was closed."""
        if self.observation is not None:
            self.observation.left(0, aborted=False)
        self._end(error=client_closed())

    def _end(self, body: Frame = b"", error: Exception | None = None) -> None:
        self._body, self._error = body, error
        self._unpacking: Unpacking | None = None  # of a large reply
        self._ended_at = self._terms.exchange.now()
        self.ended = True
        self._terms.tell_end(self.index)

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
            self._unpacking = Unpacking(self._body, lazily=self._terms.deserialize)
        return self._unpacking

    def outcome(self) -> Outcome[ResultT]:
        """What became of it, decoded here and now, and counted."""
        try:
            return Outcome(self.index, self._request, completion=self._result())
        except Exception as error:  # noqa: BLE001 - is the outcome
            plain = error.with_traceback(None)  # which would keep the reply for as long
            return Outcome(self.index, self._request, error=plain)

    def _result(self) -> Any:
        if self._error is not None:
            raise self._error
        known = Known(
            request_id=self.request_id,
            latency=self._ended_at - self._began_at,
            time_to_first_token=None,
            asked=self._asked,
            aborted=False,
        )
        exchange, observation = self._terms.exchange, self.observation
        try:
            result = result_at_once(self._unpacked(), known, deserialize=self._terms.deserialize)
        except RequestFailed as error:
            note_failed(exchange, error, observation, aborted=False)
            raise
        except MalformedMessage as error:
            exchange.fail(self.request_id, error, finished=True, heir=None)
            broken = RemoteProtocolError(str(error))
            if observation is not None:
                observation.failed(broken, 0, aborted=False)
            raise broken from None
        if observation is not None:
            observation.decoded(result, aborted=False)
        return result

    def _unpacked(self) -> dict[str, Any]:
        if self.size < HEAVY_BODY:
            return unpack_map(self._body)
        return self._in_pieces().fields()
