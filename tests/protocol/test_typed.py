"""What is decoded in one step: the same comes out as step by step, and it is what engines send."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING, Any, Final

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.messages import Known
from tests.vector_files import file_names, read_frame
from trio_infer import RequestEvent
from trio_infer.protocol import assembly
from trio_infer.protocol.assembly import Assembler, result_at_once
from trio_infer.protocol.conversion import FINISHED_REQUEST, to_completion, usual_completion
from trio_infer.protocol.packing import MalformedMessage, unpack_map
from trio_infer.protocol.typed import FIELDS, partial_result

if TYPE_CHECKING:
    from trio_infer import Completion

KNOWN: Final = Known(time_to_first_token=0.25, asked={"num_tokens_to_generate": 3})

UNUSUAL: Final = ("handoff", "max_seq", "routing", "token_events", "two_errors")
"""Recordings with one of these in their names go the long way."""

REPLIES: Final = file_names("*-reply-*.msgpack")
PARTIALS: Final = file_names("*-partial-*.msgpack")

# What engines send


@pytest.mark.parametrize("name", REPLIES)
def test_what_engines_send_in_nearly_all_replies_is_not_decoded_the_long_way(name: str) -> None:
    body = msgpack.packb(read_frame(name)[-1])
    completion = usual_completion(body, KNOWN)
    if any(word in name for word in UNUSUAL):
        assert completion is None
    else:
        whole = to_completion(unpack_map(body), KNOWN)
        assert completion == whole
        assert completion is not None
        assert list(completion.extra) == list(whole.extra), "records would have another order"


@pytest.mark.parametrize("name", PARTIALS)
def test_what_engines_stream_is_not_decoded_the_long_way(name: str) -> None:
    fields = read_frame(name)[-1]
    partial = partial_result(msgpack.packb(fields))
    assert partial is not None
    assert fields.items() == {name: getattr(partial, name) for name in fields}.items()


def test_whoever_decodes_a_usual_reply_does_not_go_the_long_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(assembly, "unpack_map")
    partial = msgpack.packb({"new_tokens": [1]})
    final = msgpack.packb({"status": "COMPLETED", "generated_tokens": [1, 2]})
    assembler = Assembler()
    assembler.add_partial(partial)
    assembler.finish(final, KNOWN)
    assert assembler.tokens == [1, 2]
    assert result_at_once(final, KNOWN, deserialize=True).generated_tokens == [1, 2]


def test_no_field_that_completions_know_has_its_reply_decoded_the_long_way() -> None:
    assert FINISHED_REQUEST.keys() <= set(FIELDS)


def test_replies_to_requests_with_stop_words_are_not_decoded_the_long_way() -> None:
    body = {"status": "COMPLETED", "sampling_params": {"stop_words": ["."], "top_k": 1}}
    completion = usual_completion(msgpack.packb(body), KNOWN)
    assert completion is not None
    assert completion == to_completion(body, KNOWN)


def test_what_newer_engines_note_of_an_event_goes_unheeded() -> None:
    event = {"timestamp": 1, "type": "FINISH", "cause": {}}
    body = msgpack.packb({"status": "COMPLETED", "events": [event]})
    assert Assembler().finish(body, KNOWN).events == (RequestEvent(1.0, "FINISH"),)


@pytest.mark.parametrize("field", [b"\xa1\xff\xc0", b"\xa1x\xa1\xff", b"\xc0\xc0"])
def test_what_is_nonsense_in_an_event_is_nonsense_however_it_is_decoded(field: bytes) -> None:
    event = b"\x83" + msgpack.packb({"timestamp": 1, "type": "FINISH"})[1:] + field
    body = msgpack.packb({"status": "COMPLETED", "events": [0]}).removesuffix(b"\x00") + event
    with pytest.raises(MalformedMessage):
        Assembler().finish(body, KNOWN)


# Whatever else may come


@pytest.mark.parametrize(
    "key",
    [{}, [0] * 16 + [{}], [[]] * 17, msgpack.ExtType(5, b"x")],
    ids=["map", "list with a map", "list of lists", "extension"],
)
def test_a_strange_key_in_what_belongs_to_an_event_costs_that_request_alone(key: Any) -> None:
    payload = b"\x81" + msgpack.packb(key) + b"\xc0"
    with pytest.raises(MalformedMessage):
        Assembler().finish(with_payload(payload), KNOWN)


def test_what_belongs_to_an_event_is_not_unpacked_where_its_keys_may_take_seconds() -> None:
    assert_refused_at_once(with_payload(msgpack.packb([[]] * 10_000)))


@pytest.mark.parametrize("name", ["policy_epoch", "kv_cache_epoch"])
def test_epochs_that_make_no_sense_are_not_all_unpacked_twice(name: str) -> None:
    assert_refused_at_once(msgpack.packb({"status": "COMPLETED", name: [[]] * 10_000}))


def assert_refused_at_once(body: bytes) -> None:
    tracemalloc.start()
    try:
        assert usual_completion(body, KNOWN) is None
        assert tracemalloc.get_traced_memory()[1] < len(body)
    finally:
        tracemalloc.stop()


def with_payload(payload: bytes) -> bytes:
    """A reply with an event, to which that packed value belongs."""
    event = {"timestamp": 1.0, "type": "FINISH", "payload": None}
    body: bytes = msgpack.packb({"status": "COMPLETED", "events": [event]})
    return body.removesuffix(b"\xc0") + payload


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.sampled_from([2**31, 2**63 - 1, 2**64 - 1, -(2**63)]),
    st.floats(allow_nan=False),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.sampled_from([msgpack.ExtType(5, b"x"), msgpack.Timestamp(1, 1)]),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=6,
)
numbers = st.lists(st.integers(-3, 300) | st.booleans() | st.floats(allow_nan=False), max_size=4)
events = st.lists(
    st.fixed_dictionaries(
        {"timestamp": st.floats(allow_nan=False) | scalars},
        optional={"type": st.text(max_size=3) | scalars, "payload": values, "more": values},
    ),
    max_size=2,
)
pairs = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), max_size=2)
wrapped = st.tuples(st.sampled_from(["tensor", "ndarray", "other"]), numbers).map(list)
maps = st.dictionaries(st.text(max_size=2) | st.integers(0, 2), scalars | st.lists(scalars))
top_n = st.lists(st.dictionaries(st.text(max_size=2), scalars, max_size=2), max_size=3)
anything = st.one_of(values, numbers, events, pairs, wrapped, maps, top_n)

COMPLETE: Final = max((read_frame(name)[-1] for name in REPLIES), key=len)
COMPLETE_PARTIAL: Final = sorted({field for name in PARTIALS for field in read_frame(name)[-1]})
names = st.sampled_from([*COMPLETE, "payload_offloaded", "new", "extra", "_routing_dtype"])
finished_requests = st.builds(
    lambda name, changes: {**read_frame(name)[-1], **changes},
    st.sampled_from(REPLIES),
    st.dictionaries(names, anything, max_size=2),
)
partial_results = st.builds(
    lambda name, changes: {**read_frame(name)[-1], **changes},
    st.sampled_from(PARTIALS),
    st.dictionaries(st.sampled_from([*COMPLETE_PARTIAL, "new"]), anything, max_size=2),
)


@st.composite
def packed(draw: st.DrawFn, bodies: st.SearchStrategy[dict[str, Any]]) -> bytes:
    """A body, of whose bytes one may be another."""
    body = bytearray(msgpack.packb(draw(bodies)))
    if draw(st.booleans()):
        body[draw(st.sampled_from(range(len(body))))] = draw(st.integers(0, 255))
    return bytes(body)


def long_way(body: bytes) -> Completion | None:
    try:
        return to_completion(unpack_map(body), KNOWN)
    except MalformedMessage:
        return None


def same(one: Any, other: Any) -> bool:
    """Whether these are equal, of equal types all through, and NaN where the other is."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other)


