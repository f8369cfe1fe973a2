from __future__ import annotations

from typing import Any

import msgpack
import pytest

from trio_infer.protocol.client_codec import MAX_METADATA_BYTES, ClientCodec
from trio_infer.protocol.coordinator_codec import CoordinatorCodec
from trio_infer.protocol.dialect import Dialect, Kind
from trio_infer.protocol.dialects import DIALECTS, FRAMED
from trio_infer.protocol.packing import MAX_NESTING, Frames, MalformedMessage, unpack_map

CLIENT = ClientCodec(FRAMED)
COORDINATOR = CoordinatorCodec(FRAMED)

# --- replies of one frame that make no sense ------------------------------------------------------


@pytest.mark.parametrize(
    ("frames", "request_id", "is_final", "complaint"),
    [
        # of a request that can be named
        ([[21, 5]], 5, True, "ENGINE_REPLY with 1 fields and 1 frames"),
        ([[21, 5, {}, None]], 5, True, "ENGINE_REPLY with 3 fields and 1 frames"),
        ([[21, 5], {}], 5, True, "ENGINE_REPLY with 1 fields and 2 frames"),
        ([[21, 5, {}], {}], 5, True, "ENGINE_REPLY with 2 fields and 2 frames"),
        ([[22, 5]], 5, False, "ENGINE_REPLY_PARTIAL with 1 fields"),
        # of one that cannot
        ([[21]], None, True, "ENGINE_REPLY with 0 fields"),
        ([[21, 5.0, {}]], None, True, "ENGINE_REPLY with 2 fields"),
        ([[21, True, {}]], None, True, "ENGINE_REPLY with 2 fields"),
        ([[21, -1, {}]], None, True, "ENGINE_REPLY with 2 fields"),
        ([[21, "5", {}]], None, True, "ENGINE_REPLY with 2 fields"),
        ([[21, None, {}]], None, True, "ENGINE_REPLY with 2 fields"),
        ([[22, [5], {}]], None, False, "ENGINE_REPLY_PARTIAL with 2 fields"),
        # of none at all
        ([[1, 5]], None, False, "a CONNECT_ACK that carries something"),
        ([[1], None], None, False, "a CONNECT_ACK that carries something"),
        ([[0]], None, False, "CONNECT is nothing that a coordinator sends"),
        ([[99, 5, {}]], None, False, "unknown header 99"),
        ([[True, 5, {}]], None, False, "unknown header True"),
        ([[21.0, 5, {}]], None, False, "unknown header 21.0"),
        ([["x" * 100, 5, {}]], None, False, "no MessagePack"),
        ([[]], None, False, "no list"),
        ([{21: 5}], None, False, "no MessagePack"),
        ([21], None, False, "no MessagePack"),
        ([None], None, False, "no MessagePack"),
    ],
    ids=str,
)
def test_a_reply_of_one_frame_that_makes_no_sense_is_laid_at_the_right_door(
    frames: list[Any], request_id: int | None, is_final: object, complaint: str
) -> None:
    with pytest.raises(MalformedMessage, match=complaint) as caught:
        ClientCodec(DIALECTS["0.20"]).decode([msgpack.packb(frame) for frame in frames])
    assert caught.value.request_id == request_id
    if request_id is not None:
        assert caught.value.is_final is is_final


@pytest.mark.parametrize(
    ("frame", "complaint"),
    [
        (b"", "no MessagePack"),
        (b"\xc1", "no MessagePack"),
        (b"\x93", "no MessagePack"),
        (b"\x93\x15", "no MessagePack"),
        (b"\x93\x15\xcd\x01", "no MessagePack"),
        (b"\x93\x15\xa1\xff\xc0", "no MessagePack"),
        (b"\x91\x01\xc0", "a CONNECT_ACK that carries something"),
        (b"\x93\xc7\x0c\xff" + b"\xff" * 12, "no MessagePack"),
    ],
    ids=repr,
)
def test_bytes_that_are_no_reply_of_one_frame(frame: bytes, complaint: str) -> None:
    with pytest.raises(MalformedMessage, match=complaint) as caught:
        ClientCodec(DIALECTS["0.20"]).decode([frame])
    assert caught.value.request_id is None


