"""Streams whose readers sleep while tokens come, and what that costs them and everybody else."""

from __future__ import annotations

import sys
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.waiting import arrived, until
from trio_infer import CompletionStream, InferenceClient, RemoteProtocolError, SamplingParams
from trio_infer.protocol.assembly import Assembler, Body
from trio_infer.reception import DECODED_AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.peers import Received, ScriptedCoordinator

MANY = 100_000
LONG = SamplingParams(num_tokens_to_generate=MANY, return_log_probs=True)

BYTES_BESIDE_THE_BODY = 80
"""What an unread partial result takes in memory beyond its bytes, at most."""


def log_probs_of(tokens: list[int]) -> list[float]:
    return [-token / 8 for token in tokens]


async def send(coordinator: ScriptedCoordinator, to: Received, tokens: range) -> None:
    """Sends tokens one by one, with their log probs, and lets others run in between."""
    for token in tokens:
        frames = coordinator.partial_frames(to, [token], new_log_probs=log_probs_of([token]))
        coordinator.send(to.client, frames)
        if token % 100 == 0:
            await trio.lowlevel.checkpoint()


async def unread(
    coordinator: ScriptedCoordinator, stream: CompletionStream, count: int
) -> Received:
    """A submission, so many partial results of which have arrived and wait to be read."""
    submission = await coordinator.submission()
    await send(coordinator, submission, range(count))
    await arrived(stream, count)
    return submission


