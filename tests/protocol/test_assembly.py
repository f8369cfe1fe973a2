from __future__ import annotations

import itertools
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.messages import Known
from tests.vector_files import file_names, read_bytes, read_frame
from trio_infer import Completion, RequestFailed, TokenDelta
from trio_infer.protocol.assembly import Assembler
from trio_infer.protocol.client_codec import ClientCodec
from trio_infer.protocol.dialect import Kind
from trio_infer.protocol.dialects import DIALECTS
from trio_infer.protocol.packing import MalformedMessage

KNOWN = Known(time_to_first_token=0.25)


def add(assembler: Assembler, tokens: list[int], **fields: Any) -> None:
    assembler.add_partial(msgpack.packb({"request_id": 5, "new_tokens": tokens, **fields}))


def finish(assembler: Assembler, tokens: list[int], **fields: Any) -> Completion:
    body = {"request_id": 5, "status": "COMPLETED", "generated_tokens": tokens, **fields}
    completion: Completion = assembler.finish(msgpack.packb(body), KNOWN)
    return completion


# Genuine partial results


def received(name: str) -> Any:
    """The body of a recorded partial result, as it came over the wire."""
    _, request_id, _ = read_frame(name)
    message = ClientCodec(DIALECTS["0.20"]).decode([read_bytes(name)])
    assert (message.kind, message.request_id) == (Kind.ENGINE_REPLY_PARTIAL, request_id)
    return message.body


PARTIALS = {
    "0.20-partial-plain": TokenDelta([97]),
    "0.20-partial-multi": TokenDelta([97, 98, 99]),
    "0.20-partial-logprobs_first": TokenDelta([97], [-0.25], [{"a": -0.25}]),
    "0.20-partial-logprobs_later": TokenDelta([98], [-0.5], [{"b": -0.5}]),
}


def test_no_recording_is_left_out() -> None:
    assert file_names("*-partial-*.msgpack") == sorted(PARTIALS)


@pytest.mark.parametrize("name", PARTIALS)
def test_genuine_partial_results(name: str) -> None:
    assembler = Assembler()
    assembler.add_partial(received(name))
    assert assembler.take_delta() == PARTIALS[name]


def test_a_genuine_stream_with_log_probs_from_its_first_token_to_its_completion() -> None:
    assembler = Assembler()
    deltas = []
    for name in ("0.20-partial-logprobs_first", "0.20-partial-logprobs_later"):
        assembler.add_partial(received(name))
        deltas.append(assembler.take_delta())
    completion = finish(
        assembler,
        [97, 98, 99],
        generated_log_probs=[-0.25, -0.5, -0.75],
        generated_top_n_logprobs=[{"a": -0.25}, {"b": -0.5}, {"c": -0.75}],
    )
    deltas.append(assembler.take_delta())
    assert deltas == [
        TokenDelta([97], [-0.25], [{"a": -0.25}]),
        TokenDelta([98], [-0.5], [{"b": -0.5}]),
        TokenDelta([99], [-0.75], [{"c": -0.75}]),
    ]
    assert completion.generated_tokens == assembler.tokens == [97, 98, 99]


def test_genuine_final_replies_are_the_whole_delta_where_nothing_came_before() -> None:
    for name in file_names("*-reply-completed_*.msgpack"):
        _, _, body = read_frame(name)
        assembler = Assembler()
        completion = assembler.finish(msgpack.packb(body), KNOWN)
        assert assembler.take_delta() == TokenDelta(
            body["generated_tokens"], body["generated_log_probs"], body["generated_top_n_logprobs"]
        )
        assert completion.generated_tokens == body["generated_tokens"]


# Deltas


def test_what_came_since_the_last_delta_is_the_next() -> None:
    assembler = Assembler()
    assert assembler.take_delta() is None
    add(assembler, [1])
    add(assembler, [2, 3])
    assert assembler.take_delta() == TokenDelta([1, 2, 3])
    assert assembler.take_delta() is None
    add(assembler, [])
    assert assembler.take_delta() is None
    add(assembler, [4])
    finish(assembler, [1, 2, 3, 4, 5])
    assert assembler.take_delta() == TokenDelta([4, 5])
    assert assembler.take_delta() is None
    assert (assembler.tokens, assembler.taken) == ([1, 2, 3, 4, 5], 5)


