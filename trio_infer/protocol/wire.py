"""Messages to frames and back, for both roles: the client's, and the coordinator's.

The client's side opens the metadata of a reply only; the body stays packed, for whoever reads it
to decode. Neither side lets an exception of MessagePack's escape: what cannot be decoded is
a `MalformedMessage`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import attrs
import msgpack

from .dialects import Dialect, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "ClientCodec",
    "ClientMessage",
    "CoordinatorCodec",
    "Frame",
    "Frames",
    "MalformedMessage",
    "ServerMessage",
    "Submission",
    "unpack_map",
]

Frame: TypeAlias = bytes | memoryview
Frames: TypeAlias = list[Frame]

MAX_METADATA_BYTES: Final = 256
"""The metadata frame of a reply is a header number and a request id: a dozen bytes."""

MAX_NESTING: Final = 64
"""Levels of lists and maps. MessagePack itself decodes a thousand, which then break `repr`."""

_CONTAINERS: Final = frozenset((list, dict))

_REPLY_SHAPE: Final = (1, 2)
"""Fields behind the header number, and frames."""

_NONE: Final[bytes] = msgpack.packb(None)


class MalformedMessage(ValueError):
    """Bytes that are no message of this dialect.

    Attributes:
        request_id: the request that the bytes can be laid at the door of, if any.
        is_final: whether they stand where that request's final reply should.
    """

    def __init__(
        self, message: str, *, request_id: int | None = None, is_final: bool = False
    ) -> None:
        super().__init__(message)
        self.request_id = request_id
        self.is_final = is_final


class ServerMessage(NamedTuple):
    """What a coordinator sent: a handshake's end, or a reply whose body is still packed."""

    kind: Kind
    request_id: int = -1
    body: Frame = b""


@attrs.frozen
class Submission:
    """A request packed but for its id, so that handing it over takes no time."""

    sampling_params: bytes
    bodies: tuple[bytes, ...]


@attrs.frozen
class ClientMessage:
    """What a client sent."""

    kind: Kind
    request_id: int | None = None
    prompt: str | list[int] | None = None
    sampling_params: dict[str, Any] | None = None


def _pack(value: object) -> bytes:
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def _unpack(data: Frame) -> Any:
    try:
        value = msgpack.unpackb(data, raw=False)
    except (ValueError, OverflowError, TypeError, RecursionError, msgpack.OutOfData) as error:
        msg = f"no MessagePack: {error or type(error).__name__}"
        raise MalformedMessage(msg) from None
    if len(data) > MAX_NESTING and _is_too_deep(value):  # each level takes a byte at least
        msg = f"nested more than {MAX_NESTING} levels deep"
        raise MalformedMessage(msg)
    return value


def _is_too_deep(value: Any) -> bool:
    level = [value] if type(value) in _CONTAINERS else []
    for _ in range(MAX_NESTING):
        if not level:
            return False
        level = [
            child
            for parent in level
            for child in (parent.values() if type(parent) is dict else parent)
            if type(child) in _CONTAINERS
        ]
    return bool(level)


def unpack_map(body: Frame) -> dict[str, Any]:
    """The map that a packed body holds.

    Raises:
        MalformedMessage: if it is no MessagePack, no map, or has keys that are no strings.
    """
    value = _unpack(body)
    if type(value) is not dict:
        msg = f"a map was expected, not {type(value).__name__}"
        raise MalformedMessage(msg)
    if not all(type(key) is str for key in value):
        msg = "a map with a key that is no string"
        raise MalformedMessage(msg)
    return value


def _metadata(dialect: Dialect, frames: Sequence[Frame]) -> tuple[Kind, list[Any]]:
    """The kind of a message and the fields behind its header number."""
    if not frames:
        msg = "a message without frames"
        raise MalformedMessage(msg)
    fields = _unpack(frames[0])
    if type(fields) is not list or not fields:
        msg = "metadata that is no list"
        raise MalformedMessage(msg)
    number = fields[0]
    kind = dialect.kinds.get(number) if type(number) is int else None
    if kind is None:
        msg = f"unknown header {number!r:.40}"
        raise MalformedMessage(msg)
    return kind, fields[1:]


def _is_id(value: object) -> bool:
    return type(value) is int and value >= 0


