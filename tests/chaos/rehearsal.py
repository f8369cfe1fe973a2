"""Chaos: clients that start, cancel and leave, under a coordinator that fails in every way.

Everything follows from a seed. At the end all is calm, and then has to hold what always holds:
each request has ended once, all tables are empty, and the counters add up.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import attrs
import trio

from tests.books import check_books
from tests.chaos.site import Site
from trio_infer import (
    Completion,
    ConnectionLost,
    GenerateRequest,
    InferenceClient,
    RemoteProtocolError,
    RequestFailed,
    SamplingParams,
    open_client,
)
from trio_infer.embedded import EmbeddedCoordinator, open_coordinator

__all__ = ["Report", "rehearse"]

PROMPTS = [f"{word} is" for word in ("The value", "A class", "An object", "The name", "It")]
LONGEST = 60

Texts = Mapping[str, list[int]]


@attrs.frozen
class Report:
    """What a rehearsal took.

    Attributes:
        outcomes: how many requests ended how.
        faults: how many faults of each kind there were.
    """

    outcomes: Counter[str] = attrs.field(factory=Counter)
    faults: Counter[str] = attrs.field(factory=Counter)


async def rehearse(
    seed: int, address: str, *, moment: float, clients: int = 3, tasks: int = 8, requests: int = 6
) -> Report:
    """One rehearsal, whose faults and cancellations follow from a seed.

    Args:
        seed: decides everything but the timing of real sockets.
        address: to rehearse at; over ``memory://``, under a mocked clock.
        moment: seconds between one fault and the next, on average.
        clients: how many clients there are.
        tasks: how many tasks use each of them.
        requests: how many requests each of those makes, one after another.

    Raises:
        AssertionError: something did not hold that has to.
    """
    report = Report()
    texts = await undisturbed_texts()
    site = Site(address, random.Random(f"{seed} site"), moment=moment)
    async with trio.open_nursery() as serving:
        serving.start_soon(site.run)
        users = [
            _User(site, random.Random(f"{seed} client {number}"), moment, texts, report.outcomes)
            for number in range(clients)
        ]
        async with trio.open_nursery() as nursery:
            for user in users:
                nursery.start_soon(user.run, tasks, requests)
        coordinator = await site.calm()
        await check_calm(coordinator, texts, sum(user.unreleased for user in users))
        site.note_injected(coordinator)
        report.faults.update(site.faults)
        serving.cancel_scope.cancel()
    return report


async def undisturbed_texts() -> Texts:
    """What each prompt is continued with, where nothing goes wrong."""
    async with open_coordinator(bind="memory://*") as coordinator:
        async with open_client(coordinator.address) as client:
            params = greedy(LONGEST)
            return {
                prompt: list((await client.generate(prompt, params)).generated_tokens)
                for prompt in PROMPTS
            }


def greedy(tokens: int) -> SamplingParams:
    return SamplingParams(num_tokens_to_generate=tokens, top_k=1)


async def check_calm(coordinator: EmbeddedCoordinator, texts: Texts, unreleased: int) -> None:
    """Checks a coordinator that nobody torments any more, and that no client is left at.

    Args:
        coordinator: the last one.
        texts: what it should say.
        unreleased: how many handoffs clients could not release, as they know themselves.
    """
    core = coordinator._core
    async with open_client(coordinator.address) as client:
        completion = await client.generate(PROMPTS[0], greedy(LONGEST))
        assert list(completion.generated_tokens) == texts[PROMPTS[0]]
    await coordinator.wait_until(lambda: core.idle)
    assert coordinator.running == ()
    assert not core._table._numbers
    statistics = coordinator.statistics()
    untold = statistics.unroutable + statistics.dropped + statistics.corrupted
    assert len(coordinator.pinned) <= unreleased + untold
    assert statistics.running == statistics.waiting == 0
    assert statistics.submitted == statistics.completed + statistics.failed + statistics.lost


class _User:
    """One client after another, and the tasks that use it."""

    def __init__(
        self,
        site: Site,
        rng: random.Random,
        moment: float,
        texts: Texts,
        outcomes: Counter[str],
    ) -> None:
        self._site = site
        self._rng = rng
        self._moment = moment
        self._texts = texts
        self._outcomes = outcomes
        self.unreleased = 0

    async def run(self, tasks: int, requests: int) -> None:
        """Uses a client, leaving it in the midst at times, until all requests were made."""
        rngs = [random.Random(self._rng.getrandbits(64)) for _ in range(tasks)]
        left = [requests] * tasks
        while any(left):
            async with open_client(
                self._site.address,
                connect_timeout=None,
                heartbeat_timeout=4 * self._moment,
                close_timeout=20 * self._moment,
                max_in_flight=self._rng.choice([None, 1, 4]),
            ) as client:
                async with trio.open_nursery() as nursery:
                    if self._rng.random() < 0.5:
                        nursery.cancel_scope.deadline = trio.current_time() + self._a_while()
                    for index, rng in enumerate(rngs):
                        nursery.start_soon(self._work, client, rng, left, index)
            check_books(client)
            self.unreleased += client.statistics().unreleased

    def _a_while(self) -> float:
        return self._moment * self._rng.choice([0.5, 5, 50])

    async def _work(
        self, client: InferenceClient, rng: random.Random, left: list[int], index: int
    ) -> None:
        while left[index]:
            left[index] -= 1
            outcome = "left"
            try:
                outcome = await self._one_request(client, rng)
            finally:
                self._outcomes[outcome] += 1

    async def _one_request(self, client: InferenceClient, rng: random.Random) -> str:
        prompt, tokens = rng.choice(PROMPTS), rng.randint(1, LONGEST)
        way = rng.choice(WAYS)
        with trio.move_on_after(self._moment * rng.choice([0, 0.3, 3, 30])):
            try:
                completion = await way(client, prompt, greedy(tokens), partial(self._idle, rng))
            except RequestFailed:
                return "failed"
            except ConnectionLost:
                return "lost"
            except RemoteProtocolError:
                return "nonsense"
            if completion is None:
                return "left"
            if not self._site.corrupts:
                expected = self._texts[prompt][:tokens]
                found = list(completion.generated_tokens)
                is_whole = completion.finish_reason == "length"
                assert found == (expected if is_whole else expected[: len(found)])
            return "completed"
        return "cancelled"

    async def _idle(self, rng: random.Random) -> None:
        await trio.sleep(self._moment * rng.choice([0, 0.05, 0.5]))


_Idle = Callable[[], Awaitable[None]]


async def _generate(
    client: InferenceClient, prompt: str, params: SamplingParams, _: _Idle
) -> Completion | None:
    return await client.generate(prompt, params)


async def _read(
    client: InferenceClient, prompt: str, params: SamplingParams, idle: _Idle
) -> Completion | None:
    async with client.stream(prompt, params) as stream:
        tokens: list[int] = []
        async for delta in stream:
            tokens += delta.tokens
            await idle()
        completion = await stream.result()
    assert tokens == list(completion.generated_tokens)
    return completion


async def _break_off(
    client: InferenceClient, prompt: str, params: SamplingParams, idle: _Idle
) -> Completion | None:
    async with client.stream(prompt, params) as stream:
        async for _ in stream:
            break
        await idle()
    return None


async def _finish_early(
    client: InferenceClient, prompt: str, params: SamplingParams, idle: _Idle
) -> Completion | None:
    async with client.stream(prompt, params) as stream:
        await idle()
        return await stream.finish_early()


async def _prefill(
    client: InferenceClient, prompt: str, _: SamplingParams, idle: _Idle
) -> Completion | None:
    async with client.prefill(prompt):
        await idle()
    return None


async def _group(
    client: InferenceClient, prompt: str, params: SamplingParams, idle: _Idle
) -> Completion | None:
    async with client.open_group(max_concurrency=3) as group, trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(group.submit, GenerateRequest(prompt, params))
        outcome = await group.outcomes.receive()
        await idle()
        group.cancel()  # and so does the end of the block what is submitted from now on
        nursery.cancel_scope.cancel()
    return outcome.unwrap()


WAYS = (_generate, _read, _break_off, _finish_early, _prefill, _group)
