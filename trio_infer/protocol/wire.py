"""Messages to frames and back, for both roles: the client's, and the coordinator's.

What stands where, a row of the table of dialects says. The client's side opens the head of a reply
only; the body stays packed, for whoever reads it to decode. Neither side lets an exception of
MessagePack's escape: what cannot be decoded is a `MalformedMessage`.
"""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import attrs

from .dialects import Dialect, Kind
from .packing import Frame, Frames, MalformedMessage, pack, unpack, unpack_head

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "ClientCodec",
    "ClientMessage",
    "CoordinatorCodec",
    "ServerMessage",
    "Submission",
]

MAX_METADATA_BYTES: Final = 256
"""The metadata frame of a reply is a header number and a request id: a dozen bytes."""

HEAD_BYTES: Final = 32
"""Where one frame holds everything, the list's length, the number and the id are among these."""

_NONE: Final = pack(None)


class ServerMessage(NamedTuple):
    """What a coordinator sent: a handshake's end, or a reply whose body is still packed."""

    kind: Kind
    request_id: int = -1
    body: Frame = b""


@attrs.frozen
class Submission:
    """A request packed but for its id, so that handing it over takes no time.

    Attributes:
        kind: of the message that it will be.
        fields: what stands behind the id in the first frame, and how many fields that are.
        bodies: the frames behind it.
    """

    kind: Kind
    fields: tuple[int, bytes]
    bodies: tuple[bytes, ...]


@attrs.frozen(kw_only=True)
class ClientMessage:
    """What a client sent, as far as its dialect has words for it."""

    kind: Kind
    request_id: int | None = None
    prompt: str | list[int] | None = None
    sampling_params: dict[str, Any] | None = None
    block_hashes: list[int] | None = None
    offload_params: Any = None
    epoch: int | None = None


def _kind(dialect: Dialect, number: object) -> Kind:
    kind = dialect.kinds.get(number) if type(number) is int else None
    if kind is None:
        msg = f"unknown header {reprlib.repr(number)}"
        raise MalformedMessage(msg)
    return kind


def _fields(dialect: Dialect, frame: Frame) -> tuple[Kind, list[Any]]:
    """The kind of a message, and all that stands behind its header number in the first frame."""
    fields = unpack(frame)
    if type(fields) is not list or not fields:
        raise _no_list()
    return _kind(dialect, fields[0]), fields[1:]


def _no_list() -> MalformedMessage:
    return MalformedMessage("a message that is no list of a header and its fields")


class _Head(NamedTuple):
    """How the first frame of a message begins.

    Attributes:
        kind: of the message.
        length: how many fields stand behind the header number.
        first: the first of them, which should be an id; None if there is none.
        end: where the next field begins, where that was looked for.
    """

    kind: Kind
    length: int
    first: Any
    end: int = -1


def _metadata_head(dialect: Dialect, frame: Frame) -> _Head:
    """The head of a message whose bodies have frames of their own."""
    if len(frame) > MAX_METADATA_BYTES:
        msg = f"metadata of {len(frame)} bytes"
        raise MalformedMessage(msg)
    kind, fields = _fields(dialect, frame)
    return _Head(kind, len(fields), fields[0] if fields else None)


def _inner_head(dialect: Dialect, frame: Frame) -> _Head:
    """The head of a message that is one frame, without unpacking what follows it."""
    length, items, end = unpack_head(frame[:HEAD_BYTES], 2)
    if not items:
        raise _no_list()
    if length == len(items) and end != len(frame):
        msg = "bytes behind the end of a message"
        raise MalformedMessage(msg)
    number, *rest = items
    return _Head(_kind(dialect, number), length - 1, rest[0] if rest else None, end)


def _is_id(value: object) -> bool:
    return type(value) is int and value >= 0


def _are_ints(value: object) -> bool:
    return type(value) is list and all(type(item) is int for item in value)


def _message(dialect: Dialect, kind: Kind, values: Mapping[str, Any]) -> Frames:
    """A message's frames, of values by the names of its layout."""
    layout = dialect.layouts[kind]
    fields = [values[name] for name in layout.fields]
    bodies = [pack(values[name]) for name in layout.bodies]
    return [pack([dialect.number(kind), *fields]), *bodies]


