"""Groups: many requests by one channel, each test named for what a user may rely on."""

from __future__ import annotations

import gc
import math
import sys
import weakref
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import attrs
import numpy as np
import pytest
import trio
import trio.testing

from tests.echoing import HELD, echoing
from tests.peers import Received, ScriptedCoordinator, finished, scripted_coordinator
from tests.stepping import Moment, run_at_each_step
from tests.ticks import arrive
from tests.turns import turns_during
from tests.waiting import disconnected, settled, until
from trio_infer import (
    Completion,
    ConnectionLost,
    GenerateRequest,
    InferenceClient,
    LocalProtocolError,
    Outcome,
    RemoteProtocolError,
    RequestFailed,
    RequestGroup,
    SamplingParams,
    UnsupportedByDialect,
    open_client,
)
from trio_infer.embedded import Faults, open_coordinator
from trio_infer.groups.member import Member
from trio_infer.groups.outcomes import TOLERATED_UNWANTED
from trio_infer.protocol import preparation
from trio_infer.protocol.coordinator_codec import CoordinatorCodec
from trio_infer.protocol.dialect import Kind
from trio_infer.protocol.dialects import FRAMED
from trio_infer.protocol.preparation import HEAVY_BYTES
from trio_infer.protocol.unpacking import HEAVY_BODY
from trio_infer.sockets import ROUTER, Link, network_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from trio_infer.protocol.packing import Frames

LONG = SamplingParams(num_tokens_to_generate=100_000)

Group = RequestGroup[Completion]


@pytest.fixture
def bind() -> str:
    return "memory://*"


def asked(prompt: str = "hi", **others: Any) -> GenerateRequest:
    return GenerateRequest(prompt, LONG, **others)


async def all_of(group: Group) -> list[Outcome[Completion]]:
    return [outcome async for outcome in group.outcomes]


async def note_all(indices: list[int], group: Group) -> None:
    """Receives them all, and adds the index of each."""
    indices.extend([outcome.index for outcome in await all_of(group)])


async def submit_in(scope: trio.CancelScope, group: Group, request: GenerateRequest) -> None:
    with scope:
        await group.submit(request)


def tokens_of(outcome: Outcome[Completion]) -> list[int]:
    return list(outcome.unwrap().generated_tokens)


class Stop(Exception):
    """What a user's code raises."""


# Submitting, and receiving


