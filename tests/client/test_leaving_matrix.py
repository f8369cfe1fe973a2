"""Each way of leaving, whatever the coordinator is up to: bounded, without a wrong error, and told.

In memory, where a clock of ours tells how long leaving took; and over TCP behind a real backlog.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest
import trio
import trio.testing

from tests.peers import scripted_coordinator
from tests.relay import Relay
from tests.waiting import until
from trio_infer import (
    ConnectTimeout,
    InferenceClient,
    SamplingParams,
    connect_client,
    open_client,
)
from trio_infer.embedded import EmbeddedCoordinator, Faults, open_coordinator

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from contextlib import AbstractAsyncContextManager

    from trio_infer import Completion, CompletionStream

    Use = Callable[[InferenceClient], Awaitable[object]]
    Door = Callable[..., AbstractAsyncContextManager[InferenceClient]]

ADDRESS = "memory://here"
STEP = 1.0
"""Seconds that an engine takes to heed an abort."""

CLOSE_TIMEOUT = 20.0
BACKLOG = 1_000
"""Requests, each with an abort behind it."""

LONG = SamplingParams(num_tokens_to_generate=100_000, termination_id=-1)


class Fault(Exception):
    """Something went wrong in the caller's own code."""


@asynccontextmanager
async def connected_client(address: str, **options: Any) -> AsyncGenerator[InferenceClient]:
    """The second door, as a block."""
    async with trio.open_nursery() as nursery:
        async with await connect_client(nursery, address, **options) as client:
            yield client


DOORS: Final[dict[str, Door]] = {"open_client": open_client, "connect_client": connected_client}


def raises_from(door: Door, error: type[Exception]) -> Any:
    """Expects an error of a block: bare, unless the caller has a nursery around it."""
    return pytest.raises(error) if door is open_client else pytest.RaisesGroup(error)


# Who waits for something of the client's when it is left


async def generate(client: InferenceClient) -> None:
    await client.generate("hi", LONG)


async def prefill(client: InferenceClient) -> None:
    async with client.prefill([1, 2, 3]):
        pytest.fail("entered")


def read_by(read: Callable[[CompletionStream[Completion]], Awaitable[object]]) -> Use:
    async def use(client: InferenceClient) -> None:
        async with client.stream("hi", LONG) as stream:
            await read(stream)

    return use


async def leave_a_stream_before(client: InferenceClient) -> None:
    """Its abort is owed the final reply as well; what waits then is no matter."""
    async with client.stream("hi", LONG):
        pass
    await generate(client)


USES: Final = (
    generate,
    prefill,
    read_by(lambda stream: stream.receive()),
    read_by(lambda stream: stream.result()),
    read_by(lambda stream: stream.finish_early()),
    leave_a_stream_before,
)


@attrs.define
class Scene:
    """A client that is about to be left, and all others.

    Attributes:
        door: what opens it.
        coordinator: the one that it is, or was, connected to.
        nursery: of those that nobody cancels.
        plight: what the coordinator is up to.
        log: what is logged from when leaving begins.
        waiting: how many still wait for something of the client's.
        began: when leaving did.
        client: the client.
        left: set when all is over.
    """

    door: Door
    coordinator: EmbeddedCoordinator
    nursery: trio.Nursery
    plight: Plight
    log: pytest.LogCaptureFixture
    waiting: int = 0
    began: float = math.nan
    client: InferenceClient = attrs.field(init=False)
    left: trio.Event = attrs.field(factory=trio.Event)

    @property
    def options(self) -> dict[str, Any]:
        """The client's."""
        heartbeat_timeout = self.plight.heartbeat_timeout
        return {"close_timeout": CLOSE_TIMEOUT, "heartbeat_timeout": heartbeat_timeout}

    def open(self) -> AbstractAsyncContextManager[InferenceClient]:
        """The client, to be left as the block ends."""
        return self.door(ADDRESS, **self.options)

    async def play(self, client: InferenceClient) -> None:
        """All that comes before leaving."""
        self.client = client
        held = trio.Event()
        self.nursery.start_soon(self._hold, held)
        await held.wait()
        await self.plight.arrange(self)
        self.log.clear()
        self.began = trio.current_time()

    def check_left(self) -> None:
        """All is over just when it has to be."""
        assert trio.current_time() - self.began == pytest.approx(self.plight.seconds)
        assert self.client.statistics().aborting == 0

    async def use(self, *uses: Use) -> None:
        """Waits until all wait for something, and somebody for each of these."""
        for use in uses:
            self.waiting += 1
            self.nursery.start_soon(self._use, use)
        await trio.testing.wait_all_tasks_blocked()

    async def _use(self, use: Use) -> None:
        with pytest.raises(trio.ClosedResourceError):
            await use(self.client)
        self.waiting -= 1

    async def _hold(self, held: trio.Event) -> None:
        async with self.client.prefill([1, 2, 3]):
            held.set()
            await self.left.wait()


