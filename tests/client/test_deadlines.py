"""As much as there is by a deadline: what comes back, what is sent, and what is left behind."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
import trio.testing

from tests.books import check_books
from tests.peers import Received, ScriptedCoordinator, scripted_coordinator
from tests.stepping import Moment, run_at_each_step
from tests.ticks import arrive
from tests.waiting import disconnected, settled
from trio_infer import (
    DIALECTS,
    Completion,
    ConnectionLost,
    Dialect,
    InferenceClient,
    RemoteProtocolError,
    RequestFailed,
    SamplingParams,
    UnsupportedByDialect,
    generate_within,
    open_client,
)
from trio_infer.embedded import open_coordinator
from trio_infer.protocol.dialect import Kind
from trio_infer.protocol.preparation import HEAVY_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

Clock = trio.testing.MockClock

LONG = SamplingParams(num_tokens_to_generate=100_000)
SCORED = attrs.evolve(LONG, return_log_probs=True, top_n_logprobs=1)

FRAMED = DIALECTS["framed"]
WITHOUT_ABORT = attrs.evolve(
    FRAMED,
    name="streams, and cannot abort",
    headers={kind: number for kind, number in FRAMED.headers.items() if kind.name[:5] != "ABORT"},
)
WITHOUT_STREAM = attrs.evolve(
    FRAMED,
    name="aborts, and cannot stream",
    headers={kind: n for kind, n in FRAMED.headers.items() if kind.name[-7:] != "PARTIAL"},
)


@pytest.fixture
def bind() -> str:
    return "memory://*"


class Asked:
    """A request with a deadline, made in a task of its own.

    Attributes:
        completion: what it returned.
        error: what it raised.
        took: how long that took.
    """

    def __init__(self) -> None:
        self.completion: Completion | None = None
        self.error: Exception | None = None
        self.took = -1.0
        self.done = trio.Event()

    async def run(self, client: InferenceClient, seconds: float, *args: Any, **others: Any) -> None:
        began = trio.current_time()
        try:
            self.completion = await generate_within(client, seconds, *args, **others)
        except Exception as error:  # noqa: BLE001 - looked at by the test
            self.error = error
        self.took = trio.current_time() - began
        self.done.set()

    async def result(self) -> Completion:
        await self.done.wait()
        if self.error is not None:
            raise self.error
        assert self.completion is not None
        return self.completion


Ask = Callable[..., Asked]


@pytest.fixture
def ask(nursery: trio.Nursery) -> Ask:
    """Makes requests with a deadline, each in a task of its own."""

    def ask(
        client: InferenceClient, seconds: float, params: SamplingParams = LONG, **others: Any
    ) -> Asked:
        asked = Asked()
        nursery.start_soon(partial(asked.run, client, seconds, "hi", params, **others))
        return asked

    return ask


class Failing:
    """A tokenizer."""

    def decode(self, ids: list[int]) -> str:
        raise KeyError(ids)


def scored(tokens: list[int]) -> dict[str, Any]:
    """What comes with tokens where log probs are asked for."""
    return {
        "new_log_probs": [-float(token) for token in tokens],
        "new_top_n_logprobs": [{chr(token): -float(token)} for token in tokens],
    }


def deltas_alone(completion: Completion) -> bool:
    return completion.from_deltas and completion.finish_reason == "abort"


def counted(client: InferenceClient, *names: str) -> tuple[int, ...]:
    return tuple(getattr(client.statistics(), name) for name in names)


# What comes back


async def test_a_request_that_ends_in_time_is_returned_whole_and_not_aborted(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, client: InferenceClient, ask: Ask
) -> None:
    asked = ask(client, 5.0, SamplingParams(num_tokens_to_generate=3))
    submission = await coordinator.submission()
    await trio.sleep(1)
    coordinator.partial(submission, [1])
    await trio.sleep(1)
    coordinator.reply(submission, [1, 2, 3], prompt_length=2)
    completion = await asked.result()
    assert completion.generated_tokens == [1, 2, 3]
    assert (completion.finish_reason, completion.from_deltas) == ("length", False)
    assert completion.prompt_length == 2
    assert completion.time_to_first_token == pytest.approx(1)
    assert completion.latency == asked.took == pytest.approx(2)
    assert coordinator.of(Kind.ABORT_REQUEST) == []
    assert counted(client, "completed", "aborted") == (1, 0)


async def test_at_the_deadline_the_engines_last_reply_is_the_completion(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, client: InferenceClient, ask: Ask
) -> None:
    coordinator.answers_aborts = False
    asked = ask(client, 5.0)
    submission = await coordinator.submission()
    coordinator.partial(submission, [104])
    await coordinator.abort()
    assert trio.current_time() == pytest.approx(5, abs=0.01)
    await trio.sleep(0.5)
    coordinator.reply(submission, [104, 105], policy_epoch=[[0, 7]], prompt_length=2)
    completion = await asked.result()
    assert (completion.generated_text, completion.generated_tokens) == ("hi", [104, 105])
    assert (completion.finish_reason, completion.from_deltas) == ("abort", False)
    assert completion.oldest_epoch == 7
    assert asked.took == pytest.approx(5.5, abs=0.01)
    assert coordinator.of(Kind.ABORT_REQUEST) == [submission.id]
    assert counted(client, "completed", "aborted", "aborting") == (0, 1, 0)


async def test_after_the_grace_the_completion_is_made_of_the_deltas_and_says_so(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, client: InferenceClient, ask: Ask
) -> None:
    coordinator.answers_aborts = False
    asked = ask(client, 5.0, SCORED, grace=2.0)
    submission = await coordinator.submission()
    await trio.sleep(1)
    coordinator.partial(submission, [1, 2], **scored([1, 2]))
    await trio.sleep(1)
    coordinator.partial(submission, [3], **scored([3]))
    await coordinator.abort()
    coordinator.partial(submission, [4], **scored([4]))  # it had not heard of the abort yet
    completion = await asked.result()
    assert asked.took == pytest.approx(7, abs=0.01)
    latency, first = completion.latency, completion.time_to_first_token
    assert (latency, first) == pytest.approx((7, 1), abs=0.01)
    assert completion == Completion(
        request_id=submission.id,
        generated_tokens=[1, 2, 3, 4],
        generated_length=4,
        generated_log_probs=[-1.0, -2.0, -3.0, -4.0],
        generated_top_n_logprobs=[{chr(token): -float(token)} for token in (1, 2, 3, 4)],
        finish_reason="abort",
        from_deltas=True,
        latency=latency,
        time_to_first_token=first,
        status="UNKNOWN",
    )
    assert counted(client, "in_flight", "aborting", "aborted", "completed") == (0, 1, 1, 0)
    coordinator.reply(submission, [1, 2, 3, 4])
    await settled(client)
    assert counted(client, "aborted", "completed", "discarded", "malformed") == (1, 0, 0, 0)
    assert coordinator.of(Kind.ABORT_REQUEST) == [submission.id]


async def test_what_was_not_asked_for_is_none_in_a_completion_of_deltas(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, client: InferenceClient, ask: Ask
) -> None:
    coordinator.answers_aborts = False
    asked = ask(client, 5.0)
    coordinator.partial(await coordinator.submission(), [1])
    completion = await asked.result()
    assert deltas_alone(completion)
    assert completion.generated_log_probs is None
    assert completion.generated_top_n_logprobs is None
    assert completion.generated_text is None
    assert completion.oldest_epoch is None
    assert asked.took == pytest.approx(6, abs=0.01), "a grace of one second"


async def test_an_engine_that_says_nothing_leaves_a_completion_without_tokens(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, client: InferenceClient, ask: Ask
) -> None:
    coordinator.answers_aborts = False
    asked = ask(client, 5.0)
    await coordinator.submission()
    completion = await asked.result()
    assert deltas_alone(completion)
    assert (completion.generated_tokens, completion.time_to_first_token) == ([], None)


async def test_without_grace_the_deltas_are_taken_at_the_deadline(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, client: InferenceClient, ask: Ask
) -> None:
    asked = ask(client, 5.0, grace=0)
    submission = await coordinator.submission()
    coordinator.partial(submission, [1])
    completion = await asked.result()
    assert asked.took == pytest.approx(5, abs=0.01)
    assert deltas_alone(completion)
    assert completion.generated_tokens == [1]
    await settled(client)
    assert coordinator.of(Kind.ABORT_REQUEST) == [submission.id]


async def test_a_tokenizer_that_fails_costs_nothing_that_there_is(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, ask: Ask
) -> None:
    async with open_client(coordinator.address, tokenizer=Failing()) as client:
        asked = ask(client, 5.0, grace=0)
        coordinator.partial(await coordinator.submission(), [1])
        completion = await asked.result()
        assert deltas_alone(completion)
        assert completion.generated_tokens == [1]


async def test_without_a_limit_it_waits_for_ever_for_the_request_or_its_last_reply(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, client: InferenceClient, ask: Ask
) -> None:
    coordinator.answers_aborts = False
    whole = ask(client, math.inf)
    first = await coordinator.submission()
    patient = ask(client, 1.0, grace=math.inf)
    second = await coordinator.submission()
    await trio.sleep(80_000)
    coordinator.reply(first, [1])
    coordinator.reply(second, [2])
    assert (await whole.result()).finish_reason == "stop"
    assert (await patient.result()).from_deltas is False


# The very moment


@attrs.define(eq=False)
class _Happening(trio.abc.Instrument):
    at: float
    happen: Callable[[], object]
    happened: bool = False

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        if not self.happened and trio.current_time() >= self.at:
            self.happened = True
            self.happen()


@contextmanager
def happening(at: float, happen: Callable[[], object]) -> Iterator[None]:
    """Lets something happen as a scope's deadline has cancelled, before any task sees it."""
    instrument = _Happening(at, happen)
    trio.lowlevel.add_instrument(instrument)
    yield
    trio.lowlevel.remove_instrument(instrument)


