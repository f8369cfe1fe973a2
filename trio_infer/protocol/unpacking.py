"""Large packed maps, unpacked in pieces, so that whoever unpacks one can let others run in between.

A piece takes some milliseconds, whatever the body holds, but for one that ends a list of millions.
A thread would not do: MessagePack, and the collector of garbage, keep everybody else waiting from
wherever they run.

The collector walks lists that are there to stay, all of them again and again while there come to be
more. Routing indices are millions of them, so if they may, they stay packed until somebody looks.
They are checked like everything else, on lists that are dropped as soon as they are complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgpack

from ..models.packed import Packed
from .packing import (
    MAP_WEIGHT,
    MAX_CONTAINERS,
    MAX_NESTING,
    TOO_DEEP,
    TOO_MANY,
    UNPACKING_ERRORS,
    Frame,
    MalformedMessage,
    check_nesting,
    checked_map,
    containers_allowed,
    no_messagepack,
    pack,
    unpack,
    unpack_head,
    unpack_map,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

__all__ = ["HEAVY_BODY", "Unpacking", "unpack_field", "unpack_map_in_pieces"]

HEAVY_BODY: Final = 2**18
"""Bodies of fewer bytes are unpacked within some milliseconds anyhow."""

_PIECE_BYTES: Final = 2**15


def unpack_map_in_pieces(body: Frame, *, lazily: bool = False) -> Iterator[dict[str, Any] | None]:
    """As `packing.unpack_map`, in pieces.

    Args:
        body: the packed map.
        lazily: whether a long list in ``routing_indices``, in whatever wrapping, is to be `Packed`.

    Yields:
        None after each piece, and at last the map.

    Raises:
        MalformedMessage: as `packing.unpack_map`.
    """
    data = memoryview(body)
    yield from _all_of(data, msgpack.Unpacker.skip)  # as `packing.unpack` does, and why
    yield from _all_of(data, msgpack.Unpacker.unpack, **_weighing_hooks(len(data)))
    fields = yield from _unpack_map(data, "routing_indices" if lazily else None, _unpack_array)
    yield checked_map(fields)


class Unpacking:
    """One packed map while it is unpacked in pieces. Arguments as of `unpack_map_in_pieces`."""

    __slots__ = ("_fields", "_nonsense", "_pieces")

    def __init__(self, body: Frame, *, lazily: bool = False) -> None:
        self._pieces = unpack_map_in_pieces(body, lazily=lazily)
        self._fields: dict[str, Any] | None = None
        self._nonsense: str | None = None  # and not the error, whose traceback holds this

    def go_on(self) -> bool:
        """Unpacks a piece, if one is left. Returns whether there may be more."""
        if self._fields is None and self._nonsense is None:
            try:
                self._fields = next(self._pieces)
            except MalformedMessage as error:
                self._nonsense = str(error)
        return self._fields is None and self._nonsense is None

    def fields(self) -> dict[str, Any]:
        """The map; what is left of it is unpacked at once.

        Raises:
            MalformedMessage: as `packing.unpack_map`.
        """
        while self._fields is None:
            if self._nonsense is not None:
                raise MalformedMessage(self._nonsense)
            self.go_on()
        return self._fields


class _Reader:
    """An unpacker that is fed piece by piece."""

    def __init__(self, data: memoryview, **hooks: Any) -> None:
        starts = range(0, len(data), _PIECE_BYTES)
        self._pieces = (data[start : start + _PIECE_BYTES] for start in starts)
        self._unpacker = msgpack.Unpacker(raw=False, max_buffer_size=len(data), **hooks)
        self.tell: Callable[[], int] = self._unpacker.tell

    def read(self, read: Callable[[msgpack.Unpacker], Any]) -> Generator[None, None, Any]:
        """What that method reads, in pieces.

        Raises:
            MalformedMessage: there is no such thing.
        """
        while True:
            try:
                return read(self._unpacker)
            except msgpack.OutOfData:
                piece = next(self._pieces, None)
            except MalformedMessage:
                raise
            except UNPACKING_ERRORS as error:
                raise no_messagepack(error) from None
            if piece is None:
                raise no_messagepack(ValueError("incomplete input"))
            self._unpacker.feed(piece)
            yield None


def _all_of(
    data: memoryview, read: Callable[[msgpack.Unpacker], Any], **hooks: Any
) -> Generator[None, None, Any]:
    reader = _Reader(data, **hooks)
    value = yield from reader.read(read)
    if reader.tell() != len(data):
        raise no_messagepack(ValueError("there are bytes behind it"))
    return value


_LEVELS: Final = {object(): level for level in range(1, MAX_NESTING + 1)}
"""What stands for lists and maps of so many levels."""

_MARKS: Final = (None, *_LEVELS)
_MARK_SET: Final = frozenset(_LEVELS)


def _weighing_hooks(size: int) -> dict[str, Any]:
    """What MessagePack calls for each list and map of a value of so many bytes, to check them all.

    Nothing is kept of one but how many levels it has.
    """
    left = containers_allowed(size)

    def weigh(items: Iterable[Any], weight: int = 1) -> object:
        nonlocal left
        left -= weight
        if left < 0:
            raise MalformedMessage(TOO_MANY)
        if _MARK_SET.isdisjoint(items):
            return _MARKS[1]
        level = max(_LEVELS[mark] for mark in _MARK_SET.intersection(items))
        if level == MAX_NESTING:
            raise MalformedMessage(TOO_DEEP)
        return _MARKS[level + 1]

    def weigh_map(fields: dict[Any, Any]) -> object:
        return weigh(fields.values(), MAP_WEIGHT)

    def weigh_extension(code: int, data: bytes) -> None:
        weigh(msgpack.ExtType(code, data), MAP_WEIGHT)

    return {"list_hook": weigh, "object_hook": weigh_map, "ext_hook": weigh_extension}


def _unpack_map(
    data: memoryview,
    name: str | None,
    unpack_field: Callable[[memoryview], Generator[None, None, Any]],
) -> Generator[None, None, dict[Any, Any]]:
    """A checked map, of which the field of that name is unpacked in a way of its own."""
    reader = _Reader(data)
    fields = {}
    for _ in range((yield from reader.read(msgpack.Unpacker.read_map_header))):
        key = yield from reader.read(msgpack.Unpacker.unpack)
        if key == name:
            start = reader.tell()
            yield from reader.read(msgpack.Unpacker.skip)
            fields[key] = yield from unpack_field(data[start : reader.tell()])
        else:
            fields[key] = yield from reader.read(msgpack.Unpacker.unpack)
    return fields


_HEAD_BYTES: Final = 64
"""The tag of an array lies within so many."""


def _unpack_array(data: memoryview) -> Generator[None, None, Any]:
    """A checked array, in the wrapping of `conversion` or in none; a long list is `Packed`."""
    try:
        length, items, start = unpack_head(data[:_HEAD_BYTES], 1)
    except MalformedMessage:  # a long first item, or no list at all
        length, items, start = 0, [], 0
    content = data[start:]
    if length == 2 and items == ["tensor"]:  # noqa: PLR2004 - [tag, array]
        return [*items, (yield from _unpack_list(content))]
    if length == 2 and items == ["ndarray"]:  # noqa: PLR2004 - the same
        return [*items, (yield from _unpack_map(content, "data", _unpack_list))]
    return (yield from _unpack_list(data))


def _unpack_list(data: memoryview) -> Generator[None, None, Any]:
    """A checked value; a long list is `Packed`."""
    is_list = 0x90 <= data[0] <= 0x9F or data[0] in {0xDC, 0xDD}  # noqa: PLR2004 - MessagePack's
    if is_list and len(data) >= HEAVY_BODY:
        return Packed(data)
    return (yield from _all_of(data, msgpack.Unpacker.unpack))


def unpack_field(body: Frame, name: str) -> dict[str, Any]:
    """Of the map that a packed body holds, the field of that name, if there is one.

    Of a large body nothing else is unpacked, which takes a tenth of the time.

    Raises:
        MalformedMessage: as `packing.unpack_map`, as far as it is unpacked; and of a large body, if
            the field has more bytes than can hold too many lists and maps.
    """
    if len(body) < HEAVY_BODY:
        return unpack_map(body)
    data, wanted = memoryview(body), pack(name)
    unpacker = msgpack.Unpacker(raw=False, max_buffer_size=len(data))
    found: memoryview | None = None
    try:
        unpacker.feed(data)
        for _ in range(unpacker.read_map_header()):
            key, value = _skipped(unpacker, data), _skipped(unpacker, data)
            found = value if key == wanted else found
    except UNPACKING_ERRORS as error:
        raise no_messagepack(error) from None
    if found is None:
        return {}
    if len(found) > MAX_CONTAINERS:
        msg = f"{name} of more than {MAX_CONTAINERS} bytes"
        raise MalformedMessage(msg)
    fields = {name: unpack(found)}
    check_nesting(fields)
    return fields


def _skipped(unpacker: msgpack.Unpacker, data: memoryview) -> memoryview:
    start = unpacker.tell()
    unpacker.skip()
    return data[start : unpacker.tell()]
