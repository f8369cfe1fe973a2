"""Ctrl-C in the middle of what must not be torn: it waits, and the engine hears of the abort."""

from __future__ import annotations

import signal
import sys
import threading
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import trio

import trio_infer
from tests.peers import Received, ScriptedCoordinator, scripted_coordinator
from tests.waiting import until
from trio_infer import (
    GenerateRequest,
    InferenceClient,
    SamplingParams,
    connect_client,
    open_client,
)
from trio_infer.protocol.client_codec import ClientCodec
from trio_infer.protocol.dialect import Kind
from trio_infer.protocol.session import Session

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from types import FrameType

LONG = SamplingParams(num_tokens_to_generate=100_000)
SHORT = SamplingParams(num_tokens_to_generate=2)


def interrupt_once(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, *, before: bool = False
) -> None:
    """Has Ctrl-C come before or behind the first call of a method."""
    original = getattr(owner, name)
    due = [signal.SIGINT]

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if before and due:
            signal.raise_signal(due.pop())
        result = original(*args, **kwargs)
        if due:
            signal.raise_signal(due.pop())
        return result

    monkeypatch.setattr(owner, name, interrupted)


async def stream_a_token(coordinator: ScriptedCoordinator, client: InferenceClient) -> None:
    async with client.stream("hi", LONG) as stream:
        submission = await coordinator.submission()
        coordinator.partial(submission, [1])
        await stream.receive()


@pytest.mark.parametrize(
    ("owner", "name", "before"),
    [
        (Session, "submit", True),  # sent, and not yet in the table
        (Session, "submit", False),
        (Session, "abandon", True),
        (Session, "abandon", False),  # out of the table, and the abort not yet sent
        (ClientCodec, "decode", False),  # read from the socket, and not yet passed on
        (Session, "partial", False),
    ],
)
def test_ctrl_c_leaves_no_request_behind(
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    before: bool,  # noqa: FBT001 - a table
) -> None:
    coordinators: list[ScriptedCoordinator] = []

    async def main() -> None:
        async with scripted_coordinator() as coordinator:
            coordinators.append(coordinator)
            async with open_client(coordinator.address) as client:
                interrupt_once(monkeypatch, owner, name, before=before)
                clients.append(client)
                await stream_a_token(coordinator, client)

    clients: list[InferenceClient] = []
    with pytest.RaisesGroup(KeyboardInterrupt, flatten_subgroups=True):
        trio.run(main)
    (coordinator,) = coordinators
    assert coordinator.of(Kind.SUBMIT_REQUEST) == coordinator.of(Kind.ABORT_REQUEST) == [0]
    assert coordinator.unroutable == 0
    statistics = clients[0].statistics()
    assert (statistics.submitted, statistics.aborted, statistics.undelivered) == (1, 1, 0)


# At any moment


class Interruption:
    """A trace function that has Ctrl-C come at the n-th source line of the package to be executed.

    Each line counts once: what is done again, as in a loop, is no other moment.

    Attributes:
        came: where it came, if so many lines were executed.
    """

    def __init__(self, nth: int) -> None:
        self.came: tuple[str, int] | None = None
        self._nth = nth
        self._seen: set[tuple[str, int]] = set()
        self._package = str(Path(trio_infer.__file__).parent)

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        return self._trace if frame.f_code.co_filename.startswith(self._package) else None

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line" and self.came is None:
            self._seen.add((frame.f_code.co_filename, frame.f_lineno))
            if len(self._seen) == self._nth:
                self.came = (frame.f_code.co_filename, frame.f_lineno)
                signal.raise_signal(signal.SIGINT)
        return self._trace

    @contextmanager
    def due(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self)
        try:
            yield
        finally:
            sys.settrace(before)


