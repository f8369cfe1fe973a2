"""The dialects of the coordinator's protocol: a row says all that differs between them.

The header numbers and the framing changed between releases of megatron-core, and nothing on the
wire says which is spoken. Sending one dialect to a coordinator of another can kill it, so a client
is told its dialect; it never probes.
"""

from __future__ import annotations

import os
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from .dialect import Dialect, Kind, Layout

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DIALECTS", "ENVIRONMENT", "FRAMED", "resolve_dialect"]

# --- header numbers -------------------------------------------------------------------------------

_COUNTED: Final = {
    Kind.CONNECT: 1,
    Kind.CONNECT_ACK: 2,
    Kind.SUBMIT_REQUEST: 3,
    Kind.ENGINE_REPLY: 4,
    Kind.PAUSE: 5,
    Kind.UNPAUSE: 6,
    Kind.SUSPEND: 7,
    Kind.RESUME: 8,
    Kind.SET_GENERATION_EPOCH: 9,
    Kind.STOP: 10,
    Kind.SHUTDOWN: 12,
}
_BY_RANGE: Final = {
    Kind.CONNECT: 0,
    Kind.CONNECT_ACK: 1,
    Kind.SUBMIT_REQUEST: 20,
    Kind.ENGINE_REPLY: 21,
    Kind.PAUSE: 40,
    Kind.UNPAUSE: 41,
    Kind.SUSPEND: 42,
    Kind.RESUME: 43,
    Kind.SET_GENERATION_EPOCH: 44,
    Kind.STOP: 45,
    Kind.START_CUDA_PROFILER: 46,
    Kind.STOP_CUDA_PROFILER: 47,
    Kind.SHUTDOWN: 61,
}
_SINCE_0_20: Final = {
    Kind.ENGINE_REPLY_PARTIAL: 22,
    Kind.ABORT_REQUEST: 23,
    Kind.SUBMIT_REQUEST_WITH_KV: 24,
    Kind.RELEASE_KV: 25,
}

# --- layouts --------------------------------------------------------------------------------------

_ONE_FRAME: Final = dict.fromkeys(Kind, Layout()) | {
    Kind.SUBMIT_REQUEST: Layout(("request_id", "prompt", "sampling_params")),
    Kind.ENGINE_REPLY: Layout(("request_id", "finished")),
    Kind.ENGINE_REPLY_PARTIAL: Layout(("request_id", "partial")),
    Kind.ABORT_REQUEST: Layout(("request_id",)),
    Kind.SUBMIT_REQUEST_WITH_KV: Layout(
        ("request_id", "prompt", "sampling_params", "kv_meta", "src_block_ids")
    ),
    Kind.RELEASE_KV: Layout(("request_id",)),
    Kind.SET_GENERATION_EPOCH: Layout(("epoch",)),
}
_ONE_FRAME_WITH_MEDIA: Final = _ONE_FRAME | {
    Kind.SUBMIT_REQUEST: Layout(("request_id", "prompt", "sampling_params", "multi_modal_data")),
}
_MULTIPART: Final = _ONE_FRAME | {
    Kind.SUBMIT_REQUEST: Layout(
        ("request_id", "sampling_params", "media_meta"),
        ("prompt", "block_hashes", "media", "offload_params"),
    ),
    Kind.ENGINE_REPLY: Layout(("request_id",), ("finished",)),
    Kind.ENGINE_REPLY_PARTIAL: Layout(("request_id",), ("partial",)),
    Kind.SUBMIT_REQUEST_WITH_KV: Layout(
        ("request_id", "sampling_params", "kv_meta"), ("prompt", "src_block_ids")
    ),
}

# --- sampling parameters --------------------------------------------------------------------------

_FIELDS_0_18: Final = (
    "temperature",
    "top_k",
    "top_p",
    "return_log_probs",
    "skip_prompt_log_probs",
    "return_segments",
    "num_tokens_to_generate",
    "num_tokens_total",
    "termination_id",
    "top_n_logprobs",
    "return_prompt_top_n_logprobs",
    "add_BOS",
    "stop_words",
    "detokenize_stop_sequence",
)
_FIELDS_0_19: Final = (*_FIELDS_0_18, "return_prompt_tokens")
_FIELDS_0_20: Final = (*_FIELDS_0_19, "streaming", "streaming_interval", "do_kv_handoff")

# --- the table ------------------------------------------------------------------------------------

FRAMED: Final = Dialect(
    name="framed",
    headers=_BY_RANGE | _SINCE_0_20,
    layouts=_MULTIPART,
    sampling_fields=_FIELDS_0_20,
    modalities=frozenset({"image", "video"}),
)
"""What nobody has to ask for."""

_ROWS: Final = (
    FRAMED,
    Dialect(
        name="0.20",
        headers=_BY_RANGE | _SINCE_0_20,
        layouts=_ONE_FRAME_WITH_MEDIA,
        sampling_fields=_FIELDS_0_20,
        modalities=frozenset({"image"}),
    ),
    Dialect(
        name="0.19",
        headers=_BY_RANGE,
        layouts=_ONE_FRAME,
        sampling_fields=_FIELDS_0_19,
    ),
    Dialect(
        name="0.18",
        headers=_COUNTED,
        layouts=_ONE_FRAME,
        sampling_fields=_FIELDS_0_18,
    ),
)

DIALECTS: Final[Mapping[str, Dialect]] = MappingProxyType({row.name: row for row in _ROWS})
"""All dialects by their names."""

ENVIRONMENT: Final = "TRIO_INFER_DIALECT"
"""The environment variable that names the dialect where nobody else does."""


def resolve_dialect(dialect: object = None) -> Dialect:
    """The row for a name in the table; a row is returned as it is.

    Args:
        dialect: a name or a row; None for what ``TRIO_INFER_DIALECT`` in the environment names, or
            else ``framed``.

    Raises:
        ValueError: for anything else.
    """
    if isinstance(dialect, Dialect):
        return dialect
    source = "dialect"
    if dialect is None:
        source, dialect = ENVIRONMENT, os.environ.get(ENVIRONMENT) or FRAMED.name
    row = DIALECTS.get(dialect) if isinstance(dialect, str) else None
    if row is None:
        msg = (
            f"{source} must be one of {', '.join(map(repr, DIALECTS))}, not {dialect!r:.80}: "
            "megatron-core 0.17 speaks '0.18', and its main branch 'framed'"
        )
        raise ValueError(msg)
    return row