# What the coordinator is up to


async def be_well(scene: Scene) -> None:
    await scene.use(*USES)


async def freeze(scene: Scene) -> None:
    scene.coordinator.freeze()
    await scene.use(*USES)


async def read_nothing(scene: Scene) -> None:
    scene.coordinator.freeze()
    await scene.use(*USES, *[generate] * BACKLOG)


async def pause(scene: Scene) -> None:
    scene.coordinator.pause()
    await scene.coordinator.engines_paused()
    await scene.use(*USES)


async def die(scene: Scene) -> None:
    await scene.use(*USES)
    scene.coordinator.die()  # of which the client hears when it has begun to leave


async def be_away(scene: Scene) -> None:
    scene.coordinator.die()
    await until(lambda: scene.client.statistics().unreleased)
    await scene.use(*USES)


async def be_replaced(scene: Scene, *, by: dict[str, Any], frozen: bool = False) -> None:
    await be_away(scene)
    coordinator = await scene.nursery.start(partial(serve, **by))
    if frozen:
        coordinator.freeze()
    await trio.sleep(10)  # by then it has been found
    assert coordinator.statistics().dropped_acks == (0 if frozen else 1)


async def serve(*, task_status: trio.TaskStatus[EmbeddedCoordinator], **options: Any) -> None:
    async with open_coordinator(bind=ADDRESS, step_time=STEP, **options) as coordinator:
        task_status.started(coordinator)
        await trio.sleep_forever()


OWED = "still owed the final replies to {} aborted requests"
LOST = "connection lost (the peer is gone), 0 requests and {} unanswered aborts with it"


@attrs.frozen(kw_only=True)
class Plight:
    """What the coordinator is up to when the client is left, and what comes of it.

    Attributes:
        arrange: what brings it about, while there are requests.
        seconds: that leaving takes.
        told: what the log says of it, with the number of unanswered aborts.
        answered: whether the aborts were.
        unreleased: how many handoffs have gone with their connection.
        heartbeat_timeout: the client's.
    """

    arrange: Callable[[Scene], Awaitable[object]]
    seconds: float
    told: str | None = None
    answered: bool = True
    unreleased: int = 0
    heartbeat_timeout: float = 1000.0


PLIGHTS: Final = {
    "well": Plight(arrange=be_well, seconds=STEP),
    "frozen": Plight(arrange=freeze, seconds=CLOSE_TIMEOUT, told=OWED, answered=False),
    "frozen for too long": Plight(
        arrange=freeze, seconds=7.0, told=LOST, answered=False, heartbeat_timeout=7.0
    ),
    "behind a backlog": Plight(
        arrange=read_nothing, seconds=CLOSE_TIMEOUT, told=OWED, answered=False
    ),
    "paused": Plight(arrange=pause, seconds=CLOSE_TIMEOUT, told=OWED, answered=False),
    "dying": Plight(arrange=die, seconds=0, told=LOST, answered=False, unreleased=1),
    "away": Plight(arrange=be_away, seconds=0, unreleased=1),
    "replaced by one that is frozen": Plight(
        arrange=partial(be_replaced, by={}, frozen=True), seconds=0, unreleased=1
    ),
    "replaced by one that never acks": Plight(
        arrange=partial(be_replaced, by={"faults": Faults(drop_acks=1.0)}),
        seconds=CLOSE_TIMEOUT,
        told="still owed the answer to CONNECT",
        unreleased=1,
    ),
}


