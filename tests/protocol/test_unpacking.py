"""Large bodies, unpacked in pieces as they would be at once."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.large.bodies import large_reply
from tests.messages import Known
from trio_infer.protocol import packing, unpacking
from trio_infer.protocol.conversion import to_completion
from trio_infer.protocol.packing import (
    MAX_CONTAINERS,
    MAX_NESTING,
    MalformedMessage,
    pack,
    unpack_map,
)
from trio_infer.protocol.unpacking import (
    HEAVY_BODY,
    Unpacking,
    unpack_field,
    unpack_map_in_pieces,
)

if TYPE_CHECKING:
    from trio_infer import Completion

pytestmark = pytest.mark.slow

PADDING = {"padding": "x" * HEAVY_BODY}

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def in_pieces(body: bytes | memoryview, *, lazily: bool = False) -> Any:
    *pieces, value = unpack_map_in_pieces(body, lazily=lazily)
    assert set(pieces) == {None}
    return value


def nested(levels: int) -> bytes:
    """A map with lists in it, so many levels in all."""
    return b"\x81\xa1a" + b"\x91" * (levels - 2) + b"\x90"


@given(st.dictionaries(st.text(), VALUES), st.integers(1, 9))
def test_a_map_in_pieces_is_the_map_wherever_it_is_cut(value: dict[str, Any], size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unpacking, "_PIECE_BYTES", size)
        assert in_pieces(memoryview(msgpack.packb(value))) == value


def test_a_large_reply_in_pieces_is_the_reply() -> None:
    body = large_reply(1000, 40)
    assert in_pieces(body) == unpack_map(body)
    assert sum(1 for _ in unpack_map_in_pieces(body)) > len(body) / 2**15


@pytest.mark.parametrize(
    "body",
    [
        b"",
        msgpack.packb(PADDING)[:-1],
        msgpack.packb(PADDING) + b"\x00",
        msgpack.packb([1] * HEAVY_BODY),
        msgpack.packb({1: 2} | PADDING),
        b"\x81\xa1a\xdd\xff\xff\xff\xff" + bytes(HEAVY_BODY),
        b"\x82\xa1a\xc1" + msgpack.packb("x" * HEAVY_BODY),
        b"\x81\xa1a\xda\xff\xff" + b"\xff" * HEAVY_BODY,
        nested(MAX_NESTING + 1),
        nested(2000),
        b"\x81" * 2000,
    ],
)
def test_what_is_refused_at_once_is_refused_in_pieces(body: bytes) -> None:
    with pytest.raises(MalformedMessage):
        unpack_map(body)
    for lazily in (False, True):
        with pytest.raises(MalformedMessage):
            in_pieces(body, lazily=lazily)


def test_nesting_is_bounded_alike() -> None:
    body = nested(MAX_NESTING)
    assert in_pieces(body) == unpack_map(body)


def test_one_field_of_a_large_body_is_found() -> None:
    field = {"a": {"b": [1, 2]}}
    assert unpack_field(large_reply(1000, 40, **field), "a") == field
    assert unpack_field(large_reply(1000, 40), "a") == {}
    assert unpack_field(msgpack.packb(field | {"c": 1}), "a")["a"] == field["a"]


@pytest.mark.parametrize(
    "body",
    [
        large_reply(1000, 40)[:-1],
        msgpack.packb([1] * HEAVY_BODY),
        b"\x82" + nested(MAX_NESTING + 1)[1:] + msgpack.packb("b") + msgpack.packb(PADDING),
        msgpack.packb({"a": [[]] * (MAX_CONTAINERS + 1)}),
    ],
    ids=["cut off", "a list", "nested too deeply", "millions of lists of nothing"],
)
def test_a_large_body_in_which_to_find_a_field_may_make_no_sense(body: bytes) -> None:
    with pytest.raises(MalformedMessage):
        unpack_field(body, "a")


def test_objects_that_somebody_has_frozen_stay_frozen() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        in_pieces(large_reply(1000, 40))
        assert frozen - 1000 < gc.get_freeze_count() <= frozen
    finally:
        gc.unfreeze()


# What stays packed

KNOWN = Known()

LONG = [[[1, 2], [3, 4]], [[5, 6], [7, 8]]] * 20_000  # 280 KB

WRAPPED = {
    "bare": LONG,
    "tensor": ["tensor", LONG],
    "ndarray": ["ndarray", {"data": LONG, "dtype": "int16"}],
    "ndarray, its dtype first": ["ndarray", {"dtype": "int16", "more": [LONG[:3]], "data": LONG}],
}


def unusually_packed(value: list[Any]) -> bytes:
    """The same, with longer heads than it needs."""
    tag, content = value
    head = b"\xdd\x00\x00\x00\x02\xdb\x00\x00\x00" + bytes([len(tag)]) + bytes(tag, "ascii")
    return head + pack(content)


def finished_request(routing_indices: bytes) -> bytes:
    field = pack("routing_indices") + routing_indices
    return b"\x83\xa6status\xa9COMPLETED" + field + pack("new") + pack([[1]])


def completion_of(fields: dict[str, Any]) -> Completion:
    return to_completion(fields, KNOWN)


@pytest.mark.parametrize("value", WRAPPED.values(), ids=WRAPPED.keys())
def test_a_long_array_that_nobody_has_looked_at_is_the_same_to_whoever_looks(value: Any) -> None:
    bodies = [msgpack.packb(value)] + ([unusually_packed(value)] if len(value) == 2 else [])
    for body in map(finished_request, bodies):
        want = completion_of(unpack_map(body))
        gc.collect()
        before = len(gc.get_objects())
        completion, to_array = (completion_of(in_pieces(body, lazily=True)) for _ in range(2))
        gc.collect()
        assert len(gc.get_objects()) - before < 1000
        array, wanted = (c.array("routing_indices") for c in (to_array, want))
        assert array.dtype == wanted.dtype
        assert (array == wanted).all()
        assert completion.routing_indices == want.routing_indices == LONG
        assert completion.routing_indices is completion.routing_indices
        assert completion == want


@given(
    VALUES
    | st.tuples(
        st.sampled_from(["tensor", "ndarray", "x"]),
        VALUES | st.dictionaries(st.sampled_from(["data", "dtype", "x"]), VALUES),
    ),
    st.integers(1, 9),
)
@example(["tensor", [[1], [2]], 3], 9)
@example(["ndarray", {"data": [[1], [2]]}, 3], 9)
def test_whatever_the_array_is_it_comes_out_or_is_refused_as_in_a_small_reply(
    value: Any, size: int
) -> None:
    body = finished_request(msgpack.packb(value))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unpacking, "_PIECE_BYTES", size)
        patch.setattr(unpacking, "HEAVY_BODY", 1)
        try:
            completion = completion_of(unpack_map(body))
        except MalformedMessage:
            with pytest.raises(MalformedMessage):
                completion_of(in_pieces(body, lazily=True))
        else:
            assert completion_of(in_pieces(body, lazily=True)) == completion


NONSENSE = {
    "text that is none": b"\xa1\xff",
    "a key that is a number": b"\x81\x01\x01",
    "an extension of an unknown kind": b"\xd4\x80\x00",
    "a timestamp of no length": b"\xd4\xff\x00",
    "lists nested too deeply": b"\x91" * (MAX_NESTING - 2) + b"\x90",
    "maps nested too deeply": b"\x81\xa0" * (MAX_NESTING - 2) + b"\x80",
}


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE.keys())
@pytest.mark.parametrize("start", [b"", b"\x92\xa6tensor", b"\x92\xa7ndarray\x81\xa4data"])
def test_a_malformed_array_is_refused_when_it_comes_and_not_when_somebody_looks(
    start: bytes, nonsense: bytes
) -> None:
    rows = 70_000
    head = b"\xdd" + (2 * rows + 1).to_bytes(4, "big")
    for content in (b"\x01", nonsense):
        array = head + b"\x93\x01\x02\x03\x01" * rows + content
        body = finished_request(start + array)
        for unpack in (unpack_map, lambda body: in_pieces(body, lazily=True)):
            if content is nonsense:
                with pytest.raises(MalformedMessage):
                    unpack(body)
            else:
                unpack(body)


@pytest.mark.parametrize(
    ("item", "weight"), [(b"\x90", 1), (b"\x80", 3), (b"\xd4\x05\x00", 3)], ids=str
)
def test_lists_and_maps_that_nobody_looks_at_are_counted_like_others(
    item: bytes, weight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "MAX_CONTAINERS", 2**18)
    count = 2**18 // weight
    padding = b"\xa0" * 2**18
    for surplus, refused in ((-10, False), (10, True)):
        items = count + surplus
        head = b"\xdd" + (items + len(padding)).to_bytes(4, "big")
        body = finished_request(head + item * items + padding)
        assert len(body) // packing.BYTES_OF_CONTAINER < 2**18
        for unpack in (unpack_map, lambda body: in_pieces(body, lazily=True)):
            if refused:
                with pytest.raises(MalformedMessage, match="more lists and maps"):
                    unpack(body)
            else:
                unpack(body)


def test_the_collector_does_not_walk_the_lists_of_a_large_reply_that_nobody_has_looked_at() -> None:
    collections: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            collections.append(info["generation"])

    body = large_reply(8000, 100)
    gc.collect()
    gc.callbacks.append(note)
    try:
        completion = completion_of(in_pieces(body, lazily=True))
    finally:
        gc.callbacks.remove(note)
    assert 2 not in collections
    assert completion.routing_indices is not None
    assert len(completion.routing_indices) == 8000


@pytest.mark.parametrize("pieces", [0, 1, 1000])
def test_what_is_left_of_a_large_reply_is_unpacked_for_who_cannot_wait(pieces: int) -> None:
    unpacking = Unpacking(msgpack.packb(PADDING))
    for _ in range(pieces):
        unpacking.go_on()
    assert unpacking.fields() == unpacking.fields() == PADDING
    assert not unpacking.go_on()


def test_a_large_reply_that_makes_no_sense_makes_none_to_whoever_asks() -> None:
    unpacking = Unpacking(msgpack.packb(PADDING)[:-1])
    while unpacking.go_on():
        pass
    for _ in range(2):
        assert not unpacking.go_on()
        with pytest.raises(MalformedMessage, match="incomplete input"):
            unpacking.fields()
