from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vector_files import read_vectors
from trio_infer import SamplingParams
from trio_infer.models.scalars import INT64_MAX, INT64_MIN
from trio_infer.protocol.dialects import FRAMED, Kind
from trio_infer.protocol.hashing import PrefixHashing
from trio_infer.protocol.wire import (
    MAX_METADATA_BYTES,
    MAX_NESTING,
    ClientCodec,
    ClientMessage,
    CoordinatorCodec,
    Frames,
    MalformedMessage,
    ServerMessage,
    unpack_map,
)

CLIENT = ClientCodec(FRAMED)
COORDINATOR = CoordinatorCodec(FRAMED)

VECTORS = {vector["call"]: vector for vector in read_vectors("framed-wire")}

SUBMITS = (
    "generate, text, unconfigured client",
    "generate, ids, unconfigured client",
    "generate, ids, hashed",
    "generate, ids shorter than a block",
    "generate, text, configured client",
    "generate, ids, load balanced",
    "generate, ids, block size without policy",
    "stream",
)
SENT = ("connect", *SUBMITS, "abort of request 0")
UNDERSTOOD = (*SENT, "pause", "unpause", "shutdown")
"""A coordinator knows more than this client sends so far."""

NOT_YET_SENT = {
    "generate, image, hashed and salted": "media",
    "generate, two videos, tokens expanded already": "media",
    "generate, image tensors": "media",
    "generate, offload params": "offload params",
    "generate, KV handoff": "KV handoff",
    "release handoff 12": "KV handoff",
    "pause": "engine control",
    "unpause": "engine control",
    "suspend": "engine control",
    "resume": "engine control",
    "stop": "engine control",
    "set generation epoch": "engine control",
    "start cuda profiler": "engine control",
    "stop cuda profiler": "engine control",
    "shutdown": "engine control",
}
"""The vectors that no test holds yet, and what they wait for."""


def test_every_vector_is_held_or_listed_as_waiting() -> None:
    assert sorted([*SENT, *NOT_YET_SENT]) == sorted(VECTORS)


def sampling_params_of(call: str) -> dict[str, Any]:
    request = VECTORS[call]["request"]
    return SamplingParams(**{k: v for k, v in request.items() if k != "prompt"}).serialize()


def frames_of(call: str) -> list[bytes]:
    return [bytes.fromhex(frame) for frame in VECTORS[call]["frames_hex"]]


def sent(call: str) -> Frames:
    if call == "connect":
        return CLIENT.connect()
    if call == "abort of request 0":
        return CLIENT.abort(0)
    prompt = VECTORS[call]["request"]["prompt"]
    setting = VECTORS[call]["client"]
    hashing = PrefixHashing(
        setting.get("block_size_tokens"), setting.get("prefix_caching_coordinator_policy")
    )
    return CLIENT.submit(0, CLIENT.prepare(prompt, sampling_params_of(call), hashing.of(prompt)))


@pytest.mark.parametrize("call", SENT)
def test_each_byte_that_is_sent_is_the_protocols(call: str) -> None:
    assert sent(call) == frames_of(call)


@pytest.mark.parametrize("call", UNDERSTOOD)
def test_the_coordinator_understands_what_clients_send(call: str) -> None:
    message = COORDINATOR.decode(frames_of(call))
    if call in SUBMITS:
        prompt = VECTORS[call]["request"]["prompt"]
        expected = ClientMessage(Kind.SUBMIT_REQUEST, 0, prompt, sampling_params_of(call))
    elif call == "abort of request 0":
        expected = ClientMessage(Kind.ABORT_REQUEST, 0)
    else:
        expected = ClientMessage(Kind[call.upper()])
    assert message == expected


PROMPTS = st.text(min_size=1) | st.lists(st.integers(INT64_MIN, INT64_MAX), min_size=1)
IDS = st.integers(0, 2**64 - 1)
SAMPLING = st.builds(
    SamplingParams,
    temperature=st.floats(0, 10),
    num_tokens_to_generate=st.none() | st.integers(0, 2**40),
    stop_words=st.none() | st.lists(st.text(min_size=1)),
    extra=st.dictionaries(st.text().map("x_{}".format), st.booleans(), max_size=20),
)
MAPS = st.dictionaries(st.text(), st.integers(0, 9) | st.text() | st.lists(st.integers(0, 9)))


