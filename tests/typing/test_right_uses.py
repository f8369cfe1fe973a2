"""What type checkers are told of whatever a user may call. They check it, and it runs as well.

What they have to refuse stands in wrong_uses.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, assert_type

import pytest
import trio

import trio_infer
from trio_infer import (
    ClientOptions,
    ClientStatistics,
    Completion,
    CompletionStream,
    ConnectionLost,
    Dialect,
    EngineControl,
    EpochSpan,
    GenerateRequest,
    InferenceClient,
    KVHandoff,
    NoneAccepted,
    Outcome,
    RequestEnding,
    RequestFailed,
    RequestGroup,
    RequestMoment,
    SamplingParams,
    Scored,
    TokenDelta,
    connect_client,
    continue_from,
    generate_within,
    open_client,
)
from trio_infer.embedded import (
    CoordinatorStatistics,
    EmbeddedCoordinator,
    Faults,
    ModelTokenizer,
    NgramModel,
    RunningRequest,
    open_coordinator,
)
from trio_infer.telemetry import LoggingInstrument

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

PARAMS = SamplingParams(num_tokens_to_generate=4, stop_words=["."], extra={"newer": 1})


@pytest.fixture
async def coordinator() -> AsyncIterator[EmbeddedCoordinator]:
    async with open_coordinator(seed=1) as coordinator:
        yield coordinator


@pytest.fixture
async def client(coordinator: EmbeddedCoordinator) -> AsyncIterator[InferenceClient]:
    async with open_client(coordinator.address) as client:
        yield client


async def test_what_requests_end_in_follows_from_how_the_client_was_opened(
    coordinator: EmbeddedCoordinator,
) -> None:
    async with open_client(coordinator.address) as client:
        assert_type(client, InferenceClient[Completion])
        assert_type(await client.generate([1], PARAMS), Completion)
        async with client.stream([1], PARAMS) as stream:
            assert_type(stream, CompletionStream[Completion])
            assert_type(await stream.result(), Completion)
            assert_type(stream.completion, Completion | None)
    async with open_client(coordinator.address, deserialize=False) as raw:
        assert_type(raw, InferenceClient[dict[str, Any]])
        assert_type(await raw.generate([1], PARAMS), dict[str, Any])
        async with raw.stream([1], PARAMS) as raw_stream:
            assert_type(await raw_stream.finish_early(), dict[str, Any])
        async with raw.open_group() as group:
            assert_type(group, RequestGroup[dict[str, Any]])


async def test_whether_to_deserialize_may_be_a_variable(coordinator: EmbeddedCoordinator) -> None:
    for deserialize in (True, False):
        async with open_client(coordinator.address, deserialize=deserialize) as client:
            assert_type(client, InferenceClient[Any])


async def test_connect_client_is_told_as_open_client_is(coordinator: EmbeddedCoordinator) -> None:
    options: ClientOptions = {"max_in_flight": 2, "instruments": [LoggingInstrument()]}
    async with trio.open_nursery() as nursery:
        async with await connect_client(nursery, coordinator.address, **options) as client:
            assert_type(client, InferenceClient[Completion])
        raw = await connect_client(nursery, coordinator.address, deserialize=False)
        assert_type(raw, InferenceClient[dict[str, Any]])
        await raw.aclose()


def test_a_client_without_parameters_is_one_of_completions() -> None:
    def takes(client: InferenceClient, stream: CompletionStream, group: RequestGroup) -> None:
        assert_type(client, InferenceClient[Completion])
        assert_type(stream, CompletionStream[Completion])
        assert_type(group, RequestGroup[Completion])

    assert takes.__annotations__


async def test_what_a_client_tells_of_itself(client: InferenceClient) -> None:
    assert_type(client.address, str)
    assert_type(client.dialect, Dialect)
    assert_type(client.dialect.can_abort, bool)
    assert_type(client.dialect.modalities, frozenset[str])
    assert_type(client.engines, EngineControl)
    assert_type(client.statistics(), ClientStatistics)
    assert_type(client.statistics().in_flight, int)
    assert_type(trio_infer.DIALECTS["0.19"], Dialect)


async def test_a_completion_has_its_fields(client: InferenceClient) -> None:
    completion = await client.generate("Types are", PARAMS)
    assert_type(completion.generated_tokens, list[int])
    assert_type(completion.generated_text, str | None)
    assert_type(completion.generated_log_probs, list[float] | None)
    assert_type(completion.generated_top_n_logprobs, list[dict[str, float]] | None)
    assert_type(completion.finish_reason, Literal["stop", "length", "abort", "error"])
    assert_type(completion.latency, float)
    assert_type(completion.policy_epoch, tuple[EpochSpan, ...] | None)
    assert_type(completion.oldest_epoch, int | None)
    assert_type(completion.kv_handoff, KVHandoff | None)
    assert_type(completion.extra, Mapping[str, Any])


async def test_a_stream_is_read_as_any_channel(client: InferenceClient) -> None:
    async with client.stream("Types are", PARAMS) as stream:
        channel: trio.abc.ReceiveChannel[TokenDelta] = stream
        assert channel is stream
        assert_type(stream.request_id, int)
        assert_type(await stream.receive(), TokenDelta)
        async for delta in stream:
            assert_type(delta, TokenDelta)
            assert_type(delta.tokens, list[int])
            assert_type(delta.log_probs, list[float] | None)
            assert_type(delta.top_n_logprobs, list[dict[str, float]] | None)
            assert_type(delta.text, str | None)
        assert_type(await stream.finish_early(), Completion)
    assert_type(stream.tokens, list[int])
    assert_type(stream.text, str | None)
    assert_type(stream.finished, bool)
    assert_type(stream.closed, bool)
    assert_type(stream.error, Exception | None)


async def test_a_group_tells_outcomes(client: InferenceClient) -> None:
    async with client.open_group(max_concurrency=2) as group:
        assert_type(group, RequestGroup[Completion])
        assert_type(group.submit_nowait(GenerateRequest([1], PARAMS, tag="a")), int)
        assert_type(await group.submit(GenerateRequest("b", PARAMS)), int)
        with group.keep_open():
            group.cancel(1)
            group.cancel()
        group.submit_nowait(GenerateRequest([1], PARAMS))
        assert_type(await group.outcomes.receive(), Outcome[Completion])
        async for outcome in group.outcomes:
            assert_type(outcome, Outcome[Completion])
            assert_type(outcome.index, int)
            assert_type(outcome.request, GenerateRequest)
            assert_type(outcome.completion, Completion | None)
            assert_type(outcome.error, Exception | None)
            assert_type(outcome.unwrap(), Completion)


async def test_requests_for_one_purpose_end_in_what_that_is(client: InferenceClient) -> None:
    requests = [GenerateRequest(prompt, PARAMS) for prompt in ("a", "b")]

    async def score(completion: Completion) -> float:
        await trio.lowlevel.checkpoint()
        return completion.latency

    async def arriving() -> AsyncIterator[GenerateRequest]:
        for request in requests:
            await trio.lowlevel.checkpoint()
            yield request

    assert_type(await trio_infer.gather(client, requests), list[Completion])
    assert_type(await trio_infer.gather(client, arriving()), list[Completion])
    async with trio_infer.as_completed(client, iter(requests), max_concurrency=1) as outcomes:
        assert_type(outcomes, trio.abc.ReceiveChannel[Outcome[Completion]])
        async for outcome in outcomes:
            assert_type(outcome, Outcome[Completion])
    accept = bool
    assert_type(await trio_infer.race(client, requests, accept=accept), Completion)
    best = await trio_infer.best_of(client, "a", PARAMS, n=2, score=score)
    assert_type(best, Scored)
    assert_type(best.completion, Completion)
    assert_type(best.score, float)
    assert_type(best.outcomes, tuple[Outcome[Completion], ...])
    await trio_infer.best_of(client, "a", PARAMS, n=2, score=lambda each: each.latency)
    assert_type(await trio_infer.hedge(client, requests[0], after=1.0), Completion)


async def test_what_a_deadline_leaves_can_go_on(client: InferenceClient) -> None:
    completion = await generate_within(client, 10, [1], PARAMS, grace=0.5)
    assert_type(completion, Completion)
    assert_type(continue_from(completion, [1]), GenerateRequest)


async def test_a_handoff_is_given_and_taken(client: InferenceClient) -> None:
    async with client.prefill([1, 2, 3], PARAMS) as handoff:
        assert_type(handoff, KVHandoff)
        assert_type(handoff.kv_meta, Mapping[str, Any])
        assert_type(handoff.src_block_ids, Sequence[int])
        assert_type(handoff.request_id, int)
        assert_type(await client.generate([1, 2, 3], PARAMS, kv_handoff=handoff), Completion)


async def test_signals_return_at_once_and_blocks_want_a_confirmation(
    client: InferenceClient, coordinator: EmbeddedCoordinator
) -> None:
    engines = client.engines
    async with engines.paused(confirm=coordinator.engines_paused, epoch=3) as nothing:
        assert_type(nothing, None)
        async with engines.suspended(confirm=coordinator.engines_suspended):
            pass
        await coordinator.engines_paused()
    engines.set_generation_epoch(4)
    engines.start_cuda_profiler()
    engines.stop_cuda_profiler()
    engines.unpause(force=True)


def test_errors_carry_what_is_left() -> None:
    def look(error: trio_infer.InferenceError) -> None:
        if isinstance(error, ConnectionLost):
            assert_type(error.tokens, tuple[int, ...])
            assert_type(continue_from(error, [1]), GenerateRequest)
        elif isinstance(error, RequestFailed):
            assert_type(error.completion, Completion)
            assert_type(error.retryable, bool | None)
        elif isinstance(error, NoneAccepted):
            assert_type(error.outcomes, tuple[Outcome[Completion], ...])

    look(ConnectionLost("lost", tokens=[1]))
    look(NoneAccepted("none"))


async def test_an_embedded_coordinator_is_looked_at_and_tormented() -> None:
    faults = Faults(drop=0.0)
    async with open_coordinator(
        engines=2, model=NgramModel(["of one text"]), faults=faults
    ) as coordinator:
        assert_type(coordinator, EmbeddedCoordinator)
        assert_type(coordinator.address, str)
        assert_type(coordinator.tokenizer, ModelTokenizer)
        assert_type(coordinator.tokenizer.decode([65]), str)
        assert_type(coordinator.running, tuple[RunningRequest, ...])
        assert_type(coordinator.engine_states, tuple[str, ...])
        assert_type(coordinator.pinned, tuple[int, ...])
        assert_type(coordinator.statistics(), CoordinatorStatistics)
        assert_type(coordinator.statistics().aborts, int)
        assert_type(coordinator.faults, Faults)
        coordinator.faults = Faults()
        await coordinator.wait_until(lambda: not coordinator.paused)


async def test_an_observer_has_the_methods_that_it_wants_alone(
    coordinator: EmbeddedCoordinator,
) -> None:
    told: list[object] = []

    class Observer:
        def request_submitted(self, moment: RequestMoment) -> None:
            assert_type(moment.at, float)
            told.append(moment)

        def request_finished(self, ending: RequestEnding) -> None:
            assert_type(ending.finish_reason, Literal["stop", "length", "abort", "error"] | None)
            told.append(ending)

    async with open_client(coordinator.address, instruments=[Observer()]) as client:
        await client.generate([1], PARAMS)
    assert [type(each) for each in told] == [RequestMoment, RequestEnding]


def test_prompts_are_text_or_ids_in_any_sequence() -> None:
    prompts: Iterator[trio_infer.Prompt] = iter(("text", [1], (1, 2), range(3)))
    assert [GenerateRequest(prompt) for prompt in prompts]


def test_an_object_of_ones_own_will_do_for_parameters_and_for_a_tokenizer() -> None:
    class Parameters:
        def serialize(self) -> dict[str, Any]:
            return {"temperature": 1.0}

    class Words:
        def decode(self, ids: Sequence[int]) -> str:
            return " ".join(map(str, ids))

    tokenizer: trio_infer.Tokenizer = Words()
    assert GenerateRequest("a", Parameters()).sampling_params
    assert tokenizer.decode([1])
