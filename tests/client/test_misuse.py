"""A client used as it must not be: refused at once, and nothing of it is the worse for that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest
import trio
import trio.testing

from tests.peers import ScriptedCoordinator, scripted_coordinator
from tests.waiting import until
from trio_infer import (
    Completion,
    CompletionStream,
    GenerateRequest,
    InferenceClient,
    LocalProtocolError,
    RequestGroup,
    SamplingParams,
    open_client,
)
from trio_infer.protocol.dialect import Kind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

LONG = SamplingParams(num_tokens_to_generate=100_000)


async def enter(block: Any) -> None:
    async with block:
        pytest.fail("entered")


@attrs.frozen
class Things:
    """What there is to misuse: a client, what runs, and what was not entered."""

    client: InferenceClient
    stream: CompletionStream[Completion]
    unentered: CompletionStream[Completion]
    group: RequestGroup[Completion]
    unentered_group: RequestGroup[Completion]

    def check_all_is_as_it_was(self) -> None:
        statistics = self.client.statistics()
        assert (statistics.submitted, statistics.in_flight) == (1, 1)
        assert (statistics.aborting, statistics.waiting) == (0, 0)
        assert (self.stream.finished, self.stream.tokens) == (False, [])


@pytest.fixture
async def things(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> AsyncIterator[Things]:
    async with client.stream("hi", LONG) as stream, client.open_group() as group:
        yield Things(client, stream, client.stream("another"), group, client.open_group())


# Every public method that does anything, in one task's words. The first are plain functions.

PLAIN: Final[dict[str, Callable[[Things], object]]] = {
    "release_handoff": lambda it: it.client.release_handoff(7),
    "shutdown_coordinator": lambda it: it.client.shutdown_coordinator(),
    "pause": lambda it: it.client.engines.pause(),
    "unpause": lambda it: it.client.engines.unpause(),
    "unpause by force": lambda it: it.client.engines.unpause(force=True),
    "suspend": lambda it: it.client.engines.suspend(),
    "resume": lambda it: it.client.engines.resume(),
    "stop": lambda it: it.client.engines.stop(),
    "set_generation_epoch": lambda it: it.client.engines.set_generation_epoch(1),
    "start_cuda_profiler": lambda it: it.client.engines.start_cuda_profiler(),
    "stop_cuda_profiler": lambda it: it.client.engines.stop_cuda_profiler(),
    "receive_nowait": lambda it: it.stream.receive_nowait(),
    "submit_nowait": lambda it: it.group.submit_nowait(GenerateRequest("no")),
    "receive_nowait of a group": lambda it: it.group._outcomes.receive_nowait(),
}
CLOSING: Final[dict[str, Callable[[Things], object]]] = {
    "close a stream": lambda it: it.stream.close(),
    "close another": lambda it: it.unentered.close(),
    "cancel": lambda it: it.group.cancel(),
    "keep open": lambda it: it.group.keep_open().__enter__(),
    "close a group": lambda it: it.group.close(),
    "close another group": lambda it: it.unentered_group.close(),
}
WAITING: Final[dict[str, Callable[[Things], Coroutine[Any, Any, object]]]] = {
    "generate": lambda it: it.client.generate("no"),
    "generate from tokens": lambda it: it.client.generate([1, 2, 3], LONG),
    "stream": lambda it: enter(it.client.stream("no")),
    "prefill": lambda it: enter(it.client.prefill("no")),
    "paused": lambda it: enter(it.client.engines.paused(confirm=trio.lowlevel.checkpoint)),
    "suspended": lambda it: enter(it.client.engines.suspended(confirm=trio.lowlevel.checkpoint)),
    "receive": lambda it: it.stream.receive(),
    "async for": lambda it: it.stream.__anext__(),
    "result": lambda it: it.stream.result(),
    "finish_early": lambda it: it.stream.finish_early(),
    "enter": lambda it: enter(it.unentered),
    "submit": lambda it: it.group.submit(GenerateRequest("no")),
    "receive of a group": lambda it: it.group.outcomes.receive(),
    "enter a group": lambda it: enter(it.unentered_group),
}
LEAVING: Final[dict[str, Callable[[Things], Coroutine[Any, Any, object]]]] = {
    "aclose of a stream": lambda it: it.stream.aclose(),
    "aclose of outcomes": lambda it: it.group.outcomes.aclose(),
    "aclose": lambda it: it.client.aclose(),
}


def as_async(use: Callable[[Things], object]) -> Callable[[Things], Coroutine[Any, Any, object]]:
    async def call(things: Things) -> None:
        use(things)
        await trio.lowlevel.checkpoint()

    return call


EVERYTHING: Final = {
    **{name: as_async(use) for name, use in {**PLAIN, **CLOSING}.items()},
    **WAITING,
    **LEAVING,
}

everything = pytest.mark.parametrize("use", EVERYTHING.values(), ids=EVERYTHING)


# Another thread


async def in_another_thread(act: Callable[[], object]) -> list[Exception]:
    """What it raises in a thread that knows nothing of this trio run."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - looked at by who called
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    await until(lambda: not thread.is_alive())
    return errors