@pytest.mark.parametrize("dialect", [FRAMED, WITHOUT_ABORT], ids=str)
@pytest.mark.parametrize("tokens", [[1], [1, 2]], ids=["nothing new", "a new token"])
async def test_a_reply_in_the_very_moment_of_the_deadline_is_the_whole(
    autojump_clock: Clock,
    coordinator: ScriptedCoordinator,
    ask: Ask,
    dialect: Dialect,
    tokens: list[int],
) -> None:
    async with open_client(coordinator.address, dialect=dialect) as client:
        asked = ask(client, 5.0)
        submission = await coordinator.submission()
        coordinator.partial(submission, [1])

        def reply() -> None:
            coordinator.reply(submission, tokens)
            arrive(client)

        with happening(5.0, reply):
            completion = await asked.result()
        assert completion.generated_tokens == tokens
        assert (completion.finish_reason, completion.from_deltas) == ("stop", False)
        assert coordinator.of(Kind.ABORT_REQUEST) == []
        assert counted(client, "completed", "aborted") == (1, 0)


async def test_a_reply_in_the_very_moment_that_the_grace_is_over_is_taken(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, client: InferenceClient, ask: Ask
) -> None:
    coordinator.answers_aborts = False
    asked = ask(client, 5.0, grace=2.0)
    submission = await coordinator.submission()

    def reply() -> None:
        coordinator.reply(submission, [104])
        arrive(client)

    with happening(7.0, reply):
        completion = await asked.result()
    assert (completion.generated_text, completion.from_deltas) == ("h", False)
    assert completion.finish_reason == "abort"