def test_a_reply_cut_short_and_followed_by_rubbish_fails_its_request() -> None:
    with pytest.raises(MalformedMessage, match="ENGINE_REPLY with 1 fields") as caught:
        ClientCodec(DIALECTS["0.20"]).decode([b"\x92\x15\x05\xc0"])
    assert caught.value.request_id == 5


def test_the_head_of_a_huge_reply_is_read_without_what_follows() -> None:
    nonsense = b"\xc1" * 1_000_000
    message = ClientCodec(DIALECTS["0.20"]).decode([b"\x93\x15\x05" + nonsense])
    assert (message.kind, message.request_id) == (Kind.ENGINE_REPLY, 5)
    assert message.body == nonsense


# --- replies of several frames that make no sense -------------------------------------------------

BODY = msgpack.packb({})


@pytest.mark.parametrize(
    ("metadata", "bodies", "request_id", "is_final", "complaint"),
    [
        # of a request that can be named
        ([21, 5], [], 5, True, "ENGINE_REPLY with 1 fields and 1 frames"),
        ([21, 5], [BODY, BODY], 5, True, "ENGINE_REPLY with 1 fields and 3 frames"),
        ([21, 5, 6], [BODY], 5, True, "ENGINE_REPLY with 2 fields and 2 frames"),
        ([22, 5], [], 5, False, "ENGINE_REPLY_PARTIAL with 1 fields and 1 frames"),
        ([22, 5, None], [BODY], 5, False, "ENGINE_REPLY_PARTIAL with 2 fields and 2 frames"),
        # of one that cannot
        ([21], [BODY], None, True, "ENGINE_REPLY with 0 fields"),
        ([21, 5.0], [BODY], None, True, "ENGINE_REPLY with 1 fields"),
        ([21, True], [BODY], None, True, "ENGINE_REPLY with 1 fields"),
        ([21, -1], [BODY], None, True, "ENGINE_REPLY with 1 fields"),
        ([21, "5"], [BODY], None, True, "ENGINE_REPLY with 1 fields"),
        ([21, None], [BODY], None, True, "ENGINE_REPLY with 1 fields"),
        ([22, [5]], [BODY], None, False, "ENGINE_REPLY_PARTIAL with 1 fields"),
        # of none at all
        ([1, 5], [], None, False, "a CONNECT_ACK that carries something"),
        ([1], [BODY], None, False, "a CONNECT_ACK that carries something"),
        ([0], [], None, False, "CONNECT is nothing that a coordinator sends"),
        ([23, 5], [], None, False, "ABORT_REQUEST is nothing that a coordinator sends"),
        ([20, 5], [BODY], None, False, "SUBMIT_REQUEST is nothing that a coordinator sends"),
        ([99, 5], [BODY], None, False, "unknown header 99"),
        ([True], [], None, False, "unknown header True"),
        ([21.0, 5], [BODY], None, False, "unknown header 21.0"),
        (["21", 5], [BODY], None, False, "unknown header '21'"),
        ([[21], 5], [BODY], None, False, r"unknown header \[21\]"),
        ([msgpack.ExtType(21, b"")], [BODY], None, False, "unknown header ExtType"),
        ([msgpack.Timestamp(21), 5], [BODY], None, False, "unknown header Timestamp"),
        ([], [], None, False, "no list"),
        ({21: 5}, [BODY], None, False, "no MessagePack"),
        ({"21": 5}, [BODY], None, False, "no list"),
        (21, [BODY], None, False, "no list"),
        (None, [], None, False, "no list"),
    ],
    ids=str,
)
def test_a_reply_that_makes_no_sense_is_laid_at_the_right_door(
    metadata: object, bodies: list[bytes], request_id: int | None, is_final: object, complaint: str
) -> None:
    with pytest.raises(MalformedMessage, match=complaint) as caught:
        CLIENT.decode([msgpack.packb(metadata), *bodies])
    assert caught.value.request_id == request_id
    if request_id is not None:
        assert caught.value.is_final is is_final


def nested(levels: int, inner: bytes = b"\xc0") -> bytes:
    """A value inside so many lists."""
    return b"\x91" * levels + inner