@everything
async def test_another_threads_trio_run_is_refused_and_the_client_goes_on(
    coordinator: ScriptedCoordinator, things: Things, use: Callable[[Things], Awaitable[object]]
) -> None:
    submission = await coordinator.submission()
    (error,) = await in_another_thread(lambda: trio.run(use, things))
    assert isinstance(error, RuntimeError)
    assert "another thread" in str(error)
    await check_the_client_goes_on(coordinator, things, submission)


@pytest.mark.parametrize("use", {**PLAIN, **CLOSING}.values(), ids=[*PLAIN, *CLOSING])
async def test_a_thread_without_trio_is_refused_and_the_client_goes_on(
    coordinator: ScriptedCoordinator, things: Things, use: Callable[[Things], object]
) -> None:
    submission = await coordinator.submission()
    (error,) = await in_another_thread(lambda: use(things))
    assert isinstance(error, RuntimeError)
    assert "another thread" in str(error)
    await check_the_client_goes_on(coordinator, things, submission)


async def check_the_client_goes_on(
    coordinator: ScriptedCoordinator, things: Things, submission: Any
) -> None:
    things.check_all_is_as_it_was()
    coordinator.partial(submission, [1])
    assert (await things.stream.receive()).tokens == [1]
    async with things.unentered as unentered:
        coordinator.reply(await coordinator.submission(), [2])
        assert (await unentered.result()).generated_tokens == [2]
    assert coordinator.kinds == [Kind.SUBMIT_REQUEST] * 2, "something was sent"


async def test_a_thread_that_closes_does_not_wake_a_parked_reader(
    coordinator: ScriptedCoordinator, things: Things
) -> None:
    """To wake a task of another run is to break both."""
    got: list[list[int]] = []

    async def receive() -> None:
        got.append((await things.stream.receive()).tokens)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        for use in CLOSING.values():
            (error,) = await in_another_thread(partial(use, things))
            assert isinstance(error, RuntimeError)
        coordinator.partial(await coordinator.submission(), [1])
    assert got == [[1]]


