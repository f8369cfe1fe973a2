"""However trio is run, a client does the same: on its own, on another loop, with loose groups."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import attrs
import pytest
import trio
import trio.lowlevel

from tests.peers import ScriptedCoordinator, free_address, scripted_coordinator
from tests.waiting import until
from trio_infer import (
    ConnectionLost,
    ConnectTimeout,
    InferenceClient,
    RequestFailed,
    SamplingParams,
    connect_client,
    open_client,
)
from trio_infer.embedded import open_coordinator
from trio_infer.exchange import Exchange
from trio_infer.protocol.dialect import Kind

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from contextlib import AbstractAsyncContextManager

    from outcome import Outcome

    Main = Callable[[], Awaitable[Any]]
    Run = Callable[[Main], Any]

LONG = SamplingParams(num_tokens_to_generate=100_000, termination_id=-1)


# The ways


def on_a_plain_loop(main: Main, **options: Any) -> Any:
    """In guest mode, on top of the smallest loop there is."""
    todo: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
    ended: list[Outcome[Any]] = []
    trio.lowlevel.start_guest_run(
        main, run_sync_soon_threadsafe=todo.put, done_callback=ended.append, **options
    )
    while not ended:
        todo.get()()
    return ended[0].unwrap()


def on_asyncio(main: Main, **options: Any) -> Any:
    """In guest mode, on top of asyncio."""

    async def host() -> Any:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Outcome[Any]] = loop.create_future()
        trio.lowlevel.start_guest_run(
            main,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            run_sync_soon_not_threadsafe=loop.call_soon,
            done_callback=ended.set_result,
            host_uses_signal_set_wakeup_fd=True,
            **options,
        )
        return (await ended).unwrap()

    return asyncio.run(host())


HOSTS: Final[dict[str, Callable[..., Any]]] = {
    "on its own": trio.run,
    "on a plain loop": on_a_plain_loop,
    "on asyncio": on_asyncio,
}
LOOSE: Final = {"strict groups": {}, "loose groups": {"strict_exception_groups": False}}

WAYS: Final[dict[str, Run]] = {
    f"{host}, {groups}": partial(run, **options)
    for host, run in HOSTS.items()
    for groups, options in LOOSE.items()
}

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*strict_exception_groups=False:trio.TrioDeprecationWarning"
)


# What is done in each of them


class Stop(Exception):
    """What a user's code raises."""


@attrs.define
class Stage:
    """A coordinator, its client, and a nursery for what happens beside the act.

    Attributes:
        client: the last one that was opened.
    """

    coordinator: ScriptedCoordinator
    nursery: trio.Nursery
    client: InferenceClient | None = None

    @asynccontextmanager
    async def open_client(self, **options: Any) -> AsyncGenerator[InferenceClient]:
        async with open_client(self.coordinator.address, **options) as self.client:
            yield self.client

    async def connect_client(self, nursery: trio.Nursery) -> InferenceClient:
        self.client = await connect_client(nursery, self.coordinator.address)
        return self.client

    def answer(self, tokens: list[int], **fields: Any) -> None:
        """Lets the next request be answered."""
        self.nursery.start_soon(self._answer, tokens, fields)

    async def _answer(self, tokens: list[int], fields: dict[str, Any]) -> None:
        self.coordinator.reply(await self.coordinator.submission(), tokens, **fields)

    def die(self, after: int = 1) -> None:
        """Lets the coordinator die once it has so many requests."""
        self.nursery.start_soon(self._die, after)

    async def _die(self, after: int) -> None:
        for _ in range(after):
            await self.coordinator.submission()
        self.coordinator.close()


async def generating(stage: Stage) -> object:
    async with stage.open_client() as client:
        stage.answer([1, 2])
        return (await client.generate("hi")).generated_tokens


async def failing(stage: Stage) -> object:
    async with stage.open_client() as client:
        stage.answer([], status="FAILED")
        return await client.generate("hi")