@pytest.mark.parametrize(
    ("frame", "complaint"),
    [
        (b"", "no MessagePack"),
        (b"\xc1", "no MessagePack"),
        (b"\x92\x15", "no MessagePack"),
        (b"\x92\x15\x05\x00", "no MessagePack"),
        (b"\x92\x15\xa1\xff", "no MessagePack"),
        (b"\xdd\xff\xff\xff\xff", "no MessagePack"),
        (msgpack.packb([21, "x" * MAX_METADATA_BYTES]), "metadata of"),
        (nested(MAX_NESTING + 1), "levels deep"),
        (nested(1000), "metadata of"),
    ],
    ids=repr,
)
def test_bytes_that_are_no_metadata(frame: bytes, complaint: str) -> None:
    with pytest.raises(MalformedMessage, match=complaint) as caught:
        CLIENT.decode([frame, BODY])
    assert caught.value.request_id is None


def test_metadata_as_large_as_a_body_is_refused_though_its_bytes_may_change() -> None:
    with pytest.raises(MalformedMessage, match="metadata of"):
        CLIENT.decode([memoryview(bytearray(2**16)), BODY])


@pytest.mark.parametrize("taken", [bytes, memoryview])
def test_metadata_of_a_whole_memory_full_is_not_unpacked_to_be_refused(taken: Any) -> None:
    with pytest.raises(MalformedMessage, match="metadata of 65538 bytes"):
        CLIENT.decode([taken(b"\x92\x15" + b"\xc1" * 2**16), BODY])


@pytest.mark.parametrize("kind", [Kind.ENGINE_REPLY, Kind.ENGINE_REPLY_PARTIAL])
@pytest.mark.parametrize("dialect", [CLIENT.dialect, DIALECTS["0.20"]], ids=lambda each: each.name)
@pytest.mark.parametrize("number", [0, 127, 128, 255, 256, 2**16, 2**32, 2**64 - 1])
def test_a_reply_finds_its_request_however_many_there_have_been(
    kind: Kind, dialect: Dialect, number: int
) -> None:
    codec, header = ClientCodec(dialect), dialect.number(kind)
    packed = msgpack.packb(number)
    for packed_id in (packed, b"\xcf" + number.to_bytes(8, "big")):  # and as others may pack it
        head = bytes((0x92 if dialect.is_multipart else 0x93, header)) + packed_id
        frames: Frames = [head, BODY] if dialect.is_multipart else [head + BODY]
        assert codec.decode(frames) == (kind, number, BODY)
        for length in range(2, len(head)):
            with pytest.raises(MalformedMessage):
                codec.decode([head[:length], *frames[1:]])


def test_partial_results_that_begin_alike_are_read_alike_and_no_others_with_them() -> None:
    codec = ClientCodec(CLIENT.dialect)
    metadata = msgpack.packb([22, 5])
    for body in (b"\x80", b"\x81"):
        assert codec.decode([metadata, body]) == (Kind.ENGINE_REPLY_PARTIAL, 5, body)
    with pytest.raises(MalformedMessage, match="ENGINE_REPLY_PARTIAL with 1 fields and 3 frames"):
        codec.decode([metadata, BODY, BODY])
    with pytest.raises(MalformedMessage, match="ENGINE_REPLY_PARTIAL with 1 fields and 1 frames"):
        codec.decode([metadata])
    assert codec.decode([msgpack.packb([21, 5]), BODY]) == (Kind.ENGINE_REPLY, 5, BODY)


def test_a_message_without_frames() -> None:
    for codec in (CLIENT, COORDINATOR):
        with pytest.raises(MalformedMessage, match="without frames"):
            codec.decode([])


NONE = msgpack.packb(None)
TEXT = msgpack.packb("hi")


