"""The first of many that will do, and the best of several."""

from __future__ import annotations

import copy
import math
import pickle
import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import trio
import trio.testing

from tests.fanout.running import (
    EITHER_WAY,
    ERROR,
    aborted,
    asking,
    beside,
    running_client,
    submissions,
)
from tests.scheduling import scheduled_by
from tests.waiting import settled, until
from trio_infer import (
    Completion,
    ConnectionLost,
    InferenceClient,
    NoneAccepted,
    RequestFailed,
    SamplingParams,
    Scored,
    best_of,
    open_client,
    race,
)
from trio_infer.protocol.dialect import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.peers import Received, ScriptedCoordinator


def says(*tokens: int) -> Callable[[Completion], bool]:
    return lambda completion: completion.generated_tokens == list(tokens)


# race


async def test_the_first_that_ends_wins_and_the_others_are_aborted(
    coordinator: ScriptedCoordinator, client: InferenceClient, nursery: trio.Nursery
) -> None:
    result = beside(nursery, lambda: race(client, asking("a", "b", "c")))
    running = await submissions(coordinator, 3)
    coordinator.reply(running[1], [7])
    assert (await result.wait()).value.generated_tokens == [7]
    assert client.statistics().in_flight == 0
    await settled(client)
    assert aborted(coordinator) == [0, 2]


@pytest.mark.parametrize("slow", [True, False])
async def test_the_first_that_is_accepted_wins(
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    nursery: trio.Nursery,
    *,
    slow: bool,
) -> None:
    async def accept_slowly(completion: Completion) -> bool:
        await trio.lowlevel.checkpoint()
        return says(3)(completion)

    accept: Any = accept_slowly if slow else says(3)
    result = beside(nursery, lambda: race(client, asking("a", "b", "c", "d"), accept=accept))
    running = await submissions(coordinator, 4)
    for each in running[:3]:
        await trio.testing.wait_all_tasks_blocked()
        assert result.value is None
        coordinator.reply(each, [each.id + 1])
    assert (await result.wait()).value.generated_tokens == [3]
    await settled(client)
    assert aborted(coordinator) == [3]


async def test_one_that_is_hard_to_judge_does_not_hold_up_the_others(
    coordinator: ScriptedCoordinator, client: InferenceClient, nursery: trio.Nursery
) -> None:
    judged: list[int] = []

    async def accept(completion: Completion) -> bool:
        judged.append(completion.request_id)
        if says(1)(completion):
            await trio.sleep_forever()
        return says(2)(completion)

    result = beside(nursery, lambda: race(client, asking("a", "b"), accept=accept))
    first, second = await submissions(coordinator, 2)
    coordinator.reply(first, [1])
    await until(lambda: judged)
    coordinator.reply(second, [2])
    assert (await result.wait()).value.generated_tokens == [2]


async def test_one_that_fails_does_not_end_the_race(
    coordinator: ScriptedCoordinator, client: InferenceClient, nursery: trio.Nursery
) -> None:
    result = beside(nursery, lambda: race(client, asking("a", "b")))
    first, second = await submissions(coordinator, 2)
    coordinator.reply(first, [], **ERROR)
    await trio.testing.wait_all_tasks_blocked()
    coordinator.reply(second, [2])
    assert (await result.wait()).value.generated_tokens == [2]


async def test_if_none_is_accepted_all_are_told_in_the_order_of_their_ends(
    coordinator: ScriptedCoordinator, client: InferenceClient, nursery: trio.Nursery
) -> None:
    result = beside(nursery, lambda: race(client, asking("a", "b", "c"), accept=lambda _: False))
    first, second, third = await submissions(coordinator, 3)
    coordinator.reply(third, [3])
    coordinator.reply(first, [], **ERROR)
    coordinator.reply(second, [2])
    error = (await result.wait()).error
    assert isinstance(error, NoneAccepted)
    assert [outcome.index for outcome in error.outcomes] == [2, 0, 1]
    assert [outcome.request.prompt for outcome in error.outcomes] == ["c", "a", "b"]
    assert isinstance(error.outcomes[1].error, RequestFailed)
    assert error.outcomes[2].unwrap().generated_tokens == [2]
    assert str(error).startswith(
        "none of 3 requests was accepted, 1 of which failed, first: RequestFailed("
    )


