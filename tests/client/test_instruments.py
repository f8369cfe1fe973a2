"""Observers: each event is told once, whatever becomes of a request, and none cost nothing."""

from __future__ import annotations

import gc
import logging
import math
import pickle
import re
import signal
from collections import Counter
from contextvars import ContextVar
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
import trio.testing

from tests.peers import Received, ScriptedCoordinator, scripted_coordinator
from tests.stepping import Moment, run_at_each_step
from tests.waiting import settled, until
from trio_infer import (
    Completion,
    CompletionStream,
    GenerateRequest,
    InferenceClient,
    InferenceError,
    Instrument,
    ObservedRequest,
    RequestEnding,
    RequestMoment,
    SamplingParams,
    connect_client,
    generate_within,
    open_client,
)
from trio_infer.embedded import open_coordinator
from trio_infer.instruments import HOOKS
from trio_infer.observation import Observation
from trio_infer.protocol.dialect import Kind
from trio_infer.protocol.preparation import HEAVY_BYTES
from trio_infer.telemetry import LoggingInstrument

if TYPE_CHECKING:
    from collections.abc import Callable

Clock = trio.testing.MockClock

ENDS = ("request_finished", "request_aborted", "request_failed", "request_lost")
LONG = SamplingParams(num_tokens_to_generate=100_000)
SHORT = SamplingParams(num_tokens_to_generate=5, top_k=1)
KEPT = {"disaggregated_params": {"request_id": 7, "block_ids": [3], "kv_meta": {}}}
MEMORY = "memory://*"

context_of_caller: ContextVar[str] = ContextVar("context_of_caller", default="none")


