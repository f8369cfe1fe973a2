"""The dialects of the coordinator's protocol: a row says all that differs between them.

The header numbers and the framing changed between releases of megatron-core, and nothing on the
wire says which is spoken. Sending one dialect to a coordinator of another can kill it, so a client
is told its dialect; it never probes.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, NoReturn

import attrs

from ..errors import UnsupportedByDialect

__all__ = ["DIALECTS", "ENVIRONMENT", "FRAMED", "Dialect", "Kind", "Layout", "resolve_dialect"]


class Kind(enum.Enum):
    """What a message is, whatever number a dialect gives it. The names are megatron-core's."""

    CONNECT = enum.auto()
    CONNECT_ACK = enum.auto()
    SUBMIT_REQUEST = enum.auto()
    ENGINE_REPLY = enum.auto()
    ENGINE_REPLY_PARTIAL = enum.auto()
    ABORT_REQUEST = enum.auto()
    SUBMIT_REQUEST_WITH_KV = enum.auto()
    RELEASE_KV = enum.auto()
    PAUSE = enum.auto()
    UNPAUSE = enum.auto()
    SUSPEND = enum.auto()
    RESUME = enum.auto()
    SET_GENERATION_EPOCH = enum.auto()
    STOP = enum.auto()
    START_CUDA_PROFILER = enum.auto()
    STOP_CUDA_PROFILER = enum.auto()
    SHUTDOWN = enum.auto()


class Layout(NamedTuple):
    """What stands in a message, by name.

    Attributes:
        fields: behind the header number, in the first frame.
        bodies: a frame each, behind the first.
    """

    fields: tuple[str, ...] = ()
    bodies: tuple[str, ...] = ()


@attrs.frozen(eq=False, repr=False)
class Dialect:
    """One row of the table: what a release of megatron-core speaks.

    Attributes:
        name: the name that ``open_client(dialect=…)`` takes.
        headers: the header number of each kind of message that exists in it.
        layouts: what stands in each of them.
        sampling_fields: the sampling parameters that it knows, in the order of the wire.
        modalities: the media that it takes: ``"image"``, ``"video"``.
        reply_lacks: what a finished request of a later dialect holds, and one of this does not.
    """

    name: str
    headers: Mapping[Kind, int] = attrs.field(converter=MappingProxyType[Kind, int])
    layouts: Mapping[Kind, Layout] = attrs.field(converter=MappingProxyType[Kind, Layout])
    sampling_fields: tuple[str, ...]
    modalities: frozenset[str] = frozenset()
    reply_lacks: frozenset[str] = frozenset()
    kinds: Mapping[int, Kind] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        by_number = {number: kind for kind, number in self.headers.items()}
        object.__setattr__(self, "kinds", MappingProxyType(by_number))

    def __repr__(self) -> str:
        return f"<Dialect {self.name}>"

    @property
    def can_stream(self) -> bool:
        """Whether engines send tokens before a request has finished.

        Where they do not, a stream yields all tokens as one delta, at the end.
        """
        return Kind.ENGINE_REPLY_PARTIAL in self.headers

    @property
    def can_abort(self) -> bool:
        """Whether an engine can be told to stop.

        Where it cannot, a request that is left runs to its end, and its late reply is dropped.
        """
        return Kind.ABORT_REQUEST in self.headers

    @property
    def can_hand_off(self) -> bool:
        """Whether KV cache blocks can be handed from one deployment to another."""
        return Kind.SUBMIT_REQUEST_WITH_KV in self.headers

    @property
    def can_profile(self) -> bool:
        """Whether the engines' CUDA profiler can be started and stopped."""
        return Kind.START_CUDA_PROFILER in self.headers

    @property
    def can_hash_blocks(self) -> bool:
        """Whether a client may hash the blocks of its prompts for the coordinator."""
        return "block_hashes" in self.layouts[Kind.SUBMIT_REQUEST].bodies

    @property
    def can_offload(self) -> bool:
        """Whether a request can carry offload parameters."""
        return "offload_params" in self.layouts[Kind.SUBMIT_REQUEST].bodies

    @property
    def is_multipart(self) -> bool:
        """Whether a body has a frame of its own; otherwise one frame holds everything."""
        return bool(self.layouts[Kind.ENGINE_REPLY].bodies)

    def number(self, kind: Kind) -> int:
        """The header number of a kind of message.

        Raises:
            UnsupportedByDialect: there is no such message in this dialect.
        """
        number = self.headers.get(kind)
        if number is None:
            self.refuse(kind.name)
        return number

    def refuse(self, what: str, instead: str = "") -> NoReturn:
        """Says that this dialect has no words for something.

        Args:
            what: that.
            instead: what the caller can do about it.

        Raises:
            UnsupportedByDialect: always.
        """
        hint = f": {instead}" if instead else ""
        msg = f"the dialect {self.name!r} has no {what}{hint}"
        raise UnsupportedByDialect(msg)


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
        reply_lacks=frozenset({"uid", "disaggregated_params"}),
    ),
    Dialect(
        name="0.18",
        headers=_COUNTED,
        layouts=_ONE_FRAME,
        sampling_fields=_FIELDS_0_18,
        reply_lacks=frozenset({"uid", "disaggregated_params", "num_cached_tokens"}),
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
        known = ", ".join(repr(name) for name in DIALECTS)
        msg = f"{source} must be one of {known}, or such a dialect itself, not {dialect!r:.80}"
        raise ValueError(msg)
    return row
