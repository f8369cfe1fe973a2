from __future__ import annotations

import pickle
from typing import Any

import attrs
import numpy as np
import pytest

from tests.messages import Known
from tests.vector_files import file_names, read_bytes, read_json
from trio_infer import Completion, EpochSpan, KVHandoff, RequestEvent
from trio_infer.models.completion import ARRAYS
from trio_infer.protocol.client_codec import ClientCodec
from trio_infer.protocol.conversion import (
    FINISHED_REQUEST,
    handoff_of,
    request_failed,
    to_completion,
)
from trio_infer.protocol.dialect import Kind
from trio_infer.protocol.dialects import DIALECTS
from trio_infer.protocol.packing import MalformedMessage, unpack_map


def convert(
    fields: dict[str, Any], *, asked: dict[str, Any] | None = None, aborted: bool = False
) -> Completion:
    return to_completion(
        {"status": "COMPLETED", **fields}, Known(asked=asked or {}, aborted=aborted)
    )


# Genuine replies

HANDOFF = "disaggregated_params"
REPLIES = file_names("*-reply-*.msgpack")


def received(name: str) -> dict[str, Any]:
    """The body of a recorded reply, as it came over the wire."""
    message = ClientCodec(DIALECTS[name[:4]]).decode([read_bytes(name)])
    assert (message.kind, message.request_id) == (Kind.ENGINE_REPLY, 1234)
    return unpack_map(message.body)


def plain(value: Any) -> Any:
    """A field as the JSON has it, but for the wrappers around arrays."""
    match value:
        case ["tensor", content] | ["ndarray", {"data": content}]:
            return content
    return value


def jsonable(value: Any) -> Any:
    """A field of a completion as the JSON has it."""
    if isinstance(value, EpochSpan):
        return [value.start, value.epoch]
    if isinstance(value, tuple):
        return [jsonable(item) for item in value]
    return attrs.asdict(value) if isinstance(value, RequestEvent) else value


def test_no_recording_is_left_out() -> None:
    assert len([name for name in REPLIES if name.startswith("0.20-")]) == 8
    assert len([name for name in REPLIES if name.startswith("0.19-")]) == 8


@pytest.mark.parametrize("name", REPLIES)
def test_genuine_replies_keep_every_value(name: str) -> None:
    header, request_id, fields = read_json(name)["frame"]
    assert (header, request_id) == (21, 1234)
    completion = convert(received(name))
    known = FINISHED_REQUEST.keys() - {"request_id", HANDOFF}
    assert completion.request_id == 7
    assert completion.engine_request_id == fields["request_id"]
    for field in known & fields.keys():
        assert jsonable(getattr(completion, field)) == plain(fields[field]), field
    others = fields.keys() - known - {"request_id", "remaining_prompt_tokens", HANDOFF}
    assert completion.extra == {
        field: fields[field] for field in others if fields[field] is not None
    }
    assert completion.finish_reason == ("error" if "-failed_" in name else "length")
    assert pickle.loads(pickle.dumps(completion)) == completion


def test_a_genuine_reply_with_log_probs() -> None:
    completion = convert(received("0.20-reply-completed_logprobs_topn"))
    assert completion.generated_log_probs == [-0.25, -0.5]
    assert completion.generated_top_n_logprobs == [{"a": -0.25, "b": -3.0}, {"b": -0.5, "c": -4.0}]
    assert completion.prompt_log_probs == [-1.5]
    assert completion.prompt_top_n_logprobs == [{"a": -0.1, "b": -2.0}]


def test_a_genuine_reply_with_its_prompt() -> None:
    completion = convert(received("0.20-reply-completed_return_prompt_tokens"))
    assert completion.prompt is None
    assert completion.prompt_tokens == [104, 105]
    assert completion.prompt_length == 2


def test_a_genuine_reply_with_epochs_and_a_cached_prefix() -> None:
    completion = convert(received("0.19-reply-completed_prefix_cache_epochs"))
    assert completion.policy_epoch == (EpochSpan(0, 1), EpochSpan(20, 2))
    assert completion.kv_cache_epoch == (EpochSpan(0, 1),)
    assert completion.num_cached_tokens == 16


