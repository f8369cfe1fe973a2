from __future__ import annotations

from typing import Any

import attrs
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.messages import laid_out
from tests.vector_files import read_vectors
from trio_infer import KVHandoff, SamplingParams, UnsupportedByDialect
from trio_infer.models.scalars import INT64_MAX, INT64_MIN
from trio_infer.protocol.client_codec import ClientCodec, ServerMessage
from trio_infer.protocol.coordinator_codec import ClientMessage, CoordinatorCodec
from trio_infer.protocol.dialect import Dialect, Kind
from trio_infer.protocol.dialects import DIALECTS, FRAMED
from trio_infer.protocol.hashing import PrefixHashing
from trio_infer.protocol.packing import Frames, MalformedMessage, unpack_map
from trio_infer.protocol.preparation import Preparation
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
    "generate, image, hashed and salted",
    "generate, two videos, tokens expanded already",
    "generate, image tensors",
    "generate, KV handoff",
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
ENDS = {
    "abort of request 0": (Kind.ABORT_REQUEST, 0),
    "release handoff 12": (Kind.RELEASE_KV, 12),
}
SENT = ("connect", *SUBMITS, *ENDS, *SIGNALS)


def test_every_vector_is_held() -> None:
    assert sorted(SENT) == sorted(FRAMED_VECTORS)


def frames_of(call: str) -> list[bytes]:
    return [bytes.fromhex(frame) for frame in FRAMED_VECTORS[call]["frames_hex"]]


def revived(value: Any) -> Any:
    """What a vector's JSON stands for."""
    if isinstance(value, list):
        return list(map(revived, value))
    if not isinstance(value, dict):
        return value
    if "__hex__" in value:
        return bytes.fromhex(value["__hex__"])
    if "__tensor__" in value:
        return np.array(value["__tensor__"], value["dtype"])
    return {name: revived(item) for name, item in value.items()}


BESIDE_SAMPLING = ("prompt", "offload_params", "multi_modal_data", "kv_handoff")


def asked_of(call: str) -> tuple[dict[str, Any], SamplingParams, bool]:
    """A request as a caller makes it: arguments, sampling parameters, whether it streams."""
    request = revived(FRAMED_VECTORS[call]["request"])
    arguments = {name: request.pop(name) for name in BESIDE_SAMPLING if name in request}
    if "kv_handoff" in arguments:
        arguments["kv_handoff"] = KVHandoff(**arguments["kv_handoff"], request_id=12)
    return arguments, SamplingParams(**request), request.get("streaming", False)


