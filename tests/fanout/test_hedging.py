"""A second copy of a request whose first says nothing, under a clock that jumps."""

from __future__ import annotations

import math
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from tests.fanout.running import (
    EITHER_WAY,
    ERROR,
    Result,
    aborted,
    asking,
    beside,
    running_client,
    submissions,
)
from tests.peers import ScriptedCoordinator, scripted_coordinator
from tests.waiting import settled
from trio_infer import (
    ConnectionLost,
    GenerateRequest,
    InferenceClient,
    KVHandoff,
    RequestFailed,
    SamplingParams,
    hedge,
    open_client,
)
from trio_infer.protocol.dialect import Kind

if TYPE_CHECKING:
    from trio.testing import MockClock

REQUEST = GenerateRequest("hi", SamplingParams(num_tokens_to_generate=40))


@pytest.fixture
def hedged(client: InferenceClient, nursery: trio.Nursery) -> Result:
    """What comes of a request whose first copy is given ten seconds."""
    return beside(nursery, lambda: hedge(client, REQUEST, after=10))


# One copy


@pytest.mark.parametrize("partial_first", [True, False])
async def test_one_that_speaks_in_time_gets_no_second_copy(
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    hedged: Result,
    autojump_clock: MockClock,
    *,
    partial_first: bool,
) -> None:
    only = await coordinator.submission()
    await trio.sleep(9)
    if partial_first:
        coordinator.partial(only, [1])
        await trio.sleep(1000)
    coordinator.reply(only, [1, 2])
    assert (await hedged.wait()).value.generated_tokens == [1, 2]
    await trio.sleep(1000)
    assert client.statistics().submitted == client.statistics().completed == 1
    assert coordinator.kinds == [Kind.SUBMIT_REQUEST]


async def test_one_that_ends_in_time_without_a_token_gets_no_second_copy(
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    hedged: Result,
    autojump_clock: MockClock,
) -> None:
    coordinator.reply(await coordinator.submission(), [])
    assert (await hedged.wait()).value.generated_tokens == []
    assert client.statistics().submitted == 1


async def test_one_that_fails_in_time_is_not_tried_again(
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    hedged: Result,
    autojump_clock: MockClock,
) -> None:
    coordinator.reply(await coordinator.submission(), [], **ERROR)
    assert isinstance((await hedged.wait()).error, RequestFailed)
    assert client.statistics().submitted == client.statistics().failed == 1


async def test_one_that_fails_after_its_first_word_is_not_tried_again(
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    hedged: Result,
    autojump_clock: MockClock,
) -> None:
    only = await coordinator.submission()
    coordinator.partial(only, [1])
    await trio.sleep(1000)
    coordinator.reply(only, [1], **ERROR)
    assert isinstance((await hedged.wait()).error, RequestFailed)
    assert client.statistics().submitted == 1


# Two copies


async def copies(coordinator: ScriptedCoordinator) -> tuple[Any, Any]:
    first = await coordinator.submission()
    began = trio.current_time()
    second = await coordinator.submission()
    assert trio.current_time() - began == pytest.approx(10)
    assert first.message.prompt == second.message.prompt == REQUEST.prompt
    assert first.message.sampling_params == second.message.sampling_params
    return first, second


@pytest.mark.parametrize("winner", [0, 1])
async def test_after_a_silence_there_are_two_and_the_loser_is_aborted_once(
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    hedged: Result,
    autojump_clock: MockClock,
    winner: int,
) -> None:
    both = await copies(coordinator)
    for each in both:
        coordinator.partial(each, [5])
    await trio.sleep(1)
    coordinator.reply(both[winner], [5, winner])
    assert (await hedged.wait()).value.generated_tokens == [5, winner]
    assert client.statistics().in_flight == 0
    await settled(client)
    await trio.sleep(1000)
    assert aborted(coordinator) == [1 - winner]
    assert client.statistics().aborted == client.statistics().completed == 1