def test_a_genuine_reply_of_a_mixture_of_experts() -> None:
    completion = convert(received("0.19-reply-completed_routing"))
    assert completion.routing_indices == [
        [[0, 1], [2, 3]],
        [[4, 5], [6, 7]],
        [[8, 9], [10, 11]],
    ]


def test_a_genuine_reply_with_events() -> None:
    events = convert(received("0.20-reply-completed_token_events")).events
    assert [event.type for event in events][:4] == [
        "ADD_ENGINE",
        "ADD_CONTEXT",
        "GENERATED_TOKEN",
        "PAUSE",
    ]
    assert events[0] == RequestEvent(1795963378.0982268, "ADD_ENGINE", None)
    assert events[2].payload["token_id"] == 97


def test_a_genuine_reply_of_a_prefill_keeps_the_handle() -> None:
    name = "0.20-reply-completed_kv_handoff"
    fields = read_json(name)["frame"][2][HANDOFF]
    handoff = convert(received(name)).kv_handoff
    assert handoff == KVHandoff(fields["kv_meta"], fields["block_ids"], fields["request_id"])
    assert handoff_of(received(name)) == handoff
    assert handoff.src_block_ids == [3, 4]


@pytest.mark.parametrize("name", [name for name in REPLIES if "kv_handoff" not in name])
def test_a_genuine_reply_of_anything_else_has_none(name: str) -> None:
    assert convert(received(name)).kv_handoff is None
    assert handoff_of(received(name)) is None


@pytest.mark.parametrize(
    "handoff",
    [
        7,
        [],
        {},
        {"request_id": 1, "block_ids": [1]},
        {"request_id": 1, "kv_meta": {}},
        {"block_ids": [1], "kv_meta": {}},
        {"request_id": True, "block_ids": [1], "kv_meta": {}},
        {"request_id": 1.0, "block_ids": [1], "kv_meta": {}},
        {"request_id": 1, "block_ids": [1.0], "kv_meta": {}},
        {"request_id": 1, "block_ids": "1", "kv_meta": {}},
        {"request_id": 1, "block_ids": [1], "kv_meta": []},
    ],
    ids=str,
)
def test_a_handle_that_makes_no_sense_is_not_handed_to_the_caller(handoff: object) -> None:
    with pytest.raises(MalformedMessage):
        convert({HANDOFF: handoff})
    with pytest.raises(MalformedMessage):
        handoff_of({HANDOFF: handoff})


@pytest.mark.parametrize(
    ("name", "retryable", "message"),
    [
        ("0.20-reply-failed_max_seq", False, "request 7 failed: MaxSequenceLengthOverflowError"),
        (
            "0.20-reply-failed_submission_placeholder",
            None,
            "request 7 failed: the engine gave no reason",
        ),
        (
            "0.19-reply-failed_submission_placeholder",
            None,
            "request 7 failed: the engine gave no reason",
        ),
        (
            "0.19-reply-failed_two_errors",
            False,
            "request 7 failed: TokenOverflowError; BlockOverflowError: no blocks",
        ),
    ],
)
def test_genuine_failures_say_why(name: str, retryable: bool | None, message: str) -> None:  # noqa: FBT001
    completion = convert(received(name))
    error = request_failed(completion)
    assert error.completion is completion
    assert error.retryable is retryable
    assert str(error) == message


# Why it ended

GENERATED = "num_tokens_to_generate"
TOTAL = "num_tokens_total"


