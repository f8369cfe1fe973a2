"""Requests over connections: handing over, aborting, and passing on what comes back.

Out: the session gives an id, the codec makes frames, the transport hands them over at once. In: the
transport reads, the session says whose it is, and it goes into that owner's inbox with its body
still packed.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final, Protocol

import trio

from .admission import Admission
from .complaints import Complaints
from .instruments import Instruments
from .models import ClientStatistics
from .protocol.dialect import Kind
from .protocol.packing import MalformedMessage
from .protocol.session import Session
from .signals import Signals
from .sockets import Home, NotConnected
from .transport import CLOSED, Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .observation import Observation
    from .protocol.client_codec import ClientCodec
    from .protocol.dialect import Dialect
    from .protocol.packing import Frame, Frames
    from .protocol.preparation import Prepared
    from .sockets import Link, Network

__all__ = ["Exchange", "Inbox", "RequestInbox"]

_logger: Final = logging.getLogger(__name__)

_PARTIAL: Final = Kind.ENGINE_REPLY_PARTIAL
_FINAL: Final = Kind.ENGINE_REPLY

_PAIR: Final = 2
"""Frames of a reply, where its body has one of its own."""

PACKING_THREADS: Final = 2
"""So many large requests are packed at once."""


class Inbox(Protocol):
    """Where the replies to a request go. No method may raise, or wait."""

    def partial(self, body: Frame) -> None:
        """A partial result came."""

    def final(self, body: Frame) -> None:
        """The final reply came; nothing follows."""

    def malformed(self, error: MalformedMessage) -> None:
        """A reply came that makes no sense; nothing follows."""

    def lost(self, reason: str) -> None:
        """The connection is gone; nothing follows."""

    def closed(self) -> None:
        """The client was closed; nothing follows."""

    @property
    def heir(self) -> Inbox | None:
        """Who wants the final reply even if nobody waits for the request any more."""


class RequestInbox(Inbox, Protocol):
    """The inbox of a request that is to be handed over.

    Attributes:
        observation: what instruments are told of it, if there are any; set as it is handed over.
    """

    observation: Observation | None


class Exchange:
    """All requests of one client. Every method but the coroutines is synchronous.

    Args:
        address: of the coordinator.
        codec: of the dialect that it speaks.
        link: how to treat connections.
        network: where sockets are made.
        max_in_flight: how many requests may run at a time; None: any number.
        instruments: who is told what happens.

    Attributes:
        home: where it may be used.
        now: what `trio.current_time` says, asked more directly once the client runs.
        signals: what is sent besides requests.
        on_closing: what is called when the client closes, once nothing runs any more.
    """

    def __init__(
        self,
        address: str,
        *,
        codec: ClientCodec,
        link: Link,
        network: Network,
        max_in_flight: int | None,
        instruments: tuple[object, ...],
    ) -> None:
        self.home: Home = Home()
        self.now: Callable[[], float] = trio.current_time
        self._codec = codec
        self._session: Session[Inbox] = Session()
        self._recognized = self._session.recognized
        self._transport = Transport(address, codec, link, network, listener=self)
        self._admission = Admission(max_in_flight, self._occupied)
        self._packing = trio.CapacityLimiter(PACKING_THREADS)
        self._waiting = 0
        self._malformed = 0
        self._complaints = Complaints(_logger)
        self._leaving = False
        self._settled = trio.Event()
        self.on_closing: set[Callable[[], None]] = set()
        self._instruments = None
        if instruments:
            dialect = codec.dialect.name
            self._instruments = Instruments(instruments, address=address, dialect=dialect)
        self.signals: Signals = Signals(self.home, codec, self._transport, self._instruments)
        self._scopes = 0

    @property
    def dialect(self) -> Dialect:
        """What the coordinator speaks."""
        return self._codec.dialect

    # Out

    @trio.lowlevel.enable_ki_protection
    async def hand_over(self, prepared: Prepared, inbox: RequestInbox) -> int:
        """Waits for its turn and the connection, hands the request over, and returns its id.

        Cancelled, it has sent nothing: there is no checkpoint behind the sending.

        Raises:
            trio.ClosedResourceError: the client is closed.
        """
        self.home.check()
        await trio.lowlevel.checkpoint_if_cancelled()
        observation = None if self._instruments is None else self._instruments.observe(prepared)
        if observation is not None:
            observation.waiting()
        elif self._transport.is_up and not (prepared.is_heavy or self._admission.is_limited):
            try:
                return self.hand_over_nowait(prepared, inbox)  # noqa: ASYNC910 - as below
            except trio.WouldBlock:
                pass
        try:
            await self._admission.enter()
            try:
                if prepared.is_heavy:
                    request_id = await self._hand_over_heavy(prepared, inbox)
                else:
                    reserve_id = self._session.reserve_id
                    request_id = await self._hand_over(reserve_id, prepared.frames, inbox)
            finally:
                self._admission.leave()
        except BaseException:
            if observation is not None:
                observation.withdrawn()
            raise
        if observation is not None:
            inbox.observation = observation
            observation.submitted(request_id)
        return request_id

    @trio.lowlevel.enable_ki_protection
    def hand_over_nowait(self, prepared: Prepared, inbox: RequestInbox) -> int:
        """As `hand_over`, without waiting; packs here, however long that takes.

        Raises:
            trio.WouldBlock: it is not its turn, or there is no connection; nothing was sent.
            trio.ClosedResourceError: the client is closed.
        """
        if self._leaving:
            raise trio.ClosedResourceError(CLOSED)
        if prepared.is_heavy and not self._transport.is_up:  # before it is packed for nothing
            raise trio.WouldBlock
        is_limited = self._admission.is_limited
        if is_limited:
            self._admission.enter_nowait()
        observation = None if self._instruments is None else self._instruments.observe(prepared)
        try:
            request_id = self._session.reserve_id()
            self._transport.send(prepared.frames(request_id))
            self._session.submit(request_id, inbox)
        except NotConnected:
            raise trio.WouldBlock from None
        finally:
            if is_limited:
                self._admission.leave()
        if observation is not None:
            inbox.observation = observation
            observation.submitted(request_id)
        return request_id

    def _occupied(self) -> int:
        """How many requests count as running: without aborts, those that were left as well."""
        session = self._session
        if self._codec.dialect.can_abort:
            return session.in_flight
        return session.in_flight + session.aborting

    async def _hand_over_heavy(self, prepared: Prepared, inbox: Inbox) -> int:
        """As `hand_over`, but packs in another thread, under an id fixed beforehand."""
        request_id = self._session.reserve_id()
        with self._counted_as_waiting():
            frames = await trio.to_thread.run_sync(
                prepared.frames, request_id, abandon_on_cancel=True, limiter=self._packing
            )
            await trio.lowlevel.checkpoint_if_cancelled()  # it may have taken long
        return await self._hand_over(lambda: request_id, lambda _: frames, inbox)

    async def _hand_over(
        self, next_id: Callable[[], int], frames: Callable[[int], Frames], inbox: Inbox
    ) -> int:
        while True:  # noqa: ASYNC913 - what goes round waits in _wait_up
            if self._leaving or not self._transport.is_up:
                await self._wait_up()
                continue
            request_id = next_id()
            try:
                self._transport.send(frames(request_id))
            except NotConnected:
                continue
            self._session.submit(request_id, inbox)
            return request_id  # noqa: ASYNC910 - who hands over waits for the reply

    async def _wait_up(self) -> None:
        with self._counted_as_waiting():
            await self.wait_up()
            await trio.lowlevel.checkpoint_if_cancelled()

    @contextlib.contextmanager
    def _counted_as_waiting(self) -> Iterator[None]:
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    async def wait_up(self) -> None:
        """Returns when there is a connection.

        Raises:
            trio.ClosedResourceError: the client is closed.
        """
        await self._transport.wait_up()

    @trio.lowlevel.enable_ki_protection
    def abandon(self, request_id: int, heir: Inbox | None = None) -> None:
        """Nobody wants the request any more: if it runs, ABORT is sent before this returns.

        Where the dialect has none, nothing is sent; the final reply is waited for all the same.

        Args:
            request_id: the request.
            heir: who gets its final reply, if anybody.
        """
        self.home.check()
        if self._session.abandon(request_id, heir):
            self._abort(request_id)

    def check_can_abort(self) -> None:
        """Raises `UnsupportedByDialect` if a request cannot be ended before its time."""
        dialect = self._codec.dialect
        if not dialect.can_abort:
            dialect.refuse(
                "abort", "await result() for the whole, or leave the block and do without it"
            )

    @trio.lowlevel.enable_ki_protection
    def finish_early(self, request_id: int) -> None:
        """The final reply is wanted soon: if it runs, ABORT is sent before this returns."""
        self.home.check()
        if self._session.finish_early(request_id):
            self._abort(request_id)

    @trio.lowlevel.enable_ki_protection
    def fail(
        self, request_id: int, error: MalformedMessage, *, finished: bool, heir: Inbox | None
    ) -> None:
        """A body that came for the request made no sense, so it has failed.

        Args:
            request_id: whose body it was.
            error: what was wrong with it.
            finished: whether the final reply has come; if not, the request is aborted.
            heir: who gets the final reply then, if anybody.
        """
        self.note_malformed(error)
        if finished:
            self.recount_as_failed()
        elif self._session.fail(request_id, heir):
            self._abort(request_id)

    def recount_as_failed(self) -> None:
        """A final reply, taken for a completion when it came, was none."""
        self._session.recount_as_failed()

    def _abort(self, request_id: int) -> None:
        """The request runs no more: sends ABORT, and lets in who waits."""
        if self._codec.dialect.can_abort:  # else its late reply is waited for and dropped
            with contextlib.suppress(NotConnected):  # it went down with its connection
                self._transport.send(self._codec.abort(request_id))
        self._admission.admit()

    # In

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Keeps up the connection and passes on what comes, until it is cancelled."""
        self.now = trio.lowlevel.current_clock().current_time
        await self._transport.run()

    def on_frames(self, frames: Frames) -> None:
        """Passes a reply to the inbox of its request."""
        head = frames[0] if frames else b""
        if type(head) is bytes and len(frames) == _PAIR:
            inbox = self._recognized.get(head)
            if inbox is not None:  # as of a stream's tokens all but the first
                inbox.partial(frames[1])
                return
        try:
            kind, request_id, body = self._codec.decode(frames)
        except MalformedMessage as error:
            self._on_malformed(error)
            return
        if kind is _PARTIAL:
            beginning = bytes(head) if len(frames) == _PAIR else b""
            inbox = self._session.partial(request_id, beginning)
            if inbox is not None:
                inbox.partial(body)
        elif kind is _FINAL:
            inbox = self._session.final(request_id)
            if inbox is not None:
                inbox.final(body)
            self._note_end()
        else:
            self._session.discard()

    def _on_malformed(self, error: MalformedMessage) -> None:
        """Lays what makes no sense at the door of its request, if it has one."""
        self.note_malformed(error)
        if error.request_id is None:
            return
        if error.is_final:
            inbox = self._session.final(error.request_id)
            self._note_end()
        else:
            inbox = self._session.partial(error.request_id)
            if inbox is not None and self._session.fail(error.request_id, inbox.heir):
                self._abort(error.request_id)
        if inbox is not None:
            inbox.malformed(error)

    def note_malformed(self, error: MalformedMessage) -> None:
        """Counts what makes no sense, and logs it at a bounded rate."""
        self._malformed += 1
        self._complaints.warn("malformed message: %s", str(error))  # which holds no frames

    def on_up(self) -> None:
        """Sends what is owed, before any request."""
        if self._instruments is not None:
            self._instruments.connection("connection_up")
        self.signals.on_up()

    def on_lost(self, reason: str) -> None:
        """Tells all inboxes that their connection is gone."""
        if self._instruments is not None:
            self._instruments.connection("connection_lost", reason, closing=reason == CLOSED)
        self.signals.on_lost()
        running, aborting = self._session.in_flight, self._session.aborting
        if reason != CLOSED and (running or aborting):
            text = "connection lost (%s), %d requests and %d unanswered aborts with it"
            _logger.warning(text, reason, running, aborting)
        for inbox in self._session.lose():
            inbox.lost(reason)
        self._note_end()

    # Leaving

    def enter_scope(self) -> None:
        """A block has begun that has something to undo: leaving waits for its end.

        Raises:
            RuntimeError: in another thread or process than the client's own.
        """
        self.home.check()
        self._scopes += 1

    def leave_scope(self) -> None:
        """The block has ended."""
        self._scopes -= 1
        self._note_end()

    @property
    def is_leaving(self) -> bool:
        """Whether the client is closed, or about to be."""
        return self._leaving

    @property
    def cause(self) -> str:
        """Why there is no connection."""
        return self._transport.cause

    @trio.lowlevel.enable_ki_protection
    def abort_all(self) -> None:
        """Aborts what runs, and refuses what comes: the first half of leaving."""
        self.home.check()
        self._leaving = True
        self._transport.stop_waiting()
        for request_id, inbox in self._session.owners():
            self.abandon(request_id, inbox.heir)
            inbox.closed()
        for tell in self.on_closing:
            tell()
        self.signals.close()
        self._admission.close()
        self._note_end()

    @property
    def awaits_ack(self) -> bool:
        """Whether the coordinator owes the answer to a CONNECT."""
        return self._transport.awaits_ack

    async def wait_settled(self) -> None:
        """Returns when the coordinator owes this client nothing: the second half of leaving."""
        await self._transport.wait_answered()
        await self._settled.wait()

    def _note_end(self) -> None:
        """Something has ended: lets in who waits, and tells whoever leaves if it was the last."""
        if self._admission.is_limited:
            self._admission.admit()
        if self._leaving and not self._session.aborting and not self._scopes:
            self._settled.set()

    def statistics(self) -> ClientStatistics:
        """The counters as they stand."""
        session = self._session
        return ClientStatistics(
            in_flight=session.in_flight,
            waiting=self._waiting + self._admission.waiting,
            aborting=session.aborting,
            submitted=session.submitted,
            completed=session.completed,
            failed=session.failed,
            aborted=session.aborted,
            lost=session.lost,
            discarded=session.discarded,
            malformed=self._malformed,
            connections=self._transport.connections,
            undelivered=session.undelivered,
            unreleased=self.signals.unreleased,
        )
