"""What comes back: deltas while a request runs, a completion at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs

__all__ = ["Completion", "EpochSpan", "RequestEvent", "TokenDelta"]


@attrs.frozen
class TokenDelta:
    """The tokens that arrived since the last delta. All deltas together make the completion.

    Attributes:
        tokens: token ids, one or more.
        log_probs: the natural log probability of each of them, where asked for.
        top_n_logprobs: for each of them the likeliest tokens' text and log probability, where
            asked for.
    """

    tokens: list[int]
    log_probs: list[float] | None = None
    top_n_logprobs: list[dict[str, float]] | None = None


@attrs.frozen
class RequestEvent:
    """A thing that the engine noted about a request, in its own words.

    Attributes:
        timestamp: seconds since the epoch, by the engine's clock.
        type: such as ``ADD_ENGINE``, ``FINISH``, ``ERROR_TRANSIENT``.
        payload: what belongs to it, if anything.
    """

    timestamp: float
    type: str
    payload: Any = None


@attrs.frozen
class EpochSpan:
    """From which token on which generation epoch holds.

    Attributes:
        start: an index over prompt plus generated tokens.
        epoch: the epoch, as set by ``SET_GENERATION_EPOCH``.
    """

    start: int
    epoch: int


@attrs.frozen(kw_only=True)
class Completion:
    """A finished request. Optional fields are None where not asked for, or not known to the engine.

    Attributes:
        request_id: this client's number of the request.
        engine_request_id: the coordinator's number of it.
        generated_tokens: the generated token ids.
        generated_text: their text, as the coordinator's tokenizer says it.
        generated_length: how many they are.
        generated_log_probs: the natural log probability of each.
        generated_top_n_logprobs: for each the likeliest tokens' text and log probability.
        finish_reason: ``"error"`` if it failed, ``"abort"`` if this client ended it before its
            final reply came, ``"length"`` if it used up its budget, otherwise ``"stop"``.
        latency: seconds from handing over the request to the arrival of its final reply, measured
            here.
        time_to_first_token: seconds from handing over the request to the arrival of its first
            tokens, measured here; None if none came before the final reply.
        status: the engine's: ``"COMPLETED"`` or ``"FAILED"``.
        uid: the engine's name of the request, unique over its restarts.
        prompt: the prompt as the engine saw it, if it was text.
        prompt_length: in tokens.
        prompt_tokens: its token ids; only with ``return_prompt_tokens``.
        prompt_log_probs: of each prompt token but the first.
        prompt_top_n_logprobs: for each of them the likeliest tokens' text and log probability.
        ttft: the time to the first token in seconds, measured by the engine.
        tpot: the time of each further token in seconds, measured by the engine.
        events: what the engine noted.
        sampling_params: the parameters as the engine echoes them.
        policy_epoch: under which generation epochs the tokens were sampled.
        kv_cache_epoch: under which generation epochs their KV cache was computed.
        num_cached_tokens: how many prompt tokens were found in the prefix cache.
        routing_indices: of a mixture-of-experts model, as nested lists.
        payload_offloaded: whether the engine put the payload elsewhere.
        extra: fields that this class does not know. (``remaining_prompt_tokens`` is dropped: it
            repeats the whole prompt.)
    """

    request_id: int
    engine_request_id: int | None = None
    generated_tokens: list[int]
    generated_text: str | None = None
    generated_length: int
    generated_log_probs: list[float] | None = None
    generated_top_n_logprobs: list[dict[str, float]] | None = None
    finish_reason: Literal["stop", "length", "abort", "error"]
    latency: float
    time_to_first_token: float | None = None
    status: str
    uid: str | None = None
    prompt: str | None = None
    prompt_length: int | None = None
    prompt_tokens: list[int] | None = None
    prompt_log_probs: list[float] | None = None
    prompt_top_n_logprobs: list[dict[str, float]] | None = None
    ttft: float | None = None
    tpot: list[float] | None = None
    events: tuple[RequestEvent, ...] = ()
    sampling_params: Mapping[str, Any] | None = None
    policy_epoch: tuple[EpochSpan, ...] | None = None
    kv_cache_epoch: tuple[EpochSpan, ...] | None = None
    num_cached_tokens: int | None = None
    routing_indices: list[Any] | None = None
    payload_offloaded: bool | None = None
    extra: Mapping[str, Any] = attrs.field(factory=dict)
