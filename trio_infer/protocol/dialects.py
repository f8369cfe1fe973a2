"""The dialects of the coordinator's protocol: a row says all that differs between them.

The header numbers and the framing changed between releases of megatron-core, and nothing on the
wire says which is spoken. Sending one dialect to a coordinator of another can kill it, so a client
is told its dialect; it never probes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import attrs

__all__ = ["DIALECTS", "FRAMED", "Dialect", "Framing", "Kind", "resolve_dialect"]


class Kind(enum.Enum):
    """What a message is, whatever number a dialect gives it. The names are megatron-core's."""

    CONNECT = enum.auto()
    CONNECT_ACK = enum.auto()
    SUBMIT_REQUEST = enum.auto()
    ENGINE_REPLY = enum.auto()
    ENGINE_REPLY_PARTIAL = enum.auto()
    ABORT_REQUEST = enum.auto()
    PAUSE = enum.auto()
    UNPAUSE = enum.auto()
    SHUTDOWN = enum.auto()


class Framing(enum.Enum):
    """How a message is laid into ZeroMQ frames."""

    MULTIPART = "one metadata frame, then a frame for each body"
    SINGLE = "one frame that holds everything"


@attrs.frozen(eq=False, repr=False)
class Dialect:
    """One row of the table: what a release of megatron-core speaks.

    Attributes:
        name: the name that ``open_client(dialect=…)`` takes.
        framing: how messages are laid into frames.
        headers: the header number of each kind of message that exists in it.
        sampling_fields: the sampling parameters that it knows, in the order of the wire.
    """

    name: str
    framing: Framing
    headers: Mapping[Kind, int] = attrs.field(converter=MappingProxyType[Kind, int])
    sampling_fields: tuple[str, ...]
    kinds: Mapping[int, Kind] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        by_number = {number: kind for kind, number in self.headers.items()}
        object.__setattr__(self, "kinds", MappingProxyType(by_number))

    def __repr__(self) -> str:
        return f"<Dialect {self.name}>"

    @property
    def can_stream(self) -> bool:
        """Whether the engine sends tokens before a request has finished."""
        return Kind.ENGINE_REPLY_PARTIAL in self.headers

    @property
    def can_abort(self) -> bool:
        """Whether a request can be ended before its time."""
        return Kind.ABORT_REQUEST in self.headers


_BY_RANGE: Final = {
    Kind.CONNECT: 0,
    Kind.CONNECT_ACK: 1,
    Kind.SUBMIT_REQUEST: 20,
    Kind.ENGINE_REPLY: 21,
    Kind.PAUSE: 40,
    Kind.UNPAUSE: 41,
    Kind.SHUTDOWN: 61,
}
_PARTIALS_AND_ABORT: Final = {Kind.ENGINE_REPLY_PARTIAL: 22, Kind.ABORT_REQUEST: 23}

_SAMPLING_FIELDS: Final = (
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
    "return_prompt_tokens",
    "streaming",
    "streaming_interval",
    "do_kv_handoff",
)

FRAMED: Final = Dialect(
    name="framed",
    framing=Framing.MULTIPART,
    headers=_BY_RANGE | _PARTIALS_AND_ABORT,
    sampling_fields=_SAMPLING_FIELDS,
)

DIALECTS: Final[Mapping[str, Dialect]] = MappingProxyType({row.name: row for row in (FRAMED,)})


def resolve_dialect(dialect: object) -> Dialect:
    """The row for a name in the table; a row is returned as it is.

    Raises:
        ValueError: for anything else.
    """
    if isinstance(dialect, Dialect):
        return dialect
    row = DIALECTS.get(dialect) if isinstance(dialect, str) else None
    if row is None:
        known = ", ".join(repr(name) for name in DIALECTS)
        msg = f"dialect must be a Dialect or one of {known}, not {dialect!r:.80}"
        raise ValueError(msg)
    return row
