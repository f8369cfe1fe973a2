"""Large bodies, unpacked in pieces as they would be at once."""

from __future__ import annotations

import gc
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.large.bodies import large_reply
from trio_infer.protocol import unpacking
from trio_infer.protocol.packing import MAX_NESTING, MalformedMessage, unpack_map
from trio_infer.protocol.unpacking import HEAVY_BODY, unpack_field, unpack_map_in_pieces

PADDING = {"padding": "x" * HEAVY_BODY}

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def in_pieces(body: bytes | memoryview) -> Any:
    *pieces, value = unpack_map_in_pieces(body)
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
    with pytest.raises(MalformedMessage):
        in_pieces(body)


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
    ],
    ids=["cut off", "a list", "nested too deeply"],
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