async def test_if_all_fail_they_are_told(
    coordinator: ScriptedCoordinator, client: InferenceClient, nursery: trio.Nursery
) -> None:
    result = beside(nursery, lambda: race(client, asking("a", "b")))
    for each in await submissions(coordinator, 2):
        coordinator.reply(each, [], **ERROR)
    error = (await result.wait()).error
    assert isinstance(error, NoneAccepted)
    assert [type(outcome.error) for outcome in error.outcomes] == [RequestFailed] * 2
    assert "2 of which failed" in str(error)


async def test_a_race_of_nobody_does_not_wait_for_a_winner(client: InferenceClient) -> None:
    with pytest.raises(ValueError, match="empty"):
        await race(client, [])


@pytest.mark.parametrize("slow", [True, False])
@pytest.mark.parametrize("error", [LookupError(), trio.EndOfChannel(), StopAsyncIteration()])
async def test_what_accept_raises_ends_the_race_and_comes_out_bare(
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    nursery: trio.Nursery,
    error: Exception,
    *,
    slow: bool,
) -> None:
    """Whatever it means where it comes from: a loop over verdicts is not to end of it."""

    def accept(_: Completion) -> bool:
        raise error

    async def accept_slowly(_: Completion) -> bool:
        await trio.lowlevel.checkpoint()
        raise error

    judge: Any = accept_slowly if slow else accept
    result = beside(nursery, lambda: race(client, asking("a", "b"), accept=judge))
    first, _ = await submissions(coordinator, 2)
    coordinator.reply(first, [1])
    assert (await result.wait()).error is error
    await settled(client)
    assert aborted(coordinator) == [1]


async def test_a_group_that_accept_raises_stays_whole(
    coordinator: ScriptedCoordinator, client: InferenceClient, nursery: trio.Nursery
) -> None:
    async def accept(_: Completion) -> bool:
        async with trio.open_nursery() as own:
            own.start_soon(fail)
            own.start_soon(trio.sleep_forever)
        return True

    async def fail() -> None:
        raise LookupError

    result = beside(nursery, lambda: race(client, asking("a"), accept=accept))
    coordinator.reply(await coordinator.submission(), [1])
    with pytest.RaisesGroup(LookupError):
        raise (await result.wait()).error or AssertionError


async def test_losers_are_aborted_before_judges_that_take_their_leave_slowly(
    coordinator: ScriptedCoordinator, client: InferenceClient, nursery: trio.Nursery
) -> None:
    in_flight = []

    async def accept(completion: Completion) -> bool:
        if says(2)(completion):
            return True
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                in_flight.append(client.statistics().in_flight)
                await trio.lowlevel.checkpoint()
        raise AssertionError

    result = beside(nursery, lambda: race(client, asking("a", "b", "c"), accept=accept))
    first, second, _ = await submissions(coordinator, 3)
    coordinator.reply(first, [1])
    await trio.testing.wait_all_tasks_blocked()
    coordinator.reply(second, [2])
    assert (await result.wait()).value.generated_tokens == [2]
    assert in_flight == [0]