@given(IDS, PROMPTS, SAMPLING)
def test_a_submit_arrives_as_it_was_meant(
    request_id: int, prompt: str | list[int], params: SamplingParams
) -> None:
    submission = CLIENT.prepare(prompt, params.serialize())
    message = COORDINATOR.decode(CLIENT.submit(request_id, submission))
    assert message == ClientMessage(Kind.SUBMIT_REQUEST, request_id, prompt, params.serialize())


@given(IDS)
def test_connect_and_abort_arrive(request_id: int) -> None:
    assert COORDINATOR.decode(CLIENT.connect()) == ClientMessage(Kind.CONNECT)
    aborted = COORDINATOR.decode(CLIENT.abort(request_id))
    assert aborted == ClientMessage(Kind.ABORT_REQUEST, request_id)


@given(IDS, MAPS)
def test_replies_arrive_with_their_bodies_packed(request_id: int, body: dict[str, Any]) -> None:
    for kind, frames in (
        (Kind.ENGINE_REPLY_PARTIAL, COORDINATOR.partial(request_id, body)),
        (Kind.ENGINE_REPLY, COORDINATOR.reply(request_id, body)),
    ):
        message = CLIENT.decode(frames)
        assert message == ServerMessage(kind, request_id, frames[1])
        assert unpack_map(message.body) == body


def test_a_connect_ack_arrives() -> None:
    assert CLIENT.decode(COORDINATOR.connect_ack()) == ServerMessage(Kind.CONNECT_ACK)


def test_frames_may_be_views_of_a_sockets_memory() -> None:
    frames: Frames = [memoryview(frame) for frame in COORDINATOR.reply(7, {"status": "x"})]
    message = CLIENT.decode(frames)
    assert message.request_id == 7
    assert unpack_map(message.body) == {"status": "x"}


def test_one_packed_request_can_be_sent_under_any_id() -> None:
    submission = CLIENT.prepare([1], {})
    first, again = CLIENT.submit(0, submission), CLIENT.submit(300, submission)
    assert first[1:] == again[1:]
    assert COORDINATOR.decode(again).request_id == 300


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
        ([], [], None, False, "metadata that is no list"),
        ({21: 5}, [BODY], None, False, "no MessagePack"),
        ({"21": 5}, [BODY], None, False, "metadata that is no list"),
        (21, [BODY], None, False, "metadata that is no list"),
        (None, [], None, False, "metadata that is no list"),
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
        ([20, 0.0, {}, None], [TEXT, NONE, NONE, NONE], "SUBMIT_REQUEST with the request id 0.0"),
        ([20, True, {}, None], [TEXT, NONE, NONE, NONE], "with the request id True"),
        ([20, -1, {}, None], [TEXT, NONE, NONE, NONE], "with the request id -1"),
        ([20, 0, [], None], [TEXT, NONE, NONE, NONE], "of a wrong type"),
        ([20, 0, {}, None], [NONE, NONE, NONE, NONE], "of a wrong type"),
        ([20, 0, {}, None], [msgpack.packb(b"hi"), NONE, NONE, NONE], "of a wrong type"),
        ([20, 0, {}, None], [b"\xc1", NONE, NONE, NONE], "no MessagePack"),
        ([20, 0, {}, None], [nested(MAX_NESTING + 1), NONE, NONE, NONE], "levels deep"),
        ([23], [], "ABORT_REQUEST with 0 fields and 1 frames"),
        ([23, 0], [NONE], "ABORT_REQUEST with 1 fields and 2 frames"),
        ([23, None], [], "ABORT_REQUEST with the request id None"),
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
        (packed_map(msgpack.packb(b"k"), b"\xc0"), "key that is no string"),
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
    deepest = unpack_map(packed_map(KEY, nested(MAX_NESTING - 1)))
    assert repr(deepest).count("[") == MAX_NESTING - 1
    assert unpack_map(packed_map(KEY, msgpack.packb(msgpack.Timestamp(1, 2)))) == {
        "k": msgpack.Timestamp(1, 2)
    }
