"""What a hostile or broken peer makes of genuine messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgpack

from trio_infer.protocol.packing import pack

if TYPE_CHECKING:
    from tests.fuzz.choices import Choices

__all__ = ["STRANGE", "changed_fields", "mangled", "named_id", "strange_number"]

_SCALARS: Final = (
    *(0, 1, 5, -1, 2**31, 2**53 + 1, 2**63, 2**64 - 1, -(2**63)),
    *(0.0, 1.0, -0.5, 1e308, float("nan"), float("inf"), True, False, None),
    *("", "\0", "COMPLETED", "FAILED", "tensor", "x" * 70_000, b"", b"\xff", "é\U0001f600"),
    *(msgpack.ExtType(5, b"x"), msgpack.Timestamp(2**34, 10**9 - 1)),
)
_CONTAINERS: Final[tuple[Any, ...]] = (
    *([], {}, [[]], {"a": {}}, [None] * 300, ["tensor", [[1], [2]]], ["tensor", 5], ["tensor"]),
    ["ndarray", {"data": [[1, 2]], "dtype": "int64"}],
    ["ndarray", {"data": [1], "dtype": "V4096"}],
    *(["ndarray", {}], [1, 2], [1.5, "x"], [True], [[0, 1], [2]], [[0, 1, 2]], [{"a": 1.5}]),
    *([{"a": "b"}], [{"timestamp": 1.0, "type": "ERROR_TRANSIENT", "payload": [[]]}]),
    *({"request_id": 5, "block_ids": [1], "kv_meta": {}}, {b"\xff": 1}, list(range(1000))),
)
_UNPACKABLE: Final = (
    *(b"\xc1", b"\xa1\xff", b"\x81\x01\x01", b"\x81\xc0\x01", b"\x82\xa1a\x01\xa1a\x02"),
    *(b"\xdd\xff\xff\xff\xff", b"\xdc\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"),
    *(b"\xc6\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01", b"\xd6\xff\xff\xff\xff\xff"),
    *(b"\xc7\x0c\xff" + b"\xff" * 12, b"\xdd\x05\xf5\xe1\x00" * 5, b"\xd7\xff" + b"\xff" * 8),
    *(opening * levels + b"\xc0" for opening in (b"\x91", b"\x81\xa1k") for levels in (63, 1023)),
    *(b"\xdc\x13\x88" + b"\x90" * 5000, b"\xdc\x40\x00" * 400 + b"\xc0" * 20_000),
)
STRANGE: Final = (*map(pack, (*_SCALARS, *_CONTAINERS)), *_UNPACKABLE)
"""Values of every type, and what is none, packed."""


def strange_number(choices: Choices, number: int) -> bytes:
    """A number as it should be packed, mostly; or what is nearly the same."""
    if not choices.one_in(8):
        return pack(number)
    alike = (pack(float(number)), pack(bool(number)), pack(str(number)), pack([number]))
    longer = b"\xcf" + number.to_bytes(8, "big")
    return choices.of((longer, pack(-number - 1), *alike, choices.of(STRANGE)))


def changed_fields(choices: Choices, fields: dict[str, Any]) -> bytes:
    """A map, packed, some of whose values are others, or are missing."""
    packed = {pack(name): pack(value) for name, value in fields.items()}
    for _ in range(max(0, choices.below(4) - 1)):
        name = choices.of(list(packed)) if packed else pack("")
        if choices.one_in(4):
            packed.pop(name, None)
        else:
            packed[name] = choices.of(STRANGE)
    if choices.one_in(12):
        packed[choices.of(STRANGE)] = choices.of(STRANGE)
    items = b"".join(name + value for name, value in packed.items())
    return b"\xde" + len(packed).to_bytes(2, "big") + items


def mangled(choices: Choices, frames: list[bytes]) -> list[bytes]:
    """A message as it was, mostly; or with other bytes, or another number of frames."""
    frames = list(frames)
    for _ in range(max(0, choices.below(8) - 5)):
        place = choices.below(len(frames))
        _MANGLE[choices.below(len(_MANGLE))](choices, frames, place)
        if not frames:
            return [b""]
    return frames


def _flip(choices: Choices, frames: list[bytes], place: int) -> None:
    frame = bytearray(frames[place])
    if frame:
        frame[choices.below(min(len(frame), 2**16))] = choices.below(256)
    frames[place] = bytes(frame)


def _cut(choices: Choices, frames: list[bytes], place: int) -> None:
    frames[place] = frames[place][: choices.below(min(len(frames[place]), 2**16) + 1)]


def _append(choices: Choices, frames: list[bytes], place: int) -> None:
    frames[place] += choices.bytes() or choices.of(STRANGE)


def _insert(choices: Choices, frames: list[bytes], place: int) -> None:
    frame = frames[place]
    middle = choices.below(min(len(frame), 2**16) + 1)
    frames[place] = frame[:middle] + choices.of(STRANGE) + frame[middle + choices.below(3) :]


def _replace(choices: Choices, frames: list[bytes], place: int) -> None:
    frames[place] = choices.of(STRANGE)


def _repeat(choices: Choices, frames: list[bytes], place: int) -> None:
    frames[place:place] = [frames[place]] * (1 + choices.below(100))


def _drop(choices: Choices, frames: list[bytes], place: int) -> None:
    del frames[place]


_MANGLE: Final = (_flip, _cut, _append, _insert, _replace, _repeat, _drop)


def named_id(frame: bytes) -> object:
    """What stands where an id should, as far as that can be read."""
    unpacker = msgpack.Unpacker(raw=True, strict_map_key=False)
    unpacker.feed(frame[:64])
    try:
        count = unpacker.read_array_header()
        return [unpacker.unpack() for _ in range(min(count, 2))][-1]
    except (TypeError, ValueError, OverflowError, IndexError, msgpack.OutOfData):
        return None
