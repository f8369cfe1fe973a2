from __future__ import annotations

from typing import Any

import attrs
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.messages import laid_out
from tests.vector_files import read_vectors
from trio_infer import SamplingParams, UnsupportedByDialect
from trio_infer.models.scalars import INT64_MAX, INT64_MIN
from trio_infer.protocol.client_codec import ClientCodec, ServerMessage
from trio_infer.protocol.coordinator_codec import ClientMessage, CoordinatorCodec
from trio_infer.protocol.dialect import Dialect, Kind
from trio_infer.protocol.dialects import DIALECTS, FRAMED
from trio_infer.protocol.hashing import PrefixHashing
from trio_infer.protocol.packing import Frames, MalformedMessage, unpack_map
from trio_infer.protocol.sampling import sampling_fields

CLIENT = ClientCodec(FRAMED)
COORDINATOR = CoordinatorCodec(FRAMED)

# --- the bytes of the framed dialect, by the protocol's description -------------------------------

FRAMED_VECTORS = {vector["call"]: vector for vector in read_vectors("framed-wire")}

SUBMITS = (
    "generate, text, unconfigured client",
    "generate, ids, unconfigured client",
    "generate, ids, hashed",
    "generate, ids shorter than a block",
    "generate, text, configured client",
    "generate, ids, load balanced",
    "generate, ids, block size without policy",
    "generate, offload params",
    "stream",
)
SIGNALS = {
    "pause": Kind.PAUSE,
    "unpause": Kind.UNPAUSE,
    "suspend": Kind.SUSPEND,
    "resume": Kind.RESUME,
    "stop": Kind.STOP,
    "set generation epoch": Kind.SET_GENERATION_EPOCH,
    "start cuda profiler": Kind.START_CUDA_PROFILER,
    "stop cuda profiler": Kind.STOP_CUDA_PROFILER,
    "shutdown": Kind.SHUTDOWN,
}
SENT = ("connect", *SUBMITS, "abort of request 0", *SIGNALS)

NOT_YET_SENT = {
    "generate, image, hashed and salted": "media",
    "generate, two videos, tokens expanded already": "media",
    "generate, image tensors": "media",
    "generate, KV handoff": "KV handoff",
    "release handoff 12": "KV handoff",
}
"""The vectors that no test holds yet, and what they wait for."""


def test_every_vector_is_held_or_listed_as_waiting() -> None:
    assert sorted([*SENT, *NOT_YET_SENT]) == sorted(FRAMED_VECTORS)


def params_of(call: str) -> dict[str, Any]:
    request = FRAMED_VECTORS[call]["request"]
    others = ("prompt", "offload_params")
    return SamplingParams(**{k: v for k, v in request.items() if k not in others}).serialize()


def frames_of(call: str) -> list[bytes]:
    return [bytes.fromhex(frame) for frame in FRAMED_VECTORS[call]["frames_hex"]]


def expected_of(call: str) -> ClientMessage:
    """What a coordinator should understand."""
    if call == "connect":
        return ClientMessage(kind=Kind.CONNECT)
    if call == "abort of request 0":
        return ClientMessage(kind=Kind.ABORT_REQUEST, request_id=0)
    if call in SIGNALS:
        return ClientMessage(
            kind=SIGNALS[call], epoch=next(iter(FRAMED_VECTORS[call]["request"]["args"]), None)
        )
    request = FRAMED_VECTORS[call]["request"]
    setting = FRAMED_VECTORS[call]["client"]
    hashing = PrefixHashing(
        setting.get("block_size_tokens"), setting.get("prefix_caching_coordinator_policy")
    )
    return ClientMessage(
        kind=Kind.SUBMIT_REQUEST,
        request_id=0,
        prompt=request["prompt"],
        sampling_params=params_of(call),
        block_hashes=hashing.of(request["prompt"]),
        offload_params=request.get("offload_params"),
    )


def submitted(codec: ClientCodec, message: ClientMessage) -> Frames:
    """The frames of a submission."""
    assert message.prompt is not None
    assert message.sampling_params is not None
    assert message.request_id is not None
    prepared = laid_out(
        codec,
        message.prompt,
        message.sampling_params,
        message.kind,
        **{
            field.name: value
            for field in attrs.fields(ClientMessage)[4:]
            if (value := getattr(message, field.name)) is not None
        },
    )
    return codec.submit(message.request_id, prepared)


def sent(codec: ClientCodec, message: ClientMessage) -> Frames:
    """The frames of any message."""
    if message.kind is Kind.CONNECT:
        return codec.connect()
    if message.kind is Kind.ABORT_REQUEST:
        assert message.request_id is not None
        return codec.abort(message.request_id)
    if message.kind in (Kind.SUBMIT_REQUEST, Kind.SUBMIT_REQUEST_WITH_KV):
        return submitted(codec, message)
    if message.kind is Kind.RELEASE_KV:
        assert message.request_id is not None
        return codec.release(message.request_id)
    values = {} if message.epoch is None else {"epoch": message.epoch}
    return codec.signal(message.kind, **values)


