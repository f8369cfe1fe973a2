"""Client and embedded coordinator together: the first minute, and under stress."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
import trio.lowlevel

from tests.waiting import settled
from trio_infer import (
    CompletionStream,
    InferenceClient,
    RequestFailed,
    SamplingParams,
    TokenDelta,
    open_client,
)
from trio_infer.embedded import EmbeddedCoordinator, open_coordinator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def coordinator() -> AsyncIterator[EmbeddedCoordinator]:
    async with open_coordinator(engines=2, max_requests=32, seed=7) as coordinator:
        yield coordinator
        assert coordinator.statistics().unroutable == 0, "the real one would have crashed"
        assert coordinator.statistics().malformed == 0


greedy = partial(SamplingParams, top_k=1, num_tokens_to_generate=40)


async def read(stream: CompletionStream) -> list[TokenDelta]:
    return [delta async for delta in stream]


@pytest.mark.parametrize(
    "params",
    [
        greedy(),
        greedy(streaming_interval=7),
        greedy(stop_words=["value"]),
        greedy(stop_words=[" the "], return_log_probs=True, top_n_logprobs=1),  # at once
        greedy(stop_words=[" the "], detokenize_stop_sequence=True),
        greedy(return_log_probs=True),
        greedy(return_log_probs=True, top_n_logprobs=3),
        greedy(return_log_probs=True, top_n_logprobs=3, stop_words=["no such words"]),
        greedy(return_log_probs=True, top_n_logprobs=2, stop_words=[" the ", "x" * 12]),
    ],
)
async def test_the_deltas_add_up_to_the_completion(
    client: InferenceClient, params: SamplingParams
) -> None:
    async with client.stream("The value of", params) as stream:
        deltas = await read(stream)
        completion = await stream.result()
    assert stream.tokens == completion.generated_tokens
    assert [item for delta in deltas for item in delta.tokens] == completion.generated_tokens
    if params.return_log_probs:
        log_probs = [item for delta in deltas for item in delta.log_probs or ()]
        assert log_probs == completion.generated_log_probs
    if params.top_n_logprobs:
        top_n = [item for delta in deltas for item in delta.top_n_logprobs or ()]
        assert top_n == completion.generated_top_n_logprobs
        assert len(top_n) == len(completion.generated_tokens)
    whole = await client.generate("The value of", params)
    assert whole.generated_tokens == completion.generated_tokens
    assert whole.generated_text == completion.generated_text


async def test_text_and_its_token_ids_are_the_same_prompt(client: InferenceClient) -> None:
    params = greedy()
    text = await client.generate("The ", params)
    ids = await client.generate(list(b"The "), params)
    assert text.generated_tokens == ids.generated_tokens
    assert text.finish_reason == "length"
    assert text.time_to_first_token is None


async def test_times_are_measured_here_and_by_the_engine(client: InferenceClient) -> None:
    async with client.stream("The ", greedy()) as stream:
        completion = await stream.result()
    assert completion.time_to_first_token is not None
    assert 0 < completion.time_to_first_token < completion.latency
    assert completion.ttft is not None
    assert completion.tpot is not None
    assert len(completion.tpot) > 0


async def test_a_rejected_prompt_fails_with_the_reason(client: InferenceClient) -> None:
    with pytest.raises(RequestFailed, match="request 0 failed") as caught:
        await client.generate([100_000], greedy())
    assert caught.value.completion.status == "FAILED"


async def test_cancelling_many_at_random_moments_leaves_nothing_running(
    coordinator: EmbeddedCoordinator, client: InferenceClient
) -> None:
    """Rollouts: many generations at once, most of them cancelled at random moments."""
    rng = random.Random(5)
    ended: list[str] = []

    async def generate(steps: int) -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def cancel() -> None:
                    for _ in range(steps):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()

                nursery.start_soon(cancel)
                await client.generate("The ", SamplingParams(num_tokens_to_generate=20))
                nursery.cancel_scope.cancel()
        ended.append("cancelled" if scope.cancelled_caught else "finished")

    async def stream(steps: int) -> None:
        async with client.stream("The ", SamplingParams(num_tokens_to_generate=20)) as stream:
            for _ in range(steps % 7):
                try:
                    await stream.receive()
                except trio.EndOfChannel:
                    break
        ended.append("streamed")

    async with trio.open_nursery() as nursery:
        for _ in range(1000):
            nursery.start_soon(rng.choice([generate, stream]), rng.randrange(200))
    assert len(ended) == 1000
    await coordinator.wait_until(lambda: not coordinator.running)
    await settled(client)
    statistics = client.statistics()
    assert statistics.in_flight == statistics.waiting == statistics.lost == statistics.failed == 0
    assert statistics.submitted == statistics.completed + statistics.aborted
    assert statistics.aborted
    assert statistics.completed
    assert coordinator.statistics().submitted == statistics.submitted

    def all_aborts_came() -> bool:
        served = coordinator.statistics()
        return served.aborts + served.stray_aborts == statistics.aborted

    await coordinator.wait_until(all_aborts_came)  # some crossed the final reply


async def test_a_paused_engine_ends_an_aborted_request_once_it_goes_on(
    coordinator: EmbeddedCoordinator, client: InferenceClient
) -> None:
    coordinator.pause()
    async with client.stream("The ", greedy()) as stream:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.finish_early)
            await coordinator.wait_until(lambda: coordinator.statistics().aborts == 1)
            assert not stream.finished
            coordinator.unpause()
        assert stream.completion is not None
        assert stream.completion.finish_reason == "abort"


async def test_a_deadline_around_coordinator_and_client_ends_the_client_first() -> None:
    with trio.CancelScope() as scope:
        async with open_coordinator(step_time=0.001) as coordinator:
            async with open_client(coordinator.address) as client:
                async with client.stream("The ", SamplingParams(top_k=1)) as stream:
                    await stream.receive()
                    scope.cancel()
                    await stream.result()
    assert scope.cancelled_caught
    assert client.statistics().undelivered == 0


async def test_two_clients_with_the_same_ids_get_their_own_replies(
    coordinator: EmbeddedCoordinator,
) -> None:
    async def ask(client: InferenceClient, prompt: str, expected: list[int]) -> None:
        for _ in range(20):
            assert (await client.generate(prompt, greedy())).generated_tokens == expected

    async with open_client(coordinator.address) as one, open_client(coordinator.address) as other:
        prompts = ["The value of", "An exception is"]
        expected = [(await one.generate(prompt, greedy())).generated_tokens for prompt in prompts]
        assert expected[0] != expected[1]
        await other.generate("so that the ids are the same", greedy())
        await other.generate("on both sides", greedy())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, one, prompts[0], expected[0])
            nursery.start_soon(ask, other, prompts[1], expected[1])