# The ways out


async def by_the_end_of_the_block(scene: Scene) -> None:
    async with scene.open() as client:
        await scene.play(client)


async def by_an_exception(scene: Scene) -> None:
    with raises_from(scene.door, Fault):
        async with scene.open() as client:
            await scene.play(client)
            raise Fault


async def cancelled(scene: Scene) -> None:
    with trio.CancelScope() as scope:
        async with scene.open() as client:
            await scene.play(client)
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def in_a_cancelled_scope(scene: Scene) -> None:
    with trio.CancelScope() as scope:
        async with scene.open() as client:
            await scene.play(client)
            scope.cancel()


async def cancelled_meanwhile(scene: Scene) -> None:
    with trio.CancelScope() as scope:
        async with scene.open() as client:
            await scene.play(client)
            scope.deadline = trio.current_time() + STEP / 2


async def by_aclose_cancelled_before(scene: Scene) -> None:
    async with scene.open() as client:
        await scene.play(client)
        with trio.CancelScope() as scope:
            scope.cancel()
            await client.aclose()
        assert scope.cancelled_caught
        scene.check_left()


async def by_aclose_cancelled_meanwhile(scene: Scene) -> None:
    async with scene.open() as client:
        await scene.play(client)
        with trio.move_on_after(STEP / 2) as scope:
            await client.aclose()
        assert scope.cancelled_caught == (scene.plight.seconds > 0)
        scene.check_left()


async def twice(scene: Scene) -> None:
    async with scene.open() as client:
        await scene.play(client)
        await client.aclose()
        scene.check_left()
        await client.aclose()


async def close(scene: Scene) -> None:
    await scene.client.aclose()
    scene.check_left()


async def from_two_tasks_at_once(scene: Scene) -> None:
    async with scene.open() as client:
        await scene.play(client)
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(close, scene)


async def from_another_task(scene: Scene) -> None:
    with raises_from(scene.door, trio.ClosedResourceError):
        async with scene.open() as client:
            await scene.play(client)
            scene.nursery.start_soon(close, scene)
            await client.generate("hi", LONG)


async def by_cancelling_the_nursery(scene: Scene) -> None:
    async with trio.open_nursery() as nursery:
        await scene.play(await connect_client(nursery, ADDRESS, **scene.options))
        nursery.cancel_scope.cancel()


async def by_a_deadline_of_the_nursery(scene: Scene) -> None:
    async with trio.open_nursery() as nursery:
        await scene.play(await connect_client(nursery, ADDRESS, **scene.options))
        nursery.cancel_scope.deadline = trio.current_time()
        await trio.sleep_forever()


async def by_a_failure_in_the_nursery(scene: Scene) -> None:
    with pytest.RaisesGroup(Fault):
        async with trio.open_nursery() as nursery:
            await scene.play(await connect_client(nursery, ADDRESS, **scene.options))
            raise Fault


async def by_the_nursery_and_another_task_at_once(scene: Scene) -> None:
    async with trio.open_nursery() as nursery:
        await scene.play(await connect_client(nursery, ADDRESS, **scene.options))
        scene.nursery.start_soon(close, scene)
        nursery.cancel_scope.cancel()


OF_EITHER_DOOR: Final = (
    by_the_end_of_the_block,
    by_an_exception,
    cancelled,
    in_a_cancelled_scope,
    cancelled_meanwhile,
    by_aclose_cancelled_before,
    by_aclose_cancelled_meanwhile,
    twice,
    from_two_tasks_at_once,
    from_another_task,
)
OF_A_NURSERY: Final = (
    by_cancelling_the_nursery,
    by_a_deadline_of_the_nursery,
    by_a_failure_in_the_nursery,
    by_the_nursery_and_another_task_at_once,
)
WAYS: Final = {
    **{f"{door} {way.__name__}": (door, way) for door in DOORS for way in OF_EITHER_DOOR},
    **{f"connect_client {way.__name__}": ("connect_client", way) for way in OF_A_NURSERY},
}