async def test_a_wrong_entrant_ends_the_race(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    entrants: Any = [*asking("a"), "b"]
    with pytest.raises(TypeError, match="GenerateRequest"):
        await race(client, entrants)
    with pytest.raises(ValueError, match="empty"):
        await race(client, asking("a", ""))
    with pytest.raises(TypeError, match="iterable"):
        await race(client, entrants[0])
    await settled(client)
    assert aborted(coordinator) == coordinator.of(Kind.SUBMIT_REQUEST) == [0, 1]


# best_of


async def test_the_best_is_chosen_and_all_are_told(
    coordinator: ScriptedCoordinator, client: InferenceClient, nursery: trio.Nursery
) -> None:
    params = SamplingParams(num_tokens_to_generate=5)
    result = beside(
        nursery,
        lambda: best_of(client, "a", params, n=3, score=lambda each: each.generated_tokens[0]),
    )
    running = await submissions(coordinator, 3)
    for each, token in zip(running, (5, 9, 7), strict=True):
        assert asked(each) == ("a", 5)
        coordinator.reply(each, [token])
    best = (await result.wait()).value
    assert isinstance(best, Scored)
    assert (best.score, best.completion.generated_tokens) == (9.0, [9])
    assert [outcome.index for outcome in best.outcomes] == [0, 1, 2]
    assert client.statistics().aborted == 0


def asked(submission: Received) -> tuple[Any, int]:
    params = submission.message.sampling_params
    assert params is not None
    return submission.message.prompt, params["num_tokens_to_generate"]


def score_of(completion: Completion) -> int:
    return completion.generated_tokens[0]


async def score_slowly(completion: Completion) -> float:
    await trio.lowlevel.checkpoint()
    return score_of(completion)


@pytest.mark.parametrize("score", [score_of, score_slowly])
async def test_the_first_that_is_good_enough_ends_the_search(
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    nursery: trio.Nursery,
    score: Callable[[Completion], Any],
) -> None:
    result = beside(nursery, lambda: best_of(client, "a", n=4, score=score, good_enough=7))
    running = await submissions(coordinator, 4)
    for each, token in zip(running[:2], (5, 7), strict=True):
        await trio.testing.wait_all_tasks_blocked()
        assert result.value is None
        coordinator.reply(each, [token])
    best = (await result.wait()).value
    assert best.score == 7
    assert [outcome.index for outcome in best.outcomes] == [0, 1]
    await settled(client)
    assert aborted(coordinator) == [2, 3]


async def test_of_equally_good_ones_the_first_to_end_is_chosen(
    coordinator: ScriptedCoordinator, client: InferenceClient, nursery: trio.Nursery
) -> None:
    result = beside(nursery, lambda: best_of(client, "a", n=3, score=lambda _: 1))
    running = await submissions(coordinator, 3)
    for each in (running[1], running[0], running[2]):
        coordinator.reply(each, [each.id])
    assert (await result.wait()).value.completion.request_id == running[1].id


async def test_one_that_is_hard_to_score_does_not_hold_up_the_search(
    coordinator: ScriptedCoordinator, client: InferenceClient, nursery: trio.Nursery
) -> None:
    async def score(completion: Completion) -> float:
        if says(1)(completion):
            await trio.sleep_forever()
        return 1.0

    result = beside(nursery, lambda: best_of(client, "a", n=2, score=score, good_enough=1))
    first, second = await submissions(coordinator, 2)
    coordinator.reply(first, [1])
    await trio.testing.wait_all_tasks_blocked()
    coordinator.reply(second, [2])
    best = (await result.wait()).value
    assert [outcome.index for outcome in best.outcomes] == [1]


@pytest.mark.parametrize(
    ("score", "error"),
    [
        (math.nan, ValueError),
        (math.inf, ValueError),
        ("1", TypeError),
        (True, TypeError),
        (None, TypeError),
    ],
)
async def test_a_score_that_is_no_number_is_refused_rather_than_compared(
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    nursery: trio.Nursery,
    score: Any,
    error: type[Exception],
) -> None:
    result = beside(nursery, lambda: best_of(client, "a", n=2, score=lambda _: score))
    first, _ = await submissions(coordinator, 2)
    coordinator.reply(first, [1])
    with pytest.raises(error, match="the score"):
        raise (await result.wait()).error or AssertionError
    await settled(client)
    assert aborted(coordinator) == [1]


async def test_scores_of_numpy_and_below_zero_are_numbers(
    coordinator: ScriptedCoordinator, client: InferenceClient, nursery: trio.Nursery
) -> None:
    def score(completion: Completion) -> Any:
        return np.float32(-score_of(completion))

    enough: Any = np.int64(-3)
    result = beside(nursery, lambda: best_of(client, "a", n=3, score=score, good_enough=enough))
    for each, token in zip(await submissions(coordinator, 3), (5, 3, 7), strict=True):
        coordinator.reply(each, [token])
    best = (await result.wait()).value
    assert (type(best.score), best.score) == (float, -3.0)


async def test_failures_are_not_scored_and_do_not_end_the_search(
    coordinator: ScriptedCoordinator, client: InferenceClient, nursery: trio.Nursery
) -> None:
    result = beside(nursery, lambda: best_of(client, "a", n=3, score=score_of))
    first, second, third = await submissions(coordinator, 3)
    coordinator.reply(first, [], **ERROR)
    coordinator.reply(second, [2])
    coordinator.reply(third, [], **ERROR)
    best = (await result.wait()).value
    assert best.completion.generated_tokens == [2]
    assert [outcome.error is None for outcome in best.outcomes] == [False, True, False]


async def test_if_all_samples_fail_they_are_told(
    coordinator: ScriptedCoordinator, client: InferenceClient, nursery: trio.Nursery
) -> None:
    result = beside(nursery, lambda: best_of(client, "a", n=2, score=score_of))
    for each in await submissions(coordinator, 2):
        coordinator.reply(each, [], **ERROR)
    error = (await result.wait()).error
    assert isinstance(error, NoneAccepted)
    assert len(error.outcomes) == 2
    assert str(error).startswith("none of 2 requests was completed, 2 of which failed, first: ")


@pytest.mark.parametrize("error", [LookupError(), trio.EndOfChannel()])
async def test_what_score_raises_ends_the_search_and_comes_out_bare(
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    nursery: trio.Nursery,
    error: Exception,
) -> None:
    async def score(completion: Completion) -> float:
        if says(2)(completion):
            raise error
        return 1.0

    result = beside(nursery, lambda: best_of(client, "a", n=3, score=score))
    first, second, _ = await submissions(coordinator, 3)
    coordinator.reply(first, [1])
    coordinator.reply(second, [2])
    assert (await result.wait()).error is error
    await settled(client)
    assert aborted(coordinator) == [2]


@pytest.mark.parametrize(
    "wrong",
    [{"n": 0}, {"n": 1.5}, {"n": True}, {"good_enough": "7"}, {"good_enough": math.nan}],
)
async def test_wrong_arguments_are_refused_before_anything_is_sent(
    client: InferenceClient, wrong: dict[str, Any]
) -> None:
    arguments: dict[str, Any] = {"n": 1, "score": score_of} | wrong
    with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
        await best_of(client, "a", **arguments)
    with pytest.raises(ValueError, match="empty"):
        await best_of(client, "", n=3, score=score_of)
    assert client.statistics().submitted == 0


async def test_samples_take_what_a_single_request_takes(
    coordinator: ScriptedCoordinator, client: InferenceClient, nursery: trio.Nursery
) -> None:
    result = beside(
        nursery,
        lambda: best_of(
            client,
            [1, 2],
            n=2,
            score=score_of,
            multi_modal_data={"image": b"\x89PNG"},
            offload_params={"where": "there"},
        ),
    )
    for each in await submissions(coordinator, 2):
        assert each.message.offload_params == {"where": "there"}
        assert each.message.media == [b"\x89PNG"]
        coordinator.reply(each, [1])
    assert (await result.wait()).error is None


# Both


async def test_a_client_that_yields_no_completions_is_refused(
    coordinator: ScriptedCoordinator,
) -> None:
    async with open_client(coordinator.address, deserialize=False) as client:
        wrong: Any = client
        with pytest.raises(ValueError, match="deserialize=True"):
            await race(wrong, asking("a"))
        with pytest.raises(ValueError, match="deserialize=True"):
            await best_of(wrong, "a", n=1, score=score_of)
        assert client.statistics().submitted == 0


@pytest.mark.parametrize("helper", ["race", "best_of"])
async def test_a_lost_connection_is_told_of_each_that_ran(
    coordinator: ScriptedCoordinator, client: InferenceClient, nursery: trio.Nursery, helper: str
) -> None:
    result = beside(nursery, lambda: started(helper, client))
    running = await submissions(coordinator, 2)
    coordinator.reply(running[0], [1])
    await trio.testing.wait_all_tasks_blocked()
    coordinator.close()
    await result.wait()
    if helper == "race":
        assert isinstance(result.error, NoneAccepted)
        ends = result.error.outcomes
    else:
        assert result.value.score == 1
        ends = result.value.outcomes
    assert [type(each.error) for each in ends] == [type(None), ConnectionLost]


async def started(helper: str, client: InferenceClient, judge: Any = None) -> Any:
    if helper == "race":
        return await race(client, asking("held", "held"), accept=judge or (lambda _: False))
    return await best_of(client, "held", n=2, score=judge or score_of)


@pytest.mark.parametrize("helper", ["race", "best_of"])
async def test_a_client_that_is_closed_is_told(
    coordinator: ScriptedCoordinator, client: InferenceClient, nursery: trio.Nursery, helper: str
) -> None:
    result = beside(nursery, lambda: started(helper, client))
    await submissions(coordinator, 2)
    await client.aclose()
    await result.wait()
    assert isinstance(result.error, NoneAccepted)
    errors = [type(outcome.error) for outcome in result.error.outcomes]
    assert errors == [trio.ClosedResourceError] * 2
    with pytest.raises(trio.ClosedResourceError):
        await started(helper, client)


@EITHER_WAY
@pytest.mark.parametrize("slow", [True, False])
@pytest.mark.parametrize("helper", ["race", "best_of"])
def test_ctrl_c_ends_a_judge_that_hangs(*, strict: bool, slow: bool, helper: str) -> None:
    """It is the user's code: it comes out of the midst of it, and bare."""
    went_on: list[str] = []
    raised: list[BaseException] = []

    def judge(_: Completion) -> bool:
        signal.raise_signal(signal.SIGINT)
        went_on.append("as if nothing had happened")
        return False

    async def judge_slowly(completion: Completion) -> bool:
        await trio.lowlevel.checkpoint()
        return judge(completion)

    async def main() -> None:
        async with running_client() as client:
            accept: Any = judge_slowly if slow else judge
            try:
                if helper == "race":
                    await race(client, asking("a", "held"), accept=accept)
                else:
                    await best_of(client, "a", n=2, score=accept)
            except BaseException as error:  # noqa: BLE001, ASYNC103 - it is looked at
                raised.append(error)
            assert client.statistics().in_flight == 0

    for seed in range(5):
        with scheduled_by(seed):
            trio.run(main, strict_exception_groups=strict)
    assert [type(error) for error in raised] == [KeyboardInterrupt] * 5
    assert went_on == []


@EITHER_WAY
def test_judges_errors_come_out_alike_whether_exception_groups_are_strict_or_not(
    *, strict: bool
) -> None:
    async def fail(_: Completion) -> float:
        await trio.lowlevel.checkpoint()
        raise LookupError

    async def main() -> None:
        async with running_client() as client:
            wrong: Any = fail
            with pytest.raises(LookupError):
                await race(client, asking("a", "held"), accept=wrong)
            with pytest.raises(LookupError):
                await best_of(client, "a", n=2, score=fail)
            with pytest.raises(NoneAccepted):
                await race(client, asking("a", "b"), accept=lambda _: False)
            with trio.move_on_after(0.001) as scope:
                await race(client, asking("a", "held"), accept=lambda _: False)
            assert scope.cancelled_caught

    trio.run(main, strict_exception_groups=strict)


async def test_none_accepted_reaches_the_parent_of_a_worker_process(
    coordinator: ScriptedCoordinator, client: InferenceClient, nursery: trio.Nursery
) -> None:
    result = beside(nursery, lambda: race(client, asking("a", "b"), accept=says(9)))
    first, second = await submissions(coordinator, 2)
    coordinator.reply(first, [], **ERROR)
    coordinator.reply(second, [2])
    error = (await result.wait()).error
    assert isinstance(error, NoneAccepted)
    error.add_note("from a worker")
    for same in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(same) is NoneAccepted
        assert str(same) == str(error)
        assert same.__notes__ == ["from a worker"]
        failed, refused = same.outcomes
        assert isinstance(failed.error, RequestFailed)
        assert failed.request.prompt == "a"
        assert refused.completion == error.outcomes[1].completion


def test_none_accepted_may_be_raised_by_others() -> None:
    error = NoneAccepted("nobody came")
    assert str(error) == "nobody came"
    assert error.outcomes == ()


async def test_what_is_no_client_or_no_function_is_refused_before_anything_is_sent(
    client: InferenceClient,
) -> None:
    wrong: Any = "tcp://coordinator:5555"
    no_function: Any = True
    requests = asking("a")
    with pytest.raises(TypeError, match="client must be an InferenceClient, not str"):
        await race(wrong, requests)
    with pytest.raises(TypeError, match="accept must be a function, not bool"):
        await race(client, requests, accept=no_function)
    with pytest.raises(TypeError, match="score must be a function, not bool"):
        await best_of(client, "a", n=2, score=no_function)
    assert client.statistics().submitted == 0
