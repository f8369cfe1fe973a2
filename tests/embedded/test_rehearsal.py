"""What clients make of a coordinator's faults; and when it sends what, on a clock of ours."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
import trio.testing

from tests.messages import laid_out
from tests.waiting import until
from trio_infer import (
    DIALECTS,
    Completion,
    ConnectionLost,
    ConnectTimeout,
    InferenceClient,
    RemoteProtocolError,
    RequestFailed,
    SamplingParams,
    open_client,
)
from trio_infer.background import running_behind
from trio_infer.embedded import EmbeddedCoordinator, Faults, open_coordinator
from trio_infer.embedded.core import CoordinatorCore
from trio_infer.embedded.engine import Engine
from trio_infer.embedded.faults import FaultInjector
from trio_infer.embedded.outgoing import Outgoing
from trio_infer.embedded.serving import Serving
from trio_infer.protocol.client_codec import ClientCodec
from trio_infer.protocol.dialect import Kind
from trio_infer.protocol.dialects import FRAMED

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from trio_infer.embedded import LanguageModel
    from trio_infer.protocol.packing import Frame, Frames

GREEDY = SamplingParams(top_k=1, num_tokens_to_generate=5)
ENDLESS = SamplingParams(top_k=1, termination_id=-1)


@asynccontextmanager
async def both(
    model: LanguageModel, *, close_timeout: float = 5.0, **options: Any
) -> AsyncGenerator[tuple[EmbeddedCoordinator, InferenceClient]]:
    """A coordinator, and a client of its."""
    async with (
        open_coordinator(model=model, **options) as coordinator,
        open_client(coordinator.address, close_timeout=close_timeout) as client,
    ):
        yield coordinator, client


def seed_that(drops: list[int], *, of: int) -> int:
    """A seed with which, of the replies to the first request, just these are dropped."""
    for seed in count():
        injector = FaultInjector(Faults(drop=0.5), seed=seed)
        new = [Outgoing(b"A", [b"x"], 0, place) for place in range(of)]
        kept = [each.place for each in injector.pass_on(new, 0.0, busy=True)]
        if [place for place in range(of) if place not in kept] == drops:
            return seed
    raise AssertionError


async def test_without_its_final_reply_a_request_lasts_as_long_as_its_caller_lets_it(
    alphabet: LanguageModel,
) -> None:
    faults = Faults(drop=1.0)
    async with both(alphabet, faults=faults, close_timeout=0.01) as (coordinator, client):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.generate, "a", GREEDY)
                await coordinator.wait_until(lambda: coordinator.statistics().dropped == 1)
                coordinator.faults = Faults()
                await client.generate("a", GREEDY)
                assert nursery.child_tasks
                scope.cancel()
        assert scope.cancelled_caught
        await coordinator.wait_until(lambda: coordinator.statistics().stray_aborts == 1)
    assert client.statistics().undelivered == 1


async def test_a_stream_that_lost_a_partial_result_does_not_pass_for_whole(
    alphabet: LanguageModel,
) -> None:
    seed = seed_that(drops=[1], of=5)
    async with both(alphabet, faults=Faults(drop=0.5), seed=seed) as (coordinator, client):
        async with client.stream("a", GREEDY) as stream:
            with pytest.raises(RemoteProtocolError, match="contradict"):
                await stream.result()
        assert coordinator.statistics().dropped == 1


async def test_a_final_reply_makes_good_for_lost_partial_results_right_before_it(
    alphabet: LanguageModel,
) -> None:
    seed = seed_that(drops=[2, 3], of=5)
    async with both(alphabet, faults=Faults(drop=0.5), seed=seed) as (coordinator, client):
        async with client.stream("a", GREEDY) as stream:
            assert (await stream.result()).generated_text == "bcdef"
        assert bytes(stream.tokens) == b"bcdef"
        assert coordinator.statistics().dropped == 2


async def test_a_final_reply_that_comes_twice_is_taken_once(alphabet: LanguageModel) -> None:
    async with both(alphabet, faults=Faults(duplicate=1.0)) as (coordinator, client):
        for _ in range(3):
            assert (await client.generate("a", GREEDY)).generated_text == "bcdef"
        await until(lambda: client.statistics().discarded == 3)
        assert client.statistics().completed == 3
        assert coordinator.statistics().duplicated == 3


async def test_a_partial_result_that_comes_twice_does_not_go_unnoticed(
    alphabet: LanguageModel,
) -> None:
    async with both(alphabet, faults=Faults(duplicate=1.0)) as (_, client):
        async with client.stream("a", GREEDY) as stream:
            with pytest.raises(RemoteProtocolError, match="contradict"):
                await stream.result()


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_corrupted_reply_costs_at_most_its_own_request(
    alphabet: LanguageModel, dialect: str
) -> None:
    ended: list[Completion | RemoteProtocolError] = []

    async def generate(client: InferenceClient) -> None:
        try:
            ended.append(await client.generate("a", GREEDY))
        except RemoteProtocolError as error:
            ended.append(error)

    async with (
        open_coordinator(
            model=alphabet, dialect=dialect, seed=1, faults=Faults(corrupt=0.5)
        ) as coordinator,
        open_client(coordinator.address, dialect=dialect, close_timeout=0.01) as client,
    ):
        async with trio.open_nursery() as nursery:
            for _ in range(60):
                nursery.start_soon(generate, client)
            await coordinator.wait_until(lambda: coordinator.statistics().completed == 60)
            coordinator.faults = Faults()
            await client.generate("a", GREEDY)  # comes behind all others
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()  # whose replies did not say whose they were
        corrupted = coordinator.statistics().corrupted
        assert 10 < corrupted < 50
        right = [
            each
            for each in ended
            if isinstance(each, Completion) and each.generated_tokens == list(b"bcdef")
        ]
        assert len(right) >= 60 - corrupted
        assert client.statistics().malformed >= 10


@pytest.mark.parametrize(
    "faults", [Faults(delay=0.5, delay_seconds=(0.001, 0.01)), Faults(reorder=0.5)], ids=str
)
async def test_replies_that_come_late_or_past_each_other_make_the_same_completions(
    alphabet: LanguageModel, faults: Faults
) -> None:
    async def stream(client: InferenceClient, prompt: str) -> None:
        async with client.stream(prompt, GREEDY) as stream:
            texts[prompt] = (await stream.result()).generated_text

    prompts = [chr(number) for number in range(ord("A"), ord("Z"))]
    texts: dict[str, str | None] = {}
    async with both(alphabet, faults=faults, seed=1) as (coordinator, client):
        async with trio.open_nursery() as nursery:
            for prompt in prompts:
                nursery.start_soon(stream, client, prompt)
        counts = coordinator.statistics()
        assert counts.delayed + counts.reordered > 5
        assert client.statistics().malformed == client.statistics().discarded == 0
    assert texts == {
        prompt: "".join(chr(ord(prompt) + step) for step in range(1, 6)) for prompt in prompts
    }


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_request_that_fails_on_purpose_may_be_tried_again(
    alphabet: LanguageModel, dialect: str
) -> None:
    async with (
        open_coordinator(model=alphabet, dialect=dialect, faults=Faults(fail=1.0)) as coordinator,
        open_client(coordinator.address, dialect=dialect) as client,
    ):
        with pytest.raises(RequestFailed, match="failed on purpose") as caught:
            await client.generate("a", GREEDY)
        assert caught.value.retryable is True
        coordinator.faults = Faults()
        assert (await client.generate("a", GREEDY)).generated_text == "bcdef"
        counts = coordinator.statistics()
        assert (counts.failed, counts.failed_on_purpose, counts.completed) == (1, 1, 1)


async def test_the_seed_decides_what_fails_and_faults_do_not_change_what_is_sampled() -> None:
    async def texts(seed: int, faults: Faults) -> list[str | None]:
        answers: list[str | None] = []
        async with (
            open_coordinator(seed=seed, faults=faults) as coordinator,
            open_client(coordinator.address) as client,
        ):
            for _ in range(12):
                try:
                    completion = await client.generate(
                        "The ", SamplingParams(num_tokens_to_generate=8)
                    )
                except RequestFailed:
                    answers.append(None)
                else:
                    answers.append(completion.generated_text)
        return answers

    without = await texts(1, Faults())
    some = await texts(1, Faults(fail=0.5, duplicate=0.5))
    assert some == await texts(1, Faults(fail=0.5))
    assert None in some
    assert all(text in (None, whole) for text, whole in zip(some, without, strict=True))
    other = await texts(2, Faults(fail=0.5))
    assert [text is None for text in other] != [text is None for text in some]


async def test_a_lost_answer_to_the_handshake_makes_connecting_time_out(
    alphabet: LanguageModel,
) -> None:
    async with open_coordinator(model=alphabet, faults=Faults(drop_acks=1.0)) as coordinator:
        with pytest.raises(ConnectTimeout):
            async with open_client(coordinator.address, connect_timeout=0.1, close_timeout=0.1):
                pytest.fail("entered")
        assert coordinator.statistics().dropped_acks == 1


async def test_a_client_that_lost_the_answer_to_its_handshake_shakes_hands_again(
    alphabet: LanguageModel,
) -> None:
    async with open_coordinator(model=alphabet, faults=Faults(drop_acks=1.0)) as coordinator:

        async def mend() -> None:
            await coordinator.wait_until(lambda: coordinator.statistics().dropped_acks == 1)
            coordinator.faults = Faults()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(mend)
            async with open_client(
                coordinator.address, heartbeat_timeout=0.2, connect_timeout=None
            ) as client:
                await client.generate("a", GREEDY)


# Freezing


async def test_a_frozen_coordinator_does_nothing_and_makes_up_for_it_when_thawed(
    alphabet: LanguageModel,
) -> None:
    async with both(alphabet) as (coordinator, client):
        coordinator.freeze()
        states = [coordinator.frozen]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.generate, "a", GREEDY)
            await until(lambda: coordinator._serving._backlog)
            await trio.testing.wait_all_tasks_blocked()
            assert coordinator.statistics().submitted == 0
            coordinator.thaw()
        assert [*states, coordinator.frozen] == [True, False]
        assert coordinator.statistics().completed == 1


async def test_a_stream_stands_still_while_its_coordinator_is_frozen(
    alphabet: LanguageModel,
) -> None:
    async with both(alphabet) as (coordinator, client):
        async with client.stream("a", ENDLESS) as stream:
            await stream.receive()
            coordinator.freeze()
            steps = coordinator.statistics().steps
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert coordinator.statistics().steps == steps
            await until(lambda: len(stream.tokens) >= steps or stream.receive_nowait())
            coordinator.thaw()
            await stream.receive()
            assert coordinator.statistics().steps > steps


# Dying


async def test_when_a_coordinator_dies_its_streams_say_how_far_they_came(
    alphabet: LanguageModel,
) -> None:
    async with both(alphabet) as (coordinator, client):
        async with client.stream("a", ENDLESS) as stream:
            await stream.receive()
            coordinator.die()
            assert coordinator.stopped
            with pytest.raises(ConnectionLost) as caught:
                await stream.result()
        tokens = caught.value.tokens
        assert tokens
        assert tokens[:3] == tuple(b"bcd")[: len(tokens)]  # how many had left, it did not say
        assert client.statistics().lost == 1


async def test_another_coordinator_takes_the_place_of_one_that_died(
    alphabet: LanguageModel,
) -> None:
    async with both(alphabet) as (first, client):
        await client.generate("a", GREEDY)
        first.die()
        async with open_coordinator(model=alphabet, bind=first.address) as second:
            await until(lambda: client.statistics().connections == 2)
            assert (await client.generate("a", GREEDY)).generated_text == "bcdef"
            assert second.statistics().completed == 1


@pytest.mark.parametrize("frozen", [False, True])
async def test_the_dead_stay_dead(alphabet: LanguageModel, frozen: bool) -> None:  # noqa: FBT001
    async with both(alphabet, faults=Faults(delay=1.0)) as (coordinator, client):
        async with client.stream("a", ENDLESS) as stream:
            await coordinator.wait_until(lambda: coordinator.statistics().delayed > 0)
            if frozen:
                coordinator.freeze()
            for act in (
                coordinator.die,
                coordinator.die,
                coordinator.freeze,
                coordinator.thaw,
                partial(coordinator.kill_engine, 0),
            ):
                act()
            steps = coordinator.statistics().steps
            with pytest.raises(ConnectionLost):
                await stream.result()
        assert coordinator.statistics().steps == steps


async def test_nobody_hears_of_the_requests_of_an_engine_that_dies(
    alphabet: LanguageModel,
) -> None:
    async with both(alphabet, engines=2, close_timeout=0.01) as (coordinator, client):
        async with client.stream("a", ENDLESS) as stream:
            await stream.receive()
            coordinator.kill_engine(0)
            coordinator.kill_engine(0)
            assert coordinator.engine_states == ("dead", "running")
            assert coordinator.statistics().lost == 1
            assert (await client.generate("a", GREEDY)).generated_text == "bcdef"
            assert not stream.finished


async def test_without_any_engine_the_next_request_ends_the_coordinator(
    alphabet: LanguageModel,
) -> None:
    async with both(alphabet) as (coordinator, client):
        coordinator.kill_engine(0)
        assert not coordinator.stopped
        with pytest.raises(ConnectionLost):
            await client.generate("a", GREEDY)
        assert coordinator.stopped


@pytest.mark.parametrize(("index", "error"), [(1, ValueError), (-1, ValueError), ("0", TypeError)])
async def test_only_engines_that_there_are_can_be_killed(
    alphabet: LanguageModel, index: Any, error: type[Exception]
) -> None:
    async with open_coordinator(model=alphabet) as coordinator:
        with pytest.raises(error, match="index"):
            coordinator.kill_engine(index)
        assert coordinator.engine_states == ("running",)


async def test_what_are_no_faults_is_refused(alphabet: LanguageModel) -> None:
    wrong: Any = {"drop": 1.0}
    with pytest.raises(TypeError, match="faults must be Faults"):
        async with open_coordinator(model=alphabet, faults=wrong):
            pytest.fail("opened")  # pragma: no cover
    async with open_coordinator(model=alphabet) as coordinator:
        with pytest.raises(TypeError, match="faults must be Faults"):
            coordinator.faults = wrong
        assert coordinator.faults == Faults()


# On a clock of ours


@attrs.define
class Wire:
    """In the place of a socket: what was sent, and when."""

    sent: list[tuple[float, Kind]] = attrs.field(factory=list)
    closed: bool = False

    def send(self, frames: list[Frame]) -> None:
        assert not self.closed
        self.sent.append((trio.current_time(), ClientCodec(FRAMED).decode(frames[1:]).kind))

    async def read(self, deliver: Callable[[Frames], None]) -> None:
        await trio.sleep_forever()

    def freeze(self) -> None:
        pass

    def thaw(self) -> None:
        pass

    def close(self, *, linger: bool = True) -> None:
        self.closed = True


@asynccontextmanager
async def serving(
    model: LanguageModel, faults: Faults
) -> AsyncGenerator[tuple[Serving, Wire, Callable[..., None]]]:
    """A coordinator without a socket, whose engine takes a second for a step."""
    wire: Any = Wire()
    injector = FaultInjector(faults, seed=0)
    core = CoordinatorCore(FRAMED, [Engine(model)], fails=injector.fails)
    serving = Serving(core, wire, 1.0, injector)
    codec = ClientCodec(FRAMED)
    serving._receive([b"A", *codec.connect()])
    wire.sent.clear()

    def submit(request_id: int, **params: Any) -> None:
        prepared = laid_out(codec, "a", {"top_k": 1} | params)
        serving._receive([b"A", *prepared.frames(request_id)])

    async with running_behind(serving.read, serving.decode, serving.send_held):
        yield serving, wire, submit


async def test_what_is_held_back_goes_when_its_time_has_come(
    alphabet: LanguageModel, autojump_clock: trio.testing.MockClock
) -> None:
    async with serving(alphabet, Faults(delay=1.0, delay_seconds=(5, 5))) as (_, wire, submit):
        submit(0, num_tokens_to_generate=3, streaming=True)
        await trio.sleep(100)
        partial, final = Kind.ENGINE_REPLY_PARTIAL, Kind.ENGINE_REPLY
        assert wire.sent == [(6.0, partial), (7.0, partial), (8.0, final)]


async def test_what_falls_due_while_it_is_frozen_goes_when_it_is_thawed(
    alphabet: LanguageModel, autojump_clock: trio.testing.MockClock
) -> None:
    faults = Faults(delay=1.0, delay_seconds=(5, 5))
    async with serving(alphabet, faults) as (coordinator, wire, submit):
        submit(0, num_tokens_to_generate=1)
        await trio.sleep(3.5)
        coordinator.freeze()
        await trio.sleep(100)
        assert wire.sent == []
        coordinator.thaw()
        assert wire.sent == [(103.5, Kind.ENGINE_REPLY)]


async def test_a_freeze_in_the_middle_of_a_step_undoes_the_step(
    alphabet: LanguageModel, autojump_clock: trio.testing.MockClock
) -> None:
    async with serving(alphabet, Faults()) as (coordinator, wire, submit):
        submit(0, num_tokens_to_generate=1)
        await trio.sleep(0.5)
        coordinator.freeze()
        await trio.sleep(10)
        assert coordinator.core.statistics().steps == 0
        coordinator.thaw()
        await trio.sleep(10)
        assert wire.sent == [(11.5, Kind.ENGINE_REPLY)]


async def test_what_is_held_back_dies_with_it(
    alphabet: LanguageModel, autojump_clock: trio.testing.MockClock
) -> None:
    faults = Faults(delay=1.0, delay_seconds=(5, 5))
    async with serving(alphabet, faults) as (coordinator, wire, submit):
        submit(0, num_tokens_to_generate=1)
        await trio.sleep(3)
        coordinator.die()
        await trio.sleep(100)
        assert wire.closed
        assert wire.sent == []


async def test_an_engine_that_steps_slowly_holds_up_no_reply_longer_than_it_may_wait(
    alphabet: LanguageModel, autojump_clock: trio.testing.MockClock
) -> None:
    async with serving(alphabet, Faults(reorder=1.0)) as (_, wire, submit):
        submit(0, num_tokens_to_generate=1)
        submit(1, num_tokens_to_generate=2)
        await trio.sleep(100)
        assert [at for at, _ in wire.sent] == [1.1, 2.0]


async def test_times_that_engines_measure_are_of_the_same_clock(
    alphabet: LanguageModel, autojump_clock: trio.testing.MockClock
) -> None:
    async with serving(alphabet, Faults()) as (coordinator, _, submit):
        submit(0, num_tokens_to_generate=2)
        await trio.sleep(1.5)
        (request,) = coordinator.core.fleet[0]._batch._running.values()
        assert request.ttft == pytest.approx(1.0)
