"""The contracts of cancellation over a real socket, each named for what a user may rely on."""

from __future__ import annotations

import math
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
import trio.lowlevel
import trio.testing

from tests.peers import ScriptedCoordinator, scripted_coordinator
from tests.ticks import hear_by
from tests.waiting import arrived, settled, until
from trio_infer import (
    Completion,
    CompletionStream,
    ConnectionLost,
    InferenceClient,
    LocalProtocolError,
    RemoteProtocolError,
    SamplingParams,
    open_client,
)
from trio_infer.protocol.dialect import Kind
from trio_infer.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trio_infer.protocol.packing import Frames

LONG = SamplingParams(num_tokens_to_generate=100_000)


class Stop(Exception):
    """What a user's code raises."""


# 1. Exactly one ABORT for what was handed over and has not finished


async def ends_by_break(stream: CompletionStream) -> None:
    async with stream:
        async for _ in stream:
            break


async def ends_by_exception(stream: CompletionStream) -> None:
    with pytest.raises(Stop):
        async with stream:
            await stream.receive()
            raise Stop


async def ends_by_return(stream: CompletionStream) -> None:
    async def use() -> list[int]:
        async with stream:
            return (await stream.receive()).tokens

    assert await use() == [1]


async def ends_by_deadline(stream: CompletionStream) -> None:
    with trio.CancelScope() as scope:
        async with stream:
            await stream.receive()
            scope.deadline = -math.inf
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def ends_by_aclose_from_another_task(stream: CompletionStream) -> None:
    async with stream:
        await stream.receive()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.aclose)
            with pytest.raises(trio.ClosedResourceError):
                await stream.receive()


async def ends_by_cancelled_receive_outside(stream: CompletionStream) -> None:
    with trio.CancelScope() as scope:
        async with stream, trio.open_nursery() as nursery:
            await stream.receive()
            nursery.start_soon(trio.lowlevel.checkpoint)
            scope.cancel()
            await stream.receive()
    assert scope.cancelled_caught


@pytest.mark.parametrize(
    "end",
    [
        ends_by_break,
        ends_by_exception,
        ends_by_return,
        ends_by_deadline,
        ends_by_aclose_from_another_task,
        ends_by_cancelled_receive_outside,
    ],
)
async def test_however_a_stream_is_left_the_engine_is_told_once(
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    end: Callable[[CompletionStream], Awaitable[None]],
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end, client.stream("hi", LONG))
        submission = await coordinator.submission()
        coordinator.partial(submission, [1])
        abort = await coordinator.abort()
        assert abort.id == submission.id
    await settled(client)
    assert coordinator.of(Kind.ABORT_REQUEST) == [submission.id]
    assert client.statistics().aborted == 1