def media_of(data: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """A descriptor but for the key, and the body."""
    meta = {name: value for name, value in data.items() if name not in ("image", "video")}
    (modality,) = data.keys() - meta.keys()
    body = data[modality]
    if isinstance(body, bytes):
        body = [body]
    elif isinstance(body, dict):
        body = {
            name: item.tolist() if isinstance(item, np.ndarray) else item
            for name, item in body.items()
        }
    return meta | {"modality": modality}, body


MEDIA_KEYS = {
    "generate, image, hashed and salted": (
        "8ccebea71cf7892d77ba95420162a24d9d01630261a4e9eb238dc410990551c7"
    ),
    "generate, two videos, tokens expanded already": (
        "d6f76fbff281969abc0b4232de9b87f7b1572f8f6235a4c8dd85b6ca975f73f5"
    ),
    "generate, image tensors": ("5f011236f925716e537ae88ec0b8b81a18a54b40bcf49fc049b9b418fe309c86"),
}
"""As another test computes them."""


def expected_of(call: str) -> ClientMessage:
    """What a coordinator should understand."""
    if call == "connect":
        return ClientMessage(kind=Kind.CONNECT)
    if call in ENDS:
        kind, request_id = ENDS[call]
        return ClientMessage(kind=kind, request_id=request_id)
    if call in SIGNALS:
        return ClientMessage(
            kind=SIGNALS[call], epoch=next(iter(FRAMED_VECTORS[call]["request"]["args"]), None)
        )
    arguments, params, streaming = asked_of(call)
    message = ClientMessage(
        kind=Kind.SUBMIT_REQUEST,
        request_id=0,
        prompt=arguments["prompt"],
        sampling_params=params.serialize() | {"streaming": streaming},
        offload_params=arguments.get("offload_params"),
    )
    if "kv_handoff" in arguments:
        handoff = arguments["kv_handoff"]
        return attrs.evolve(
            message,
            kind=Kind.SUBMIT_REQUEST_WITH_KV,
            kv_meta=handoff.kv_meta,
            src_block_ids=handoff.src_block_ids,
        )
    key = None
    if "multi_modal_data" in arguments:
        meta, body = media_of(arguments["multi_modal_data"])
        key = MEDIA_KEYS[call]
        message = attrs.evolve(message, media_meta=meta | {"media_cache_key": key}, media=body)
    return attrs.evolve(message, block_hashes=hashing_of(call).of(arguments["prompt"], salt=key))


def hashing_of(call: str) -> PrefixHashing:
    setting = FRAMED_VECTORS[call]["client"]
    return PrefixHashing(
        setting.get("block_size_tokens"), setting.get("prefix_caching_coordinator_policy")
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
    return prepared.frames(message.request_id)


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


@pytest.mark.parametrize("call", SUBMITS)
def test_each_byte_of_a_prepared_request_is_the_protocols(call: str) -> None:
    arguments, params, streaming = asked_of(call)
    preparation = Preparation(CLIENT, hashing_of(call))
    prepared = preparation.prepare(**arguments, sampling_params=params, streaming=streaming)
    assert prepared.frames(0) == frames_of(call)


@pytest.mark.parametrize("call", [call for call in SENT if call not in SUBMITS])
def test_each_byte_that_is_sent_is_the_protocols(call: str) -> None:
    assert sent(CLIENT, expected_of(call)) == frames_of(call)


@pytest.mark.parametrize("call", SENT)
def test_the_coordinator_understands_what_clients_send(call: str) -> None:
    assert COORDINATOR.decode(frames_of(call)) == expected_of(call)


# --- the bytes of the other dialects, recorded from megatron-core ---------------------------------

RECORDED = {
    f"{name}: {vector['call']}": (DIALECTS[name], vector)
    for name in DIALECTS
    if name != "framed"
    for vector in read_vectors(f"{name}-wire")
}


@attrs.frozen
class Call:
    """What megatron-core's client was told, and what that means here.

    ``given`` goes to `Preparation.prepare`, beside the prompt and ``params``; ``arrives`` is what a
    coordinator should see of it.
    """

    kind: Kind
    prompt: str | list[int] | None = None
    params: dict[str, Any] = attrs.field(factory=dict)
    given: dict[str, Any] = attrs.field(factory=dict)
    arrives: dict[str, Any] = attrs.field(factory=dict)


KV: dict[str, Any] = {"kv_meta": {"peer": "x", "blob": b"\x00\x01"}, "src_block_ids": [7, 8]}

CALLS = {
    "start() -> CONNECT": Call(Kind.CONNECT),
    "add_request('hi', SamplingParams())": Call(Kind.SUBMIT_REQUEST, "hi"),
    "add_request([1,2,300,70000,5000000000], SamplingParams(top_k=1))": Call(
        Kind.SUBMIT_REQUEST, [1, 2, 300, 70000, 5000000000], {"top_k": 1}
    ),
    "add_request('', SamplingParams())": Call(Kind.SUBMIT_REQUEST, ""),
    "add_request([], SamplingParams())": Call(Kind.SUBMIT_REQUEST, []),
    "add_request('see', SamplingParams(), multi_modal_data={'image': b'\\x89PNG'})": Call(
        Kind.SUBMIT_REQUEST,
        "see",
        given={"multi_modal_data": {"image": b"\x89PNG"}},
        arrives={"multi_modal_data": {"image": [b"\x89PNG"]}},
    ),
    "add_request_streaming('hi', SamplingParams(num_tokens_to_generate=4, streaming_interval=2))": (
        Call(
            Kind.SUBMIT_REQUEST,
            "hi",
            {"num_tokens_to_generate": 4, "streaming_interval": 2},
            given={"streaming": True},
        )
    ),
    "add_request_with_kv_handoff([1,2,3], SamplingParams(num_tokens_to_generate=8), "
    "{'peer':'x','blob':b'\\x00\\x01'}, [7,8])": Call(
        Kind.SUBMIT_REQUEST_WITH_KV,
        [1, 2, 3],
        {"num_tokens_to_generate": 8},
        given={"kv_handoff": KVHandoff(**KV, request_id=12)},
        arrives=KV,
    ),
    "release_handoff(12)": Call(Kind.RELEASE_KV),
    "abort_request(0)": Call(Kind.ABORT_REQUEST),
    "pause_engines()": Call(Kind.PAUSE),
    "unpause_engines()": Call(Kind.UNPAUSE),
    "suspend_engines()": Call(Kind.SUSPEND),
    "resume_engines()": Call(Kind.RESUME),
    "start_cuda_profiler()": Call(Kind.START_CUDA_PROFILER),
    "stop_cuda_profiler()": Call(Kind.STOP_CUDA_PROFILER),
    "shutdown_coordinator()": Call(Kind.SHUTDOWN),
}


def test_every_recorded_call_is_held() -> None:
    assert {vector["call"] for _, vector in RECORDED.values()} == CALLS.keys()


def recorded_message(name: str) -> tuple[Dialect, ClientMessage, list[bytes]]:
    """What a recorded call means, and its frames."""
    dialect, vector = RECORDED[name]
    call = CALLS[vector["call"]]
    ((hex_frame,),), ((_, *fields),) = vector["frames_hex"], vector["decoded"]
    sampling = None
    if call.prompt is not None:
        streaming = call.given.get("streaming", False)
        sampling = sampling_fields(SamplingParams(**call.params), dialect, streaming=streaming)
    message = ClientMessage(
        kind=call.kind,
        request_id=fields[0] if fields else None,
        prompt=call.prompt,
        sampling_params=sampling,
        **call.arrives,
    )
    return dialect, message, [bytes.fromhex(hex_frame)]


PREPARED = [name for name, (_, vector) in RECORDED.items() if CALLS[vector["call"]].prompt]


@pytest.mark.parametrize("name", PREPARED)
def test_each_byte_of_a_prepared_request_is_megatron_cores_own(name: str) -> None:
    dialect, message, frames = recorded_message(name)
    call = CALLS[RECORDED[name][1]["call"]]
    assert call.prompt is not None
    assert message.request_id is not None
    preparation = Preparation(ClientCodec(dialect))
    prepared = preparation.prepare(call.prompt, SamplingParams(**call.params), **call.given)
    assert prepared.frames(message.request_id) == frames


@pytest.mark.parametrize("name", RECORDED)
def test_each_byte_that_is_sent_is_megatron_cores_own(name: str) -> None:
    dialect, message, frames = recorded_message(name)
    assert sent(ClientCodec(dialect), message) == frames


@pytest.mark.parametrize("name", RECORDED)
def test_the_coordinator_understands_megatron_cores_own_client(name: str) -> None:
    dialect, message, frames = recorded_message(name)
    assert CoordinatorCodec(dialect).decode(frames) == message


@pytest.mark.parametrize("name", [name for name in RECORDED if "CONNECT" in name])
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


@given(EVERY, PROMPTS, IDS)
def test_a_prompt_has_the_bytes_that_coordinators_expect(
    dialect: Dialect, prompt: str | list[int], request_id: int
) -> None:
    frames = Preparation(ClientCodec(dialect)).prepare(prompt).frames(request_id)
    assert msgpack.packb(prompt) in b"".join(frames)
    message = CoordinatorCodec(dialect).decode(frames)
    assert (message.prompt, message.request_id) == (prompt, request_id)


@given(EVERY.filter(lambda dialect: dialect.can_hand_off), IDS, MAPS)
def test_a_submit_with_kv_arrives_as_it_was_meant(
    dialect: Dialect, request_id: int, kv_meta: dict[str, Any]
) -> None:
    message = ClientMessage(
        kind=Kind.SUBMIT_REQUEST_WITH_KV,
        request_id=request_id,
        prompt=[1, 2],
        sampling_params=sampling_fields(SamplingParams(), dialect),
        kv_meta=kv_meta,
        src_block_ids=[7, 2**40],
    )
    frames = submitted(ClientCodec(dialect), message)
    assert CoordinatorCodec(dialect).decode(frames) == message


@given(EVERY, IDS)
def test_connect_abort_release_and_signals_arrive(dialect: Dialect, number: int) -> None:
    named = {Kind.ABORT_REQUEST, Kind.RELEASE_KV}
    kinds = {Kind.CONNECT, *named, *SIGNALS.values()} & dialect.headers.keys()
    for kind in kinds:
        message = ClientMessage(
            kind=kind,
            request_id=number if kind in named else None,
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
        message = coordinator.decode(submission.frames(request_id))
        assert (message.request_id, message.prompt) == (request_id, [1])


@pytest.mark.parametrize("name", ["0.19", "0.18"])
def test_no_word_of_another_dialect_can_be_said(name: str) -> None:
    codec = ClientCodec(DIALECTS[name])
    with pytest.raises(UnsupportedByDialect, match="has no ABORT_REQUEST"):
        codec.abort(0)
    with pytest.raises(UnsupportedByDialect, match="has no RELEASE_KV"):
        codec.release(12)
    with pytest.raises(UnsupportedByDialect, match="has no SUBMIT_REQUEST_WITH_KV"):
        DIALECTS[name].number(Kind.SUBMIT_REQUEST_WITH_KV)
    partial = msgpack.packb([22, 5, {"new_tokens": [1]}])
    with pytest.raises(MalformedMessage, match="unknown header 22"):
        codec.decode([partial])
