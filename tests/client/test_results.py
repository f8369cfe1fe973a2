"""What requests end in, and parameters that many of them share."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
import trio

from tests.waiting import until
from trio_infer import (
    ConnectionLost,
    InferenceClient,
    InferenceError,
    RequestFailed,
    SamplingParams,
    TokenDelta,
    open_client,
)
from trio_infer.embedded import open_coordinator
from trio_infer.protocol.unpacking import HEAVY_BODY
from trio_infer.reply import Reply

if TYPE_CHECKING:
    from tests.peers import ScriptedCoordinator


async def test_replies_left_as_they_are_come_as_dicts_with_their_latency(
    coordinator: ScriptedCoordinator,
) -> None:
    async with open_client(coordinator.address, deserialize=False) as client:
        async with client.stream("hi") as stream:
            request = await coordinator.submission()
            coordinator.partial(request, [1])
            assert await stream.receive() == TokenDelta([1])
            coordinator.reply(request, [1, 2], latency=None, routing_indices=["tensor", [1]])
            fields = await stream.result()
            assert stream.completion is fields
    assert isinstance(fields, dict)
    assert fields.pop("latency") >= 0
    assert fields == {
        "request_id": 1000,
        "status": "COMPLETED",
        "generated_tokens": [1, 2],
        "generated_length": 2,
        "generated_text": "\1\2",
        "routing_indices": ["tensor", [1]],
    }


async def test_replies_left_as_they_are_still_raise_when_they_tell_of_failure(
    coordinator: ScriptedCoordinator,
) -> None:
    event = {"timestamp": 1.0, "type": "ERROR_TRANSIENT", "payload": {"type": "Full"}}
    async with open_client(coordinator.address, deserialize=False) as client:
        async with client.stream("hi") as stream:
            request = await coordinator.submission()
            coordinator.reply(request, [], status="FAILED", events=[event])
            with pytest.raises(RequestFailed, match="Full") as caught:
                await stream.result()
    assert caught.value.retryable is True
    assert caught.value.completion.finish_reason == "error"
    assert client.statistics().failed == 1


async def test_an_aborted_reply_left_as_it_is_comes_as_it_is(
    coordinator: ScriptedCoordinator,
) -> None:
    async with open_client(coordinator.address, deserialize=False) as client:
        async with client.stream("hi") as stream:
            request = await coordinator.submission()
            coordinator.partial(request, [1])
            fields = await stream.finish_early()
    assert fields["generated_tokens"] == [1]


async def test_a_connection_that_breaks_is_told_of_whatever_replies_are_left_as(
    coordinator: ScriptedCoordinator,
) -> None:
    async with open_client(coordinator.address, deserialize=False) as client:
        with pytest.raises(ConnectionLost):
            async with client.stream("hi") as stream:
                await coordinator.submission()
                coordinator.close()
                await stream.result()


@pytest.mark.parametrize("wrong", [0, 1, None, "yes"])
def test_whether_to_deserialize_is_said_by_a_bool(wrong: Any) -> None:
    with pytest.raises(TypeError, match="deserialize must be a bool"):
        open_client("tcp://h:1", deserialize=wrong)


class Foreign:
    """megatron-core's own parameters, as far as a client can tell."""

    def __init__(self, params: SamplingParams) -> None:
        self.__dict__.update(params.serialize())

    def serialize(self) -> dict[str, Any]:
        return self.__dict__


@pytest.mark.parametrize("make", [lambda params: params, Foreign], ids=["ours", "theirs"])
async def test_a_hundred_tasks_share_one_params_object_that_nobody_changes(make: Any) -> None:
    original = SamplingParams(top_k=1, num_tokens_to_generate=8, stop_words=["#"], extra={"x": [1]})
    shared = make(original)
    before = repr(shared.serialize())
    outcomes = []
    async with open_coordinator() as coordinator, open_client(coordinator.address) as client:

        async def generate() -> None:
            completion = await client.generate("A generator", shared)
            assert completion.time_to_first_token is None
            outcomes.append(completion.generated_tokens)

        async def stream() -> None:
            async with client.stream("A generator", shared) as stream:
                deltas = [delta async for delta in stream]
                completion = await stream.result()
            assert completion.time_to_first_token is not None  # it was streamed indeed
            outcomes.append([token for delta in deltas for token in delta.tokens])

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(generate)
                nursery.start_soon(stream)
    assert len(outcomes) == 100
    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert len(outcomes[0]) == 8
    assert repr(shared.serialize()) == before
    assert original == SamplingParams(
        top_k=1, num_tokens_to_generate=8, stop_words=["#"], extra={"x": [1]}
    )


async def generated(client: InferenceClient, prompt: list[int]) -> int | None:
    completion = await client.generate(prompt, SamplingParams(num_tokens_to_generate=1))
    return completion.num_cached_tokens


