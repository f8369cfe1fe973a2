"""Prefill for another deployment: each handoff is released once, however its block ends."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from tests.peers import Received, ScriptedCoordinator, scripted_coordinator
from tests.ticks import hear_by
from tests.waiting import disconnected, settled, until
from trio_infer import (
    ConnectionLost,
    InferenceClient,
    InferenceError,
    KVHandoff,
    LocalProtocolError,
    RemoteProtocolError,
    RequestFailed,
    SamplingParams,
    UnsupportedByDialect,
    open_client,
)
from trio_infer.embedded import EmbeddedCoordinator, open_coordinator
from trio_infer.protocol.dialect import Kind

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

PROMPT = [1, 2, 3]
META = {"peer": "x", "blob": b"\0\1", "rkey": 2**64 - 1}


class Fault(Exception):
    """Something went wrong in a block."""


def pinned(number: int = 77) -> dict[str, Any]:
    return {
        "disaggregated_params": {"request_id": number, "block_ids": [3, 4], "kv_meta": dict(META)}
    }


class Prefilling:
    """A task in a block of a prefill, or about to be."""

    def __init__(self, client: InferenceClient) -> None:
        self.scope = trio.CancelScope()
        self.handoff: KVHandoff | None = None
        self.error: BaseException | None = None
        self._client = client

    async def run(self) -> None:
        with self.scope:
            try:
                async with self._client.prefill(PROMPT) as self.handoff:
                    await trio.sleep_forever()
            except (InferenceError, trio.ClosedResourceError) as error:
                self.error = error

    async def leave(self) -> None:
        """Cancels it, and returns once it is over."""
        self.scope.cancel()
        await until(lambda: self.scope.cancelled_caught or self.error is not None)


async def sent(coordinator: ScriptedCoordinator, client: InferenceClient) -> list[Received]:
    """What has come so far beside submissions, certainly: a last message is waited for."""
    client.engines.start_cuda_profiler()
    await coordinator.next(Kind.START_CUDA_PROFILER)
    others = (Kind.SUBMIT_REQUEST, Kind.START_CUDA_PROFILER)
    return [received for received in coordinator.log if received.kind not in others]


async def hand_over(coordinator: ScriptedCoordinator) -> None:
    """Answers a prefill."""
    coordinator.reply(await coordinator.submission(), [9], **pinned())


@asynccontextmanager
async def submitted(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> AsyncGenerator[tuple[Prefilling, Received]]:
    """A prefill that waits for its reply, and whose end is waited for."""
    prefilling = Prefilling(client)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(prefilling.run)
        yield prefilling, await coordinator.submission()


async def left(coordinator: ScriptedCoordinator, client: InferenceClient) -> Received:
    """The submission of a prefill that was left before its reply, which is still to come."""
    coordinator.answers_aborts = False
    async with submitted(coordinator, client) as (prefilling, request):
        prefilling.scope.cancel()
    return request


@asynccontextmanager
async def handed_over(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> AsyncGenerator[Prefilling]:
    """A prefill whose block has begun."""
    async with submitted(coordinator, client) as (prefilling, request):
        coordinator.reply(request, [9], **pinned())
        await until(lambda: prefilling.handoff is not None)
        yield prefilling
        prefilling.scope.cancel()


async def released(coordinator: ScriptedCoordinator, client: InferenceClient) -> list[int]:
    """What has been released so far, certainly."""
    await sent(coordinator, client)
    return coordinator.of(Kind.RELEASE_KV)


# What is asked, and what comes


async def test_a_prefill_asks_for_a_handoff_and_for_one_token(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with submitted(coordinator, client) as (prefilling, request):
        prefilling.scope.cancel()
    params = request.message.sampling_params
    assert params is not None
    assert (params["do_kv_handoff"], params["num_tokens_to_generate"]) == (True, 1)
    assert params["streaming"] is False
    assert request.message.prompt == PROMPT


async def test_the_handle_is_what_the_engine_gave(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with handed_over(coordinator, client) as prefilling:
        assert prefilling.handoff == KVHandoff(META, [3, 4], 77)


async def test_another_deployment_is_told_what_the_first_one_gave(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    handoff = KVHandoff(META, (3, 4), 77)
    async with client.stream(PROMPT, kv_handoff=handoff):
        message = (await coordinator.next(Kind.SUBMIT_REQUEST_WITH_KV)).message
    assert (message.prompt, message.kv_meta, message.src_block_ids) == (PROMPT, META, [3, 4])
    assert message.sampling_params is not None
    assert message.sampling_params["do_kv_handoff"] is False
    assert message.sampling_params["streaming"] is True


# How a block can end


async def test_the_blocks_are_released_when_the_block_ends(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with handed_over(coordinator, client) as prefilling:
        assert await sent(coordinator, client) == []
        await prefilling.leave()
        (release,) = await sent(coordinator, client)
    assert (release.kind, release.id) == (Kind.RELEASE_KV, 77)
    assert client.statistics().unreleased == 0


@pytest.mark.parametrize("end", ["leave", "return", "raise", "deadline"])
async def test_however_the_block_ends_the_blocks_are_released_once(
    coordinator: ScriptedCoordinator, client: InferenceClient, end: str
) -> None:
    async def use() -> None:
        with trio.CancelScope() as scope:
            async with client.prefill(PROMPT):
                if end == "return":
                    return
                if end == "raise":
                    raise Fault
                if end == "deadline":
                    scope.deadline = trio.current_time()
                    await trio.sleep_forever()

    async def run() -> None:
        if end == "raise":
            with pytest.raises(Fault):
                await use()
        else:
            await use()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await hand_over(coordinator)
    assert await released(coordinator, client) == [77]


async def test_a_block_is_entered_once(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    prefill = client.prefill(PROMPT)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hand_over, coordinator)
        async with prefill:
            with pytest.raises(LocalProtocolError, match="entered once"):
                async with prefill:
                    pytest.fail("entered")
    assert await released(coordinator, client) == [77]
    assert client._exchange._scopes == 0


# Left before it began


async def test_in_a_cancelled_scope_nothing_is_sent(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        async with client.prefill(PROMPT):
            pytest.fail("entered")
    assert await sent(coordinator, client) == []
    assert client.statistics().submitted == 0


async def test_a_prefill_that_is_left_is_aborted_and_what_its_reply_brings_released(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    request = await left(coordinator, client)
    abort = await coordinator.abort()
    assert abort.id == request.id
    assert await sent(coordinator, client) == [abort]
    coordinator.reply(request, [9], **pinned(5))
    release = await coordinator.next(Kind.RELEASE_KV)
    assert release.id == 5
    statistics = client.statistics()
    assert (statistics.aborted, statistics.aborting, statistics.unreleased) == (1, 0, 0)


@pytest.mark.parametrize("fields", [{}, {"disaggregated_params": None}, {"status": "FAILED"}])
async def test_where_the_reply_brings_nothing_nothing_is_released(
    coordinator: ScriptedCoordinator, client: InferenceClient, fields: dict[str, Any]
) -> None:
    request = await left(coordinator, client)
    coordinator.reply(request, [9], **fields)
    await settled(client)
    assert await released(coordinator, client) == []
    assert client.statistics().malformed == 0


async def test_a_reply_that_makes_no_sense_to_nobody_is_counted(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    request = await left(coordinator, client)
    coordinator.reply(request, [9], disaggregated_params={"request_id": "x"})
    await until(lambda: client.statistics().malformed == 1)
    assert client.statistics().aborting == 0


async def test_a_reply_that_comes_as_the_prefill_is_cancelled_is_released_and_not_aborted(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with submitted(coordinator, client) as (prefilling, request):
        exchange = client._exchange

        def cancelling(frames: Any) -> None:
            exchange.on_frames(frames)
            prefilling.scope.cancel()  # in the very tick

        hear_by(client, cancelling)
        coordinator.reply(request, [9], **pinned(5))
    assert prefilling.scope.cancelled_caught
    assert await released(coordinator, client) == [5]
    assert Kind.ABORT_REQUEST not in coordinator.kinds
    assert client.statistics().completed == 1


async def test_a_reply_that_waits_unread_when_the_prefill_is_cancelled_is_released(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    """The cancellation comes first, the reply in the same tick."""
    async with submitted(coordinator, client) as (prefilling, request):
        exchange = client._exchange

        def cancelling(frames: Any) -> None:
            prefilling.scope.cancel()
            exchange.on_frames(frames)

        hear_by(client, cancelling)
        coordinator.reply(request, [9], **pinned(5))
    assert prefilling.scope.cancelled_caught
    assert prefilling.handoff is None
    assert await released(coordinator, client) == [5]
    assert Kind.ABORT_REQUEST not in coordinator.kinds
    assert client.statistics().completed == 1


# What goes wrong


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, RemoteProtocolError),
        ({"disaggregated_params": None}, RemoteProtocolError),
        ({"disaggregated_params": {}}, RemoteProtocolError),
        ({"status": "FAILED"}, RequestFailed),
    ],
)
async def test_a_prefill_without_a_handle_says_why(
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    fields: dict[str, Any],
    expected: type[Exception],
) -> None:
    async with submitted(coordinator, client) as (prefilling, request):
        coordinator.reply(request, [9], **fields)
    assert type(prefilling.error) is expected
    assert await sent(coordinator, client) == []
    assert client._exchange._scopes == 0


@pytest.mark.parametrize("dialect", ["0.19", "0.18"])
async def test_where_the_dialect_has_no_handoff_nothing_is_sent(dialect: str) -> None:
    handoff = KVHandoff(META, [3], 7)
    async with scripted_coordinator(dialect=dialect) as coordinator:
        async with open_client(coordinator.address, dialect=dialect) as client:
            with pytest.raises(UnsupportedByDialect, match="has no KV handoff"):
                client.prefill(PROMPT)
            with pytest.raises(UnsupportedByDialect, match="has no KV handoff"):
                client.stream(PROMPT, kv_handoff=handoff)
            with pytest.raises(UnsupportedByDialect, match="has no KV handoff"):
                client.release_handoff(7)
        assert coordinator.kinds == []


# Connections


async def test_a_handoff_of_an_earlier_connection_is_never_released_but_counted(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with handed_over(coordinator, client) as prefilling:
        coordinator.close()
        async with scripted_coordinator(coordinator.address) as successor:
            await until(lambda: client.statistics().connections == 2)
            assert client.statistics().unreleased == 1
            await prefilling.leave()
            assert await sent(successor, client) == []
            assert client.statistics().unreleased == 1


async def test_a_handoff_of_a_later_connection_is_released_like_one_of_the_first(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    coordinator.close()
    async with scripted_coordinator(coordinator.address) as successor:
        await until(lambda: client.statistics().connections == 2)
        async with handed_over(successor, client) as prefilling:
            await prefilling.leave()
        assert await released(successor, client) == [77]
    await client.aclose()
    assert client.statistics().unreleased == 0


async def test_a_handoff_whose_block_ends_while_there_is_no_connection_is_not_released_later(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with handed_over(coordinator, client) as prefilling:
        coordinator.close()
        await disconnected(client)
        await prefilling.leave()
    async with scripted_coordinator(coordinator.address) as successor:
        await until(lambda: client.statistics().connections == 2)
        assert await sent(successor, client) == []
    await client.aclose()
    assert client.statistics().unreleased == 1


@pytest.mark.parametrize("by_hand", [False, True])
async def test_a_release_that_finds_the_connection_broken_is_counted_as_none(
    coordinator: ScriptedCoordinator, client: InferenceClient, *, by_hand: bool
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hand_over, coordinator)
        async with client.prefill(PROMPT) as handoff:
            connection = client._exchange._transport._current
            assert connection is not None
            connection.fail("broken")  # and nobody has been told yet
            if by_hand:
                with pytest.raises(ConnectionLost):
                    client.release_handoff(handoff.request_id)
    await until(lambda: client.statistics().connections == 2)
    assert client.statistics().unreleased == 1
    assert await released(coordinator, client) == []


async def test_a_connection_that_is_lost_before_the_reply_is_told(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with submitted(coordinator, client) as (prefilling, _):
        coordinator.close()
    assert isinstance(prefilling.error, ConnectionLost)
    assert client.statistics().unreleased == 0
    assert client._exchange._scopes == 0


async def test_a_reply_read_after_its_connection_was_lost_brings_nothing_to_release(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    signals = client._exchange.signals
    first = signals.hold(5, signals.epoch)
    signals.on_lost()
    second = signals.hold(6, signals.epoch - 1)
    assert signals.unreleased == 2
    signals.release(first)
    signals.release(second)
    assert await sent(coordinator, client) == []


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_reply_whose_connection_is_gone_before_it_is_read_is_counted_and_not_released(
    coordinator: ScriptedCoordinator, client: InferenceClient, *, cancelled: bool
) -> None:
    async with submitted(coordinator, client) as (prefilling, request):
        exchange = client._exchange

        def losing(frames: Any) -> None:
            if cancelled:
                prefilling.scope.cancel()
            exchange.on_frames(frames)
            exchange.on_lost("gone")  # as if the next connection were up already

        hear_by(client, losing)
        coordinator.reply(request, [9], **pinned(5))
        await until(lambda: client.statistics().unreleased == 1)
        prefilling.scope.cancel()
    assert await released(coordinator, client) == []
    assert client.statistics().unreleased == 1


# Leaving the client


async def test_leaving_releases_what_is_held_and_the_block_does_not_again(
    coordinator: ScriptedCoordinator,
) -> None:
    async with open_client(coordinator.address, close_timeout=60) as client:
        async with handed_over(coordinator, client):
            await client.aclose()
            await coordinator.next(Kind.RELEASE_KV)
    assert coordinator.of(Kind.RELEASE_KV) == [77]


async def test_what_its_block_has_released_is_not_released_again_by_leaving(
    coordinator: ScriptedCoordinator,
) -> None:
    async with open_client(coordinator.address, close_timeout=60) as client:
        async with handed_over(coordinator, client) as prefilling:
            await prefilling.leave()
        assert await released(coordinator, client) == [77]
    assert client.statistics().unreleased == 0, "it was held to the end of the connection"


async def test_leaving_waits_for_the_reply_of_a_prefill_and_releases_what_it_brings(
    coordinator: ScriptedCoordinator,
) -> None:
    coordinator.answers_aborts = False
    async with open_client(coordinator.address, close_timeout=60) as client:
        async with (
            submitted(coordinator, client) as (prefilling, request),
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(client.aclose)
            await coordinator.abort()
            await trio.testing.wait_all_tasks_blocked()
            coordinator.reply(request, [9], **pinned(5))
        assert isinstance(prefilling.error, trio.ClosedResourceError)
    assert (await coordinator.next(Kind.RELEASE_KV)).id == 5
    assert client.statistics().undelivered == 0


async def test_a_reply_that_is_read_only_when_the_client_leaves_is_released(
    coordinator: ScriptedCoordinator,
) -> None:
    async with open_client(coordinator.address, close_timeout=60) as client:
        async with submitted(coordinator, client) as (prefilling, request):
            exchange = client._exchange

            def leaving(frames: Any) -> None:
                exchange.on_frames(frames)
                client._lifetime.begin_leaving()  # before the task that waits has read it

            hear_by(client, leaving)
            coordinator.reply(request, [9], **pinned(5))
        assert isinstance(prefilling.error, trio.ClosedResourceError)
        assert prefilling.handoff is None
    assert (await coordinator.next(Kind.RELEASE_KV)).id == 5
    assert coordinator.of(Kind.RELEASE_KV) == [5]


# Handles that are kept elsewhere


async def test_a_handle_kept_elsewhere_is_released_by_its_number(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    client.release_handoff(12)
    assert (await coordinator.next(Kind.RELEASE_KV)).id == 12


async def test_what_was_released_by_hand_is_not_released_again(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with handed_over(coordinator, client) as prefilling:
        client.release_handoff(77)
        await prefilling.leave()
        assert await released(coordinator, client) == [77]


@pytest.mark.parametrize(
    ("number", "error"), [("7", TypeError), (True, TypeError), (-1, ValueError)]
)
async def test_what_is_no_number_is_refused(
    client: InferenceClient, number: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="request_id must be"):
        client.release_handoff(number)


async def test_by_hand_nothing_can_be_released_without_a_connection_or_a_client(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    coordinator.close()
    await disconnected(client)
    with pytest.raises(ConnectionLost):
        client.release_handoff(7)
    await client.aclose()
    with pytest.raises(trio.ClosedResourceError):
        client.release_handoff(7)


# Two deployments


@pytest.fixture
async def deployments() -> AsyncGenerator[tuple[EmbeddedCoordinator, EmbeddedCoordinator]]:
    async with open_coordinator(seed=1) as prefill, open_coordinator(seed=1) as decode:
        yield prefill, decode
        for coordinator in (prefill, decode):
            assert coordinator.pinned == ()
            assert "dead" not in coordinator.engine_states


greedy = partial(SamplingParams, top_k=1, num_tokens_to_generate=20)


async def test_a_request_goes_on_in_another_deployment(
    deployments: tuple[EmbeddedCoordinator, EmbeddedCoordinator],
) -> None:
    prompt = list(b"The value of")
    async with (
        open_client(deployments[0].address) as prefill,
        open_client(deployments[1].address) as decode,
    ):
        async with prefill.prefill(prompt) as handoff:
            assert deployments[0].pinned == (handoff.request_id,)
            completion = await decode.generate(prompt, greedy(), kv_handoff=handoff)
            async with decode.stream(prompt, greedy(), kv_handoff=handoff) as stream:
                assert (await stream.result()).generated_tokens == completion.generated_tokens
        await deployments[0].wait_until(lambda: not deployments[0].pinned)
        whole = await decode.generate(prompt, greedy())
    assert completion.generated_tokens == whole.generated_tokens


@pytest.mark.parametrize("changes", range(8))
async def test_a_prefill_cancelled_at_any_moment_leaves_nothing_pinned(changes: int) -> None:
    prompt, phases = list(b"The value of"), set()
    async with open_coordinator() as coordinator, open_client(coordinator.address) as client:
        for budget in range(1, 6):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(cancel_after, coordinator, changes, scope)
                    params = greedy(num_tokens_to_generate=budget)
                    async with client.prefill(prompt, params):
                        phases.add("entered")
                        if changes:
                            scope.cancel()
                        await trio.sleep_forever()
        phases |= {"left"} if client.statistics().aborted else set()
        await settled(client)
        await coordinator.wait_until(lambda: not coordinator.pinned)
        assert client.statistics().unreleased == 0
    assert coordinator.statistics().unroutable == 0
    expected = {0: set(), 1: {"left"}, 7: {"entered"}}
    assert phases >= expected.get(changes, set())


async def cancel_after(
    coordinator: EmbeddedCoordinator, changes: int, scope: trio.CancelScope
) -> None:
    """Cancels when the coordinator has taken so many messages or steps."""
    seen = -1

    def count() -> bool:
        nonlocal seen
        seen += 1
        return seen >= changes

    await coordinator.wait_until(count)
    scope.cancel()


async def test_a_block_of_an_earlier_connection_releases_nobody_elses_handoff(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with handed_over(coordinator, client) as first:
        coordinator.close()
        async with scripted_coordinator(coordinator.address) as successor:
            await until(lambda: client.statistics().connections == 2)
            # The new engine counts as the old one did.
            async with handed_over(successor, client) as second:
                await first.leave()
                assert await released(successor, client) == []
                await second.leave()
                assert await released(successor, client) == [77]
                assert client.statistics().unreleased == 1


@pytest.mark.parametrize("where", ["head", "body"])
async def test_what_the_final_reply_brings_after_a_broken_partial_is_released(
    coordinator: ScriptedCoordinator, client: InferenceClient, where: str
) -> None:
    coordinator.answers_aborts = False
    async with submitted(coordinator, client) as (prefilling, request):
        frames: list[Any] = coordinator.partial_frames(request, [1])
        broken = [*frames, b""] if where == "head" else [*frames[:-1], b"\xc1"]
        coordinator.send(request.client, broken)
    assert isinstance(prefilling.error, RemoteProtocolError)
    await coordinator.abort()
    coordinator.reply(request, [9], **pinned(5))
    await settled(client)
    assert await released(coordinator, client) == [5]


@pytest.mark.parametrize("fields", [{"status": "FAILED"}, {"generated_text": 7}], ids=str)
async def test_a_handle_beside_a_failure_or_nonsense_is_released(
    coordinator: ScriptedCoordinator, client: InferenceClient, fields: dict[str, Any]
) -> None:
    async with submitted(coordinator, client) as (_, request):
        coordinator.reply(request, [9], **fields, **pinned(5))
    assert await released(coordinator, client) == [5]


async def test_a_handle_with_a_number_that_is_none_sends_nothing(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    """The codec of the coordinator refuses a release of -1, and the real one may die of it."""
    async with submitted(coordinator, client) as (prefilling, request):
        coordinator.reply(request, [9], **pinned(-1))
        await until(lambda: prefilling.handoff is not None or prefilling.error is not None)
        prefilling.scope.cancel()
    assert isinstance(prefilling.error, RemoteProtocolError)