@pytest.mark.parametrize(
    ("asked", "echoed", "reason"),
    [
        ({}, None, "stop"),
        ({}, {}, "stop"),
        ({GENERATED: 4}, None, "stop"),
        ({GENERATED: 3}, None, "length"),
        ({GENERATED: 2}, None, "length"),
        ({GENERATED: 4}, {GENERATED: 3}, "length"),  # the engine had room for no more
        ({GENERATED: 3}, {GENERATED: 4}, "length"),
        ({GENERATED: 4}, {GENERATED: 5}, "stop"),
        ({GENERATED: None}, {GENERATED: 3}, "length"),
        ({GENERATED: None}, {GENERATED: 4}, "stop"),
        ({GENERATED: None, TOTAL: None}, {GENERATED: 3}, "length"),
        ({TOTAL: 13}, None, "length"),
        ({TOTAL: 14}, None, "stop"),
        ({TOTAL: 14}, {GENERATED: 3}, "length"),
        ({TOTAL: 14}, {TOTAL: 13}, "length"),
        ({}, {TOTAL: 13}, "length"),
        ({}, {TOTAL: 14}, "stop"),
        ({GENERATED: True}, {GENERATED: "3"}, "stop"),  # nonsense is no budget
        ({}, {GENERATED: 3.0, TOTAL: 13.0}, "stop"),
    ],
    ids=str,
)
def test_length_means_that_the_budget_was_used_up(
    asked: dict[str, Any], echoed: dict[str, Any] | None, reason: str
) -> None:
    fields = {"generated_tokens": [1, 2, 3], "prompt_length": 10, "sampling_params": echoed}
    assert convert(fields, asked=asked).finish_reason == reason


def test_a_total_budget_says_nothing_without_the_length_of_the_prompt() -> None:
    fields = {"generated_tokens": [1, 2, 3]}
    assert convert(fields, asked={TOTAL: 3}).finish_reason == "stop"


def test_the_engines_own_count_decides_where_it_gives_one() -> None:
    fields = {"generated_tokens": [1, 2, 3], "generated_length": 4}
    assert convert(fields, asked={GENERATED: 4}).finish_reason == "length"
    assert convert(fields).generated_length == 4
    assert convert({"generated_tokens": [1, 2, 3]}).generated_length == 3


@pytest.mark.parametrize(
    ("status", "aborted", "reason"),
    [
        ("COMPLETED", False, "length"),
        ("COMPLETED", True, "abort"),
        ("FAILED", False, "error"),
        ("FAILED", True, "error"),
        ("UNHEARD_OF", False, "length"),
    ],
)
def test_failure_comes_before_abort_and_abort_before_length(
    status: str,
    aborted: bool,  # noqa: FBT001
    reason: str,
) -> None:
    fields = {"status": status, "generated_tokens": [1]}
    assert convert(fields, asked={GENERATED: 1}, aborted=aborted).finish_reason == reason


# What a reply holds


def test_what_was_measured_here_stands_beside_what_the_engine_measured() -> None:
    completion = to_completion(
        {"status": "COMPLETED", "ttft": 3, "tpot": [0.5, 1], "latency": 9.0},
        Known(time_to_first_token=0.25),
    )
    assert completion.latency == 0.5
    assert completion.time_to_first_token == 0.25
    assert completion.ttft == 3.0
    assert completion.tpot == [0.5, 1.0]
    assert completion.extra == {"latency": 9.0}


def test_fields_of_newer_engines_are_kept_and_the_repeated_prompt_is_not() -> None:
    fields = {"unheard_of": {"a": [1]}, "remaining_prompt_tokens": ["tensor", [1, 2]]}
    assert convert(fields).extra == {"unheard_of": {"a": [1]}}


def test_a_failed_request_may_have_almost_nothing() -> None:
    completion = convert({"status": "FAILED", "generated_tokens": None, "events": None})
    assert completion.generated_tokens == []
    assert completion.generated_length == 0
    assert completion.events == ()


