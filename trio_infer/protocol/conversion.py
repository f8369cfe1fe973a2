"""Finished requests, as they come off the wire, to what the caller gets.

Arrays travel as ``["tensor", nested list]`` or ``["ndarray", {"data", "dtype"}]``, in the fields
that hold arrays and in no other: a list of two strings elsewhere is just that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import attrs

from ..errors import RequestFailed
from ..models import Completion, EpochSpan, KVHandoff, RequestEvent
from ..models.completion import ARRAYS
from .packing import MalformedMessage
from .structuring import structure, wrong_type

__all__ = [
    "FinishedRequest",
    "Generated",
    "Known",
    "generated_of",
    "handoff_of",
    "request_failed",
    "to_completion",
    "to_failed_completion",
]

_FAILED: Final = "FAILED"


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
    disaggregated_params: KVHandoff | None = None
    payload_offloaded: bool | None = None


_KNOWN: Final = frozenset(field.name for field in attrs.fields(FinishedRequest))
_NOT_EXTRA: Final = _KNOWN | {"remaining_prompt_tokens"}  # which repeats the whole prompt
_PER_TOKEN: Final = ("generated_log_probs", "generated_top_n_logprobs")
_PASSED_ON: Final = _KNOWN - {
    *("request_id", "generated_tokens", "generated_length", "events", "disaggregated_params"),
}


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


def _plain(fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields with their arrays unwrapped and cut to length, and the dtypes that were told."""
    plain = dict(fields)
    dtypes: dict[str, str] = {}
    for name in ARRAYS:
        if name in plain:
            plain[name], dtype = _unwrapped(plain[name])
            if dtype is not None:
                dtypes[name] = dtype
    tokens = plain.get("generated_tokens") or []
    for name in _PER_TOKEN:
        values = plain.get(name)
        if type(values) is list and type(tokens) is list:
            # Of a stop word that it took off again, the engine leaves some behind.
            plain[name] = values[: len(tokens)]
    return plain, dtypes


def generated_of(fields: Mapping[str, Any]) -> Generated:
    """What was generated, as far as deltas need it.

    Args:
        fields: the body of the final reply.

    Raises:
        MalformedMessage: if it makes no sense.
    """
    plain, _ = _plain(fields)
    generated: Generated = structure(plain, Generated)
    return generated


@attrs.frozen
class _HandedOff:
    disaggregated_params: KVHandoff | None = None


def handoff_of(fields: Mapping[str, Any]) -> KVHandoff | None:
    """The handoff that a finished request brings, if any.

    Raises:
        MalformedMessage: if it makes no sense.
    """
    handed_off: _HandedOff = structure(fields, _HandedOff)
    return handed_off.disaggregated_params


def to_completion(fields: Mapping[str, Any], known: Known) -> Completion:
    """A finished request as the caller sees it.

    Args:
        fields: the body of the final reply.
        known: what the client knows besides.

    Raises:
        MalformedMessage: if the body makes no sense.
    """
    plain, dtypes = _plain(fields)
    finished: FinishedRequest = structure(plain, FinishedRequest)
    if finished.prompt_length is None and finished.prompt_tokens is not None:  # before 0.19
        finished = attrs.evolve(finished, prompt_length=len(finished.prompt_tokens))
    tokens = finished.generated_tokens or []
    length = len(tokens) if finished.generated_length is None else finished.generated_length
    passed_on = {name: getattr(finished, name) for name in _PASSED_ON}
    return Completion(
        request_id=known.request_id,
        engine_request_id=finished.request_id,
        generated_tokens=tokens,
        generated_length=length,
        events=finished.events or (),
        kv_handoff=finished.disaggregated_params,
        latency=known.latency,
        time_to_first_token=known.time_to_first_token,
        finish_reason=_finish_reason(finished, length, known),
        dtypes=dtypes,
        extra={name: value for name, value in fields.items() if name not in _NOT_EXTRA},
        **passed_on,
    )


@attrs.frozen(kw_only=True)
class _Failed(Generated):
    """What a failure has to say, whatever else a newer release may have changed."""

    events: tuple[RequestEvent, ...] | None = None


def to_failed_completion(fields: Mapping[str, Any], known: Known) -> Completion:
    """A failed request, of which nothing is understood but why it failed.

    For callers who take replies as they are, in whatever release. Arguments and errors are those of
    `to_completion`.
    """
    try:
        return to_completion(fields, known)
    except MalformedMessage:
        plain, _ = _plain(fields)
        failed: _Failed = structure(plain, _Failed)
    tokens = failed.generated_tokens or []
    return Completion(
        request_id=known.request_id,
        status=failed.status,
        generated_tokens=tokens,
        generated_length=len(tokens),
        finish_reason="error",
        latency=known.latency,
        time_to_first_token=known.time_to_first_token,
        events=failed.events or (),
        extra=dict(fields),
    )


def _finish_reason(
    finished: FinishedRequest, length: int, known: Known
) -> Literal["stop", "length", "abort", "error"]:
    if finished.failed:
        return "error"
    if known.aborted:
        return "abort"
    # The engine cuts a budget that is too large for it, and echoes what it made of it.
    budgets = (
        _budget(params, finished.prompt_length)
        for params in (known.asked, finished.sampling_params or {})
    )
    reached = any(budget is not None and length >= budget for budget in budgets)
    return "length" if reached else "stop"


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
