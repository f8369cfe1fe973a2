"""All of many requests: in order, or as they finish."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
import tqdm
import tqdm.asyncio
import trio
import trio.testing

from tests.echoing import echoing
from tests.fanout.running import EITHER_WAY, ERROR, asking, running_client, submissions
from tests.waiting import settled
from trio_infer import (
    ConnectionLost,
    GenerateRequest,
    InferenceClient,
    Outcome,
    RemoteProtocolError,
    RequestFailed,
    as_completed,
    gather,
    open_client,
)
from trio_infer.protocol.dialect import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.peers import ScriptedCoordinator


class Counted(Iterable[GenerateRequest]):
    """Requests without an end, or with one, which tell how many of them were taken."""

    def __init__(self, end: int | None = None, error: Exception | None = None) -> None:
        self.taken = 0
        self._end = end
        self._error = error

    def __iter__(self) -> Iterator[GenerateRequest]:
        for number in count() if self._end is None else range(self._end):
            self.taken += 1
            yield GenerateRequest(f"no. {number}")
        if self._error is not None:
            raise self._error


class CountedSlowly(AsyncIterator[GenerateRequest]):
    """The same, asynchronous."""

    def __init__(self, end: int | None = None, error: Exception | None = None) -> None:
        self._counted = Counted(end, error)
        self._requests = iter(self._counted)

    @property
    def taken(self) -> int:
        return self._counted.taken

    async def __anext__(self) -> GenerateRequest:
        await trio.lowlevel.checkpoint()
        for request in self._requests:
            return request
        raise StopAsyncIteration


ENDLESS = pytest.mark.parametrize("make", [Counted, CountedSlowly])


class WithNursery(AsyncIterator[GenerateRequest]):
    """Requests behind which a nursery of the user's fails."""

    def __init__(self) -> None:
        self._requests = iter(asking("first"))

    async def __anext__(self) -> GenerateRequest:
        for request in self._requests:
            return request
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            nursery.start_soon(trio.sleep_forever)
        raise StopAsyncIteration


async def fail() -> None:
    await trio.lowlevel.checkpoint()
    raise LookupError


# gather