@pytest.mark.parametrize("loser", [0, 1])
async def test_one_that_fails_leaves_the_other_its_time(
    coordinator: ScriptedCoordinator, hedged: Result, autojump_clock: MockClock, loser: int
) -> None:
    both = await copies(coordinator)
    coordinator.reply(both[loser], [], **ERROR)
    await trio.sleep(1000)
    coordinator.reply(both[1 - loser], [7])
    assert (await hedged.wait()).value.generated_tokens == [7]
    assert aborted(coordinator) == []


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_if_both_fail_the_first_ones_error_comes_out_bare(
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    hedged: Result,
    autojump_clock: MockClock,
    order: tuple[int, int],
) -> None:
    both = await copies(coordinator)
    for number in order:
        coordinator.reply(both[number], [number], **ERROR)
        await trio.sleep(1)
    error = (await hedged.wait()).error
    assert isinstance(error, RequestFailed)
    assert error.completion.generated_tokens == [0]
    assert client.statistics().failed == 2


async def test_both_at_once_if_nothing_is_waited_for(
    coordinator: ScriptedCoordinator, client: InferenceClient, nursery: trio.Nursery
) -> None:
    result = beside(nursery, lambda: hedge(client, REQUEST, after=0))
    _, second = await submissions(coordinator, 2)
    coordinator.reply(second, [2])
    assert (await result.wait()).value.generated_tokens == [2]
    await settled(client)
    assert aborted(coordinator) == [0]


