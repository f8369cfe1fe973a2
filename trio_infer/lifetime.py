"""The life of a client: connecting, serving, and leaving so that nobody is hurt.

The coordinator crashes on a reply to a client that has gone. So leaving means aborting what runs,
waiting for each final reply, and closing only then; bounded, and even in a cancelled scope.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import trio

from .errors import ConnectTimeout
from .exchange import Exchange
from .sockets import network_of

if TYPE_CHECKING:
    from .protocol.client_codec import ClientCodec
    from .sockets import Link, ZmqContext

__all__ = ["Lifetime"]

_logger: Final = logging.getLogger(__name__)

_PATIENCE: Final = " (its dialect has no abort: a longer close_timeout lets them finish)"


class Lifetime:
    """What a client does besides its requests.

    Args:
        address: of the coordinator.
        codec: of the dialect that it speaks.
        link: how to treat connections.
        context: the ZeroMQ context to live in; None for one of its own, which ends with it.
        max_in_flight: how many requests may run at a time; None: any number.
        close_timeout: seconds that leaving may wait for the last replies.
        instruments: who is told what happens.

    Attributes:
        exchange: the requests.
        close_timeout: as given.
    """

    def __init__(
        self,
        address: str,
        *,
        codec: ClientCodec,
        link: Link,
        context: ZmqContext | None,
        max_in_flight: int | None,
        close_timeout: float,
        instruments: tuple[object, ...],
    ) -> None:
        self._address = address
        self.close_timeout = close_timeout
        self._network = network_of(address, context)
        self.exchange: Exchange = Exchange(
            address,
            codec=codec,
            link=link,
            network=self._network,
            max_in_flight=max_in_flight,
            instruments=instruments,
        )
        self._leaving = trio.Event()
        self._left = trio.Event()

    @trio.lowlevel.enable_ki_protection
    async def serve(self) -> None:
        """Keeps up the connection, and leaves once `leave` says so. Ignores cancellation.

        The waiting of leaving is done here and not in `leave`, since Ctrl-C interrupts whatever the
        main task waits for, shielded or not.
        """
        with trio.CancelScope(shield=True):
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.exchange.run)
                    await self._leaving.wait()
                    with trio.move_on_after(self.close_timeout):
                        await self.exchange.wait_settled()
                    self._tell_what_is_owed()
                    self.exchange.signals.end()
                    nursery.cancel_scope.cancel()
            finally:
                await self._network.dispose()  # noqa: ASYNC102 - within the linger
                self._left.set()

    @trio.lowlevel.enable_ki_protection
    async def serve_in(self, nursery: trio.Nursery) -> None:  # noqa: ASYNC910 - starts tasks
        """Starts `serve` in a nursery whose cancellation is a reason to leave.

        Raises:
            RuntimeError: the nursery is closed.
        """
        try:
            nursery.start_soon(self.serve)
        except RuntimeError:
            with trio.CancelScope(shield=True):  # bounded: no socket has been made yet
                await self._network.dispose()
            raise
        nursery.start_soon(self._leave_when_cancelled)

    @trio.lowlevel.enable_ki_protection
    async def _leave_when_cancelled(self) -> None:
        try:
            await self._leaving.wait()
        finally:
            self.begin_leaving()

    @trio.lowlevel.enable_ki_protection
    async def connect(self, seconds: float) -> None:
        """Waits for the first connection.

        Raises:
            ConnectTimeout: there was none within so many seconds.
        """
        with trio.move_on_after(seconds) as scope:
            await self.exchange.wait_up()
        if scope.cancelled_caught:
            cause = self.exchange.cause
            msg = (
                f"no handshake with {self._address} within {seconds:g} s: {cause} "
                f"(dialect {self.exchange.dialect.name!r})"
            )
            raise ConnectTimeout(msg)

    @trio.lowlevel.enable_ki_protection
    def begin_leaving(self) -> None:
        """Aborts what runs, at once, and lets `serve` do the rest.

        Raises:
            RuntimeError: in another thread, where nothing has changed; or in a forked process,
                where `serve` ends, since that process would otherwise wait for it for ever.
        """
        self.exchange.home.check_thread()
        if not self._leaving.is_set():
            self._leaving.set()
            self.exchange.abort_all()

    @trio.lowlevel.enable_ki_protection
    async def leave(self) -> None:
        """Aborts what runs, at once, and returns when all is closed.

        A second call waits for the first. Shielded from cancellation, since it is bounded.
        """
        self.begin_leaving()
        with trio.CancelScope(shield=True):  # bounded by close_timeout and the linger
            await self._left.wait()

    def _tell_what_is_owed(self) -> None:
        if self.exchange.awaits_ack:
            _logger.warning(
                "left %s while it still owed the answer to CONNECT; it may crash when it sends it",
                self._address,
            )
        owed = self.exchange.statistics().aborting
        if owed:
            _logger.warning(
                "left %s while it still owed the final replies to %d aborted requests; "
                "it may crash when it sends them%s",
                self._address,
                owed,
                "" if self.exchange.dialect.can_abort else _PATIENCE,
            )
