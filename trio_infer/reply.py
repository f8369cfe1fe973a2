"""The inbox of a request of which nothing is wanted but its final reply.

That stays packed until whoever wants it asks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from .endings import client_closed, connection_lost, note_failed
from .errors import RemoteProtocolError, RequestFailed
from .protocol.assembly import result_at_once
from .protocol.packing import MalformedMessage
from .protocol.unpacking import HEAVY_BODY, Unpacking

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .exchange import Exchange
    from .observation import Observation
    from .protocol.packing import Frame

__all__ = ["Reply", "Terms"]


class Terms(NamedTuple):
    """What all requests of a client have in common.

    Attributes:
        exchange: where they run.
        deserialize: whether they end in a `Completion`, or else in the fields of the reply.
    """

    exchange: Exchange
    deserialize: bool


class Reply(ABC):
    """The inbox of a request, for one final reply; and what is `Known` of the request.

    Args:
        terms: what it has in common with others.
        asked: the sampling parameters that were sent.

    Attributes:
        asked: the sampling parameters that were sent.
        request_id: the client's number of it.
        ended: whether nothing will come any more.
        observation: what instruments are told of it, if there are any.
    """

    __slots__ = (
        *("_began_at", "_body", "_ended_at", "_error", "_terms", "_unpacking"),
        *("asked", "ended", "observation", "request_id"),
    )

    heir = None
    aborted = False  # of which no final reply is wanted
    time_to_first_token = None  # nobody notes when it comes

    def __init__(self, terms: Terms, asked: Mapping[str, Any]) -> None:
        self._terms = terms
        self.asked: Mapping[str, Any] = asked
        self.ended: bool = False
        self.observation: Observation | None = None

    def begin(self, request_id: int) -> None:
        """It was handed over just now."""
        self.request_id = request_id
        self._began_at = self._terms.exchange.now()

    @abstractmethod
    def _tell_end(self) -> None:
        """It has ended. Must not raise, nor wait."""

    # The inbox: called by the receiving task

    def partial(self, body: Frame) -> None:  # noqa: B027 - nothing to do
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
        self.note_left()
        self._end(error=client_closed())

    def _end(self, body: Frame = b"", error: Exception | None = None) -> None:
        self._body, self._error = body, error
        self._unpacking: Unpacking | None = None  # of a large reply
        self._ended_at = self._terms.exchange.now()
        self.ended = True
        self._tell_end()

    # Called by the task that wants it

    @property
    def latency(self) -> float:
        """Seconds from handing over to the end."""
        return self._ended_at - self._began_at

    def note_left(self) -> None:
        """Nobody wants it any more."""
        if self.observation is not None:
            self.observation.left(0, aborted=False)

    @property
    def size(self) -> int:
        """How many bytes it has; from `HEAVY_BODY` on it should be unpacked in pieces."""
        return len(self._body)

    def unpack_some(self) -> bool:
        """Unpacks a piece of a large reply; returns whether there may be more of it."""
        return self._in_pieces().go_on()

    def _in_pieces(self) -> Unpacking:
        if self._unpacking is None:
            self._unpacking = Unpacking(self._body, lazily=self._terms.deserialize)
        return self._unpacking

    def result(self) -> Any:
        """What the request has ended in, decoded here and now, and counted. To be called once.

        Raises:
            RequestFailed, ConnectionLost, RemoteProtocolError, trio.ClosedResourceError: that.
        """
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # whose traceback holds this
        exchange, deserialize = self._terms
        try:
            is_heavy = len(self._body) >= HEAVY_BODY
            body = self._in_pieces().fields() if is_heavy else self._body
            result = result_at_once(body, self, deserialize=deserialize)
        except RequestFailed as error:
            note_failed(exchange, error, self.observation, aborted=False)
            raise
        except MalformedMessage as error:
            exchange.fail(self.request_id, error, finished=True, heir=None)
            message = str(error)
        else:
            if self.observation is not None:
                self.observation.decoded(result, aborted=False)
            return result
        if self.observation is not None:
            self.observation.failed(RemoteProtocolError(message), 0, aborted=False)
        raise RemoteProtocolError(message)  # out here, lest its context hold the reply