@pytest.mark.parametrize(
    "wrap",
    [lambda a: a, lambda a: ["tensor", a], lambda a: ["ndarray", {"data": a, "dtype": "x"}]],
    ids=["bare", "tensor", "ndarray"],
)
@pytest.mark.parametrize(
    ("field", "array"),
    [
        ("prompt_tokens", [1, 2]),
        ("generated_tokens", [1, 2]),
        ("prompt_log_probs", [-0.5, -1.0]),
        ("generated_log_probs", [-0.5, -1.0]),
        ("routing_indices", [[[0, 1]], [[2, 3]]]),
        ("prompt_tokens", []),
        ("routing_indices", ["tensor", "ndarray", "x"]),
    ],
)
def test_arrays_come_as_nested_lists_however_they_were_wrapped(
    wrap: Any, field: str, array: list[Any]
) -> None:
    fields = {"generated_tokens": [1, 2], field: wrap(array)}
    assert getattr(convert(fields), field) == array


@pytest.mark.parametrize("field", ["generated_log_probs", "generated_top_n_logprobs"])
@pytest.mark.parametrize("tokens", [[], [1], [1, 2]])
def test_log_probs_of_a_stop_word_that_was_taken_off_again_go_with_it(
    field: str, tokens: list[int]
) -> None:
    values: list[Any] = [-0.5, -1.0] if field == "generated_log_probs" else [{"a": -0.5}, {}]
    completion = convert({"generated_tokens": tokens, field: values})
    assert getattr(completion, field) == values[: len(tokens)]
    assert getattr(convert({"generated_tokens": tokens}), field) is None


def test_two_strings_in_a_list_are_no_array() -> None:
    fields = {"unheard_of": ["tensor", "flow"], "events": [EVENT | {"payload": ["tensor", "x"]}]}
    completion = convert(fields)
    assert completion.extra == {"unheard_of": ["tensor", "flow"]}
    assert completion.events[0].payload == ["tensor", "x"]


EVENT = {"timestamp": 1.0, "type": "ERROR_TRANSIENT"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("status", None),
        ("status", 3),
        ("status", ["tensor", "COMPLETED"]),
        ("prompt", ["tensor", "flow"]),
        ("events", ["tensor", []]),
        ("request_id", "9"),
        ("generated_tokens", "abc"),
        ("generated_tokens", [1, 2.0]),
        ("generated_tokens", ["tensor", "abc"]),
        ("generated_tokens", ["tensor", [1], "too many"]),
        ("generated_tokens", ["unheard_of", [1]]),
        ("generated_tokens", ["ndarray", [1]]),
        ("generated_tokens", ["ndarray", {"dtype": "int64"}]),
        ("generated_length", 1.0),
        ("prompt", b"bytes"),
        ("sampling_params", [1]),
        ("events", [{"type": "FAIL"}]),
        ("policy_epoch", [[0]]),
        ("kv_cache_epoch", [0, 1]),
        ("ttft", "soon"),
        ("payload_offloaded", 1),
    ],
)
def test_a_field_that_makes_no_sense_is_not_handed_to_the_caller(field: str, value: object) -> None:
    with pytest.raises(MalformedMessage):
        convert({field: value})


def test_a_reply_without_a_status_makes_no_sense() -> None:
    with pytest.raises(MalformedMessage, match="status"):
        to_completion({}, Known())


# Why it failed

TRANSIENT = {"timestamp": 1.0, "type": "ERROR_TRANSIENT"}
NONTRANSIENT = {"timestamp": 1.0, "type": "ERROR_NONTRANSIENT"}
OTHER = {"timestamp": 1.0, "type": "FAIL", "payload": {"type": "Unrelated"}}


