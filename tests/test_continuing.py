"""Going on with what was cut short: what the request for the rest is, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.waiting import until
from trio_infer import (
    Completion,
    CompletionStream,
    ConnectionLost,
    GenerateRequest,
    InferenceClient,
    RemoteProtocolError,
    RequestFailed,
    SamplingParams,
    continue_from,
    generate_within,
    open_client,
)
from trio_infer.embedded import open_coordinator

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.peers import ScriptedCoordinator

PARAMS = SamplingParams(num_tokens_to_generate=10, top_k=3, stop_words=["x"], extra={"new": 1})


def cut(tokens: list[int], **fields: Any) -> Completion:
    values: dict[str, Any] = {
        "request_id": 0,
        "generated_tokens": tokens,
        "generated_length": len(tokens),
        "finish_reason": "abort",
        "latency": 1.0,
        "status": "COMPLETED",
    }
    return Completion(**values | fields)


def params_of(request: GenerateRequest) -> SamplingParams:
    assert isinstance(request.sampling_params, SamplingParams)
    return request.sampling_params


# What goes on


@pytest.mark.parametrize(
    "prompt", [[1, 2], (1, 2), range(1, 3), np.array([1, 2]), [np.int64(1), 2]], ids=repr
)
def test_the_prompt_is_the_ids_and_the_tokens_so_far_and_the_budget_what_is_left(
    prompt: Any,
) -> None:
    request = continue_from(cut([7, 8, 9]), prompt, PARAMS, tag="mine")
    assert request.prompt == [1, 2, 7, 8, 9]
    assert request.sampling_params == attrs.evolve(PARAMS, num_tokens_to_generate=7)
    assert request.tag == "mine"
    assert request.multi_modal_data is request.offload_params is request.kv_handoff is None


def test_what_stood_beside_the_prompt_does_again() -> None:
    media, offload = {"image": b"x"}, {"a": 1}
    request = continue_from(cut([7]), [1], PARAMS, multi_modal_data=media, offload_params=offload)
    assert request.multi_modal_data is media
    assert request.offload_params is offload


def test_neither_the_prompt_nor_the_completion_is_changed() -> None:
    prompt, completion = [1, 2], cut([7])
    request = continue_from(completion, prompt, PARAMS)
    assert (prompt, completion.generated_tokens) == ([1, 2], [7])
    assert isinstance(request.prompt, list)
    request.prompt.append(5)
    assert (prompt, completion.generated_tokens) == ([1, 2], [7])


def test_a_total_budget_stays_since_the_prompt_has_grown() -> None:
    params = SamplingParams(num_tokens_total=4)
    assert params_of(continue_from(cut([7]), [1, 2], params)) == params
    with pytest.raises(ValueError, match="nothing is left of the budget"):
        continue_from(cut([7, 8]), [1, 2], params)


def test_without_a_budget_there_is_none() -> None:
    assert params_of(continue_from(cut([7]), [1])) == SamplingParams()
    assert params_of(continue_from(cut([7]), [1], SamplingParams(top_k=1))).top_k == 1


def test_a_text_goes_on_by_the_ids_that_the_engine_returned() -> None:
    request = continue_from(cut([7], prompt_tokens=[256, 104]), "h", PARAMS)
    assert request.prompt == [256, 104, 7]


def test_what_has_no_tokens_yet_is_the_same_request_again() -> None:
    assert continue_from(cut([]), "text", PARAMS).prompt == "text"
    assert params_of(continue_from(cut([]), "text", PARAMS)) == PARAMS
    assert continue_from(cut([]), (1, 2), PARAMS).prompt == [1, 2]


def test_a_budget_used_up_may_be_raised() -> None:
    completion = cut([7, 8], finish_reason="length")
    more = SamplingParams(num_tokens_to_generate=5)
    assert params_of(continue_from(completion, [1], more)).num_tokens_to_generate == 3


def test_a_lost_connection_leaves_tokens_to_go_on_from() -> None:
    request = continue_from(ConnectionLost("gone", tokens=[7, 8]), [1], PARAMS)
    assert request.prompt == [1, 7, 8]
    assert params_of(request).num_tokens_to_generate == 8
    assert continue_from(ConnectionLost("gone"), "text", PARAMS).prompt == "text"


def test_parameters_that_can_serialize_are_asked_once_and_not_changed() -> None:
    class Theirs:
        asked = 0

        def serialize(self) -> dict[str, Any]:
            self.asked += 1
            return {"num_tokens_to_generate": 10, "top_k": 2, "new": [1]}

    theirs = Theirs()
    params = params_of(continue_from(cut([7]), [1], theirs))
    assert params == SamplingParams(num_tokens_to_generate=9, top_k=2, extra={"new": [1]})
    assert theirs.asked == 1


# What does not


@pytest.mark.parametrize(
    ("completion", "prompt", "params", "expected"),
    [
        (cut([7]), "text", PARAMS, "return_prompt_tokens=True"),
        (ConnectionLost("gone", tokens=[7]), "text", PARAMS, "return_prompt_tokens=True"),
        (cut([7] * 10), [1], PARAMS, "nothing is left of the budget: there are 10 tokens"),
        (cut([7] * 11), [1], PARAMS, "nothing is left of the budget"),
        (cut([7] * 10, finish_reason="length"), [1], PARAMS, "nothing is left of the budget"),
        (cut([7] * 10, finish_reason="length"), "text", PARAMS, "nothing is left of the budget"),
        (cut([], finish_reason="length"), [1], SamplingParams(num_tokens_to_generate=0), "nothing"),
        (cut([7], finish_reason="stop"), [1], PARAMS, "ended by itself"),
        (cut([7, 2]), [1], SamplingParams(termination_id=2), "ended by itself"),
        (cut([7, 2], sampling_params={"termination_id": 2}), [1], PARAMS, "ended by itself"),
        (cut([7], finish_reason="error", status="FAILED"), [1], PARAMS, "has failed"),
        (cut([], generated_length=3), [1], PARAMS, "lacks tokens"),
        (cut([7]), [], PARAMS, "prompt is empty"),
    ],
)
def test_what_cannot_be_continued_is_refused_with_the_reason(
    completion: Any, prompt: Any, params: SamplingParams, expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        continue_from(completion, prompt, params)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (([7], [1]), "cut_short must be a Completion, a CompletionStream or a ConnectionLost"),
        ((None, [1]), "cut_short must be"),
        ((cut([7]), b"bytes"), "prompt must be"),
        ((cut([7]), [1], {"top_k": 1}), "sampling_params must be"),
    ],
)
def test_what_is_no_such_thing_is_a_type_error(arguments: Any, expected: str) -> None:
    with pytest.raises(TypeError, match=expected):
        continue_from(*arguments)


# Streams


@pytest.fixture
def bind() -> str:
    return "memory://*"


def go_on(stream: CompletionStream[Any]) -> GenerateRequest:
    return continue_from(stream, [1], PARAMS)


async def test_a_stream_that_was_left_goes_on_from_all_that_has_arrived(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.stream([1], PARAMS) as stream:
        submission = await coordinator.submission()
        coordinator.partial(submission, [7])
        await stream.receive()
        coordinator.partial(submission, [8])
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(ValueError, match="still runs"):
            go_on(stream)
    assert go_on(stream).prompt == [1, 7, 8]
    with pytest.raises(ValueError, match="return_prompt_tokens=True"):
        continue_from(stream, "text", PARAMS)


async def test_a_stream_that_was_finished_early_goes_on_from_its_completion(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.stream("h", PARAMS) as stream:
        submission = await coordinator.submission()
        coordinator.answers_aborts = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.finish_early)
            await coordinator.abort()
            with pytest.raises(ValueError, match="still runs"):
                go_on(stream)
            coordinator.reply(submission, [7, 8], prompt_tokens=[104])
        assert continue_from(stream, "h", PARAMS).prompt == [104, 7, 8]
    assert continue_from(stream, "h", PARAMS).prompt == [104, 7, 8]


async def test_a_stream_never_entered_still_runs_until_it_is_closed(
    client: InferenceClient,
) -> None:
    stream = client.stream("h", PARAMS)
    with pytest.raises(ValueError, match="leave its block"):
        go_on(stream)
    await stream.aclose()
    assert continue_from(stream, "h", PARAMS).prompt == "h"


async def test_a_stream_that_has_ended_by_itself_is_refused(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.stream([1], PARAMS) as stream:
        coordinator.reply(await coordinator.submission(), [7])
        await stream.result()
        assert stream.error is None
    with pytest.raises(ValueError, match="ended by itself"):
        go_on(stream)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({"status": "FAILED"}, RequestFailed), ({"generated_tokens": "?"}, RemoteProtocolError)],
)
async def test_a_stream_that_failed_is_refused_within_its_block_and_behind(
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    fields: dict[str, Any],
    expected: type[Exception],
) -> None:
    async with client.stream([1], PARAMS) as stream:
        coordinator.reply(await coordinator.submission(), [7], **fields)
        with pytest.raises(expected):
            await stream.result()
        for _ in range(2):
            assert isinstance(stream.error, expected)
            with pytest.raises(ValueError, match="has failed"):
                go_on(stream)
            await stream.aclose()


async def test_a_stream_whose_connection_broke_goes_on_elsewhere(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    with pytest.raises(ConnectionLost) as caught:
        async with client.stream([1], PARAMS) as stream:
            submission = await coordinator.submission()
            coordinator.partial(submission, [7, 8])
            await stream.receive()
            coordinator.partial(submission, [9])
            coordinator.close()
            await until(lambda: stream.finished)
            in_block = go_on(stream).prompt
            await stream.result()
    assert isinstance(stream.error, ConnectionLost)
    assert in_block == go_on(stream).prompt == [1, 7, 8, 9]
    assert continue_from(caught.value, [1], PARAMS).prompt == [1, 7, 8, 9]


async def test_a_stream_of_plain_dicts_goes_on_if_it_was_left(
    coordinator: ScriptedCoordinator,
) -> None:
    async with open_client(coordinator.address, deserialize=False) as client:
        async with client.stream([1], PARAMS) as stream:
            coordinator.partial(await coordinator.submission(), [7])
            await stream.receive()
        assert go_on(stream).prompt == [1, 7]
        async with client.stream([1], PARAMS) as stream:
            coordinator.reply(await coordinator.submission(), [7])
            await stream.result()
        with pytest.raises(ValueError, match="deserialize=True"):
            go_on(stream)


# All together


async def _left(client: InferenceClient, seconds: float, request: GenerateRequest) -> Any:
    async with client.stream(request.prompt, request.sampling_params) as stream:
        with trio.move_on_after(seconds):
            await stream.result()
    return stream


def _within(**options: Any) -> Callable[..., Any]:
    async def run(client: InferenceClient, seconds: float, request: GenerateRequest) -> Any:
        return await generate_within(
            client, seconds, request.prompt, request.sampling_params, **options
        )

    return run


WAYS = {"the reply": _within(), "the deltas": _within(grace=0), "the stream": _left}


@settings(max_examples=60)
@given(
    prompt=st.sampled_from([b"The value of", b"An exception is", b"A", b"If the "]).map(list),
    cuts=st.lists(
        st.tuples(st.sampled_from(sorted(WAYS)), st.integers(0, 40)), min_size=1, max_size=5
    ),
    interval=st.integers(1, 4),
)
def test_a_greedy_completion_cut_anywhere_and_continued_is_the_same_as_the_whole(
    prompt: list[int], cuts: list[tuple[str, int]], interval: int
) -> None:
    params = SamplingParams(
        num_tokens_to_generate=40, top_k=1, return_log_probs=True, streaming_interval=interval
    )

    async def main() -> None:
        async with open_coordinator(bind="memory://*", step_time=1.0) as coordinator:
            async with open_client(coordinator.address) as client:
                whole = await client.generate(prompt, params)
                tokens: list[int] = []
                request: GenerateRequest | None = GenerateRequest(prompt, params)
                for way, steps in cuts:
                    if request is None:
                        break
                    partial = await WAYS[way](client, steps + 0.5, request)
                    if isinstance(partial, CompletionStream):
                        tokens += partial.tokens
                    else:
                        tokens += partial.generated_tokens
                    assert tokens == whole.generated_tokens[: len(tokens)]
                    try:
                        request = continue_from(partial, request.prompt, request.sampling_params)
                    except ValueError:
                        assert tokens == whole.generated_tokens
                        request = None
                if request is not None:
                    tokens += (
                        await client.generate(request.prompt, request.sampling_params)
                    ).generated_tokens
                assert tokens == whole.generated_tokens

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_a_text_cut_by_the_deadline_goes_on_by_the_ids_that_came_with_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    params = SamplingParams(
        num_tokens_to_generate=30, top_k=1, add_BOS=True, return_prompt_tokens=True
    )
    async with open_coordinator(bind="memory://*", step_time=1.0) as coordinator:
        async with open_client(coordinator.address) as client:
            whole = await client.generate("The value of", params)
            partial = await generate_within(client, 9.5, "The value of", params)
            request = continue_from(partial, "The value of", params)
            rest = await client.generate(request.prompt, request.sampling_params)
    assert 0 < len(partial.generated_tokens) < 30
    assert partial.generated_tokens + rest.generated_tokens == whole.generated_tokens
