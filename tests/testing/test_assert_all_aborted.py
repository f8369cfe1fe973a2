"""What `assert_all_aborted` lets pass, and what it says of what it does not."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio

from trio_infer import InferenceClient, SamplingParams, open_client
from trio_infer.embedded import EmbeddedCoordinator, open_coordinator
from trio_infer.testing import IN_MEMORY, Faults, assert_all_aborted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.abc import Clock

ENDLESS = SamplingParams(num_tokens_to_generate=100_000, termination_id=-1)


@asynccontextmanager
async def opened(**options: Any) -> AsyncIterator[tuple[EmbeddedCoordinator, InferenceClient]]:
    """A coordinator that takes a second for each token, and a client."""
    defaults: dict[str, Any] = {"bind": IN_MEMORY, "step_time": 1.0}
    async with open_coordinator(**defaults | options) as coordinator:
        async with open_client(coordinator.address) as client:
            yield coordinator, client


def budget(tokens: int) -> SamplingParams:
    return SamplingParams(num_tokens_to_generate=tokens, termination_id=-1)


async def complaint(coordinator: EmbeddedCoordinator, **options: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        await assert_all_aborted(coordinator, **options)
    return str(caught.value)


async def test_requests_that_were_left_are_waited_for(autojump_clock: Clock) -> None:
    async with opened() as (coordinator, client):
        with trio.move_on_after(2.5):
            await client.generate("A class is", ENDLESS)
        assert [each.state for each in coordinator.requests] == ["running"]  # as far as it knows
        await assert_all_aborted(coordinator, completed=0)
        assert coordinator.requests == ()


async def test_nothing_to_abort_is_all_right(autojump_clock: Clock) -> None:
    async with opened() as (coordinator, _):
        await assert_all_aborted(coordinator, completed=0)


async def test_what_still_runs_and_what_waits_is_named_and_since_when(
    autojump_clock: Clock,
) -> None:
    async with opened(max_requests=1) as (coordinator, client):
        async with client.stream("Structured concurrency is", ENDLESS):
            await trio.sleep(4.25)
            async with client.stream([1, 2, 3], ENDLESS):
                await trio.sleep(0.5)
                assert await complaint(coordinator, within=2) == (
                    "not aborted within 2 s:\n"
                    "- request 0, running, which came 6.75 s ago: "
                    "6 tokens for 'Structured concurrency is'\n"
                    "- request 1, waiting, which came 2.5 s ago: 0 tokens for [1, 2, 3]"
                )
        await assert_all_aborted(coordinator)


async def test_what_is_decoded_to_the_end_meanwhile_was_not_aborted(autojump_clock: Clock) -> None:
    async with opened(keep_requests=True) as (coordinator, client):
        await client.generate("wanted", budget(1))
        async with client.stream("forgotten", budget(3)):
            await trio.sleep(1.5)
            assert await complaint(coordinator, within=60) == (
                "decoded to the end: 2, where 1 may be\n"
                "- request 1, completed, which came 3 s ago: 3 tokens for 'forgotten'"
            )


async def test_so_it_is_where_the_coordinator_keeps_no_requests(autojump_clock: Clock) -> None:
    async with opened() as (coordinator, client):
        async with client.stream("forgotten", budget(3)):
            await trio.sleep(1.5)
            said = await complaint(coordinator, within=60)
            assert said == "decoded to the end: 1, where 0 may be"


async def test_what_was_decoded_to_the_end_before_is_found_by_its_number(
    autojump_clock: Clock,
) -> None:
    async with opened(keep_requests=True) as (coordinator, client):
        await client.generate("wanted", budget(1))
        await client.generate("forgotten", budget(1))
        await assert_all_aborted(coordinator)
        await assert_all_aborted(coordinator, completed=2)
        assert (await complaint(coordinator, completed=1)).splitlines() == [
            "decoded to the end: 2, where 1 may be",
            "- request 0, completed, which came 2 s ago: 1 tokens for 'wanted'",
            "- request 1, completed, which came 1 s ago: 1 tokens for 'forgotten'",
        ]


@pytest.mark.parametrize("bind", [IN_MEMORY, "tcp://127.0.0.1:*"])
async def test_a_request_that_is_still_on_its_way_is_not_overlooked(bind: str) -> None:
    async with opened(bind=bind) as (coordinator, client):
        async with client.stream("forgotten", ENDLESS):
            assert "for 'forgotten'" in await complaint(coordinator, within=0.5)
        await assert_all_aborted(coordinator, completed=0, within=60)


async def test_what_is_aborted_while_engines_are_paused_is_not_waited_for(
    autojump_clock: Clock,
) -> None:
    async with opened() as (coordinator, client):
        with trio.move_on_after(2.5):
            await client.generate("A class is", ENDLESS)
        coordinator.pause()
        began = trio.current_time()
        await assert_all_aborted(coordinator, within=60)
        assert trio.current_time() == began
        coordinator.unpause()


async def test_what_is_not_aborted_is_named_though_engines_are_paused(
    autojump_clock: Clock,
) -> None:
    async with opened() as (coordinator, client):
        async with client.stream("A class is", ENDLESS):
            coordinator.pause()
            assert "request 0, waiting, " in await complaint(coordinator)
        coordinator.unpause()


async def test_a_step_that_takes_longer_is_not_held_against_an_abort(autojump_clock: Clock) -> None:
    async with opened(step_time=10.0) as (coordinator, client):
        with trio.move_on_after(15):
            await client.generate("A class is", ENDLESS)
        await assert_all_aborted(coordinator)
        assert [each.state for each in coordinator.requests] == ["aborting"]


async def test_a_frozen_coordinator_is_said_to_be_frozen(autojump_clock: Clock) -> None:
    async with opened() as (coordinator, client):
        with trio.move_on_after(2.5):
            async with client.stream("A class is", ENDLESS) as stream:
                await stream.receive()
                coordinator.freeze()
                await trio.sleep_forever()
        said = await complaint(coordinator)
        assert said.startswith("not aborted within 1 s, and the coordinator is frozen:\n")
        coordinator.thaw()
        await assert_all_aborted(coordinator)


async def test_requests_that_failed_or_went_down_with_an_engine_nobody_decodes(
    autojump_clock: Clock,
) -> None:
    async with opened(faults=Faults(fail=1.0), engines=2) as (coordinator, client):
        async with client.stream("A class is", ENDLESS):
            await coordinator.wait_until(lambda: coordinator.statistics().failed == 1)
            coordinator.faults = Faults()
            async with client.stream("A class is", ENDLESS):
                await coordinator.wait_until(lambda: len(coordinator.running) == 1)
                coordinator.kill_engine(coordinator.running[0].engine)
                await assert_all_aborted(coordinator, completed=0)


async def test_cancelling_it_changes_nothing(autojump_clock: Clock) -> None:
    async with opened() as (coordinator, client):
        async with client.stream("A class is", ENDLESS):
            with trio.move_on_after(2.5) as scope:
                await assert_all_aborted(coordinator, within=60)
            assert scope.cancelled_caught
            assert [each.state for each in coordinator.requests] == ["running"]


async def test_a_client_is_no_coordinator(autojump_clock: Clock) -> None:
    async with opened() as (_, client):
        with pytest.raises(TypeError, match="EmbeddedCoordinator, not InferenceClient"):
            await assert_all_aborted(client)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"completed": -1}, "completed must be at least 0, not -1"),
        ({"completed": "x"}, "completed must be an int, not str"),
        ({"completed": True}, "completed must be an int, not bool"),
        ({"within": -1}, "within must be at least 0 seconds, not -1"),
    ],
)
async def test_what_counts_nothing_is_refused_before_anything_is_waited_for(
    autojump_clock: Clock, arguments: dict[str, Any], complaint: str
) -> None:
    async with opened() as (coordinator, _):
        began = trio.current_time()
        with pytest.raises((TypeError, ValueError), match=complaint):
            await assert_all_aborted(coordinator, **arguments)
        assert trio.current_time() == began
