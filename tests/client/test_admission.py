"""Admission: so many requests at a time, first come first served, and no place ever leaks."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any, Final

import pytest
import trio
import trio.testing

from tests.peers import Received, ScriptedCoordinator, scripted_coordinator
from tests.waiting import disconnected, settled, until
from trio_infer import (
    ConnectionLost,
    GenerateRequest,
    InferenceClient,
    RemoteProtocolError,
    RequestFailed,
    SamplingParams,
    open_client,
)
from trio_infer.admission import Admission
from trio_infer.embedded import Faults, open_coordinator
from trio_infer.protocol.dialect import Kind
from trio_infer.protocol.preparation import HEAVY_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from trio_infer import CompletionStream

LONG = SamplingParams(num_tokens_to_generate=100_000)
LARGE: Final = "x" * HEAVY_BYTES

WITHOUT_ABORT = pytest.mark.parametrize("dialect", ["0.19", "0.18"])


@pytest.fixture
def bind() -> str:
    return "memory://*"


@pytest.fixture
async def client(coordinator: ScriptedCoordinator) -> AsyncIterator[InferenceClient]:
    """Two of its requests run at a time."""
    async with open_client(coordinator.address, max_in_flight=2) as client:
        yield client
        check_nothing_is_promised(client)


def check_nothing_is_promised(client: InferenceClient) -> None:
    statistics = client.statistics()
    assert (statistics.in_flight, statistics.waiting) == (0, 0)
    assert client._exchange._admission._promised == 0
    assert client._exchange._admission.waiting == 0


# The ways to submit, each of which ends once it is answered


async def generates(client: InferenceClient, prompt: str) -> None:
    await client.generate(prompt, LONG)


async def streams(client: InferenceClient, prompt: str) -> None:
    async with client.stream(prompt, LONG) as stream:
        await stream.result()


async def prefills(client: InferenceClient, prompt: str) -> None:
    async with client.prefill(prompt):
        pass


async def submits(client: InferenceClient, prompt: str) -> None:
    async with client.open_group() as group:
        await group.submit(GenerateRequest(prompt, LONG))
        (await group.outcomes.receive()).unwrap()


async def generates_from_much(client: InferenceClient, prompt: str) -> None:
    await client.generate(prompt + LARGE, LONG)


async def submits_much(client: InferenceClient, prompt: str) -> None:
    await submits(client, prompt + LARGE)


WAYS: Final = (generates, streams, prefills, submits, generates_from_much, submits_much)


def first_word(submission: Received) -> str:
    prompt = submission.message.prompt
    assert isinstance(prompt, str)
    return prompt.split()[0]


def answer(coordinator: ScriptedCoordinator, submission: Received) -> None:
    handoff = {"request_id": submission.id, "block_ids": [1], "kv_meta": {}}
    coordinator.reply(submission, [1], disaggregated_params=handoff)


async def test_whoever_submits_in_whatever_way_waits_in_one_queue(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    ways = [*WAYS, *reversed(WAYS), *WAYS]
    arrived: list[str] = []
    async with trio.open_nursery() as nursery:
        async with client.stream("blocks", LONG), client.stream("blocks", LONG):
            for number, way in enumerate(ways):
                nursery.start_soon(way, client, f"{number} ")
                await trio.testing.wait_all_tasks_blocked()
            assert client.statistics().waiting == len(ways)
            blocking = [await coordinator.submission() for _ in range(2)]
        running: list[Received] = []
        for _ in ways:
            running.append(await coordinator.submission())
            arrived.append(first_word(running[-1]))
            assert client.statistics().in_flight <= 2
            if len(running) == 2:
                answer(coordinator, running.pop(0))
        answer(coordinator, running.pop())
    await settled(client)
    assert [submission.id for submission in blocking] == [0, 1]
    assert arrived == [str(number) for number in range(len(ways))]
    assert client.statistics().submitted == len(ways) + 2


async def test_those_let_in_at_once_are_handed_over_in_their_order(
    coordinator: ScriptedCoordinator,
) -> None:
    """Trio runs tasks that are woken together in any order."""
    for _ in range(10):
        async with open_client(coordinator.address, max_in_flight=5) as client:
            async with trio.open_nursery() as nursery:
                async with client.open_group() as group:
                    for _ in range(5):
                        group.submit_nowait(GenerateRequest("blocks", LONG))
                    for number in range(5):
                        nursery.start_soon(generates, client, str(number))
                        await trio.testing.wait_all_tasks_blocked()
                prompts: list[Any] = []
                while len(prompts) < 10:
                    submission = await coordinator.submission()
                    prompts.append(submission.message.prompt)
                    if submission.message.prompt != "blocks":
                        coordinator.reply(submission, [1])
            assert prompts == ["blocks"] * 5 + [str(number) for number in range(5)]
            check_nothing_is_promised(client)


async def test_who_comes_as_places_become_free_does_not_overtake_those_let_in(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.open_group() as group, trio.open_nursery() as nursery:
        for _ in range(2):
            group.submit_nowait(GenerateRequest("blocks", LONG))
        nursery.start_soon(generates, client, "waits")
        await trio.testing.wait_all_tasks_blocked()
        group.cancel()
        # No checkpoint in between: one waits, there are two places, and it is not this one's turn.
        with pytest.raises(trio.WouldBlock):
            group.submit_nowait(GenerateRequest("overtakes", LONG))
        assert client.statistics().waiting == 1
        nursery.start_soon(generates, client, "comes")
        prompts: list[Any] = []
        for _ in range(4):
            submission = await coordinator.submission()
            prompts.append(submission.message.prompt)
            if submission.message.prompt != "blocks":
                coordinator.reply(submission, [1])
    assert prompts == ["blocks", "blocks", "waits", "comes"]


async def test_never_more_run_at_the_coordinator(
    autojump_clock: trio.testing.MockClock,
) -> None:
    seen: set[int] = set()

    async def watch() -> None:
        while True:
            await embedded.wait_until(lambda: len(embedded.running) not in seen)
            seen.add(len(embedded.running))

    async with open_coordinator(bind="memory://*", step_time=0.01) as embedded:
        async with open_client(embedded.address, max_in_flight=3) as client:
            async with trio.open_nursery() as watching:
                watching.start_soon(watch)
                params = SamplingParams(num_tokens_to_generate=5)
                async with trio.open_nursery() as nursery:
                    for number in range(20):
                        nursery.start_soon(client.generate, str(number), params)
                watching.cancel_scope.cancel()
            assert max(seen) == 3
            assert client.statistics().completed == 20


async def test_who_gives_up_leaves_the_queue_and_the_next_takes_the_place(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    scopes = [trio.CancelScope() for _ in range(4)]

    async def wait(number: int) -> None:
        with scopes[number]:
            await WAYS[number](client, f"{number} ")

    async with trio.open_nursery() as nursery:
        async with client.stream("blocks"), client.stream("blocks"):
            for number in range(4):
                nursery.start_soon(wait, number)
                await trio.testing.wait_all_tasks_blocked()
            scopes[1].cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert client.statistics().waiting == 3
            scopes[0].cancel()
        scopes[2].cancel()  # in the tick in which its turn has come
        for _ in range(2):
            await coordinator.submission()
        submission = await coordinator.submission()
        assert first_word(submission) == "3"
        answer(coordinator, submission)
    await settled(client)
    assert client.statistics().submitted == 3


async def test_the_turn_of_who_gives_up_while_packing_passes_on(
    coordinator: ScriptedCoordinator,
) -> None:
    async with open_client(coordinator.address, max_in_flight=1) as client:
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()

            async def give_up() -> None:
                with scope:
                    await client.generate(LARGE, LONG)

            nursery.start_soon(give_up)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(generates, client, "next ")
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            submission = await coordinator.submission()
            if first_word(submission) != "next":  # it was packed sooner than that
                submission = await coordinator.submission()
            answer(coordinator, submission)
        await settled(client)
        check_nothing_is_promised(client)


# What frees a place


async def by_the_final_reply(
    coordinator: ScriptedCoordinator, stream: CompletionStream[Any], submission: Received
) -> None:
    coordinator.reply(submission, [1])
    await stream.result()


async def by_an_unread_final_reply(
    coordinator: ScriptedCoordinator, stream: CompletionStream[Any], submission: Received
) -> None:
    coordinator.reply(submission, [1])
    await until(lambda: stream.finished)


async def by_a_failure(
    coordinator: ScriptedCoordinator, stream: CompletionStream[Any], submission: Received
) -> None:
    coordinator.reply(submission, [], status="FAILED")
    with pytest.raises(RequestFailed):
        await stream.result()


async def by_closing(
    coordinator: ScriptedCoordinator, stream: CompletionStream[Any], submission: Received
) -> None:
    await stream.aclose()


async def by_finishing_early(
    coordinator: ScriptedCoordinator, stream: CompletionStream[Any], submission: Received
) -> None:
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.finish_early)
            await coordinator.abort()
            scope.cancel()
    assert coordinator.of(Kind.ABORT_REQUEST) == [submission.id]


async def by_a_malformed_final_reply(
    coordinator: ScriptedCoordinator, stream: CompletionStream[Any], submission: Received
) -> None:
    frames = coordinator.reply_frames(submission, [1])
    coordinator.send(submission.client, [*frames, b"one too many"])
    with pytest.raises(RemoteProtocolError):
        await stream.result()


async def by_a_malformed_partial_result(
    coordinator: ScriptedCoordinator, stream: CompletionStream[Any], submission: Received
) -> None:
    frames = coordinator.partial_frames(submission, [1])
    coordinator.send(submission.client, [*frames, b"one too many"])
    with pytest.raises(RemoteProtocolError):
        await stream.result()


async def by_a_partial_result_that_cannot_be_decoded(
    coordinator: ScriptedCoordinator, stream: CompletionStream[Any], submission: Received
) -> None:
    coordinator.send(submission.client, coordinator.partial_frames(submission, [], new_tokens="x"))
    with pytest.raises(RemoteProtocolError):
        await stream.result()


FREEING: Final = (
    *(by_the_final_reply, by_an_unread_final_reply, by_a_failure, by_closing, by_finishing_early),
    *(by_a_malformed_final_reply, by_a_malformed_partial_result),
    by_a_partial_result_that_cannot_be_decoded,
)


@pytest.mark.parametrize("free", FREEING)
async def test_a_place_is_free_as_soon_as_its_request_has_ended_or_the_abort_is_sent(
    coordinator: ScriptedCoordinator, free: Callable[..., Awaitable[None]]
) -> None:
    coordinator.answers_aborts = False
    async with open_client(coordinator.address, max_in_flight=1) as client:
        async with trio.open_nursery() as nursery, client.stream("first", LONG) as stream:
            submission = await coordinator.submission()
            nursery.start_soon(generates, client, "next ")
            await trio.testing.wait_all_tasks_blocked()
            assert client.statistics().waiting == 1
            await free(coordinator, stream, submission)
            # The first one's block has not ended.
            following = await coordinator.submission()
            assert client.statistics().waiting == 0
            coordinator.reply(following, [2])
        if client.statistics().aborting:
            coordinator.reply(submission, [1])
        await settled(client)
        check_nothing_is_promised(client)
        assert client.statistics().submitted == 2


async def test_a_loss_frees_all_places_and_those_who_waited_go_on_over_the_next_connection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def lose(client: InferenceClient) -> None:
        with pytest.raises(ConnectionLost):
            await client.generate("lost", LONG)

    async with scripted_coordinator("memory://here") as first:
        async with open_client(first.address, max_in_flight=2) as client:
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(lose, client)
                await trio.testing.wait_all_tasks_blocked()
                for number in range(6):
                    nursery.start_soon(generates, client, f"{number} ")
                    await trio.testing.wait_all_tasks_blocked()
                first.close()
                await until(lambda: client.statistics().lost == 2)
                await trio.testing.wait_all_tasks_blocked()
                assert client.statistics().waiting == 6
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await client.generate("never", LONG)
                async with scripted_coordinator("memory://here") as second:
                    words: list[str] = []
                    for _ in range(3):
                        pair = [await second.submission() for _ in range(2)]
                        await trio.testing.wait_all_tasks_blocked()
                        assert client.statistics().in_flight == 2
                        words += sorted(map(first_word, pair))
                        for submission in pair:
                            answer(second, submission)
                    assert words == [str(number) for number in range(6)]
                    await until(lambda: client.statistics().completed == 6)
                    check_nothing_is_promised(client)


async def test_who_has_its_turn_and_gives_up_waiting_for_the_connection_passes_it_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with scripted_coordinator("memory://here") as first:
        async with open_client(first.address, max_in_flight=1) as client:
            first.close()
            await disconnected(client)
            async with trio.open_nursery() as nursery:
                with trio.move_on_after(10):
                    nursery.start_soon(generates, client, "stays ")
                    await client.generate("gives up", LONG)
                async with scripted_coordinator("memory://here") as second:
                    submission = await second.submission()
                    assert first_word(submission) == "stays"
                    answer(second, submission)
                    await until(lambda: client.statistics().completed)
            check_nothing_is_promised(client)
            assert client.statistics().submitted == 1


@WITHOUT_ABORT
async def test_without_abort_a_place_is_taken_until_the_late_reply(dialect: str) -> None:
    async with scripted_coordinator("memory://*", dialect=dialect) as coordinator:
        async with open_client(coordinator.address, dialect=dialect, max_in_flight=1) as client:
            async with client.open_group() as group, trio.open_nursery() as nursery:
                group.submit_nowait(GenerateRequest("left", LONG))
                submission = await coordinator.submission()
                group.cancel()
                with pytest.raises(trio.WouldBlock):
                    group.submit_nowait(GenerateRequest("refused", LONG))
                nursery.start_soon(generates, client, "next ")
                await trio.testing.wait_all_tasks_blocked()
                statistics = client.statistics()
                assert (statistics.waiting, statistics.aborting) == (1, 1)
                assert len(coordinator.log) == 1
                coordinator.reply(submission, [1])
                answer(coordinator, await coordinator.submission())
            check_nothing_is_promised(client)
        assert coordinator.unroutable == 0


# Leaving


async def test_whoever_waits_is_told_when_the_client_is_closed_and_nothing_is_sent(
    coordinator: ScriptedCoordinator,
) -> None:
    refused: list[str] = []

    async def is_refused(way: Callable[..., Awaitable[None]]) -> None:
        with pytest.raises(trio.ClosedResourceError):
            await way(client, "never ")
        refused.append(way.__name__)

    async with trio.open_nursery() as nursery:
        async with open_client(coordinator.address, max_in_flight=1) as client:
            async with client.stream("blocks", LONG):
                for way in WAYS * 3:
                    nursery.start_soon(is_refused, way)
                await trio.testing.wait_all_tasks_blocked()
                assert client.statistics().waiting == len(WAYS) * 3
                await client.aclose()
    assert len(refused) == len(WAYS) * 3
    assert coordinator.kinds == [Kind.SUBMIT_REQUEST, Kind.ABORT_REQUEST]
    check_nothing_is_promised(client)


@WITHOUT_ABORT
async def test_without_abort_whoever_waits_is_told_although_no_place_becomes_free(
    dialect: str,
) -> None:
    async with scripted_coordinator("memory://*", dialect=dialect) as coordinator:
        async with open_client(coordinator.address, dialect=dialect, max_in_flight=1) as client:

            async def is_refused() -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await client.generate("never", LONG)

            async with trio.open_nursery() as leaving:
                async with client.stream("runs", LONG):
                    submission = await coordinator.submission()
                    async with trio.open_nursery() as nursery:
                        for _ in range(3):
                            nursery.start_soon(is_refused)
                        await trio.testing.wait_all_tasks_blocked()
                        leaving.start_soon(client.aclose)
                assert client.statistics().aborting == 1
                coordinator.reply(submission, [1])
        assert len(coordinator.log) == 1
        check_nothing_is_promised(client)


async def test_a_cancelled_client_with_waiters_leaves_at_once(
    autojump_clock: trio.testing.MockClock, coordinator: ScriptedCoordinator
) -> None:
    with trio.CancelScope() as scope:
        async with open_client(coordinator.address, max_in_flight=1) as client:
            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(generates, client, "hi")
                await coordinator.submission()
                scope.cancel()
    assert scope.cancelled_caught
    assert len(coordinator.of(Kind.ABORT_REQUEST)) == 1
    assert client.statistics().submitted == 1
    check_nothing_is_promised(client)


# No place leaks


@pytest.mark.parametrize("seed", range(10))
async def test_whatever_happens_no_place_is_lost_and_none_is_given_twice(
    autojump_clock: trio.testing.MockClock, seed: int
) -> None:
    """All ways at once, given up at any time, under faults and restarts."""
    rng = random.Random(seed)
    limit = rng.randint(1, 4)
    address = "memory://stressed"
    faults = Faults(corrupt=0.05, delay=0.2, fail=0.1, duplicate=0.1, reorder=0.1)

    async def serve() -> None:
        for patience in (2, 2, 1_000_000):
            async with open_coordinator(
                bind=address, seed=seed, faults=faults, step_time=0.01
            ) as coordinator:
                await trio.sleep(patience)
                coordinator.die()

    async def use(client: InferenceClient, number: int) -> None:
        await trio.sleep(rng.random() * 5)
        way = rng.choice([*WAYS, submits_at_once])
        with trio.move_on_after(rng.choice([0, 0.05, 0.5, 20])):
            with contextlib.suppress(ConnectionLost, RequestFailed, RemoteProtocolError):
                await way(client, f"{number} ")

    async def submits_at_once(client: InferenceClient, prompt: str) -> None:
        async with client.open_group(max_concurrency=3) as group:
            with contextlib.suppress(trio.WouldBlock):
                for _ in range(5):
                    group.submit_nowait(GenerateRequest(prompt, LONG))
            await trio.sleep(0.1)
            group.cancel()

    async def watch(client: InferenceClient) -> None:
        while True:
            assert client.statistics().in_flight <= limit
            await trio.sleep(0.01)

    async with trio.open_nursery() as serving:
        serving.start_soon(serve)
        async with open_client(address, max_in_flight=limit, connect_timeout=None) as client:
            async with trio.open_nursery() as watching:
                watching.start_soon(watch, client)
                async with trio.open_nursery() as nursery:
                    for number in range(60):
                        nursery.start_soon(use, client, number)
                watching.cancel_scope.cancel()
            check_nothing_is_promised(client)
            async with client.open_group() as group:
                for _ in range(limit):
                    group.submit_nowait(GenerateRequest("fits", LONG))
                with pytest.raises(trio.WouldBlock):
                    group.submit_nowait(GenerateRequest("does not", LONG))
        assert client.statistics().connections == 3
        serving.cancel_scope.cancel()


@pytest.mark.parametrize("seed", range(50))
async def test_places_go_round_in_order_whoever_gives_up_when(seed: int) -> None:
    """The queue by itself, with all that can happen to it in one tick."""
    rng = random.Random(seed)
    limit, taken = rng.choice([1, 2, 3, 20]), 0
    admission = Admission(limit, lambda: taken)
    queue: list[int] = []
    entered: list[int] = []

    async def enter(number: int, scope: trio.CancelScope) -> None:
        nonlocal taken
        with scope:
            queue.append(number)
            await admission.enter()
            entered.append(number)
            assert taken < limit
            taken += 1
            admission.leave()

    scopes: dict[int, trio.CancelScope] = {}
    async with trio.open_nursery() as nursery:
        for number in range(100):
            scopes[number] = trio.CancelScope()
            nursery.start_soon(enter, number, scopes[number])
            for _ in range(rng.randrange(3)):
                what = rng.randrange(4)
                if what == 0 and taken:
                    taken -= 1
                    admission.admit()
                elif what == 1:
                    scopes[rng.randrange(number + 1)].cancel()
                else:
                    await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        while admission.waiting:
            await trio.testing.wait_all_tasks_blocked()
            taken = 0
            admission.admit()
    assert entered == [number for number in queue if number in set(entered)]
    assert all(scopes[n].cancelled_caught for n in range(100) if n not in set(entered))
    assert admission._promised == 0


async def test_a_large_request_that_is_being_packed_is_seen_to_wait(
    client: InferenceClient,
) -> None:
    """It has its turn, and would be nowhere otherwise."""
    packing = client._exchange._packing
    others = [object() for _ in range(int(packing.total_tokens))]
    for other in others:
        packing.acquire_on_behalf_of_nowait(other)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(generates_from_much, client, "hi")
        await trio.testing.wait_all_tasks_blocked()
        assert (client.statistics().in_flight, client.statistics().waiting) == (0, 1)
        nursery.cancel_scope.cancel()
    assert client.statistics().waiting == 0
    for other in others:
        packing.release_on_behalf_of(other)


@pytest.mark.parametrize("freed", ["a hundred places", "by closing"])
async def test_beside_tasks_that_keep_the_scheduler_busy_many_start_as_soon_as_one(
    freed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn of the scheduler takes as long as all other tasks take: one for each is too many."""
    # As trio runs tasks but for tests: in order, or the other way round, by chance.
    monkeypatch.setattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING", False)
    taken = 1000
    admission = Admission(taken, lambda: taken)
    entered: list[int] = []

    async def enter(number: int) -> None:
        await admission.enter()
        entered.append(number)
        admission.leave()

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(enter, number)
            await trio.testing.wait_all_tasks_blocked()
        if freed == "by closing":
            admission.close()
        else:
            taken -= 100
            admission.admit()
        turns = 0
        while admission.waiting:
            await trio.lowlevel.checkpoint()
            turns += 1
    assert entered == list(range(100))
    assert turns < 50  # half of them bring in most of the rest