def assert_same_completion(body: bytes) -> None:
    usual = usual_completion(body, KNOWN)
    if usual is not None:
        whole = long_way(body)
        assert whole is not None
        assert same(vars(usual), vars(whole))


def assert_same_delta(body: bytes) -> None:
    partial = partial_result(body)
    if partial is not None:
        expected, assembler = Assembler(), Assembler()
        try:
            expected.add_partial(unpack_map(body))
        except MalformedMessage as error:
            with pytest.raises(MalformedMessage, match=f"^{error}$"):
                assembler.add_partial(body)
        else:
            assembler.add_partial(body)
            assert same(assembler.whole(), expected.whole())


EVENT: Final = {"timestamp": 1.5, "type": "FINISH"}
ALMOST: Final = [
    *(None, True, 0, 2**64 - 1, 1.5, "x", b"x", msgpack.Timestamp(1, 1), [], {}),
    *([None], [True], [1], [1, 2.0], [1.5], ["x"], [b"x"], ["x", "x"], [1, [1]]),
    *([[]], [[1]], [[1, 2]], [[1, 2], None], [[1, True]], [[1.5, 2]], [[1, 2, 3]], [["x", 1]]),
    *(["tensor", [1]], ["tensor", [True]], ["tensor", [1.5]], ["tensor", 1], ["other", [1]]),
    *({"x": None}, {"x": 1}, {"x": b"x"}, {"x": [None]}, {"x": [b"x"]}, {"x": [[]]}, {"x": {}}),
    *({1: 1}, {b"x": 1}, [{}], [{"x": 1}], [{"x": None}], [{"x": True}], [{"x": "x"}], [{1: 1.5}]),
    *([EVENT], [EVENT | {"timestamp": 1}], [EVENT | {"timestamp": True}], [EVENT | {"type": b"x"}]),
    *([{"type": "x"}], [{"timestamp": 1.5}], [EVENT | {"payload": 0}], [EVENT | {"payload": None}]),
    *([EVENT | {"timestamp": None}], [EVENT | {"type": None}], [None, EVENT], [EVENT | {"x": {}}]),
]
"""What a field may hold, or might be mistaken for what it may."""


@pytest.mark.parametrize("name", [*FIELDS, "new"])
def test_no_field_of_a_reply_passes_for_what_it_is_not(name: str) -> None:
    for value in ALMOST:
        body = msgpack.packb({"status": "COMPLETED", "generated_tokens": [1], name: value})
        assert_same_completion(body)


def test_a_reply_without_a_status_is_not_decoded_in_one_step() -> None:
    assert usual_completion(msgpack.packb({"generated_tokens": [1]}), KNOWN) is None


@pytest.mark.parametrize("name", [*COMPLETE_PARTIAL, "new"])
def test_no_field_of_a_partial_result_passes_for_what_it_is_not(name: str) -> None:
    for value in ALMOST:
        assert_same_delta(msgpack.packb({"new_tokens": [1], name: value}))


def test_a_partial_result_without_tokens_is_not_decoded_in_one_step() -> None:
    assert partial_result(msgpack.packb({"new_log_probs": []})) is None


@settings(max_examples=500)
@given(packed(finished_requests))
def test_a_reply_decoded_in_one_step_is_the_same_as_step_by_step(body: bytes) -> None:
    assert_same_completion(body)


@settings(max_examples=500)
@given(packed(partial_results))
def test_a_partial_result_decoded_in_one_step_is_the_same_as_step_by_step(body: bytes) -> None:
    assert_same_delta(body)