async def leaving_a_stream_early(stage: Stage) -> object:
    async with stage.open_client() as client:
        async with client.stream("hi", LONG) as stream:
            stage.coordinator.partial(await stage.coordinator.submission(), [1, 2])
            async for _ in stream:
                break
        return stream.tokens


async def raising_in_a_stream(stage: Stage) -> object:
    async with stage.open_client() as client, client.stream("hi", LONG):
        raise Stop


async def finishing_early(stage: Stage) -> object:
    async with stage.open_client() as client, client.stream("hi", LONG) as stream:
        return (await stream.finish_early()).finish_reason


async def cancelling_a_receive(stage: Stage) -> object:
    async with stage.open_client() as client, client.stream("hi", LONG) as stream:
        submission = await stage.coordinator.submission()
        with trio.CancelScope() as scope:
            scope.cancel()
            await stream.receive()
        stage.coordinator.reply(submission, [1, 2])
        return (await stream.result()).generated_tokens


async def cancelling_a_request(stage: Stage) -> object:
    async with stage.open_client() as client:
        with trio.CancelScope() as scope:
            stage.nursery.start_soon(cancel_once_submitted, stage, scope)
            await client.generate("hi", LONG)
        return outcome_of(scope)


async def cancelling_the_client(stage: Stage) -> object:
    with trio.CancelScope() as scope:
        async with stage.open_client() as client:
            stage.nursery.start_soon(cancel_once_submitted, stage, scope)
            await client.generate("hi", LONG)
    return outcome_of(scope)


def outcome_of(scope: trio.CancelScope) -> str:
    return "cancelled" if scope.cancelled_caught else "came to its end"


async def cancel_once_submitted(stage: Stage, scope: trio.CancelScope) -> None:
    await stage.coordinator.submission()
    scope.cancel()


async def losing_the_coordinator(stage: Stage) -> object:
    async with stage.open_client() as client:
        stage.die()
        return await client.generate("hi", LONG)


async def losing_one_request_in_a_nursery(stage: Stage) -> object:
    async with stage.open_client() as client, trio.open_nursery() as nursery:
        stage.die()
        nursery.start_soon(client.generate, "hi", LONG)
    return None


async def losing_two_requests_in_a_nursery(stage: Stage) -> object:
    async with stage.open_client() as client, trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(client.generate, "hi", LONG)
        for _ in range(2):
            await stage.coordinator.submission()
        stage.coordinator.close()
    return None


async def finding_nobody(stage: Stage) -> object:
    async with open_client(free_address(), connect_timeout=0.05):
        return "connected"


async def finding_nobody_by_the_second_door(stage: Stage) -> object:
    async with trio.open_nursery() as nursery:
        await connect_client(nursery, free_address(), connect_timeout=0.05)
    return None


async def generating_by_the_second_door(stage: Stage) -> object:
    async with trio.open_nursery() as nursery, await stage.connect_client(nursery) as client:
        stage.answer([1, 2])
        return (await client.generate("hi")).generated_tokens


async def raising_by_the_second_door(stage: Stage) -> object:
    async with trio.open_nursery() as nursery:
        client = await stage.connect_client(nursery)
        async with client.stream("hi", LONG):
            raise Stop


async def cancelling_the_nursery_of_the_second_door(stage: Stage) -> object:
    async with trio.open_nursery() as nursery:
        client = await stage.connect_client(nursery)
        stage.nursery.start_soon(cancel_once_submitted, stage, nursery.cancel_scope)
        await client.generate("hi", LONG)
    return outcome_of(nursery.cancel_scope)


async def leaving_with_a_reader_parked(stage: Stage) -> object:
    refused: list[object] = []

    async def generate(client: InferenceClient) -> None:
        try:
            await client.generate("hi", LONG)
        except trio.ClosedResourceError as error:
            refused.append(shape_of(error))

    async with stage.open_client() as client:
        stage.nursery.start_soon(generate, client)
        await stage.coordinator.submission()
    await until(lambda: refused)
    return refused[0]


