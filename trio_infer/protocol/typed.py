"""Replies that hold what they should, unpacked and checked in one step.

By far the most are so. A reply is taken only if unpacking it, and looking at it field by field, as
`structuring` does, would make the same of it. Of all others nothing is said here, neither what is
wrong with them nor whether anything is.

Nothing here is of just any type, so nothing is nested deeper than its type, and no key is hashed
but strings. Lists grow as their items come, whatever length they declare. Of large bodies there is
nothing here: they are unpacked in pieces (`unpacking`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

if TYPE_CHECKING:
    from .packing import Frame

__all__ = [
    "DECODING_ERRORS",
    "FIELDS",
    "finished_request",
    "partial_result",
    "reply_metadata",
]

Scalar: TypeAlias = str | int | float | bool | None
Shallow: TypeAlias = Scalar | list[Scalar]
Array: TypeAlias = list[str | int | list[int]]
"""A list of ints; or wrapped, as the word ``tensor`` and such a list."""


class _PartialResult(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What a delta is made of, and what else comes with it."""

    new_tokens: list[int]
    new_log_probs: list[float] | None = None
    new_top_n_logprobs: list[dict[str, float]] | None = None
    request_id: int | None = None
    prompt_log_probs: list[float] | None = None
    prompt_top_n_logprobs: list[dict[str, float]] | None = None


class _Event(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What the engine noted, if nothing belongs to it.

    That could be anything, with keys that are lists: thousands of the same hash take seconds.
    """

    timestamp: float
    type: str
    payload: None = None


class _FinishedRequest(msgspec.Struct, forbid_unknown_fields=True, gc=False, kw_only=True):
    """All fields of a finished request that the releases have, in the order of the wire.

    Those that can be but None here are seldom told, or are large. A reply with a field that is
    not here goes the long way, as all replies of a newer release may: so add it.
    """

    request_id: int | None = None
    prompt: str | None = None
    sampling_params: dict[str, Shallow] | None = None
    inference_parameters: None = None
    prompt_tokens: Array | None = None
    prompt_length: int | None = None
    arrival_time: int | float | None = None
    status: str
    encoder_prompt: None = None
    generated_text: str | None = None
    segments: None = None
    generated_segments: None = None
    generated_sequence_lengths: None = None
    generated_tokens: list[int] | None = None
    prompt_log_probs: list[float] | None = None
    generated_log_probs: list[float] | None = None
    prompt_top_n_logprobs: list[dict[str, float]] | None = None
    generated_top_n_logprobs: list[dict[str, float]] | None = None
    generated_length: int | None = None
    tpot: list[float] | None = None
    ttft: float | None = None
    uid: str | None = None
    remaining_prompt_tokens: Array | None = None
    policy_epoch: list[tuple[int, int]] | None = None
    kv_cache_epoch: list[tuple[int, int]] | None = None
    latency: None = None
    routing_indices: None = None
    finished_chunk_token_count: int | None = None
    stop_word_ids: list[list[int]] | None = None
    cg_wait_iters: int | None = None
    block_size_tokens: int | None = None
    enable_prefix_caching: bool | None = None
    num_cached_tokens: int | None = None
    precomputed_block_hashes: list[int] | None = None
    disaggregated_params: None = None
    payload_offloaded: bool | None = None
    events: list[_Event] | None = None


FIELDS: Final = _FinishedRequest.__struct_fields__
"""The names of the fields of a finished request, in the order of the wire."""

DECODING_ERRORS: Final = (ValueError, RecursionError, msgspec.MsgspecError)
"""What is raised here for whatever is not as it should."""

reply_metadata: Final = msgspec.msgpack.Decoder(tuple[int, int]).decode
"""The header number of a reply, and the client's id of its request."""

_read_partial: Final = msgspec.msgpack.Decoder(_PartialResult).decode
_read_finished: Final = msgspec.msgpack.Decoder(_FinishedRequest).decode


def partial_result(body: Frame) -> _PartialResult | None:
    """A partial result; None if it has to be looked at more closely."""
    try:
        return _read_partial(body)
    except DECODING_ERRORS:
        return None


def finished_request(body: Frame) -> dict[str, Any] | None:
    """The fields of a finished request, `FIELDS` all of them and None what is absent.

    None if it has to be looked at more closely.
    """
    try:
        return msgspec.structs.asdict(_read_finished(body))
    except DECODING_ERRORS:
        return None
