"""MessagePack, bounded, and with one error for everything that cannot be decoded."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgpack
import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "MAP_WEIGHT",
    "MAX_NESTING",
    "TOO_DEEP",
    "TOO_MANY",
    "UNPACKING_ERRORS",
    "Frame",
    "Frames",
    "MalformedMessage",
    "check_nesting",
    "checked_map",
    "containers_allowed",
    "no_messagepack",
    "pack",
    "pack_plain",
    "unpack",
    "unpack_head",
    "unpack_map",
]

Frame: TypeAlias = bytes | memoryview
Frames: TypeAlias = list[Frame]

MAX_NESTING: Final = 64
"""Levels of lists and maps. MessagePack itself decodes a thousand, which then break `repr`."""

MAX_CONTAINERS: Final = 2**21
BYTES_OF_CONTAINER: Final = 3
"""So many lists and maps a value may hold, or one for so many of its bytes, if that is more.

A byte can be an empty list, which takes seventy in memory. No reply is made of such.
"""

MAP_WEIGHT: Final = 3
"""A map, or an extension, counts as so many lists: for what they take in memory, or in time."""

TOO_MANY: Final = "more lists and maps than a message may hold"
TOO_DEEP: Final = f"nested more than {MAX_NESTING} levels deep"

WALKED_BYTES: Final = 2**14
"""Longer values are walked through before they are built: lists get their memory when they begin,
so that a thousand, each within the other and declared longer than what follows, would take it all.
"""

_CONTAINERS: Final = frozenset((list, dict))
_BEGINNINGS: Final = bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0)))


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


def pack(value: object) -> bytes:
    """A value as the wire has it."""
    packed: bytes = msgpack.packb(value)
    return packed


pack_plain: Final[Callable[[str | int | list[int]], bytes]] = msgspec.msgpack.Encoder().encode
"""As `pack`, of text, ints and lists of ints, in less than half the time; from any thread."""

UNPACKING_ERRORS: Final = (
    ValueError,
    OverflowError,
    TypeError,
    RecursionError,
    msgpack.OutOfData,
)


def no_messagepack(error: Exception) -> MalformedMessage:
    """The error for bytes that are none."""
    return MalformedMessage(f"no MessagePack: {str(error) or type(error).__name__}")


def unpack(data: Frame) -> Any:
    """The value that all of the bytes are.

    Raises:
        MalformedMessage: they are no MessagePack, nested too deeply, or of too many lists and maps.
    """
    size = len(data)
    try:
        if size <= MAX_NESTING:
            return msgpack.unpackb(data)
        if size > WALKED_BYTES:
            _walk(data)
        if size <= MAX_CONTAINERS:
            value = msgpack.unpackb(data)
        else:
            value = msgpack.unpackb(data, **_Allowance(size).hooks)
    except MalformedMessage:
        raise
    except UNPACKING_ERRORS as error:
        raise no_messagepack(error) from None
    # Each level takes a byte at least that begins a list or a map. Most replies have not so many;
    # in large ones, the numbers do.
    if size > WALKED_BYTES or size - len(bytes(data).translate(None, _BEGINNINGS)) > MAX_NESTING:
        check_nesting(value)
    return value


def _walk(data: Frame) -> None:
    """Reads a value without building anything. Raises if there is none."""
    unpacker = msgpack.Unpacker(max_buffer_size=len(data))
    unpacker.feed(data)
    unpacker.skip()


def containers_allowed(size: int) -> int:
    """How many lists and maps a value of so many bytes may hold, by their weight."""
    if size <= MAX_CONTAINERS:
        return size * MAP_WEIGHT  # whatever fits
    return max(MAX_CONTAINERS, size // BYTES_OF_CONTAINER)


class _Allowance:
    """How many more lists and maps a value of some size may hold."""

    def __init__(self, size: int) -> None:
        self._left = containers_allowed(size)

    @property
    def hooks(self) -> dict[str, Any]:
        """What counts them while they are built."""
        return {
            "list_hook": partial(self._take, 1),
            "object_hook": partial(self._take, MAP_WEIGHT),
            "ext_hook": lambda *extension: self._take(MAP_WEIGHT, msgpack.ExtType(*extension)),
        }

    def _take(self, weight: int, container: Any) -> Any:
        self._left -= weight
        if self._left < 0:
            raise MalformedMessage(TOO_MANY)
        return container


def unpack_head(start: Frame, count: int) -> tuple[int, list[Any], int]:
    """The first items of a list, of whose bytes only the start is given.

    Args:
        start: the first bytes.
        count: how many items to unpack at most.

    Returns:
        How many items the list has, the first ones, and where the next one begins.

    Raises:
        MalformedMessage: it is no list, or its first items do not lie within the start.
    """
    unpacker = msgpack.Unpacker(raw=False, max_buffer_size=len(start) or 1)
    unpacker.feed(start)
    try:
        length = unpacker.read_array_header()
        items = [unpacker.unpack() for _ in range(min(length, count))]
    except UNPACKING_ERRORS as error:
        raise no_messagepack(error) from None
    return length, items, unpacker.tell()


def check_nesting(value: Any) -> None:
    """Refuses what is nested too deeply.

    Raises:
        MalformedMessage: it is.
    """
    level = [value] if type(value) in _CONTAINERS else []
    for _ in range(MAX_NESTING):
        if not level:
            return
        below: list[Any] = []
        for parent in level:
            children = parent.values() if type(parent) is dict else parent
            if not _CONTAINERS.isdisjoint(map(type, children)):
                below += [child for child in children if type(child) in _CONTAINERS]
        level = below
    if level:
        raise MalformedMessage(TOO_DEEP)


def unpack_map(body: Frame) -> dict[str, Any]:
    """The map that a packed body holds. Its names may be bytes: whoever structures it looks.

    Raises:
        MalformedMessage: if it is no MessagePack, or no map.
    """
    value = unpack(body)
    return value if type(value) is dict else checked_map(value)


def checked_map(value: Any) -> dict[str, Any]:
    """The value itself, if it is a map.

    Raises:
        MalformedMessage: it is not.
    """
    if type(value) is not dict:
        msg = f"a map was expected, not {type(value).__name__}"
        raise MalformedMessage(msg)
    return value