def test_a_delta_that_is_changed_leaves_the_next_alone() -> None:
    assembler = Assembler()
    add(assembler, [1], new_log_probs=[-0.5])
    delta = assembler.take_delta()
    assert delta is not None
    delta.tokens.append(9)
    add(assembler, [2], new_log_probs=[-0.25])
    assert assembler.take_delta() == TokenDelta([2], [-0.25])
    finish(assembler, [1, 2], generated_log_probs=[-0.5, -0.25])


def test_a_final_reply_that_brings_nothing_new_makes_no_delta() -> None:
    assembler = Assembler()
    add(assembler, [1, 2])
    assembler.take_delta()
    finish(assembler, [1, 2])
    assert assembler.take_delta() is None


ENTRIES = st.dictionaries(st.text(), st.floats(allow_nan=False), max_size=2)


@given(st.data())
def test_the_deltas_add_up_to_the_completion(data: st.DataObject) -> None:
    tokens = data.draw(st.lists(st.integers(0, 9)))
    count = len(tokens)
    log_probs = data.draw(st.none() | st.lists(st.floats(-9, 0), min_size=count, max_size=count))
    top_n = data.draw(st.none() | st.lists(ENTRIES, min_size=count, max_size=count))
    cuts = sorted(data.draw(st.lists(st.integers(0, count), max_size=5)))
    assembler = Assembler()
    deltas = []
    for start, end in itertools.pairwise([0, *cuts]):
        partial: dict[str, Any] = {}
        if log_probs is not None:
            partial["new_log_probs"] = log_probs[start:end]
        if top_n is not None:
            partial["new_top_n_logprobs"] = top_n[start:end]
        add(assembler, tokens[start:end], **partial)
        if data.draw(st.booleans()):
            deltas.append(assembler.take_delta())
    completion = finish(
        assembler, tokens, generated_log_probs=log_probs, generated_top_n_logprobs=top_n
    )
    deltas.append(assembler.take_delta())
    taken = [delta for delta in deltas if delta is not None]
    assert all(delta.tokens for delta in taken)
    joined = itertools.chain.from_iterable
    assert list(joined(d.tokens for d in taken)) == completion.generated_tokens == tokens
    assert list(joined(d.log_probs or [] for d in taken)) == (log_probs or [])
    assert list(joined(d.top_n_logprobs or [] for d in taken)) == (top_n or [])
    for delta in taken:
        for values, given_values in ((delta.log_probs, log_probs), (delta.top_n_logprobs, top_n)):
            assert (values is None) == (given_values is None)
            assert values is None or len(values) == len(delta.tokens)


# Top-n entries that the engine cut otherwise than the tokens

A, B, C = {"a": -0.25, "x": -3.0}, {"b": -0.5, "x": -4.0}, {"c": -0.75, "x": -5.0}


@pytest.mark.parametrize(
    ("tokens", "log_probs", "top_n", "expected"),
    [
        ([1], [-0.25], [A], [A]),
        ([1], [-0.25], [A, B, C], [A]),  # of tokens held back for a stop word
        ([3], [-0.75], [A, B, C], [C]),  # of tokens sent before
        ([1, 2], [-0.25, -0.5], [A, B, C], [A, B]),
        ([2, 3], [-0.5, -0.75], [A, B, C], [B, C]),
        ([1], [-9.0], [A, B], [A]),  # sampled outside of the top n
        ([1], None, [A, B], [A]),
    ],
)
def test_each_token_gets_the_entry_at_its_position(
    tokens: list[int],
    log_probs: list[float] | None,
    top_n: list[dict[str, float]],
    expected: list[dict[str, float]],
) -> None:
    assembler = Assembler()
    add(assembler, tokens, new_log_probs=log_probs, new_top_n_logprobs=top_n)
    delta = assembler.take_delta()
    assert delta is not None
    assert delta.top_n_logprobs == expected


def test_entries_of_no_token_at_all_are_dropped() -> None:
    assembler = Assembler()
    add(assembler, [], new_log_probs=[], new_top_n_logprobs=[A])
    assert assembler.take_delta() is None
    add(assembler, [2], new_log_probs=[-0.5], new_top_n_logprobs=[B])
    assert assembler.take_delta() == TokenDelta([2], [-0.5], [B])


# Contradictions