@attrs.frozen
class ClientCodec:
    """The client's side of a dialect.

    Each method makes one message's frames, or reads one; none keeps anything.
    """

    dialect: Dialect

    def connect(self) -> Frames:
        """The first message of every connection."""
        return [_pack([self.dialect.headers[Kind.CONNECT]])]

    def prepare(
        self,
        prompt: str | list[int],
        sampling_params: dict[str, Any],
        block_hashes: list[int] | None = None,
    ) -> Submission:
        """Packs a request as far as it goes without an id.

        Args:
            prompt: as `coerce_prompt` returns it.
            sampling_params: as `SamplingParams.serialize` returns them.
            block_hashes: as `PrefixHashing.of` returns them.
        """
        hashes = _NONE if block_hashes is None else _pack(block_hashes)
        bodies = (_pack(prompt), hashes, _NONE, _NONE)  # behind the hashes: media, offload params
        return Submission(_pack(sampling_params), bodies)

    def submit(self, request_id: int, submission: Submission) -> Frames:
        """A request under an id."""
        head = _pack([self.dialect.headers[Kind.SUBMIT_REQUEST], request_id, None, None])
        metadata = head[: -2 * len(_NONE)] + submission.sampling_params + _NONE  # in their places
        return [metadata, *submission.bodies]

    def abort(self, request_id: int) -> Frames:
        """The end of a request, before its time."""
        return [_pack([self.dialect.headers[Kind.ABORT_REQUEST], request_id])]

    def decode(self, frames: Sequence[Frame]) -> ServerMessage:
        """Reads the metadata of what a coordinator sent.

        Raises:
            MalformedMessage: with the id of the request if there is one that it can be laid at the
                door of.
        """
        if frames and len(frames[0]) > MAX_METADATA_BYTES:
            msg = f"metadata of {len(frames[0])} bytes"
            raise MalformedMessage(msg)
        kind, fields = _metadata(self.dialect, frames)
        if kind is Kind.CONNECT_ACK:
            if fields or len(frames) != 1:
                msg = "a CONNECT_ACK that carries something"
                raise MalformedMessage(msg)
            return ServerMessage(kind)
        if kind not in (Kind.ENGINE_REPLY_PARTIAL, Kind.ENGINE_REPLY):
            msg = f"{kind.name} is nothing that a coordinator sends to a client"
            raise MalformedMessage(msg)
        request_id = fields[0] if fields and _is_id(fields[0]) else None
        if request_id is None or (len(fields), len(frames)) != _REPLY_SHAPE:
            msg = f"{kind.name} with {len(fields)} fields and {len(frames)} frames"
            raise MalformedMessage(msg, request_id=request_id, is_final=kind is Kind.ENGINE_REPLY)
        return ServerMessage(kind, request_id, frames[1])


@attrs.frozen
class CoordinatorCodec:
    """The coordinator's side of a dialect."""

    dialect: Dialect

    def connect_ack(self) -> Frames:
        """The answer to a client's first message."""
        return [_pack([self.dialect.headers[Kind.CONNECT_ACK]])]

    def partial(self, request_id: int, partial: Mapping[str, Any]) -> Frames:
        """New tokens of a request that runs."""
        header = self.dialect.headers[Kind.ENGINE_REPLY_PARTIAL]
        return [_pack([header, request_id]), _pack(partial)]

    def reply(self, request_id: int, finished: Mapping[str, Any]) -> Frames:
        """A finished request."""
        header = self.dialect.headers[Kind.ENGINE_REPLY]
        return [_pack([header, request_id]), _pack(finished)]

    def decode(self, frames: Sequence[Frame]) -> ClientMessage:
        """Reads what a client sent.

        Raises:
            MalformedMessage: for anything that a client of this dialect would not send.
        """
        kind, fields = _metadata(self.dialect, frames)
        expected = _FROM_CLIENT.get(kind)
        if expected is None or (len(fields), len(frames)) != expected:
            msg = f"{kind.name} with {len(fields)} fields and {len(frames)} frames"
            raise MalformedMessage(msg)
        if not fields:
            return ClientMessage(kind)
        request_id = fields[0]
        if not _is_id(request_id):
            msg = f"{kind.name} with the request id {request_id!r:.40}"
            raise MalformedMessage(msg)
        if kind is Kind.ABORT_REQUEST:
            return ClientMessage(kind, request_id)
        prompt, sampling_params = _unpack(frames[1]), fields[1]
        if type(prompt) not in (str, list) or type(sampling_params) is not dict:
            msg = "SUBMIT_REQUEST with a prompt or sampling parameters of a wrong type"
            raise MalformedMessage(msg)
        return ClientMessage(kind, request_id, prompt, sampling_params)


_FROM_CLIENT: Final[Mapping[Kind, tuple[int, int]]] = {
    # fields behind the header, frames
    Kind.CONNECT: (0, 1),
    Kind.SUBMIT_REQUEST: (3, 5),
    Kind.ABORT_REQUEST: (1, 1),
    Kind.PAUSE: (0, 1),
    Kind.UNPAUSE: (0, 1),
    Kind.SHUTDOWN: (0, 1),
}
