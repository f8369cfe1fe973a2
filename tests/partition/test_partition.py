"""A client whose link to the coordinator's host is cut and restored.

Run by ``nox -s partition``, in a network namespace of its own; elsewhere this is not collected.
"""

from __future__ import annotations

import logging
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.partition.hosts import ADDRESS, Coordinator, Cut, FarHost, coordinating, far_host
from tests.waiting import until
from trio_infer import ConnectionLost, InferenceClient, SamplingParams, open_client

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

PATIENT = 30.0
HASTY = 1.0
"""Heartbeat timeouts."""

SOON = 20.0
"""Seconds that a busy machine may take for what takes one. TCP gives up after a quarter hour."""

greedy = partial(SamplingParams, top_k=1, num_tokens_to_generate=12)
ENDLESS = SamplingParams(num_tokens_to_generate=100_000, termination_id=-1)

every_cut = pytest.mark.parametrize("cut", Cut, ids=lambda cut: cut.name.lower())


@attrs.define
class Losing:
    """Streams without an end, which lose their connection.

    Attributes:
        received: the tokens of each, by request id.
        lost: those that its `ConnectionLost` had.
    """

    _client: InferenceClient
    _nursery: trio.Nursery
    received: dict[int, list[int]] = attrs.field(factory=dict)
    lost: dict[int, list[int]] = attrs.field(factory=dict)

    def start(self) -> None:
        self._nursery.start_soon(self._stream)

    async def _stream(self) -> None:
        async with self._client.stream("The value of", ENDLESS) as stream:
            received = self.received[stream.request_id] = []
            with pytest.raises(ConnectionLost) as caught:
                async for delta in stream:
                    received += delta.tokens
        self.lost[stream.request_id] = list(caught.value.tokens)


@asynccontextmanager
async def losing(client: InferenceClient) -> AsyncGenerator[Losing]:
    """Ten streams that run, and have lost their connection soon after the end of the block."""
    async with trio.open_nursery() as nursery:
        streams = Losing(client, nursery)
        for _ in range(10):
            streams.start()
        await until(
            lambda: [len(tokens) > 3 for tokens in streams.received.values()] == 10 * [True]
        )
        yield streams
        nursery.cancel_scope.deadline = trio.current_time() + SOON
    assert len(streams.lost) == client.statistics().lost
    assert streams.lost == streams.received


@every_cut
async def test_a_cut_that_lasts_loses_what_runs_and_what_comes_next_waits(
    host: FarHost, coordinator: Coordinator, cut: Cut
) -> None:
    async with open_client(ADDRESS, heartbeat_timeout=HASTY) as client:
        async with losing(client) as streams:
            host.cut(cut)
            streams.start()  # into the cut, which does not show yet
            await until(lambda: 10 in streams.received)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(client.generate, "The value of", greedy())
            await until(lambda: client.statistics().waiting == 3)
            host.restore(cut)
        statistics = client.statistics()
        assert (statistics.lost, statistics.completed, statistics.connections) == (11, 3, 2)
        report = await coordinator.until(lambda report: report.statistics.running == 0)
    old, new = report.seen
    assert old[:11] == [("CONNECT", None), *(("SUBMIT_REQUEST", number) for number in range(10))]
    assert old[11:] in ([], [("SUBMIT_REQUEST", 10)])  # the kernel may deliver it yet
    assert new == [("CONNECT", None), *(("SUBMIT_REQUEST", number) for number in (11, 12, 13))]


@every_cut
async def test_a_cut_that_does_not_last_loses_nothing(
    host: FarHost, coordinator: Coordinator, cut: Cut
) -> None:
    received: dict[int, list[int]] = {}
    enough = trio.Event()

    async def stream(client: InferenceClient) -> None:
        async with client.stream("The value of", ENDLESS) as stream:
            tokens = received[stream.request_id] = []
            while not enough.is_set():
                tokens += (await stream.receive()).tokens
            completion = await stream.finish_early()
        assert completion.generated_tokens == stream.tokens
        assert completion.generated_tokens[: len(tokens)] == tokens

    def lengths() -> list[int]:
        return [len(tokens) for tokens in received.values()]

    async with open_client(ADDRESS, heartbeat_timeout=PATIENT) as client:
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(stream, client)
            await until(lambda: len(received) == 10 and all(lengths()))
            host.cut(cut)
            nursery.start_soon(client.generate, "The value of", greedy())
            generated = (await coordinator.report()).statistics.tokens
            before = lengths()
            await coordinator.until(lambda report: report.statistics.tokens > generated + 10 * 100)
            assert sum(lengths()) < sum(before) + 10 * 50
            host.restore(cut)
            await until(lambda: min(lengths()) > max(before) + 100)
            enough.set()
        statistics = client.statistics()
    assert (statistics.lost, statistics.connections) == (0, 1)
    assert (statistics.completed, statistics.aborted) == (1, 10)


