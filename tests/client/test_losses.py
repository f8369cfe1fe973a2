"""Every way in which a coordinator can go, and the client that survives it.

Over real sockets; what is killed or frozen is a process of its own.
"""

from __future__ import annotations

import gc
import signal
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
import trio.lowlevel
import trio.testing

from tests.books import check_books
from tests.echoing import HELD, echoing, echoing_process
from tests.peers import ScriptedCoordinator, free_address, scripted_coordinator
from tests.programs import started
from tests.relay import Relay
from tests.strangers import hang_up, listener, nobody, one_that_never_acks, stay_silent
from tests.waiting import disconnected, until
from trio_infer import ConnectionLost, InferenceClient, SamplingParams, open_client
from trio_infer import transport as transport_module
from trio_infer.embedded import open_coordinator
from trio_infer.protocol.dialect import Kind
from trio_infer.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from tests.programs import Program

pytestmark = pytest.mark.slow

LONG = SamplingParams(num_tokens_to_generate=100_000, termination_id=-1)

SOON = 15
"""Seconds: half of what a heartbeat would take to show it."""


class Requests:
    """Requests of one client, many at once.

    Attributes:
        started: how many have shown that the coordinator has them.
        lost: how many went down with their connection.
        answers: of the others.
    """

    def __init__(self, client: InferenceClient, nursery: trio.Nursery) -> None:
        self.started = 0
        self.lost = 0
        self.answers: list[str] = []
        self._client = client
        self._nursery = nursery

    async def hold(self, count: int) -> None:
        """So many streams, and as many others, which the coordinator has and never answers."""
        self.stream_held(count)
        self.generate_held(count)
        await until(
            lambda: self.started == count and self._client.statistics().in_flight == 2 * count
        )

    async def queue(self, prompts: list[str]) -> None:
        """Such as find no connection, and wait for one."""
        self.generate(*prompts)
        await until(lambda: self._client.statistics().waiting == len(prompts))

    def stream_held(self, count: int) -> None:
        for number in range(count):
            self._nursery.start_soon(self._stream_held, f"{HELD} {number}")

    def generate_held(self, count: int) -> None:
        self.generate_lost(HELD, count)

    def generate_lost(self, prompt: str, count: int) -> None:
        for number in range(count):
            self._nursery.start_soon(self._generate_lost, f"{prompt} {number}")

    def generate(self, *prompts: str) -> None:
        for prompt in prompts:
            self._nursery.start_soon(self._generate, prompt)

    async def _stream_held(self, prompt: str) -> None:
        with pytest.raises(ConnectionLost) as caught:
            async with self._client.stream(prompt, LONG) as stream:
                await stream.receive()
                self.started += 1
                await stream.result()
        assert bytes(caught.value.tokens).decode() == prompt
        self.lost += 1

    async def _generate_lost(self, prompt: str) -> None:
        with pytest.raises(ConnectionLost) as caught:
            await self._client.generate(prompt, LONG)
        assert caught.value.tokens == ()
        self.lost += 1

    async def _generate(self, prompt: str) -> None:
        completion = await self._client.generate(prompt)
        assert completion.generated_text == prompt
        self.answers.append(prompt)


NEW = [f"new {number}" for number in range(20)]


# Killed, restarted, replaced


async def test_a_kill_loses_hundreds_of_requests_and_none_of_them_comes_to_the_successor() -> None:
    address = free_address()
    async with echoing_process(address) as program, open_client(address) as client:
        assert (await client.generate("hi")).generated_text == "hi"
        async with client.stream(HELD, LONG):
            pass
        async with trio.open_nursery() as nursery:
            old = Requests(client, nursery)
            await old.hold(150)
            program.send(signal.SIGKILL)
            with trio.fail_after(SOON):
                await until(lambda: old.lost == 300)
        async with trio.open_nursery() as nursery:
            new = Requests(client, nursery)
            await new.queue(NEW)
            async with scripted_coordinator(address) as successor, echoing(successor):
                await until(lambda: len(new.answers) == len(NEW))
        check_books(client, completed=1 + len(NEW), aborted=1, lost=300, connections=2)
        assert sorted(str(received.message.prompt) for received in successor.log) == sorted(NEW)