async def test_indices_count_up_in_the_order_of_submission(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.open_group() as group:
        for number in range(0, 20, 2):
            assert group.submit_nowait(asked(str(number))) == number
            assert await group.submit(asked(str(number + 1))) == number + 1
        arrived = [(await coordinator.submission()).message.prompt for _ in range(20)]
    assert arrived == [str(number) for number in range(20)]


async def test_each_group_counts_from_nought(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.open_group() as first, client.open_group() as second:
        assert [first.submit_nowait(asked()), second.submit_nowait(asked())] == [0, 0]
        assert [first.submit_nowait(asked()), await second.submit(asked())] == [1, 1]
        for _ in range(4):
            coordinator.reply(await coordinator.submission(), [1])
        assert [outcome.index for outcome in await all_of(first)] == [0, 1]
        assert [outcome.index for outcome in await all_of(second)] == [0, 1]


async def test_outcomes_come_as_requests_finish_each_with_its_request_and_its_times(
    autojump_clock: trio.testing.MockClock,
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
) -> None:
    requests = [asked(str(number), tag=object()) for number in range(4)]
    seen: list[int] = []
    async with client.open_group() as group:
        submissions: list[Received] = []
        for request in requests:
            group.submit_nowait(request)
            submissions.append(await coordinator.submission())
            await trio.sleep(1)
        for number in (2, 0, 3, 1):
            coordinator.reply(submissions[number], [number])
            outcome = await group.outcomes.receive()
            seen.append(outcome.index)
            assert outcome.request is requests[number]
            assert tokens_of(outcome) == [number]
            completion = outcome.completion
            assert completion is not None
            assert completion.request_id == submissions[number].id
            assert completion.latency == pytest.approx(4 - number)
            assert completion.time_to_first_token is None
            assert outcome.error is None
    assert seen == [2, 0, 3, 1]


async def test_the_wait_for_a_turn_does_not_count_as_latency(
    autojump_clock: trio.testing.MockClock,
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
) -> None:
    async with client.open_group(max_concurrency=1) as group, trio.open_nursery() as nursery:
        group.submit_nowait(asked())
        nursery.start_soon(group.submit, asked())
        first = await coordinator.submission()
        await trio.sleep(10)
        coordinator.reply(first, [1])
        await group.outcomes.receive()
        second = await coordinator.submission()
        await trio.sleep(1)
        coordinator.reply(second, [2])
        assert (await group.outcomes.receive()).unwrap().latency == pytest.approx(1)


async def would_block(client: InferenceClient, group: Group) -> None:
    """Checks that submitting is refused, and that nothing comes of it."""
    before = client.statistics()
    for _ in range(3):
        with pytest.raises(trio.WouldBlock):
            group.submit_nowait(asked("refused"))
    assert client.statistics() == before
    await trio.testing.wait_all_tasks_blocked()


async def test_submit_nowait_at_max_concurrency_would_block_and_sends_nothing(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.open_group(max_concurrency=2) as group:
        group.submit_nowait(asked())
        group.submit_nowait(asked())
        await would_block(client, group)
        coordinator.reply(await coordinator.submission(), [1])
        await group.outcomes.receive()
        assert group.submit_nowait(asked()) == 2, "refusals take no index"
    assert await prompts_sent(coordinator, client) == ["hi"] * 3


async def test_submit_nowait_at_max_in_flight_would_block_and_sends_nothing(
    coordinator: ScriptedCoordinator,
) -> None:
    async with open_client(coordinator.address, max_in_flight=2) as client:
        async with client.stream("hi", LONG), client.open_group() as group:
            group.submit_nowait(asked())
            await would_block(client, group)
        assert await prompts_sent(coordinator, client) == ["hi"] * 2


async def test_submit_nowait_without_a_connection_would_block_and_sends_nothing(
    autojump_clock: trio.testing.MockClock,
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
) -> None:
    async with client.open_group() as group:
        group.submit_nowait(asked())
        await coordinator.submission()
        coordinator.close()
        with pytest.raises(ConnectionLost):
            (await group.outcomes.receive()).unwrap()
        await would_block(client, group)
        async with scripted_coordinator(coordinator.address) as second:
            await until(lambda: client.statistics().connections == 2)
            assert group.submit_nowait(asked("again")) == 1
            second.reply(await second.submission(), [1])
            assert tokens_of(await group.outcomes.receive()) == [1]
            assert len(second.log) == 1


async def test_submit_nowait_that_finds_the_connection_broken_would_block(
    autojump_clock: trio.testing.MockClock,
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
) -> None:
    """Before the client itself has heard of it."""
    async with client.open_group() as group:
        coordinator.close()
        await would_block(client, group)
        with pytest.raises(trio.WouldBlock):
            group._outcomes.receive_nowait()


async def prompts_sent(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> list[str | list[int] | None]:
    await settled(client)
    return [each.message.prompt for each in coordinator.log if each.kind is Kind.SUBMIT_REQUEST]


async def test_receiving_waits_for_the_first_submission(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    received: list[int] = []
    async with client.open_group() as group:
        with pytest.raises(trio.WouldBlock):
            group._outcomes.receive_nowait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note_all, received, group)
            nursery.start_soon(note_all, received, group)
            await trio.testing.wait_all_tasks_blocked()
            group.submit_nowait(asked())
            coordinator.reply(await coordinator.submission(), [1])
    assert received == [0]


async def test_receiving_goes_on_waiting_if_the_first_submission_is_given_up(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    """It never was, so nothing has begun that could have ended."""
    received: list[int] = []
    async with client.open_group() as group, trio.open_nursery() as nursery:
        nursery.start_soon(note_all, received, group)
        await trio.testing.wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            scope.cancel()
            await group.submit(asked("never"))
        await trio.testing.wait_all_tasks_blocked()
        group.submit_nowait(asked("first"))
        coordinator.reply(await coordinator.submission(), [1])
    assert received == [0]


async def test_receiving_ends_when_nothing_is_outstanding_and_goes_on_after_the_next_submission(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.open_group() as group:
        for number in range(3):
            await group.submit(asked())
            coordinator.reply(await coordinator.submission(), [number])
            assert [tokens_of(outcome) for outcome in await all_of(group)] == [[number]]
            with pytest.raises(trio.EndOfChannel):
                await group.outcomes.receive()
            with pytest.raises(trio.EndOfChannel):
                group._outcomes.receive_nowait()


async def test_all_of_several_receivers_end_when_the_last_outcome_goes_to_one_of_them(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    received: list[int] = []
    async with client.open_group() as group:
        for _ in range(10):
            group.submit_nowait(asked())
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(note_all, received, group)
            for _ in range(10):
                await trio.testing.wait_all_tasks_blocked()
                coordinator.reply(await coordinator.submission(), [1])
    assert sorted(received) == list(range(10))


async def test_a_worker_that_submits_what_its_outcome_begets_keeps_the_others_at_work(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    """The last outcome is out for a moment, and the other workers do not take that for the end."""
    seen: Counter[int] = Counter()

    async def work(worker: int) -> None:
        async for outcome in group.outcomes:
            seen[worker] += 1
            depth = len(str(outcome.request.prompt))
            if depth < 8:
                await group.submit(asked("x" * (depth + 1)))

    async with echoing(coordinator):
        async with client.open_group() as group, trio.open_nursery() as nursery:
            await group.submit(asked("x"))
            for worker in range(3):
                nursery.start_soon(work, worker)
    assert seen.total() == 8
    assert len(seen) > 1, "one worker has done it all"


async def test_a_pending_submission_keeps_the_outcomes_open(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.open_group(max_concurrency=1) as group:
        group.submit_nowait(asked("first"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(group.submit, asked("second"))
            await trio.testing.wait_all_tasks_blocked()
            coordinator.reply(await coordinator.submission(), [1])
            assert tokens_of(await group.outcomes.receive()) == [1]
            # No checkpoint in between: the second one has not been submitted yet.
            with pytest.raises(trio.WouldBlock):
                group._outcomes.receive_nowait()
            coordinator.reply(await coordinator.submission(), [2])
            assert [tokens_of(outcome) for outcome in await all_of(group)] == [[2]]


async def test_a_pending_submission_that_is_given_up_ends_the_outcomes(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    scope = trio.CancelScope()
    async with client.open_group(max_concurrency=1) as group, trio.open_nursery() as nursery:
        group.submit_nowait(asked("first"))
        nursery.start_soon(submit_in, scope, group, asked("second"))
        nursery.start_soon(all_of, group)
        nursery.start_soon(all_of, group)
        await trio.testing.wait_all_tasks_blocked()
        submission = await coordinator.submission()
        scope.cancel()
        coordinator.reply(submission, [1])


async def test_outcomes_stay_open_for_who_says_that_there_is_more_to_come(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    received: list[int] = []
    async with client.open_group() as group, trio.open_nursery() as nursery:
        with group.keep_open():
            nursery.start_soon(note_all, received, group)
            nursery.start_soon(note_all, received, group)
            for _ in range(3):
                group.submit_nowait(asked())
                coordinator.reply(await coordinator.submission(), [1])
                await trio.testing.wait_all_tasks_blocked()
    assert sorted(received) == [0, 1, 2]


async def test_outcomes_end_when_who_had_more_to_come_has_nothing(
    client: InferenceClient,
) -> None:
    async with client.open_group() as group, trio.open_nursery() as nursery:
        with group.keep_open():
            nursery.start_soon(all_of, group)
            await trio.testing.wait_all_tasks_blocked()
        assert await all_of(group) == []


async def test_who_has_more_to_come_for_a_group_that_takes_nothing_yet_is_told_so(
    client: InferenceClient,
) -> None:
    group = client.open_group()
    with pytest.raises(LocalProtocolError, match="has not been entered"), group.keep_open():
        pytest.fail("let in")
    async with group:
        pass
    with group.keep_open(), pytest.raises(trio.ClosedResourceError):
        group.submit_nowait(asked())


async def test_an_unread_outcome_occupies_max_concurrency(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.open_group(max_concurrency=1) as group:
        group.submit_nowait(asked())
        coordinator.reply(await coordinator.submission(), [1])
        await until(lambda: client.statistics().completed == 1)
        await would_block(client, group)
        group._outcomes.receive_nowait()
        group.submit_nowait(asked())


async def test_never_more_than_max_concurrency_run_or_are_unread(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    most = 0

    async def submit() -> None:
        nonlocal most
        await group.submit(asked())
        most = max(most, len(group._members))

    async with echoing(coordinator):
        async with client.open_group(max_concurrency=3) as group, trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(submit)
            assert len(await all_of(group)) == 50
    assert most == 3


async def test_those_who_wait_for_max_concurrency_are_let_in_in_their_order(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.open_group(max_concurrency=4) as group, trio.open_nursery() as nursery:
        for number in range(12):
            nursery.start_soon(group.submit, asked(str(number)))
            await trio.testing.wait_all_tasks_blocked()
        submissions: list[Received] = []
        for _ in range(3):  # four at once
            submissions += [await coordinator.submission() for _ in range(4)]
            for submission in submissions[-4:]:
                coordinator.reply(submission, [1])
            for _ in range(4):
                await group.outcomes.receive()
    assert [each.message.prompt for each in submissions] == [str(n) for n in range(12)]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_admits_nobody_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="max_in_flight"):
        open_client("tcp://h:1", max_in_flight=limit)


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "2"])
async def test_what_is_no_limit_is_refused(client: InferenceClient, limit: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="max_concurrency"):
        client.open_group(max_concurrency=limit)


@pytest.mark.parametrize("limit", [np.int64(1), np.uint8(1)])
async def test_numbers_of_numpy_are_limits(client: InferenceClient, limit: Any) -> None:
    async with client.open_group(max_concurrency=limit) as group:
        group.submit_nowait(asked())
        await would_block(client, group)


@pytest.mark.parametrize("request_", ["hi", None, ("hi", LONG)])
async def test_what_is_no_request_is_refused_and_sends_nothing(
    client: InferenceClient, request_: Any
) -> None:
    async with client.open_group() as group:
        with pytest.raises(TypeError, match="GenerateRequest"):
            group.submit_nowait(request_)
        with pytest.raises(TypeError, match="GenerateRequest"):
            await group.submit(request_)
    assert client.statistics().submitted == 0


async def test_a_wrong_request_is_refused_and_the_group_goes_on(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    wrong = GenerateRequest("")
    async with client.open_group(max_concurrency=1) as group:
        for _ in range(2):
            with pytest.raises(ValueError, match="prompt"):
                group.submit_nowait(wrong)
            with pytest.raises(ValueError, match="prompt"):
                await group.submit(wrong)
        assert group.submit_nowait(asked()) == 0
        coordinator.reply(await coordinator.submission(), [1])
        assert len(await all_of(group)) == 1


async def test_all_that_a_request_holds_arrives(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    image = {"image": b"\x89PNG"}
    async with client.open_group() as group:
        group.submit_nowait(asked(multi_modal_data=image, offload_params={"trace": 1}))
        message = (await coordinator.submission()).message
    assert message.offload_params == {"trace": 1}
    assert message.media is not None
    assert message.sampling_params is not None
    assert message.sampling_params["num_tokens_to_generate"] == 100_000
    assert not message.sampling_params["streaming"]


async def test_a_large_request_is_submitted_either_way(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    large = asked("x" * (HEAVY_BYTES + 1))
    async with client.open_group() as group:
        assert group.submit_nowait(large) == 0
        assert await group.submit(large) == 1
        assert await group.submit(asked("small")) == 2
        prompts = [(await coordinator.submission()).message.prompt for _ in range(3)]
    assert prompts == [large.prompt, large.prompt, "small"]


async def test_who_tries_again_to_submit_a_large_request_need_not_wait_for_its_packing_each_time(
    autojump_clock: trio.testing.MockClock,
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pack = Mock(return_value=b"\xc0")
    monkeypatch.setattr(preparation, "pack", pack)
    async with client.open_group() as group:
        coordinator.close()
        await disconnected(client)
        for _ in range(3):
            with pytest.raises(trio.WouldBlock):
                group.submit_nowait(asked("x" * HEAVY_BYTES))
    pack.assert_not_called()


# Cancelling


async def test_a_running_request_is_cancelled_alone_and_yields_no_outcome(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.open_group() as group:
        for _ in range(3):
            group.submit_nowait(asked())
        group.cancel(1)
        assert client.statistics().aborted == 1  # no checkpoint in between
        group.cancel(1)
        for submission in [await coordinator.submission() for _ in range(3)]:
            if submission.id != 1:
                coordinator.reply(submission, [submission.id])
        assert sorted([outcome.index for outcome in await all_of(group)]) == [0, 2]
    await settled(client)
    assert coordinator.of(Kind.ABORT_REQUEST) == [1]


async def test_an_unread_outcome_is_cancelled_without_an_abort_and_its_place_is_free(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.open_group(max_concurrency=2) as group:
        for _ in range(2):
            group.submit_nowait(asked())
        submissions = [await coordinator.submission() for _ in range(2)]
        coordinator.reply(submissions[0], [0])
        await until(lambda: client.statistics().completed)
        group.cancel(0)
        assert group.submit_nowait(asked()) == 2
        coordinator.reply(submissions[1], [1])
        coordinator.reply(await coordinator.submission(), [2])
        assert [outcome.index for outcome in await all_of(group)] == [1, 2]
    assert coordinator.of(Kind.ABORT_REQUEST) == []


async def test_a_received_outcome_is_not_cancelled_any_more(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.open_group() as group:
        group.submit_nowait(asked())
        coordinator.reply(await coordinator.submission(), [0])
        await group.outcomes.receive()
        before = client.statistics()
        group.cancel(0)
        group.cancel()
        assert client.statistics() == before
    assert coordinator.of(Kind.ABORT_REQUEST) == []


@pytest.mark.parametrize("index", [1, -1, 10**30])
async def test_cancelling_what_was_never_submitted_is_refused(
    client: InferenceClient, index: int
) -> None:
    async with client.open_group() as group:
        with pytest.raises(ValueError, match="index"):
            group.cancel(0)
        group.submit_nowait(asked())
        with pytest.raises(ValueError, match="index"):
            group.cancel(index)
        assert client.statistics().in_flight == 1


@pytest.mark.parametrize("index", ["0", 0.0, False])
async def test_cancelling_by_what_is_no_index_is_refused(
    client: InferenceClient, index: Any
) -> None:
    async with client.open_group() as group:
        group.submit_nowait(asked())
        with pytest.raises(TypeError, match="index"):
            group.cancel(index)
        assert client.statistics().in_flight == 1
        number: Any = np.int64(0)
        group.cancel(number)
        assert client.statistics().in_flight == 0


async def test_all_are_cancelled_at_once_and_the_group_goes_on(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.open_group(max_concurrency=5) as group:
        group.cancel()
        for _ in range(5):
            group.submit_nowait(asked())
        submissions = [await coordinator.submission() for _ in range(5)]
        coordinator.reply(submissions[0], [0])
        coordinator.reply(submissions[1], [1])
        await group.outcomes.receive()
        await until(lambda: client.statistics().completed == 2)
        group.cancel()
        assert client.statistics().aborted == 3
        assert await all_of(group) == []
        assert group.submit_nowait(asked()) == 5
        coordinator.reply(await coordinator.submission(), [5])
        assert [tokens_of(outcome) for outcome in await all_of(group)] == [[5]]
    await settled(client)
    assert coordinator.of(Kind.ABORT_REQUEST) == [2, 3, 4]


async def test_cancelling_lets_in_who_waits_and_not_itself(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    """Only what was submitted so far is cancelled."""
    async with client.open_group(max_concurrency=1) as group, trio.open_nursery() as nursery:
        group.submit_nowait(asked("first"))
        nursery.start_soon(group.submit, asked("second"))
        await trio.testing.wait_all_tasks_blocked()
        group.cancel()
        coordinator.reply(await coordinator.submission(), [1])  # to no avail: it was cancelled
        second = await coordinator.submission()
        assert second.message.prompt == "second"
        coordinator.reply(second, [2])
        assert [tokens_of(outcome) for outcome in await all_of(group)] == [[2]]


@pytest.mark.parametrize("index", [0, None])
async def test_cancelled_in_the_tick_in_which_it_goes_to_a_parked_receiver_it_yields_no_outcome(
    coordinator: ScriptedCoordinator, client: InferenceClient, index: int | None
) -> None:
    received: list[int] = []
    async with client.open_group() as group:
        group.submit_nowait(asked())
        submission = await coordinator.submission()
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(note_all, received, group)
            await trio.testing.wait_all_tasks_blocked()
            coordinator.reply(submission, [1])
            arrive(client)
            assert client.statistics().completed == 1
            group.cancel(index)
        assert received == []
        group.submit_nowait(asked())
        coordinator.reply(await coordinator.submission(), [2])
        assert [outcome.index for outcome in await all_of(group)] == [1]
    assert coordinator.of(Kind.ABORT_REQUEST) == []


async def test_cancelled_in_the_tick_of_its_final_reply_a_request_is_not_aborted(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.open_group() as group:
        group.submit_nowait(asked())
        coordinator.reply(await coordinator.submission(), [1])
        arrive(client)
    await client.aclose()
    assert coordinator.of(Kind.ABORT_REQUEST) == []
    assert client.statistics().completed == 1


# Leaving the block


async def ends_by_break(group: Group) -> None:
    async with group:
        await submit_four(group)
        async for _ in group.outcomes:
            break


async def ends_by_exception(group: Group) -> None:
    with pytest.raises(Stop):
        async with group:
            await submit_four(group)
            await group.outcomes.receive()
            raise Stop


async def ends_by_deadline(group: Group) -> None:
    with trio.CancelScope() as scope:
        async with group:
            await submit_four(group)
            await group.outcomes.receive()
            scope.deadline = -math.inf
            await group.outcomes.receive()
    assert scope.cancelled_caught


async def ends_by_closing_the_outcomes(group: Group) -> None:
    async with group:
        await submit_four(group)
        await group.outcomes.receive()
        await group.outcomes.receive()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(group.outcomes.aclose)
            with pytest.raises(trio.ClosedResourceError):
                await group.outcomes.receive()
        assert group.closed


async def ends_by_a_cancelled_nursery_inside(group: Group) -> None:
    async with group, trio.open_nursery() as nursery:
        await submit_four(group)
        await group.outcomes.receive()
        nursery.start_soon(all_of, group)
        nursery.start_soon(group.submit, asked("fifth"))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


async def ends_by_a_crashing_task_inside(group: Group) -> None:
    async def crash() -> None:
        raise Stop

    with pytest.RaisesGroup(Stop):
        async with group, trio.open_nursery() as nursery:
            await submit_four(group)
            await group.outcomes.receive()
            nursery.start_soon(all_of, group)
            nursery.start_soon(crash)


async def submit_four(group: Group) -> None:
    for number in range(4):
        await group.submit(asked(str(number)))


@pytest.mark.parametrize(
    "end",
    [
        ends_by_break,
        ends_by_exception,
        ends_by_deadline,
        ends_by_closing_the_outcomes,
        ends_by_a_cancelled_nursery_inside,
        ends_by_a_crashing_task_inside,
    ],
)
async def test_however_a_group_is_left_the_engine_is_told_once_of_each_that_runs(
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    end: Callable[[Group], Awaitable[None]],
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end, client.open_group(max_concurrency=4))
        for submission in [await coordinator.submission() for _ in range(4)]:
            if submission.id < 2:
                coordinator.reply(submission, [1])
    assert client.statistics().in_flight == 0
    await settled(client)
    assert Counter(coordinator.of(Kind.ABORT_REQUEST)) in (
        Counter([2, 3]),
        Counter([2, 3, 4]),  # the fifth had taken the place of the first
    )
    assert client.statistics().completed == 2


async def test_the_aborts_are_sent_before_control_moves_on(client: InferenceClient) -> None:
    async with client.open_group() as group:
        for _ in range(100):
            group.submit_nowait(asked())
        assert client.statistics().in_flight == 100
    # No checkpoint in between: what the statistics say is what was sent.
    assert client.statistics().in_flight == 0
    assert client.statistics().aborted == 100


async def test_leaving_a_group_does_not_replace_what_its_block_raises_by_cancelled(
    client: InferenceClient,
) -> None:
    with pytest.raises(Stop), trio.CancelScope() as scope:
        async with client.open_group() as group:
            group.submit_nowait(asked())
            scope.cancel()
            raise Stop


async def test_what_is_submitted_at_once_in_a_cancelled_scope_is_aborted_with_the_block(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    with trio.CancelScope() as scope:
        async with client.open_group() as group:
            scope.cancel()
            group.submit_nowait(asked())
            await group.outcomes.receive()
    await settled(client)
    assert coordinator.of(Kind.ABORT_REQUEST) == [0]


async def test_a_submission_in_a_cancelled_scope_sends_nothing(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.open_group() as group:
        for request in (asked("never"), asked("x" * (HEAVY_BYTES + 1))):
            with trio.CancelScope() as scope:
                scope.cancel()
                await group.submit(request)
            assert scope.cancelled_caught
        group.submit_nowait(asked("marker"))
    assert await prompts_sent(coordinator, client) == ["marker"]


async def test_a_submission_cancelled_while_it_waits_sends_nothing(
    autojump_clock: trio.testing.MockClock, coordinator: ScriptedCoordinator
) -> None:
    """For the group, for the client, and for the connection."""
    async with open_client(coordinator.address, max_in_flight=1) as client:
        async with client.open_group(max_concurrency=1) as full, client.open_group() as other:
            full.submit_nowait(asked("runs"))
            for group in (full, other):
                with trio.move_on_after(1) as scope:
                    await group.submit(asked("never"))
                assert scope.cancelled_caught
                assert client.statistics().waiting == 0
            coordinator.acks = False
            coordinator.send((await coordinator.submission()).client, [b"", b"x" * 2**29])
            await until(lambda: client.statistics().lost)
            with trio.move_on_after(1) as scope:
                await other.submit(asked("never"))
            assert scope.cancelled_caught
            assert client.statistics().waiting == 0
            assert (await full.outcomes.receive()).index == 0
            assert await all_of(full) == []
    assert [each.message.prompt for each in coordinator.log] == ["runs"]


async def test_a_submission_cancelled_in_the_tick_of_its_turn_passes_the_turn_on(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    scope = trio.CancelScope()
    async with client.open_group(max_concurrency=1) as group, trio.open_nursery() as nursery:
        group.submit_nowait(asked("first"))
        nursery.start_soon(submit_in, scope, group, asked("never"))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(group.submit, asked("second"))
        await trio.testing.wait_all_tasks_blocked()
        group.cancel(0)
        scope.cancel()
    assert await prompts_sent(coordinator, client) == ["first", "second"]
    assert group._admission._promised == 0


async def close_groups(client: InferenceClient, *groups: Group) -> None:
    for group in groups:
        group.close()


async def close_client(client: InferenceClient, *groups: Group) -> None:
    await client.aclose()


@pytest.mark.parametrize("close", [close_groups, close_client])
async def test_who_submits_or_receives_while_it_is_closed_is_told(
    coordinator: ScriptedCoordinator, close: Callable[..., Awaitable[None]]
) -> None:
    refused: list[str] = []
    large = asked("x" * (HEAVY_BYTES + 1))

    async def is_refused(use: Callable[..., Awaitable[object]], *args: object) -> None:
        with pytest.raises(trio.ClosedResourceError, match="closed"):
            await use(*args)
        refused.append(use.__name__)

    async with open_client(coordinator.address, max_in_flight=1) as client:
        async with client.open_group(max_concurrency=1) as full, client.open_group() as group:
            async with trio.open_nursery() as nursery:
                with full.keep_open(), group.keep_open():
                    full.submit_nowait(asked("runs"))
                    for each in (full, group):
                        nursery.start_soon(is_refused, each.submit, asked())
                        nursery.start_soon(is_refused, each.submit, large)
                    nursery.start_soon(is_refused, group.outcomes.receive)
                    nursery.start_soon(is_refused, group.outcomes.receive)
                    await trio.testing.wait_all_tasks_blocked()
                    for each in (full, group):  # these are at their first checkpoint
                        nursery.start_soon(is_refused, each.submit, asked())
                    await trio.lowlevel.checkpoint()
                    await close(client, group, full)  # whose place the other one waits for
            assert len(refused) == 8
            for each in (full, group):
                with pytest.raises(trio.ClosedResourceError):
                    each.submit_nowait(asked())
    assert [each.message.prompt for each in coordinator.log] == ["runs", None]
    statistics = client.statistics()
    assert (statistics.submitted, statistics.aborted, statistics.waiting) == (1, 1, 0)


async def test_a_submission_at_its_first_checkpoint_does_not_slip_into_a_closed_group(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    """Nobody would ever abort it."""

    async def submit() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await group.submit(asked("never"))

    async with trio.open_nursery() as nursery:
        async with client.open_group() as group:
            nursery.start_soon(submit)
            await trio.lowlevel.checkpoint()
    assert client.statistics().submitted == 0


async def test_when_the_client_is_closed_each_request_yields_that(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.open_group() as group:
        for number in range(4):
            group.submit_nowait(asked(str(number)))
        for _ in range(2):
            coordinator.reply(await coordinator.submission(), [1])
        await until(lambda: client.statistics().completed == 2)
        await client.aclose()
        outcomes = await all_of(group)
    errors = {outcome.index: type(outcome.error) for outcome in outcomes}
    closed = trio.ClosedResourceError
    assert errors == {0: type(None), 1: type(None), 2: closed, 3: closed}
    statistics = client.statistics()
    assert (statistics.completed, statistics.aborted, statistics.undelivered) == (2, 2, 0)
    assert sorted(coordinator.of(Kind.ABORT_REQUEST)) == [2, 3]


async def test_who_waits_for_a_first_submission_is_told_when_the_client_is_closed(
    client: InferenceClient,
) -> None:
    async def receive() -> None:
        with pytest.raises(trio.ClosedResourceError, match="client"):
            await group.outcomes.receive()

    async with client.open_group() as group, trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        await client.aclose()
        await receive()


# Outside of its block


async def test_a_group_is_entered_once(client: InferenceClient) -> None:
    async with client.open_group() as group:
        group.submit_nowait(asked())
        with pytest.raises(LocalProtocolError, match="once"):
            await group.__aenter__()
        assert client.statistics().in_flight == 1
    with pytest.raises(LocalProtocolError, match="once"):
        await group.__aenter__()


async def test_a_group_is_not_used_before_its_block(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    group = client.open_group()
    with pytest.raises(LocalProtocolError, match="entered"):
        group.submit_nowait(asked())
    with pytest.raises(LocalProtocolError, match="entered"):
        await group.submit(asked())
    with pytest.raises(LocalProtocolError, match="entered"):
        await group.outcomes.receive()
    with pytest.raises(LocalProtocolError, match="entered"):
        group._outcomes.receive_nowait()
    group.cancel()
    async with group:  # and may be entered all the same
        group.submit_nowait(asked())
        coordinator.reply(await coordinator.submission(), [1])
        assert len(await all_of(group)) == 1


async def test_a_group_is_not_used_after_its_block(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.open_group() as group:
        group.submit_nowait(asked())
        coordinator.reply(await coordinator.submission(), [1])
        await until(lambda: client.statistics().completed)
    with pytest.raises(trio.ClosedResourceError):
        group.submit_nowait(asked())
    with pytest.raises(trio.ClosedResourceError):
        await group.submit(asked())
    with pytest.raises(trio.ClosedResourceError):
        await group.outcomes.receive()
    with pytest.raises(trio.ClosedResourceError):
        group._outcomes.receive_nowait()
    group.cancel(0)
    group.close()
    await group.outcomes.aclose()
    assert client.statistics().submitted == 1


async def test_a_group_cancelled_while_entering_is_closed_and_forgotten(
    client: InferenceClient,
) -> None:
    group = client.open_group()
    with trio.CancelScope() as scope:
        scope.cancel()
        async with group:
            pytest.fail("entered")
    with pytest.raises(trio.ClosedResourceError):
        group.submit_nowait(asked())
    assert not client._exchange.on_closing


async def test_a_group_of_a_closed_client_is_not_entered(client: InferenceClient) -> None:
    await client.aclose()
    with pytest.raises(trio.ClosedResourceError):
        async with client.open_group():
            pytest.fail("entered")


async def test_a_group_may_outlive_the_block_of_its_client(
    coordinator: ScriptedCoordinator,
) -> None:
    async with open_client(coordinator.address) as client:
        group = client.open_group()
        await group.__aenter__()
        group.submit_nowait(asked())
    (outcome,) = await all_of(group)
    assert isinstance(outcome.error, trio.ClosedResourceError)
    await group.__aexit__(None, None, None)
    assert coordinator.of(Kind.ABORT_REQUEST) == [0]


async def with_unread(
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    group: Group,
    count: int,
    **others: Any,
) -> None:
    """Lets so many outcomes wait to be received."""
    for _ in range(count):
        group.submit_nowait(asked())
        coordinator.reply(await coordinator.submission(), [1, 2], **others)
    await until(lambda: client.statistics().completed == count)


@pytest.mark.parametrize(
    ("count", "others"), [(300, {}), (9, {"uid": "x" * 2**17}), (3, {"uid": "x" * 2**19})]
)
async def test_who_iterates_over_outcomes_that_are_there_does_not_stop_all_others(
    coordinator: ScriptedCoordinator, client: InferenceClient, count: int, others: dict[str, Any]
) -> None:
    async def iterate() -> None:
        assert len(await all_of(group)) == count

    async with client.open_group() as group:
        await with_unread(coordinator, client, group, count, **others)
        turns = await turns_during(iterate)
    assert turns >= (4 if count == 300 else 2)
    assert turns < count or count < 10, "they ran for each outcome"


async def test_who_iterates_is_cancelled_between_outcomes_that_are_there_and_loses_none(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.open_group() as group:
        await with_unread(coordinator, client, group, 10)
        received = []
        with trio.CancelScope() as scope:
            async for outcome in group.outcomes:
                received.append(outcome.index)
                if len(received) == 3:
                    scope.cancel()
        assert received == [0, 1, 2]
        assert [outcome.index for outcome in await all_of(group)] == [*range(3, 10)]


@pytest.mark.parametrize("receive", ["receive", "__anext__"])
async def test_a_large_reply_is_there_for_the_next_if_who_decodes_it_is_cancelled(
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    monkeypatch: pytest.MonkeyPatch,
    receive: str,
) -> None:
    scope = trio.CancelScope()
    unpack_some = Member.unpack_some

    def unpack_some_and_cancel(member: Member[Completion]) -> bool:
        scope.cancel()
        return unpack_some(member)

    async with client.open_group() as group:
        await with_unread(coordinator, client, group, 2, uid="x" * 2**20)
        with monkeypatch.context() as patch, scope:
            patch.setattr(Member, "unpack_some", unpack_some_and_cancel)
            await getattr(group.outcomes, receive)()
        assert scope.cancelled_caught
        assert sorted(outcome.index for outcome in await all_of(group)) == [0, 1]


async def test_whatever_of_a_group_is_awaited_is_a_checkpoint(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    group = client.open_group()
    with trio.testing.assert_checkpoints():
        await group.__aenter__()
    with trio.testing.assert_checkpoints():
        await group.submit(asked())
    coordinator.reply(await coordinator.submission(), [1])
    await until(lambda: client.statistics().completed)
    with trio.testing.assert_checkpoints():
        await group.outcomes.receive()
    with trio.testing.assert_checkpoints(), pytest.raises(trio.EndOfChannel):
        await group.outcomes.receive()
    with trio.testing.assert_checkpoints():
        await group.outcomes.aclose()
    with trio.testing.assert_no_checkpoints():
        await group.__aexit__(None, None, None)


# What becomes of them


async def test_without_deserializing_outcomes_hold_the_reply_as_it_came(
    coordinator: ScriptedCoordinator,
) -> None:
    async with open_client(coordinator.address, deserialize=False) as client:
        async with client.open_group() as group:
            group.submit_nowait(asked())
            coordinator.reply(await coordinator.submission(), [1], newest={"a": 1})
            outcome = await group.outcomes.receive()
            group.submit_nowait(asked())
            coordinator.reply(await coordinator.submission(), [], status="FAILED")
            failed = await group.outcomes.receive()
    reply = outcome.unwrap()
    assert reply.pop("latency") >= 0
    assert reply == finished([1], newest={"a": 1})
    assert isinstance(failed.error, RequestFailed)


async def test_each_ends_for_itself_and_is_counted_once(
    autojump_clock: trio.testing.MockClock,
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
) -> None:
    """Completed, unread, failed, malformed in every way, aborted, lost."""
    async with client.open_group() as group:
        for number in range(9):
            group.submit_nowait(asked(str(number)))
        submissions = [await coordinator.submission() for _ in range(9)]
        good, failing, framed, packed, partly, cancelled, unread, *lost = submissions
        coordinator.reply(good, [1])
        coordinator.reply(failing, [], status="FAILED")
        client_id = good.client
        frames = coordinator.reply_frames(framed, [1])
        coordinator.send(client_id, [*frames, b"one too many"])
        coordinator._tokens.pop((client_id, framed.id))
        coordinator.reply(packed, [1], generated_tokens="nonsense")
        coordinator.send(client_id, [*coordinator.partial_frames(partly, [1]), b"one too many"])
        outcomes = [await group.outcomes.receive() for _ in range(5)]
        group.cancel(cancelled.id)
        coordinator.reply(unread, [1])
        await until(lambda: client.statistics().completed == 2)
        await settled(client)
        coordinator.close()
        await until(lambda: client.statistics().lost)
        group.cancel(unread.id)
        outcomes += await all_of(group)
    assert {outcome.index: type(outcome.error) for outcome in outcomes} == {
        good.id: type(None),
        failing.id: RequestFailed,
        framed.id: RemoteProtocolError,
        packed.id: RemoteProtocolError,
        partly.id: RemoteProtocolError,
        lost[0].id: ConnectionLost,
        lost[1].id: ConnectionLost,
    }
    assert coordinator.of(Kind.ABORT_REQUEST) == [partly.id, cancelled.id]
    statistics = client.statistics()
    assert statistics.submitted == 9
    assert (statistics.completed, statistics.failed) == (2, 4)
    assert (statistics.aborted, statistics.lost, statistics.malformed) == (1, 2, 3)


async def test_outcomes_that_are_never_received_count_as_completed(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.open_group() as group:
        group.submit_nowait(asked())
        coordinator.reply(await coordinator.submission(), [], status="FAILED")
        await until(lambda: client.statistics().completed)
    assert (client.statistics().completed, client.statistics().failed) == (1, 0)


async def test_an_outcome_that_is_an_error_is_raised_by_who_wants_it_and_keeps_no_reply(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.open_group() as group:
        group.submit_nowait(asked())
        coordinator.reply(await coordinator.submission(), [], status="FAILED")
        outcome = await group.outcomes.receive()
    assert outcome.completion is None
    assert outcome.error is not None
    assert outcome.error.__traceback__ is None
    for _ in range(2):
        with pytest.raises(RequestFailed):
            outcome.unwrap()


@pytest.mark.parametrize("size", [1, HEAVY_BODY])
@pytest.mark.parametrize("wrong", ["status", "packing"])
async def test_errors_of_nonsense_that_somebody_collects_keep_no_replies(
    coordinator: ScriptedCoordinator, client: InferenceClient, wrong: str, size: int
) -> None:
    async with client.open_group() as group:
        group.submit_nowait(asked())
        submission = await coordinator.submission()
        head, body = coordinator.reply_frames(submission, [1], status=1, unknown="x" * size)
        behind = b"" if wrong == "status" else b"\xc1"
        coordinator.send(submission.client, [head, bytes(body) + behind])
        gc.collect()
        gc.disable()
        try:
            outcome = await group.outcomes.receive()
            alive = [thing for thing in gc.get_objects() if isinstance(thing, Member)]
        finally:
            gc.enable()
    assert isinstance(outcome.error, RemoteProtocolError)
    assert alive == []


async def test_what_engines_reject_may_be_told_from_what_may_be_tried_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    params = SamplingParams(num_tokens_to_generate=3)
    async with open_coordinator(bind="memory://*", max_sequence_length=50) as coordinator:
        async with open_client(coordinator.address) as client, client.open_group() as group:
            group.submit_nowait(GenerateRequest("x" * 100, params))
            rejected = await group.outcomes.receive()
            coordinator.faults = Faults(fail=1.0)
            group.submit_nowait(GenerateRequest("hi", params))
            failed = await group.outcomes.receive()
            coordinator.faults = Faults()
            group.submit_nowait(failed.request)
            completed = await group.outcomes.receive()
    assert isinstance(rejected.error, RequestFailed)
    assert not rejected.error.retryable
    assert isinstance(failed.error, RequestFailed)
    assert failed.error.retryable
    assert len(tokens_of(completed)) == 3


async def test_partial_results_that_nobody_asked_for_do_no_harm(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.open_group() as group:
        group.submit_nowait(asked())
        submission = await coordinator.submission()
        coordinator.partial(submission, [1])
        coordinator.reply(submission, [1, 2])
        assert tokens_of(await group.outcomes.receive()) == [1, 2]
    assert client.statistics().malformed == 0


async def test_a_final_reply_that_comes_twice_yields_one_outcome(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.open_group() as group:
        group.submit_nowait(asked())
        submission = await coordinator.submission()
        coordinator.reply(submission, [1])
        coordinator.reply(submission, [1])
        await until(lambda: client.statistics().discarded)
        assert len(await all_of(group)) == 1


async def test_after_a_loss_the_group_goes_on_over_the_next_connection(
    autojump_clock: trio.testing.MockClock,
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
) -> None:
    async with client.open_group() as group:
        group.submit_nowait(asked("lost"))
        await coordinator.submission()
        async with trio.open_nursery() as nursery:
            coordinator.close()
            await until(lambda: client.statistics().lost)
            nursery.start_soon(group.submit, asked("waits"))
            lost = await group.outcomes.receive()
            assert isinstance(lost.error, ConnectionLost)
            assert lost.error.tokens == ()
            async with scripted_coordinator(coordinator.address) as second:
                second.reply(await second.submission(), [2])
                assert [tokens_of(outcome) for outcome in await all_of(group)] == [[2]]


# Cancelling a receive


async def test_a_cancelled_receive_loses_no_outcome_and_ends_no_request(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    received: list[int] = []
    async with client.open_group() as group:
        for number in range(100):
            group.submit_nowait(asked())
            submission = await coordinator.submission()
            scope = trio.CancelScope()

            async def receive(scope: trio.CancelScope = scope) -> None:
                with scope:
                    received.append((await group.outcomes.receive()).index)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive)
                await trio.testing.wait_all_tasks_blocked()
                coordinator.reply(submission, [number])
                if number % 3 == 0:
                    scope.cancel()  # parked, and nothing has come
                elif number % 3 == 1:
                    arrive(client)
                    scope.cancel()  # it has been handed over to the parked one
                else:
                    await trio.lowlevel.checkpoint()
                    scope.cancel()
        received += [outcome.index for outcome in await all_of(group)]
        assert sorted(received) == list(range(100))
    assert coordinator.of(Kind.ABORT_REQUEST) == []


# Dialects without abort


@pytest.mark.parametrize("dialect", ["0.19", "0.18"])
async def test_where_nothing_can_be_aborted_cancelled_requests_yield_no_outcome_either(
    dialect: str,
) -> None:
    async with scripted_coordinator("memory://*", dialect=dialect) as coordinator:
        async with open_client(coordinator.address, dialect=dialect) as client:
            async with client.open_group(max_concurrency=3) as group:
                for _ in range(3):
                    group.submit_nowait(asked())
                submissions = [await coordinator.submission() for _ in range(3)]
                group.cancel(0)
                assert group.submit_nowait(asked()) == 3, "the group has let go of it"
                submissions.append(await coordinator.submission())
                for submission in submissions[:3]:
                    coordinator.reply(submission, [submission.id])
                assert [(await group.outcomes.receive()).index for _ in range(2)] == [1, 2]
            statistics = client.statistics()
            assert (statistics.aborted, statistics.aborting) == (2, 1)
            coordinator.reply(submissions[3], [3])
        statistics = client.statistics()
        assert (statistics.completed, statistics.aborted, statistics.discarded) == (2, 2, 0)
        assert set(coordinator.kinds) == {Kind.SUBMIT_REQUEST}
        assert coordinator.unroutable == 0


async def test_what_a_dialect_has_no_words_for_is_refused_before_anything_is_sent() -> None:
    request = asked(offload_params={"trace": 1})
    async with scripted_coordinator("memory://*", dialect="0.18") as coordinator:
        async with open_client(coordinator.address, dialect="0.18") as client:
            async with client.open_group() as group:
                with pytest.raises(UnsupportedByDialect):
                    group.submit_nowait(request)
                with pytest.raises(UnsupportedByDialect):
                    await group.submit(request)
        assert coordinator.log == []


# Cancelled at each step


async def rehearse(use: Callable[[InferenceClient], Awaitable[None]], moment: Moment) -> None:
    """Cancels it once, at a coordinator that echoes, and looks for what is left."""
    async with scripted_coordinator("memory://*") as coordinator:
        async with echoing(coordinator):
            async with open_client(coordinator.address, max_in_flight=2) as client:
                tasks = trio.lowlevel.current_statistics().tasks_living
                await moment.cancel(partial(use, client))
                assert trio.lowlevel.current_statistics().tasks_living == tasks, "a task is left"
                assert client.statistics().in_flight == client.statistics().waiting == 0
                assert client._exchange._admission._promised == 0
                assert client._exchange.on_closing == set()
                await settled(client)
        assert coordinator.unroutable == 0, "the real coordinator would have crashed"
        assert not coordinator._tokens, "a request is running"
        aborts = coordinator.of(Kind.ABORT_REQUEST)
        assert len(aborts) == len(set(aborts)) == client.statistics().aborted


async def submits_one(client: InferenceClient) -> None:
    async with client.open_group() as group:
        await group.submit(asked(HELD))


async def submits_when_the_group_has_room(client: InferenceClient) -> None:
    async with client.open_group(max_concurrency=1) as group, trio.open_nursery() as nursery:
        await group.submit(asked())
        nursery.start_soon(group.outcomes.receive)
        await group.submit(asked(HELD))


async def submits_when_the_client_has_room(client: InferenceClient) -> None:
    async with client.open_group() as group:
        for prompt in ("one", "two", HELD, "three", HELD):
            await group.submit(asked(prompt))


async def submits_a_large_one(client: InferenceClient) -> None:
    async with client.open_group() as group:
        await group.submit(asked(HELD + "x" * HEAVY_BYTES))


async def receives_one(client: InferenceClient) -> None:
    async with client.open_group() as group:
        group.submit_nowait(asked())
        await group.outcomes.receive()


async def receives_all(client: InferenceClient) -> None:
    async with client.open_group() as group:
        group.submit_nowait(asked("one"))
        group.submit_nowait(asked("two"))
        assert len(await all_of(group)) == 2


async def closes_the_outcomes(client: InferenceClient) -> None:
    async with client.open_group() as group:
        group.submit_nowait(asked(HELD))
        await group.outcomes.aclose()


async def uses_it_all(client: InferenceClient) -> None:
    """Workers that receive, a producer that submits, and results that beget requests."""

    async def produce(group: Group) -> None:
        with group.keep_open():
            for number in range(5):
                await group.submit(asked(f"{HELD if number % 2 else ''}{number}"))

    async def work(group: Group) -> None:
        async for outcome in group.outcomes:
            if outcome.index == 2:
                group.cancel(1)
            if outcome.index == 4:
                group.cancel()
                await group.submit(asked("last"))

    async with client.open_group(max_concurrency=3) as group, trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(work, group)
        nursery.start_soon(produce, group)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("use", "least"),
    [
        (submits_one, 4),
        (submits_when_the_group_has_room, 12),
        (submits_when_the_client_has_room, 12),
        (submits_a_large_one, 6),
        (receives_one, 6),
        (receives_all, 8),
        (closes_the_outcomes, 4),
        (uses_it_all, 40),
    ],
)
def test_cancelled_at_any_of_its_awaits_it_leaves_nothing_behind(
    use: Callable[[InferenceClient], Awaitable[None]], least: int, seed: int
) -> None:
    moments = run_at_each_step(partial(rehearse, use), seed=seed)
    assert moments >= least, "it was not cancelled where it waits"


# Trees


async def test_a_tree_is_searched_by_outcomes_that_beget_requests(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Branches are pruned, and what was pruned neither comes nor costs."""
    seen: list[str] = []

    def children(prompt: str) -> Iterator[GenerateRequest]:
        params = SamplingParams(num_tokens_to_generate=2)
        for letter in "abc":
            yield GenerateRequest(prompt + letter, params, tag=prompt)

    async with open_coordinator(bind="memory://*") as coordinator:
        async with open_client(coordinator.address, max_in_flight=5) as client:
            async with client.open_group() as group:
                submitted: dict[str, int] = {}
                for child in children("the "):
                    submitted[str(child.prompt)] = await group.submit(child)
                async for outcome in group.outcomes:
                    outcome.unwrap()
                    prompt = str(outcome.request.prompt)
                    seen.append(prompt)
                    for other, index in submitted.items():
                        if other.startswith("the c") or prompt == "the b":
                            group.cancel(index)
                    if len(prompt) < 7 and not prompt.startswith("the c"):
                        for child in children(prompt):
                            submitted[str(child.prompt)] = await group.submit(child)
            await settled(client)
            assert coordinator.running == ()
            assert len(seen) == len(set(seen))
            statistics = client.statistics()
            assert statistics.completed + statistics.aborted == statistics.submitted
            assert statistics.completed >= len(seen)


# Memory


async def answering(address: str) -> None:
    """A coordinator that answers at once, and remembers nothing."""
    socket = network_of(address).socket(ROUTER, Link())
    codec = CoordinatorCodec(FRAMED)
    reply = finished([1, 2, 3])

    def take(frames: Frames) -> None:
        client, message = bytes(frames[0]), codec.decode(frames[1:])
        if message.kind is Kind.CONNECT:
            socket.send([client, *codec.connect_ack()])
        elif message.request_id is not None:
            socket.send([client, *codec.reply(message.request_id, reply)])

    try:
        socket.bind(address)
        await socket.read(take)
    finally:
        socket.close()


@attrs.define(eq=False)
class Spawned(trio.abc.Instrument):
    """Counts the tasks that begin."""

    count: int = 0

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


@pytest.mark.slow
@pytest.mark.timeout(600)  # it is many
async def test_a_hundred_thousand_requests_through_one_group_take_no_task_and_leave_nothing() -> (
    None
):
    total, at_a_time = 100_000, 64
    blocks: list[int] = []
    spawned = Spawned()

    async def feed(group: Group) -> None:
        with group.keep_open():
            for number in range(total):
                await group.submit(GenerateRequest([number], LONG, tag=number))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answering, "memory://busy")
        async with open_client("memory://busy") as client:
            async with client.open_group(max_concurrency=at_a_time) as group:
                nursery.start_soon(feed, group)
                await trio.lowlevel.checkpoint()
                trio.lowlevel.add_instrument(spawned)
                received = 0
                async for outcome in group.outcomes:
                    assert outcome.request.tag == outcome.index
                    received += 1
                    if received % (total // 10) == 0:
                        gc.collect()
                        blocks.append(sys.getallocatedblocks())
                trio.lowlevel.remove_instrument(spawned)
        nursery.cancel_scope.cancel()
    assert received == total
    assert client.statistics().completed == total
    assert spawned.count <= 1, "the task that feeds, and no other"
    assert max(blocks) - min(blocks[1:]) < 2_000, blocks


async def test_cancelled_outcomes_that_nobody_reads_do_not_pile_up(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.open_group() as group:
        kept = group.submit_nowait(asked("kept"))
        coordinator.reply(await coordinator.submission(), [0])
        for _ in range(50):
            indices = [group.submit_nowait(asked()) for _ in range(10)]
            for _ in range(10):
                coordinator.reply(await coordinator.submission(), [1])
            arrive(client)
            for index in indices:
                group.cancel(index)
        unread = group._outcomes._receive.statistics().current_buffer_used
        assert unread <= TOLERATED_UNWANTED + 2
        assert [outcome.index for outcome in await all_of(group)] == [kept]
    assert client.statistics().completed == 501


async def test_what_is_cancelled_is_let_go_of_at_once(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    """Running or unread: its prompt, its media and its reply may be large."""
    async with client.open_group() as group:
        requests = [asked("runs"), asked("unread")]
        watched = [weakref.ref(request) for request in requests]
        for request in requests:
            group.submit_nowait(request)
        del request
        requests.clear()
        submissions = [await coordinator.submission() for _ in range(2)]
        coordinator.reply(submissions[1], [1])
        await until(lambda: client.statistics().completed)
        assert None not in [watch() for watch in watched]
        group.cancel()
        gc.collect()
        assert [watch() for watch in watched] == [None, None]


async def test_hundreds_of_groups_leave_nothing_at_their_client(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    for _ in range(200):
        async with client.open_group() as group:
            group.submit_nowait(asked())
    await settled(client)
    assert client._exchange.on_closing == set()
    assert client._exchange._session.owners() == []
    assert client.statistics().aborted == 200
