"""Against megatron-core's own coordinator, in its own process, with engines of ours behind it.

Run by ``nox -s megatron``, which installs megatron-core; elsewhere this is not collected.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import megatron.core
import pytest
import trio
from megatron.core.inference.sampling_params import SamplingParams as TheirSamplingParams

from tests.megatron.engines import RegisteredEngine, registered_engine
from tests.waiting import disconnected, settled, until
from trio_infer import (
    DIALECTS,
    ConnectionLost,
    InferenceClient,
    RequestFailed,
    SamplingParams,
    UnsupportedByDialect,
    open_client,
)
from trio_infer.embedded.lifecycle import EngineState

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

SPEAKS = {"0.17": "0.18", "0.18": "0.18", "0.19": "0.19", "0.20": "0.20"}
DIALECT = DIALECTS[SPEAKS[megatron.core.__version__[:4]]]
SERVE = Path(__file__).with_name("serve.py")

greedy = partial(SamplingParams, top_k=1, num_tokens_to_generate=12)
ENDLESS = greedy(num_tokens_to_generate=100_000)


@attrs.define
class Coordinator:
    """The real one."""

    address: str
    process: trio.Process

    @property
    def lives(self) -> bool:
        return self.process.returncode is None


@pytest.fixture
async def coordinator() -> AsyncGenerator[Coordinator]:
    async with trio.open_nursery() as nursery:
        run = partial(trio.run_process, check=False, stdout=subprocess.PIPE)
        process = await nursery.start(run, [sys.executable, str(SERVE)])
        line = b""
        while not line.endswith(b"\n"):
            line += await process.stdout.receive_some()
        yield Coordinator(line.decode().strip(), process)
        process.kill()


@pytest.fixture
async def engine(coordinator: Coordinator) -> AsyncGenerator[RegisteredEngine]:
    async with registered_engine(coordinator.address, DIALECT) as engine:
        yield engine


@asynccontextmanager
async def client_of(coordinator: Coordinator) -> AsyncGenerator[InferenceClient]:
    async with open_client(coordinator.address, dialect=DIALECT, close_timeout=30) as client:
        yield client
    assert coordinator.lives


@pytest.fixture
async def client(
    coordinator: Coordinator, engine: RegisteredEngine
) -> AsyncGenerator[InferenceClient]:
    async with client_of(coordinator) as client:
        yield client


async def test_it_shakes_hands_with_one_client_after_another(coordinator: Coordinator) -> None:
    for _ in range(3):
        async with client_of(coordinator) as client:
            assert client.statistics().connections == 1


async def test_it_answers_text_and_ids(client: InferenceClient) -> None:
    text = await client.generate("The value of", greedy())
    ids = await client.generate(list(b"The value of"), greedy())
    assert text.generated_tokens == ids.generated_tokens
    assert text.generated_text == bytes(text.generated_tokens).decode()
    assert text.finish_reason == "length"
    assert text.prompt_length == len("The value of")


async def test_it_takes_its_own_parameters(client: InferenceClient) -> None:
    theirs = TheirSamplingParams(top_k=1, num_tokens_to_generate=3, return_log_probs=True)
    completion = await client.generate("hi", theirs)
    assert completion.generated_log_probs is not None
    assert len(completion.generated_log_probs) == len(completion.generated_tokens) == 3


async def test_it_serves_many_at_once(client: InferenceClient) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(200):
            nursery.start_soon(client.generate, [number], greedy(num_tokens_to_generate=2))
    assert client.statistics().completed == 200


async def test_a_stream_yields_all_tokens(client: InferenceClient) -> None:
    async with client.stream("The value of", greedy()) as stream:
        deltas = [delta async for delta in stream]
        completion = await stream.result()
    assert [token for delta in deltas for token in delta.tokens] == completion.generated_tokens
    assert DIALECT.can_stream or len(deltas) == 1


@pytest.mark.skipif(not DIALECT.can_stream, reason="the release has no partial results")
async def test_tokens_come_before_the_end(client: InferenceClient) -> None:
    async with client.stream("The value of", ENDLESS) as stream:
        await stream.receive()
        assert not stream.finished


@pytest.mark.skipif(not DIALECT.can_abort, reason="the release has no abort")
async def test_a_request_that_is_left_stops(
    client: InferenceClient, engine: RegisteredEngine
) -> None:
    async with client.stream("The value of", ENDLESS) as stream:
        await stream.receive()
    await until(lambda: engine.engine.load == 0)
    async with client.stream("The value of", ENDLESS) as stream:
        await stream.receive()
        completion = await stream.finish_early()
    assert completion.finish_reason == "abort"
    assert completion.generated_text


@pytest.mark.skipif(not DIALECT.can_hand_off, reason="the release has no handoff")
async def test_a_request_goes_on_from_a_prefill(
    client: InferenceClient, engine: RegisteredEngine
) -> None:
    prompt = list(b"The value of")
    blocks = engine.engine.kv_blocks
    assert blocks is not None
    await client.generate("hi", greedy())  # so that the numbers differ
    async with client.prefill(prompt) as handoff:
        assert blocks.pinned == (handoff.request_id,)
        completion = await client.generate(prompt, greedy(), kv_handoff=handoff)
    await until(lambda: not blocks.pinned)
    whole = await client.generate(prompt, greedy())
    assert completion.generated_tokens == whole.generated_tokens


async def test_a_failure_says_why(client: InferenceClient) -> None:
    with pytest.raises(RequestFailed, match="MaxSequenceLengthOverflowError") as caught:
        await client.generate("hi", SamplingParams(num_tokens_total=1))
    assert caught.value.retryable is False
    with pytest.raises(RequestFailed, match="the engine gave no reason"):
        await client.generate([100_000], greedy())


@pytest.mark.skipif(DIALECT.can_abort, reason="the release has an abort")
async def test_a_request_that_cannot_be_aborted_does_it_no_harm(
    coordinator: Coordinator, client: InferenceClient
) -> None:
    with trio.CancelScope() as scope:
        async with client.stream("hi", greedy(num_tokens_to_generate=200)) as stream:
            with pytest.raises(UnsupportedByDialect):
                await stream.finish_early()
            scope.cancel()
            await stream.receive()
    assert client.statistics().aborting == 1
    await settled(client)
    assert (await client.generate("hi", greedy())).status == "COMPLETED"
    assert coordinator.lives


async def test_it_survives_a_client_that_leaves_with_requests_in_flight(
    coordinator: Coordinator, engine: RegisteredEngine
) -> None:
    async with client_of(coordinator) as client:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                params = greedy(num_tokens_to_generate=100)
                nursery.start_soon(client.generate, "hi", params)
            await until(lambda: client.statistics().in_flight == 20)
            nursery.cancel_scope.cancel()
    assert client.statistics().undelivered == 0
    async with client_of(coordinator) as successor:
        assert (await successor.generate("hi", greedy())).status == "COMPLETED"


async def test_engines_are_paused_and_go_on(
    client: InferenceClient, engine: RegisteredEngine
) -> None:
    confirm = partial(engine.wait_until, EngineState.PAUSED)
    async with trio.open_nursery() as nursery:
        async with client.engines.paused(confirm=confirm, epoch=3):
            nursery.start_soon(client.generate, "hi", greedy())
            await until(lambda: engine.engine.load == 1)
            assert engine.state is EngineState.PAUSED
        await engine.wait_until(EngineState.RUNNING)
    assert client.statistics().completed == 1


async def test_engines_are_suspended_and_resumed(
    client: InferenceClient, engine: RegisteredEngine
) -> None:
    async with (
        client.engines.paused(confirm=partial(engine.wait_until, EngineState.PAUSED)),
        client.engines.suspended(confirm=partial(engine.wait_until, EngineState.SUSPENDED)),
    ):
        assert engine.state is EngineState.SUSPENDED
    await engine.wait_until(EngineState.RUNNING)
    assert (await client.generate("hi", greedy())).status == "COMPLETED"


async def test_signals_that_do_not_fit_are_dropped(
    coordinator: Coordinator, client: InferenceClient, engine: RegisteredEngine
) -> None:
    client.engines.unpause(force=True)
    client.engines.resume(force=True)
    client.engines.suspend(force=True)
    assert (await client.generate("hi", greedy())).status == "COMPLETED"
    assert engine.state is EngineState.RUNNING
    assert coordinator.lives


async def test_epochs_come_back(client: InferenceClient, engine: RegisteredEngine) -> None:
    client.engines.set_generation_epoch(5)
    completion = await client.generate("hi", greedy())
    assert completion.policy_epoch_of(0) == 5
    assert completion.kv_cache_epoch_of(-1) == 5


@pytest.mark.skipif(not DIALECT.can_profile, reason="the release has no such signals")
async def test_profiler_signals_do_it_no_harm(client: InferenceClient) -> None:
    client.engines.start_cuda_profiler()
    client.engines.stop_cuda_profiler()
    assert (await client.generate("hi", greedy())).status == "COMPLETED"


async def test_engines_that_are_stopped_are_stopped(
    client: InferenceClient, engine: RegisteredEngine
) -> None:
    async with client.engines.paused(confirm=partial(engine.wait_until, EngineState.PAUSED)):
        client.engines.stop()
    await engine.wait_until(EngineState.STOPPED)


async def test_a_shutdown_ends_it(coordinator: Coordinator) -> None:
    async with open_client(coordinator.address, dialect=DIALECT, close_timeout=1) as client:
        client.shutdown_coordinator()
        await disconnected(client)
        await coordinator.process.wait()
        with pytest.raises(ConnectionLost):
            client.shutdown_coordinator()
    assert coordinator.process.returncode == 0


async def test_a_killed_one_is_told_of(coordinator: Coordinator, engine: RegisteredEngine) -> None:
    async with open_client(coordinator.address, dialect=DIALECT, close_timeout=1) as client:
        with pytest.raises(ConnectionLost):
            async with client.stream("hi", ENDLESS) as stream:
                coordinator.process.kill()
                await stream.result()


async def test_without_an_engine_it_ends_at_the_first_request(coordinator: Coordinator) -> None:
    async with open_client(coordinator.address, dialect=DIALECT, close_timeout=1) as client:
        with pytest.raises(ConnectionLost):
            await client.generate("hi", greedy())
        await coordinator.process.wait()
    assert coordinator.process.returncode == 0
