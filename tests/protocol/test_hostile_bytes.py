"""Whatever a peer sends costs one message: it is read, or it is a `MalformedMessage`."""

from __future__ import annotations

import contextlib
from typing import Any

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.messages import Known
from tests.vector_files import file_names, read_frame
from trio_infer import RequestFailed
from trio_infer.protocol.assembly import Assembler
from trio_infer.protocol.client_codec import MAX_METADATA_BYTES, ClientCodec
from trio_infer.protocol.coordinator_codec import CoordinatorCodec
from trio_infer.protocol.dialect import Dialect, Kind
from trio_infer.protocol.dialects import DIALECTS
from trio_infer.protocol.packing import MalformedMessage, unpack, unpack_map

DIALECT = st.sampled_from(list(DIALECTS.values()))

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=8))
    | st.builds(msgpack.Timestamp, st.integers(0, 2**34), st.integers(0, 10**9 - 1))
)
VALUES = st.recursive(
    SCALARS,
    lambda items: (
        st.lists(items, max_size=4)
        | st.dictionaries(st.text(max_size=4) | st.binary(max_size=4), items, max_size=4)
    ),
    max_leaves=8,
)
DEEP = st.builds(
    lambda levels, opening: opening * levels + b"\xc0",
    st.sampled_from([60, 63, 64, 65, 100, 990, 1000, 1022, 1023, 1024, 1025, 5000]),
    st.sampled_from([b"\x91", b"\x81\xa1k", b"\x92\xc0", b"\xdc\x00\x01"]),
)
PACKED = st.binary(max_size=64) | VALUES.map(msgpack.packb) | DEEP

HEADERS = st.sampled_from(sorted({n for row in DIALECTS.values() for n in row.kinds})) | SCALARS
METADATA = st.builds(
    lambda header, fields, tail: msgpack.packb([header, *fields]) + tail,
    HEADERS,
    st.lists(st.sampled_from([0, 5, 5.0, True, -1, 2**64 - 1, None, "5"]) | VALUES, max_size=4),
    st.sampled_from([b"", b"", b"", b"\x00"]),
)
FRAMES = st.lists(PACKED, max_size=5) | st.builds(
    lambda metadata, bodies: [metadata, *bodies], METADATA, st.lists(PACKED, max_size=5)
)


@given(DIALECT, FRAMES)
@settings(max_examples=600)
def test_whatever_comes_as_a_reply_is_read_or_refused(
    dialect: Dialect, frames: list[bytes]
) -> None:
    with contextlib.suppress(MalformedMessage):
        message = ClientCodec(dialect).decode(frames)
        assert message.kind in (Kind.CONNECT_ACK, Kind.ENGINE_REPLY, Kind.ENGINE_REPLY_PARTIAL)
        if message.kind is not Kind.CONNECT_ACK:
            assert type(message.request_id) is int
            if dialect.is_multipart:
                assert len(frames[0]) <= MAX_METADATA_BYTES
                assert message.body == frames[1]
            else:
                assert frames[0].endswith(message.body)
                with contextlib.suppress(MalformedMessage):
                    whole = [dialect.number(message.kind), message.request_id]
                    assert unpack(frames[0])[:2] == whole


@given(DIALECT, FRAMES)
@settings(max_examples=600)
def test_whatever_comes_from_a_client_is_read_or_refused(
    dialect: Dialect, frames: list[bytes]
) -> None:
    with contextlib.suppress(MalformedMessage):
        message = CoordinatorCodec(dialect).decode(frames)
        repr(message)
        if message.kind is Kind.SUBMIT_REQUEST:
            assert type(message.request_id) is int
            assert type(message.prompt) in (str, list)
            assert type(message.sampling_params) is dict


@given(PACKED)
@settings(max_examples=300)
def test_whatever_comes_as_a_body_is_read_or_refused(body: bytes) -> None:
    with contextlib.suppress(MalformedMessage):
        repr(unpack_map(body))
    with contextlib.suppress(MalformedMessage):
        Assembler().add_partial(body)
    with contextlib.suppress(MalformedMessage):
        finish(Assembler(), body)


def finish(assembler: Assembler, body: bytes, **asked: Any) -> None:
    """Takes in a final reply and does with it all that a client does."""
    known = Known(asked=asked)
    try:
        completion = assembler.finish(body, known)
    except RequestFailed as error:
        told = str(error)
        repr(error.completion)
    else:
        told = ""
        repr(completion)
        assert assembler.tokens == completion.generated_tokens
        assert all(type(name) is str for name in completion.extra)
    assert len(told) < 100_000


FIELDS = sorted(
    {field for name in file_names("*-reply-*.msgpack") for field in read_frame(name)[2]}
)
GENUINE = st.sampled_from(file_names("*-reply-*.msgpack")).map(lambda name: read_frame(name)[2])
EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "timestamp": st.floats() | VALUES,
            "type": st.sampled_from(["ERROR_TRANSIENT", "ERROR_NONTRANSIENT", "FAIL"]) | VALUES,
            "payload": st.fixed_dictionaries({}, optional={"type": VALUES, "message": VALUES})
            | VALUES,
        }
    ),
    max_size=3,
)
WRAPPED = st.tuples(
    st.sampled_from(["tensor", "ndarray"]),
    VALUES | st.fixed_dictionaries({}, optional={"data": VALUES, "dtype": VALUES}),
).map(list)
CHANGES = st.dictionaries(st.sampled_from(FIELDS), VALUES | WRAPPED, max_size=3)