@pytest.mark.parametrize(
    ("events", "retryable"),
    [
        ([], None),
        ([OTHER], None),
        ([TRANSIENT], True),
        ([OTHER, TRANSIENT, TRANSIENT], True),
        ([NONTRANSIENT, OTHER], False),
        ([TRANSIENT, NONTRANSIENT], False),
        ([NONTRANSIENT, TRANSIENT], False),
    ],
    ids=str,
)
def test_a_retry_makes_sense_only_if_every_error_is_transient(
    events: list[dict[str, Any]],
    retryable: bool | None,  # noqa: FBT001
) -> None:
    error = request_failed(convert({"status": "FAILED", "events": events}))
    assert error.retryable is retryable


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (None, "ERROR_TRANSIENT"),
        ({}, "ERROR_TRANSIENT"),
        ({"type": None, "message": ""}, "ERROR_TRANSIENT"),
        ({"type": "BlockOverflowError", "message": None}, "BlockOverflowError"),
        ({"message": "no blocks"}, "no blocks"),
        ({"type": "BlockOverflowError", "message": "no blocks"}, "BlockOverflowError: no blocks"),
        ({"type": 5, "message": ["odd"]}, "5: ['odd']"),
        ("out of memory", "out of memory"),
        (["out", "of"], "['out', 'of']"),
        ("x" * 10_000, "x" * 500),
        ({"type": "x" * 10_000, "message": "y" * 10_000}, "x" * 500 + ": " + "y" * 500),
    ],
    ids=lambda value: str(value)[:40],
)
def test_the_message_of_a_failure_says_what_the_engine_said(payload: object, reason: str) -> None:
    event = TRANSIENT | {"payload": payload}
    error = request_failed(convert({"status": "FAILED", "events": [OTHER, event]}))
    assert str(error) == f"request 7 failed: {reason}"


# Before 0.19


def test_where_the_engine_does_not_say_how_long_the_prompt_was_its_ids_do() -> None:
    fields = {
        "prompt_tokens": ["tensor", list(range(10))],
        "generated_tokens": [1, 2, 3],
        "policy_epoch": [[0, 1], [11, 2]],
    }
    completion = convert(fields, asked={TOTAL: 13})
    assert completion.prompt_length == 10
    assert completion.finish_reason == "length"
    assert [completion.policy_epoch_of(n) for n in range(3)] == [1, 2, 2]


# Epochs


def test_the_epoch_of_each_generated_token() -> None:
    spans = [[0, 1], [11, 2], [13, 5]]
    completion = convert(
        {
            "prompt_length": 10,
            "generated_tokens": [7, 8, 9, 6],
            "policy_epoch": spans,
            "kv_cache_epoch": [[0, 1]],
        }
    )
    assert [completion.policy_epoch_of(n) for n in range(4)] == [1, 2, 2, 5]
    assert [completion.policy_epoch_of(n) for n in range(-4, 0)] == [1, 2, 2, 5]
    assert [completion.kv_cache_epoch_of(n) for n in range(4)] == [1, 1, 1, 1]
    for n in (4, -5):
        with pytest.raises(IndexError, match=f"there are 4 generated tokens, and none at {n}"):
            completion.policy_epoch_of(n)
    with pytest.raises(TypeError):
        completion.policy_epoch_of("0")  # type: ignore[arg-type]


def test_the_last_boundary_that_was_passed_counts_whatever_their_order() -> None:
    fields = {"prompt_length": 0, "generated_tokens": [1, 2], "policy_epoch": [[1, 7], [0, 9]]}
    assert convert(fields).policy_epoch_of(1) == 9


def test_a_genuine_reply_knows_the_epoch_of_its_tokens() -> None:
    completion = convert(received("0.19-reply-completed_prefix_cache_epochs"))
    assert completion.policy_epoch_of(0) == 2
    assert completion.kv_cache_epoch_of(0) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_length": 10},
        {"policy_epoch": [[0, 1]]},
        {"prompt_length": 10, "policy_epoch": []},
        {"prompt_length": 10, "policy_epoch": [[11, 1]]},
    ],
    ids=str,
)
def test_where_no_epoch_is_known_there_is_none(fields: dict[str, Any]) -> None:
    assert convert({"generated_tokens": [1], **fields}).policy_epoch_of(0) is None


# Arrays


def test_routing_indices_as_an_array_have_the_engines_own_dtype() -> None:
    array = convert(received("0.19-reply-completed_routing")).array("routing_indices")
    assert array.dtype == np.int16
    assert array.shape == (3, 2, 2)
    assert array[2, 1].tolist() == [10, 11]


