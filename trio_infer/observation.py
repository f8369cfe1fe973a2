"""What instruments have been told of one request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import trio

from .models import Completion, RequestEnding, RequestMoment
from .protocol.conversion import generated_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .models import ObservedRequest

__all__ = ["Observation"]


class Audience(Protocol):
    """Who is told."""

    def wants(self, hook: str) -> bool:
        """Whether any of them listens to that."""

    def tell(self, hook: str, event: object) -> None:
        """Tells all that listen to it. Does not raise."""


class Observation:
    """One request, as its instruments see it.

    Whoever knows of an end tells it: the first one is its end, and no other is told.

    Args:
        audience: who is told.
        request: what they are told of.
    """

    __slots__ = (
        *("_ended", "_final_at", "_first_token_at", "_audience", "_request"),
        *("_request_id", "_submitted_at"),
    )

    def __init__(self, audience: Audience, request: ObservedRequest) -> None:
        self._audience = audience
        self._request = request
        self._request_id: int | None = None
        self._submitted_at = 0.0
        self._first_token_at: float | None = None
        self._final_at: float | None = None
        self._ended = False

    def waiting(self) -> None:
        """It waits for its turn and a connection."""
        self._tell("request_waiting", trio.current_time())

    def withdrawn(self) -> None:
        """It waits no more, and was not handed over."""
        self._tell("request_withdrawn", trio.current_time())

    def submitted(self, request_id: int) -> None:
        """It was handed over."""
        self._request_id = request_id
        self._submitted_at = trio.current_time()
        self._tell("request_submitted", self._submitted_at)

    def partial(self, size: int) -> None:
        """A partial result came."""
        now = trio.current_time()
        if self._first_token_at is None:
            self._first_token_at = now
            self._tell("request_first_token", now, size)
        self._tell("request_delta", now, size)

    def final(self) -> None:
        """The final reply came: nobody knows yet what it says."""
        self._final_at = trio.current_time()

    def _tell(self, hook: str, at: float, size: int = 0) -> None:
        if self._audience.wants(hook):
            self._audience.tell(
                hook,
                RequestMoment(request=self._request, request_id=self._request_id, at=at, size=size),
            )

    def decoded(self, result: Completion | Mapping[str, Any], *, aborted: bool) -> None:
        """It ended in a completion, or in the fields of a reply."""
        if isinstance(result, Completion):
            tokens = result.generated_tokens
            facts: dict[str, Any] = {
                "prompt_length": result.prompt_length,
                "cached_tokens": result.num_cached_tokens,
                "finish_reason": result.finish_reason,
            }
        else:
            tokens = generated_of(result).generated_tokens
            facts = {
                "prompt_length": _int(result.get("prompt_length")),
                "cached_tokens": _int(result.get("num_cached_tokens")),
            }
        self._end("request_aborted" if aborted else "request_finished", len(tokens), **facts)

    def failed(self, error: Exception, tokens: int, *, aborted: bool, **facts: Any) -> None:
        """It ended in an error of the engine, or in a reply that made no sense."""
        hook = "request_aborted" if aborted else "request_failed"
        self._end(hook, tokens, error=type(error).__name__, reason=str(error), **facts)

    def lost(self, error: Exception, tokens: int, *, aborted: bool) -> None:
        """Its connection is gone."""
        hook = "request_aborted" if aborted else "request_lost"
        self._end(hook, tokens, error=type(error).__name__, reason=str(error))

    def left(self, tokens: int, *, aborted: bool) -> None:
        """Its caller has left it, or the client was closed."""
        if self._final_at is not None and not aborted:
            self._end("request_finished", None)
        else:
            self._end("request_aborted", tokens if self._final_at is None else None)

    def _end(
        self, hook: str, tokens: int | None, *, prompt_length: int | None = None, **facts: Any
    ) -> None:
        if self._ended or self._request_id is None:
            return
        self._ended = True
        if self._audience.wants(hook):
            self._audience.tell(
                hook,
                RequestEnding(
                    request=self._request,
                    request_id=self._request_id,
                    at=trio.current_time() if self._final_at is None else self._final_at,
                    submitted_at=self._submitted_at,
                    first_token_at=self._first_token_at,
                    tokens=tokens,
                    prompt_length=(
                        self._request.prompt_length if prompt_length is None else prompt_length
                    ),
                    **facts,
                ),
            )


def _int(value: object) -> int | None:
    return value if type(value) is int else None
