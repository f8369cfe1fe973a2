"""Leaving the client: what runs is aborted, the last replies are waited for, then it closes."""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path

import pytest
import trio
import trio.lowlevel
import trio.testing
import zmq

from tests.peers import ScriptedCoordinator, free_address, scripted_coordinator
from tests.relay import Relay
from tests.waiting import until
from trio_infer import ConnectionLost, InferenceClient, SamplingParams, open_client
from trio_infer.embedded import CoordinatorStatistics, EmbeddedCoordinator, open_coordinator
from trio_infer.protocol.dialect import Kind
from trio_infer.sockets import zmq_socket
from trio_infer.sockets.link import LINGER_MS
from trio_infer.sockets.network import ZmqNetwork
from trio_infer.transport import Transport

LONG = SamplingParams(num_tokens_to_generate=100_000)


async def test_leaving_waits_for_the_final_replies(coordinator: ScriptedCoordinator) -> None:
    coordinator.answers_aborts = False
    left = trio.Event()

    async def use() -> None:
        async with open_client(coordinator.address) as client:
            for _ in range(3):
                async with client.stream("hi", LONG):
                    pass
        left.set()
        assert client.statistics().undelivered == 0

    async with trio.open_nursery() as nursery:
        nursery.start_soon(use)
        for abort in [await coordinator.abort() for _ in range(3)]:
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert not left.is_set()
            coordinator.reply(abort, [])


async def test_leaving_aborts_what_other_tasks_still_run(coordinator: ScriptedCoordinator) -> None:
    ended: list[str] = []

    async def stream(client: InferenceClient) -> None:
        async with client.stream("hi", LONG) as stream:
            with pytest.raises(trio.ClosedResourceError):
                await stream.receive()
            with pytest.raises(trio.ClosedResourceError):
                await stream.result()
        ended.append("stream")

    async def generate(client: InferenceClient) -> None:
        with pytest.raises(trio.ClosedResourceError):
            await client.generate("hi", LONG)
        ended.append("generate")

    async with trio.open_nursery() as nursery:
        async with open_client(coordinator.address) as client:
            nursery.start_soon(stream, client)
            nursery.start_soon(generate, client)
            for _ in range(2):
                await coordinator.submission()
        assert sorted(coordinator.of(Kind.ABORT_REQUEST)) == [0, 1]
    assert sorted(ended) == ["generate", "stream"]
    assert client.statistics().aborted == 2


async def test_a_closed_client_refuses_further_requests(coordinator: ScriptedCoordinator) -> None:
    async with open_client(coordinator.address) as client:
        await client.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await client.generate("hi")
        with pytest.raises(trio.ClosedResourceError):
            async with client.stream("hi"):
                pytest.fail("entered")
        await client.aclose()
    assert coordinator.log == []


async def test_while_the_client_closes_nothing_new_is_sent(
    coordinator: ScriptedCoordinator,
) -> None:
    coordinator.answers_aborts = False
    async with open_client(coordinator.address) as client, trio.open_nursery() as nursery:
        async with client.stream("hi", LONG):
            submission = await coordinator.submission()
        nursery.start_soon(client.aclose)
        await coordinator.abort()
        with pytest.raises(trio.ClosedResourceError):
            await client.generate("too late")
        coordinator.reply(submission, [])
    assert coordinator.of(Kind.SUBMIT_REQUEST) == [0]


async def test_requests_that_wait_for_the_connection_end_when_the_client_closes() -> None:
    async with scripted_coordinator() as coordinator, trio.open_nursery() as nursery:
        async with open_client(coordinator.address) as client:
            with pytest.raises(Exception, match="lost"):
                async with client.stream("in flight") as stream:
                    coordinator.close()
                    await stream.result()

            async def wait() -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await client.generate("waits")

            nursery.start_soon(wait)
            await until(lambda: client.statistics().waiting)


async def test_two_tasks_may_close_at_once(coordinator: ScriptedCoordinator) -> None:
    coordinator.answers_aborts = False
    async with open_client(coordinator.address) as client, trio.open_nursery() as nursery:
        async with client.stream("hi", LONG):
            submission = await coordinator.submission()
        nursery.start_soon(client.aclose)
        nursery.start_soon(client.aclose)
        await coordinator.abort()
        coordinator.reply(submission, [])
    assert client.statistics().undelivered == 0


async def test_cancelled_leaving_still_waits_for_the_final_replies(
    coordinator: ScriptedCoordinator,
) -> None:
    coordinator.answers_aborts = False
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def use() -> None:
                async with open_client(coordinator.address) as client:
                    clients.append(client)
                    await client.generate("hi", LONG)

            clients: list[InferenceClient] = []
            nursery.start_soon(use)
            submission = await coordinator.submission()
            scope.cancel()
            with trio.CancelScope(shield=True):
                assert (await coordinator.abort()).id == submission.id
                await trio.testing.wait_all_tasks_blocked(0.01)
                coordinator.reply(submission, [])
    assert scope.cancelled_caught
    assert clients[0].statistics().undelivered == 0