async def leaving_what_is_never_answered(stage: Stage) -> object:
    stage.coordinator.answers_aborts = False
    async with stage.open_client(close_timeout=0.05) as client, client.stream("hi", LONG):
        pass
    await stage.coordinator.abort()
    return "left"


async def closing_by_another_task(stage: Stage) -> object:
    async with stage.open_client() as client:
        stage.nursery.start_soon(close_once_submitted, stage)
        return await client.generate("hi", LONG)


async def close_once_submitted(stage: Stage) -> None:
    await stage.coordinator.submission()
    assert stage.client is not None
    await stage.client.aclose()


async def using_it_in_another_thread(stage: Stage) -> object:
    async with stage.open_client() as client:
        return await trio.to_thread.run_sync(client.shutdown_coordinator)


async def crashing_while_connecting(stage: Stage) -> object:
    """By a fault of the client's own, as in the next one."""

    async def crash(_: Exchange) -> None:
        await trio.lowlevel.checkpoint()
        raise Stop

    with patch.object(Exchange, "run", crash):
        async with stage.open_client():
            return "connected"


async def crashing_behind_the_block(stage: Stage) -> object:
    coordinator = stage.coordinator
    with patch.object(Exchange, "on_frames", side_effect=Stop):
        async with stage.open_client():
            coordinator.send(coordinator.connects[0], coordinator.ack())
            await trio.sleep_forever()


async def rehearsing(stage: Stage) -> object:
    """With the embedded coordinator, whose block is left by what its client's block raises."""
    params = SamplingParams(num_tokens_to_generate=3, termination_id=-1)
    async with open_coordinator() as coordinator:
        async with open_client(coordinator.address) as stage.client:
            for _ in range(3):
                assert len((await stage.client.generate("hi", params)).generated_tokens) == 3
            async with stage.client.stream("hi", LONG) as stream:
                async for _ in stream:
                    raise Stop
    return None


@attrs.frozen
class Story:
    """What happens, and how it has to end.

    Attributes:
        act: what happens.
        end: what comes of it: a result; or the type of an exception; or, as a list, what is in an
            exception group, which the act's own nursery has made.
        counts: all of the client's counters that are not zero, but for its connections.
        sent: what the coordinator got.
    """

    act: Callable[[Stage], Awaitable[object]]
    end: object
    counts: dict[str, int] = attrs.field(factory=dict)
    sent: tuple[Kind, ...] = ()

    def end_with(self, *, loose_groups: bool) -> object:
        """trio takes a lone exception out of its group where groups are loose."""
        if loose_groups and isinstance(self.end, list) and len(self.end) == 1:
            return self.end[0]
        return self.end


SUBMIT, ABORT = Kind.SUBMIT_REQUEST, Kind.ABORT_REQUEST
COMPLETED = {"submitted": 1, "completed": 1}
ABORTED = {"submitted": 1, "aborted": 1}
LOST = {"submitted": 1, "lost": 1}

STORIES: Final = (
    Story(generating, [1, 2], COMPLETED, (SUBMIT,)),
    Story(failing, RequestFailed, {"submitted": 1, "failed": 1}, (SUBMIT,)),
    Story(leaving_a_stream_early, [1, 2], ABORTED, (SUBMIT, ABORT)),
    Story(raising_in_a_stream, Stop, ABORTED, (SUBMIT, ABORT)),
    Story(finishing_early, "abort", ABORTED, (SUBMIT, ABORT)),
    Story(cancelling_a_receive, [1, 2], COMPLETED, (SUBMIT,)),
    Story(cancelling_a_request, "cancelled", ABORTED, (SUBMIT, ABORT)),
    Story(cancelling_the_client, "cancelled", ABORTED, (SUBMIT, ABORT)),
    Story(losing_the_coordinator, ConnectionLost, LOST, (SUBMIT,)),
    Story(losing_one_request_in_a_nursery, [ConnectionLost], LOST, (SUBMIT,)),
    Story(
        losing_two_requests_in_a_nursery,
        [ConnectionLost, ConnectionLost],
        {"submitted": 2, "lost": 2},
        (SUBMIT, SUBMIT),
    ),
    Story(finding_nobody, ConnectTimeout),
    Story(finding_nobody_by_the_second_door, [ConnectTimeout]),
    Story(generating_by_the_second_door, [1, 2], COMPLETED, (SUBMIT,)),
    Story(raising_by_the_second_door, [Stop], ABORTED, (SUBMIT, ABORT)),
    Story(cancelling_the_nursery_of_the_second_door, "cancelled", ABORTED, (SUBMIT, ABORT)),
    Story(leaving_with_a_reader_parked, trio.ClosedResourceError, ABORTED, (SUBMIT, ABORT)),
    Story(leaving_what_is_never_answered, "left", {**ABORTED, "undelivered": 1}, (SUBMIT, ABORT)),
    Story(closing_by_another_task, trio.ClosedResourceError, ABORTED, (SUBMIT, ABORT)),
    Story(using_it_in_another_thread, RuntimeError),
    Story(crashing_while_connecting, Stop),
    Story(crashing_behind_the_block, Stop),
    Story(rehearsing, Stop, {"submitted": 4, "completed": 3, "aborted": 1}),
)