@pytest.mark.parametrize("final", [[], [1], [1, 3], [2, 1], [3, 1, 2]], ids=str)
def test_a_final_reply_that_takes_back_what_was_streamed_is_refused(final: list[int]) -> None:
    assembler = Assembler()
    add(assembler, [1, 2])
    with pytest.raises(MalformedMessage, match="tokens contradict the partial results"):
        finish(assembler, final)
    assert assembler.tokens == [1, 2]


def test_a_failed_request_may_take_back_anything() -> None:
    assembler = Assembler()
    add(assembler, [1, 2], new_log_probs=[-0.5, -0.5])
    with pytest.raises(RequestFailed):
        finish(assembler, [], status="FAILED")
    assert assembler.tokens == [1, 2]
    assert assembler.take_delta() == TokenDelta([1, 2], [-0.5, -0.5])


LOG_PROBS, TOP_N = "new_log_probs", "new_top_n_logprobs"


@pytest.mark.parametrize(
    ("before", "partial", "complaint"),
    [
        ({}, {LOG_PROBS: [-0.5]}, "1 log probs for 2 tokens"),
        ({}, {LOG_PROBS: [-0.5] * 3}, "3 log probs for 2 tokens"),
        ({}, {TOP_N: [A]}, "1 top-n log probs for 2 tokens"),
        ({}, {LOG_PROBS: [-0.5] * 2}, "log probs for some of the tokens only"),
        ({}, {TOP_N: [A, B]}, "top-n log probs for some of the tokens only"),
        ({LOG_PROBS: [-0.5]}, {}, "0 log probs for 2 tokens"),
        ({LOG_PROBS: [-0.5]}, {LOG_PROBS: []}, "0 log probs for 2 tokens"),
        ({LOG_PROBS: [-0.5]}, {LOG_PROBS: [-0.5]}, "1 log probs for 2 tokens"),
        ({TOP_N: [A]}, {}, "0 top-n log probs for 2 tokens"),
    ],
    ids=str,
)
def test_log_probs_never_stand_beside_the_wrong_token(
    before: dict[str, Any], partial: dict[str, Any], complaint: str
) -> None:
    assembler = Assembler()
    add(assembler, [1], **before)
    with pytest.raises(MalformedMessage, match=f"^{complaint}"):
        add(assembler, [2, 3], **partial)
    assert assembler.tokens == [1]


FINAL_LOG_PROBS, FINAL_TOP_N = "generated_log_probs", "generated_top_n_logprobs"


@pytest.mark.parametrize("seen", [0, 1, 2])
@pytest.mark.parametrize(
    ("final", "complaint"),
    [
        ({FINAL_LOG_PROBS: [-0.5]}, "1 log probs for 2 tokens"),
        ({FINAL_TOP_N: [A]}, "1 top-n log probs for 2 tokens"),
    ],
    ids=str,
)
def test_a_completion_never_has_log_probs_for_half_of_its_tokens(
    seen: int, final: dict[str, Any], complaint: str
) -> None:
    assembler = Assembler()
    if seen:
        add(assembler, [1, 2][:seen])
    with pytest.raises(MalformedMessage, match=f"^{complaint}"):
        finish(assembler, [1, 2], **final)


def test_a_stop_word_taken_off_again_takes_its_log_probs_along() -> None:
    assembler = Assembler()
    add(assembler, [1], new_log_probs=[-0.25], new_top_n_logprobs=[A])
    log_probs = {FINAL_LOG_PROBS: [-0.25, -0.5, -0.75], FINAL_TOP_N: [A, B, C]}
    completion = finish(assembler, [1, 2], **log_probs)
    assert assembler.take_delta() == TokenDelta([1, 2], [-0.25, -0.5], [A, B])
    assert completion.generated_log_probs == [-0.25, -0.5]
    assert completion.generated_top_n_logprobs == [A, B]


@pytest.mark.parametrize(
    ("partial", "final", "complaint"),
    [
        ({LOG_PROBS: [-0.5, -0.5]}, {}, "0 log probs for 2 tokens"),
        ({TOP_N: [A, B]}, {}, "0 top-n log probs for 2 tokens"),
        ({}, {FINAL_LOG_PROBS: [-0.5, -0.5]}, "log probs for some of the tokens only"),
    ],
    ids=str,
)
def test_a_completion_never_lacks_the_log_probs_that_were_streamed(
    partial: dict[str, Any], final: dict[str, Any], complaint: str
) -> None:
    assembler = Assembler()
    add(assembler, [1, 2], **partial)
    with pytest.raises(MalformedMessage, match=f"^{complaint}"):
        finish(assembler, [1, 2], **final)


