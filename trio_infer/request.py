"""One request's life, from being packed to its end, whichever way its caller looks at it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic

import trio

from .errors import LocalProtocolError
from .models.result import ResultT
from .reception import CLOSED, Reception

if TYPE_CHECKING:
    from .exchange import Exchange, Inbox
    from .protocol.preparation import Prepared

__all__ = ["Request"]


class Request(Generic[ResultT]):
    """A request that lives from `hand_over` to `close`.

    Args:
        exchange: where it is handed over.
        prepared: what is handed over.
        deserialize: whether it is to end in a `Completion`, or else in the fields of the reply.
        heir: who gets its final reply when nobody else wants it any more.

    Attributes:
        reception: what comes back.
        closed: whether its caller has left it.
    """

    __slots__ = ("_exchange", "_prepared", "closed", "reception")

    def __init__(
        self,
        exchange: Exchange,
        prepared: Prepared,
        *,
        deserialize: bool,
        heir: Inbox | None = None,
    ) -> None:
        self._exchange = exchange
        self._prepared: Prepared | None = prepared
        self.reception: Reception[ResultT] = Reception(
            exchange, prepared.asked, deserialize=deserialize, heir=heir
        )
        self.closed: bool = False

    def check_home(self) -> None:
        """Raises `RuntimeError` in another thread or process than the client's own."""
        self._exchange.home.check()

    def claim(self) -> Prepared:
        """What is to be handed over; there is one caller who gets it.

        Raises:
            LocalProtocolError: somebody has it already.
            trio.ClosedResourceError: the request is closed.
        """
        self.check_home()
        if self.closed:
            raise trio.ClosedResourceError(CLOSED)
        prepared, self._prepared = self._prepared, None
        if prepared is None:
            msg = "the block of a request is entered once: make a new one for each request"
            raise LocalProtocolError(msg)
        return prepared

    @trio.lowlevel.enable_ki_protection
    async def hand_over(self, prepared: Prepared) -> None:
        """Waits for the connection, and hands the request over. Cancelled, it has sent nothing.

        Raises:
            trio.ClosedResourceError: the client is closed.
        """
        self.reception.begin(await self._exchange.hand_over(prepared, self.reception))
        if self.closed:  # by an instrument, in the middle of that
            self._abandon()

    @trio.lowlevel.enable_ki_protection
    def close(self) -> None:
        """Ends the request: if it has not finished, ABORT is sent before this returns.

        Raises:
            RuntimeError: in another thread or process than the client's own; nothing has changed.
        """
        if self.closed:
            return
        self.check_home()
        self.closed = True
        self.reception.close()
        if self.reception.handed_over:
            self._abandon()

    def _abandon(self) -> None:
        reception = self.reception
        self._exchange.abandon(reception.request_id, reception.heir)
        if reception.observation is not None:
            reception.observation.left(len(reception.arrived.tokens), aborted=reception.aborted)

    async def result(self) -> ResultT:
        """Waits for the end. Cancelling it ends nothing.

        Raises:
            RequestFailed, ConnectionLost, RemoteProtocolError, trio.ClosedResourceError: what the
                request ended with, if not with a completion.
        """
        reception = self.reception
        await reception.read_news()
        while not reception.has_ended:
            await reception.read_next()
        reception.arrived.take_all()
        return reception.outcome()

    async def finish_early(self) -> ResultT:
        """Aborts the request if it runs, and waits for its end.

        Raises:
            UnsupportedByDialect: it runs, and there are no aborts in this dialect.
        """
        reception = self.reception
        await trio.lowlevel.checkpoint_if_cancelled()
        if not (reception.ended or reception.aborted):
            self._exchange.check_can_abort()
            self._exchange.finish_early(reception.request_id)
            reception.note_abort()
        return await self.result()