@pytest.mark.parametrize(
    ("metadata", "bodies", "complaint"),
    [
        ([20, 0, {}, None], [TEXT, NONE, NONE], "SUBMIT_REQUEST with 3 fields and 4 frames"),
        ([20, 0, {}], [TEXT, NONE, NONE, NONE], "SUBMIT_REQUEST with 2 fields and 5 frames"),
        ([20, 0.0, {}, None], [TEXT, NONE, NONE, NONE], "SUBMIT_REQUEST with the request_id 0.0"),
        ([20, True, {}, None], [TEXT, NONE, NONE, NONE], "with the request_id True"),
        ([20, -1, {}, None], [TEXT, NONE, NONE, NONE], "with the request_id -1"),
        ([20, 0, [], None], [TEXT, NONE, NONE, NONE], r"with the sampling_params \[\]"),
        ([20, 0, {}, None], [NONE, NONE, NONE, NONE], "with the prompt None"),
        ([20, 0, {}, None], [msgpack.packb(b"hi"), NONE, NONE, NONE], "with the prompt b'hi'"),
        ([20, 0, {}, None], [TEXT, TEXT, NONE, NONE], "with the block_hashes 'hi'"),
        ([20, 0, {}, None], [TEXT, msgpack.packb([1.0]), NONE, NONE], "with the block_hashes"),
        ([20, 0, {}, None], [TEXT, NONE, b"\xc1", NONE], "no MessagePack"),
        ([44], [], "SET_GENERATION_EPOCH with 0 fields"),
        ([44, None], [], "SET_GENERATION_EPOCH with the epoch None"),
        ([20, 0, {}, None], [b"\xc1", NONE, NONE, NONE], "no MessagePack"),
        ([20, 0, {}, None], [nested(MAX_NESTING + 1), NONE, NONE, NONE], "levels deep"),
        ([23], [], "ABORT_REQUEST with 0 fields and 1 frames"),
        ([23, 0], [NONE], "ABORT_REQUEST with 1 fields and 2 frames"),
        ([23, None], [], "ABORT_REQUEST with the request_id None"),
        ([0, 0], [], "CONNECT with 1 fields"),
        ([40, 1], [], "PAUSE with 1 fields"),
        ([1], [], "CONNECT_ACK with 0 fields"),
        ([21, 0], [NONE], "ENGINE_REPLY with 1 fields"),
        ([60], [], "unknown header 60"),
    ],
    ids=str,
)
def test_what_no_client_of_this_dialect_sends(
    metadata: object, bodies: list[bytes], complaint: str
) -> None:
    with pytest.raises(MalformedMessage, match=complaint):
        COORDINATOR.decode([msgpack.packb(metadata), *bodies])


def test_a_header_in_a_thousand_lists_does_not_end_the_coordinator() -> None:
    with pytest.raises(MalformedMessage, match="levels deep"):
        COORDINATOR.decode([nested(1000)])


def packed_map(key: bytes, value: bytes) -> bytes:
    return b"\x81" + key + value


KEY = msgpack.packb("k")


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "no MessagePack"),
        (BODY + b"\xc0", "no MessagePack"),
        (packed_map(KEY, b"\xa1\xff"), "no MessagePack"),
        (packed_map(KEY, b""), "no MessagePack"),
        (packed_map(b"\x01", b"\xc0"), "no MessagePack"),
        (packed_map(b"\xc0", b"\xc0"), "no MessagePack"),
        (packed_map(b"\x90", b"\xc0"), "no MessagePack"),
        (packed_map(KEY, nested(MAX_NESTING)), "levels deep"),
        (packed_map(KEY, nested(1022)), "levels deep"),
        (packed_map(KEY, nested(1023)), "no MessagePack|levels deep"),
        (packed_map(KEY, nested(100_000)), "no MessagePack"),
        (packed_map(KEY, KEY.join([b"\x81"] * 500) + KEY + b"\xc0"), "levels deep"),
        (packed_map(KEY, b"\xdd\xff\xff\xff\xff"), "no MessagePack"),
        (packed_map(KEY, b"\xdf\xff\xff\xff\xff"), "no MessagePack"),
        (packed_map(KEY, b"\xc7\x0c\xff" + b"\xff" * 12), "no MessagePack"),
        (msgpack.packb([]), "a map was expected, not list"),
        (msgpack.packb(None), "a map was expected, not NoneType"),
        (msgpack.packb("status"), "a map was expected, not str"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_body_that_is_no_map_of_fields(body: bytes, complaint: str) -> None:
    with pytest.raises(MalformedMessage, match=complaint):
        unpack_map(body)


def test_what_is_odd_but_harmless_passes() -> None:
    assert unpack_map(b"\x82" + (KEY + b"\x01") + (KEY + b"\x02")) == {"k": 2}
    deepest = nested(MAX_NESTING - 1)
    with_another_beside = b"\x92" + nested(MAX_NESTING - 2) + b"\x90"
    for value in (deepest, with_another_beside):
        assert unpack_map(packed_map(KEY, value)) == {"k": msgpack.unpackb(value)}
    assert unpack_map(packed_map(KEY, msgpack.packb(msgpack.Timestamp(1, 2)))) == {
        "k": msgpack.Timestamp(1, 2)
    }
