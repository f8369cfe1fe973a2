"""Prefill for another deployment: a block for whose length an engine keeps KV cache blocks.

===================== ============================================================================
the block             the handoff
===================== ============================================================================
is cancelled early    ABORT is sent; the final reply has an heir, who releases what comes with it
is cancelled as the   what has come is decoded, and released
reply comes
has begun             is held by its connection
ends                  is released, unless that happened, or its connection is gone
===================== ============================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from .endings import client_closed
from .errors import RemoteProtocolError
from .protocol.conversion import handoff_of
from .protocol.packing import MalformedMessage
from .protocol.unpacking import unpack_field

if TYPE_CHECKING:
    from .exchange import Exchange
    from .models import Completion, KVHandoff
    from .protocol.packing import Frame
    from .request import Request
    from .signals import Held

__all__ = ["Heir", "Prefill"]


class Heir:
    """The inbox of a prefill that nobody waits for any more: it releases what comes with the reply.

    Args:
        exchange: where the request went.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def partial(self, body: Frame) -> None:
        """A partial result came; a prefill has none."""

    def final(self, body: Frame) -> None:
        """The final reply came."""
        self.take(body, self._exchange.signals.epoch)

    def take(self, body: Frame, epoch: int) -> None:
        """Releases what came with a reply.

        Args:
            body: of the final reply.
            epoch: as it was when it came.
        """
        try:
            handoff = handoff_of(unpack_field(body, "disaggregated_params"))
        except MalformedMessage as error:
            self._exchange.note_malformed(error)
            return
        if handoff is not None:
            signals = self._exchange.signals
            signals.release(signals.hold(handoff.request_id, epoch))

    def malformed(self, error: MalformedMessage) -> None:
        """A reply came that makes no sense, so that nothing can be released."""

    def lost(self, reason: str) -> None:
        """The connection is gone, and the handoff with it."""

    def closed(self) -> None:
        """The client was closed; the reply is still waited for."""

    @property
    def heir(self) -> None:
        """Nobody follows."""


class Prefill:
    """The block of `InferenceClient.prefill`.

    Args:
        exchange: where the request goes.
        request: of a prefill.
        heir: what releases the handoff where nobody else does.
    """

    def __init__(self, exchange: Exchange, request: Request[Completion], heir: Heir) -> None:
        self._exchange = exchange
        self._request = request
        self._heir = heir
        self._held: Held | None = None

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> KVHandoff:
        """Waits for the connection, and for the engine to have computed the prompt.

        Cancelled, it leaves nothing behind.
        """
        self._exchange.enter_scope()  # so that leaving waits for whatever the reply brings
        try:
            await self._request.hand_over(self._request.claim())
            try:
                completion = await self._request.result()
            except BaseException:
                self._request.close()
                self._release_unclaimed()
                raise
            return self._claim(completion.kv_handoff)
        finally:
            self._exchange.leave_scope()

    def _claim(self, handoff: KVHandoff | None) -> KVHandoff:
        if handoff is None:
            msg = "the engine kept no KV cache blocks: it is not set up for handoff"
            raise RemoteProtocolError(msg)
        epoch = self._request.reception.epoch
        self._held = self._exchange.signals.hold(handoff.request_id, epoch)
        if self._exchange.is_leaving:
            raise client_closed()
        return handoff

    def _release_unclaimed(self) -> None:
        """The reply may have come in the tick in which nobody wanted it any more, or be no good."""
        reception = self._request.reception
        if reception.final_body is not None:
            self._heir.take(reception.final_body, reception.epoch)

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(self, *_: object) -> None:
        """Releases the blocks. Never waits."""
        if self._held is not None:
            self._exchange.signals.release(self._held)