@pytest.mark.parametrize("call", SENT)
def test_each_byte_that_is_sent_is_the_protocols(call: str) -> None:
    assert sent(CLIENT, expected_of(call)) == frames_of(call)


@pytest.mark.parametrize("call", SENT)
def test_the_coordinator_understands_what_clients_send(call: str) -> None:
    assert COORDINATOR.decode(frames_of(call)) == expected_of(call)


# --- the bytes of the other dialects, recorded from megatron-core ---------------------------------

RECORDED = {
    f"{name}: {vector['call']}": (DIALECTS[name], vector)
    for name in ("0.20", "0.19", "0.18")
    for vector in read_vectors(f"{name}-wire")
}

CALLS: dict[str, tuple[Kind, Any, dict[str, Any]]] = {
    "start() -> CONNECT": (Kind.CONNECT, None, {}),
    "add_request('hi', SamplingParams())": (Kind.SUBMIT_REQUEST, "hi", {}),
    "add_request([1,2,300,70000,5000000000], SamplingParams(top_k=1))": (
        Kind.SUBMIT_REQUEST,
        [1, 2, 300, 70000, 5000000000],
        {"top_k": 1},
    ),
    "add_request('', SamplingParams())": (Kind.SUBMIT_REQUEST, "", {}),
    "add_request([], SamplingParams())": (Kind.SUBMIT_REQUEST, [], {}),
    "add_request_streaming('hi', SamplingParams(num_tokens_to_generate=4, streaming_interval=2))": (
        Kind.SUBMIT_REQUEST,
        "hi",
        {"num_tokens_to_generate": 4, "streaming_interval": 2, "streaming": True},
    ),
    "abort_request(0)": (Kind.ABORT_REQUEST, None, {}),
    "pause_engines()": (Kind.PAUSE, None, {}),
    "unpause_engines()": (Kind.UNPAUSE, None, {}),
    "suspend_engines()": (Kind.SUSPEND, None, {}),
    "resume_engines()": (Kind.RESUME, None, {}),
    "start_cuda_profiler()": (Kind.START_CUDA_PROFILER, None, {}),
    "stop_cuda_profiler()": (Kind.STOP_CUDA_PROFILER, None, {}),
    "shutdown_coordinator()": (Kind.SHUTDOWN, None, {}),
}
"""What megatron-core's client was told, and what that means here."""

NOT_YET_CALLED = {
    "add_request('see', SamplingParams(), multi_modal_data={'image': b'\\x89PNG'})": "media",
    "add_request_with_kv_handoff([1,2,3], SamplingParams(num_tokens_to_generate=8), "
    "{'peer':'x','blob':b'\\x00\\x01'}, [7,8])": "KV handoff",
    "release_handoff(12)": "KV handoff",
}


def test_every_recorded_call_is_held_or_listed_as_waiting() -> None:
    assert {vector["call"] for _, vector in RECORDED.values()} == {*CALLS, *NOT_YET_CALLED}


HELD = [name for name, (_, vector) in RECORDED.items() if vector["call"] in CALLS]


def recorded_message(name: str) -> tuple[Dialect, ClientMessage, list[bytes]]:
    """What a recorded call means, and its frames."""
    dialect, vector = RECORDED[name]
    kind, prompt, kwargs = CALLS[vector["call"]]
    ((hex_frame,),), ((_, *fields),) = vector["frames_hex"], vector["decoded"]
    request_id = fields[0] if fields else None
    streaming = kwargs.get("streaming", False)
    params = SamplingParams(**kwargs)
    message = ClientMessage(
        kind=kind,
        request_id=request_id,
        prompt=prompt,
        sampling_params=(
            None if prompt is None else sampling_fields(params, dialect, streaming=streaming)
        ),
    )
    return dialect, message, [bytes.fromhex(hex_frame)]


@pytest.mark.parametrize("name", HELD)
def test_each_byte_that_is_sent_is_megatron_cores_own(name: str) -> None:
    dialect, message, frames = recorded_message(name)
    assert sent(ClientCodec(dialect), message) == frames


@pytest.mark.parametrize("name", HELD)
def test_the_coordinator_understands_megatron_cores_own_client(name: str) -> None:
    dialect, message, frames = recorded_message(name)
    assert CoordinatorCodec(dialect).decode(frames) == message


@pytest.mark.parametrize("name", [name for name in HELD if "CONNECT" in name])
def test_the_recorded_answer_ends_the_handshake(name: str) -> None:
    dialect, vector = RECORDED[name]
    frames = [bytes.fromhex(vector["reply_hex"])]
    assert ClientCodec(dialect).decode(frames) == ServerMessage(Kind.CONNECT_ACK)
    assert CoordinatorCodec(dialect).connect_ack() == frames


