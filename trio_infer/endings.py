"""How requests end of which no completion comes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from .errors import ConnectionLost
from .transport import CLOSED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .errors import RequestFailed
    from .exchange import Exchange
    from .observation import Observation

__all__ = ["client_closed", "connection_lost", "note_failed"]


def connection_lost(reason: str, tokens: Sequence[int] = ()) -> ConnectionLost:
    """What a request ends with whose connection is gone."""
    message = f"the connection was lost with the request in flight: {reason}"
    return ConnectionLost(message, tokens=tokens)


def client_closed() -> trio.ClosedResourceError:
    """What a request ends with whose client was closed."""
    return trio.ClosedResourceError(CLOSED)


def note_failed(
    exchange: Exchange, error: RequestFailed, observation: Observation | None, *, aborted: bool
) -> None:
    """The engine gave up on a request, as its final reply says: counts and tells it.

    Args:
        exchange: where it ran.
        error: what it ends in.
        observation: what instruments are told of it, if there are any.
        aborted: whether it was aborted before that reply came.
    """
    if not aborted:
        exchange.recount_as_failed()
    if observation is not None:
        observation.failed(
            error,
            error.completion.generated_length,
            aborted=aborted,
            prompt_length=error.completion.prompt_length,
            finish_reason="error",
        )