async def test_what_is_known_may_be_looked_at_from_another_thread(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    looked: list[object] = []

    def look() -> None:
        statistics = client.statistics()
        looked.extend([statistics.submitted, repr(client), client.dialect.name])
        looked.extend([stream.request_id, stream.finished, stream.tokens, stream.completion])

    async with client.stream("hi", LONG) as stream:
        coordinator.partial(await coordinator.submission(), [1])
        await until(lambda: stream._reception.has_news)
    assert await in_another_thread(look) == []
    assert looked[0] == 1
    assert looked[-4:] == [0, False, [1], None]


async def test_nothing_is_decoded_in_another_thread_while_the_request_runs(
    coordinator: ScriptedCoordinator, things: Things
) -> None:
    coordinator.partial(await coordinator.submission(), [1])
    await until(lambda: things.stream._reception.has_news)
    (error,) = await in_another_thread(lambda: things.stream.completion)
    assert isinstance(error, RuntimeError)
    assert (await things.stream.receive()).tokens == [1]


# A forked process

no_warning_of_threads = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def in_a_forked_process(act: Callable[[], object]) -> str:
    """What it raises there; the process ends before anything else can happen in it."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        try:
            act()
        except Exception as error:  # noqa: BLE001 - told to the parent
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        text = told.read()
    os.waitpid(child, 0)
    return text


@no_warning_of_threads
@everything
async def test_a_forked_process_is_refused_and_its_parent_goes_on(
    coordinator: ScriptedCoordinator, things: Things, use: Callable[[Things], Any]
) -> None:
    submission = await coordinator.submission()
    # Not run, but begun: trio itself shares its descriptors with the parent.
    told = in_a_forked_process(lambda: use(things).send(None))
    assert told.startswith("RuntimeError")
    assert "another process" in told
    await check_the_client_goes_on(coordinator, things, submission)


@no_warning_of_threads
async def test_a_forked_process_takes_nothing_that_came_for_its_parent(
    coordinator: ScriptedCoordinator, things: Things
) -> None:
    """And does not spin: in a forked process ZeroMQ's signals look like interruptions."""
    submission = await coordinator.submission()
    socket = things.client._exchange._transport._current
    assert socket is not None
    told = in_a_forked_process(lambda: socket.socket.drain(lambda _: None))
    assert "another process" in told
    await check_the_client_goes_on(coordinator, things, submission)


FORKING: Final = """
import os, signal, sys, trio
from tests.peers import scripted_coordinator
from trio_infer import open_client

async def main():
    async with scripted_coordinator() as coordinator:
        async with open_client(coordinator.address, close_timeout=0.1):
            child = os.fork()
            if child:
                status = os.waitpid(child, 0)[1]
                os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
            signal.alarm(60)
        sys.exit("the block of the client ended without a word")

trio.run(main)
"""


def test_a_forked_process_that_leaves_the_block_does_not_hang() -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=100,
    )
    assert ended.returncode == 1
    assert "RuntimeError: used in another process" in ended.stderr


# After close


@pytest.mark.parametrize("use", {**PLAIN, **WAITING}.values(), ids=[*PLAIN, *WAITING])
async def test_a_closed_client_refuses_everything_and_sends_nothing(
    coordinator: ScriptedCoordinator, things: Things, use: Callable[[Things], Any]
) -> None:
    await things.client.aclose()
    sent = coordinator.kinds
    with pytest.raises(trio.ClosedResourceError):
        awaitable = use(things)
        if awaitable is not None:
            await awaitable
    assert coordinator.kinds == sent == [Kind.SUBMIT_REQUEST, Kind.ABORT_REQUEST]
    assert things.client.statistics().waiting == 0


@pytest.mark.parametrize("kind", [Kind.UNPAUSE, Kind.SUSPEND, Kind.RESUME, Kind.STOP])
async def test_a_signal_that_would_have_been_valid_is_refused_after_closing(
    coordinator: ScriptedCoordinator, client: InferenceClient, kind: Kind
) -> None:
    client.engines.pause()
    if kind is Kind.RESUME:
        client.engines.suspend()
    await client.aclose()
    with pytest.raises(trio.ClosedResourceError):
        getattr(client.engines, kind.name.lower())()
    assert kind not in coordinator.kinds


async def test_a_closed_client_may_be_closed_and_looked_at(
    coordinator: ScriptedCoordinator, things: Things
) -> None:
    await things.client.aclose()
    for close in (*CLOSING.values(), *LEAVING.values()):
        awaitable: Any = close(things)
        if awaitable is not None:
            await awaitable
    statistics = things.client.statistics()
    assert (statistics.submitted, statistics.aborted, statistics.undelivered) == (1, 1, 0)
    assert coordinator.kinds == [Kind.SUBMIT_REQUEST, Kind.ABORT_REQUEST]