# --- both roles with each other -------------------------------------------------------------------

EVERY = st.sampled_from(list(DIALECTS.values()))
PROMPTS = st.text(min_size=1) | st.lists(st.integers(INT64_MIN, INT64_MAX), min_size=1)
IDS = st.integers(0, 2**64 - 1)
SAMPLING = st.builds(
    SamplingParams,
    temperature=st.floats(0, 10),
    num_tokens_to_generate=st.none() | st.integers(0, 2**40),
    stop_words=st.none() | st.lists(st.text(min_size=1)),
    extra=st.dictionaries(st.text().map("x_{}".format), st.booleans(), max_size=20),
)
HASHES = st.none() | st.lists(st.integers(1, 2**63 - 1))
OFFLOAD = st.none() | st.dictionaries(st.text(), st.integers(0, 9) | st.binary())
MAPS = st.dictionaries(st.text(), st.integers(0, 9) | st.text() | st.lists(st.integers(0, 9)))


SUBMISSIONS = st.builds(
    ClientMessage,
    kind=st.just(Kind.SUBMIT_REQUEST),
    request_id=IDS,
    prompt=PROMPTS,
    block_hashes=HASHES,
    offload_params=OFFLOAD,
)


@given(EVERY, SUBMISSIONS, SAMPLING)
def test_a_submit_arrives_as_it_was_meant(
    dialect: Dialect, submission: ClientMessage, params: SamplingParams
) -> None:
    message = attrs.evolve(
        submission,
        sampling_params=sampling_fields(params, dialect),
        block_hashes=submission.block_hashes if dialect.can_hash_blocks else None,
        offload_params=submission.offload_params if dialect.can_offload else None,
    )
    frames = submitted(ClientCodec(dialect), message)
    assert CoordinatorCodec(dialect).decode(frames) == message


@given(EVERY, IDS)
def test_connect_abort_and_signals_arrive(dialect: Dialect, number: int) -> None:
    kinds = {Kind.CONNECT, Kind.ABORT_REQUEST, *SIGNALS.values()} & dialect.headers.keys()
    for kind in kinds:
        message = ClientMessage(
            kind=kind,
            request_id=number if kind is Kind.ABORT_REQUEST else None,
            epoch=number if kind is Kind.SET_GENERATION_EPOCH else None,
        )
        frames = sent(ClientCodec(dialect), message)
        assert CoordinatorCodec(dialect).decode(frames) == message


@given(EVERY, IDS, MAPS)
def test_replies_arrive_with_their_bodies_packed(
    dialect: Dialect, request_id: int, body: dict[str, Any]
) -> None:
    coordinator = CoordinatorCodec(dialect)
    replies = [(Kind.ENGINE_REPLY, coordinator.reply(request_id, body))]
    if dialect.can_stream:
        replies.append((Kind.ENGINE_REPLY_PARTIAL, coordinator.partial(request_id, body)))
    for kind, frames in replies:
        message = ClientCodec(dialect).decode(frames)
        assert message == ServerMessage(kind, request_id, msgpack.packb(body))
        assert unpack_map(message.body) == body


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=repr)
def test_frames_may_be_views_of_a_sockets_memory(dialect: Dialect) -> None:
    frames: Frames = [
        memoryview(frame) for frame in CoordinatorCodec(dialect).reply(7, {"status": "x"})
    ]
    message = ClientCodec(dialect).decode(frames)
    assert message.request_id == 7
    assert unpack_map(message.body) == {"status": "x"}


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=repr)
def test_one_packed_request_can_be_sent_under_any_id(dialect: Dialect) -> None:
    codec, coordinator = ClientCodec(dialect), CoordinatorCodec(dialect)
    submission = laid_out(codec, [1], {})
    for request_id in (0, 127, 128, 255, 256, 65_536, 2**32, 2**63):
        message = coordinator.decode(codec.submit(request_id, submission))
        assert (message.request_id, message.prompt) == (request_id, [1])


@pytest.mark.parametrize("name", ["0.19", "0.18"])
def test_no_word_of_another_dialect_can_be_said(name: str) -> None:
    codec = ClientCodec(DIALECTS[name])
    with pytest.raises(UnsupportedByDialect, match="has no ABORT_REQUEST"):
        codec.abort(0)
    with pytest.raises(UnsupportedByDialect, match="has no SUBMIT_REQUEST_WITH_KV"):
        DIALECTS[name].number(Kind.SUBMIT_REQUEST_WITH_KV)
    partial = msgpack.packb([22, 5, {"new_tokens": [1]}])
    with pytest.raises(MalformedMessage, match="unknown header 22"):
        codec.decode([partial])
