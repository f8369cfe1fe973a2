"""One request's life, from being packed to its end, whichever way its caller looks at it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio

from .errors import LocalProtocolError
from .reception import Reception

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .exchange import Exchange
    from .models import Completion
    from .protocol.wire import Submission

__all__ = ["Request"]

CLOSED: Final = "the stream is closed; what had arrived is in its tokens and completion"


class Request:
    """A request that lives from `hand_over` to `close`.

    Args:
        exchange: where it is handed over.
        submission: what is handed over.
        asked: the sampling parameters in it.

    Attributes:
        reception: what comes back.
        closed: whether its caller has left it.
    """

    __slots__ = ("_exchange", "_submission", "closed", "reception")

    def __init__(
        self, exchange: Exchange, submission: Submission, asked: Mapping[str, Any]
    ) -> None:
        self._exchange = exchange
        self._submission: Submission | None = submission
        self.reception = Reception(exchange, asked)
        self.closed = False

    def claim(self) -> Submission:
        """What is to be handed over; there is one caller who gets it.

        Raises:
            LocalProtocolError: somebody has it already.
            trio.ClosedResourceError: the request is closed.
        """
        if self.closed:
            raise trio.ClosedResourceError(CLOSED)
        submission, self._submission = self._submission, None
        if submission is None:
            msg = "a stream is entered once: make a new one for each request"
            raise LocalProtocolError(msg)
        return submission

    @trio.lowlevel.enable_ki_protection
    async def hand_over(self, submission: Submission) -> None:
        """Waits for the connection, and hands the request over. Cancelled, it has sent nothing.

        Raises:
            trio.ClosedResourceError: the client is closed.
        """
        self.reception.begin(await self._exchange.hand_over(submission, self.reception))

    @trio.lowlevel.enable_ki_protection
    def close(self) -> None:
        """Ends the request: if it has not finished, ABORT is sent before this returns."""
        if self.closed:
            return
        self.closed = True
        reception = self.reception
        reception.close()
        if reception.handed_over:
            self._exchange.abandon(reception.request_id)

    async def result(self) -> Completion:
        """Waits for the end. Cancelling it ends nothing.

        Raises:
            RequestFailed, ConnectionLost, RemoteProtocolError, trio.ClosedResourceError: what the
                request ended with, if not with a completion.
        """
        reception = self.reception
        await reception.wait_for_news()
        reception.decode()
        while not reception.has_ended:
            await reception.wait()
            reception.decode()
        reception.arrived.take_all()
        return reception.outcome()

    async def finish_early(self) -> Completion:
        """Aborts the request if it runs, and waits for its end."""
        reception = self.reception
        await trio.lowlevel.checkpoint_if_cancelled()
        if not (reception.ended or reception.aborted):
            self._exchange.finish_early(reception.request_id)
            reception.note_abort()
        return await self.result()

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> Completion:
        """Its whole life: handing over, the result, and the end, whatever happens."""
        await self.hand_over(self.claim())
        try:
            return await self.result()
        finally:
            self.close()