# A stream outside of its block


async def nowait(stream: CompletionStream[Completion]) -> None:
    stream.receive_nowait()
    await trio.lowlevel.checkpoint()


READING: Final[dict[str, Callable[[CompletionStream[Completion]], Awaitable[object]]]] = {
    "receive": lambda stream: stream.receive(),
    "async for": lambda stream: stream.__anext__(),
    "receive_nowait": nowait,
    "result": lambda stream: stream.result(),
    "finish_early": lambda stream: stream.finish_early(),
}

reading = pytest.mark.parametrize("read", READING.values(), ids=READING)


@reading
async def test_a_stream_is_not_read_before_its_block(
    coordinator: ScriptedCoordinator, client: InferenceClient, read: Callable[..., Any]
) -> None:
    stream = client.stream("hi")
    with pytest.raises(LocalProtocolError, match="enter"):
        await read(stream)
    async with stream:  # and may be entered all the same
        coordinator.reply(await coordinator.submission(), [1])
        assert (await stream.result()).generated_tokens == [1]


@reading
@pytest.mark.parametrize("finished", [True, False])
async def test_a_stream_is_not_read_after_its_block(
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    read: Callable[..., Any],
    finished: bool,  # noqa: FBT001 - a table
) -> None:
    async with client.stream("hi", LONG) as stream:
        submission = await coordinator.submission()
        coordinator.partial(submission, [1])
        await stream.receive()
        if finished:
            coordinator.reply(submission, [1, 2])
            await stream.result()
    with pytest.raises(trio.ClosedResourceError):
        await read(stream)
    with pytest.raises(trio.ClosedResourceError):
        await enter(stream)
    assert stream.request_id == 0
    assert stream.finished == finished
    assert stream.tokens == ([1, 2] if finished else [1])
    if not finished:
        await coordinator.abort()
    assert coordinator.of(Kind.ABORT_REQUEST) == ([] if finished else [0])


# A second reader


@reading
@pytest.mark.parametrize("first", ["receive", "result", "finish_early"])
async def test_a_second_reader_is_refused_and_the_first_loses_nothing(
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    first: str,
    read: Callable[..., Any],
) -> None:
    coordinator.answers_aborts = False
    got: list[Any] = []

    async def read_first() -> None:
        got.append(await READING[first](stream))

    async with client.stream("hi", LONG) as stream:
        submission = await coordinator.submission()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_first)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(2):  # the refusal gives the first one's turn to nobody
                with pytest.raises(trio.BusyResourceError):
                    await read(stream)
            if first == "finish_early":
                await coordinator.abort()
            coordinator.partial(submission, [1])
            coordinator.reply(submission, [1, 2])
        if first == "receive":
            assert got[0].tokens in ([1], [1, 2])
        assert (await stream.result()).generated_tokens == [1, 2]
    assert stream.tokens == [1, 2]
    assert coordinator.of(Kind.ABORT_REQUEST) == ([0] if first == "finish_early" else [])


# Twice


async def test_a_block_of_open_client_is_entered_once_even_by_two_tasks_at_once() -> None:
    async with scripted_coordinator() as coordinator:
        block = open_client(coordinator.address)
        entered: list[InferenceClient] = []
        refused: list[RuntimeError] = []
        done = trio.Event()

        async def open_it() -> None:
            try:
                async with block as client:
                    entered.append(client)
                    await done.wait()
            except RuntimeError as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_it)
            nursery.start_soon(open_it)
            await until(lambda: entered and refused)
            async with entered[0].stream("hi") as stream:
                coordinator.reply(await coordinator.submission(), [1])
                assert (await stream.result()).generated_tokens == [1]
            done.set()
        assert len(entered) == len(refused) == len(coordinator.connects) == 1
