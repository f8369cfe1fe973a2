"""What a message may cost in memory: it is refused before it has taken it."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from tests.messages import Known
from trio_infer.protocol import packing
from trio_infer.protocol.assembly import Assembler
from trio_infer.protocol.packing import MalformedMessage, pack, unpack, unpack_head

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = """
import resource, sys
from trio_infer.protocol.packing import MalformedMessage, unpack

item, count = bytes.fromhex(sys.argv[1]), int(sys.argv[2])
body = b"\\xdd" + count.to_bytes(4, "big") + item * count
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    unpack(body)
except MalformedMessage:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("item", [b"\x90", b"\x80", b"\x81\xa0\x01"], ids=lambda item: item.hex())
def test_ten_megabytes_of_lists_and_maps_of_nothing_do_not_become_hundreds(item: bytes) -> None:
    count = 10_000_000 // len(item)
    kilobytes = subprocess.run(
        [sys.executable, "-c", PROGRAM, item.hex(), str(count)],
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    assert int(kilobytes) < 400_000


def peak(decode: Callable[[], object]) -> int:
    """How many bytes refusing takes, at most."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        with pytest.raises(MalformedMessage):
            decode()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [10_000, 200_000])
def test_lists_declared_longer_than_what_follows_take_no_memory_for_it(size: int) -> None:
    nested = (b"\xdd" + (size - 5000).to_bytes(4, "big")) * 1000 + bytes(size - 5000)
    assert peak(lambda: unpack(nested)) < 60_000_000


@pytest.mark.parametrize("name", ["stop_word_ids", "events", "generated_top_n_logprobs"])
def test_lists_of_a_reply_declared_longer_take_no_memory_for_it_either(name: str) -> None:
    lists = b"\xdd\x05\xf5\xe1\x00" * 2
    body = b"\x82" + b"".join(map(pack, ("status", "COMPLETED", name))) + lists
    assert peak(lambda: Assembler().finish(body, Known())) < 1_000_000


def test_the_head_of_a_reply_takes_no_memory_for_what_it_declares() -> None:
    head = b"\x93\x15" + b"\xdd\x05\xf5\xe1\x00" * 5
    assert peak(lambda: unpack_head(head, 2)) < 1_000_000


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(packing, "MAX_CONTAINERS", 100)
    return 100


@pytest.mark.parametrize(
    ("item", "weight"),
    [([], 1), ({}, 3), ({"a": 1}, 3), (msgpack.ExtType(5, b"x"), 3)],
    ids=repr,
)
def test_so_many_lists_and_maps_are_read_and_no_more(few: int, item: Any, weight: int) -> None:
    padding = "x" * few  # or it would be too short to be counted
    most = (few - 1) // weight  # beside the list around them
    value = [*[item] * most, padding]
    assert len(pack(value)) < packing.BYTES_OF_CONTAINER * few
    assert unpack(pack(value)) == value
    with pytest.raises(MalformedMessage, match="more lists and maps"):
        unpack(pack([item, *value]))


def test_a_larger_message_may_hold_more_of_them(few: int) -> None:
    routing = [[1, 2, 3]] * 5000
    assert unpack(pack(routing)) == routing
    top_n = [{"a": -0.5}] * 5000
    assert unpack(pack(top_n)) == top_n


def test_a_long_body_is_read_as_a_short_one_is() -> None:
    body = {"generated_log_probs": [-0.5] * 10_000, "extra": msgpack.Timestamp(5)}
    assert len(pack(body)) > packing.WALKED_BYTES
    assert unpack(pack(body)) == body
    with pytest.raises(MalformedMessage, match="extra data"):
        unpack(pack(body) + b"\xc0")
    with pytest.raises(MalformedMessage, match="no MessagePack"):
        unpack(pack(body)[:-1])