async def test_a_second_copy_that_waits_for_its_turn_in_vain_does_no_harm(
    coordinator: ScriptedCoordinator, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with open_client(coordinator.address, max_in_flight=1) as client:
        result = beside(nursery, lambda: hedge(client, REQUEST, after=10))
        first = await coordinator.submission()
        await trio.sleep(1000)
        assert (client.statistics().in_flight, client.statistics().waiting) == (1, 1)
        coordinator.reply(first, [1])
        assert (await result.wait()).value.generated_tokens == [1]
        assert client.statistics().in_flight == client.statistics().waiting == 0
        await settled(client)
        # Its turn may come in the very tick in which the first ends.
        assert aborted(coordinator) == coordinator.of(Kind.SUBMIT_REQUEST)[1:]


async def test_a_second_copy_that_waited_for_its_turn_takes_over_from_one_that_fails(
    coordinator: ScriptedCoordinator, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with open_client(coordinator.address, max_in_flight=1) as client:
        result = beside(nursery, lambda: hedge(client, REQUEST, after=10))
        first = await coordinator.submission()
        await trio.sleep(1000)
        coordinator.reply(first, [], **ERROR)
        coordinator.reply(await coordinator.submission(), [2])
        assert (await result.wait()).value.generated_tokens == [2]


async def test_the_silence_is_counted_from_when_the_request_was_handed_over(
    coordinator: ScriptedCoordinator, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """What waits for its turn does not wait for a second copy, which would wait as well."""
    async with open_client(coordinator.address, max_in_flight=1) as client:
        async with client.stream("before"):
            await coordinator.submission()
            result = beside(nursery, lambda: hedge(client, REQUEST, after=10))
            await trio.sleep(1000)
            assert client.statistics().waiting == 1
        first = await coordinator.submission()
        await trio.sleep(9)
        coordinator.reply(first, [1])
        assert (await result.wait()).value.generated_tokens == [1]
        assert client.statistics().submitted == 2


async def test_where_nothing_streams_only_the_end_counts_as_a_word(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with (
        scripted_coordinator("memory://*", dialect="0.19") as coordinator,
        open_client(coordinator.address, dialect="0.19", close_timeout=1) as client,
    ):
        assert not client.dialect.can_stream
        result = beside(nursery, lambda: hedge(client, REQUEST, after=10))
        first, second = await copies(coordinator)
        coordinator.reply(second, [2])
        assert (await result.wait()).value.generated_tokens == [2]
        assert client.statistics().in_flight == 0
        coordinator.reply(first, [1])
        await settled(client)


# What else may happen


@pytest.mark.parametrize("after", [10, 0])
async def test_cancelled_it_aborts_what_runs(
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    autojump_clock: MockClock,
    after: float,
) -> None:
    with trio.move_on_after(5) as scope:
        await hedge(client, REQUEST, after=after)
    assert scope.cancelled_caught
    assert client.statistics().in_flight == 0
    await settled(client)
    assert aborted(coordinator) == coordinator.of(Kind.SUBMIT_REQUEST)
    assert client.statistics().aborted == (1 if after else 2)


async def test_a_connection_lost_in_time_is_told(
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    hedged: Result,
    autojump_clock: MockClock,
) -> None:
    coordinator.partial(await coordinator.submission(), [1])
    await trio.sleep(1)
    coordinator.close()
    error = (await hedged.wait()).error
    assert isinstance(error, ConnectionLost)
    assert error.tokens == (1,)


async def test_a_connection_lost_with_both_copies_is_told(
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    hedged: Result,
    autojump_clock: MockClock,
) -> None:
    await copies(coordinator)
    coordinator.close()
    assert isinstance((await hedged.wait()).error, ConnectionLost)
    assert client.statistics().lost == 2


async def test_a_closed_client_is_told(
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    hedged: Result,
    autojump_clock: MockClock,
) -> None:
    await copies(coordinator)
    await client.aclose()
    assert isinstance((await hedged.wait()).error, trio.ClosedResourceError)
    with pytest.raises(trio.ClosedResourceError):
        await hedge(client, REQUEST, after=10)


async def test_both_copies_are_whole(
    coordinator: ScriptedCoordinator, client: InferenceClient, nursery: trio.Nursery
) -> None:
    requests = [
        GenerateRequest(
            [1, 2], multi_modal_data={"image": b"\x89PNG"}, offload_params={"where": "there"}
        ),
        GenerateRequest([1, 2], kv_handoff=KVHandoff(kv_meta={}, src_block_ids=[4], request_id=0)),
    ]
    for request, kind in zip(
        requests, (Kind.SUBMIT_REQUEST, Kind.SUBMIT_REQUEST_WITH_KV), strict=True
    ):
        result = beside(nursery, partial(hedge, client, request, after=0))
        first, second = [(await coordinator.next(kind)) for _ in range(2)]
        for each in (first, second):
            assert each.message.offload_params == request.offload_params
            assert each.message.media == (request.multi_modal_data and [b"\x89PNG"])
            assert each.message.src_block_ids == (request.kv_handoff and [4])
        coordinator.reply(first, [1])
        assert (await result.wait()).error is None


@pytest.mark.parametrize("wrong", [-1, "1", None, True, math.nan, math.inf])
async def test_a_wrong_time_is_refused_before_anything_is_sent(
    client: InferenceClient, wrong: Any
) -> None:
    with pytest.raises((TypeError, ValueError), match="after"):
        await hedge(client, REQUEST, after=wrong)
    assert client.statistics().submitted == 0


async def test_a_wrong_request_is_refused_before_anything_is_sent(
    client: InferenceClient,
) -> None:
    wrong: Any = "hi"
    with pytest.raises(TypeError, match="GenerateRequest"):
        await hedge(client, wrong, after=0)
    with pytest.raises(ValueError, match="empty"):
        await hedge(client, GenerateRequest(""), after=0)
    assert client.statistics().submitted == 0


async def test_a_client_that_yields_no_completions_is_refused(
    coordinator: ScriptedCoordinator,
) -> None:
    async with open_client(coordinator.address, deserialize=False) as client:
        wrong: Any = client
        with pytest.raises(ValueError, match="deserialize=True"):
            await hedge(wrong, REQUEST, after=0)
        assert client.statistics().submitted == 0


@EITHER_WAY
@pytest.mark.parametrize("after", [10, 0])
def test_ctrl_c_ends_both_and_comes_out_bare(*, strict: bool, after: float) -> None:
    raised: list[BaseException] = []

    async def interrupt() -> None:
        await trio.testing.wait_all_tasks_blocked()
        signal.raise_signal(signal.SIGINT)

    async def main() -> None:
        async with running_client() as client:
            trio.lowlevel.spawn_system_task(interrupt)  # where it is not raised, but passed on
            try:
                await hedge(client, *asking("held"), after=after)
            except BaseException as error:  # noqa: BLE001, ASYNC103 - it is looked at
                raised.append(error)
            assert client.statistics().in_flight == 0
            assert client.statistics().submitted == client.statistics().aborted

    trio.run(main, strict_exception_groups=strict)
    assert [type(error) for error in raised] == [KeyboardInterrupt]
