"""A long run: requests by the batch, nine in ten of which are left before they have ended.

Who is left when, and how, follows from a seed; how far a request has come by then does not, since
sockets and processes are real. At intervals all is quiet, and then nothing may be left of anything.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import attrs
import trio

from tests.books import check_books
from tests.soak.belongings import Belongings, take_stock
from tests.soak.serve import Peer, peer_process
from tests.waiting import settled
from trio_infer import InferenceClient, RequestFailed, SamplingParams, open_client

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

__all__ = ["Report", "soak"]

WARM_UP = 1
"""So many intervals are not counted."""

LARGE = [1] * 2**14
"""A prompt that is packed in another thread."""

A_WHILE = 0.1
"""Seconds. Many a request that nobody cancels takes longer."""


@attrs.define
class Report:
    """What a long run took, and what it left.

    Attributes:
        made: how many requests were made in which way.
        outcomes: what those who made them saw.
        statistics: the counters of all clients, added up.
        coordinator: the counters of the coordinator.
        growth: what there is more in this process, and in the coordinator's, than there was once
            both had warmed up.
    """

    made: Counter[str] = attrs.field(factory=Counter)
    outcomes: Counter[str] = attrs.field(factory=Counter)
    statistics: Counter[str] = attrs.field(factory=Counter)
    coordinator: Counter[str] = attrs.field(factory=Counter)
    growth: dict[str, dict[str, int]] = attrs.field(factory=dict)


async def soak(requests: int, seed: int, *, intervals: int, at_once: int) -> Report:
    """Makes requests, through one client that stays and others that come and go.

    Args:
        requests: how many, about.
        seed: decides who is left when, and how.
        intervals: how often to look for what is left; the first ones, `WARM_UP`, are not counted.
        at_once: how many requests there are at a time.

    Raises:
        AssertionError: something was left, or the counters do not add up.
    """
    report, rng = Report(), random.Random(seed)
    batches = max(1, requests // (intervals * at_once))
    before: list[Belongings] = []
    async with peer_process() as peer, patient_client(peer.address) as client:
        passed: Counter[str] = Counter()
        for interval in range(intervals):
            for _ in range(batches - 1):
                await make_batch(client, rng, report, at_once)
            passed += _counted(await leave_in_the_midst(peer.address, rng, report, at_once))
            with trio.fail_after(60):
                await settled(client)
            report.statistics = passed + _counted(client)
            now = [await take_stock(), await _ask(peer, report)]
            if interval <= WARM_UP:
                before = now
            report.growth = _growth(before, now)
            del now  # not to be counted itself
    return report


def patient_client(address: str) -> AbstractAsyncContextManager[InferenceClient]:
    """A client that does not mind a busy machine."""
    return open_client(address, connect_timeout=None, close_timeout=60)


def _growth(before: list[Belongings], now: list[Belongings]) -> dict[str, dict[str, int]]:
    for had, has in zip(before, now, strict=True):
        has.check_no_more_than(had)
    names = ("client", "coordinator")
    return {name: has.growth_since(had) for name, had, has in zip(names, before, now, strict=True)}


def _counted(client: InferenceClient) -> Counter[str]:
    """The counters of a client that is done with all its requests."""
    check_books(client, connections=1)
    return Counter(attrs.asdict(client.statistics()))


async def _ask(peer: Peer, report: Report) -> Belongings:
    """What the coordinator holds, once it has seen everything that was sent to it."""
    statistics = report.statistics
    assert statistics["submitted"] <= report.made.total() - report.made["never handed over"]
    for name in ("lost", "malformed", "undelivered", "unreleased"):
        assert not statistics[name]
    with trio.fail_after(60):
        while True:
            answer = await peer.ask()
            coordinator = report.coordinator = Counter(answer["statistics"])
            if coordinator["aborts"] + coordinator["stray_aborts"] == statistics["aborted"]:
                break
            await trio.sleep(0.01)  # an abort may still be on its way
    assert answer["tables"] == [0, 0, 0]
    assert coordinator["submitted"] == statistics["submitted"]
    assert coordinator["completed"] + coordinator["failed"] == coordinator["submitted"]
    for name in ("running", "waiting", "lost", "malformed", "ignored", "unroutable"):
        assert not coordinator[name]
    return Belongings.from_json(answer["belongings"])


async def leave_in_the_midst(
    address: str, rng: random.Random, report: Report, at_once: int
) -> InferenceClient:
    """Makes requests through a client that is left while some of them run; returns it."""
    async with trio.open_nursery() as nursery:
        async with patient_client(address) as client:
            nursery.start_soon(make_batch, client, rng, report, at_once)
            await trio.sleep(rng.random() * A_WHILE)
    return client


async def make_batch(
    client: InferenceClient, rng: random.Random, report: Report, count: int
) -> None:
    """Makes so many requests at once; one time in ten all who still wait are cancelled together."""
    ways = rng.choices(list(WAYS), [weight for _, weight in WAYS.values()], k=count)
    async with trio.open_nursery() as nursery:
        if rng.random() < 0.1:
            nursery.cancel_scope.deadline = trio.current_time() + rng.random() * A_WHILE
        for way in ways:
            report.made[way] += 1
            seeded = random.Random(rng.getrandbits(64))
            nursery.start_soon(_make_one, client, seeded, way, report.outcomes)


async def _make_one(
    client: InferenceClient, rng: random.Random, way: str, outcomes: Counter[str]
) -> None:
    outcome = "cancelled"
    try:
        with trio.CancelScope() as scope:
            outcome = await WAYS[way][0](client, rng, scope)
    except RequestFailed:
        outcome = "failed"
    except trio.ClosedResourceError:
        outcome = "closed"
    except _ChangedMyMindError:
        outcome = "left"
    finally:
        outcomes[outcome] += 1


class _ChangedMyMindError(Exception):
    """Somebody leaves a block by this."""


def _params(rng: random.Random) -> SamplingParams:
    return rng.choice(PARAMS)


PARAMS = [
    SamplingParams(
        num_tokens_to_generate=tokens,
        streaming_interval=1 + tokens % 4,
        return_log_probs=tokens % 5 == 0,
    )
    for tokens in range(10, 60)
]

Way = Callable[[InferenceClient, random.Random, trio.CancelScope], Awaitable[str]]


async def _generate(client: InferenceClient, rng: random.Random, _: trio.CancelScope) -> str:
    await client.generate("roll", _params(rng))
    return "completed"


async def _read(client: InferenceClient, rng: random.Random, _: trio.CancelScope) -> str:
    async with client.stream("roll", _params(rng)) as stream:
        tokens = [token async for delta in stream for token in delta.tokens]
        assert tokens == (await stream.result()).generated_tokens
    return "completed"


async def _in_advance(client: InferenceClient, rng: random.Random, scope: trio.CancelScope) -> str:
    scope.cancel()
    return await rng.choice([_generate, _read])(client, rng, scope)


async def _right_after(client: InferenceClient, rng: random.Random, scope: trio.CancelScope) -> str:
    if rng.random() < 0.5:
        scope.deadline = trio.current_time()  # which trio sees when all tasks have run
        return await _generate(client, rng, scope)
    async with client.stream("roll", _params(rng)):
        return "left"


async def _any_time(client: InferenceClient, rng: random.Random, scope: trio.CancelScope) -> str:
    scope.deadline = trio.current_time() + rng.random() * A_WHILE
    return await rng.choice([_generate, _read])(client, rng, scope)


async def _first_delta(client: InferenceClient, rng: random.Random, scope: trio.CancelScope) -> str:
    async with client.stream("roll", _params(rng)) as stream:
        async for _ in stream:
            if rng.random() < 0.3:
                break
            if rng.random() < 0.5:
                raise _ChangedMyMindError
            scope.cancel()
    return "left"


async def _from_aside(client: InferenceClient, rng: random.Random, _: trio.CancelScope) -> str:
    async with client.stream("roll", _params(rng)) as stream, trio.open_nursery() as nursery:
        nursery.start_soon(stream.aclose)
        try:
            await stream.result()
        except trio.ClosedResourceError:
            return "left"
        except RequestFailed:
            return "failed"
    return "completed"


async def _unread(client: InferenceClient, rng: random.Random, _: trio.CancelScope) -> str:
    async with client.stream("roll", _params(rng)):
        await trio.sleep(rng.random() * A_WHILE)
    return "left"


async def _finish_early(client: InferenceClient, rng: random.Random, _: trio.CancelScope) -> str:
    async with client.stream("roll", _params(rng)) as stream:
        if rng.random() < 0.5:
            await stream.receive()
        await stream.finish_early()
    return "finished early"


async def _finishing(client: InferenceClient, rng: random.Random, scope: trio.CancelScope) -> str:
    async with client.stream("roll", _params(rng)) as stream:
        scope.deadline = trio.current_time() + rng.choice([0.0, rng.random() * A_WHILE / 4])
        await stream.finish_early()
    return "finished early"


async def _at_the_end(client: InferenceClient, rng: random.Random, scope: trio.CancelScope) -> str:
    async with client.stream("roll", _params(rng)) as stream:
        async for _ in stream:
            if stream.finished:
                scope.cancel()
    return "completed"


async def _prefill(client: InferenceClient, rng: random.Random, scope: trio.CancelScope) -> str:
    scope.deadline = trio.current_time() + rng.random() * A_WHILE
    async with client.prefill("roll"):
        await trio.sleep(rng.random() * A_WHILE)
    return "left"


async def _large(client: InferenceClient, rng: random.Random, scope: trio.CancelScope) -> str:
    scope.deadline = trio.current_time() + rng.random() * A_WHILE
    await client.generate(LARGE, _params(rng))
    return "completed"


WAYS: dict[str, tuple[Way, int]] = {
    "generated to the end": (_generate, 25),
    "streamed to the end": (_read, 25),
    "never handed over": (_in_advance, 80),
    "left once handed over": (_right_after, 200),
    "cancelled at any time": (_any_time, 200),
    "left after the first delta": (_first_delta, 160),
    "closed by another task": (_from_aside, 60),
    "left unread": (_unread, 40),
    "finished early": (_finish_early, 60),
    "cancelled while finishing": (_finishing, 80),
    "cancelled at the end": (_at_the_end, 20),
    "prefill cancelled or left": (_prefill, 20),
    "large, cancelled at any time": (_large, 1),
}
"""What may become of a request, with what weight."""
