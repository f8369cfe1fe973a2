"""One request, as its caller sees it: a block that it lives in, and a stream of deltas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, Self

import trio

from .errors import LocalProtocolError
from .models import TokenDelta
from .models.result import ResultT
from .protocol.detokenizing import Detokenizer
from .reception import CLOSED

if TYPE_CHECKING:
    from .models import Completion
    from .protocol.assembly import Assembler
    from .protocol.detokenizing import Tokenizer
    from .reception import Reception
    from .request import Request

__all__ = ["CompletionStream"]

_NOT_HANDED_OVER: Final = "the request has not been handed over yet: enter the stream first"


class CompletionStream(trio.abc.ReceiveChannel[TokenDelta], Generic[ResultT]):
    """One request while it runs. Made by `InferenceClient.stream`; to be used in ``async with``.

    Entering the block waits for the connection and hands the request over. Leaving it, in whatever
    way, ends the request: if it has not finished, ABORT is sent before control moves on (where
    ``client.dialect.can_abort``; elsewhere the engine goes on, to no avail). Iterate
    over the stream, or call `receive`, for `TokenDelta` objects; `result` waits for the whole: a
    `Completion`, or, from a client with ``deserialize=False``, the reply's fields as a dict.

    Where ``client.dialect.can_stream`` is false, all tokens come as one delta, at the end.

    One task may receive at a time; any task may close it.
    """

    def __init__(self, request: Request[ResultT], tokenizer: Tokenizer | None = None) -> None:
        self._request = request
        self._reception = request.reception
        if tokenizer is not None:
            self._reception.arrived.detokenizer = Detokenizer(tokenizer)
        self._turn = _Turn(request.reception)
        self._entering: trio.CancelScope | None = None

    # The block

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Self:
        """Hands the request over, once there is a connection.

        Cancelled before that, nothing has been sent.

        Raises:
            LocalProtocolError: it was entered before.
            trio.ClosedResourceError: the client is closed, or the stream was meanwhile.
        """
        prepared = self._request.claim()
        with trio.CancelScope() as self._entering:
            await trio.lowlevel.checkpoint()
            await self._request.hand_over(prepared)
        if self._entering.cancelled_caught:
            raise trio.ClosedResourceError(CLOSED)
        self._entering = None
        return self

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(self, *_: object) -> None:
        """Ends the request. Never waits, so that nothing can replace the caller's exception."""
        self.close()

    @trio.lowlevel.enable_ki_protection
    def close(self) -> None:
        """Ends the request as leaving the block does: at once. May be called again.

        Whoever receives gets `trio.ClosedResourceError`; what has arrived stays in `tokens`.
        """
        self._request.close()
        if self._entering is not None:
            self._entering.cancel()

    async def aclose(self) -> None:
        """Ends the request, from whichever task. The abort is sent before anything is awaited."""
        self.close()
        await trio.lowlevel.checkpoint()

    # What is known

    @property
    def request_id(self) -> int:
        """The client's number of the request.

        Raises:
            LocalProtocolError: it has not been handed over yet.
        """
        if not self._reception.handed_over:
            raise LocalProtocolError(_NOT_HANDED_OVER)
        return self._reception.request_id

    @property
    def tokens(self) -> list[int]:
        """The token ids received so far; once the stream is closed, all that have arrived.

        A new list each time, at a cost linear in their number.
        """
        arrived = self._arrived()
        return arrived.tokens[: arrived.taken]

    @property
    def text(self) -> str | None:
        """The text of the tokens received so far, but for what is held back; None: no tokenizer.

        Once the stream is closed, or `result` has returned, it is what the tokenizer decodes all
        `tokens` to, and raises what that raises.
        """
        arrived = self._arrived()
        if arrived.detokenizer is None:
            return None
        return arrived.detokenizer.text(arrived.tokens)

    def _arrived(self) -> Assembler:
        reception = self._reception
        if self._request.closed:
            reception.decode()
            reception.arrived.take_all()
        return reception.arrived

    @property
    def finished(self) -> bool:
        """Whether nothing more will arrive: the final reply has, or the connection or client ended.

        Tokens that have arrived may still wait to be received. Of a request that was left before
        its end this stays False.
        """
        return self._reception.ended

    @property
    def completion(self) -> ResultT | None:
        """What `result` returns, if its final reply has arrived and is none of a failure."""
        if not self._request.closed:
            self._request.check_home()  # to decode is to read
        self._reception.decode()
        return self._reception.completion

    @property
    def closed(self) -> bool:
        """Whether the block has ended, or the stream was closed in it."""
        return self._request.closed

    @property
    def error(self) -> Exception | None:
        """What `result` raises, if the request has ended, but not in a completion."""
        if self.completion is not None:
            return None
        return self._reception.error

    # Receiving

    def _reading(self) -> _Turn[ResultT]:
        self._request.check_home()
        if self._request.closed:
            raise trio.ClosedResourceError(CLOSED)
        if not self._reception.handed_over:
            raise LocalProtocolError(_NOT_HANDED_OVER)
        return self._turn

    async def receive(self) -> TokenDelta:
        """Waits for tokens, and returns all that have arrived since the last call.

        Cancelling it loses nothing and ends nothing: the request belongs to the block. What the
        tokenizer raises, if there is one, comes out and ends nothing either: the tokens are there
        for the next call, and for `result`, which makes no text.

        Raises:
            trio.EndOfChannel: the request has finished, and everything was received.
            ValueError: the same, but the tokenizer has taken back text that was given already.
            RequestFailed: the engine gave up on it.
            ConnectionLost: the connection broke.
            RemoteProtocolError: the peer sent what makes no sense; the request was aborted.
            LocalProtocolError: the stream has not been entered.
            trio.BusyResourceError: another task is receiving.
            trio.ClosedResourceError: the stream or the client was closed.
        """
        with self._reading() as reception:
            await reception.read_news()
            while (delta := _take_delta(reception)) is None:
                await reception.read_next()
            return delta

    def receive_nowait(self) -> TokenDelta:
        """As `receive`, without waiting.

        Raises:
            trio.WouldBlock: nothing has arrived.
        """
        with self._reading() as reception:
            reception.decode()
            delta = _take_delta(reception)
        if delta is None:
            raise trio.WouldBlock
        return delta

    async def result(self) -> ResultT:
        """Waits for the end of the request; what was not received goes to `tokens`.

        Cancelling it loses nothing and ends nothing. Raises what `receive` does, but for the end.
        """
        with self._reading():
            return await self._request.result()

    def _so_far(self) -> Completion:
        """What has arrived, as a completion of deltas; for `generate_within`."""
        with self._reading() as reception:
            return reception.so_far()

    async def finish_early(self) -> ResultT:
        """Aborts the request, and waits for the engine's final reply: the completion so far.

        Its ``finish_reason`` is then ``"abort"``; that of a request that has finished already is
        what it is. While the engines are paused no reply comes. Cancelled, the request stays
        aborted, and `result` may be awaited again. Raises what `receive` does, but for the end;
        and `UnsupportedByDialect`, sending nothing, where ``client.dialect.can_abort`` is false
        and the request has not finished.
        """
        with self._reading():
            return await self._request.finish_early()


class _Turn(Generic[ResultT]):
    """Lets one task at a time read."""

    __slots__ = ("_reception", "_taken")

    def __init__(self, reception: Reception[ResultT]) -> None:
        self._reception = reception
        self._taken = False

    @trio.lowlevel.enable_ki_protection
    def __enter__(self) -> Reception[ResultT]:
        if self._taken:
            msg = "another task is receiving from this stream"
            raise trio.BusyResourceError(msg)
        self._taken = True
        return self._reception

    @trio.lowlevel.enable_ki_protection
    def __exit__(self, *_: object) -> None:
        self._taken = False


def _take_delta(reception: Reception[ResultT]) -> TokenDelta | None:
    """What has been decoded since the last delta; None if the next is still to come."""
    arrived = reception.arrived
    delta = arrived.take_delta(ended=reception.has_ended)
    if delta is None and reception.has_ended:
        reception.outcome()
        if arrived.detokenizer is not None:
            arrived.detokenizer.check()
        raise trio.EndOfChannel
    return delta
