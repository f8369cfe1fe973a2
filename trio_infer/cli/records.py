"""Completions as JSON: the fields of `Completion` by name, but for those that are None."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ..models import Completion

__all__ = ["completion_record", "to_line"]

_FIELDS: Final = (
    "generated_text",
    "generated_tokens",
    "generated_length",
    "finish_reason",
    "generated_log_probs",
    "generated_top_n_logprobs",
    "prompt_tokens",
    "prompt_length",
    "prompt_log_probs",
    "prompt_top_n_logprobs",
    "num_cached_tokens",
    "latency",
    "time_to_first_token",
    "ttft",
    "tpot",
)
_SPANS: Final = ("policy_epoch", "kv_cache_epoch")


def completion_record(completion: Completion) -> dict[str, Any]:
    """What is known of a completion, for `to_line`."""
    record = {name: getattr(completion, name) for name in _FIELDS}
    for name in _SPANS:
        spans = getattr(completion, name)
        record[name] = None if spans is None else [[span.start, span.epoch] for span in spans]
    extra = {name: value for name, value in completion.extra.items() if value is not None}
    record["extra"] = extra or None
    return {name: value for name, value in record.items() if value is not None}


def to_line(record: dict[str, Any]) -> str:
    """A record as a line of JSON. Numbers that JSON has not, such as infinity, become null."""
    try:
        text = _dump(record)
    except ValueError:
        text = _dump(_finite(record))
    return text + "\n"


def _dump(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False, default=_plain)


def _plain(value: object) -> Any:
    """What else an engine may have sent, as text."""
    return str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