@pytest.mark.parametrize(
    "stranger",
    [nobody, partial(listener, hang_up), partial(listener, stay_silent), one_that_never_acks],
    ids=["nobody", "hangs up", "silent", "never acks"],
)
async def test_requests_made_while_somebody_else_has_the_address_wait_and_then_work(
    stranger: Callable[[str], AbstractAsyncContextManager[ScriptedCoordinator | None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    address = free_address()
    async with (
        scripted_coordinator(address) as first,
        open_client(address, heartbeat_timeout=0.5) as client,
        trio.open_nursery() as nursery,
    ):
        requests = Requests(client, nursery)
        async with echoing(first):
            requests.stream_held(5)
            await until(lambda: requests.started == 5)
            first.close()
            async with stranger(address) as other:
                await until(lambda: requests.lost == 5)
                await requests.queue(NEW)
                await until(lambda: "no connection to" in caplog.text)
        if other is not None:
            assert other.connects
            assert other.log == []
        async with scripted_coordinator(address) as second, echoing(second):
            await until(lambda: len(requests.answers) == len(NEW))
        assert set(second.kinds) == {Kind.SUBMIT_REQUEST}
        assert len(second.log) == len(NEW)
    check_books(client, completed=len(NEW), lost=5, connections=2)


async def test_a_lost_ack_delays_the_client_and_no_more() -> None:
    """The CONNECT, or its answer, is lost. To a second one on the same socket nobody would answer:
    the coordinator knows that client already."""
    async with scripted_coordinator() as coordinator, trio.open_nursery() as nursery:
        coordinator.acks = False

        async def use() -> None:
            async with open_client(
                coordinator.address, connect_timeout=None, heartbeat_timeout=0.5
            ) as client:
                assert (await client.generate("hi")).generated_text == "hi"
            check_books(client, completed=1, connections=1)

        nursery.start_soon(use)
        await until(lambda: coordinator.connects)
        coordinator.acks = True
        submission = await coordinator.submission()
        coordinator.reply(submission, list(b"hi"))
    assert coordinator.connects[-1] == submission.client
    assert len(set(coordinator.connects)) == len(coordinator.connects) >= 2


async def test_a_coordinator_that_ends_for_want_of_an_engine_is_a_loss_like_any_other() -> None:
    address = free_address()
    arguments = ("coordinator", "--bind", address, "--step-time", "0.01")
    async with started(*arguments) as program:
        await program.stdout.until(address)
        async with open_client(address) as client, trio.open_nursery() as nursery:
            requests = Requests(client, nursery)
            requests.generate_held(10)
            await program.stderr.until("10 running")
            client.engines.pause()
            client.engines.unpause()  # too early: the engine dies of it
            await program.stderr.until("died")
            requests.generate_held(1)  # finds no engine, and ends the coordinator
            with trio.fail_after(SOON):
                await until(lambda: requests.lost == 11)
            assert await program.ended() == 0
            async with started(*arguments):
                await client.generate("hi", SamplingParams(num_tokens_to_generate=3))
    check_books(client, completed=1, lost=11, connections=2)


async def test_clients_get_their_own_replies_where_a_restarted_coordinator_swaps_their_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = free_address()
    connect_once = Transport._connect_once

    async def connect_after_the_other(transport: Transport) -> float | None:
        if transport is one._exchange._transport:
            await until(lambda: other.statistics().connections == 2)
        return await connect_once(transport)

    async with echoing_process(address) as first, open_client(address) as one:
        async with open_client(address) as other:
            monkeypatch.setattr(Transport, "_connect_once", connect_after_the_other)
            both = {"one": one, "other": other}
            async with trio.open_nursery() as nursery:
                old = [Requests(client, nursery) for client in both.values()]
                for requests, name in zip(old, both, strict=True):
                    requests.generate(name)
                    requests.stream_held(10)
                await until(lambda: all(requests.started == 10 for requests in old))
                await until(lambda: all(requests.answers for requests in old))
                before = [await called(name, first) for name in both]
                first.send(signal.SIGKILL)
            async with echoing_process(address) as second, trio.open_nursery() as nursery:
                for name, client in both.items():
                    Requests(client, nursery).generate(*[name] * 10)
                after = [await called(name, second) for name in both]
                assert after == before[::-1]
            for client in both.values():
                check_books(client, completed=11, lost=10, discarded=0, malformed=0)


async def called(name: str, coordinator: Program) -> str:
    """What a coordinator calls the client whose prompts say such a name."""
    lines = (await coordinator.stdout.until(f" {name}\n")).splitlines()
    return next(line for line in lines if line.endswith(f" {name}")).removesuffix(f" {name}")


# Frozen, unplugged


async def test_a_frozen_coordinator_that_thaws_answers_each_request_of_the_new_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It answers the old ones as well, to a name that is nobody's any more."""
    address = free_address()
    async with (
        echoing_process(address) as program,
        open_client(address, heartbeat_timeout=1) as client,
        trio.open_nursery() as nursery,
    ):
        requests = Requests(client, nursery)
        await requests.hold(20)
        program.send(signal.SIGSTOP)
        requests.generate_lost("late", 20)
        await until(lambda: client.statistics().submitted == 60)
        await until(lambda: requests.lost == 60)
        await requests.queue(NEW)
        await until(lambda: "stays silent" in caplog.text)
        program.send(signal.SIGCONT)
        await until(lambda: len(requests.answers) == len(NEW))
        text = await program.stdout.until(NEW[-1])
        assert text.count(" late") == 20
        check_books(client, completed=len(NEW), lost=60, discarded=0, malformed=0)


async def test_a_coordinator_that_freezes_under_a_large_request_is_lost_as_well() -> None:
    """No ping of ZeroMQ's gets past a frame that is stuck."""
    address = free_address()
    async with (
        echoing_process(address) as program,
        open_client(address, heartbeat_timeout=1, close_timeout=0) as client,
    ):
        program.send(signal.SIGSTOP)
        with pytest.raises(ConnectionLost):
            await client.generate("x" * 2**26)
        program.send(signal.SIGCONT)
        assert (await client.generate("new")).generated_text == "new"


async def test_an_unplugged_coordinator_is_lost_and_found_again() -> None:
    async with (
        scripted_coordinator() as coordinator,
        echoing(coordinator),
        Relay(coordinator.address) as relay,
        open_client(relay.address, heartbeat_timeout=0.5) as client,
        trio.open_nursery() as nursery,
    ):
        requests = Requests(client, nursery)
        await requests.hold(20)
        relay.frozen = True
        requests.generate_lost("late", 20)
        await until(lambda: requests.lost == 60)
        await requests.queue(NEW)
        relay.frozen = False
        await until(lambda: len(requests.answers) == len(NEW))
        check_books(client, completed=len(NEW), lost=60, discarded=0, malformed=0)


# Away for long

AWAY = pytest.mark.parametrize(
    "stranger", [nobody, partial(listener, hang_up)], ids=["nobody", "hangs up"]
)


@AWAY
async def test_a_client_whose_coordinator_is_away_sleeps_between_its_attempts(
    stranger: Callable[[str], AbstractAsyncContextManager[ScriptedCoordinator | None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its many requests, which wait, sleep as well."""
    monkeypatch.setattr(transport_module, "BACKOFF_SECONDS", (0.1, 0.1))
    address = free_address()
    async with (
        scripted_coordinator(address) as coordinator,
        open_client(address) as client,
        trio.open_nursery() as nursery,
    ):
        coordinator.close()
        await disconnected(client)
        for _ in range(200):
            nursery.start_soon(client.generate, "waits")
        await until(lambda: client.statistics().waiting == 200)
        async with stranger(address):
            attempts = Attempts(monkeypatch)
            steps = Steps()
            trio.lowlevel.add_instrument(steps)
            counts = []
            for _ in range(10):
                await attempts.wait(1)
                counts.append(steps.take())
            trio.lowlevel.remove_instrument(steps)
        nursery.cancel_scope.cancel()
    assert max(counts[1:]) < 40


async def test_a_coordinator_that_breaks_each_connection_is_not_overrun(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def die_of_each_client() -> None:
        while True:
            async with open_coordinator(bind="memory://flaps") as coordinator:
                await coordinator.wait_until(lambda: coordinator.statistics().clients > 0)
                coordinator.die()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(die_of_each_client)
        async with open_client("memory://flaps", connect_timeout=None) as client:
            await trio.sleep(100)
            assert 50 < client.statistics().connections < 120
        nursery.cancel_scope.cancel()


@AWAY
async def test_a_client_whose_coordinator_is_away_does_not_grow(
    stranger: Callable[[str], AbstractAsyncContextManager[ScriptedCoordinator | None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport_module, "BACKOFF_SECONDS", (0.001, 0.001))
    address = free_address()
    async with scripted_coordinator(address) as coordinator, open_client(address):
        attempts = Attempts(monkeypatch)
        coordinator.close()
        async with stranger(address):
            await attempts.wait(10)
            descriptors, objects = count_descriptors(), count_objects()
            await attempts.wait(40)
            assert count_objects() == objects
            await until(lambda: count_descriptors() <= descriptors)  # ZeroMQ closes later


def count_descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def count_objects() -> Counter[str]:
    """Those of this package and of zmq."""
    gc.collect()
    names = (f"{type(thing).__module__}.{type(thing).__name__}" for thing in gc.get_objects())
    return Counter(name for name in names if name.startswith(("trio_infer.", "zmq.")))


class Attempts:
    """Holds each attempt to connect until it is waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._wanted, self._made = trio.Semaphore(0), trio.Semaphore(0)
        connect_once = Transport._connect_once

        async def connect_when_wanted(transport: Transport) -> float | None:
            await self._wanted.acquire()
            try:
                return await connect_once(transport)
            finally:
                self._made.release()

        monkeypatch.setattr(Transport, "_connect_once", connect_when_wanted)

    async def wait(self, count: int) -> None:
        """Returns when so many more have been made, and none is under way."""
        for _ in range(count):
            self._wanted.release()
            await self._made.acquire()


class Steps(trio.abc.Instrument):
    """Counts what tasks do."""

    def __init__(self) -> None:
        self._count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._count += 1

    def take(self) -> int:
        """How many steps tasks took since the last time."""
        count, self._count = self._count, 0
        return count
