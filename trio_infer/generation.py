"""A request that is waited for as a whole: `InferenceClient.generate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from .protocol.unpacking import HEAVY_BODY
from .reply import Reply, Terms
from .wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .protocol.preparation import Prepared

__all__ = ["generate"]


class _Generation(Reply):
    """The inbox of a request that one task waits for."""

    __slots__ = ("wakeup",)

    def __init__(self, terms: Terms, asked: Mapping[str, Any]) -> None:
        super().__init__(terms, asked)
        self.wakeup = Wakeup()

    def _tell_end(self) -> None:
        self.wakeup.set()


@trio.lowlevel.enable_ki_protection
async def generate(terms: Terms, prepared: Prepared) -> Any:
    """Hands a request over, waits for its end, and returns or raises that, whatever it is.

    Left before that, ABORT is sent.
    """
    inbox = _Generation(terms, prepared.asked)
    inbox.begin(await terms.exchange.hand_over(prepared, inbox))
    del prepared  # which may be large
    try:
        await inbox.wakeup.wait()
        while inbox.size >= HEAVY_BODY and inbox.unpack_some():
            await trio.lowlevel.checkpoint()
        return inbox.result()
    finally:
        if not inbox.ended:
            terms.exchange.abandon(inbox.request_id)
        inbox.note_left()