def test_numbers_as_arrays() -> None:
    completion = convert(received("0.20-reply-completed_logprobs_topn"))
    tokens, log_probs = (
        completion.array("generated_tokens"),
        completion.array("generated_log_probs"),
    )
    assert tokens.dtype == np.int64
    assert tokens.tolist() == completion.generated_tokens
    assert log_probs.dtype == np.float64
    assert log_probs.tolist() == completion.generated_log_probs
    assert convert({}).array("generated_tokens").dtype == np.int64
    tokens[0] = 0
    assert completion.generated_tokens[0] != 0


@pytest.mark.parametrize(
    ("fields", "name", "complaint"),
    [
        ({}, "generated_text", "no array is called 'generated_text': there are generated_tokens"),
        ({}, "routing_indices", "this completion has no routing_indices"),
        ({"routing_indices": [[1], [2, 3]]}, "routing_indices", "is no array"),
        ({"routing_indices": ["tensor", ["x"]]}, "routing_indices", "is no array"),
        (
            {"routing_indices": ["ndarray", {"data": [1.7], "dtype": "int8"}]},
            "routing_indices",
            "is no array of int8",
        ),
        (
            {"routing_indices": ["ndarray", {"data": [1e9], "dtype": "float16"}]},
            "routing_indices",
            "is no array of float16",
        ),
        (
            {"routing_indices": ["ndarray", {"data": [300], "dtype": "int8"}]},
            "routing_indices",
            "is no array of int8",
        ),
        (
            {"routing_indices": ["ndarray", {"data": ["x"], "dtype": "int8"}]},
            "routing_indices",
            "is no array of int8",
        ),
    ],
    ids=str,
)
def test_what_is_no_array_is_refused(fields: dict[str, Any], name: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        convert(fields).array(name)


@pytest.mark.parametrize(
    "values",
    [[{"a": 1}], [None], ["a"], [[1, "a"]], [b"x"], [[1, None]], [[1.5]], [2**64], [-(2**64)]],
    ids=str,
)
@pytest.mark.parametrize("wrap", [lambda a: a, lambda a: ["tensor", a]], ids=["bare", "tensor"])
def test_what_holds_anything_but_ints_is_no_array_of_routing_indices(
    wrap: Any, values: list[Any]
) -> None:
    completion = convert({"routing_indices": wrap(values)})
    assert completion.routing_indices == values
    with pytest.raises(ValueError, match="routing_indices is no array of int64"):
        completion.array("routing_indices")


ARRAYS_OF_ONE_DTYPE: list[tuple[str, list[Any], Any]] = [
    ("generated_tokens", [1, 50_000], np.int64),
    ("prompt_tokens", [1, 50_000], np.int64),
    ("generated_log_probs", [-0.1, -1e300], np.float64),
    ("prompt_log_probs", [-0.1, -1e300], np.float64),
    ("tpot", [0.1, 1e300], np.float64),
]


@pytest.mark.parametrize(("name", "values", "dtype"), ARRAYS_OF_ONE_DTYPE)
@pytest.mark.parametrize("told", [None, "int8", "float16", "bool"])
def test_what_an_engine_calls_its_numbers_neither_cuts_nor_rounds_them(
    name: str, values: list[Any], dtype: Any, told: str | None
) -> None:
    wrapped = ["ndarray", {"data": values, "dtype": told}]
    array = convert({"generated_tokens": [1, 2], name: wrapped}).array(name)
    assert array.dtype == dtype
    assert array.tolist() == values


def test_every_array_but_that_of_routing_indices_is_of_one_dtype() -> None:
    assert {name for name, *_ in ARRAYS_OF_ONE_DTYPE} == ARRAYS.keys() - {"routing_indices"}


@pytest.mark.parametrize("dtype", ["(1000000000,)f8", "a1000000000", "O", "f8,f8", 8, None, ["i"]])
def test_a_dtype_that_would_cost_the_caller_its_memory_is_ignored(dtype: object) -> None:
    fields = {"routing_indices": ["ndarray", {"data": [[1, 2]], "dtype": dtype}]}
    assert convert(fields).array("routing_indices").tolist() == [[1, 2]]