@pytest.mark.slow
async def test_a_reader_that_sleeps_through_100_000_partials_holds_up_nobody_and_misses_nothing(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    served = 0
    async with client.stream("slow", LONG) as stream, trio.open_nursery() as nursery:
        slow = await coordinator.submission()

        async def answer() -> None:
            while True:
                coordinator.reply(await coordinator.submission(), [7])

        async def ask() -> None:
            nonlocal served
            while True:
                await client.generate("quick", LONG)
                served += 1

        nursery.start_soon(answer)
        nursery.start_soon(ask)
        half = MANY // 2
        await send(coordinator, slow, range(half))
        await arrived(stream, half)
        assert served, "nobody was served while tokens came"

        served = 0
        first = await stream.receive()
        assert served, "nobody was served while they were read"
        assert first.tokens == list(range(half))
        assert first.log_probs == log_probs_of(first.tokens)
        assert stream.tokens == first.tokens

        await send(coordinator, slow, range(half, MANY))
        tokens = list(range(MANY))
        coordinator.reply(slow, tokens, generated_log_probs=log_probs_of(tokens))
        await until(lambda: stream.finished)
        deltas = [first] + [delta async for delta in stream]
        assert [token for delta in deltas for token in delta.tokens] == tokens
        assert [p for delta in deltas for p in delta.log_probs or ()] == log_probs_of(tokens)
        assert (await stream.result()).generated_tokens == stream.tokens == tokens
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("way", ["receive", "result"])
async def test_who_reads_very_much_at_once_lets_other_tasks_run_meanwhile(
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    decoded = longest = 0
    add_partial = Assembler.add_partial

    def count(assembler: Assembler, body: Body) -> None:
        nonlocal decoded, longest
        decoded += 1
        longest = max(longest, decoded)
        add_partial(assembler, body)

    async def somebody_else() -> None:
        nonlocal decoded
        while True:
            decoded = 0
            await trio.lowlevel.checkpoint()

    monkeypatch.setattr(Assembler, "add_partial", count)
    many = 10 * DECODED_AT_ONCE
    async with client.stream("slow", LONG) as stream, trio.open_nursery() as nursery:
        submission = await unread(coordinator, stream, many)
        tokens = list(range(many))
        coordinator.reply(submission, tokens, generated_log_probs=log_probs_of(tokens))
        await until(lambda: stream.finished)
        nursery.start_soon(somebody_else)
        await getattr(stream, way)()
        assert stream.tokens == tokens
        nursery.cancel_scope.cancel()
    assert 0 < longest <= 2 * DECODED_AT_ONCE


@pytest.mark.parametrize("turns", [3, 5, 9])
async def test_a_reader_cancelled_while_it_reads_very_much_loses_nothing(
    coordinator: ScriptedCoordinator, client: InferenceClient, turns: int
) -> None:
    many = 10 * DECODED_AT_ONCE
    async with client.stream("slow", LONG) as stream:
        submission = await unread(coordinator, stream, many)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.receive)
            for _ in range(turns):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert 0 < len(stream._reception._decoding) < many
        assert stream.tokens == []
        await send(coordinator, submission, range(many, many + 3))
        tokens: list[int] = []
        while len(tokens) < many + 3:
            tokens += (await stream.receive()).tokens
    assert tokens == list(range(many + 3))


@pytest.mark.parametrize("way", ["receive", "result"])
async def test_tokens_that_come_while_much_is_read_are_not_waited_for_in_vain(
    coordinator: ScriptedCoordinator, client: InferenceClient, way: str
) -> None:
    """They wake nobody, since somebody is reading."""
    tokens = list(range(20 * DECODED_AT_ONCE))
    async with client.stream("slow", LONG) as stream, trio.open_nursery() as nursery:
        submission = await unread(coordinator, stream, 4 * DECODED_AT_ONCE)

        async def read() -> None:
            if way == "receive":
                received = [token async for delta in stream for token in delta.tokens]
                assert received == tokens
            assert (await stream.result()).generated_tokens == tokens

        nursery.start_soon(read)
        for token in tokens[4 * DECODED_AT_ONCE :]:
            log_probs = log_probs_of([token])
            frames = coordinator.partial_frames(submission, [token], new_log_probs=log_probs)
            stream._reception.partial(frames[1])
            if token % DECODED_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        log_probs = log_probs_of(tokens)
        coordinator.reply(submission, tokens, generated_log_probs=log_probs)


async def test_nonsense_among_very_much_comes_after_what_came_before_it(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    many = 3 * DECODED_AT_ONCE + 1
    async with client.stream("slow", LONG) as stream:
        submission = await unread(coordinator, stream, many)
        coordinator.partial(submission, [many], new_tokens="nonsense")
        await send(coordinator, submission, range(many, many + 2 * DECODED_AT_ONCE))
        await arrived(stream, many + 1 + 2 * DECODED_AT_ONCE)
        received: list[int] = []
        with pytest.raises(RemoteProtocolError):
            async for delta in stream:
                received += delta.tokens
        assert received == stream.tokens == list(range(many))


async def test_reading_twice_as_much_takes_twice_the_work_and_not_four_times(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async def work(count: int, read: Callable[[CompletionStream], Awaitable[Any]]) -> int:
        async with client.stream("slow", LONG) as stream:
            submission = await unread(coordinator, stream, count)
            tokens = list(range(count))
            coordinator.reply(submission, tokens, generated_log_probs=log_probs_of(tokens))
            await until(lambda: stream.finished)
            calls = 0

            def note(*_: object) -> None:
                nonlocal calls
                calls += 1

            sys.setprofile(note)
            try:
                await read(stream)
            finally:
                sys.setprofile(None)
            assert stream.tokens == tokens
            return calls

    async def iterate(stream: CompletionStream) -> None:
        async for _ in stream:
            pass

    for read in (iterate, CompletionStream.result):
        await work(DECODED_AT_ONCE, read)  # what happens once
        once, twice = await work(2_000, read), await work(4_000, read)
        assert 1.5 * once < twice < 2.5 * once


@pytest.mark.slow
async def test_what_nobody_has_read_yet_takes_little_more_memory_than_it_took_on_the_wire(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    count = 20_000
    async with client.stream("slow", LONG) as stream:
        submission = await coordinator.submission()
        frames = coordinator.partial_frames(submission, [1000], new_log_probs=[-0.5])
        on_the_wire = count * len(frames[1])
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for sent in range(count):
                coordinator.send(submission.client, frames)
                if sent % 100 == 0:
                    await trio.lowlevel.checkpoint()
            await arrived(stream, count)
            _, unread_peak = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            delta = await stream.receive()
            _, reading_peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(delta.tokens) == len(delta.log_probs or ()) == count
        assert unread_peak - before < on_the_wire + count * BYTES_BESIDE_THE_BODY
        assert reading_peak - before < 2 * (on_the_wire + count * BYTES_BESIDE_THE_BODY)


@pytest.mark.slow
async def test_a_thousand_readers_may_sleep_at_once(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    readers, tokens = 1_000, list(range(40))
    awake = trio.Event()
    done = 0

    async def read_late() -> None:
        nonlocal done
        async with client.stream("slow", LONG) as stream:
            await awake.wait()
            found = [token async for delta in stream for token in delta.tokens]
            assert found == tokens
            assert (await stream.result()).generated_log_probs == log_probs_of(tokens)
            done += 1

    async with trio.open_nursery() as nursery:
        for _ in range(readers):
            nursery.start_soon(read_late)
        submissions = [await coordinator.submission() for _ in range(readers)]
        for submission in submissions:
            await send(coordinator, submission, range(len(tokens) - 1))
        nursery.start_soon(client.generate, "quick", LONG)
        coordinator.reply(await coordinator.submission(), [7])
        await until(lambda: client.statistics().completed == 1)
        for submission in submissions:
            log_probs = log_probs_of(tokens)
            coordinator.reply(submission, tokens, generated_log_probs=log_probs)
        await until(lambda: not client.statistics().in_flight)
        assert done == 0
        awake.set()
    assert done == readers
    assert client.statistics().completed == readers + 1