async def test_tokens_of_the_very_moment_of_the_deadline_survive_a_loss_behind_it(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, client: InferenceClient, ask: Ask
) -> None:
    asked = ask(client, 5.0)
    submission = await coordinator.submission()

    def lose() -> None:
        coordinator.partial(submission, [1, 2])
        arrive(client)
        coordinator.close()

    with happening(5.0, lose):
        completion = await asked.result()
    assert deltas_alone(completion)
    assert completion.generated_tokens == [1, 2]
    assert counted(client, "aborted", "lost") == (1, 0)


# Not handed over by then


async def test_without_a_connection_by_the_deadline_nothing_is_sent(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, client: InferenceClient, ask: Ask
) -> None:
    coordinator.close()
    await disconnected(client)
    asked = ask(client, 5.0)
    with pytest.raises(trio.TooSlowError):
        await asked.result()
    assert asked.took == pytest.approx(5)
    async with scripted_coordinator(coordinator.address) as second:
        await client._exchange.wait_up()
        await trio.sleep(1)
        assert second.log == []
    assert counted(client, "submitted", "waiting") == (0, 0)


async def test_the_wait_for_a_turn_counts(autojump_clock: Clock, ask: Ask) -> None:
    async with scripted_coordinator("memory://*") as coordinator:
        async with open_client(coordinator.address, max_in_flight=1) as client:
            async with client.stream("first", LONG):
                asked = ask(client, 5.0)
                with pytest.raises(trio.TooSlowError):
                    await asked.result()
                assert asked.took == pytest.approx(5)
                late = ask(client, 5.0)
                await trio.sleep(3)
            completion = await late.result()
            assert late.took == pytest.approx(5, abs=0.01)
            assert completion.latency == pytest.approx(2, abs=0.01)
        assert len(coordinator.of(Kind.SUBMIT_REQUEST)) == 2


