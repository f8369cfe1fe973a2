"""The client's side of the wire: requests to frames, and whose a reply is.

Of a reply only the head is opened. The body stays packed, for whoever reads it to decode.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import attrs

from .dialect import Dialect, Kind
from .packing import Frame, Frames, MalformedMessage, pack, unpack, unpack_head
from .typed import DECODING_ERRORS, reply_metadata
from .wire import frames_of, is_id, kind_of, no_list

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ClientCodec", "ServerMessage", "Submission"]

MAX_METADATA_BYTES: Final = 256
"""The metadata frame of a reply is a header number and a request id: a dozen bytes."""

_ID_AT: Final = 2
"""Where the id of a reply stands that is one frame, and begins as by far the most do."""

_TRIPLE: Final = 0x93
_FIXINT: Final = 0x80
_ID_BYTES: Final = {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9}
"""In MessagePack a list of three begins so; integers below so are a byte; what others take."""

HEAD_BYTES: Final = 32
"""Where one frame holds everything, the list's length, the number and the id are among these."""

_NOTHING: Final = pack(None)

_PARTIAL: Final = Kind.ENGINE_REPLY_PARTIAL
_FINAL: Final = Kind.ENGINE_REPLY

_SHAPES: Final = {True: (1, 2), False: (2, 1)}
"""How many fields a reply has behind its header number, and how many frames; multipart or not."""


class ServerMessage(NamedTuple):
    """What a coordinator sent: a handshake's end, or a reply whose body is still packed."""

    kind: Kind
    request_id: int = -1
    body: Frame = b""


_message: Final = tuple.__new__  # in half the time that the class takes


@attrs.frozen
class Submission:
    """A request packed but for its id.

    Attributes:
        opening: what stands before the id in the first frame.
        fields: what stands behind it, piece by piece.
        bodies: the other frames.
    """

    opening: bytes
    fields: list[bytes]
    bodies: list[bytes]

    def frames(self, request_id: int) -> Frames:
        """The request's message, under an id."""
        return [b"".join((self.opening, pack(request_id), *self.fields)), *self.bodies]


@functools.cache
def _plan(dialect: Dialect, kind: Kind) -> tuple[bytes, tuple[str, ...], tuple[str, ...]]:
    """How a submission is laid out: its opening, and the names of its fields and of its bodies."""
    number, layout = dialect.number(kind), dialect.layouts[kind]
    rest = [None] * len(layout.fields)
    opening = pack([number, *rest]).removesuffix(_NOTHING * len(rest))
    return opening, layout.fields[1:], layout.bodies  # all but the id


