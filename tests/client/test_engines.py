"""Control over the engines: what is sent, what is refused, and what blocks undo."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio
import trio.testing

from tests.peers import ScriptedCoordinator, scripted_coordinator
from tests.waiting import disconnected, until
from trio_infer import (
    ConnectionLost,
    EngineControl,
    InferenceClient,
    LocalProtocolError,
    SamplingParams,
    UnsupportedByDialect,
    open_client,
)
from trio_infer.embedded import EmbeddedCoordinator, open_coordinator
from trio_infer.protocol.dialect import Kind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

CALLS: dict[Kind, Callable[..., None]] = {
    Kind.PAUSE: EngineControl.pause,
    Kind.UNPAUSE: EngineControl.unpause,
    Kind.SUSPEND: EngineControl.suspend,
    Kind.RESUME: EngineControl.resume,
    Kind.STOP: EngineControl.stop,
    Kind.SET_GENERATION_EPOCH: partial(EngineControl.set_generation_epoch, epoch=7),
    Kind.START_CUDA_PROFILER: EngineControl.start_cuda_profiler,
    Kind.STOP_CUDA_PROFILER: EngineControl.stop_cuda_profiler,
}
ANY_TIME = [
    Kind.PAUSE,
    Kind.SET_GENERATION_EPOCH,
    Kind.START_CUDA_PROFILER,
    Kind.STOP_CUDA_PROFILER,
]

VALID = {
    "running": ([], ANY_TIME),
    "paused": ([Kind.PAUSE], [*ANY_TIME, Kind.UNPAUSE, Kind.SUSPEND, Kind.STOP]),
    "suspended": ([Kind.PAUSE, Kind.SUSPEND], [*ANY_TIME, Kind.RESUME, Kind.STOP]),
    "unpaused": ([Kind.PAUSE, Kind.UNPAUSE], ANY_TIME),
    "resumed": (
        [Kind.PAUSE, Kind.SUSPEND, Kind.RESUME],
        [*ANY_TIME, Kind.UNPAUSE, Kind.SUSPEND, Kind.STOP],
    ),
    "stopped": ([Kind.PAUSE, Kind.STOP], ANY_TIME),
    "paused when suspended": (
        [Kind.PAUSE, Kind.SUSPEND, Kind.PAUSE],
        [*ANY_TIME, Kind.RESUME, Kind.STOP],
    ),
}


async def sent(coordinator: ScriptedCoordinator, client: InferenceClient) -> list[Kind]:
    """What has come so far, certainly: a last message is waited for."""
    CALLS[Kind.START_CUDA_PROFILER](client.engines)
    await coordinator.next(Kind.START_CUDA_PROFILER)
    return coordinator.kinds[:-1]


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("state", VALID)
async def test_a_signal_is_sent_where_it_can_be_valid_and_nowhere_else(
    coordinator: ScriptedCoordinator, client: InferenceClient, state: str, kind: Kind
) -> None:
    before, valid = VALID[state]
    for each in before:
        CALLS[each](client.engines)
    if kind in valid:
        CALLS[kind](client.engines)
        await coordinator.next(kind)
        assert (await sent(coordinator, client))[: len(before) + 1] == [*before, kind]
    else:
        with pytest.raises(LocalProtocolError, match=f"^{kind.name} is for engines that are "):
            CALLS[kind](client.engines)
        assert await sent(coordinator, client) == before


@pytest.mark.parametrize("kind", [Kind.UNPAUSE, Kind.SUSPEND, Kind.RESUME, Kind.STOP])
async def test_engines_that_another_client_paused_can_be_told_by_force(
    coordinator: ScriptedCoordinator, client: InferenceClient, kind: Kind
) -> None:
    CALLS[kind](client.engines, force=True)
    await coordinator.next(kind)


async def test_force_is_yes_or_no_and_nothing_that_looks_like_it(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    no: Any = "no"
    with pytest.raises(TypeError, match="force must be"):
        client.engines.stop(force=no)
    assert await sent(coordinator, client) == []


async def test_what_was_forced_counts_for_what_may_follow(client: InferenceClient) -> None:
    client.engines.suspend(force=True)
    assert "suspended" in repr(client.engines)
    client.engines.resume()
    client.engines.unpause()
    with pytest.raises(LocalProtocolError, match="as far as this client knows they are running"):
        client.engines.unpause()


async def test_an_epoch_arrives_as_the_number_it_is(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    client.engines.set_generation_epoch(12)
    assert (await coordinator.next(Kind.SET_GENERATION_EPOCH)).message.epoch == 12


@pytest.mark.parametrize("epoch", [None, "7", 7.0, True])
async def test_an_epoch_that_is_none_is_refused(client: InferenceClient, epoch: Any) -> None:
    with pytest.raises(TypeError, match="epoch must be an int"):
        client.engines.set_generation_epoch(epoch)
    if epoch is not None:
        with pytest.raises(TypeError, match="epoch must be an int"):
            client.engines.paused(confirm=nothing, epoch=epoch)


async def test_what_the_dialect_lacks_is_refused() -> None:
    async with scripted_coordinator(dialect="0.18") as coordinator:
        async with open_client(coordinator.address, dialect="0.18") as client:
            with pytest.raises(UnsupportedByDialect, match="has no START_CUDA_PROFILER"):
                client.engines.start_cuda_profiler()
            client.engines.pause()
            await coordinator.next(Kind.PAUSE)
        assert coordinator.kinds == [Kind.PAUSE]


@pytest.mark.parametrize("kind", [*ANY_TIME, Kind.SHUTDOWN])
async def test_without_a_connection_a_signal_raises(
    coordinator: ScriptedCoordinator, client: InferenceClient, kind: Kind
) -> None:
    coordinator.close()
    await disconnected(client)
    call = partial(CALLS[kind], client.engines) if kind in CALLS else client.shutdown_coordinator
    with pytest.raises(ConnectionLost, match="no connection to tcp:"):
        call()
    assert "running" in repr(client.engines)


@pytest.mark.parametrize("kind", [*ANY_TIME, Kind.SHUTDOWN])
async def test_a_closed_client_signals_nothing(
    coordinator: ScriptedCoordinator, client: InferenceClient, kind: Kind
) -> None:
    await client.aclose()
    call = partial(CALLS[kind], client.engines) if kind in CALLS else client.shutdown_coordinator
    with pytest.raises(trio.ClosedResourceError):
        call()
    assert coordinator.kinds == []


async def test_a_shutdown_is_sent(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    client.shutdown_coordinator()
    await coordinator.next(Kind.SHUTDOWN)


# Blocks


class Fault(Exception):
    """Something went wrong in a block."""


def fail() -> None:
    raise Fault


async def nothing() -> None:
    await trio.lowlevel.checkpoint()


class Confirmation:
    """Something to confirm with, which the test lets go on."""

    def __init__(self) -> None:
        self.asked = 0
        self.done = trio.Event()

    async def __call__(self) -> None:
        self.asked += 1
        await self.done.wait()


async def test_engines_are_paused_for_the_length_of_the_block(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    confirmation = Confirmation()
    entered = trio.Event()
    leave = trio.Event()

    async def pause() -> None:
        async with client.engines.paused(confirm=confirmation, epoch=7):
            entered.set()
            await leave.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pause)
        await coordinator.next(Kind.PAUSE)
        await trio.testing.wait_all_tasks_blocked()
        assert not entered.is_set()
        confirmation.done.set()
        await entered.wait()
        assert await sent(coordinator, client) == [Kind.PAUSE]
        leave.set()
    await coordinator.next(Kind.UNPAUSE)
    assert coordinator.kinds[-2:] == [Kind.SET_GENERATION_EPOCH, Kind.UNPAUSE]
    assert coordinator.log[-2].message.epoch == 7


async def test_a_block_that_fails_sets_no_epoch_and_lets_the_engines_go_on(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    with pytest.raises(Fault):
        async with client.engines.paused(confirm=nothing, epoch=7):
            raise Fault
    assert await sent(coordinator, client) == [Kind.PAUSE, Kind.UNPAUSE]


async def test_a_block_that_is_cancelled_lets_the_engines_go_on(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    with trio.CancelScope() as scope:
        async with client.engines.paused(confirm=nothing, epoch=7):
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert await sent(coordinator, client) == [Kind.PAUSE, Kind.UNPAUSE]


async def test_in_a_cancelled_scope_nothing_is_paused(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        async with client.engines.paused(confirm=nothing):
            pytest.fail("entered")
    assert await sent(coordinator, client) == []


class Pausing:
    """A task that is in a block of paused engines, or about to be."""

    def __init__(self, client: InferenceClient, confirm: Callable[[], Awaitable[None]]) -> None:
        self.scope = trio.CancelScope()
        self._client = client
        self._confirm = confirm

    async def run(self) -> None:
        with self.scope:
            async with self._client.engines.paused(confirm=self._confirm):
                await trio.sleep_forever()


async def test_cancelled_while_confirming_the_engines_are_unpaused_once_they_are_paused(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    confirmation = Confirmation()
    pausing = Pausing(client, confirmation)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pausing.run)
        await coordinator.next(Kind.PAUSE)
        await until(lambda: confirmation.asked == 1)
        pausing.scope.cancel()
        await until(lambda: confirmation.asked == 2)
        assert await sent(coordinator, client) == [Kind.PAUSE]
        confirmation.done.set()
    assert pausing.scope.cancelled_caught
    await coordinator.next(Kind.UNPAUSE)


async def test_engines_that_are_never_confirmed_are_not_unpaused_and_the_log_says_so(
    coordinator: ScriptedCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_client(coordinator.address, close_timeout=0.05) as client:
        pausing = Pausing(client, trio.sleep_forever)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pausing.run)
            await coordinator.next(Kind.PAUSE)
            pausing.scope.cancel()
        assert pausing.scope.cancelled_caught
        assert await sent(coordinator, client) == [Kind.PAUSE]
        assert "UNPAUSE was not sent to engines, since they were not confirmed to be" in caplog.text
        # They are paused by this client all the same, and the next block can undo that.
        async with client.engines.paused(confirm=nothing):
            pass
        await coordinator.next(Kind.UNPAUSE)


async def test_a_confirmation_that_fails_is_asked_again_and_comes_out(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    asked = 0

    async def confirm() -> None:
        nonlocal asked
        asked += 1
        await trio.lowlevel.checkpoint()
        if asked == 1:
            raise Fault

    with pytest.raises(Fault):
        async with client.engines.paused(confirm=confirm):
            pytest.fail("entered")
    assert asked == 2
    assert await sent(coordinator, client) == [Kind.PAUSE, Kind.UNPAUSE]


async def test_a_confirmation_that_always_fails_leaves_the_engines_paused(
    coordinator: ScriptedCoordinator, client: InferenceClient, caplog: pytest.LogCaptureFixture
) -> None:
    async def confirm() -> None:
        await trio.lowlevel.checkpoint()
        raise Fault

    with pytest.raises(Fault):
        async with client.engines.paused(confirm=confirm):
            pytest.fail("entered")
    assert await sent(coordinator, client) == [Kind.PAUSE]
    assert "the state of the engines could not be confirmed" in caplog.text


async def test_a_confirmation_that_fails_takes_nothing_back_from_the_block_around_it(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async def confirm() -> None:
        await trio.lowlevel.checkpoint()
        raise Fault

    async with client.engines.paused(confirm=nothing):
        with pytest.raises(Fault):
            async with client.engines.paused(confirm=confirm):
                pytest.fail("entered")
    await coordinator.next(Kind.UNPAUSE)
    assert coordinator.kinds == [Kind.PAUSE, Kind.PAUSE, Kind.UNPAUSE]


async def test_the_last_of_several_blocks_lets_the_engines_go_on(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.engines.paused(confirm=nothing):
        async with client.engines.paused(confirm=nothing, epoch=3):
            pass
        assert await sent(coordinator, client) == [
            *(Kind.PAUSE, Kind.PAUSE, Kind.SET_GENERATION_EPOCH)
        ]
    await coordinator.next(Kind.UNPAUSE)


async def test_a_task_that_leaves_first_does_not_let_go_of_anothers_engines(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    first, second = Pausing(client, nothing), Pausing(client, nothing)
    async with trio.open_nursery() as nursery:
        for pausing in (first, second):
            nursery.start_soon(pausing.run)
            await coordinator.next(Kind.PAUSE)
        first.scope.cancel()
        await until(lambda: first.scope.cancelled_caught)
        assert Kind.UNPAUSE not in await sent(coordinator, client)
        second.scope.cancel()
        await coordinator.next(Kind.UNPAUSE)


async def test_engines_that_were_paused_before_stay_paused(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    client.engines.pause()
    async with client.engines.paused(confirm=nothing):
        pass
    assert await sent(coordinator, client) == [Kind.PAUSE, Kind.PAUSE]
    client.engines.unpause()


async def test_engines_that_were_paused_after_an_earlier_block_stay_paused(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.engines.paused(confirm=nothing):
        pass
    client.engines.pause()
    async with client.engines.paused(confirm=nothing):
        pass
    assert await sent(coordinator, client) == [Kind.PAUSE, Kind.UNPAUSE, Kind.PAUSE, Kind.PAUSE]


async def test_engines_that_the_block_let_go_and_paused_again_by_hand_stay_paused(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.engines.paused(confirm=nothing):
        client.engines.unpause()
        client.engines.pause()
    assert await sent(coordinator, client) == [Kind.PAUSE, Kind.UNPAUSE, Kind.PAUSE]


async def test_engines_that_the_block_resumed_and_suspended_again_by_hand_stay_suspended(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    client.engines.pause()
    async with client.engines.suspended(confirm=nothing):
        client.engines.resume()
        client.engines.suspend()
    assert await sent(coordinator, client) == [
        *(Kind.PAUSE, Kind.SUSPEND, Kind.RESUME, Kind.SUSPEND)
    ]


async def test_what_was_confirmed_for_an_earlier_block_says_nothing_about_the_next(
    coordinator: ScriptedCoordinator,
) -> None:
    async with open_client(coordinator.address, close_timeout=0.05) as client:
        async with client.engines.paused(confirm=nothing):
            await coordinator.next(Kind.PAUSE)
        pausing = Pausing(client, trio.sleep_forever)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pausing.run)
            await coordinator.next(Kind.PAUSE)
            pausing.scope.cancel()
        assert await sent(coordinator, client) == [Kind.PAUSE, Kind.UNPAUSE, Kind.PAUSE]


async def test_engines_that_the_block_stopped_are_not_unpaused(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.engines.paused(confirm=nothing):
        client.engines.stop()
    assert await sent(coordinator, client) == [Kind.PAUSE, Kind.STOP]


async def test_engines_that_the_block_suspended_and_forgot_are_left_and_the_log_says_so(
    coordinator: ScriptedCoordinator, client: InferenceClient, caplog: pytest.LogCaptureFixture
) -> None:
    async with client.engines.paused(confirm=nothing):
        client.engines.suspend()
    assert await sent(coordinator, client) == [Kind.PAUSE, Kind.SUSPEND]
    assert "UNPAUSE was not sent to engines, since they are suspended, not paused" in caplog.text


@pytest.mark.parametrize("end", ["leave", "fail", "cancel"])
async def test_suspended_engines_are_resumed_and_then_unpaused(
    coordinator: ScriptedCoordinator, client: InferenceClient, end: str
) -> None:
    engines = client.engines
    with trio.CancelScope() as scope:
        try:
            async with engines.paused(confirm=nothing, epoch=4), engines.suspended(confirm=nothing):
                if end == "cancel":
                    scope.cancel()
                    await trio.sleep_forever()
                if end == "fail":
                    fail()
        except Fault:
            assert end == "fail"
    epoch = [Kind.SET_GENERATION_EPOCH] if end == "leave" else []
    assert await sent(coordinator, client) == [
        *(Kind.PAUSE, Kind.SUSPEND, Kind.RESUME),
        *epoch,
        Kind.UNPAUSE,
    ]


async def test_engines_that_were_not_paused_cannot_be_suspended(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    with pytest.raises(LocalProtocolError, match="SUSPEND is for engines that are paused"):
        async with client.engines.suspended(confirm=nothing):
            pytest.fail("entered")
    assert await sent(coordinator, client) == []


async def test_in_a_cancelled_scope_nothing_is_suspended(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    client.engines.pause()
    with trio.CancelScope() as scope:
        scope.cancel()
        async with client.engines.suspended(confirm=nothing):
            pytest.fail("entered")
    assert await sent(coordinator, client) == [Kind.PAUSE]


async def test_suspended_blocks_nest_and_the_last_one_resumes(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    engines = client.engines
    async with engines.paused(confirm=nothing):
        async with engines.suspended(confirm=nothing):
            async with engines.suspended(confirm=nothing):
                pass
            assert await sent(coordinator, client) == [Kind.PAUSE, Kind.SUSPEND]
        await coordinator.next(Kind.RESUME)
    await coordinator.next(Kind.UNPAUSE)


async def test_engines_stay_paused_while_another_task_has_them_suspended(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    engines = client.engines
    pausing = Pausing(client, nothing)
    resume = trio.Event()

    async def suspend() -> None:
        async with engines.suspended(confirm=nothing):
            await resume.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pausing.run)
        await coordinator.next(Kind.PAUSE)
        nursery.start_soon(suspend)
        await coordinator.next(Kind.SUSPEND)
        pausing.scope.cancel()
        await until(lambda: pausing.scope.cancelled_caught)
        assert await sent(coordinator, client) == [Kind.PAUSE, Kind.SUSPEND]
        resume.set()
        await coordinator.next(Kind.UNPAUSE)
    assert coordinator.kinds[-2:] == [Kind.RESUME, Kind.UNPAUSE]


async def test_suspension_that_was_not_confirmed_is_not_undone_and_nor_is_the_pause(
    coordinator: ScriptedCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_client(coordinator.address, close_timeout=0.05) as client:
        engines = client.engines
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def cancel() -> None:
                    await coordinator.next(Kind.SUSPEND)
                    scope.cancel()

                nursery.start_soon(cancel)
                async with (
                    engines.paused(confirm=nothing),
                    engines.suspended(confirm=trio.sleep_forever),
                ):
                    pytest.fail("entered")
        assert await sent(coordinator, client) == [Kind.PAUSE, Kind.SUSPEND]
    assert "RESUME was not sent" in caplog.text
    assert "UNPAUSE was not sent" in caplog.text


@pytest.mark.parametrize("confirm", [None, 7, "paused"])
async def test_blocks_want_something_to_confirm_with(client: InferenceClient, confirm: Any) -> None:
    for block in (client.engines.paused, client.engines.suspended):
        with pytest.raises(TypeError, match="confirm must be an async function"):
            block(confirm=confirm)


async def test_a_confirmation_called_too_early_is_refused_and_not_left_unawaited(
    client: InferenceClient,
) -> None:
    for block in (client.engines.paused, client.engines.suspended):
        with pytest.raises(TypeError, match=r"leave out the \(\)"):
            block(confirm=cast("Any", nothing()))


async def test_a_confirmation_that_nobody_could_await_is_refused_before_engines_are_paused(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    confirm = cast("Any", lambda: True)
    with pytest.raises(TypeError, match="not one that returns True"):
        async with client.engines.paused(confirm=confirm):
            pytest.fail("entered")
    async with client.engines.paused(confirm=nothing):
        with pytest.raises(TypeError, match="not one that returns True"):
            async with client.engines.suspended(confirm=confirm):
                pytest.fail("entered")
    assert await sent(coordinator, client) == [Kind.PAUSE, Kind.UNPAUSE]


# Connections


async def test_engines_paused_by_hand_count_as_running_once_the_connection_is_another(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    client.engines.pause()
    coordinator.close()
    async with scripted_coordinator(coordinator.address) as successor:
        await until(lambda: client.statistics().connections == 2)
        with pytest.raises(LocalProtocolError, match="they are running"):
            client.engines.unpause()
        async with client.engines.paused(confirm=nothing):
            pass
        assert await sent(successor, client) == [Kind.PAUSE, Kind.UNPAUSE]


async def test_an_unpause_that_is_owed_goes_out_before_any_request(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.engines.paused(confirm=nothing, epoch=9):
        await coordinator.next(Kind.PAUSE)
        coordinator.close()
        await disconnected(client)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.generate, "hi")
            async with scripted_coordinator(coordinator.address) as successor:
                await successor.submission()
                assert successor.kinds == [
                    *(Kind.SET_GENERATION_EPOCH, Kind.UNPAUSE, Kind.SUBMIT_REQUEST)
                ]
                scope.cancel()


async def test_an_unpause_that_is_owed_is_owed_until_it_is_sent_and_sent_once(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.engines.paused(confirm=nothing):
        coordinator.close()
        await disconnected(client)
    client._exchange.on_up()  # as of a connection that breaks as it comes up
    async with scripted_coordinator(coordinator.address) as successor:
        await successor.next(Kind.UNPAUSE)
        client._exchange.on_up()
        assert await sent(successor, client) == [Kind.UNPAUSE]


async def test_without_a_connection_no_block_is_entered(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    coordinator.close()
    await disconnected(client)
    with pytest.raises(ConnectionLost):
        async with client.engines.paused(confirm=nothing):
            pytest.fail("entered")
    assert client._exchange._scopes == 0


async def test_leaving_waits_until_engines_are_let_go_again(
    coordinator: ScriptedCoordinator,
) -> None:
    async with open_client(coordinator.address, close_timeout=60) as client:
        pausing = Pausing(client, nothing)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pausing.run)
            await coordinator.next(Kind.PAUSE)
            nursery.start_soon(client.aclose)
            await until(lambda: client._exchange.is_leaving)
            await trio.testing.wait_all_tasks_blocked()
            pausing.scope.cancel()
        await coordinator.next(Kind.UNPAUSE)


async def test_engines_that_outlive_the_client_stay_paused_and_the_log_says_so(
    coordinator: ScriptedCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_client(coordinator.address, close_timeout=0.05) as client:
        async with client.engines.paused(confirm=nothing):
            await client.aclose()
    assert coordinator.kinds == [Kind.PAUSE]
    assert "the client is closed: UNPAUSE was not sent" in caplog.text


async def test_a_failing_confirmation_takes_nothing_back_from_one_that_came_meanwhile(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    again = trio.Event()
    asked = 0

    async def confirm() -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            await again.wait()
        await trio.lowlevel.checkpoint()
        raise Fault

    async def pause() -> None:
        with contextlib.suppress(Fault):
            async with client.engines.paused(confirm=confirm):
                pytest.fail("entered")
        over.set()

    over = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pause)
        await until(lambda: asked == 2)
        async with client.engines.paused(confirm=nothing):
            again.set()
            await over.wait()
    assert Kind.UNPAUSE in await sent(coordinator, client)


async def test_a_block_cancelled_among_suspended_engines_takes_nothing_back(
    coordinator: ScriptedCoordinator,
) -> None:
    async with open_client(coordinator.address, close_timeout=0.05) as client:
        engines = client.engines
        async with engines.paused(confirm=nothing), engines.suspended(confirm=nothing):
            pausing = Pausing(client, trio.sleep_forever)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pausing.run)
                for _ in range(2):
                    await coordinator.next(Kind.PAUSE)
                pausing.scope.cancel()
        assert (await sent(coordinator, client))[-2:] == [Kind.RESUME, Kind.UNPAUSE]


async def test_engines_paused_and_suspended_by_hand_are_not_unpaused_by_a_block(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    client.engines.pause()
    client.engines.suspend()
    async with client.engines.paused(confirm=nothing):
        client.engines.resume()
    assert Kind.UNPAUSE not in await sent(coordinator, client)


async def test_engines_are_not_suspended_while_another_task_waits_for_their_pause() -> None:
    async with open_coordinator(step_time=0.02) as coordinator:
        async with open_client(coordinator.address, close_timeout=0.2) as client:
            pausing = Pausing(client, coordinator.engines_paused)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pausing.run)
                await coordinator.wait_until(lambda: coordinator.engine_states == ("pausing",))
                with trio.move_on_after(1), contextlib.suppress(Exception):
                    async with client.engines.suspended(confirm=coordinator.engines_suspended):
                        pass
                nursery.cancel_scope.cancel()
        assert "dead" not in coordinator.engine_states


@pytest.mark.parametrize("how", ["closed", "no connection"])
async def test_no_inner_suspended_block_is_entered_without_a_client_or_a_connection(
    coordinator: ScriptedCoordinator, how: str
) -> None:
    async with open_client(coordinator.address, close_timeout=0.05) as client:
        engines = client.engines
        async with engines.paused(confirm=nothing), engines.suspended(confirm=nothing):
            if how == "closed":
                await client.aclose()
            else:
                coordinator.close()
                await disconnected(client)
            with pytest.raises((ConnectionLost, trio.ClosedResourceError)):
                async with engines.suspended(confirm=nothing):
                    pytest.fail("entered")


async def test_an_unpause_still_owed_when_the_client_is_left_is_told(
    coordinator: ScriptedCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_client(coordinator.address, close_timeout=0.05) as client:
        async with client.engines.paused(confirm=nothing):
            coordinator.close()
            await disconnected(client)
    assert "UNPAUSE was not sent" in caplog.text


# Against engines that die of a wrong word


PHASES = ("pausing", "suspending", "inside")


@pytest.mark.parametrize("phase", PHASES)
async def test_engines_survive_blocks_that_are_cancelled_at_any_moment(phase: str) -> None:
    async with open_coordinator(engines=2, steps_to_pause=2, step_time=0.001) as coordinator:
        async with open_client(coordinator.address) as client:
            params = SamplingParams(num_tokens_to_generate=100_000, top_k=1)
            async with client.stream("hi", params) as stream:
                for checkpoints in range(10):
                    reached = {each: trio.Event() for each in PHASES}
                    with trio.CancelScope() as scope:
                        async with trio.open_nursery() as nursery:
                            nursery.start_soon(cancel_after, reached[phase], checkpoints, scope)
                            await use_engines(client, coordinator, reached, epoch=checkpoints)
                    assert scope.cancelled_caught
                    await coordinator.engines_running()  # before they are paused again
                    await stream.receive()
    assert "dead" not in coordinator.engine_states
    assert coordinator.statistics().lost == 0


async def use_engines(
    client: InferenceClient,
    coordinator: EmbeddedCoordinator,
    reached: dict[str, trio.Event],
    *,
    epoch: int,
) -> None:
    """Pauses and suspends engines for ever, and tells how far it has come."""

    async def confirm(phase: str, wait: Callable[[], Awaitable[None]]) -> None:
        reached[phase].set()
        await wait()

    engines = client.engines
    pausing = partial(confirm, "pausing", coordinator.engines_paused)
    suspending = partial(confirm, "suspending", coordinator.engines_suspended)
    async with engines.paused(confirm=pausing, epoch=epoch), engines.suspended(confirm=suspending):
        reached["inside"].set()
        await trio.sleep_forever()


async def cancel_after(event: trio.Event, checkpoints: int, scope: trio.CancelScope) -> None:
    await event.wait()
    for _ in range(checkpoints):
        await trio.lowlevel.checkpoint()
    scope.cancel()


async def test_weights_are_exchanged_under_a_stream_and_its_completion_knows() -> None:
    async with open_coordinator(step_time=0.001) as coordinator:
        async with open_client(coordinator.address) as client:
            client.engines.set_generation_epoch(1)
            params = SamplingParams(num_tokens_to_generate=200, top_k=1)
            async with client.stream("The value of", params) as stream:
                await stream.receive()
                async with client.engines.paused(confirm=coordinator.engines_paused, epoch=2):
                    assert coordinator.paused
                completion = await stream.result()
    assert completion.policy_epoch_of(0) == 1
    assert completion.policy_epoch_of(-1) == 2
    assert completion.kv_cache_epoch_of(-1) == 2


async def test_a_signal_that_overtakes_a_pause_is_seen_to_kill_engines() -> None:
    async with open_coordinator(step_time=0.01) as coordinator:
        async with open_client(coordinator.address, close_timeout=0.05) as client:
            client.engines.pause()
            client.engines.unpause()
            await coordinator.wait_until(lambda: coordinator.engine_states == ("dead",))