@pytest.mark.parametrize("hashed_by", ["client", "coordinator"])
@pytest.mark.parametrize("policy", ["longest_prefix", "first_prefix_block"])
async def test_a_prompt_finds_the_engine_that_knows_its_beginning(
    policy: str, hashed_by: str
) -> None:
    prompts = [list(range(n, n + 8)) for n in (0, 50, 100)]
    hashing: dict[str, Any] = {
        "block_size_tokens": 4,
        "prefix_caching_coordinator_policy": policy,
    }
    async with open_coordinator(engines=3, **hashing) as coordinator:
        options = hashing if hashed_by == "client" else {}
        async with open_client(coordinator.address, **options) as client:
            async with trio.open_nursery() as nursery:
                for prompt in prompts:
                    nursery.start_soon(generated, client, prompt)
            again = [await generated(client, [*prompt, 1, 2, 3, 4]) for prompt in prompts]
            assert again == [8, 8, 8]
            assert await generated(client, [7] * 8) == 0


@pytest.mark.parametrize("policy", ["longest_prefix", "first_prefix_block"])
async def test_what_the_client_hashed_decides_and_not_what_the_coordinator_would_have(
    policy: str,
) -> None:
    """Only for the client, whose blocks are smaller, do the prompts begin with the same one."""
    endless = SamplingParams(num_tokens_to_generate=100_000, termination_id=-1)
    name = "prefix_caching_coordinator_policy"
    coordinator_side: dict[str, Any] = {"block_size_tokens": 4, name: policy}
    client_side: dict[str, Any] = {"block_size_tokens": 2, name: policy}
    async with open_coordinator(engines=2, step_time=0.001, **coordinator_side) as coordinator:
        async with (
            open_client(coordinator.address, **client_side) as hashing,
            open_client(coordinator.address) as not_hashing,
            hashing.stream([1, 2, 3, 4], endless),
            hashing.stream([1, 2, 5, 6], endless),
        ):
            await coordinator.wait_until(lambda: len(coordinator.running) == 2)
            assert [request.engine for request in coordinator.running] == [0, 0]
            async with not_hashing.stream([1, 2, 5, 6], endless):
                await coordinator.wait_until(lambda: len(coordinator.running) == 3)
                assert [request.engine for request in coordinator.running] == [0, 0, 1]


async def test_an_embedded_coordinator_without_a_cache_finds_nothing() -> None:
    async with open_coordinator() as coordinator, open_client(coordinator.address) as client:
        assert [await generated(client, [1] * 300) for _ in range(2)] == [0, 0]


async def test_a_failed_request_raises_with_the_engines_reasons(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    event = {
        "timestamp": 1.0,
        "type": "ERROR_TRANSIENT",
        "payload": {"type": "OutOfBlocks", "message": "try again"},
    }
    async with client.stream("hi") as stream:
        submission = await coordinator.submission()
        coordinator.reply(submission, [], status="FAILED", events=[event])
        with pytest.raises(RequestFailed, match="OutOfBlocks: try again") as caught:
            await stream.result()
        assert caught.value.retryable
        assert caught.value.completion.finish_reason == "error"
        with pytest.raises(RequestFailed):
            await stream.receive()
    statistics = client.statistics()
    assert (statistics.failed, statistics.completed, statistics.malformed) == (1, 0, 0)


async def test_partial_results_that_nobody_asked_for_change_no_completion(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    completions = []

    async def generate() -> None:
        completions.append(await client.generate("hi"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(generate)
        request = await coordinator.submission()
        coordinator.partial(request, [5, 6])
        coordinator.reply(request, [1, 2])
    assert completions[0].generated_tokens == [1, 2]


@pytest.mark.parametrize(
    "ending", ["failed", "malformed", "unreadable", "large and unreadable", "lost", "closed"]
)
async def test_thousands_of_generations_that_end_badly_leave_nothing_to_be_collected(
    coordinator: ScriptedCoordinator, ending: str
) -> None:
    async def generate(client: InferenceClient) -> None:
        with pytest.raises((InferenceError, trio.ClosedResourceError)):
            await client.generate("hi")

    async with trio.open_nursery() as nursery, open_client(coordinator.address) as client:
        nursery.start_soon(generate, client)
        request = await coordinator.submission()
        gc.collect()
        gc.disable()
        try:
            if ending == "failed":
                coordinator.reply(request, [], status="FAILED")
            elif ending == "unreadable":
                coordinator.send(request.client, [msgpack.packb([21, 0]), b"\xc1"])
            elif ending == "large and unreadable":
                coordinator.send(request.client, [msgpack.packb([21, 0]), b"\xc1" * HEAVY_BODY])
            elif ending == "malformed":
                coordinator.send(request.client, [msgpack.packb([21, 0, 0]), b"\xc0"])
            elif ending == "lost":
                coordinator.close()
            else:
                nursery.start_soon(client.aclose)
            await until(lambda: len(nursery.child_tasks) == 0)
            alive = [thing for thing in gc.get_objects() if isinstance(thing, Reply)]
            assert alive == []
        finally:
            gc.enable()