@attrs.frozen
class ClientCodec:
    """The client's side of a dialect.

    Each method makes one message's frames, or reads one. What the dialect has no words for raises
    `UnsupportedByDialect`.
    """

    dialect: Dialect
    _replies: Mapping[int, Kind] = attrs.field(init=False, repr=False, eq=False)

    @_replies.default
    def _header_numbers_of_replies(self) -> Mapping[int, Kind]:
        kinds = self.dialect.kinds
        return {number: kind for number, kind in kinds.items() if kind in (_PARTIAL, _FINAL)}

    def connect(self) -> Frames:
        """The first message of every connection."""
        return frames_of(self.dialect, Kind.CONNECT, {})

    def lay_out(self, kind: Kind, packed: Mapping[str, bytes | list[bytes]]) -> Submission:
        """Lays out a request as far as it goes without an id.

        Args:
            kind: how it is submitted.
            packed: its parts, packed, whole or in pieces, by the names of the layout; what is
                absent is nothing.
        """
        opening, names, bodies = _plan(self.dialect, kind)
        get = packed.get
        fields: list[bytes] = []
        for name in names:
            part = get(name, _NOTHING)
            if isinstance(part, bytes):
                fields.append(part)
            else:
                fields += part
        frames = []
        for name in bodies:
            part = get(name, _NOTHING)
            frames.append(part if isinstance(part, bytes) else b"".join(part))
        return Submission(opening, fields, frames)

    def abort(self, request_id: int) -> Frames:
        """The end of a request, before its time."""
        return frames_of(self.dialect, Kind.ABORT_REQUEST, {"request_id": request_id})

    def release(self, request_id: int) -> Frames:
        """The end of a handoff, by the engine's number of its request."""
        return frames_of(self.dialect, Kind.RELEASE_KV, {"request_id": request_id})

    def signal(self, kind: Kind, **values: int) -> Frames:
        """A word to the engines, or to the coordinator itself.

        Args:
            kind: which.
            **values: what belongs to it: the ``epoch`` of ``SET_GENERATION_EPOCH``.
        """
        return frames_of(self.dialect, kind, values)

    def decode(self, frames: Sequence[Frame]) -> ServerMessage:
        """Reads the head of what a coordinator sent.

        Raises:
            MalformedMessage: with the id of the request if there is one that it can be laid at the
                door of.
        """
        usual = self._usual_reply(frames)
        if usual is not None:
            return usual
        if not frames:
            msg = "a message without frames"
            raise MalformedMessage(msg)
        dialect = self.dialect
        read_head = _metadata_head if dialect.is_multipart else _inner_head
        kind, length, first, end = read_head(dialect, frames[0])
        is_reply = kind is _FINAL or kind is _PARTIAL
        if is_reply and is_id(first) and (length, len(frames)) == _SHAPES[dialect.is_multipart]:
            return ServerMessage(kind, first, frames[1] if length == 1 else frames[0][end:])
        if kind is Kind.CONNECT_ACK:
            if length or len(frames) != 1 or end != len(frames[0]):
                msg = "a CONNECT_ACK that carries something"
                raise MalformedMessage(msg)
            return ServerMessage(kind)
        if not is_reply:
            msg = f"{kind.name} is nothing that a coordinator sends to a client"
            raise MalformedMessage(msg)
        msg = f"{kind.name} with {length} fields and {len(frames)} frames"
        request_id = first if is_id(first) else None
        is_final = kind is _FINAL
        raise MalformedMessage(msg, request_id=request_id, is_final=is_final)

    def _usual_reply(self, frames: Sequence[Frame]) -> ServerMessage | None:
        """What by far the most messages are, read in one step; None if it is anything else."""
        if not self.dialect.is_multipart:
            return self._usual_in_one(frames)
        try:
            metadata, body = frames
            number, request_id = reply_metadata(metadata)
        except DECODING_ERRORS:
            return None
        kind = self._replies.get(number)
        if kind is None or request_id < 0:
            return None
        return _message(ServerMessage, (kind, request_id, body))

    def _usual_in_one(self, frames: Sequence[Frame]) -> ServerMessage | None:
        """As `_usual_reply`, of one frame, whose body would be gone through if it were decoded."""
        head = frames[0] if len(frames) == 1 else b""
        if type(head) is not bytes or len(head) <= _ID_AT or head[0] != _TRIPLE:
            return None
        number, request_id = head[1:3]
        kind = self._replies.get(number) if number < _FIXINT else None
        if kind is None:
            return None
        end = _ID_AT + 1
        if request_id >= _FIXINT:
            end = _ID_AT + _ID_BYTES.get(request_id, len(head))
            request_id = int.from_bytes(head[_ID_AT + 1 : end], "big")
        if end >= len(head):
            return None
        return _message(ServerMessage, (kind, request_id, head[end:]))


# How the first frame of a message begins: its kind, how many fields stand behind the header number,
# the first of them (which should be an id) or None, and where what was read of the frame ends.
_Head: TypeAlias = tuple[Kind, int, Any, int]


def _metadata_head(dialect: Dialect, frame: Frame) -> _Head:
    """The head of a message whose bodies have frames of their own."""
    if len(frame) > MAX_METADATA_BYTES:
        msg = f"metadata of {len(frame)} bytes"
        raise MalformedMessage(msg)
    fields = unpack(frame)
    if type(fields) is not list or not fields:
        raise no_list()
    first = fields[1] if len(fields) > 1 else None
    return kind_of(dialect, fields[0]), len(fields) - 1, first, len(frame)


def _inner_head(dialect: Dialect, frame: Frame) -> _Head:
    """The head of a message that is one frame, without unpacking what follows it."""
    length, items, end = unpack_head(frame[:HEAD_BYTES], 2)
    if not items:
        raise no_list()
    number, *rest = items
    return kind_of(dialect, number), length - 1, rest[0] if rest else None, end
