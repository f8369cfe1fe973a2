"""Each helper, cancelled at each moment: nothing is left of it, here or at the coordinator."""

from __future__ import annotations

import math
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
)
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
import trio.lowlevel

from tests.stepping import Moment, run_at_each_step
from tests.waiting import settled, until
from trio_infer import (
    Completion,
    GenerateRequest,
    InferenceClient,
    NoneAccepted,
    RequestFailed,
    SamplingParams,
    as_completed,
    best_of,
    gather,
    hedge,
    open_client,
    race,
)
from trio_infer.background import running_behind
from trio_infer.embedded import EmbeddedCoordinator, open_coordinator

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        Iterable,
        Iterator,
        Sequence,
    )

pytestmark = pytest.mark.slow

STEP = 0.01
"""Seconds of the mocked clock that the engine takes for a token."""


class Letters:
    """The letter behind ``a`` is ``b``, and so on."""

    vocab_size = 128
    end_token = 0

    def tokenize(self, text: str) -> list[int]:
        return list(text.encode("ascii"))

    def detokenize(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode("ascii")

    def next_token_log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        return [
            [0.0 if token == sequence[-1] + 1 else -math.inf for token in range(self.vocab_size)]
            for sequence in sequences
        ]


def asking(tokens: int, prompt: str = "a") -> GenerateRequest:
    return GenerateRequest(prompt, SamplingParams(num_tokens_to_generate=tokens, top_k=1))


FAILS = asking(2, "a" * 100)
"""More than the engine takes."""

REQUESTS = [asking(tokens) for tokens in (3, 1, 2)]
TEXTS = ["bcd", "b", "bc"]


class Slowly(AsyncIterator[GenerateRequest]):
    """Requests that have to be waited for."""

    def __init__(self, requests: Iterable[GenerateRequest]) -> None:
        self._requests = iter(requests)

    async def __anext__(self) -> GenerateRequest:
        await trio.sleep(STEP / 2)
        for request in self._requests:
            return request
        raise StopAsyncIteration


def endless() -> Iterator[GenerateRequest]:
    while True:
        yield from REQUESTS


# What is cancelled: each coroutine tells what came out of it


async def gathered(client: InferenceClient, requests: Any, limit: int | None = None) -> object:
    completions = await gather(client, requests, max_concurrency=limit)
    return [completion.generated_text for completion in completions]


async def gathered_from_a_generator(client: InferenceClient) -> object:
    async def generate() -> AsyncGenerator[GenerateRequest]:
        for request in REQUESTS:
            await trio.lowlevel.checkpoint()
            yield request

    async with aclosing(generate()) as requests:
        return await gathered(client, requests, 2)


async def gathered_with_a_failure(client: InferenceClient) -> object:
    try:
        await gather(client, [asking(50), FAILS, asking(50)])
    except RequestFailed:
        return "failed"
    return None


async def gathered_from_what_raises(client: InferenceClient) -> object:
    def requests() -> Iterator[GenerateRequest]:
        yield asking(50)
        raise LookupError

    try:
        await gather(client, requests())
    except LookupError:
        return "raised"
    return None


async def completed(client: InferenceClient, requests: Any, limit: int | None = None) -> object:
    async with as_completed(client, requests, max_concurrency=limit) as outcomes:
        return sorted([outcome.unwrap().generated_text async for outcome in outcomes], key=str)


async def completed_and_left(client: InferenceClient, requests: Any) -> object:
    texts: list[str | None] = []
    async with as_completed(client, requests, max_concurrency=2) as outcomes:
        async for outcome in outcomes:
            texts.append(outcome.unwrap().generated_text)
            await trio.lowlevel.checkpoint()
            if len(texts) == 4:
                break
    return len(texts)


async def completed_with_a_failure(client: InferenceClient) -> object:
    async with as_completed(client, [REQUESTS[0], FAILS, REQUESTS[1]]) as outcomes:
        return sorted([outcome.error is None async for outcome in outcomes])


async def completed_by_two_readers(client: InferenceClient) -> object:
    seen: list[int] = []

    async def read() -> None:
        seen.extend([outcome.index async for outcome in outcomes])

    async with as_completed(client, REQUESTS, max_concurrency=2) as outcomes:
        async with running_behind(read):
            await read()
            while len(seen) < len(REQUESTS):
                await trio.lowlevel.checkpoint()
    return len(seen)


def is_long(completion: Completion) -> bool:
    return completion.generated_length > 1


async def is_long_slowly(completion: Completion) -> bool:
    await trio.sleep(STEP / 2)
    return is_long(completion)


async def raced(client: InferenceClient, accept: Any = None) -> object:
    requests = [asking(tokens) for tokens in (1, 2, 3, 50)]
    return (await race(client, requests, accept=accept)).generated_text


async def raced_in_vain(client: InferenceClient) -> object:
    async def refuse(_: Completion) -> bool:
        await trio.lowlevel.checkpoint()
        return False

    try:
        await race(client, [*REQUESTS, FAILS], accept=refuse)
    except NoneAccepted as error:
        return len(error.outcomes)
    return None


async def raced_with_a_judge_that_raises(client: InferenceClient) -> object:
    async def judge(completion: Completion) -> bool:
        await trio.sleep(STEP / 2)
        if is_long(completion):
            raise LookupError
        return False

    try:
        await race(client, REQUESTS, accept=judge)
    except LookupError:
        return "raised"
    return None


def length(completion: Completion) -> int:
    return completion.generated_length


async def length_slowly(completion: Completion) -> int:
    await trio.sleep(STEP / 2)
    return length(completion)


async def best(client: InferenceClient, score: Any, good_enough: float | None = None) -> object:
    params = SamplingParams(num_tokens_to_generate=2, top_k=1)
    return (await best_of(client, "a", params, n=3, score=score, good_enough=good_enough)).score


async def best_of_failures(client: InferenceClient) -> object:
    try:
        await best_of(client, FAILS.prompt, FAILS.sampling_params, n=2, score=length)
    except NoneAccepted as error:
        return len(error.outcomes)
    return None


async def hedged(client: InferenceClient, request: GenerateRequest, after: float) -> object:
    return (await hedge(client, request, after=after)).generated_text


async def hedged_with_failures(client: InferenceClient) -> object:
    try:
        await hedge(client, FAILS, after=0)
    except RequestFailed:
        return "failed"
    return None


CASES: dict[str, tuple[Callable[[InferenceClient], Awaitable[object]], object]] = {
    "gather": (partial(gathered, requests=REQUESTS), TEXTS),
    "gather, limited": (partial(gathered, requests=REQUESTS, limit=1), TEXTS),
    "gather, async": (lambda client: gathered(client, Slowly(REQUESTS)), TEXTS),
    "gather, async, limited": (lambda client: gathered(client, Slowly(REQUESTS), 2), TEXTS),
    "gather, generator": (gathered_from_a_generator, TEXTS),
    "gather, failing": (gathered_with_a_failure, "failed"),
    "gather, raising": (gathered_from_what_raises, "raised"),
    "as_completed": (partial(completed, requests=REQUESTS), sorted(TEXTS)),
    "as_completed, async": (lambda client: completed(client, Slowly(REQUESTS), 2), sorted(TEXTS)),
    "as_completed, endless": (lambda client: completed_and_left(client, endless()), 4),
    "as_completed, endless, async": (
        lambda client: completed_and_left(client, Slowly(endless())),
        4,
    ),
    "as_completed, failing": (completed_with_a_failure, [False, True, True]),
    "as_completed, two readers": (completed_by_two_readers, 3),
    "race": (raced, "b"),
    "race, accept": (partial(raced, accept=is_long), "bc"),
    "race, async accept": (partial(raced, accept=is_long_slowly), "bc"),
    "race, none accepted": (raced_in_vain, 4),
    "race, accept raises": (raced_with_a_judge_that_raises, "raised"),
    "best_of": (partial(best, score=length), 2.0),
    "best_of, async score": (partial(best, score=length_slowly), 2.0),
    "best_of, good enough": (partial(best, score=length_slowly, good_enough=1), 2.0),
    "best_of, failing": (best_of_failures, 2),
    "hedge, in time": (partial(hedged, request=REQUESTS[0], after=10.0), "bcd"),
    "hedge, second copy": (partial(hedged, request=REQUESTS[0], after=STEP / 4), "bcd"),
    "hedge, at once": (partial(hedged, request=REQUESTS[0], after=0), "bcd"),
    "hedge, failing": (hedged_with_failures, "failed"),
}


@attrs.define
class Rehearsal:
    """One of them, cancelled at one moment, and what has to hold afterwards."""

    act: Callable[[InferenceClient], Awaitable[object]]
    result: object = None
    max_in_flight: int | None = None

    async def run(self, moment: Moment) -> None:
        async with (
            open_coordinator(
                bind="memory://*", model=Letters(), step_time=STEP, max_sequence_length=80
            ) as coordinator,
            open_client(coordinator.address, max_in_flight=self.max_in_flight) as client,
        ):
            before = trio.lowlevel.current_statistics().tasks_living
            await moment.cancel(partial(self._act, client))
            # No checkpoint in between: what holds now holds before control moves on.
            assert client.statistics().in_flight == client.statistics().waiting == 0
            assert trio.lowlevel.current_statistics().tasks_living == before
            await settled(client)
            await until(lambda: aborts(coordinator) >= client.statistics().aborted)
            await gather(client, REQUESTS)  # it is as good as new
            self._check_counters(client, coordinator)

    async def _act(self, client: InferenceClient) -> None:
        try:
            self.result = await self.act(client)
        except BaseExceptionGroup as error:
            raise AssertionError(repr(error)) from error

    @staticmethod
    def _check_counters(client: InferenceClient, coordinator: EmbeddedCoordinator) -> None:
        here, there = client.statistics(), coordinator.statistics()
        assert coordinator.running == ()
        assert there.waiting == there.unroutable == 0
        assert here.submitted == here.completed + here.failed + here.aborted == there.submitted
        assert here.aborted == aborts(coordinator)


def aborts(coordinator: EmbeddedCoordinator) -> int:
    """How many have come, whether in time or not."""
    statistics = coordinator.statistics()
    return statistics.aborts + statistics.stray_aborts


@pytest.mark.parametrize("max_in_flight", [None, 1])
@pytest.mark.parametrize("case", CASES)
def test_cancelled_at_any_moment_nothing_is_left(case: str, max_in_flight: int | None) -> None:
    act, result = CASES[case]
    rehearsal = Rehearsal(act, max_in_flight=max_in_flight)
    moments = run_at_each_step(rehearsal.run)
    assert rehearsal.result == result, "it did not run through in the end"
    assert moments > 6