@attrs.frozen
class ClientCodec:
    """The client's side of a dialect.

    Each method makes one message's frames, or reads one; none keeps anything. What the dialect has
    no words for raises `UnsupportedByDialect`.
    """

    dialect: Dialect

    def connect(self) -> Frames:
        """The first message of every connection."""
        return _message(self.dialect, Kind.CONNECT, {})

    def prepare(
        self,
        prompt: str | list[int],
        sampling_params: dict[str, Any],
        *,
        block_hashes: list[int] | None = None,
        offload_params: Any = None,
    ) -> Submission:
        """Packs a request as far as it goes without an id.

        Args:
            prompt: as `coerce_prompt` returns it.
            sampling_params: as `sampling_fields` returns them.
            block_hashes: as `PrefixHashing.of` returns them.
            offload_params: what MessagePack can carry.
        """
        layout = self.dialect.layouts[Kind.SUBMIT_REQUEST]
        values = {
            "prompt": prompt,
            "sampling_params": sampling_params,
            "block_hashes": block_hashes,
            "offload_params": offload_params,
        }
        fields = [pack(values.get(name)) for name in layout.fields[1:]]  # all but the id
        bodies = tuple(pack(values.get(name)) for name in layout.bodies)
        return Submission(Kind.SUBMIT_REQUEST, (len(fields), b"".join(fields)), bodies)

    def submit(self, request_id: int, submission: Submission) -> Frames:
        """A request under an id."""
        count, fields = submission.fields
        head = pack([self.dialect.number(submission.kind), request_id, *[None] * count])
        return [head[: len(head) - count * len(_NONE)] + fields, *submission.bodies]

    def abort(self, request_id: int) -> Frames:
        """The end of a request, before its time."""
        return _message(self.dialect, Kind.ABORT_REQUEST, {"request_id": request_id})

    def signal(self, kind: Kind, **values: int) -> Frames:
        """A word to the engines, or to the coordinator itself.

        Args:
            kind: which.
            **values: what belongs to it: the ``epoch`` of ``SET_GENERATION_EPOCH``.
        """
        return _message(self.dialect, kind, values)

    def decode(self, frames: Sequence[Frame]) -> ServerMessage:
        """Reads the head of what a coordinator sent.

        Raises:
            MalformedMessage: with the id of the request if there is one that it can be laid at the
                door of.
        """
        if not frames:
            raise _no_frames()
        dialect = self.dialect
        read_head = _metadata_head if dialect.is_multipart else _inner_head
        kind, length, first, end = read_head(dialect, frames[0])
        if kind is Kind.CONNECT_ACK:
            if length or len(frames) != 1:
                msg = "a CONNECT_ACK that carries something"
                raise MalformedMessage(msg)
            return ServerMessage(kind)
        if kind not in (Kind.ENGINE_REPLY_PARTIAL, Kind.ENGINE_REPLY):
            msg = f"{kind.name} is nothing that a coordinator sends to a client"
            raise MalformedMessage(msg)
        request_id = first if _is_id(first) else None
        layout = dialect.layouts[kind]
        expected = (len(layout.fields), len(layout.bodies) + 1)
        if request_id is None or (length, len(frames)) != expected:
            msg = f"{kind.name} with {length} fields and {len(frames)} frames"
            is_final = kind is Kind.ENGINE_REPLY
            raise MalformedMessage(msg, request_id=request_id, is_final=is_final)
        return ServerMessage(kind, request_id, frames[1] if layout.bodies else frames[0][end:])


@attrs.frozen
class CoordinatorCodec:
    """The coordinator's side of a dialect."""

    dialect: Dialect

    def connect_ack(self) -> Frames:
        """The answer to a client's first message."""
        return _message(self.dialect, Kind.CONNECT_ACK, {})

    def partial(self, request_id: int, partial: Mapping[str, Any]) -> Frames:
        """New tokens of a request that runs."""
        values = {"request_id": request_id, "partial": partial}
        return _message(self.dialect, Kind.ENGINE_REPLY_PARTIAL, values)

    def reply(self, request_id: int, finished: Mapping[str, Any]) -> Frames:
        """A finished request."""
        values = {"request_id": request_id, "finished": finished}
        return _message(self.dialect, Kind.ENGINE_REPLY, values)

    def decode(self, frames: Sequence[Frame]) -> ClientMessage:
        """Reads what a client sent.

        Raises:
            MalformedMessage: for anything that a client of this dialect would not send.
        """
        if not frames:
            raise _no_frames()
        kind, fields = _fields(self.dialect, frames[0])
        layout = self.dialect.layouts[kind]
        expected = (len(layout.fields), len(layout.bodies) + 1)
        if kind not in _FROM_CLIENT or (len(fields), len(frames)) != expected:
            msg = f"{kind.name} with {len(fields)} fields and {len(frames)} frames"
            raise MalformedMessage(msg)
        bodies = map(unpack, frames[1:])
        values = dict(zip((*layout.fields, *layout.bodies), (*fields, *bodies), strict=True))
        for name, is_right in _CHECKS.items():
            if name in values and not is_right(values[name]):
                msg = f"{kind.name} with the {name} {reprlib.repr(values[name])}"
                raise MalformedMessage(msg)
        return ClientMessage(kind=kind, **{n: v for n, v in values.items() if n not in _UNREAD})


def _no_frames() -> MalformedMessage:
    return MalformedMessage("a message without frames")


_FROM_CLIENT: Final = frozenset(
    {
        Kind.CONNECT,
        Kind.SUBMIT_REQUEST,
        Kind.ABORT_REQUEST,
        Kind.PAUSE,
        Kind.UNPAUSE,
        Kind.SUSPEND,
        Kind.RESUME,
        Kind.SET_GENERATION_EPOCH,
        Kind.STOP,
        Kind.START_CUDA_PROFILER,
        Kind.STOP_CUDA_PROFILER,
        Kind.SHUTDOWN,
    }
)

_CHECKS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "request_id": _is_id,
    "prompt": lambda value: type(value) in (str, list),
    "sampling_params": lambda value: type(value) is dict,
    "block_hashes": lambda value: value is None or _are_ints(value),
    "epoch": lambda value: type(value) is int,
}

_UNREAD: Final = frozenset({"media_meta", "media", "multi_modal_data"})
