"""Finished requests, as they come off the wire, to `Completion`.

Arrays travel as ``["tensor", nested list]`` or ``["ndarray", {"data", "dtype"}]``, in the fields
that hold arrays and in no other: a list of two strings elsewhere is just that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import attrs

from ..errors import RequestFailed
from ..models import Completion, EpochSpan, RequestEvent
from .structuring import structure, wrong_type

__all__ = ["FinishedRequest", "request_failed", "to_completion"]

_FAILED: Final = "FAILED"

_ARRAY_FIELDS: Final = (
    "prompt_tokens",
    "generated_tokens",
    "prompt_log_probs",
    "generated_log_probs",
    "routing_indices",
)


@attrs.frozen(kw_only=True)
class FinishedRequest:
    """The fields of a finished request that `Completion` knows, checked; the rest is ``extra``."""

    request_id: int | None = None
    uid: str | None = None
    status: str
    prompt: str | None = None
    prompt_tokens: list[int] | None = None
    prompt_length: int | None = None
    generated_text: str | None = None
    generated_tokens: list[int] | None = None
    generated_length: int | None = None
    generated_log_probs: list[float] | None = None
    prompt_log_probs: list[float] | None = None
    generated_top_n_logprobs: list[dict[str, float]] | None = None
    prompt_top_n_logprobs: list[dict[str, float]] | None = None
    ttft: float | None = None
    tpot: list[float] | None = None
    events: tuple[RequestEvent, ...] | None = None
    sampling_params: dict[str, Any] | None = None
    policy_epoch: tuple[EpochSpan, ...] | None = None
    kv_cache_epoch: tuple[EpochSpan, ...] | None = None
    num_cached_tokens: int | None = None
    routing_indices: list[Any] | None = None
    payload_offloaded: bool | None = None


_KNOWN: Final = frozenset(field.name for field in attrs.fields(FinishedRequest))
_NOT_EXTRA: Final = _KNOWN | {"remaining_prompt_tokens"}  # which repeats the whole prompt
# Cut to the tokens: of a stop word taken off again the engine leaves some of these behind.
_PER_TOKEN: Final = ("generated_log_probs", "generated_top_n_logprobs")
_PASSED_ON: Final = _KNOWN - {"request_id", "generated_tokens", "generated_length", "events"}


def _unwrapped(value: Any) -> Any:
    """An array as nested lists, whichever way it was wrapped."""
    if type(value) is list and len(value) == 2:  # noqa: PLR2004 - [tag, array]
        tag, content = value
        if tag == "tensor":
            return content
        if tag == "ndarray":
            if type(content) is not dict or "data" not in content:
                raise wrong_type(content, "a map with an ndarray's data")
            return content["data"]
    return value


def _structure_finished(fields: Mapping[str, Any]) -> FinishedRequest:
    unwrapped = {
        name: _unwrapped(value) if name in _ARRAY_FIELDS else value
        for name, value in fields.items()
    }
    finished: FinishedRequest = structure(unwrapped, FinishedRequest)
    return finished


def to_completion(
    fields: Mapping[str, Any],
    *,
    request_id: int,
    latency: float,
    time_to_first_token: float | None,
    asked: Mapping[str, Any],
    aborted: bool,
) -> Completion:
    """A finished request as the caller sees it.

    Args:
        fields: the body of the final reply.
        request_id: the client's number of the request.
        latency: seconds from handing over to the final reply.
        time_to_first_token: seconds from handing over to the first partial result, if any.
        asked: the sampling parameters that were sent.
        aborted: whether this client aborted it before the final reply came.

    Raises:
        MalformedMessage: if the body makes no sense.
    """
    finished = _structure_finished(fields)
    tokens = finished.generated_tokens or []
    length = len(tokens) if finished.generated_length is None else finished.generated_length
    passed_on: dict[str, Any] = {name: getattr(finished, name) for name in _PASSED_ON}
    for name in _PER_TOKEN:
        if passed_on[name] is not None:
            passed_on[name] = passed_on[name][: len(tokens)]
    return Completion(
        request_id=request_id,
        engine_request_id=finished.request_id,
        generated_tokens=tokens,
        generated_length=length,
        events=finished.events or (),
        latency=latency,
        time_to_first_token=time_to_first_token,
        finish_reason=_finish_reason(finished, length, asked, aborted=aborted),
        extra={name: value for name, value in fields.items() if name not in _NOT_EXTRA},
        **passed_on,
    )


def _finish_reason(
    finished: FinishedRequest, length: int, asked: Mapping[str, Any], *, aborted: bool
) -> Literal["stop", "length", "abort", "error"]:
    if finished.status == _FAILED:
        return "error"
    if aborted:
        return "abort"
    budget = _budget(asked, finished.prompt_length)
    if budget is None:
        budget = _budget(finished.sampling_params or {}, finished.prompt_length)
    return "length" if budget is not None and length >= budget else "stop"


def _budget(sampling_params: Mapping[str, Any], prompt_length: int | None) -> int | None:
    """How many tokens may be generated, as far as the parameters tell."""
    generated = sampling_params.get("num_tokens_to_generate")
    if type(generated) is int:
        return generated
    total = sampling_params.get("num_tokens_total")
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
