"""What a dialect of the coordinator's protocol is: messages, their numbers, and what they hold."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import ClassVar, NamedTuple, NoReturn

import attrs

from ..errors import UnsupportedByDialect

__all__ = ["Dialect", "Kind", "Layout"]


class Kind(enum.Enum):
    """What a message is, whatever number a dialect gives it. The names are megatron-core's."""

    # An enum's own is written in Python, and tables ask for it often.
    __hash__: ClassVar[Callable[[object], int]] = object.__hash__

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


def _frozen_headers(headers: Mapping[Kind, int]) -> Mapping[Kind, int]:
    return MappingProxyType(dict(headers))


def _frozen_layouts(layouts: Mapping[Kind, Layout]) -> Mapping[Kind, Layout]:
    return MappingProxyType(dict(layouts))


@attrs.frozen(eq=False, repr=False)
class Dialect:
    """One row of the table: what a release of megatron-core speaks.

    ``headers`` holds the number of each kind of message that exists in it, ``layouts`` what stands
    in them, and ``is_multipart`` whether bodies have frames of their own.

    Attributes:
        name: the name that ``open_client(dialect=…)`` takes.
        sampling_fields: the sampling parameters that it knows, in the order of the wire.
        modalities: the media that it takes: ``"image"``, ``"video"``.
    """

    name: str
    headers: Mapping[Kind, int] = attrs.field(converter=_frozen_headers)
    layouts: Mapping[Kind, Layout] = attrs.field(converter=_frozen_layouts)
    sampling_fields: tuple[str, ...]
    modalities: frozenset[str] = frozenset()
    kinds: Mapping[int, Kind] = attrs.field(init=False)
    is_multipart: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        if not self.headers.keys() <= self.layouts.keys():
            msg = f"the dialect {self.name!r} has messages without a layout"
            raise ValueError(msg)
        by_number = {number: kind for kind, number in self.headers.items()}
        object.__setattr__(self, "kinds", MappingProxyType(by_number))
        object.__setattr__(self, "is_multipart", bool(self._submission.bodies))

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
        return "block_hashes" in self._submission.bodies

    @property
    def can_offload(self) -> bool:
        """Whether a request can carry offload parameters."""
        return "offload_params" in self._submission.bodies

    @property
    def _submission(self) -> Layout:
        return self.layouts.get(Kind.SUBMIT_REQUEST, Layout())

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
