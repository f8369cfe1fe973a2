"""Load for a coordinator, and what its requests feel of it."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ..errors import ConnectionLost, InferenceError
from ..models import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..client import InferenceClient
    from ..models import Completion

__all__ = ["METRICS", "Load", "Plan"]

METRICS: Final = ("ttft", "tpot", "itl", "e2el")
"""What is measured of each request, as vLLM's bench calls it, in seconds."""

BUCKET_SECONDS: Final = 0.25

_PROMPT_IDS: Final = range(32, 127)
"""Any model has these ids; to an embedded one they are letters."""

_NO_TOKEN: Final = -1
"""As a termination id it lets a generation go on to the end of its budget."""


@attrs.frozen(kw_only=True)
class Plan:
    """What is to be asked.

    Attributes:
        requests: how many.
        rate: so many a second, at random moments; None: as soon as there is room.
        concurrency: so many at a time; None: any number.
        prompt_tokens: of each.
        output_tokens: of each.
        cancel_fraction: so many of them are left before their end.
        seed: where chance begins.
    """

    requests: int
    rate: float | None
    concurrency: int | None
    prompt_tokens: int
    output_tokens: int
    cancel_fraction: float
    seed: int


@attrs.define
class Load:
    """What has been asked so far, and how it went.

    Attributes:
        plan: what is to be asked.
        began: when the first request was made, by trio's clock.
        ended: when the last one ended; None before that.
        completed: requests that ended well.
        failed: those that did not.
        aborted: those that were left before their end.
        interrupted: those that ran when the load was cancelled.
        running: those that run.
        input_tokens: of the prompts of those that completed, or were aborted by whatever.
        output_tokens: that arrived.
        measured: for each metric the seconds it took, request by request, or token by token.
        arrivals: how many tokens arrived in each span of `BUCKET_SECONDS`.
        first_failure: why the first of them failed, if any did.
    """

    plan: Plan
    began: float = 0.0
    ended: float | None = None
    completed: int = 0
    failed: int = 0
    aborted: int = 0
    interrupted: int = 0
    running: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    measured: dict[str, array[float]] = attrs.field(
        factory=lambda: {name: array("d") for name in METRICS}
    )
    arrivals: Counter[int] = attrs.field(factory=Counter)
    first_failure: str | None = None

    @property
    def handled(self) -> int:
        """Requests that nothing more will be done about."""
        return self.completed + self.failed + self.aborted

    @property
    def duration(self) -> float:
        """Seconds so far, or altogether."""
        return (trio.current_time() if self.ended is None else self.ended) - self.began

    async def run(self, client: InferenceClient[Completion]) -> None:
        """Asks for all of it. Cancelled, it aborts what runs.

        Raises:
            ConnectionLost: the connection broke.
        """
        running = _Running(self, client)
        self.began = trio.current_time()
        try:
            await running.run()
        finally:
            self.ended = trio.current_time()
        if running.loss is not None:
            raise running.loss

    def note_tokens(self, count: int) -> None:
        """Some tokens have arrived."""
        self.output_tokens += count
        self.arrivals[int((trio.current_time() - self.began) / BUCKET_SECONDS)] += count


class _Running:
    """A load that runs."""

    def __init__(self, load: Load, client: InferenceClient[Completion]) -> None:
        self.loss: ConnectionLost | None = None
        self._load = load
        self._plan = plan = load.plan
        self._client = client
        self._params = SamplingParams(
            num_tokens_to_generate=plan.output_tokens, termination_id=_NO_TOKEN
        )
        self._chance = random.Random(plan.seed)  # noqa: S311 - no secret
        self._left = self._choose_left()
        self._nursery: trio.Nursery

    def _choose_left(self) -> dict[int, int]:
        """Which requests are left before their end, and after how many tokens."""
        plan, chance = self._plan, self._chance
        count = round(plan.cancel_fraction * plan.requests)
        chosen = chance.sample(range(plan.requests), count)
        return {number: chance.randint(1, max(1, plan.output_tokens - 1)) for number in chosen}

    async def run(self) -> None:
        """Makes all requests, and waits for their ends."""
        async with trio.open_nursery() as self._nursery:
            numbers = iter(range(self._plan.requests))
            if self._plan.rate is None:
                for _ in range(min(self._plan.concurrency or 1, self._plan.requests)):
                    self._nursery.start_soon(self._ask_one_by_one, numbers)
            else:
                for number in numbers:
                    if number:
                        await trio.sleep(self._chance.expovariate(self._plan.rate))
                    self._nursery.start_soon(self._ask, number, self._make_prompt())

    async def _ask_one_by_one(self, numbers: Iterator[int]) -> None:
        await trio.lowlevel.checkpoint()
        for number in numbers:
            await self._ask(number, self._make_prompt())

    def _make_prompt(self) -> list[int]:
        return self._chance.choices(_PROMPT_IDS, k=self._plan.prompt_tokens)

    async def _ask(self, number: int, prompt: list[int]) -> None:
        load = self._load
        await trio.lowlevel.checkpoint()
        load.running += 1
        try:
            await self._follow(prompt, self._left.get(number))
        except ConnectionLost as error:
            load.failed += 1
            self.loss = error
            self._nursery.cancel_scope.cancel()
        except InferenceError as error:
            load.failed += 1
            load.first_failure = load.first_failure or str(error)
        finally:
            load.running -= 1

    async def _follow(self, prompt: list[int], leave_after: int | None) -> None:
        load, count, first, last = self._load, 0, 0.0, 0.0
        began = trio.current_time()
        async with self._client.stream(prompt, self._params) as stream:
            try:
                async for delta in stream:
                    now = trio.current_time()
                    load.note_tokens(len(delta.tokens))
                    if count:
                        load.measured["itl"].append(now - last)
                    else:
                        first = now
                        load.measured["ttft"].append(now - began)
                    count, last = count + len(delta.tokens), now
                    if leave_after is not None and count >= leave_after and not stream.finished:
                        break
                else:
                    leave_after = None
            except trio.Cancelled:
                if self.loss is not None:
                    load.failed += 1
                else:
                    load.interrupted += 1
                    load.input_tokens += len(prompt)
                raise
        load.input_tokens += len(prompt)
        if leave_after is not None:
            load.aborted += 1
            return
        load.completed += 1
        load.measured["e2el"].append(trio.current_time() - began)
        if last > first:  # else all of them came at once
            load.measured["tpot"].append((last - first) / (count - 1))
