"""A model that computes in a thread: what may come meanwhile, and what becomes of it."""

from __future__ import annotations

import math
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.waiting import until
from trio_infer import SamplingParams, open_client
from trio_infer.embedded import EmbeddedCoordinator, open_coordinator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from trio_infer import CompletionStream, InferenceClient

VOCABULARY = 128
LONG = SamplingParams(num_tokens_to_generate=1000, top_k=1)
SHORT = SamplingParams(num_tokens_to_generate=2, top_k=1)
ONE = SamplingParams(num_tokens_to_generate=1, top_k=1)


class Slow:
    """After each ASCII code comes the next one; it computes when it is let, step by step."""

    vocab_size = VOCABULARY
    end_token = 0
    runs_in_thread = True

    def __init__(self) -> None:
        self.started = 0
        self.finished = 0
        self.threads: set[str] = set()
        self._go = threading.Semaphore(0)

    def let(self, steps: int = 1) -> None:
        self._go.release(steps)

    def tokenize(self, text: str) -> list[int]:
        return list(text.encode("ascii"))

    def detokenize(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode("ascii")

    def next_token_log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        self.threads.add(threading.current_thread().name)
        self.started += 1
        self._go.acquire()
        self.finished += 1
        return [self._after(sequence[-1]) for sequence in sequences]

    def _after(self, token: int) -> list[float]:
        probs = [0.1 / (VOCABULARY - 1)] * VOCABULARY
        probs[(token + 1) % VOCABULARY] = 0.9
        return [math.log(prob) for prob in probs]


@pytest.fixture
def model() -> Slow:
    return Slow()


@asynccontextmanager
async def serving(
    model: Slow, **options: Any
) -> AsyncIterator[tuple[EmbeddedCoordinator, InferenceClient]]:
    async with open_coordinator(model=model, **options) as coordinator:
        async with open_client(coordinator.address, close_timeout=0) as client:
            try:
                yield coordinator, client
            finally:
                model.let(1_000_000)


@pytest.fixture
async def served(model: Slow) -> AsyncIterator[tuple[EmbeddedCoordinator, InferenceClient]]:
    async with serving(model) as pair:
        yield pair


@pytest.fixture
def coordinator(served: tuple[EmbeddedCoordinator, InferenceClient]) -> EmbeddedCoordinator:
    return served[0]


@pytest.fixture
def client(served: tuple[EmbeddedCoordinator, InferenceClient]) -> InferenceClient:
    return served[1]


@asynccontextmanager
async def computing(
    model: Slow, client: InferenceClient, prompt: str = "a", params: SamplingParams = LONG
) -> AsyncIterator[CompletionStream]:
    """A request whose step is being computed."""
    before = model.started
    async with client.stream(prompt, params) as stream:
        await until(lambda: model.started > before)
        yield stream


async def test_a_model_that_says_so_never_computes_in_the_trio_thread(
    model: Slow, client: InferenceClient
) -> None:
    model.let(2)
    completion = await client.generate("a", SHORT)
    assert completion.generated_text == "bc"
    assert threading.current_thread().name not in model.threads


async def test_a_client_can_connect_while_a_step_computes(
    model: Slow, coordinator: EmbeddedCoordinator, client: InferenceClient
) -> None:
    async with computing(model, client):
        async with open_client(coordinator.address):
            assert coordinator.statistics().clients == 2
            assert model.finished == 0


async def test_what_is_submitted_while_a_step_computes_runs_in_the_next_one(
    model: Slow, coordinator: EmbeddedCoordinator, client: InferenceClient
) -> None:
    async with computing(model, client) as first:
        async with client.stream("x", SHORT) as second:
            await until(lambda: coordinator.statistics().waiting == 1)
            assert model.finished == 0
            model.let()
            await until(lambda: model.started == 2)
            assert len(coordinator.running) == 2
            model.let(2)
            completion = await second.result()
            assert completion.generated_text == "yz"
            assert (await first.receive()).tokens[:1] == [ord("b")]


async def test_an_abort_while_a_step_computes_ends_the_request_with_that_step(
    model: Slow, coordinator: EmbeddedCoordinator, client: InferenceClient
) -> None:
    async with computing(model, client, "m"):
        async with computing_beside(model, client, coordinator) as stream:
            pass  # leaving aborts
        await until(lambda: coordinator.statistics().aborts == 1)
        assert len(coordinator.running) == 2
        steps, tokens = coordinator.statistics().steps, coordinator.statistics().tokens
        model.let()
        await until(lambda: len(coordinator.running) == 1)
        assert coordinator.statistics().steps <= steps + 1  # the next one may have begun
        assert coordinator.statistics().tokens == tokens + 1  # the other's
        assert stream.tokens == []


@asynccontextmanager
async def computing_beside(
    model: Slow, client: InferenceClient, coordinator: EmbeddedCoordinator
) -> AsyncIterator[CompletionStream]:
    """One more request, which takes part in the step that computes now."""
    async with client.stream("a", LONG) as stream:
        await until(lambda: coordinator.statistics().waiting == 1)
        model.let()
        await until(lambda: len(coordinator.running) == 2)
        yield stream


async def test_an_abort_while_a_step_computes_is_answered_with_what_there_was(
    model: Slow, coordinator: EmbeddedCoordinator, client: InferenceClient
) -> None:
    async with computing(model, client) as stream:
        model.let()
        await until(lambda: model.started == 2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(let_once_aborted, model, coordinator)
            completion = await stream.finish_early()
        assert completion.generated_text == "b"
        assert completion.finish_reason == "abort"


async def let_once_aborted(model: Slow, coordinator: EmbeddedCoordinator) -> None:
    await until(lambda: coordinator.statistics().aborts == 1)
    model.let()


async def test_paused_while_a_step_computes_it_says_nothing_until_it_goes_on(
    model: Slow, coordinator: EmbeddedCoordinator, client: InferenceClient
) -> None:
    async with computing(model, client, "a", ONE) as stream:
        coordinator.pause()
        model.let()
        await until(lambda: coordinator.running[0].generated_length == 1)
        assert coordinator.statistics().completed == 0
        coordinator.unpause()
        completion = await stream.result()
        assert completion.generated_text == "b"
        assert completion.finish_reason == "length"
        assert model.started == 1


async def test_paused_while_a_step_computes_an_abort_is_heeded_when_it_goes_on(
    model: Slow, coordinator: EmbeddedCoordinator, client: InferenceClient
) -> None:
    async with computing(model, client):
        coordinator.pause()
    await until(lambda: coordinator.statistics().aborts == 1)
    model.let()
    await until(lambda: model.finished == 1)
    assert len(coordinator.running) == 1
    coordinator.unpause()
    await until(lambda: not coordinator.running)
    assert model.started == 1


async def test_paused_while_a_step_computes_its_weights_are_left_alone_until_it_has(
    model: Slow, coordinator: EmbeddedCoordinator, client: InferenceClient
) -> None:
    finished: list[int] = []

    async def change_weights() -> None:
        await coordinator.engines_paused()
        finished.append(model.finished)

    async with computing(model, client):
        coordinator.pause()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(change_weights)
            await wait_all_tasks_blocked()
            model.let()
    assert finished == [1]


async def test_a_pause_by_signal_is_heeded_while_steps_compute(model: Slow) -> None:
    async with serving(model, steps_to_pause=2) as (coordinator, client):
        async with computing(model, client):
            client.engines.pause()
            await until(lambda: coordinator.engine_states == ("pausing",))
            model.let(2)
            await coordinator.engines_paused()
            assert model.finished == 2
            client.engines.unpause()
            await until(lambda: model.started == 3)


async def test_a_signal_that_overtakes_a_pause_kills_while_a_step_computes(
    model: Slow, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(model) as (coordinator, client), computing(model, client):
        client.engines.pause()
        client.engines.unpause()
        await until(lambda: coordinator.engine_states == ("dead",))
        assert coordinator.statistics().lost == 1
        model.let()
        await until(lambda: model.finished == 1)
    assert coordinator.statistics().tokens == 0


async def test_an_engine_may_be_killed_while_it_computes_and_the_other_goes_on(
    model: Slow, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(model, engines=2) as (coordinator, client):
        async with computing(model, client), client.stream("x", SHORT) as other:
            await until(lambda: coordinator.statistics().submitted == 2)
            coordinator.kill_engine(0)
            model.let(10)
            completion = await other.result()
            assert completion.generated_text == "yz"
            assert coordinator.engine_states == ("dead", "running")
            assert coordinator.statistics().tokens == 2


async def test_frozen_while_a_step_computes_it_does_not_finish_it_before_it_is_thawed(
    model: Slow, coordinator: EmbeddedCoordinator, client: InferenceClient
) -> None:
    async with computing(model, client, "a", ONE) as stream:
        coordinator.freeze()
        model.let()
        await until(lambda: model.finished == 1)
        await wait_all_tasks_blocked()
        assert coordinator.running[0].generated_length == 0
        coordinator.thaw()
        assert (await stream.result()).generated_text == "b"


async def test_a_client_may_shut_it_down_while_a_step_computes(model: Slow) -> None:
    async with serving(model) as (coordinator, client), computing(model, client):
        client.shutdown_coordinator()
        await until(lambda: coordinator.stopped)
        model.let()
        await until(lambda: model.finished == 1)
    assert coordinator.statistics().tokens == 0


async def test_it_may_die_while_a_step_computes(model: Slow) -> None:
    async with serving(model) as (coordinator, client):
        async with computing(model, client):
            coordinator.die()
            model.let()
            await until(lambda: model.finished == 1)
        async with open_coordinator(bind=coordinator.address):
            pass  # its address is free
    assert coordinator.statistics().tokens == 0


async def test_cancelled_while_a_step_computes_it_waits_for_the_thread(model: Slow) -> None:
    letting = threading.Timer(0.05, model.let)
    with trio.CancelScope() as scope:
        async with open_coordinator(model=model) as coordinator:
            async with open_client(coordinator.address, close_timeout=0) as client:
                async with computing(model, client):
                    letting.start()
                    scope.cancel()
                    await trio.sleep_forever()
    assert scope.cancelled_caught
    assert model.finished == 1  # nobody else uses it when the block has been left
    assert coordinator.stopped


async def test_what_the_model_raises_in_its_thread_comes_out_bare() -> None:
    class Broken(Slow):
        def next_token_log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async with open_coordinator(model=Broken()) as coordinator:
            async with open_client(coordinator.address, close_timeout=0) as client:
                await client.generate("a", SHORT)