@pytest.mark.parametrize("plight", PLIGHTS.values(), ids=PLIGHTS)
@pytest.mark.parametrize(("door", "way"), WAYS.values(), ids=WAYS)
async def test_leaving_takes_no_longer_than_it_may_and_tells_what_it_could_not_do(
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
    door: str,
    way: Callable[[Scene], Awaitable[None]],
    plight: Plight,
) -> None:
    caplog.set_level(logging.WARNING, "trio_infer")
    async with trio.open_nursery() as nursery:
        coordinator = await nursery.start(serve)
        scene = Scene(DOORS[door], coordinator, nursery, plight, caplog)
        await way(scene)
        scene.check_left()
        await trio.testing.wait_all_tasks_blocked()
        statistics = scene.client.statistics()
        scene.left.set()
        await trio.testing.wait_all_tasks_blocked()
        assert scene.client.statistics() == statistics
        nursery.cancel_scope.cancel()

    assert scene.waiting == 0
    assert (statistics.in_flight, statistics.waiting, statistics.aborting) == (0, 0, 0)
    assert statistics.submitted == statistics.completed + statistics.aborted
    assert statistics.undelivered == (0 if plight.answered else statistics.aborted)
    assert statistics.unreleased == plight.unreleased
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == (0 if plight.told is None else 1), told
    assert plight.told is None or plight.told.format(statistics.undelivered) in told[0]


# Before there is a client


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("end", ["timeout", "deadline"])
async def test_leaving_while_connecting_waits_for_the_ack_as_long_as_it_may(
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
    door: str,
    end: str,
) -> None:
    """A coordinator that acks a client who has gone crashes."""
    seconds = 3.0
    connect_timeout = seconds if end == "timeout" else None
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, faults=Faults(drop_acks=1.0)))
        began = trio.current_time()
        with trio.move_on_after(seconds if end == "deadline" else math.inf):
            with raises_from(DOORS[door], ConnectTimeout) if end == "timeout" else nullcontext():
                async with DOORS[door](
                    ADDRESS, close_timeout=CLOSE_TIMEOUT, connect_timeout=connect_timeout
                ):
                    pytest.fail("entered")
        assert trio.current_time() - began == pytest.approx(seconds + CLOSE_TIMEOUT)
        nursery.cancel_scope.cancel()
    assert "still owed the answer to CONNECT" in caplog.text


# With engines that nobody knows to be paused


@pytest.mark.parametrize("door", DOORS)
async def test_leaving_does_not_wait_for_ever_for_a_pause_that_is_never_confirmed(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture, door: str
) -> None:
    async def pause(client: InferenceClient) -> None:
        async with client.engines.paused(confirm=trio.sleep_forever):
            pytest.fail("entered")

    async with trio.open_nursery() as outer:
        await outer.start(serve)
        async with trio.open_nursery() as nursery:
            async with DOORS[door](ADDRESS, close_timeout=CLOSE_TIMEOUT) as client:
                nursery.start_soon(pause, client)
                await trio.testing.wait_all_tasks_blocked()
                began = trio.current_time()
            assert trio.current_time() - began == pytest.approx(CLOSE_TIMEOUT)
            nursery.cancel_scope.cancel()
        assert trio.current_time() - began == pytest.approx(2 * CLOSE_TIMEOUT)
        outer.cancel_scope.cancel()
    assert "UNPAUSE was not sent to engines, since they were not confirmed to be" in caplog.text


# Over a network


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_backlog_that_the_network_never_takes_is_left_and_told(
    caplog: pytest.LogCaptureFixture,
    door: str,
    cancelled: bool,  # noqa: FBT001 - a table
) -> None:
    small = {"SNDBUF": 16_384}  # so that most of it is still ZeroMQ's when the client is left
    requests = 2_000
    async with scripted_coordinator() as coordinator, Relay(coordinator.address) as relay:
        with trio.CancelScope() as scope:
            async with DOORS[door](
                relay.address, close_timeout=0.05, socket_options=small
            ) as client:
                relay.frozen = True
                for _ in range(requests):
                    async with client.stream("x" * 6_000, LONG):
                        pass
                if cancelled:
                    scope.cancel()
        assert coordinator.log == []
    assert client.statistics().undelivered == requests
    assert OWED.format(requests) in caplog.text