@given(GENUINE, CHANGES, st.none() | EVENTS, st.dictionaries(st.text(max_size=4), VALUES))
@settings(max_examples=300)
def test_a_reply_with_some_wrong_fields_is_read_or_refused(
    genuine: dict[str, Any],
    changes: dict[str, Any],
    events: list[Any] | None,
    others: dict[str, Any],
) -> None:
    body = genuine | others | changes
    if events is not None:
        body["events"] = events
    with contextlib.suppress(MalformedMessage):
        finish(Assembler(), msgpack.packb(body), **genuine["sampling_params"])


@given(GENUINE, st.data())
def test_a_reply_with_wrong_bytes_is_read_or_refused(
    genuine: dict[str, Any], data: st.DataObject
) -> None:
    body = bytearray(msgpack.packb(genuine))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.just(len(body)) | st.integers(0, len(body)))
    with contextlib.suppress(MalformedMessage):
        finish(Assembler(), bytes(body[:cut]))


SMALL_INTS = st.integers(0, 3)
LOG_PROBS = st.sampled_from([-0.5, -1.0, float("-inf"), float("nan"), 0])
PARTIALS = st.fixed_dictionaries(
    {"new_tokens": st.lists(SMALL_INTS, max_size=3)},
    optional={
        "new_log_probs": st.none() | st.lists(LOG_PROBS, max_size=3),
        "new_top_n_logprobs": st.none()
        | st.lists(st.dictionaries(st.sampled_from("ab"), LOG_PROBS), max_size=4),
        "request_id": VALUES,
    },
)
FINALS = st.fixed_dictionaries(
    {"status": st.sampled_from(["COMPLETED", "FAILED"])},
    optional={
        "generated_tokens": st.none() | st.lists(SMALL_INTS, max_size=6),
        "generated_log_probs": st.none() | st.lists(LOG_PROBS, max_size=6),
        "generated_top_n_logprobs": st.none()
        | st.lists(st.dictionaries(st.sampled_from("ab"), LOG_PROBS), max_size=6),
    },
)


@given(st.lists(PARTIALS | VALUES, max_size=4), FINALS)
@example([{"new_tokens": [1], "new_log_probs": [-0.5]}, {"new_tokens": [2]}], {"status": "FAILED"})
@settings(max_examples=300)
def test_whatever_is_streamed_no_delta_has_log_probs_for_some_of_its_tokens(
    partials: list[Any], final: dict[str, Any]
) -> None:
    assembler = Assembler()
    with contextlib.suppress(MalformedMessage):
        for partial in partials:
            assembler.add_partial(msgpack.packb(partial))
        finish(assembler, msgpack.packb(final))
    delta = assembler.take_delta()
    if delta is None:
        assert assembler.tokens == []
    else:
        assert delta.tokens == assembler.tokens
        for values in (delta.log_probs, delta.top_n_logprobs):
            assert values is None or len(values) == len(delta.tokens)


PARTIAL = {"new_tokens": [1], "new": "HERE"}
FINAL = {"status": "COMPLETED", "new": "HERE"}


@pytest.mark.parametrize("value", [b"\xa1\xff", b"\x81\x01\x01", b"\x91" * 100 + b"\xc0"])
def test_nonsense_in_a_field_that_nobody_knows_is_malformed(value: bytes) -> None:
    partial, final = (
        msgpack.packb(fields).replace(msgpack.packb("HERE"), value) for fields in (PARTIAL, FINAL)
    )
    with pytest.raises(MalformedMessage):
        Assembler().add_partial(partial)
    with pytest.raises(MalformedMessage):
        finish(Assembler(), final)


@pytest.mark.parametrize("key", [b"\x80", b"\x91\x80", b"\xd4\x05x", b"\xc0"])
def test_an_event_with_a_map_whose_keys_python_cannot_have_is_malformed(key: bytes) -> None:
    event = {"timestamp": 1.0, "type": "FINISH", "payload": "HERE"}
    body = msgpack.packb({"status": "COMPLETED", "events": [event]})
    with pytest.raises(MalformedMessage, match="no MessagePack"):
        finish(Assembler(), body.replace(msgpack.packb("HERE"), b"\x81" + key + b"\x01"))


@pytest.mark.parametrize("levels", [65, 512, 990, 1000, 1021])
def test_a_failure_nested_as_deep_as_it_gets_is_still_told(levels: int) -> None:
    event = {"timestamp": 1.0, "type": "ERROR_TRANSIENT", "payload": "HERE"}
    body = msgpack.packb({"status": "FAILED", "events": [event]})
    deep = body.replace(msgpack.packb("HERE"), b"\x91" * levels + b"\xc0")
    with pytest.raises(MalformedMessage, match=r"levels deep|no MessagePack"):
        finish(Assembler(), deep)