async def test_no_time_at_all_sends_nothing(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    with pytest.raises(trio.TooSlowError):
        await generate_within(client, 0, "hi", LONG)
    assert coordinator.log == []


# Dialects


async def test_where_nothing_can_be_aborted_the_deltas_are_taken_at_the_deadline(
    autojump_clock: Clock, ask: Ask
) -> None:
    async with scripted_coordinator("memory://*") as coordinator:
        async with open_client(coordinator.address, dialect=WITHOUT_ABORT) as client:
            asked = ask(client, 5.0, grace=3.0)
            submission = await coordinator.submission()
            coordinator.partial(submission, [1, 2])
            completion = await asked.result()
            assert asked.took == pytest.approx(5)
            assert deltas_alone(completion)
            assert completion.generated_tokens == [1, 2]
            assert counted(client, "aborted", "aborting") == (1, 1)
            coordinator.reply(submission, [1, 2, 3])
            await settled(client)
            assert counted(client, "completed", "discarded") == (0, 0)
        assert coordinator.kinds == [Kind.SUBMIT_REQUEST]


async def test_where_nothing_is_streamed_the_engines_last_reply_is_the_completion(
    autojump_clock: Clock, ask: Ask
) -> None:
    async with scripted_coordinator("memory://*") as coordinator:
        async with open_client(coordinator.address, dialect=WITHOUT_STREAM) as client:
            asked = ask(client, 5.0)
            submission = await coordinator.submission()
            coordinator.answers_aborts = False
            await coordinator.abort()
            coordinator.reply(submission, [104])
            assert (await asked.result()).generated_text == "h"


@pytest.mark.parametrize("dialect", ["0.19", "0.18"])
async def test_where_neither_is_known_it_is_refused_before_anything_is_sent(
    autojump_clock: Clock, dialect: str
) -> None:
    async with scripted_coordinator("memory://*", dialect=dialect) as coordinator:
        async with open_client(coordinator.address, dialect=dialect) as client:
            with pytest.raises(UnsupportedByDialect, match="keeps nothing"):
                await generate_within(client, 5.0, "hi")
            assert counted(client, "submitted") == (0,)
        assert coordinator.log == []


# When something goes wrong


async def fail(coordinator: ScriptedCoordinator, submission: Received) -> None:
    coordinator.reply(submission, [], status="FAILED")


async def talk_nonsense(coordinator: ScriptedCoordinator, submission: Received) -> None:
    coordinator.reply(submission, [9, 9])


async def die(coordinator: ScriptedCoordinator, submission: Received) -> None:
    coordinator.close()


@pytest.mark.parametrize(
    ("befall", "expected", "name"),
    [
        (fail, RequestFailed, "failed"),
        (talk_nonsense, RemoteProtocolError, "failed"),
        (die, ConnectionLost, "lost"),
    ],
)
async def test_a_failure_before_the_deadline_raises_as_generate_does(
    *,
    autojump_clock: Clock,
    client: InferenceClient,
    coordinator: ScriptedCoordinator,
    ask: Ask,
    befall: Any,
    expected: type[Exception],
    name: str,
) -> None:
    asked = ask(client, 5.0)
    submission = await coordinator.submission()
    coordinator.partial(submission, [1])
    await trio.sleep(1)
    await befall(coordinator, submission)
    with pytest.raises(expected) as caught:
        await asked.result()
    if isinstance(caught.value, ConnectionLost):
        assert caught.value.tokens == (1,)
    assert asked.took == pytest.approx(1, abs=0.01)
    assert counted(client, name, "aborted") == (1, 0)


@pytest.mark.parametrize(
    ("befall", "expected"), [(fail, RequestFailed), (talk_nonsense, RemoteProtocolError)]
)
async def test_a_failure_within_the_grace_raises_as_well(
    *,
    autojump_clock: Clock,
    client: InferenceClient,
    coordinator: ScriptedCoordinator,
    ask: Ask,
    befall: Any,
    expected: type[Exception],
) -> None:
    coordinator.answers_aborts = False
    asked = ask(client, 5.0)
    submission = await coordinator.submission()
    coordinator.partial(submission, [1])
    await coordinator.abort()
    await befall(coordinator, submission)
    with pytest.raises(expected):
        await asked.result()
    assert counted(client, "aborted", "in_flight") == (1, 0)


async def test_a_connection_lost_within_the_grace_costs_the_last_reply_alone(
    autojump_clock: Clock, client: InferenceClient, coordinator: ScriptedCoordinator, ask: Ask
) -> None:
    coordinator.answers_aborts = False
    asked = ask(client, 5.0, SCORED)
    submission = await coordinator.submission()
    coordinator.partial(submission, [1, 2], **scored([1, 2]))
    await coordinator.abort()
    coordinator.close()
    completion = await asked.result()
    assert asked.took == pytest.approx(5, abs=0.01)
    assert deltas_alone(completion)
    assert completion.generated_tokens == [1, 2]
    assert completion.generated_log_probs == [-1.0, -2.0]
    assert counted(client, "aborted", "lost", "undelivered") == (1, 0, 1)


async def test_tokens_that_come_within_the_grace_survive_a_loss_behind_them(
    autojump_clock: Clock, client: InferenceClient, coordinator: ScriptedCoordinator, ask: Ask
) -> None:
    coordinator.answers_aborts = False
    asked = ask(client, 5.0, SCORED, grace=3.0)
    submission = await coordinator.submission()
    await trio.sleep(1)
    coordinator.partial(submission, [1], **scored([1]))
    await coordinator.abort()
    coordinator.partial(submission, [2], **scored([2]))
    await trio.sleep(1)
    coordinator.close()
    completion = await asked.result()
    assert deltas_alone(completion)
    assert completion.generated_tokens == [1, 2]
    assert completion.generated_log_probs == [-1.0, -2.0]
    assert completion.generated_top_n_logprobs == [{chr(1): -1.0}, {chr(2): -2.0}]
    assert completion.time_to_first_token == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("grace", [0, 1])
async def test_a_tokenizer_that_fails_costs_no_completion(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, ask: Ask, grace: float
) -> None:
    coordinator.answers_aborts = False
    async with open_client(coordinator.address, tokenizer=Failing()) as client:
        cut_short, whole = ask(client, 5.0, grace=grace), ask(client, 5.0)
        for _ in range(2):
            submission = await coordinator.submission()
            coordinator.partial(submission, [1])
        coordinator.reply(submission, [1, 2])
        tokens = [(await asked.result()).generated_tokens for asked in (cut_short, whole)]
        assert sorted(tokens) == [[1], [1, 2]]
        coordinator.reply((await coordinator.abort()), [1])


async def test_a_client_that_is_closed_within_the_grace_raises(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, nursery: trio.Nursery, ask: Ask
) -> None:
    coordinator.answers_aborts = False
    async with open_client(coordinator.address, close_timeout=1.0) as client:
        asked = ask(client, 5.0, grace=3.0)
        submission = await coordinator.submission()
        await coordinator.abort()
        nursery.start_soon(client.aclose)
        with pytest.raises(trio.ClosedResourceError):
            await asked.result()
        coordinator.reply(submission, [])


@pytest.mark.parametrize(
    ("seconds", "others", "expected"),
    [
        (-1, {}, "seconds must be at least 0"),
        (math.nan, {}, "seconds must be finite"),
        (-math.inf, {}, "seconds must be finite"),
        (1, {"grace": -0.5}, "grace must be at least 0"),
        (1, {"kv_handoff": 1}, "kv_handoff must be"),
    ],
)
async def test_a_wrong_argument_is_refused_before_anything_is_sent(
    *,
    autojump_clock: Clock,
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    seconds: float,
    others: dict[str, Any],
    expected: str,
) -> None:
    with pytest.raises((TypeError, ValueError), match=expected):
        await generate_within(client, seconds, "hi", **others)
    with pytest.raises(TypeError, match="seconds must be a number"):
        await generate_within(client, "2", "hi")  # type: ignore[arg-type]
    assert coordinator.log == []


async def test_a_client_without_completions_is_refused(
    autojump_clock: Clock, coordinator: ScriptedCoordinator
) -> None:
    async with open_client(coordinator.address, deserialize=False) as client:
        with pytest.raises(ValueError, match="deserialize=True"):
            await generate_within(client, 1.0, "hi")  # type: ignore[arg-type]
    assert coordinator.log == []


async def test_what_generate_takes_arrives(
    autojump_clock: Clock, client: InferenceClient, coordinator: ScriptedCoordinator, ask: Ask
) -> None:
    ask(client, 1.0, multi_modal_data={"image": b"x"}, offload_params={"a": 1})
    message = (await coordinator.submission()).message
    assert message.offload_params == {"a": 1}
    assert message.media is not None
    assert message.sampling_params is not None
    assert message.sampling_params["streaming"] is True


# Cancelled


async def answer_each(coordinator: ScriptedCoordinator, ends_after: float) -> None:
    """Answers with a token, and after a while with an end."""

    async def answer(submission: Received) -> None:
        if not coordinator.has_answered(submission):
            coordinator.partial(submission, [1])
            await trio.sleep(ends_after)
        if not coordinator.has_answered(submission):
            coordinator.reply(submission, [1, 2])

    async with trio.open_nursery() as nursery:
        while True:
            nursery.start_soon(answer, await coordinator.submission())


async def rehearse(
    moment: Moment,
    *,
    prompt: str,
    seconds: float,
    ends_after: float,
    answers_aborts: bool,
    grace: float,
) -> None:
    """Cancels one call at a moment: it aborts once, if at all, and nothing is left of it."""
    async with (
        scripted_coordinator("memory://*") as coordinator,
        trio.open_nursery() as nursery,
    ):
        coordinator.answers_aborts = answers_aborts
        nursery.start_soon(answer_each, coordinator, ends_after)
        async with open_client(coordinator.address) as client:
            use = partial(generate_within, client, seconds, prompt, LONG, grace=grace)
            await moment.cancel(use)
            statistics = client.statistics()
            assert (statistics.in_flight, statistics.waiting) == (0, 0)
            await settled(client)
        check_books(client)
        aborts = coordinator.of(Kind.ABORT_REQUEST)
        assert len(aborts) == len(set(aborts)) == statistics.aborted
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("prompt", "seconds", "ends_after", "grace", "answers", "least"),
    [
        ("hi", 3.0, 2, 1.0, "answers aborts", 10),
        ("hi", 3.0, 9, 1.0, "answers aborts", 12),
        ("hi", 3.0, 9, 1.0, "answers none", 12),
        ("hi", 3.0, 9, 0.0, "answers aborts", 10),
        ("x" * HEAVY_BYTES, math.inf, 0, 1.0, "answers aborts", 8),
    ],
    ids=["in time", "too late", "no reply", "without grace", "packed in a thread"],
)
def test_cancelled_at_any_of_its_awaits_it_aborts_once_and_leaves_nothing_behind(
    *, prompt: str, seconds: float, ends_after: float, grace: float, answers: str, least: int
) -> None:
    moments = run_at_each_step(
        partial(
            rehearse,
            prompt=prompt,
            seconds=seconds,
            ends_after=ends_after,
            grace=grace,
            answers_aborts=answers == "answers aborts",
        )
    )
    assert moments >= least, "it was not cancelled where it waits"