async def test_cancelled_aclose_closes_and_raises_cancelled(
    coordinator: ScriptedCoordinator,
) -> None:
    async with open_client(coordinator.address) as client:
        with trio.CancelScope() as scope:
            scope.cancel()
            await client.aclose()
        assert scope.cancelled_caught
        with pytest.raises(trio.ClosedResourceError):
            await client.generate("hi")


async def test_leaving_under_a_coordinator_that_owes_replies_is_bounded_and_told(
    coordinator: ScriptedCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator.answers_aborts = False
    with caplog.at_level(logging.WARNING, "trio_infer"):
        async with open_client(coordinator.address, close_timeout=0.05) as client:
            async with client.stream("hi", LONG):
                pass
    assert client.statistics().undelivered == 1
    assert "1 aborted request" in caplog.text


async def test_leaving_under_paused_engines_is_bounded() -> None:
    async with open_coordinator() as coordinator:
        async with open_client(coordinator.address, close_timeout=0.05) as client:
            coordinator.pause()
            async with client.stream("hi", LONG):
                pass
        assert client.statistics().undelivered == 1
        await coordinator.wait_until(lambda: coordinator.statistics().aborts == 1)


async def test_aborts_behind_a_backlog_all_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queued data leaves before the socket closes, even where no reply is waited for."""
    monkeypatch.setattr(zmq_socket, "LINGER_MS", 100 * LINGER_MS)  # the machine may be busy
    async with scripted_coordinator() as coordinator, Relay(coordinator.address) as relay:
        coordinator.answers_aborts = False
        small = {"SNDBUF": 16_384}  # so that most of it is still ZeroMQ's when the client is left
        async with open_client(relay.address, close_timeout=0, socket_options=small) as client:
            relay.frozen = True
            for _ in range(50):
                async with client.stream("x" * 60_000, LONG):
                    pass
            relay.frozen = False
        while len(coordinator.of(Kind.ABORT_REQUEST)) < 50:
            await coordinator.abort()
    assert client.statistics().undelivered == 50


async def test_a_connection_that_breaks_while_leaving_ends_the_wait(
    coordinator: ScriptedCoordinator,
) -> None:
    coordinator.answers_aborts = False
    async with trio.open_nursery() as nursery:

        async def die() -> None:
            await coordinator.abort()
            coordinator.close()

        nursery.start_soon(die)
        async with open_client(coordinator.address, close_timeout=10_000) as client:
            async with client.stream("hi", LONG):
                pass
    assert client.statistics().undelivered == 1


async def test_a_final_reply_that_makes_no_sense_is_waited_for_and_then_no_longer(
    coordinator: ScriptedCoordinator,
) -> None:
    coordinator.answers_aborts = False
    async with trio.open_nursery() as nursery:

        async def answer() -> None:
            abort = await coordinator.abort()
            coordinator.send(abort.client, [*coordinator.reply_frames(abort, []), b"one too many"])

        nursery.start_soon(answer)
        async with open_client(coordinator.address, close_timeout=10_000) as client:
            async with client.stream("hi", LONG):
                pass
    assert client.statistics().undelivered == 0
    assert client.statistics().malformed == 1


async def test_closing_in_the_tick_of_the_connection_sends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = free_address()
    async with (
        trio.open_nursery() as nursery,
        scripted_coordinator(address) as first,
        open_client(address) as client,
    ):
        with pytest.raises(ConnectionLost):
            async with client.stream("in flight") as stream:
                first.close()
                await stream.result()
        came_up = Transport._came_up

        def come_up_and_close(transport: Transport) -> None:
            came_up(transport)
            client._exchange.abort_all()

        monkeypatch.setattr(Transport, "_came_up", come_up_and_close)

        async def wait() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await client.generate("waits")

        nursery.start_soon(wait)
        await until(lambda: client.statistics().waiting)
        async with scripted_coordinator(address) as second:
            await until(lambda: not client.statistics().waiting)
            await client.aclose()
            assert second.log == []


async def test_a_callers_context_is_used_and_left_alone(coordinator: ScriptedCoordinator) -> None:
    with zmq.Context() as context:
        async with (
            open_client(coordinator.address, context=context) as one,
            open_client(coordinator.address, context=context),
        ):
            network = one._lifetime._network
            assert isinstance(network, ZmqNetwork)
            assert network._context is context
        assert not context.closed
        async with open_client(coordinator.address, context=context):
            pass


async def test_the_context_is_ended_outside_trios_thread(
    coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may block for as long as something has still to be sent."""
    threads: list[int] = []
    term = zmq.Context.term

    def note_thread(context: zmq.Context[zmq.Socket[bytes]]) -> None:
        threads.append(threading.get_ident())
        term(context)

    async with open_client(coordinator.address):
        monkeypatch.setattr(zmq.Context, "term", note_thread)
    assert threads
    assert threading.get_ident() not in threads


async def test_leaving_is_bounded_even_if_zeromq_waits_for_a_name_server(
    coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    term = zmq.Context.term

    def term_once_answered(context: zmq.Context[zmq.Socket[bytes]]) -> None:
        answered.wait()
        term(context)

    async with open_client(coordinator.address):
        monkeypatch.setattr(zmq.Context, "term", term_once_answered)
    answered.set()


async def test_leaving_needs_none_of_trios_own_worker_threads(
    coordinator: ScriptedCoordinator,
) -> None:
    limiter = trio.to_thread.current_default_thread_limiter()
    async with open_client(coordinator.address):
        for borrower in range(int(limiter.total_tokens)):
            limiter.acquire_on_behalf_of_nowait(borrower)
    for borrower in range(int(limiter.total_tokens)):
        limiter.release_on_behalf_of(borrower)


async def test_leaving_leaves_no_thread_no_task_and_no_descriptor(
    coordinator: ScriptedCoordinator,
) -> None:
    async def use() -> None:
        async with open_client(coordinator.address) as client, client.stream("hi", LONG):
            pass

    await use()
    threads, descriptors = threading.active_count(), descriptors_open()
    tasks = trio.lowlevel.current_statistics().tasks_living
    for _ in range(10):
        await use()
    assert trio.lowlevel.current_statistics().tasks_living <= tasks
    await until(lambda: threading.active_count() <= threads)
    # The coordinator's end of a connection is in this process too, and goes when it finds time to.
    await until(lambda: descriptors_open() <= descriptors)


def descriptors_open() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_open_client_opens_once(coordinator: ScriptedCoordinator) -> None:
    block = open_client(coordinator.address)
    async with block:
        pass
    with pytest.raises(RuntimeError, match="once"):
        async with block:
            pytest.fail("entered")


# Ctrl-C


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_ctrl_c_in_the_block_aborts_and_comes_out() -> None:
    async def main() -> None:
        async with scripted_coordinator() as coordinator:
            try:
                async with open_client(coordinator.address) as client:
                    clients.append(client)
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(interrupt_when_submitted, coordinator)
                        async with client.stream("hi", LONG) as stream:
                            await stream.receive()
            finally:
                assert coordinator.of(Kind.ABORT_REQUEST) == [0]
                assert coordinator.unroutable == 0

    async def interrupt_when_submitted(coordinator: ScriptedCoordinator) -> None:
        await coordinator.submission()
        interrupt()

    clients: list[InferenceClient] = []
    with pytest.RaisesGroup(KeyboardInterrupt, flatten_subgroups=True):
        trio.run(main)
    assert clients[0].statistics().undelivered == 0


def test_ctrl_c_while_generating_aborts_and_comes_out_bare() -> None:
    """No nursery of the user's: no ExceptionGroup."""

    async def main() -> None:
        async with open_coordinator(step_time=0.001) as coordinator:
            trio.lowlevel.spawn_system_task(interrupt_when_running, coordinator)
            try:
                async with open_client(coordinator.address) as client:
                    await client.generate("hi", LONG)
            finally:
                statistics.append(coordinator.statistics())

    async def interrupt_when_running(coordinator: EmbeddedCoordinator) -> None:
        await coordinator.wait_until(lambda: len(coordinator.running) == 1)
        interrupt()

    statistics: list[CoordinatorStatistics] = []
    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    (served,) = statistics
    assert (served.aborts, served.running, served.unroutable) == (1, 0, 0)


def test_ctrl_c_while_leaving_does_not_cut_it_short() -> None:
    """The coordinator would crash on the replies that are owed."""

    async def main() -> None:
        async with scripted_coordinator() as coordinator:
            coordinator.answers_aborts = False
            try:
                async with open_client(coordinator.address, close_timeout=10_000) as client:
                    clients.append(client)
                    trio.lowlevel.spawn_system_task(interrupt_and_reply, coordinator)
                    async with client.stream("hi", LONG):
                        pass
            finally:
                assert coordinator.of(Kind.ABORT_REQUEST) == [0]
                assert coordinator.unroutable == 0

    async def interrupt_and_reply(coordinator: ScriptedCoordinator) -> None:
        abort = await coordinator.abort()
        await trio.testing.wait_all_tasks_blocked()
        interrupt()
        await trio.testing.wait_all_tasks_blocked()
        coordinator.reply(abort, [])

    clients: list[InferenceClient] = []
    with pytest.RaisesGroup(KeyboardInterrupt, flatten_subgroups=True, allow_unwrapped=True):
        trio.run(main)
    assert clients[0].statistics().undelivered == 0
