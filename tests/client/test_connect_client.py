"""The second door: a client whose tasks run in a nursery of the caller's."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from tests.peers import ScriptedCoordinator, free_address
from tests.waiting import until
from trio_infer import (
    ConnectTimeout,
    InferenceClient,
    SamplingParams,
    UnsupportedByDialect,
    connect_client,
    open_client,
)
from trio_infer.embedded import open_coordinator
from trio_infer.protocol.dialect import Kind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Fault(Exception):
    """Something went wrong in the nursery."""


async def test_a_client_is_connected_and_works_until_it_is_closed() -> None:
    async with open_coordinator() as coordinator, trio.open_nursery() as nursery:
        client = await connect_client(nursery, coordinator.address)
        completion = await client.generate("hi", SamplingParams(num_tokens_to_generate=3))
        assert len(completion.generated_tokens) == 3
        assert nursery.child_tasks
        await client.aclose()
        await until(lambda: not nursery.child_tasks)
        with pytest.raises(trio.ClosedResourceError):
            await client.generate("hi")


async def test_a_nursery_does_not_end_before_its_client_is_closed(
    coordinator: ScriptedCoordinator,
) -> None:
    clients: list[InferenceClient] = []
    ended = trio.Event()

    async def own() -> None:
        async with trio.open_nursery() as nursery:
            clients.append(await connect_client(nursery, coordinator.address))
        ended.set()

    async with trio.open_nursery() as outer:
        outer.start_soon(own)
        await until(lambda: bool(clients))
        await trio.testing.wait_all_tasks_blocked()
        assert not ended.is_set()
        await clients[0].aclose()
        await ended.wait()


async def test_the_end_of_its_block_closes_it(coordinator: ScriptedCoordinator) -> None:
    async with trio.open_nursery() as nursery:
        async with await connect_client(nursery, coordinator.address) as client:
            stream = client.stream("hi")
            await stream.__aenter__()
            await coordinator.submission()
        await coordinator.abort()
        assert client.statistics().undelivered == 0


async def leave_by_cancelling(nursery: trio.Nursery) -> None:
    nursery.cancel_scope.cancel()
    await trio.lowlevel.checkpoint()


async def leave_by_failing(nursery: trio.Nursery) -> None:
    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise Fault

    nursery.start_soon(fail)
    await trio.sleep_forever()


@pytest.mark.parametrize("leave", [leave_by_cancelling, leave_by_failing])
async def test_the_nurserys_cancellation_leaves_as_a_block_does(
    coordinator: ScriptedCoordinator, leave: Callable[[trio.Nursery], Awaitable[None]]
) -> None:
    coordinator.answers_aborts = False
    clients: list[InferenceClient] = []

    async def own() -> None:
        with pytest.RaisesGroup(Fault) if leave is leave_by_failing else trio.CancelScope():
            async with trio.open_nursery() as nursery:
                client = await connect_client(nursery, coordinator.address, close_timeout=60)
                clients.append(client)
                nursery.start_soon(client.generate, "hi")
                await coordinator.submission()
                await leave(nursery)

    async with trio.open_nursery() as outer:
        outer.start_soon(own)
        abort = await coordinator.abort()
        await trio.testing.wait_all_tasks_blocked()
        assert outer.child_tasks, "it left before the final reply came"
        coordinator.reply(abort, [1])
    assert clients[0].statistics().undelivered == 0
    assert clients[0].statistics().aborted == 1


async def test_leaving_by_cancellation_is_bounded(coordinator: ScriptedCoordinator) -> None:
    coordinator.answers_aborts = False
    async with trio.open_nursery() as nursery:
        client = await connect_client(nursery, coordinator.address, close_timeout=0.05)
        nursery.start_soon(client.generate, "hi")
        await coordinator.submission()
        nursery.cancel_scope.cancel()
    assert client.statistics().undelivered == 1


async def test_closing_after_the_nursery_was_cancelled_waits_for_the_same_leaving(
    coordinator: ScriptedCoordinator,
) -> None:
    coordinator.answers_aborts = False
    closed = trio.Event()

    async def close(client: InferenceClient) -> None:
        await client.aclose()
        closed.set()

    async with trio.open_nursery() as outer:
        async with trio.open_nursery() as nursery:
            client = await connect_client(nursery, coordinator.address, close_timeout=60)
            nursery.start_soon(client.generate, "hi")
            await coordinator.submission()
            nursery.cancel_scope.cancel()
            outer.start_soon(close, client)
            with trio.CancelScope(shield=True):
                abort = await coordinator.abort()
                await trio.testing.wait_all_tasks_blocked()
                assert not closed.is_set()
                coordinator.reply(abort, [1])
        await closed.wait()


async def test_two_tasks_may_close_at_once_and_a_third_later(
    coordinator: ScriptedCoordinator,
) -> None:
    async with trio.open_nursery() as nursery:
        client = await connect_client(nursery, coordinator.address)
        async with trio.open_nursery() as closing:
            closing.start_soon(client.aclose)
            closing.start_soon(client.aclose)
        await client.aclose()


async def test_two_clients_may_share_a_nursery_and_close_in_any_order() -> None:
    async with open_coordinator() as coordinator, trio.open_nursery() as nursery:
        first = await connect_client(nursery, coordinator.address)
        second = await connect_client(nursery, coordinator.address)
        await first.aclose()
        completion = await second.generate("hi", SamplingParams(num_tokens_to_generate=1))
        assert completion.status == "COMPLETED"
        await second.aclose()


async def test_a_block_of_paused_engines_is_undone_when_the_nursery_is_cancelled(
    coordinator: ScriptedCoordinator,
) -> None:
    async def pause(client: InferenceClient) -> None:
        async with client.engines.paused(confirm=trio.lowlevel.checkpoint):
            paused.set()
            await trio.sleep_forever()

    paused = trio.Event()
    async with trio.open_nursery() as nursery:
        client = await connect_client(nursery, coordinator.address, close_timeout=60)
        nursery.start_soon(pause, client)
        await paused.wait()
        nursery.cancel_scope.cancel()
    await coordinator.next(Kind.UNPAUSE)
    assert coordinator.kinds == [Kind.PAUSE, Kind.UNPAUSE]


async def test_a_handoff_is_released_when_the_nursery_is_cancelled() -> None:
    async with open_coordinator() as coordinator:

        async def hold(client: InferenceClient) -> None:
            async with client.prefill([1, 2, 3]):
                held.set()
                await trio.sleep_forever()

        held = trio.Event()
        async with trio.open_nursery() as nursery:
            client = await connect_client(nursery, coordinator.address)
            nursery.start_soon(hold, client)
            await held.wait()
            nursery.cancel_scope.cancel()
        await coordinator.wait_until(lambda: not coordinator.pinned)


# Connecting


async def test_nobody_there_is_told_and_leaves_nothing_in_the_nursery() -> None:
    async with trio.open_nursery() as nursery:
        with pytest.raises(ConnectTimeout):
            await connect_client(nursery, free_address(), connect_timeout=0.05)
        await until(lambda: not nursery.child_tasks)


async def test_cancelled_while_connecting_it_leaves_nothing_in_the_nursery() -> None:
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0.05) as scope:
            await connect_client(nursery, free_address(), connect_timeout=None)
        assert scope.cancelled_caught
        await until(lambda: not nursery.child_tasks)


@pytest.mark.parametrize("end", ["timeout", "cancellation"])
async def test_when_connecting_has_failed_all_is_closed_already(end: str) -> None:
    seconds = 0.02 if end == "timeout" else None
    async with trio.open_nursery() as nursery:
        with (
            trio.move_on_after(0.02 if end == "cancellation" else 60),
            contextlib.suppress(ConnectTimeout),
        ):
            await connect_client(nursery, free_address(), connect_timeout=seconds)
        assert not nursery.child_tasks


async def test_in_a_cancelled_scope_not_even_a_task_is_started(
    coordinator: ScriptedCoordinator,
) -> None:
    spawned = _Spawned()
    async with trio.open_nursery() as nursery:
        trio.lowlevel.add_instrument(spawned)
        with trio.CancelScope() as scope:
            scope.cancel()
            await connect_client(nursery, coordinator.address)
        with trio.CancelScope() as scope:
            scope.cancel()
            async with open_client(coordinator.address):
                pytest.fail("entered")
        trio.lowlevel.remove_instrument(spawned)
    assert spawned.tasks == []


class _Spawned(trio.abc.Instrument):
    """Notes which tasks begin."""

    def __init__(self) -> None:
        self.tasks: list[str] = []

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.tasks.append(task.name)


async def test_in_a_cancelled_scope_nothing_is_started(coordinator: ScriptedCoordinator) -> None:
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            scope.cancel()
            await connect_client(nursery, coordinator.address)
        assert not nursery.child_tasks
    assert coordinator.connects == []


async def test_a_nursery_cancelled_meanwhile_ends_the_connecting() -> None:
    async with trio.open_nursery() as outer:
        async with trio.open_nursery() as nursery:
            connecting = trio.Event()

            async def connect() -> None:
                connecting.set()
                with pytest.raises(trio.ClosedResourceError):
                    await connect_client(nursery, free_address(), connect_timeout=None)
                done.set()

            done = trio.Event()
            outer.start_soon(connect)
            await connecting.wait()
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await done.wait()


async def test_a_nursery_that_has_ended_is_refused(coordinator: ScriptedCoordinator) -> None:
    async with trio.open_nursery() as nursery:
        pass
    with pytest.raises(RuntimeError, match="Nursery is closed"):
        await connect_client(nursery, coordinator.address)
    assert coordinator.connects == []


@pytest.mark.parametrize("nursery", [None, "nursery", trio.open_nursery])
async def test_what_is_no_nursery_is_refused(nursery: Any) -> None:
    with pytest.raises(TypeError, match="nursery must be a trio"):
        await connect_client(nursery, "tcp://h:1")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"connect_timeout": "1"}, TypeError),
        ({"close_timeout": -1}, ValueError),
        ({"deserialize": 1}, TypeError),
        ({"dialect": "0.18", "block_size_tokens": 4}, UnsupportedByDialect),
        ({"unheard_of": 1}, TypeError),
    ],
    ids=str,
)
async def test_a_wrong_option_is_refused_before_anything_is_started(
    options: dict[str, Any], error: type[Exception]
) -> None:
    async with trio.open_nursery() as nursery:
        with pytest.raises(error):
            await connect_client(nursery, "tcp://h:1", **options)
        assert not nursery.child_tasks


async def test_options_are_those_of_open_client() -> None:
    async with open_coordinator(dialect="0.19") as coordinator, trio.open_nursery() as nursery:
        async with await connect_client(
            nursery, coordinator.address, dialect="0.19", deserialize=False
        ) as client:
            fields = await client.generate("hi", SamplingParams(num_tokens_to_generate=1))
            assert fields["status"] == "COMPLETED"
            assert client.dialect.name == "0.19"
