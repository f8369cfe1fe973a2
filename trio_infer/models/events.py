"""What instruments are told: small, frozen, and made only if one of them wants it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs

__all__ = ["ConnectionChange", "ObservedRequest", "RequestEnding", "RequestMoment", "SignalSent"]


@attrs.frozen(kw_only=True, eq=False)
class ObservedRequest:
    """A request, as far as it is known when it is made.

    All that is told of one request holds the same object, so that it can be a key in a dict.

    Attributes:
        address: of the coordinator.
        dialect: the name of what it speaks.
        prompt_length: in tokens; None for text.
        sampling_params: those that are sent. Must not be changed.
        streaming: whether partial results were asked for.
        made_at: when it was made, by trio's clock, in seconds.
    """

    address: str
    dialect: str
    prompt_length: int | None
    sampling_params: Mapping[str, Any]
    streaming: bool
    made_at: float


@attrs.frozen(kw_only=True, eq=False)
class RequestMoment:
    """Something that happened to a request, and was not its end.

    Attributes:
        request: which request.
        request_id: the client's number of it; None before it is handed over.
        at: when, by trio's clock, in seconds.
        size: of a partial result, in bytes: it is still packed when it is told of.
    """

    request: ObservedRequest
    request_id: int | None
    at: float
    size: int = 0


@attrs.frozen(kw_only=True, eq=False)
class RequestEnding:
    """The end of a request that was handed over.

    Attributes:
        request: which request.
        request_id: the client's number of it.
        at: when it ended: when the final reply came, the connection broke, or its caller left it;
            by trio's clock, in seconds, as the other times.
        submitted_at: when it was handed over.
        first_token_at: when its first partial result came; None if none did.
        tokens: how many tokens were generated. Without a final reply, how many had arrived and
            been decoded. None if a final reply came that nobody read.
        prompt_length: in tokens, if the client or the engine told.
        cached_tokens: how many of them were found in the prefix cache, if the engine told.
        finish_reason: that of the completion; None without one, or if nobody read it.
        error: the name of the exception that it ended in, such as ``"ConnectionLost"``, if any.
        reason: what the exception says.
    """

    request: ObservedRequest
    request_id: int
    at: float
    submitted_at: float
    first_token_at: float | None
    tokens: int | None
    prompt_length: int | None
    cached_tokens: int | None = None
    finish_reason: Literal["stop", "length", "abort", "error"] | None = None
    error: str | None = None
    reason: str | None = None


@attrs.frozen(kw_only=True, eq=False)
class ConnectionChange:
    """A connection came up, or is gone.

    Attributes:
        address: of the coordinator.
        dialect: the name of what it speaks.
        at: when, by trio's clock, in seconds.
        reason: why it is gone.
        closing: whether that is because the client was closed.
    """

    address: str
    dialect: str
    at: float
    reason: str | None = None
    closing: bool = False


@attrs.frozen(kw_only=True, eq=False)
class SignalSent:
    """A signal went out to the engines or the coordinator, or the release of a KV handoff.

    Attributes:
        address: of the coordinator.
        dialect: the name of what it speaks.
        at: when, by trio's clock, in seconds.
        name: such as ``"PAUSE"`` or ``"RELEASE_KV"``.
        values: what went with it, such as ``{"epoch": 7}``.
    """

    address: str
    dialect: str
    at: float
    name: str
    values: Mapping[str, int]