async def test_the_abort_is_sent_before_control_moves_on(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.stream("hi") as stream:
        assert client.statistics().in_flight == 1
    # No checkpoint in between: what the statistics say is what was sent.
    assert client.statistics().in_flight == 0
    assert client.statistics().aborted == 1
    await coordinator.submission()
    assert (await coordinator.abort()).id == stream.request_id


async def test_a_cancelled_nursery_of_hundreds_aborts_each_in_flight(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(300):
            nursery.start_soon(client.generate, [1, 2, 3], LONG)
        for _ in range(300):
            submission = await coordinator.submission()
            if submission.id % 3 == 0:
                coordinator.reply(submission, [7])
        await until(lambda: client.statistics().completed >= 100)
        nursery.cancel_scope.cancel()
    await settled(client)
    assert sorted(coordinator.of(Kind.ABORT_REQUEST)) == [n for n in range(300) if n % 3]
    statistics = client.statistics()
    assert (statistics.completed, statistics.aborted) == (100, 200)


async def test_a_finished_request_is_not_aborted(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with trio.open_nursery() as nursery:

        async def leave_finished_streams() -> None:
            async with client.stream("read") as stream:
                await stream.result()
            async with client.stream("unread") as stream:
                await until(lambda: stream.finished)
            await client.generate("whole")

        nursery.start_soon(leave_finished_streams)
        for _ in range(3):
            coordinator.reply(await coordinator.submission(), [1])
    async with client.stream("marker"):
        pass
    await settled(client)
    assert coordinator.of(Kind.ABORT_REQUEST) == [3]
    assert client.statistics().completed == 3


async def test_a_final_reply_in_the_tick_of_the_cancellation_means_no_abort(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    """The reply comes first, the cancellation is delivered first."""
    scope = trio.CancelScope()

    async def generate() -> None:
        with scope:
            await client.generate("hi", LONG)

    original = client._exchange.on_frames

    def cancel_then_deliver(frames: Frames) -> None:
        scope.cancel()
        original(frames)

    hear_by(client, cancel_then_deliver)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(generate)
        submission = await coordinator.submission()
        coordinator.reply(submission, [1])
    assert scope.cancelled_caught
    async with client.stream("marker"):
        pass
    await settled(client)
    assert coordinator.of(Kind.ABORT_REQUEST) == [1]
    assert client.statistics().completed == 1


async def test_a_request_in_a_cancelled_scope_sends_nothing(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await client.generate("never")
    assert scope.cancelled_caught
    with trio.CancelScope() as scope:
        scope.cancel()
        async with client.stream("never"):
            pytest.fail("entered")
    assert scope.cancelled_caught
    async with client.stream("marker"):
        pass
    await settled(client)
    assert [received.message.prompt for received in coordinator.log] == ["marker", None]
    assert client.statistics().submitted == 1


async def test_a_request_cancelled_while_it_waits_for_the_connection_sends_nothing(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    coordinator.acks = False
    await lose(coordinator, client)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.generate, "waits")
        nursery.start_soon(partial(_enter, client.stream("waits too")))
        await until(lambda: client.statistics().waiting >= 2)
        nursery.cancel_scope.cancel()
    statistics = client.statistics()
    assert (statistics.waiting, statistics.submitted, statistics.aborted) == (0, 1, 0)


async def test_a_request_cancelled_in_the_tick_of_the_connection_sends_nothing(
    coordinator: ScriptedCoordinator, client: InferenceClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lose(coordinator, client)
    scope = trio.CancelScope()
    came_up = Transport._came_up

    def come_up_and_cancel(transport: Transport) -> None:
        came_up(transport)
        scope.cancel()

    monkeypatch.setattr(Transport, "_came_up", come_up_and_cancel)
    async with trio.open_nursery() as nursery:

        async def generate() -> None:
            with scope:
                await client.generate("waits")

        nursery.start_soon(generate)
        await until(lambda: client.statistics().waiting)
        async with scripted_coordinator(coordinator.address) as second:
            await until(lambda: scope.cancelled_caught)
            async with client.stream("marker"):
                pass
            await settled(client)
            assert second.of(Kind.SUBMIT_REQUEST) == [1]


async def lose(coordinator: ScriptedCoordinator, client: InferenceClient) -> None:
    """Lets a coordinator die, under a request."""
    with pytest.raises(ConnectionLost):
        async with client.stream("in flight") as stream:
            coordinator.close()
            await stream.result()


async def _enter(stream: CompletionStream) -> None:
    async with stream:
        pytest.fail("entered without a connection")


async def test_aclose_ends_the_wait_of_a_stream_that_is_being_entered(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    await lose(coordinator, client)
    stream = client.stream("waits")
    async with trio.open_nursery() as nursery:

        async def enter() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await _enter(stream)

        nursery.start_soon(enter)
        await until(lambda: client.statistics().waiting)
        with pytest.raises(LocalProtocolError):
            await stream.finish_early()
        with pytest.raises(LocalProtocolError):
            await stream.receive()
        await stream.aclose()
    assert client.statistics().submitted == 1


async def test_a_stream_entered_twice_at_once_and_closed_leaves_no_request_behind(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    await lose(coordinator, client)
    stream = client.stream("waits")
    errors: list[Exception] = []

    async def enter() -> None:
        try:
            await _enter(stream)
        except (LocalProtocolError, trio.ClosedResourceError) as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(enter)
        nursery.start_soon(enter)
        await until(lambda: client.statistics().waiting and errors)
        await stream.aclose()
    assert sorted(type(error).__name__ for error in errors) == [
        "ClosedResourceError",
        "LocalProtocolError",
    ]
    async with scripted_coordinator(coordinator.address) as second:
        async with client.stream("marker"):
            assert (await second.submission()).message.prompt == "marker"
        await settled(client)
    assert client.statistics().submitted == 2


# 2. Cancelled propagates, and nothing replaces it


async def test_what_the_block_raises_comes_out_bare() -> None:
    async with scripted_coordinator() as coordinator:
        with pytest.raises(Stop):
            async with open_client(coordinator.address):
                raise Stop
        with pytest.raises(Stop):
            async with open_client(coordinator.address) as client, client.stream("hi"):
                raise Stop


async def test_a_cancelled_scope_gets_its_own_cancellation(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    with trio.CancelScope() as scope:
        async with client.stream("hi") as stream:
            try:
                scope.cancel()
                await stream.receive()
            except trio.Cancelled:
                with pytest.raises(trio.Cancelled):
                    await stream.receive()
                raise
    assert scope.cancelled_caught


async def test_a_crashing_sibling_aborts_the_streams_beside_it(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async def crash() -> None:
        for _ in range(5):
            await coordinator.submission()
        raise Stop

    with pytest.RaisesGroup(Stop):
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(client.generate, "hi", LONG)
            nursery.start_soon(crash)
    await settled(client)
    assert sorted(coordinator.of(Kind.ABORT_REQUEST)) == [0, 1, 2, 3, 4]


async def test_leaving_a_block_does_not_replace_what_it_raises_by_cancelled(
    client: InferenceClient,
) -> None:
    with pytest.raises(Stop), trio.CancelScope() as scope:
        async with client.stream("hi", LONG):
            scope.cancel()
            raise Stop


async def test_whatever_is_awaited_is_a_checkpoint(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    block = open_client(coordinator.address)
    with trio.testing.assert_checkpoints():
        other = await block.__aenter__()
    with trio.testing.assert_checkpoints():
        await other.aclose()
    with trio.testing.assert_checkpoints():
        await other.aclose()
    await block.__aexit__(None, None, None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_all, coordinator)
        with trio.testing.assert_checkpoints():
            await client.generate("hi")
        stream = client.stream("hi")
        with trio.testing.assert_checkpoints():
            await stream.__aenter__()
        await until(lambda: stream.finished)
        with trio.testing.assert_checkpoints():
            await stream.receive()
        with trio.testing.assert_checkpoints():
            await stream.result()
        with trio.testing.assert_checkpoints():
            await stream.finish_early()
        with trio.testing.assert_checkpoints():
            await stream.aclose()
        nursery.cancel_scope.cancel()


async def answer_all(coordinator: ScriptedCoordinator) -> None:
    while True:
        coordinator.reply(await coordinator.submission(), [1])


# 3. Cancelling a receive loses nothing and ends nothing


async def test_a_cancelled_receive_loses_no_token(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    received: list[int] = []
    async with client.stream("hi", LONG) as stream:
        submission = await coordinator.submission()
        for number in range(100):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:

                    async def cancel_soon(scope: trio.CancelScope = scope) -> None:
                        await trio.lowlevel.checkpoint()
                        scope.cancel()

                    coordinator.partial(submission, [number])
                    nursery.start_soon(cancel_soon)
                    received += (await stream.receive()).tokens
        coordinator.reply(submission, [*range(100), 100])
        async for delta in stream:
            received += delta.tokens
        assert received == list(range(101))
        assert stream.tokens == received
    assert coordinator.of(Kind.ABORT_REQUEST) == []


async def test_a_cancelled_result_can_be_awaited_again(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.stream("hi", LONG) as stream:
        submission = await coordinator.submission()
        coordinator.partial(submission, [1])
        with trio.CancelScope() as scope:
            scope.cancel()
            await stream.result()
        coordinator.reply(submission, [1, 2])
        assert (await stream.result()).generated_tokens == [1, 2]


# 4. What arrived stays readable


async def test_tokens_that_arrived_unread_are_there_after_the_block(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.stream("hi", LONG) as stream:
        submission = await coordinator.submission()
        coordinator.partial(submission, [1])
        assert (await stream.receive()).tokens == [1]
        coordinator.partial(submission, [2])
        coordinator.partial(submission, [3])
        await arrived(stream, 2)
        assert stream.tokens == [1]
    assert stream.tokens == [1, 2, 3]
    assert not stream.finished
    assert stream.completion is None


# 5. finish_early


async def test_finish_early_brings_the_completion_so_far(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.stream("hi", LONG) as stream:
        submission = await coordinator.submission()
        coordinator.partial(submission, [1, 2])
        await stream.receive()
        completion = await stream.finish_early()
        assert completion.generated_tokens == [1, 2]
        assert completion.finish_reason == "abort"
        assert await stream.finish_early() == completion
    assert coordinator.of(Kind.ABORT_REQUEST) == [0]
    statistics = client.statistics()
    assert (statistics.aborted, statistics.completed, statistics.aborting) == (1, 0, 0)


async def test_finish_early_of_a_finished_request_brings_its_completion(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.stream("hi") as stream:
        coordinator.reply(await coordinator.submission(), [1])
        await until(lambda: stream.finished)
        assert (await stream.finish_early()).finish_reason == "stop"
    assert coordinator.of(Kind.ABORT_REQUEST) == []


async def test_finish_early_that_brings_nonsense_is_counted_as_aborted_alone(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    coordinator.answers_aborts = False

    async def answer() -> None:
        abort = await coordinator.abort()
        coordinator.send(abort.client, [*coordinator.reply_frames(abort, []), b"one too many"])

    async with trio.open_nursery() as nursery, client.stream("hi", LONG) as stream:
        nursery.start_soon(answer)
        with pytest.raises(RemoteProtocolError):
            await stream.finish_early()
    statistics = client.statistics()
    assert (statistics.aborted, statistics.completed, statistics.failed) == (1, 0, 0)


async def test_finish_early_cancelled_sends_no_second_abort(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    coordinator.answers_aborts = False
    async with client.stream("hi", LONG) as stream:
        submission = await coordinator.submission()
        with trio.move_on_after(0) as scope:
            await stream.finish_early()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.finish_early)
                await coordinator.abort()
                scope.cancel()
    coordinator.reply(submission, [])
    await settled(client)
    assert coordinator.of(Kind.ABORT_REQUEST) == [0]


async def test_finish_early_in_a_cancelled_scope_leaves_the_request_running(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.stream("hi", LONG) as stream:
        submission = await coordinator.submission()
        with trio.CancelScope() as scope:
            scope.cancel()
            await stream.finish_early()
        assert scope.cancelled_caught
        assert client.statistics().in_flight == 1
        coordinator.reply(submission, [1])
        assert (await stream.result()).finish_reason == "stop"
    assert coordinator.of(Kind.ABORT_REQUEST) == []


async def test_finish_early_beside_a_reader_sends_nothing(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.stream("hi", LONG) as stream, trio.open_nursery() as nursery:
        nursery.start_soon(stream.receive)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await stream.finish_early()
        assert client.statistics().aborted == 0
        nursery.cancel_scope.cancel()


# 6. Nothing is left behind


async def test_after_many_requests_the_client_holds_none(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async def one(number: int) -> None:
        with trio.move_on_after(math.inf) as scope:
            async with client.stream([number], LONG) as stream:
                submission = await coordinator.submission()
                coordinator.partial(submission, [number])
                if number % 2:
                    scope.cancel()
                else:
                    coordinator.reply(submission, [number])
                await stream.result()

    for number in range(200):
        await one(number)
    await settled(client)
    session = client._exchange._session
    assert session.owners() == []
    assert session.aborting == 0
    statistics = client.statistics()
    assert statistics.submitted == 200
    assert statistics.submitted == statistics.completed + statistics.aborted


async def test_late_partials_of_an_aborted_request_are_counted_and_dropped(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    coordinator.answers_aborts = False
    async with client.stream("hi", LONG):
        submission = await coordinator.submission()
    await coordinator.abort()
    coordinator.partial(submission, [1])
    coordinator.reply(submission, [1])
    await settled(client)
    assert client.statistics().discarded == 1


async def test_entering_a_stream_twice_is_refused(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    stream = client.stream("hi")
    async with stream:
        pass
    with pytest.raises(trio.ClosedResourceError):
        await _enter(stream)
    async with client.stream("hi") as stream:
        with pytest.raises(LocalProtocolError, match="once"):
            await _enter(stream)


async def test_leaving_many_blocks_at_once_aborts_in_the_order_of_leaving(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(20):
            await stack.enter_async_context(client.stream("hi", LONG))
    await settled(client)
    assert coordinator.of(Kind.ABORT_REQUEST) == list(reversed(range(20)))


async def test_a_completion_is_typed(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    completions: list[Completion] = []
    async with trio.open_nursery() as nursery:

        async def generate() -> None:
            completions.append(await client.generate([1], SamplingParams()))

        nursery.start_soon(generate)
        coordinator.reply(await coordinator.submission(), [65], num_cached_tokens=3, newest=1)
    (completion,) = completions
    assert completion.generated_text == "A"
    assert completion.request_id == 0
    assert completion.engine_request_id == 1000
    assert completion.num_cached_tokens == 3
    assert completion.extra == {"newest": 1}
    assert completion.latency > 0
    assert completion.time_to_first_token is None