@pytest.mark.parametrize(
    "partial",
    [
        {},
        {"new_tokens": None},
        {"new_tokens": "12"},
        {"new_tokens": [1.0]},
        {"new_tokens": [True]},
        {"new_tokens": [1], "new_log_probs": "x"},
        {"new_tokens": [1], "new_log_probs": [None]},
        {"new_tokens": [1], "new_top_n_logprobs": {"a": 1}},
        {"new_tokens": [1], "new_top_n_logprobs": [{"a": "1"}]},
        [1],
        "tokens",
    ],
    ids=str,
)
def test_a_partial_result_that_makes_no_sense_is_refused(partial: object) -> None:
    assembler = Assembler()
    with pytest.raises(MalformedMessage):
        assembler.add_partial(msgpack.packb(partial))
    assert assembler.tokens == []


def test_fields_of_newer_engines_are_passed_over() -> None:
    assembler = Assembler()
    add(assembler, [1], unheard_of=[1], prompt_log_probs=[-0.5], prompt_top_n_logprobs=[{}])
    assert assembler.take_delta() == TokenDelta([1])


# The fields as they came


def raw(assembler: Assembler, fields: dict[str, Any]) -> Any:
    return assembler.finish(msgpack.packb(fields), KNOWN)


@pytest.mark.parametrize("name", file_names("*-reply-completed_*.msgpack"))
def test_a_genuine_reply_left_as_it_is_has_its_latency_and_nothing_else_changed(name: str) -> None:
    _, _, body = read_frame(name)
    assembler = Assembler(deserialize=False)
    assert raw(assembler, body) == body | {"latency": 0.5}
    assert assembler.take_delta() == TokenDelta(
        body["generated_tokens"], body["generated_log_probs"], body["generated_top_n_logprobs"]
    )


@pytest.mark.parametrize("name", file_names("*-reply-failed_*.msgpack"))
def test_a_genuine_failure_is_one_even_where_replies_are_left_as_they_are(name: str) -> None:
    _, _, body = read_frame(name)
    with pytest.raises(RequestFailed) as caught:
        raw(Assembler(deserialize=False), body)
    assert caught.value.completion.status == "FAILED"


def test_a_failure_in_which_a_newer_release_changed_a_field_still_says_why() -> None:
    event = {"timestamp": 1.0, "type": "ERROR_TRANSIENT", "payload": {"type": "Full"}}
    fields = {"status": "FAILED", "tpot": {"new": "shape"}, "events": [event]}
    with pytest.raises(RequestFailed, match="request 7 failed: Full") as caught:
        raw(Assembler(deserialize=False), fields)
    completion = caught.value.completion
    assert (completion.status, completion.finish_reason) == ("FAILED", "error")
    assert (completion.request_id, completion.latency) == (7, 0.5)
    assert completion.extra == fields
    assert caught.value.retryable is True
    with pytest.raises(MalformedMessage):
        raw(Assembler(deserialize=False), fields | {"events": "none"})


def test_a_field_that_only_a_newer_release_can_read_does_not_spoil_a_reply_left_as_it_is() -> None:
    fields = {"status": "COMPLETED", "generated_tokens": ["tensor", [1]], "tpot": {"new": "shape"}}
    assembler = Assembler(deserialize=False)
    assert raw(assembler, fields) == fields | {"latency": 0.5}
    assert assembler.tokens == [1]
    with pytest.raises(MalformedMessage):
        raw(Assembler(), fields)


@pytest.mark.parametrize(
    "fields",
    [{}, {"status": "COMPLETED", "generated_tokens": "x"}, {"status": "COMPLETED"}],
    ids=str,
)
def test_what_deltas_are_made_of_is_checked_all_the_same(fields: dict[str, Any]) -> None:
    assembler = Assembler(deserialize=False)
    add(assembler, [1])
    with pytest.raises(MalformedMessage):
        raw(assembler, fields)


def test_log_probs_of_a_stop_word_stay_in_a_reply_left_as_it_is_and_in_no_delta() -> None:
    fields = {"status": "COMPLETED", "generated_tokens": [1], "generated_log_probs": [-0.5, -1.0]}
    assembler = Assembler(deserialize=False)
    assert raw(assembler, fields)["generated_log_probs"] == [-0.5, -1.0]
    assert assembler.take_delta() == TokenDelta([1], [-0.5])