def shape_of(error: BaseException) -> object:
    """An exception by its type, and a group by what is in it."""
    if isinstance(error, BaseExceptionGroup):
        return [shape_of(part) for part in error.exceptions]
    return type(error)


def counts_of(client: InferenceClient | None) -> dict[str, int]:
    counts = {} if client is None else attrs.asdict(client.statistics())
    counts.pop("connections", None)
    counts.pop("discarded", None)  # how many late partial results come, is the engine's business
    return {name: count for name, count in counts.items() if count}


async def tell(story: Story) -> tuple[object, dict[str, int], tuple[Kind, ...]]:
    async with scripted_coordinator() as coordinator, trio.open_nursery() as nursery:
        stage = Stage(coordinator, nursery)
        try:
            end = await story.act(stage)
        except Exception as error:  # noqa: BLE001 - it is what is looked at
            end = shape_of(error)
        nursery.cancel_scope.cancel()
    assert coordinator.unroutable == 0
    return end, counts_of(stage.client), tuple(coordinator.kinds)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.act.__name__)
@pytest.mark.parametrize("way", WAYS)
def test_however_trio_is_run_the_same_comes_of_it(way: str, story: Story) -> None:
    end, counts, sent = WAYS[way](partial(tell, story))
    assert end == story.end_with(loose_groups="loose" in way)
    assert (counts, sent) == (story.counts, story.sent)


def test_what_is_no_coroutine_may_be_called_by_the_loop_that_trio_is_a_guest_of() -> None:
    async def main() -> None:
        async with scripted_coordinator() as coordinator:
            async with open_client(coordinator.address) as client:
                async with client.stream("hi", LONG) as stream:
                    await coordinator.submission()
                    asyncio.get_running_loop().call_later(0.01, stream.close)
                    with pytest.raises(trio.ClosedResourceError):
                        await stream.result()
                await coordinator.abort()
                asyncio.get_running_loop().call_later(0.01, client.engines.pause)
                await coordinator.next(Kind.PAUSE)
            assert client.statistics().undelivered == 0

    on_asyncio(main)


@pytest.mark.parametrize("door", [open_coordinator, partial(open_client, "tcp://127.0.0.1:1")])
def test_who_opens_it_under_asyncio_is_told_to_run_trio(
    door: Callable[[], AbstractAsyncContextManager[Any]],
) -> None:
    async def main() -> None:
        async with door():
            pass

    with pytest.raises(RuntimeError, match=r"runs under trio, .*trio\.run\(main\)"):
        asyncio.run(main())


def test_who_connects_from_the_loop_that_trio_is_a_guest_of_is_told_so() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            host = asyncio.ensure_future(connect_client(nursery, "tcp://127.0.0.1:1"))
            await until(host.done)
            assert isinstance(error := host.exception(), RuntimeError)
            assert "runs under trio" in str(error)

    on_asyncio(main)
