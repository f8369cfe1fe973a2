"""Finished requests, as they come off the wire, to what the caller gets.

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

__all__ = [
    "FinishedRequest",
    "Generated",
    "Known",
    "generated_of",
    "request_failed",
    "to_completion",
]

_FAILED: Final = "FAILED"

_ARRAY_FIELDS: Final = (
    "prompt_tokens",
    "generated_tokens",
    "prompt_log_probs",
    "generated_log_probs",
    "routing_indices",
)


@attrs.frozen(kw_only=True)
class Known:
    """What a client knows by itself of a request that has finished.

    Attributes:
        request_id: the client's number of the request.
        latency: seconds from handing over to the final reply.
        time_to_first_token: seconds from handing over to the first partial result, if any.
        asked: the sampling parameters that were sent.
        aborted: whether this client aborted it before the final reply came.
    """

    request_id: int
    latency: float
    time_to_first_token: float | None
    asked: Mapping[str, Any]
    aborted: bool


@attrs.frozen(kw_only=True)
class Generated:
    """The fields of a finished request that deltas are made of, checked."""

    status: str
    generated_tokens: list[int] | None = None
    generated_log_probs: list[float] | None = None
    generated_top_n_logprobs: list[dict[str, float]] | None = None

    @property
    def failed(self) -> bool:
        """Whether the engine gave up on the request."""
        return self.status == _FAILED


@attrs.frozen(kw_only=True)
class FinishedRequest(Generated):
    """The fields of a finished request that `Completion` knows, checked; the rest is ``extra``."""

    request_id: int | None = None
    uid: str | None = None
    prompt: str | None = None
    prompt_tokens: list[int] | None = None
    prompt_length: int | None = None
    generated_text: str | None = None
    generated_length: int | None = None
    prompt_log_probs: list[float] | None = None
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


_DTYPES: Final = frozenset(
    {"bool", "float16", "float32", "float64"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)


def _unwrapped(value: Any) -> tuple[Any, str | None]:
    """An array as nested lists, whichever way it was wrapped, and its dtype if that is told."""
    if type(value) is list and len(value) == 2:  # noqa: PLR2004 - [tag, array]
        tag, content = value
        if tag == "tensor":
            return content, None
        if tag == "ndarray":
            if type(content) is not dict or "data" not in content:
                raise wrong_type(content, "a map with an ndarray's data")
            dtype = content.get("dtype")
            # A name of a number, and not what would have NumPy make records, or giants.
            return content["data"], dtype if type(dtype) is str and dtype in _DTYPES else None
    return value, None


def _unwrap_all(fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields with their arrays unwrapped, and the dtypes of those that tell it."""
    plain = dict(fields)
    dtypes: dict[str, str] = {}
    for name in _ARRAY_FIELDS:
        if name in plain:
            plain[name], dtype = _unwrapped(plain[name])
            if dtype is not None:
                dtypes[name] = dtype
    return plain, dtypes


def generated_of(fields: Mapping[str, Any]) -> Generated:
    """What was generated, as far as deltas need it.

    Args:
        fields: the body of the final reply.

    Raises:
        MalformedMessage: if it makes no sense.
    """
    plain, _ = _unwrap_all(fields)
    generated: Generated = structure(plain, Generated)
    return generated


def to_completion(fields: Mapping[str, Any], known: Known) -> Completion:
    """A finished request as the caller sees it.

    Args:
        fields: the body of the final reply.
        known: what the client knows besides.

    Raises:
        MalformedMessage: if the body makes no sense.
    """
    plain, dtypes = _unwrap_all(fields)
    finished: FinishedRequest = structure(plain, FinishedRequest)
    tokens = finished.generated_tokens or []
    length = len(tokens) if finished.generated_length is None else finished.generated_length
    passed_on: dict[str, Any] = {name: getattr(finished, name) for name in _PASSED_ON}
    for name in _PER_TOKEN:
        if passed_on[name] is not None:
            passed_on[name] = passed_on[name][: len(tokens)]
    return Completion(
        request_id=known.request_id,
        engine_request_id=finished.request_id,
        generated_tokens=tokens,
        generated_length=length,
        events=finished.events or (),
        latency=known.latency,
        time_to_first_token=known.time_to_first_token,
        finish_reason=_finish_reason(finished, length, known),
        dtypes=dtypes,
        extra={name: value for name, value in fields.items() if name not in _NOT_EXTRA},
        **passed_on,
    )


def _finish_reason(
    finished: FinishedRequest, length: int, known: Known
) -> Literal["stop", "length", "abort", "error"]:
    if finished.failed:
        return "error"
    if known.aborted:
        return "abort"
    budget = _budget(known.asked, finished.prompt_length)
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