@every_cut
@pytest.mark.parametrize("backlog", [0, 60_000])
async def test_leaving_behind_a_cut_is_bounded_and_says_what_it_could_not_do(
    host: FarHost,
    coordinator: Coordinator,
    cut: Cut,
    backlog: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    small = {"SNDBUF": 16_384}  # so that the backlog is ZeroMQ's and not the kernel's
    async with open_client(ADDRESS, close_timeout=0.1, socket_options=small) as client:
        async with client.stream("The value of", ENDLESS) as stream:
            await stream.receive()
            host.cut(cut)
        for _ in range(9):
            async with client.stream("The value of" + backlog * " ", ENDLESS):
                pass
        left_at = trio.current_time()
    assert trio.current_time() - left_at < SOON
    statistics = client.statistics()
    assert (statistics.aborted, statistics.lost, statistics.undelivered) == (10, 0, 10)
    assert "still owed the final replies to 10 aborted requests" in caplog.text
    host.restore(cut)
    await coordinator.until(lambda report: report.statistics.running == 0)


@every_cut
async def test_connecting_goes_on_until_there_is_a_link(
    host: FarHost, coordinator: Coordinator, cut: Cut, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "trio_infer")
    host.cut(cut)

    async def restore() -> None:
        await until(lambda: caplog.text.count("ended: ") == 2)
        host.restore(cut)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(restore)
        async with open_client(ADDRESS, heartbeat_timeout=HASTY, connect_timeout=None) as client:
            assert (await client.generate("The value of", greedy())).request_id == 0
    assert client.statistics().connections == 1


async def test_a_cut_in_the_midst_of_a_handshake_delays_it(
    host: FarHost, coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "trio_infer")
    established = f":{5555:04X} 01"
    coordinator.process.send_signal(signal.SIGSTOP)  # its kernel takes connections, it does not

    async def cut() -> None:
        await until(lambda: established in Path("/proc/self/net/tcp").read_text())
        host.cut()
        coordinator.process.send_signal(signal.SIGCONT)
        await until(lambda: "ended: " in caplog.text)
        host.restore()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cut)
        async with open_client(ADDRESS, heartbeat_timeout=HASTY, connect_timeout=None) as client:
            assert (await client.generate("The value of", greedy())).request_id == 0
    assert client.statistics().connections == 1


async def test_a_coordinator_restarted_behind_the_cut_is_reached(
    host: FarHost, coordinator: Coordinator
) -> None:
    async with open_client(ADDRESS, heartbeat_timeout=HASTY) as client:
        async with losing(client):
            host.cut()
            await coordinator.kill()
        async with coordinating(host) as successor:
            host.restore()
            assert (await client.generate("The value of", greedy())).request_id == 10
            report = await successor.report()
    assert report.seen == [[("CONNECT", None), ("SUBMIT_REQUEST", 10)]]


@pytest.mark.parametrize("heartbeat_timeout", [HASTY, PATIENT])
async def test_nothing_meant_for_one_host_reaches_another_at_its_address(
    heartbeat_timeout: float,
) -> None:
    """A patient client hears of it from the other host, to whose kernel it is a stranger."""
    async with AsyncExitStack() as first, AsyncExitStack() as second:
        host = first.enter_context(far_host())
        await first.enter_async_context(coordinating(host))
        async with open_client(ADDRESS, heartbeat_timeout=heartbeat_timeout) as client:
            async with losing(client) as streams:
                host.cut()
                streams.start()
                await until(lambda: 10 in streams.received)
                await first.aclose()
                other = second.enter_context(far_host())
                successor = await second.enter_async_context(coordinating(other))
            assert (await client.generate("The value of", greedy())).request_id == 11
            report = await successor.report()
    assert report.seen == [[("CONNECT", None), ("SUBMIT_REQUEST", 11)]]


async def test_a_coordinator_ends_the_streams_of_a_client_behind_a_cut(host: FarHost) -> None:
    async with coordinating(host, heartbeat_timeout=HASTY) as coordinator:
        async with open_client(ADDRESS, heartbeat_timeout=HASTY) as client:
            async with losing(client):
                host.cut()
                with trio.fail_after(SOON):
                    report = await coordinator.until(lambda r: r.statistics.running == 0)
        assert report.statistics.clients == 0
        assert report.statistics.unroutable > 0