class Elsewhere:
    """A coordinator in another thread, which Ctrl-C does not reach.

    Of every request it sends a token, and of those that want few also the final reply.

    Attributes:
        address: where it listens.
        log: what came.
        finals: the requests that got a final reply without an abort.
        prefills: how many of them left something to release.
        unroutable: the replies that found their client gone.
    """

    def __init__(self) -> None:
        self.log: list[Received] = []
        self.finals: list[int] = []
        self.prefills = 0
        self.unroutable = 0
        self._ready = threading.Event()
        self._end = trio.Event()
        self._errors: list[Exception] = []
        self._thread = threading.Thread(target=self._run)

    @contextmanager
    def serving(self) -> Iterator[None]:
        self._thread.start()
        assert self._ready.wait(timeout=60)
        try:
            yield
        finally:
            self._token.run_sync_soon(self._end.set)
            self._thread.join()
        assert not self._errors

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except Exception as error:  # noqa: BLE001 - such as of a torn message
            self._errors.append(error)

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with scripted_coordinator() as coordinator, trio.open_nursery() as nursery:
            self.address = coordinator.address
            nursery.start_soon(self._answer, coordinator)
            self._ready.set()
            await self._end.wait()
            self.log = coordinator.log
            await until(lambda: self.count(Kind.RELEASE_KV) >= self.prefills)
            await until(lambda: self.count(Kind.UNPAUSE) >= self.count(Kind.PAUSE))
            self.unroutable = coordinator.unroutable
            nursery.cancel_scope.cancel()

    async def _answer(self, coordinator: ScriptedCoordinator) -> None:
        while True:
            submission = await coordinator.submission()
            params = submission.message.sampling_params
            assert params is not None
            if coordinator.has_answered(submission):
                continue  # its abort came right behind it
            if params["streaming"]:
                coordinator.partial(submission, [1])
            if params["num_tokens_to_generate"] < 100:
                self.finals.append(submission.id)
                self.prefills += params["do_kv_handoff"]
                handoff = {"request_id": submission.id, "block_ids": [1], "kv_meta": {}}
                given = {"disaggregated_params": handoff} if params["do_kv_handoff"] else {}
                coordinator.reply(submission, [1, 2], **given)

    def count(self, kind: Kind) -> int:
        return sum(received.kind is kind for received in self.log)

    def check_nothing_is_left(self) -> None:
        """Every request got its final reply, or one abort; every block was undone, once."""
        submitted = [each.id for each in self.log if each.kind is Kind.SUBMIT_REQUEST]
        aborts = Counter(each.id for each in self.log if each.kind is Kind.ABORT_REQUEST)
        assert len(set(submitted)) == len(submitted)
        assert set(submitted) == {*self.finals, *aborts}
        assert set(aborts.values()) <= {1}
        assert self.count(Kind.RELEASE_KV) == self.prefills
        assert self.count(Kind.UNPAUSE) == self.count(Kind.PAUSE)
        assert self.unroutable == 0, "the real coordinator would have crashed"


async def nothing() -> None:
    await trio.lowlevel.checkpoint()


async def use_everything(client: InferenceClient) -> None:
    """What users do, as far as there are lines of its own for it."""
    await client.generate("hi", SHORT)
    async with client.stream("hi", LONG) as stream:
        await stream.receive()
    async with client.stream("hi", SHORT) as stream:
        async for _ in stream:
            pass
        await stream.result()
    async with client.stream("hi", LONG) as stream:
        await stream.finish_early()
    with trio.move_on_after(0.001):
        await client.generate("hi", LONG)
    async with client.open_group(max_concurrency=2) as group:
        for params in (SHORT, LONG, SHORT):  # the third one waits for its turn
            await group.submit(GenerateRequest("hi", params))
            if params is LONG:
                await group.outcomes.receive()
        await group.outcomes.receive()
        group.submit_nowait(GenerateRequest("hi", SHORT))
        group.cancel()
        async for _ in group.outcomes:
            pass
    async with client.prefill([1, 2, 3]):
        async with client.engines.paused(confirm=nothing, epoch=1):
            pass


async def through_the_block(address: str, clients: list[InferenceClient]) -> None:
    async with open_client(address, close_timeout=10_000) as client:
        clients.append(client)
        await use_everything(client)


async def through_the_second_door(address: str, clients: list[InferenceClient]) -> None:
    async with trio.open_nursery() as nursery:
        async with await connect_client(nursery, address, close_timeout=10_000) as client:
            clients.append(client)
            await use_everything(client)


LINES: Final = range(20, 1240, 80)
"""Where it comes by default. All of them take minutes."""


@pytest.mark.parametrize("nth", LINES)
@pytest.mark.parametrize("door", [through_the_block, through_the_second_door])
def test_ctrl_c_at_any_line_comes_out_and_leaves_nothing_behind(
    door: Callable[[str, list[InferenceClient]], Awaitable[None]], nth: int
) -> None:
    clients: list[InferenceClient] = []
    coordinator = Elsewhere()
    interruption = Interruption(nth)
    error: BaseException | None = None
    with coordinator.serving():
        try:
            with interruption.due():
                trio.run(door, coordinator.address, clients)
        except (KeyboardInterrupt, BaseExceptionGroup) as raised:
            error = raised
    if interruption.came is None:
        assert error is None
    elif door is through_the_block:
        assert type(error) is KeyboardInterrupt
    else:  # the nursery is the user's
        with pytest.RaisesGroup(KeyboardInterrupt, flatten_subgroups=True, allow_unwrapped=True):
            raise error or AssertionError
    coordinator.check_nothing_is_left()
    for client in clients:
        statistics = client.statistics()
        assert (statistics.in_flight, statistics.aborting, statistics.undelivered) == (0, 0, 0)
