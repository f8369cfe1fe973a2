from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.vector_files import read_json
from trio_infer import SamplingParams
from trio_infer.embedded.batching import SCORED_PER_STEP, EnginePartial, EngineReply
from trio_infer.embedded.engine import Engine
from trio_infer.embedded.ngram import default_model
from trio_infer.protocol.dialect import Kind
from trio_infer.protocol.dialects import DIALECTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trio_infer.embedded import LanguageModel

VECTORS = Path(__file__).parent.parent / "vectors"
GREEDY = {"top_k": 1}


def genuine(name: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((VECTORS / f"0.20-reply-{name}.json").read_text())["frame"][2]
    return body


def submit(
    engine: Engine, request_id: int, prompt: str | list[int], **params: Any
) -> EngineReply | None:
    return engine.submit(request_id, prompt, GREEDY | params, 0.0)


def run(engine: Engine, *, most: int = 1000) -> list[EnginePartial | EngineReply]:
    outputs: list[EnginePartial | EngineReply] = []
    for step in range(1, most):
        if not engine.wants_step:
            break
        outputs += engine.step(float(step))
    return outputs


def final(engine: Engine, prompt: str | list[int], **params: Any) -> dict[str, Any]:
    assert submit(engine, 7, prompt, **params) is None
    *partials, reply = run(engine)
    assert isinstance(reply, EngineReply)
    assert all(isinstance(partial, EnginePartial) for partial in partials)
    assert reply.request_id == reply.body["request_id"] == 7
    return dict(reply.body)


def stream(
    engine: Engine, prompt: str | list[int], **params: Any
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    assert submit(engine, 7, prompt, streaming=True, **params) is None
    *partials, reply = (dict(output.body) for output in run(engine))
    return partials, reply


def refusal(engine: Engine, prompt: Any, **params: Any) -> dict[str, Any]:
    reply = engine.submit(7, prompt, params, 0.0)
    assert reply is not None
    assert engine.load == 0
    return dict(reply.body)


@pytest.fixture
def engine(alphabet: LanguageModel) -> Engine:
    return Engine(alphabet, max_sequence_length=1000)


# What a finished request looks like


def test_a_finished_request_has_the_fields_of_a_genuine_one_in_their_order(
    engine: Engine,
) -> None:
    body, vector = final(engine, "a", num_tokens_to_generate=3), genuine("completed_plain")
    assert list(body) == list(vector)
    assert list(body["sampling_params"]) == list(vector["sampling_params"])
    assert [event["type"] for event in body["events"]] == [
        event["type"] for event in vector["events"]
    ]
    differ = {name for name in body if body[name] != vector[name]}
    assert differ <= {
        "request_id", "prompt", "sampling_params", "prompt_length", "generated_text",
        "generated_tokens", "uid", "remaining_prompt_tokens", "ttft", "tpot", "events",
    }  # fmt: skip


def test_a_finished_request_tells_what_was_generated(engine: Engine) -> None:
    body = final(engine, "ab", num_tokens_to_generate=3)
    assert body["status"] == "COMPLETED"
    assert body["prompt"] == "ab"
    assert body["prompt_length"] == 2
    assert body["prompt_tokens"] is None
    assert body["remaining_prompt_tokens"] == ["tensor", [97, 98]]
    assert body["generated_text"] == "cde"
    assert body["generated_tokens"] == [99, 100, 101]
    assert body["generated_length"] == 3
    assert body["generated_log_probs"] is None
    assert body["prompt_top_n_logprobs"] is None


def test_uids_are_unlike_each_other(engine: Engine) -> None:
    first, second = (final(engine, "a", num_tokens_to_generate=1)["uid"] for _ in range(2))
    assert first != second
    assert len(first) == len(genuine("completed_plain")["uid"])
    assert first.startswith("chatcmpl-")


def test_a_prompt_of_ids_comes_back_as_ids_only(engine: Engine) -> None:
    body = final(engine, [97], num_tokens_to_generate=1, return_prompt_tokens=True)
    assert body["prompt"] is None
    assert body["prompt_tokens"] == ["tensor", [97]]
    assert body["generated_text"] == "b"


def test_the_prompt_belongs_to_the_caller(engine: Engine) -> None:
    prompt = [97]
    final(engine, prompt, num_tokens_to_generate=5)
    assert prompt == [97]


def test_times_are_those_it_was_given(engine: Engine) -> None:
    engine.submit(1, "a", GREEDY | {"num_tokens_to_generate": 3}, 10.0)
    outputs = [output for now in (10.5, 11.0, 12.5) for output in engine.step(now)]
    body = outputs[-1].body
    assert body["ttft"] == 0.5
    assert body["tpot"] == [0.5, 1.5]
    assert [event["timestamp"] for event in body["events"]] == [10.0, 10.5, 12.5]


def test_a_begin_token_where_it_is_asked_for(engine: Engine) -> None:
    body = final(engine, "a", add_BOS=True, num_tokens_to_generate=1)
    assert body["remaining_prompt_tokens"] == ["tensor", [0, 97]]
    body = final(engine, [97], add_BOS=True, num_tokens_to_generate=1)
    assert body["remaining_prompt_tokens"] == ["tensor", [97]]


def test_unknown_parameters_are_echoed(engine: Engine) -> None:
    body = final(engine, "a", num_tokens_to_generate=1, detokenize_generations=True, others=1)
    assert body["sampling_params"]["detokenize_generations"] is True
    assert body["sampling_params"]["others"] == 1


# When a request ends


def test_it_ends_at_the_end_token_which_the_text_lacks(engine: Engine) -> None:
    body = final(engine, "x")
    assert body["generated_tokens"] == [121, 122, 0]
    assert body["generated_text"] == "yz"
    assert body["sampling_params"]["termination_id"] == 0


def test_the_end_token_stays_in_the_text_where_stop_sequences_do(engine: Engine) -> None:
    assert final(engine, "x", detokenize_stop_sequence=True)["generated_text"] == "yz<end>"


def test_it_ends_at_the_termination_id_asked_for(engine: Engine) -> None:
    body = final(engine, "a", termination_id=ord("d"))
    assert body["generated_text"] == "bcd"
    assert body["sampling_params"]["termination_id"] == ord("d")


def test_a_termination_id_that_never_comes_leaves_only_the_budget(engine: Engine) -> None:
    body = final(engine, "y", termination_id=-1, num_tokens_to_generate=4)
    assert body["generated_tokens"] == [122, 0, 1, 2]


def test_a_budget_for_prompt_and_continuation(engine: Engine) -> None:
    body = final(engine, "abc", num_tokens_total=5)
    assert body["generated_text"] == "de"
    assert body["sampling_params"]["num_tokens_to_generate"] == 2
    assert body["sampling_params"]["num_tokens_total"] is None


@pytest.mark.parametrize("asked", [{}, {"num_tokens_to_generate": 99}, {"num_tokens_total": 99}])
def test_no_sequence_grows_beyond_what_the_engine_can_hold(
    alphabet: LanguageModel, asked: dict[str, int]
) -> None:
    body = final(Engine(alphabet, max_sequence_length=10), "abc", **asked)
    assert body["generated_length"] == 7
    assert body["sampling_params"]["num_tokens_to_generate"] == 7


def test_a_budget_of_nothing_completes_with_nothing(engine: Engine) -> None:
    body = final(engine, "abc", num_tokens_to_generate=0)
    assert (body["status"], body["generated_tokens"], body["ttft"]) == ("COMPLETED", [], None)


def test_a_budget_of_nothing_still_scores_the_prompt(engine: Engine) -> None:
    body = final(engine, "abc", num_tokens_to_generate=0, return_log_probs=True)
    assert body["prompt_log_probs"] == pytest.approx([math.log(0.9)] * 2)
    assert body["generated_log_probs"] == []


# Stop words


def test_a_stop_word_ends_it_and_is_taken_away(engine: Engine) -> None:
    body = final(engine, "a", stop_words=["xyz", "def"])
    assert body["generated_text"] == "bc"
    assert body["generated_length"] == 2


def test_a_stop_word_stays_where_it_is_asked_to(engine: Engine) -> None:
    body = final(engine, "a", stop_words=["def"], detokenize_stop_sequence=True)
    assert body["generated_text"] == "bcdef"


def test_a_stop_word_ends_it_one_step_later(engine: Engine) -> None:
    submit(engine, 1, "a", stop_words=["c"])
    assert [len(engine.step(float(now))) for now in range(3)] == [0, 0, 1]


def test_a_stop_word_is_not_looked_for_in_the_prompt(engine: Engine) -> None:
    body = final(engine, "abc", stop_words=["cd", "abc"], num_tokens_to_generate=3)
    assert body["generated_text"] == "def"


def test_a_stop_word_on_the_last_token_of_the_budget(engine: Engine) -> None:
    body = final(engine, "a", stop_words=["d"], num_tokens_to_generate=3)
    assert body["generated_text"] == "bc"


def test_empty_stop_words_stop_nothing(engine: Engine) -> None:
    assert final(engine, "a", stop_words=["", "e"])["generated_text"] == "bcd"
    partials, _ = stream(engine, "a", stop_words=[""], num_tokens_to_generate=3)
    assert [partial["new_tokens"] for partial in partials] == [[98], [99]]


# Log probabilities


def test_log_probs_are_the_models_own(engine: Engine) -> None:
    body = final(engine, "aby", num_tokens_to_generate=2, return_log_probs=True)
    likely, unlikely = math.log(0.9), math.log(0.1 / 127)
    assert body["prompt_log_probs"] == pytest.approx([likely, unlikely])
    assert body["generated_log_probs"] == pytest.approx([likely, likely])
    assert body["prompt_top_n_logprobs"] is None
    assert body["generated_top_n_logprobs"] is None


def test_top_n_log_probs_by_text_with_the_likeliest_first(engine: Engine) -> None:
    body = final(engine, "ab", num_tokens_to_generate=1, return_log_probs=True, top_n_logprobs=2)
    (prompt_top,), (top,) = body["prompt_top_n_logprobs"], body["generated_top_n_logprobs"]
    assert next(iter(prompt_top)) == "b"
    assert next(iter(top)) == "c"
    assert len(top) == 2
    assert body["sampling_params"]["return_prompt_top_n_logprobs"] is True


def test_no_prompt_log_probs_where_they_are_skipped(engine: Engine) -> None:
    body = final(
        engine, "ab", num_tokens_to_generate=1, return_log_probs=True, top_n_logprobs=1,
        skip_prompt_log_probs=True,
    )  # fmt: skip
    assert body["prompt_log_probs"] == body["prompt_top_n_logprobs"] == []
    assert len(body["generated_log_probs"]) == len(body["generated_top_n_logprobs"]) == 1


def test_log_probs_of_a_sampled_token_are_not_those_of_its_draw(alphabet: LanguageModel) -> None:
    body = final(
        Engine(alphabet, seed=1), "a", num_tokens_to_generate=1, return_log_probs=True,
        temperature=0.1,
    )  # fmt: skip
    assert body["generated_log_probs"] == pytest.approx([math.log(0.9)])


def test_the_log_probs_of_a_stop_word_outnumber_the_tokens_as_in_megatron_core(
    engine: Engine,
) -> None:
    body = final(engine, "a", stop_words=["def"], return_log_probs=True, top_n_logprobs=1)
    assert body["generated_length"] == 2
    assert len(body["generated_log_probs"]) == len(body["generated_top_n_logprobs"]) == 4


def test_a_long_prompt_is_scored_in_pieces_while_others_go_on(alphabet: LanguageModel) -> None:
    engine = Engine(alphabet)
    prompt = "ab" * SCORED_PER_STEP
    submit(engine, 1, prompt, num_tokens_to_generate=1, return_log_probs=True)
    submit(engine, 2, "a", num_tokens_to_generate=2)
    outputs = [engine.step(float(now)) for now in range(3)]
    assert [[output.request_id for output in step] for step in outputs] == [[], [1, 2], []]
    body = outputs[1][0].body
    assert len(body["prompt_log_probs"]) == len(prompt) - 1


def test_a_long_prompt_is_aborted_before_it_is_scored(alphabet: LanguageModel) -> None:
    engine = Engine(alphabet)
    submit(engine, 1, "a" * SCORED_PER_STEP * 3, return_log_probs=True)
    assert engine.step(0.0) == []
    engine.abort(1)
    (reply,) = engine.step(1.0)
    assert reply.body["generated_length"] == 0


# Streaming


def test_each_partial_holds_what_is_new_and_the_last_token_comes_only_in_the_end(
    engine: Engine,
) -> None:
    partials, body = stream(engine, "a", num_tokens_to_generate=3)
    assert partials == [
        {"request_id": 7, "new_tokens": [98]},
        {"request_id": 7, "new_tokens": [99]},
    ]
    assert body["generated_tokens"] == [98, 99, 100]
    assert body["sampling_params"]["streaming"] is True


def test_partials_wait_for_the_interval(engine: Engine) -> None:
    partials, body = stream(engine, "a", num_tokens_to_generate=8, streaming_interval=3)
    assert [partial["new_tokens"] for partial in partials] == [[98, 99, 100], [101, 102, 103]]
    assert body["generated_length"] == 8


def test_partials_carry_log_probs_and_the_first_one_those_of_the_prompt(engine: Engine) -> None:
    partials, _ = stream(
        engine, "ab", num_tokens_to_generate=3, return_log_probs=True, top_n_logprobs=1
    )
    likely = pytest.approx(math.log(0.9))
    assert partials == [
        {
            "request_id": 7,
            "new_tokens": [99],
            "new_log_probs": [likely],
            "new_top_n_logprobs": [{"c": likely}],
            "prompt_log_probs": [likely],
            "prompt_top_n_logprobs": [{"b": likely}],
        },
        {
            "request_id": 7,
            "new_tokens": [100],
            "new_log_probs": [likely],
            "new_top_n_logprobs": [{"d": likely}],
        },
    ]


def test_partials_without_the_prompts_log_probs_where_they_are_skipped(engine: Engine) -> None:
    (partial,), _ = stream(
        engine, "ab", num_tokens_to_generate=2, return_log_probs=True, skip_prompt_log_probs=True
    )
    assert list(partial) == ["request_id", "new_tokens", "new_log_probs", "new_top_n_logprobs"]
    assert partial["new_top_n_logprobs"] == []


def test_what_may_become_a_stop_word_is_held_back(engine: Engine) -> None:
    partials, body = stream(engine, "a", stop_words=["x", "efg"])
    assert [token for partial in partials for token in partial["new_tokens"]] == [98, 99, 100]
    assert body["generated_text"] == "bcd"
    submit(engine, 1, "a", streaming=True, stop_words=["xyz"])
    assert [len(engine.step(float(now))) for now in range(3)] == [0, 0, 1]


def test_nothing_is_held_back_where_the_stop_word_stays(engine: Engine) -> None:
    partials, body = stream(engine, "a", stop_words=["cd"], detokenize_stop_sequence=True)
    assert [partial["new_tokens"] for partial in partials] == [[98], [99], [100]]
    assert body["generated_text"] == "bcd"


def test_top_n_of_what_is_held_back_comes_twice_as_in_megatron_core(engine: Engine) -> None:
    partials, _ = stream(
        engine, "a", stop_words=["xyz"], num_tokens_to_generate=5, return_log_probs=True,
        top_n_logprobs=1,
    )  # fmt: skip
    assert [partial["new_tokens"] for partial in partials] == [[98], [99]]
    assert [[*map(list, partial["new_top_n_logprobs"])] for partial in partials] == [
        [["b"], ["c"], ["d"]],
        [["c"], ["d"], ["e"]],
    ]
    assert [len(partial["new_log_probs"]) for partial in partials] == [1, 1]


# Aborting


def test_an_aborted_request_ends_on_the_next_step_with_what_there_is(engine: Engine) -> None:
    submit(engine, 1, "a")
    engine.step(1.0)
    engine.step(2.0)
    assert engine.abort(1)
    (reply,) = engine.step(3.0)
    assert isinstance(reply, EngineReply)
    assert reply.body["status"] == "COMPLETED"
    assert reply.body["generated_text"] == "bc"
    assert reply.body["sampling_params"]["num_tokens_to_generate"] == 2
    assert [event["type"] for event in reply.body["events"]][-1] == "FINISH"
    assert engine.load == 0


def test_an_abort_of_nothing_is_told(engine: Engine) -> None:
    assert not engine.abort(1)
    final(engine, "a", num_tokens_to_generate=1)
    assert not engine.abort(7)


def test_a_request_aborted_while_it_waits_ends_when_its_turn_comes(
    alphabet: LanguageModel,
) -> None:
    engine = Engine(alphabet, max_requests=1)
    submit(engine, 1, "a", num_tokens_to_generate=2)
    submit(engine, 2, "a")
    assert engine.abort(2)
    ends = [[output.request_id for output in engine.step(float(now))] for now in range(3)]
    assert ends == [[], [1], [2]]


def test_a_paused_engine_ends_nothing(engine: Engine) -> None:
    submit(engine, 1, "a")
    engine.step(1.0)
    engine.pause()
    engine.abort(1)
    assert not engine.wants_step
    assert engine.step(2.0) == []
    engine.unpause()
    assert [output.request_id for output in engine.step(3.0)] == [1]


def test_a_paused_engine_accepts_and_refuses(engine: Engine) -> None:
    engine.pause()
    assert submit(engine, 1, "a") is None
    assert engine.waiting == (1,)
    assert submit(engine, 2, "") is not None


# Many at once


def test_the_model_is_never_asked_about_nothing(alphabet: LanguageModel) -> None:
    class Picky(type(alphabet)):  # type: ignore[misc]
        def next_token_log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
            assert sequences
            rows: list[list[float]] = super().next_token_log_probs(sequences)
            return rows

    final(Engine(Picky()), "ab", num_tokens_to_generate=2)
    final(Engine(Picky()), "ab", num_tokens_to_generate=0)
    final(Engine(Picky()), "a", num_tokens_to_generate=0, return_log_probs=True)


def test_no_more_run_at_once_than_may_and_the_first_come_first(alphabet: LanguageModel) -> None:
    engine = Engine(alphabet, max_requests=2)
    for number in range(5):
        submit(engine, number, "a", num_tokens_to_generate=2)
    seen = []
    while engine.wants_step:
        ends = [output.request_id for output in engine.step(0.0)]
        seen.append(([state.request_id for state in engine.running], engine.waiting, ends))
    assert seen == [
        ([0, 1], (2, 3, 4), []),
        ([], (2, 3, 4), [0, 1]),
        ([2, 3], (4,), []),
        ([], (4,), [2, 3]),
        ([4], (), []),
        ([], (), [4]),
    ]
    assert (engine.steps, engine.tokens) == (6, 10)


def test_running_tells_how_far_each_has_come(engine: Engine) -> None:
    submit(engine, 3, "abc")
    assert not list(engine.running)
    engine.step(0.0)
    engine.step(1.0)
    (state,) = engine.running
    assert (state.request_id, state.prompt_length, state.generated_length) == (3, 3, 2)


def test_one_id_twice_at_once_is_a_mistake(engine: Engine) -> None:
    submit(engine, 1, "a")
    with pytest.raises(KeyError):
        submit(engine, 1, "a")
    engine.step(0.0)
    with pytest.raises(KeyError):
        submit(engine, 1, "a")


def test_a_step_with_nothing_to_do_is_none(engine: Engine) -> None:
    assert engine.step(0.0) == []
    assert engine.steps == 0


@pytest.mark.parametrize("limits", [{"max_requests": 0}, {"max_sequence_length": 0}])
def test_an_engine_that_could_do_nothing_is_refused(
    alphabet: LanguageModel, limits: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Engine(alphabet, **limits)


def drawn(seed: int | None, *others: int) -> list[int]:
    engine = Engine(default_model(), seed=seed)
    for request_id in (*others, 1):
        engine.submit(request_id, "The ", {"num_tokens_to_generate": 20}, 0.0)
    bodies = {output.request_id: output.body for output in run(engine)}
    tokens: list[int] = bodies[1]["generated_tokens"]
    return tokens


def test_the_seed_decides_and_others_in_the_batch_do_not() -> None:
    assert drawn(5) == drawn(5, 2, 3)
    assert drawn(5) != drawn(6)
    assert drawn(None) != drawn(None)


def test_requests_differ_from_each_other_under_one_seed() -> None:
    engine = Engine(default_model(), seed=1)
    for request_id in (1, 2):
        engine.submit(request_id, "The ", {"num_tokens_to_generate": 20}, 0.0)
    first, second = (output.body["generated_tokens"] for output in run(engine))
    assert first != second


# What is refused


@pytest.mark.parametrize(
    "params",
    [
        {"num_tokens_to_generate": 1, "num_tokens_total": 9},
        {"top_n_logprobs": 1},
        {"top_k": 1, "top_p": 0.5},
        {"temperature": -1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": "hot"},
        {"temperature": True},
        {"temperature": None},
        {"top_k": -1},
        {"top_k": 1.0},
        {"top_p": 1.1},
        {"return_log_probs": 1},
        {"num_tokens_to_generate": "3"},
        {"num_tokens_total": 3.0},
        {"termination_id": "a"},
        {"stop_words": "end"},
        {"stop_words": [1]},
        {"stop_words": ["ß"]},
        {"streaming": None},
        {"streaming_interval": 0},
        {"streaming_interval": True},
    ],
)
def test_parameters_that_make_no_sense_fail_like_a_genuine_refusal(
    engine: Engine, params: dict[str, Any]
) -> None:
    body, vector = refusal(engine, "a", **params), genuine("failed_submission_placeholder")
    assert list(body) == list(vector)
    assert body["sampling_params"] == params
    assert [event["type"] for event in body["events"]] == ["FAIL"]
    differ = {name for name in body if body[name] != vector[name]}
    assert differ <= {"request_id", "uid", "sampling_params", "events"}


@pytest.mark.parametrize("prompt", ["", [], [128], [-1], [97, True], [97.0], [None], "ß"])
def test_prompts_that_make_no_sense_fail_likewise(engine: Engine, prompt: Any) -> None:
    body = refusal(engine, prompt)
    assert body["status"] == "FAILED"
    assert body["prompt_length"] == 0


@pytest.mark.parametrize(
    "params", [{"num_tokens_total": 1}, {"num_tokens_to_generate": -1}], ids=str
)
def test_no_room_for_the_budget_fails_with_the_reason(
    engine: Engine, params: dict[str, Any]
) -> None:
    body, vector = refusal(engine, "hi", **params), genuine("failed_max_seq")
    assert list(body) == list(vector)
    assert [event["type"] for event in body["events"]] == [
        event["type"] for event in vector["events"]
    ]
    assert body["events"][1]["payload"] == vector["events"][1]["payload"] | {"request_id": 7}
    assert body["remaining_prompt_tokens"] == vector["remaining_prompt_tokens"]
    assert body["prompt"] == "hi"


def test_a_prompt_that_is_too_long_fails_with_the_reason(alphabet: LanguageModel) -> None:
    engine = Engine(alphabet, max_sequence_length=3)
    assert refusal(engine, "abcd")["events"][1]["payload"]["type"] == (
        "MaxSequenceLengthOverflowError"
    )
    assert final(engine, "abc")["generated_length"] == 0


def test_a_refusal_says_why_in_the_log(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    refusal(engine, [128])
    assert "token ids outside 0 to 127" in caplog.text


# Other dialects


@pytest.mark.parametrize("dialect", ["0.19", "0.18"])
def test_an_older_engine_takes_no_notice_of_what_it_does_not_know(
    alphabet: LanguageModel, dialect: str
) -> None:
    fields = DIALECTS[dialect].sampling_fields
    engine = Engine(alphabet, sampling_fields=fields)
    sent = SamplingParams(num_tokens_to_generate=2, top_k=1).serialize()
    del sent["streaming"]
    partials, reply = stream(engine, "a", **sent, min_length=4)
    assert partials == []
    assert reply["generated_tokens"] == [98, 99]
    assert reply["sampling_params"]["streaming"] is True  # kept, as an attribute is
    assert reply["sampling_params"]["min_length"] == 4


def test_before_there_was_a_parameter_the_prompts_ids_always_came_back(
    alphabet: LanguageModel,
) -> None:
    for dialect, expected in (("0.18", ["tensor", [97]]), ("0.19", None)):
        engine = Engine(alphabet, sampling_fields=DIALECTS[dialect].sampling_fields)
        assert final(engine, "a", num_tokens_to_generate=1)["prompt_tokens"] == expected
        refused = refusal(engine, "a", num_tokens_to_generate=-1)
        assert refused["prompt_tokens"] == expected
        nonsense = refusal(engine, [128])
        assert nonsense["prompt_tokens"] == (expected and ["tensor", []])
        assert final(engine, [97], num_tokens_to_generate=1)["prompt"] == (expected and "a")


# The prefix cache


def test_blocks_of_an_earlier_prompt_are_found_again(alphabet: LanguageModel) -> None:
    engine = Engine(alphabet, block_size_tokens=4)
    cached = [
        final(engine, prompt, num_tokens_to_generate=1)["num_cached_tokens"]
        for prompt in ("abcdefgh", "abcdefghi", "abcdxxxx", "xbcdefgh", "abc", "abcdxxxxy")
    ]
    assert cached == [0, 8, 4, 0, 0, 8]


def test_a_reply_of_a_caching_engine_has_the_fields_of_a_genuine_one(
    alphabet: LanguageModel,
) -> None:
    engine = Engine(alphabet, block_size_tokens=16)
    prompt = list(range(40))
    final(engine, prompt[:16], num_tokens_to_generate=1)
    body = final(engine, prompt, num_tokens_to_generate=1)
    vector = read_json("0.19-reply-completed_prefix_cache_epochs")["frame"][2]
    for field in (
        "block_size_tokens",
        "enable_prefix_caching",
        "num_cached_tokens",
        "precomputed_block_hashes",
        "prompt_length",
    ):
        assert body[field] == vector[field], field


def test_an_engine_without_a_cache_says_so(engine: Engine) -> None:
    body, vector = final(engine, "a", num_tokens_to_generate=1), genuine("completed_plain")
    for field in ("block_size_tokens", "enable_prefix_caching", "precomputed_block_hashes"):
        assert body[field] == vector[field], field


def test_randomness_does_not_leak_into_the_global_generator(engine: Engine) -> None:
    random.seed(3)
    expected = random.random()
    random.seed(3)
    final(engine, "a", num_tokens_to_generate=3)
    assert random.random() == expected


# What comes while a step is computed


def test_an_epoch_that_comes_while_a_step_is_computed_holds_behind_its_tokens(
    engine: Engine,
) -> None:
    engine.heed(Kind.SET_GENERATION_EPOCH, 7)
    submit(engine, 0, "abc", num_tokens_to_generate=2)
    submit(engine, 1, "abc", num_tokens_to_generate=3)
    engine.step(1.0)
    step = engine.begin(2.0)
    assert step is not None
    engine.heed(Kind.SET_GENERATION_EPOCH, 8)
    submit(engine, 2, "abc", num_tokens_to_generate=1)
    step.computation.run()
    outputs = [*engine.finish(step, 2.0), *run(engine)]
    epochs = {each.request_id: each.body["policy_epoch"] for each in outputs}
    assert epochs == {0: [(0, 7)], 1: [(0, 7), (4, 8)], 2: [(0, 8)]}
