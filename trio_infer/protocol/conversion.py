"""Finished requests, as they come off the wire, to what the caller gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol

import attrs

from ..errors import RequestFailed
from ..models import Completion, EpochSpan, KVHandoff, RequestEvent
from ..models.completion import DEFAULTS, completion_of
from .packing import Frame, MalformedMessage
from .structuring import (
    Wanted,
    array,
    array_of,
    epoch_spans,
    events,
    floats,
    ints,
    kv_handoff,
    named_map,
    structure,
    top_n,
    unwrapped,
)
from .typed import FIELDS, finished_request

__all__ = [
    "FINISHED_REQUEST",
    "Generated",
    "Known",
    "generated_of",
    "handoff_of",
    "request_failed",
    "to_completion",
    "to_failed_completion",
    "usual_completion",
]

_FAILED: Final = "FAILED"

GENERATED: Final[Mapping[str, Wanted]] = {
    "status": str,
    "generated_tokens": array_of(ints),
    "generated_log_probs": array_of(floats),
    "generated_top_n_logprobs": top_n,
}
"""The fields of a finished request that deltas are made of."""

_LOG_PROBS: Final = "generated_log_probs"
_TOP_N: Final = "generated_top_n_logprobs"
_HANDOFF: Final = "disaggregated_params"

FINISHED_REQUEST: Final[Mapping[str, Wanted]] = {
    **GENERATED,
    "request_id": int,
    "uid": str,
    "prompt": str,
    "prompt_tokens": array_of(ints),
    "prompt_length": int,
    "generated_text": str,
    "generated_length": int,
    "prompt_log_probs": array_of(floats),
    "prompt_top_n_logprobs": top_n,
    "ttft": float,
    "tpot": array_of(floats),
    "events": events,
    "sampling_params": named_map,
    "policy_epoch": epoch_spans,
    "kv_cache_epoch": epoch_spans,
    "num_cached_tokens": int,
    "routing_indices": array_of(array),
    _HANDOFF: kv_handoff,
    "payload_offloaded": bool,
}
"""Those that `Completion` knows; the rest is its ``extra``."""

_FAILURE: Final = {"events": events, **GENERATED}
"""What a failure has to say, whatever else a newer release may have changed."""


class Known(Protocol):
    """What a client knows by itself of a request that has finished, such as its inbox."""

    @property
    def request_id(self) -> int:
        """The client's number of the request."""

    @property
    def latency(self) -> float:
        """Seconds from handing over to the final reply."""

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from handing over to the first partial result, if any."""

    @property
    def asked(self) -> Mapping[str, Any]:
        """The sampling parameters that were sent."""

    @property
    def aborted(self) -> bool:
        """Whether this client aborted it before the final reply came."""


@attrs.frozen
class Generated:
    """What a finished request has generated, as far as deltas need it, and how it ended."""

    status: str
    generated_tokens: list[int] = attrs.field(factory=list)
    generated_log_probs: list[float] | None = None
    generated_top_n_logprobs: list[dict[str, float]] | None = None

    @property
    def failed(self) -> bool:
        """Whether the engine gave up on the request."""
        return self.status == _FAILED


def _checked(told: dict[str, Any]) -> dict[str, Any]:
    """The fields of a finished request: it has a status, and log probs for its tokens alone."""
    if told.get("status") is None:
        msg = "a finished request without a status"
        raise MalformedMessage(msg)
    if told.get(_LOG_PROBS) or told.get(_TOP_N):
        count = len(told.get("generated_tokens") or ())
        for name in (_LOG_PROBS, _TOP_N):
            values = told.get(name)
            if values:  # of a stop word that it took off again, the engine leaves some behind
                told[name] = values[:count]
    return told


def generated_of(fields: Mapping[str, Any]) -> Generated:
    """What was generated, as far as deltas need it.

    Args:
        fields: the body of the final reply.

    Raises:
        MalformedMessage: if it makes no sense.
    """
    return Generated(**_checked(structure(fields, GENERATED)[0]))


def handoff_of(fields: Mapping[str, Any]) -> KVHandoff | None:
    """The handoff that a finished request brings, if any.

    Raises:
        MalformedMessage: if it makes no sense.
    """
    handoff: KVHandoff | None = structure(fields, {_HANDOFF: kv_handoff})[0].get(_HANDOFF)
    return handoff


def usual_completion(body: Frame, known: Known) -> Completion | None:
    """As `to_completion`, of a body that is still packed, in less than half of the time.

    None if the body is not as by far the most are, in whatever way, or makes no sense.
    """
    told = finished_request(body)
    if told is None:
        return None
    others = {name: value for name in _OTHERS if (value := told.pop(name)) is not None}
    try:
        if told["prompt_tokens"] is not None:
            told["prompt_tokens"] = _tokens(told["prompt_tokens"])
    except MalformedMessage:
        return None
    for name in ("policy_epoch", "kv_cache_epoch"):
        if told[name] is not None:
            told[name] = tuple([EpochSpan(*span) for span in told[name]])
    told |= _UNTOLD
    told["events"] = tuple([RequestEvent(it.timestamp, it.type) for it in told["events"] or ()])
    return _completed(told, others, known)


_OTHERS: Final = [name for name in FIELDS if name not in FINISHED_REQUEST]
"""The fields of a reply that `Completion` does not know."""

_UNTOLD: Final = {name: value for name, value in DEFAULTS.items() if name not in FIELDS}
"""The fields of a completion that no reply tells."""

_tokens: Final = array_of(ints)


def to_completion(fields: Mapping[str, Any], known: Known) -> Completion:
    """A finished request as the caller sees it.

    Args:
        fields: the body of the final reply.
        known: what the client knows besides.

    Raises:
        MalformedMessage: if the body makes no sense.
    """
    told, others = structure(fields, FINISHED_REQUEST, DEFAULTS)
    if told["routing_indices"] is not None:
        told["_routing_dtype"] = unwrapped(fields["routing_indices"])[1]
    return _completed(told, others, known)


def _completed(told: dict[str, Any], others: dict[str, Any], known: Known) -> Completion:
    """The completion that the fields make."""
    _checked(told)
    others.pop("remaining_prompt_tokens", None)  # repeats the whole prompt
    if told["prompt_length"] is None and told["prompt_tokens"] is not None:  # before 0.19
        told["prompt_length"] = len(told["prompt_tokens"])
    if told["generated_tokens"] is None:
        told["generated_tokens"] = []
    if told["generated_length"] is None:
        told["generated_length"] = len(told["generated_tokens"])
    told["engine_request_id"], told["request_id"] = told["request_id"], known.request_id
    told["kv_handoff"] = told.pop(_HANDOFF, None)
    told["latency"] = known.latency
    told["time_to_first_token"] = known.time_to_first_token
    told["finish_reason"] = _finish_reason(told, known)
    told["extra"] = others
    return completion_of(told)


def to_failed_completion(fields: Mapping[str, Any], known: Known) -> Completion:
    """A failed request, of which nothing is understood but why it failed.

    For callers who take replies as they are, in whatever release. Arguments and errors are those of
    `to_completion`.
    """
    try:
        return to_completion(fields, known)
    except MalformedMessage:
        told = _checked(structure(fields, _FAILURE)[0])
    tokens = told.get("generated_tokens", [])
    return Completion(
        request_id=known.request_id,
        status=told["status"],
        generated_tokens=tokens,
        generated_length=len(tokens),
        finish_reason="error",
        latency=known.latency,
        time_to_first_token=known.time_to_first_token,
        events=told.get("events", ()),
        extra=dict(fields),
    )


def _finish_reason(
    told: Mapping[str, Any], known: Known
) -> Literal["stop", "length", "abort", "error"]:
    if told["status"] == _FAILED:
        return "error"
    if known.aborted:
        return "abort"
    # The engine cuts a budget that is too large for it, and echoes what it made of it.
    for params in (known.asked, told["sampling_params"]):
        if params is None:
            continue
        budget = params.get("num_tokens_to_generate")
        if type(budget) is not int:
            budget = _rest(params.get("num_tokens_total"), told["prompt_length"])
        if budget is not None and told["generated_length"] >= budget:
            return "length"
    return "stop"


def _rest(total: object, prompt_length: int | None) -> int | None:
    """How many tokens a budget for all leaves to be generated, as far as it tells."""
    if type(total) is int and prompt_length is not None:
        return total - prompt_length
    return None


_ERROR_TRANSIENT: Final = "ERROR_TRANSIENT"
_ERROR_NONTRANSIENT: Final = "ERROR_NONTRANSIENT"


def request_failed(completion: Completion) -> RequestFailed:
    """The error that a failed request raises, with the engine's reasons in its message."""
    errors = [
        event
        for event in completion.events
        if event.type in (_ERROR_TRANSIENT, _ERROR_NONTRANSIENT)
    ]
    reasons = "; ".join(_reason(event) for event in errors) or "the engine gave no reason"
    retryable = all(event.type == _ERROR_TRANSIENT for event in errors) if errors else None
    return RequestFailed(
        f"request {completion.request_id} failed: {reasons}",
        completion=completion,
        retryable=retryable,
    )


def _reason(event: RequestEvent) -> str:
    if not isinstance(event.payload, Mapping):
        return event.type if event.payload is None else f"{event.payload!s:.500}"
    name, message = event.payload.get("type"), event.payload.get("message")
    return ": ".join(f"{part!s:.500}" for part in (name, message) if part) or event.type