class Recorder:
    """Notes all that it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []
        self.contexts: list[str] = []

    def __getattr__(self, name: str) -> Callable[[Any], None]:
        if name not in HOOKS:
            raise AttributeError(name)
        return partial(self.note, name)

    def note(self, hook: str, event: Any) -> None:
        self.told.append((hook, event))
        self.contexts.append(context_of_caller.get())

    @property
    def hooks(self) -> list[str]:
        return [hook for hook, _ in self.told]

    def of(self, *hooks: str) -> list[Any]:
        return [event for hook, event in self.told if hook in hooks]

    @property
    def ending(self) -> RequestEnding:
        (ending,) = self.of(*ENDS)
        assert isinstance(ending, RequestEnding)
        return ending

    def check(self) -> None:
        """Each request that waits goes on or is left, and each that goes on ends once."""
        waiting = [event.request for event in self.of("request_waiting")]
        left = [event.request for event in self.of("request_withdrawn")]
        submitted = [event.request for event in self.of("request_submitted")]
        ended = [event.request for event in self.of(*ENDS)]
        assert Counter(submitted) == Counter(ended)
        assert len(set(submitted)) == len(submitted)
        assert not set(left) & set(submitted)
        assert Counter(waiting) <= Counter(left + submitted)
        for request in submitted:
            of_it = [
                hook for hook, event in self.told if getattr(event, "request", None) is request
            ]
            assert of_it[-1] in ENDS, "something was told of it behind its end"

    def counts(self) -> tuple[int, ...]:
        return tuple(self.hooks.count(hook) for hook in ("request_submitted", *ENDS))


def counted(client: InferenceClient[Any]) -> tuple[int, ...]:
    """As `Recorder.counts`, by the client."""
    is_ = client.statistics()
    return is_.submitted, is_.completed, is_.aborted, is_.failed, is_.lost


@pytest.fixture
def bind() -> str:
    return MEMORY


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


# Ways to ask: each waits for the end, and lets whatever it ends in come out


async def by_generate(client: InferenceClient, params: SamplingParams = LONG) -> None:
    await client.generate([1, 2, 3], params)


async def by_stream(client: InferenceClient, params: SamplingParams = LONG) -> None:
    async with client.stream([1, 2, 3], params) as stream:
        async for _ in stream:
            pass


async def by_result(client: InferenceClient, params: SamplingParams = LONG) -> None:
    async with client.stream([1, 2, 3], params) as stream:
        await stream.result()


async def by_group(client: InferenceClient, params: SamplingParams = LONG) -> None:
    async with client.open_group() as group:
        await group.submit(GenerateRequest([1, 2, 3], params))
        (await group.outcomes.receive()).unwrap()


async def by_group_nowait(client: InferenceClient, params: SamplingParams = LONG) -> None:
    async with client.open_group() as group:
        group.submit_nowait(GenerateRequest([1, 2, 3], params))
        (await group.outcomes.receive()).unwrap()


async def by_prefill(client: InferenceClient, params: SamplingParams = LONG) -> None:
    async with client.prefill([1, 2, 3], params):
        pass


async def by_deadline(client: InferenceClient, params: SamplingParams = LONG) -> None:
    await generate_within(client, math.inf, [1, 2, 3], params)


WAYS = [by_generate, by_stream, by_result, by_group, by_group_nowait, by_prefill, by_deadline]
every_way = pytest.mark.parametrize("ask", WAYS)


# Ways to end


def complete(coordinator: ScriptedCoordinator, submission: Received) -> None:
    coordinator.reply(submission, [65, 66], prompt_length=3, num_cached_tokens=2, **KEPT)


def fail(coordinator: ScriptedCoordinator, submission: Received) -> None:
    coordinator.reply(submission, [], status="FAILED")


def answer_nonsense(coordinator: ScriptedCoordinator, submission: Received) -> None:
    coordinator.reply(submission, [], generated_tokens="nonsense")


def answer_noise(coordinator: ScriptedCoordinator, submission: Received) -> None:
    """A reply in a frame too many."""
    frames = [*coordinator.reply_frames(submission, []), b"noise"]
    coordinator.send(submission.client, frames)


def die(coordinator: ScriptedCoordinator, submission: Received) -> None:
    coordinator.close()


OUTCOMES = [(complete, "request_finished"), (fail, "request_failed"), (die, "request_lost")]
OUTCOMES += [(answer_nonsense, "request_failed"), (answer_noise, "request_failed")]


@pytest.mark.parametrize(("outcome", "hook"), OUTCOMES)
@every_way
async def test_an_end_is_told_once_and_as_it_is_counted(
    autojump_clock: Clock,
    coordinator: ScriptedCoordinator,
    recorder: Recorder,
    *,
    ask: Any,
    outcome: Any,
    hook: str,
) -> None:
    async with open_client(coordinator.address, instruments=[recorder]) as client:
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def run() -> None:
                try:
                    await ask(client)
                except InferenceError:
                    assert hook != "request_finished"

            outcome(coordinator, await coordinator.submission())
        assert recorder.counts() == counted(client)
        assert recorder.of(hook) == [recorder.ending]
    recorder.check()
    assert recorder.counts() == counted(client)


@every_way
async def test_a_request_that_is_cancelled_is_told_of_like_others(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, recorder: Recorder, ask: Any
) -> None:
    async with open_client(coordinator.address, instruments=[recorder]) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, client)
            await coordinator.submission()
            nursery.cancel_scope.cancel()
        assert recorder.of("request_aborted") == [recorder.ending]
        assert recorder.ending.prompt_length == 3
        assert recorder.counts() == counted(client)
    recorder.check()


@every_way
async def test_a_request_is_told_of_whose_client_is_closed(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, recorder: Recorder, ask: Any
) -> None:
    async with trio.open_nursery() as nursery:
        client = await connect_client(nursery, coordinator.address, instruments=[recorder])

        @nursery.start_soon
        async def run() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await ask(client)

        await coordinator.submission()
        await client.aclose()
    assert recorder.of("request_aborted") == [recorder.ending]
    assert recorder.counts() == counted(client)
    recorder.check()


@every_way
def test_a_request_cancelled_at_any_step_is_told_of_once(ask: Any) -> None:
    aborted = 0

    async def rehearse(moment: Moment) -> None:
        nonlocal aborted
        recorder = Recorder()
        async with (
            open_coordinator(bind=MEMORY) as coordinator,
            open_client(coordinator.address, instruments=[recorder]) as client,
        ):
            await moment.cancel(partial(ask, client, SHORT))
            await settled(client)
            recorder.check()
            assert recorder.counts() == counted(client)
        aborted += len(recorder.of("request_aborted"))

    assert run_at_each_step(rehearse) > 1
    assert aborted or ask is by_group_nowait


@pytest.mark.parametrize("end_early", [True, False])
async def test_a_stream_that_is_finished_early_is_told_of_with_all_its_tokens(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, recorder: Recorder, *, end_early: bool
) -> None:
    async with open_client(coordinator.address, instruments=[recorder]) as client:
        async with client.stream("hi", LONG) as stream:
            submission = await coordinator.submission()
            coordinator.partial(submission, [65, 66])
            await until(lambda: "request_delta" in recorder.hooks)
            if end_early:
                await stream.finish_early()
                assert recorder.of("request_aborted") == [recorder.ending]
        assert recorder.of("request_aborted") == [recorder.ending]
    assert recorder.ending.tokens == (2 if end_early else 0), "those that were decoded"
    assert recorder.ending.finish_reason == ("abort" if end_early else None)
    recorder.check()


@pytest.mark.parametrize("way", ["lost", "left", "unread", "closed", "failed", "nonsense", "noise"])
async def test_a_stream_that_is_being_finished_early_is_aborted_whatever_comes_then(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, recorder: Recorder, way: str
) -> None:
    coordinator.answers_aborts = False
    async with trio.open_nursery() as nursery:
        client = await connect_client(
            nursery, coordinator.address, close_timeout=1, instruments=[recorder]
        )
        async with client.stream("hi", LONG) as stream:
            submission = await coordinator.submission()
            with trio.move_on_after(1):
                await stream.finish_early()
            if way == "closed":
                await client.aclose()
            elif way == "unread":
                complete(coordinator, submission)
                await until(lambda: stream.finished)
            elif way != "left":
                outcomes = {"lost": die, "failed": fail, "nonsense": answer_nonsense}
                outcomes.get(way, answer_noise)(coordinator, submission)
                with pytest.raises(InferenceError):
                    await stream.result()
        assert recorder.of("request_aborted") == [recorder.ending]
        await client.aclose()
    assert recorder.counts() == counted(client)
    recorder.check()


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_reply_that_nobody_reads_counts_as_finished(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, recorder: Recorder, *, is_stream: bool
) -> None:
    async with open_client(coordinator.address, instruments=[recorder]) as client:
        block: Any = client.stream("hi", LONG) if is_stream else client.open_group()
        async with block:
            if not is_stream:
                block.submit_nowait(GenerateRequest("hi", LONG))
            complete(coordinator, await coordinator.submission())
            await until(lambda: client.statistics().completed)
            came_at = trio.current_time()
            await trio.sleep(5)
            assert not recorder.of(*ENDS)
        assert recorder.ending.at == pytest.approx(came_at, abs=0.1)
        assert recorder.of("request_finished") == [recorder.ending]
        assert (recorder.ending.tokens, recorder.ending.finish_reason) == (None, None)
        if is_stream:
            assert block.completion.generated_tokens == [65, 66]
    recorder.check()


async def test_how_many_tokens_there_are_is_unknown_of_a_last_reply_that_nobody_reads(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, recorder: Recorder
) -> None:
    coordinator.answers_aborts = False
    async with open_client(coordinator.address, instruments=[recorder]) as client:
        async with client.stream("hi", LONG) as stream:
            submission = await coordinator.submission()
            with trio.move_on_after(1):
                await stream.finish_early()
            complete(coordinator, submission)
            await until(lambda: stream.finished)
    assert recorder.of("request_aborted") == [recorder.ending]
    assert recorder.ending.tokens is None


async def test_a_partial_result_in_too_many_frames_is_a_failure(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, recorder: Recorder
) -> None:
    async with open_client(coordinator.address, instruments=[recorder]) as client:
        async with client.stream("hi", LONG) as stream:
            submission = await coordinator.submission()
            frames = [*coordinator.partial_frames(submission, []), b"noise"]
            coordinator.send(submission.client, frames)
            with pytest.raises(InferenceError):
                await stream.result()
        assert recorder.counts() == counted(client) == (1, 0, 0, 1, 0)
    recorder.check()


async def test_a_stream_that_grows_without_a_reader_is_told_of_as_failed(
    autojump_clock: Clock,
    coordinator: ScriptedCoordinator,
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trio_infer.reception.MAX_UNREAD_BYTES", 1)
    async with open_client(coordinator.address, instruments=[recorder]) as client:
        async with client.stream("hi", LONG):
            coordinator.partial(await coordinator.submission(), [65, 66])
            await until(lambda: client.statistics().failed)
            assert recorder.of("request_failed") == [recorder.ending]
    recorder.check()
    assert recorder.counts() == counted(client)


async def test_what_is_told_says_what_was_asked_when_and_how_much_came(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, recorder: Recorder
) -> None:
    async with open_client(coordinator.address, max_in_flight=1, instruments=[recorder]) as client:
        async with trio.open_nursery() as nursery:
            began = trio.current_time()
            nursery.start_soon(by_stream, client)
            submission = await coordinator.submission()
            await trio.sleep(1)
            coordinator.partial(submission, [65])
            await trio.sleep(1)
            coordinator.partial(submission, [66])
            await trio.sleep(1)
            complete(coordinator, submission)
    assert recorder.hooks == [
        *("connection_up", "request_waiting", "request_submitted", "request_first_token"),
        *("request_delta", "request_delta", "request_finished", "connection_lost"),
    ]
    ending = recorder.ending
    request = ending.request
    assert isinstance(request, ObservedRequest)
    assert request.streaming
    assert request.prompt_length == 3
    assert request.sampling_params["num_tokens_to_generate"] == 100_000
    assert (request.address, request.dialect) == (coordinator.address, client.dialect.name)
    assert ending.request_id == submission.id
    assert ending.submitted_at == pytest.approx(began, abs=0.1)
    assert ending.first_token_at == pytest.approx(began + 1, abs=0.1)
    assert ending.at == pytest.approx(began + 3, abs=0.1)
    assert (ending.tokens, ending.prompt_length, ending.cached_tokens) == (2, 3, 2)
    assert (ending.finish_reason, ending.error) == ("stop", None)
    deltas = recorder.of("request_delta")
    assert [round(delta.at - began) for delta in deltas] == [1, 2]
    assert all(delta.size for delta in deltas)
    with pytest.raises(TypeError):
        request.sampling_params["temperature"] = 2  # type: ignore[index]


async def test_what_is_told_holds_where_replies_stay_dicts(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, recorder: Recorder
) -> None:
    async with open_client(
        coordinator.address, deserialize=False, instruments=[recorder]
    ) as client:
        async with client.open_group() as group:
            group.submit_nowait(GenerateRequest("hi", LONG))
            complete(coordinator, await coordinator.submission())
            await group.outcomes.receive()
    ending = recorder.ending
    assert (ending.tokens, ending.prompt_length, ending.cached_tokens) == (2, 3, 2)
    assert ending.request.prompt_length is None, "it was text"


async def test_an_error_says_its_name_and_its_reason(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, recorder: Recorder
) -> None:
    async with open_client(coordinator.address, instruments=[recorder]) as client:
        async with client.open_group() as group:
            group.submit_nowait(GenerateRequest("hi", LONG))
            group.submit_nowait(GenerateRequest("hi", LONG))
            fail(coordinator, await coordinator.submission())
            await group.outcomes.receive()
            coordinator.close()
            await group.outcomes.receive()
    failed, lost = recorder.of(*ENDS)
    assert (failed.error, failed.finish_reason) == ("RequestFailed", "error")
    assert "the engine gave no reason" in failed.reason
    assert (lost.error, lost.finish_reason) == ("ConnectionLost", None)
    (change,) = recorder.of("connection_lost")
    assert change.reason in lost.reason
    assert not change.closing


@pytest.mark.parametrize("prompt", ["hi", "x" * HEAVY_BYTES])
async def test_a_request_that_is_left_before_its_turn_is_told_of(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, recorder: Recorder, prompt: str
) -> None:
    async with open_client(coordinator.address, max_in_flight=1, instruments=[recorder]) as client:
        async with client.stream("hi", LONG):
            with trio.move_on_after(1):
                await client.generate(prompt, LONG)
            (moment,) = recorder.of("request_withdrawn")
            assert isinstance(moment, RequestMoment)
            assert moment.request_id is None
            assert moment.at - moment.request.made_at == pytest.approx(1, abs=0.1)
    recorder.check()
    assert recorder.counts() == counted(client) == (1, 0, 1, 0, 0)


async def test_what_cannot_be_handed_over_at_once_is_not_told_of(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, recorder: Recorder
) -> None:
    async with open_client(coordinator.address, max_in_flight=1, instruments=[recorder]) as client:
        async with client.open_group() as group:
            group.submit_nowait(GenerateRequest("hi", LONG))
            with pytest.raises(trio.WouldBlock):
                group.submit_nowait(GenerateRequest("hi", LONG))
    assert recorder.counts() == counted(client) == (1, 0, 1, 0, 0)
    recorder.check()


async def test_a_submission_is_told_in_the_context_of_whoever_made_it(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, recorder: Recorder
) -> None:
    async def run(name: str, ask: Any) -> None:
        context_of_caller.set(name)
        await ask(client)

    async with open_client(coordinator.address, instruments=[recorder]) as client:
        async with trio.open_nursery() as nursery:
            for ask in WAYS:
                nursery.start_soon(run, ask.__name__, ask)
                complete(coordinator, await coordinator.submission())
    said = [
        context
        for hook, context in zip(recorder.hooks, recorder.contexts, strict=True)
        if hook == "request_submitted"
    ]
    assert sorted(said) == sorted(ask.__name__ for ask in WAYS)


async def test_signals_and_releases_are_told_when_they_are_sent(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, recorder: Recorder
) -> None:
    async with open_client(coordinator.address, instruments=[recorder]) as client:
        client.engines.pause()
        client.engines.set_generation_epoch(7)
        client.release_handoff(8)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(by_prefill, client)
            complete(coordinator, await coordinator.submission())
    sent = [(signal.name, dict(signal.values)) for signal in recorder.of("signal_sent")]
    assert sent == [
        ("PAUSE", {}),
        ("SET_GENERATION_EPOCH", {"epoch": 7}),
        ("RELEASE_KV", {"request_id": 8}),
        ("RELEASE_KV", {"request_id": 7}),
    ]


async def test_a_signal_that_is_owed_is_told_when_it_goes_out(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, recorder: Recorder
) -> None:
    confirmed = trio.lowlevel.checkpoint
    async with open_client(coordinator.address, instruments=[recorder]) as client:
        async with client.engines.paused(confirm=confirmed):
            coordinator.close()
            await until(lambda: "connection_lost" in recorder.hooks)
        assert [signal.name for signal in recorder.of("signal_sent")] == ["PAUSE"]
        async with scripted_coordinator(coordinator.address) as successor:
            await successor.next(Kind.UNPAUSE)
            assert [signal.name for signal in recorder.of("signal_sent")] == ["PAUSE", "UNPAUSE"]


async def test_a_connection_that_comes_up_is_told_of_as_lost_once(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, recorder: Recorder
) -> None:
    async with open_client(coordinator.address, instruments=[recorder]):
        coordinator.close()
        await until(lambda: "connection_lost" in recorder.hooks)
        async with scripted_coordinator(coordinator.address):
            await until(lambda: recorder.hooks.count("connection_up") == 2)
    assert recorder.hooks == ["connection_up", "connection_lost"] * 2


async def test_a_method_that_an_object_sets_itself_is_told_like_others(
    autojump_clock: Clock, coordinator: ScriptedCoordinator
) -> None:
    class Impatience(Instrument):
        def __init__(self) -> None:
            self.given_up = 0
            vars(self)["request_withdrawn"] = self.request_aborted

        def request_aborted(self, ending: object) -> None:
            self.given_up += 1

    impatience = Impatience()
    async with open_client(
        coordinator.address, max_in_flight=1, instruments=[impatience]
    ) as client:
        async with client.stream("hi", LONG):
            with trio.move_on_after(1):
                await client.generate("hi", LONG)
    assert impatience.given_up == 2


# Faults of instruments


@attrs.define(eq=False)
class Raising(Instrument):
    """Raises in one of its methods."""

    hook: str
    error: type[BaseException]
    calls: list[str] = attrs.field(factory=list)

    def __getattribute__(self, name: str) -> Any:
        if name not in HOOKS:
            return super().__getattribute__(name)

        def method(_: Any) -> None:
            self.calls.append(name)
            if name == self.hook:
                raise self.error

        return method


@pytest.mark.parametrize("ending", ["completed", "failed", "unreadable", "unreadable in part"])
async def test_a_request_is_counted_once_if_an_instrument_looks_at_the_stream_whose_end_it_is_told(
    coordinator: ScriptedCoordinator, ending: str
) -> None:
    streams: list[CompletionStream[Completion]] = []
    seen = []

    def look(_: RequestEnding) -> None:
        seen.append(streams[0].completion)

    looking = SimpleNamespace(request_finished=look, request_failed=look)
    async with open_client(coordinator.address, instruments=[looking]) as client:
        async with client.stream("hi", LONG) as stream:
            streams.append(stream)
            submission = await coordinator.submission()
            if ending == "completed":
                complete(coordinator, submission)
            elif ending == "failed":
                fail(coordinator, submission)
            elif ending == "unreadable":
                coordinator.reply(submission, [1], status=7)
            else:
                coordinator.partial(submission, [1], new_tokens="x")
                complete(coordinator, submission)
            await until(lambda: stream.finished)
            if ending == "completed":
                completion = await stream.result()
                assert seen == [completion]
            else:
                with pytest.raises(InferenceError):
                    await stream.result()
                assert stream.completion is None
    statistics = client.statistics()
    assert len(seen) == 1
    assert (statistics.completed, statistics.failed) == (
        (1, 0) if ending == "completed" else (0, 1)
    )
    assert statistics.malformed == ending.startswith("unreadable")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("hook", HOOKS)
async def test_an_instrument_that_raises_is_switched_off_and_disturbs_nobody(
    autojump_clock: Clock,
    coordinator: ScriptedCoordinator,
    recorder: Recorder,
    caplog: pytest.LogCaptureFixture,
    *,
    hook: str,
    error: Any,
) -> None:
    raising = Raising(hook, error)
    async with open_client(
        coordinator.address, max_in_flight=1, instruments=[raising, recorder]
    ) as client:
        client.engines.pause()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(by_stream, client)
            submission = await coordinator.submission()
            coordinator.partial(submission, [65])
            complete(coordinator, submission)
        async with client.stream("hi", LONG):
            await coordinator.submission()
            with trio.move_on_after(1):
                await client.generate("hi", LONG)
        async with client.open_group() as group:
            group.submit_nowait(GenerateRequest("hi", LONG))
            fail(coordinator, await coordinator.submission())
            await group.outcomes.receive()
            group.submit_nowait(GenerateRequest("hi", LONG))
            await coordinator.submission()
            coordinator.close()
            await group.outcomes.receive()
    assert set(recorder.hooks) == set(HOOKS)
    recorder.check()
    assert raising.calls.count(hook) == 1
    assert raising.calls[-1] == hook, "it was called behind that"
    (record,) = [one for one in caplog.records if "switched off" in one.getMessage()]
    assert record.levelno == logging.ERROR
    assert hook in record.getMessage()
    assert record.exc_info


@pytest.mark.parametrize(
    "send",
    [lambda client: client.engines.pause(), lambda client: client.shutdown_coordinator()],
    ids=["pause", "shutdown"],
)
def test_ctrl_c_that_comes_while_an_instrument_is_told_is_not_lost(send: Any) -> None:
    class Interrupted:
        def signal_sent(self, _: object) -> None:
            signal.raise_signal(signal.SIGINT)

    async def main() -> None:
        async with scripted_coordinator(MEMORY) as coordinator:
            async with open_client(coordinator.address, instruments=[Interrupted()]) as client:
                send(client)
                await trio.sleep(1)

    with pytest.raises(BaseException) as raised:  # noqa: PT011 - in a group of the nursery's
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert isinstance(raised.value, BaseExceptionGroup)
    assert raised.value.subgroup(KeyboardInterrupt) is not None


@pytest.mark.parametrize(
    "wrong",
    [None, 7, [object()], ["text"], [Recorder], [Instrument()], [attrs.make_class("N", [])]],
)
def test_what_can_be_told_nothing_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(TypeError, match="instruments"):
        open_client("tcp://localhost:1", instruments=wrong)


async def test_a_method_that_an_object_has_of_its_own_is_called(
    autojump_clock: Clock, coordinator: ScriptedCoordinator
) -> None:
    class Counts(Instrument):
        def __init__(self, count: Callable[[Any], None]) -> None:
            self.connection_up = count  # type: ignore[assignment, method-assign]

    told: list[Any] = []
    async with open_client(coordinator.address, instruments=[Counts(told.append)]):
        assert len(told) == 1


def test_a_method_that_is_none_is_refused() -> None:
    class Wrong:
        request_lost = 7

    with pytest.raises(TypeError, match="instruments"):
        open_client("tcp://localhost:1", instruments=[Wrong()])


@pytest.mark.parametrize(
    ("what", "hook"),
    [
        ("stream", "request_waiting"),
        ("stream", "request_submitted"),
        ("group", "request_submitted"),
        ("group, waiting", "request_waiting"),
        ("group, waiting", "request_submitted"),
    ],
)
async def test_a_request_that_an_instrument_closes_as_it_is_made_does_not_run_on(
    autojump_clock: Clock,
    coordinator: ScriptedCoordinator,
    recorder: Recorder,
    hook: str,
    what: str,
) -> None:
    def close(_: object) -> None:
        (group if what.startswith("group") else stream).close()

    closing = attrs.make_class("Closing", [])()
    setattr(closing, hook, close)
    async with open_client(coordinator.address, instruments=[recorder, closing]) as client:
        stream, group = client.stream("hi", LONG), client.open_group()
        with pytest.raises(trio.ClosedResourceError):
            if what == "stream":
                async with stream:
                    await stream.result()
            elif what == "group":
                async with group:
                    group.submit_nowait(GenerateRequest("hi", LONG))
                    await group.outcomes.receive()
            else:
                async with group:
                    await group.submit(GenerateRequest("hi", LONG))
        assert client.statistics().in_flight == 0
        recorder.check()


async def test_an_instrument_that_would_count_everything_twice_is_refused() -> None:
    recorder = Recorder()
    with pytest.raises(ValueError, match="twice"):
        async with open_client(MEMORY, instruments=[recorder, recorder]):
            pass


async def test_who_gives_the_class_of_an_instrument_is_told_so() -> None:
    with pytest.raises(TypeError, match="an object, not the class LoggingInstrument"):
        async with open_client(MEMORY, instruments=[LoggingInstrument]):
            pass


def test_an_async_method_which_nobody_would_await_is_refused() -> None:
    class Wrong:
        async def request_lost(self, _: object) -> None: ...

    with pytest.raises(TypeError, match="request_lost of"):
        open_client("tcp://localhost:1", instruments=[Wrong()])


# What none costs


async def use(coordinator: ScriptedCoordinator, client: InferenceClient) -> None:
    for ask in (by_stream, by_group, by_generate):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, client)
            submission = await coordinator.submission()
            coordinator.partial(submission, [65])
            complete(coordinator, submission)
    client.engines.pause()


def refuse(*_: object, **__: object) -> None:
    pytest.fail("something was made that nobody wants")


async def test_without_instruments_nothing_is_made_for_them(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_infer.exchange.Instruments", refuse)
    async with open_client(coordinator.address) as client:
        await use(coordinator, client)


@pytest.mark.parametrize(
    ("hook", "unwanted"),
    [
        ("signal_sent", ("Observation", "ObservedRequest", "ConnectionChange")),
        ("request_lost", ("RequestMoment", "RequestEnding", "ConnectionChange", "SignalSent")),
    ],
)
async def test_of_what_nobody_listens_to_nothing_is_made(
    *,
    autojump_clock: Clock,
    coordinator: ScriptedCoordinator,
    monkeypatch: pytest.MonkeyPatch,
    hook: str,
    unwanted: tuple[str, ...],
) -> None:
    for name in unwanted:
        monkeypatch.setattr(f"trio_infer.instruments.{name}", refuse)
    told: list[Any] = []
    instrument = SimpleNamespace(**{hook: told.append})
    async with open_client(coordinator.address, instruments=[instrument]) as client:
        await use(coordinator, client)
    assert len(told) == (hook == "signal_sent")


async def test_nothing_is_kept_of_requests_that_have_ended(
    autojump_clock: Clock,
    coordinator: ScriptedCoordinator,
) -> None:
    class Silent(Instrument):
        def request_lost(self, ending: RequestEnding) -> None:
            pass

    def living() -> int:
        gc.collect()
        return sum(type(each) in (Observation, ObservedRequest) for each in gc.get_objects())

    async with open_client(coordinator.address, instruments=[Silent()]) as client:
        await use(coordinator, client)
        assert living() == 0


# The log


async def test_the_log_can_go_to_another_process(
    autojump_clock: Clock,
    coordinator: ScriptedCoordinator,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "trio_infer.telemetry")
    async with open_client(coordinator.address, instruments=[LoggingInstrument()]) as client:
        client.engines.set_generation_epoch(7)
        async with client.stream("hi", LONG):
            coordinator.partial(await coordinator.submission(), [65])
            await trio.sleep(1)
    sent = [pickle.loads(pickle.dumps(record)) for record in caplog.records]
    events = [record.event for record in sent if record.name == "trio_infer.telemetry"]
    requests = [event.request for event in events if hasattr(event, "request")]
    assert len(requests) == 5
    assert {request.sampling_params["num_tokens_to_generate"] for request in requests} == {100_000}


async def test_the_log_has_a_line_for_each_event(
    autojump_clock: Clock,
    coordinator: ScriptedCoordinator,
    recorder: Recorder,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "trio_infer.telemetry")
    async with open_client(
        coordinator.address, max_in_flight=1, instruments=[LoggingInstrument(), recorder]
    ) as client:
        client.engines.set_generation_epoch(7)
        async with client.stream("secret", LONG):
            coordinator.partial(await coordinator.submission(), [65])
            await until(lambda: "request_delta" in recorder.hooks)
            with trio.move_on_after(1):
                await client.generate("secret", LONG)
        async with client.open_group() as group:
            for end in (complete, fail, die):
                group.submit_nowait(GenerateRequest("secret", LONG))
                end(coordinator, await coordinator.submission())
                await group.outcomes.receive()
    records = [one for one in caplog.records if one.name == "trio_infer.telemetry"]
    assert [vars(one)["event"] for one in records] == recorder.of(*HOOKS)
    told = {
        hook: (one.levelname, re.sub(r"(\.\d)\d\d s", r"\1 s", one.getMessage()))
        for hook, one in zip(recorder.hooks, records, strict=True)
    }
    address = coordinator.address
    size = recorder.of("request_delta")[0].size
    reason = "the engine gave no reason"
    lost, gone = "the connection was lost", "the peer is gone"
    assert told == {
        "connection_up": ("INFO", f"connected to {address}"),
        "signal_sent": ("INFO", f"sent SET_GENERATION_EPOCH, epoch 7 to {address}"),
        "request_waiting": ("DEBUG", "a request waits to be handed over"),
        "request_withdrawn": ("INFO", "a request was left after it had waited for 1.0 s"),
        "request_submitted": ("DEBUG", "request 3 handed over after 0.0 s"),
        "request_first_token": ("DEBUG", "request 0: first tokens"),
        "request_delta": ("DEBUG", f"request 0: {size} bytes of tokens"),
        "request_aborted": ("INFO", "request 0 aborted with 0 tokens after 1.0 s"),
        "request_finished": ("INFO", "request 1 finished (stop) with 2 tokens after 0.0 s"),
        "request_failed": (
            "WARNING",
            f"request 2 failed with 0 tokens after 0.0 s: request 2 failed: {reason}",
        ),
        "request_lost": (
            "WARNING",
            f"request 3 lost with 0 tokens after 0.0 s: {lost} with the request in flight: {gone}",
        ),
        "connection_lost": ("WARNING", f"connection to {address} ended: the peer is gone"),
    }


async def test_the_log_has_the_levels_that_are_wanted(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("of.mine")
    caplog.set_level(logging.INFO, "of.mine")
    levels = {"request_submitted": logging.CRITICAL}
    instrument = LoggingInstrument(logger, levels=levels)
    async with open_client(coordinator.address, instruments=[instrument]) as client:
        async with client.stream("hi", LONG):
            pass
        async with client.stream("hi", LONG):
            complete(
                coordinator, (await coordinator.submission(), await coordinator.submission())[1]
            )
            await until(lambda: client.statistics().completed)
    told = [
        (one.levelname, re.sub(r"\d\.\d+ s", "0.000 s", one.getMessage()))
        for one in caplog.records
        if one.name == "of.mine"
    ]
    assert told == [
        ("INFO", f"connected to {coordinator.address}"),
        ("CRITICAL", "request 0 handed over after 0.000 s"),
        ("INFO", "request 0 aborted with 0 tokens after 0.000 s"),
        ("CRITICAL", "request 1 handed over after 0.000 s"),
        ("INFO", "request 1 finished (unread) with unread tokens after 0.000 s"),
        ("INFO", f"connection to {coordinator.address} ended: the client is closed"),
    ]


@pytest.mark.parametrize(
    "wrong", [{"logger": "mine"}, {"levels": {"request_finished": "INFO"}}], ids=str
)
def test_a_log_that_would_fail_at_its_first_line_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"logger must be|request_finished must be an int"):
        LoggingInstrument(**wrong)


def test_a_level_of_no_event_is_refused() -> None:
    with pytest.raises(ValueError, match="levels"):
        LoggingInstrument(levels={"request_done": logging.INFO})