async def test_completions_come_in_the_order_of_the_requests_not_of_their_ends(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async def answer() -> None:
        for each in reversed(await submissions(coordinator, 3)):
            coordinator.reply(each, [each.id])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        completions = await gather(client, asking("a", "b", "c"))
    assert [completion.generated_tokens for completion in completions] == [[0], [1], [2]]


@pytest.mark.parametrize("requests", [[], (), iter([]), CountedSlowly(0)])
async def test_of_nothing_there_is_nothing_to_wait_for(
    client: InferenceClient, requests: Any
) -> None:
    assert await gather(client, requests) == []
    async with as_completed(client, requests, max_concurrency=1) as outcomes:
        assert [outcome async for outcome in outcomes] == []


async def test_the_first_failure_ends_the_others_and_comes_out_bare(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async def answer() -> None:
        first, second, _ = await submissions(coordinator, 3)
        coordinator.reply(first, [1])
        coordinator.reply(second, [], **ERROR)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        with pytest.raises(RequestFailed):
            await gather(client, asking("a", "b", "c"))
        assert client.statistics().aborted == 1
    await settled(client)
    assert coordinator.of(Kind.ABORT_REQUEST) == [2]


async def test_after_a_failure_no_more_requests_are_taken(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    requests = Counted()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail_next, coordinator)
        with pytest.raises(RequestFailed):
            await gather(client, requests, max_concurrency=3)
        taken = requests.taken
        await trio.testing.wait_all_tasks_blocked()
    assert requests.taken == taken <= 4


async def fail_next(coordinator: ScriptedCoordinator) -> None:
    coordinator.reply(await coordinator.submission(), [], **ERROR)


@pytest.mark.parametrize("requests", [Counted(5), CountedSlowly(5)])
async def test_no_more_run_at_a_time_than_was_said(
    coordinator: ScriptedCoordinator, client: InferenceClient, requests: Any
) -> None:
    async def answer() -> None:
        running = await submissions(coordinator, 2)
        for _ in range(3):
            await trio.testing.wait_all_tasks_blocked()
            assert client.statistics().in_flight == 2
            coordinator.reply(running.pop(0), [1])
            running.append(await coordinator.submission())
        for each in running:
            coordinator.reply(each, [1])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        assert len(await gather(client, requests, max_concurrency=2)) == 5


@pytest.mark.parametrize("make", [Counted, CountedSlowly])
async def test_gathering_ends_at_once_when_the_requests_raise(
    coordinator: ScriptedCoordinator, client: InferenceClient, make: Callable[..., Any]
) -> None:
    with pytest.raises(LookupError):
        await gather(client, make(2, LookupError()))
    await settled(client)
    assert coordinator.of(Kind.ABORT_REQUEST) == [0, 1]


async def test_gathering_ends_at_once_at_what_is_no_request(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    requests: list[Any] = [*asking("a"), "b", *asking("c")]
    with pytest.raises(TypeError, match="GenerateRequest"):
        await gather(client, requests)
    with pytest.raises(ValueError, match="empty"):
        await gather(client, asking("d", "", "e"))
    await settled(client)
    submitted = [each.message.prompt for each in coordinator.log if each.message.prompt]
    assert submitted == ["a", "d"]
    assert coordinator.of(Kind.ABORT_REQUEST) == [0, 1]


async def test_a_group_that_the_requests_raise_stays_whole(client: InferenceClient) -> None:
    with pytest.RaisesGroup(LookupError):
        await gather(client, WithNursery())


@pytest.mark.parametrize("error", [trio.EndOfChannel(), trio.ClosedResourceError("theirs")])
async def test_requests_that_break_off_are_not_taken_for_all_of_them(
    coordinator: ScriptedCoordinator, client: InferenceClient, error: Exception
) -> None:
    """Such as those that another task sends through a channel, and is cancelled."""
    with pytest.raises(type(error)):
        await gather(client, CountedSlowly(2, error))
    async with echoing(coordinator):
        seen = 0
        with pytest.raises(type(error)):
            async with as_completed(client, Counted(2, error), max_concurrency=5) as outcomes:
                async for _ in outcomes:
                    seen += 1
        assert seen == 2


async def test_requests_that_raise_the_stop_of_another_kind_are_not_taken_for_all_of_them(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    """It would end a loop over the outcomes without a word."""
    with pytest.raises(RuntimeError, match="StopAsyncIteration"):
        await gather(client, Counted(2, StopAsyncIteration()))
    async with echoing(coordinator):
        with pytest.raises(RuntimeError, match="StopAsyncIteration"):
            async with as_completed(
                client, Counted(2, StopAsyncIteration()), max_concurrency=5
            ) as outcomes:
                assert len([outcome async for outcome in outcomes]) == 2


# as_completed


async def test_outcomes_come_as_they_finish_and_say_whose_they_are(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    requests = asking("a", "b", "c")
    async with as_completed(client, requests) as outcomes:
        for each in reversed(await submissions(coordinator, 3)):
            coordinator.reply(each, [each.id])
            outcome = await outcomes.receive()
            assert outcome.index == each.id
            assert outcome.request is requests[each.id]
            assert outcome.unwrap().generated_tokens == [each.id]
        with pytest.raises(trio.EndOfChannel):
            await outcomes.receive()


async def test_one_that_fails_does_not_end_the_others(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with as_completed(client, asking("a", "b", "c")) as outcomes:
        first, second, third = await submissions(coordinator, 3)
        coordinator.reply(first, [], **ERROR)
        assert isinstance((await outcomes.receive()).error, RequestFailed)
        coordinator.reply(third, [3])
        coordinator.reply(second, [2])
        assert [outcome.unwrap().generated_tokens async for outcome in outcomes] == [[3], [2]]


async def test_a_reply_that_makes_no_sense_does_not_end_the_others(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with as_completed(client, asking("a", "b")) as outcomes:
        first, second = await submissions(coordinator, 2)
        coordinator.reply(first, [1], generated_tokens="nonsense")
        coordinator.reply(second, [2])
        ended = {outcome.index: outcome async for outcome in outcomes}
    assert isinstance(ended[0].error, RemoteProtocolError)
    assert ended[1].unwrap().generated_tokens == [2]


@ENDLESS
async def test_endless_requests_are_taken_only_as_fast_as_they_are_run(
    coordinator: ScriptedCoordinator, client: InferenceClient, make: Callable[..., Any]
) -> None:
    requests = make()
    async with as_completed(client, requests, max_concurrency=3) as outcomes:
        running = await submissions(coordinator, 3)
        for received in range(1, 6):
            await trio.testing.wait_all_tasks_blocked()
            assert requests.taken == client.statistics().submitted == 2 + received
            coordinator.reply(running.pop(0), [1])
            await outcomes.receive()
            running.append(await coordinator.submission())
    await trio.testing.wait_all_tasks_blocked()
    assert requests.taken == 8
    await settled(client)
    assert coordinator.of(Kind.ABORT_REQUEST) == [5, 6, 7]


@ENDLESS
async def test_endless_requests_are_not_taken_while_nobody_reads_the_outcomes(
    coordinator: ScriptedCoordinator, client: InferenceClient, make: Callable[..., Any]
) -> None:
    requests = make()
    async with echoing(coordinator):
        async with as_completed(client, requests, max_concurrency=3) as outcomes:
            for received in range(4):
                await trio.testing.wait_all_tasks_blocked()
                assert requests.taken == client.statistics().completed == 3 + received
                await outcomes.receive()


@ENDLESS
async def test_endless_requests_are_not_taken_while_the_client_has_no_place_for_them(
    coordinator: ScriptedCoordinator, make: Callable[..., Any]
) -> None:
    requests = make()
    async with open_client(coordinator.address, max_in_flight=2) as client:
        async with as_completed(client, requests, max_concurrency=10) as outcomes:
            running = await submissions(coordinator, 2)
            await trio.testing.wait_all_tasks_blocked()
            assert requests.taken == 3, "two that run, and one that waits"
            coordinator.reply(running[0], [1])
            await outcomes.receive()
            await trio.testing.wait_all_tasks_blocked()
            assert requests.taken == 4
        assert client.statistics().aborted == 2


@pytest.mark.parametrize(
    "requests",
    [Counted(), CountedSlowly(), iter(asking("a")), tqdm.tqdm(Counted(), disable=True)],
    ids=["iterable", "async", "iterator", "bar"],
)
async def test_what_may_be_endless_is_not_run_all_at_once(
    client: InferenceClient, requests: Any
) -> None:
    with pytest.raises(ValueError, match="max_concurrency is required"):
        async with as_completed(client, requests):
            pytest.fail("entered")
    assert client.statistics().submitted == 0


@pytest.mark.parametrize("make", [Counted, CountedSlowly])
@pytest.mark.parametrize("place", [0, 2])
async def test_what_the_requests_raise_comes_behind_the_outcomes_before_it(
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    make: Callable[..., Any],
    place: int,
) -> None:
    seen = []
    async with echoing(coordinator):
        with pytest.raises(LookupError):
            async with as_completed(
                client, make(place, LookupError()), max_concurrency=1
            ) as outcomes:
                while True:
                    seen.append((await outcomes.receive()).index)
    assert seen == list(range(place))


async def test_what_the_requests_raise_reaches_who_does_not_read_to_the_end(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    with pytest.raises(LookupError):
        async with as_completed(client, Counted(1, LookupError()), max_concurrency=5):
            await coordinator.submission()
            await trio.testing.wait_all_tasks_blocked()


async def test_what_the_requests_raise_does_not_replace_what_the_block_raises(
    client: InferenceClient,
) -> None:
    with pytest.raises(KeyError):
        async with as_completed(client, Counted(0, LookupError()), max_concurrency=5):
            await trio.testing.wait_all_tasks_blocked()
            raise KeyError


async def test_what_the_requests_raise_comes_out_once_for_who_has_dealt_with_it(
    client: InferenceClient,
) -> None:
    async with as_completed(client, Counted(0, LookupError("x")), max_concurrency=5) as outcomes:
        with pytest.raises(LookupError):
            await outcomes.receive()


async def test_a_group_that_the_requests_raise_stays_whole_behind_the_outcomes(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with echoing(coordinator):
        with pytest.RaisesGroup(LookupError):
            async with as_completed(client, WithNursery(), max_concurrency=5) as outcomes:
                assert (await outcomes.receive()).unwrap().generated_text == "first"
                await outcomes.receive()


async def test_a_wrong_request_costs_those_behind_it_alone(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    requests: list[Any] = [*asking("a"), "b", *asking("c")]
    seen = []
    async with echoing(coordinator):
        with pytest.raises(TypeError, match="GenerateRequest"):
            async with as_completed(client, requests) as outcomes:
                while True:
                    seen.append((await outcomes.receive()).unwrap().generated_text)
    assert seen == ["a"]


async def test_leaving_early_ends_what_runs_and_takes_no_more(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    requests = Counted()
    async with as_completed(client, requests, max_concurrency=4) as outcomes:
        running = await submissions(coordinator, 4)
        coordinator.reply(running[2], [1])
        async for _ in outcomes:
            break
    assert client.statistics().in_flight == 0
    taken = requests.taken
    await settled(client)
    await trio.testing.wait_all_tasks_blocked()
    assert requests.taken == taken
    assert sorted(coordinator.of(Kind.ABORT_REQUEST)) == [
        each for each in coordinator.of(Kind.SUBMIT_REQUEST) if each != 2
    ]


async def test_what_runs_is_ended_before_requests_that_take_their_leave_slowly(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    in_flight = []

    class Stubborn(CountedSlowly):
        async def __anext__(self) -> GenerateRequest:
            if self.taken < 2:
                return await super().__anext__()
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    in_flight.append(client.statistics().in_flight)
                    await trio.lowlevel.checkpoint()
            raise AssertionError

    async with as_completed(client, Stubborn(), max_concurrency=5):
        await submissions(coordinator, 2)
        await trio.testing.wait_all_tasks_blocked()
        assert client.statistics().in_flight == 2
    assert in_flight == [0]


async def test_closing_the_outcomes_ends_what_runs_and_lets_readers_go(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    requests = Counted()
    async with as_completed(client, requests, max_concurrency=2) as outcomes:
        await submissions(coordinator, 2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(expect_closed, outcomes))
            await trio.testing.wait_all_tasks_blocked()
            await outcomes.aclose()
            assert client.statistics().in_flight == 0
        await expect_closed(outcomes)
    assert requests.taken <= 3


@pytest.mark.parametrize("steps", range(8))
async def test_nothing_is_submitted_any_more_once_the_outcomes_are_closed(
    client: InferenceClient, steps: int
) -> None:
    async with as_completed(client, Counted(), max_concurrency=3) as outcomes:
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        await outcomes.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert client.statistics().in_flight == client.statistics().waiting == 0


async def expect_closed(outcomes: trio.abc.ReceiveChannel[Outcome]) -> None:
    with pytest.raises(trio.ClosedResourceError):
        await outcomes.receive()


async def test_each_outcome_goes_to_one_of_many_readers_and_the_end_to_all(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    seen: list[int] = []

    async def read() -> None:
        seen.extend([outcome.index async for outcome in outcomes])

    async with echoing(coordinator):
        async with as_completed(client, Counted(20), max_concurrency=3) as outcomes:
            async with trio.open_nursery() as readers:
                for _ in range(4):
                    readers.start_soon(read)
    assert sorted(seen) == list(range(20))


async def test_a_cancelled_receive_loses_nothing(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with as_completed(client, asking("a")) as outcomes:
        (only,) = await submissions(coordinator, 1)
        with trio.move_on_after(0.001) as scope:
            await outcomes.receive()
        assert scope.cancelled_caught
        coordinator.reply(only, [1])
        assert [outcome.index async for outcome in outcomes] == [0]


# Both


async def test_bars_of_either_kind_are_taken_for_what_they_are_around(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    """A bar may be iterable in both ways, of which one is there for show."""
    async with echoing(coordinator):
        for requests in (
            tqdm.tqdm(asking("a", "b"), disable=True),
            tqdm.asyncio.tqdm(asking("a", "b"), disable=True),
            tqdm.asyncio.tqdm(CountedSlowly(2), disable=True),
        ):
            assert len(await gather(client, requests)) == 2
        async with as_completed(client, tqdm.tqdm(asking("a", "b"), disable=True)) as outcomes:
            bar = tqdm.asyncio.tqdm(outcomes, total=2, disable=True)
            assert len([outcome async for outcome in bar]) == 2


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "3"])
async def test_a_wrong_limit_is_refused_before_anything_is_sent(
    client: InferenceClient, wrong: Any
) -> None:
    with pytest.raises((TypeError, ValueError), match="max_concurrency"):
        await gather(client, asking("a"), max_concurrency=wrong)
    with pytest.raises((TypeError, ValueError), match="max_concurrency"):
        async with as_completed(client, asking("a"), max_concurrency=wrong):
            pytest.fail("entered")
    assert client.statistics().submitted == 0


async def test_what_cannot_be_iterated_over_is_refused(client: InferenceClient) -> None:
    nothing: Any = None
    one: Any = GenerateRequest("a")
    for wrong in (nothing, one):
        with pytest.raises(TypeError):
            await gather(client, wrong)
        with pytest.raises(TypeError):
            async with as_completed(client, wrong, max_concurrency=1):
                pytest.fail("entered")


async def test_a_client_that_yields_no_completions_is_refused(
    coordinator: ScriptedCoordinator,
) -> None:
    async with open_client(coordinator.address, deserialize=False) as client:
        wrong: Any = client
        with pytest.raises(ValueError, match="deserialize=True"):
            await gather(wrong, asking("a"))
        with pytest.raises(ValueError, match="deserialize=True"):
            async with as_completed(wrong, asking("a")):
                pytest.fail("entered")
        assert client.statistics().submitted == 0


async def test_a_lost_connection_is_told_of_each_that_ran(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with as_completed(client, asking("a", "b")) as outcomes:
        await submissions(coordinator, 2)
        coordinator.close()
        errors = [outcome.error async for outcome in outcomes]
    assert [type(error) for error in errors] == [ConnectionLost, ConnectionLost]
    assert client.statistics().lost == 2


async def test_a_lost_connection_ends_gathering(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async def lose() -> None:
        await submissions(coordinator, 2)
        coordinator.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lose)
        with pytest.raises(ConnectionLost):
            await gather(client, asking("a", "b", "c"), max_concurrency=2)
    assert client.statistics().lost == 2
    assert client.statistics().waiting == 0


async def test_a_closed_client_ends_gathering(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async def close() -> None:
        await submissions(coordinator, 2)
        await client.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(close)
        with pytest.raises(trio.ClosedResourceError):
            await gather(client, asking("a", "b", "c"), max_concurrency=2)
    with pytest.raises(trio.ClosedResourceError):
        await gather(client, asking("a"))
    with pytest.raises(trio.ClosedResourceError):
        async with as_completed(client, asking("a")) as outcomes:
            await outcomes.receive()


async def interrupted_requests(went_on: list[str]) -> AsyncIterator[GenerateRequest]:
    for request in interrupted_at_once(went_on):
        await trio.lowlevel.checkpoint()
        yield request


def interrupted_at_once(went_on: list[str]) -> Iterator[GenerateRequest]:
    yield GenerateRequest("held")
    signal.raise_signal(signal.SIGINT)
    went_on.append("as if nothing had happened")
    yield GenerateRequest("held")


@pytest.mark.parametrize("requests", [interrupted_at_once, interrupted_requests])
@EITHER_WAY
@pytest.mark.parametrize("helper", ["gather", "as_completed"])
def test_ctrl_c_ends_requests_that_hang(
    requests: Callable[[list[str]], Any], *, strict: bool, helper: str
) -> None:
    """They are the user's code: it comes out of the midst of them, and bare."""
    went_on: list[str] = []
    raised: list[BaseException] = []

    async def main() -> None:
        async with running_client() as client:
            try:
                if helper == "gather":
                    await gather(client, requests(went_on))
                else:
                    async with as_completed(client, requests(went_on), max_concurrency=9) as them:
                        await them.receive()
            except BaseException as error:  # noqa: BLE001, ASYNC103 - it is looked at
                raised.append(error)
            assert client.statistics().in_flight == 0

    trio.run(main, strict_exception_groups=strict)
    assert [type(error) for error in raised] == [KeyboardInterrupt]
    assert went_on == []


@EITHER_WAY
def test_errors_come_out_alike_whether_exception_groups_are_strict_or_not(*, strict: bool) -> None:
    async def main() -> None:
        async with running_client() as client:
            with pytest.raises(LookupError):
                await gather(client, Counted(1, LookupError()))
            with pytest.raises(LookupError):
                async with as_completed(client, Counted(1, LookupError()), max_concurrency=1) as o:
                    await o.receive()
                    await o.receive()
            with trio.CancelScope() as scope:
                async with as_completed(client, Counted(), max_concurrency=1):
                    scope.cancel()
                    with pytest.raises(trio.Cancelled):
                        await trio.sleep_forever()
                    await trio.sleep_forever()
            assert scope.cancelled_caught

    trio.run(main, strict_exception_groups=strict)