# With engines


async def test_paused_engines_cost_the_grace_and_no_token(autojump_clock: Clock, ask: Ask) -> None:
    async with open_coordinator(bind="memory://*", step_time=0.1) as coordinator:
        async with open_client(coordinator.address) as client:
            asked = ask(client, 1.05, SamplingParams(top_k=1))
            await trio.sleep(0.55)
            coordinator.pause()
            completion = await asked.result()
            assert asked.took == pytest.approx(2.05, abs=0.01)
            coordinator.unpause()
            assert deltas_alone(completion)
            assert len(completion.generated_tokens) == 5
            await settled(client)
        assert coordinator.statistics().aborts == 1


async def test_many_at_once_all_keep_what_they_have(autojump_clock: Clock) -> None:
    """Rollouts, cut off together: nothing runs on, and nobody goes away empty-handed."""
    completions: list[Completion] = []

    async def run(client: InferenceClient, seconds: float) -> None:
        completions.append(await generate_within(client, seconds, "The ", LONG))

    async with open_coordinator(bind="memory://*", step_time=0.1, seed=1) as coordinator:
        async with open_client(coordinator.address) as client:
            async with trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon(run, client, 0.55 + 0.1 * (number % 10))
            assert coordinator.running == ()
            assert all(completion.generated_tokens for completion in completions)
            assert {completion.finish_reason for completion in completions} <= {"abort", "stop"}
            assert {completion.from_deltas for completion in completions} == {False}
            assert counted(client, "aborting", "in_flight") == (0, 0)
            assert len({len(completion.generated_tokens) for completion in completions}) > 5
