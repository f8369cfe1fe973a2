"""Large packed maps, unpacked in pieces, so that whoever unpacks one can let others run in between.

A piece takes some milliseconds, whatever the body holds. A thread would not do: MessagePack, and
the collector of garbage, keep everybody else waiting from wherever they run.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

import msgpack

from .packing import (
    MAX_NESTING,
    UNPACKING_ERRORS,
    Frame,
    MalformedMessage,
    checked_map,
    counting_hooks,
    no_messagepack,
    unpack_map,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

__all__ = ["HEAVY_BODY", "unpack_field", "unpack_map_in_pieces"]

HEAVY_BODY: Final = 2**18
"""Bodies of fewer bytes are unpacked within some milliseconds anyhow."""

_PIECE_BYTES: Final = 2**15
_PIECE_ITEMS: Final = 2**15

_CONTAINERS: Final = frozenset((list, dict))


def unpack_map_in_pieces(body: Frame) -> Iterator[dict[str, Any] | None]:
    """As `packing.unpack_map`, in pieces.

    Yields:
        None after each piece, and at last the map.

    Raises:
        MalformedMessage: as `packing.unpack_map`.
    """
    data = memoryview(body)
    yield from _in_pieces(data, msgpack.Unpacker.skip, {})  # as `packing.unpack` does, and why
    value = yield from _in_pieces(data, msgpack.Unpacker.unpack, counting_hooks(len(data)))
    for _ in _measure_depth(value):
        yield None
    yield checked_map(value)


def _in_pieces(
    data: memoryview, read: Callable[[msgpack.Unpacker], Any], hooks: dict[str, Any]
) -> Generator[None, None, Any]:
    """Feeds an unpacker piece by piece, and returns what it reads of the whole."""
    unpacker = msgpack.Unpacker(raw=False, max_buffer_size=len(data), **hooks)
    for start in range(0, len(data), _PIECE_BYTES):
        try:
            unpacker.feed(data[start : start + _PIECE_BYTES])
            value = read(unpacker)
            break
        except msgpack.OutOfData:
            yield None
        except MalformedMessage:
            raise
        except UNPACKING_ERRORS as error:
            raise no_messagepack(error) from None
    else:
        raise no_messagepack(ValueError("incomplete input"))
    if unpacker.tell() != len(data):
        raise no_messagepack(ValueError("there are bytes behind it"))
    return value


def unpack_field(body: Frame, name: str) -> dict[str, Any]:
    """Of the map that a packed body holds, the field of that name, if there is one.

    Of a large body nothing else is unpacked, which takes a tenth of the time.

    Raises:
        MalformedMessage: as `packing.unpack_map`, as far as it is unpacked.
    """
    if len(body) < HEAVY_BODY:
        return unpack_map(body)
    unpacker = msgpack.Unpacker(raw=False, max_buffer_size=len(body))
    fields = {}
    try:
        unpacker.feed(body)
        for _ in range(unpacker.read_map_header()):
            key = unpacker.unpack()
            if key == name:
                fields[key] = unpacker.unpack()
            else:
                unpacker.skip()
    except UNPACKING_ERRORS as error:
        raise no_messagepack(error) from None
    for _ in _measure_depth(fields):
        pass
    return fields


def _measure_depth(value: Any) -> Iterator[None]:
    """Refuses what is nested too deeply, in pieces.

    Goes down as soon as it comes upon containers, and holds one piece of each level.
    """
    levels: list[Iterator[Any]] = [iter((value,))]
    while levels:
        items = list(islice(levels[-1], _PIECE_ITEMS))
        if not items:
            levels.pop()
        elif not _CONTAINERS.isdisjoint(map(type, items)):
            if len(levels) > MAX_NESTING:
                msg = f"nested more than {MAX_NESTING} levels deep"
                raise MalformedMessage(msg)
            levels.append(
                chain.from_iterable(
                    item.values() if type(item) is dict else item
                    for item in items
                    if type(item) in _CONTAINERS
                )
            )
        yield
