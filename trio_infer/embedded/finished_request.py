"""The body of an engine's final reply: a dict with every field of megatron-core's, in its order."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

__all__ = [
    "LACKING",
    "EngineEvent",
    "EventType",
    "FinishedRequest",
    "Status",
    "failed_on_purpose",
    "too_long",
    "transfer_failed",
]


LACKING: Final[Mapping[str, frozenset[str]]] = {
    "0.19": frozenset({"uid", "disaggregated_params"}),
    "0.18": frozenset(
        {"uid", "disaggregated_params", "num_cached_tokens", "prompt_length", "cg_wait_iters"}
    ),
}
"""The fields that replies had not yet, by dialect."""


class Status(enum.Enum):
    """How a request ended. An abort counts as completion."""

    COMPLETED = enum.auto()
    FAILED = enum.auto()


class EventType(enum.Enum):
    """What befell a request."""

    ADD_ENGINE = enum.auto()
    ADD_CONTEXT = enum.auto()
    FINISH = enum.auto()
    ERROR_TRANSIENT = enum.auto()
    ERROR_NONTRANSIENT = enum.auto()
    FAIL = enum.auto()


@attrs.frozen
class EngineEvent:
    """Something that befell a request, and when, in seconds of the engine's clock."""

    timestamp: float
    type: EventType
    payload: Mapping[str, Any] | None = None

    def to_wire(self) -> dict[str, Any]:
        """The event as it stands in a finished request."""
        return {"timestamp": self.timestamp, "type": self.type.name, "payload": self.payload}


def too_long(request_id: int, now: float) -> EngineEvent:
    """The error of a request whose prompt and budget do not fit the engine."""
    payload = {
        "type": "MaxSequenceLengthOverflowError",
        "request_id": request_id,
        "message": None,
        "is_transient": False,
    }
    return EngineEvent(now, EventType.ERROR_NONTRANSIENT, payload)


def transfer_failed(request_id: int, message: str, now: float) -> EngineEvent:
    """The error of a request whose KV cache blocks could not be had."""
    payload = {
        "type": "KVTransferError",
        "request_id": request_id,
        "message": message,
        "is_transient": False,
    }
    return EngineEvent(now, EventType.ERROR_NONTRANSIENT, payload)


@attrs.frozen(kw_only=True)
class FinishedRequest:
    """What an engine knows of a request at its end.

    ``returns_prompt_tokens`` says whether the prompt's ids are sent back; ``ttft`` is the time to
    the first token and ``tpot`` the time of each, in seconds.
    """

    request_id: int
    status: Status
    sampling_params: Mapping[str, Any]
    events: Sequence[EngineEvent]
    prompt: str | None = None
    prompt_tokens: Sequence[int] = ()
    returns_prompt_tokens: bool = False
    generated_tokens: Sequence[int] = ()
    generated_text: str = ""
    prompt_log_probs: Sequence[float] | None = None
    generated_log_probs: Sequence[float] | None = None
    prompt_top_n_logprobs: Sequence[Mapping[str, float]] | None = None
    generated_top_n_logprobs: Sequence[Mapping[str, float]] | None = None
    ttft: float | None = None
    tpot: Sequence[float] = ()
    block_size_tokens: int | None = None
    block_hashes: Sequence[int] = ()
    num_cached_tokens: int = 0
    epochs: Sequence[tuple[int, int]] | None = None
    handoff: Mapping[str, Any] | None = None

    def to_wire(self) -> dict[str, Any]:
        """The body of the reply. It repeats the prompt's ids, asked for or not."""
        prompt_tokens = ["tensor", list(self.prompt_tokens)]
        return {
            "request_id": self.request_id,
            "prompt": self.prompt,
            "sampling_params": dict(self.sampling_params),
            "inference_parameters": None,
            "prompt_tokens": prompt_tokens if self.returns_prompt_tokens else None,
            "prompt_length": len(self.prompt_tokens),
            "arrival_time": None,
            "status": self.status.name,
            "encoder_prompt": None,
            "generated_text": self.generated_text,
            "segments": None,
            "generated_segments": None,
            "generated_sequence_lengths": None,
            "generated_tokens": list(self.generated_tokens),
            "prompt_log_probs": _listed(self.prompt_log_probs),
            "generated_log_probs": _listed(self.generated_log_probs),
            "prompt_top_n_logprobs": _listed(self.prompt_top_n_logprobs),
            "generated_top_n_logprobs": _listed(self.generated_top_n_logprobs),
            "generated_length": len(self.generated_tokens),
            "tpot": list(self.tpot),
            "uid": f"chatcmpl-{uuid.uuid4().hex}",
            "remaining_prompt_tokens": prompt_tokens,
            "policy_epoch": _listed(self.epochs),
            "kv_cache_epoch": _listed(self.epochs),
            "latency": None,
            "routing_indices": None,
            "finished_chunk_token_count": 0,
            "stop_word_ids": None,
            "cg_wait_iters": 0,
            "block_size_tokens": self.block_size_tokens,
            "enable_prefix_caching": self.block_size_tokens is not None,
            "num_cached_tokens": self.num_cached_tokens,
            "precomputed_block_hashes": list(self.block_hashes),
            "disaggregated_params": self.handoff,
            "ttft": self.ttft,
            "events": [event.to_wire() for event in self.events],
        }


def failed_on_purpose(
    request_id: int, sampling_params: Mapping[str, Any], now: float
) -> FinishedRequest:
    """The failure of a request that an engine has no room for just now, or so it says."""
    payload = {
        "type": "RequestOverflowError",
        "request_id": request_id,
        "message": "failed on purpose",
        "is_transient": True,
    }
    return FinishedRequest(
        request_id=request_id,
        status=Status.FAILED,
        sampling_params=sampling_params,
        events=[
            EngineEvent(now, EventType.ERROR_TRANSIENT, payload),
            EngineEvent(now, EventType.FAIL),
        ],
    )


def _listed(values: Sequence[Any] | None) -> list[Any] | None:
    return None if values is None else list(values)
