"""Counts what a request costs, in a process of its own: ``python -m tests.performance.counting``.

No time is counted, and none passes: the socket is in memory, the clock is mocked, and trio's choice
of what runs next is seeded. So the counts are the same each time, on one version of Python and of
the libraries.

Kept are blocks of memory and objects that the collector of garbage looks through, for each request
that runs. Done are the instructions of Python's own machine, trio's included.
"""

from __future__ import annotations

import gc
import json
import random
import sys
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgpack
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.peers import finished
from trio_infer import GenerateRequest, InferenceClient, SamplingParams, open_client
from trio_infer.sockets import ROUTER, Link, network_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
    from contextlib import AbstractContextManager
    from types import FrameType

    from trio_infer.protocol.packing import Frames
    from trio_infer.sockets import Socket

    Work: TypeAlias = Callable[[InferenceClient, "Peer", "Count"], Awaitable[None]]

T = TypeVar("T")

PROMPT = [1, 2, 3]
PARAMS = SamplingParams(num_tokens_to_generate=1000)
REQUEST = GenerateRequest(PROMPT, PARAMS)
WHOLE = msgpack.packb(finished([97, 98, 99], prompt_length=3, events=[], ttft=0.1, uid="abc"))
TOKEN = msgpack.packb({"request_id": 1, "new_tokens": [97]})

KEPT = 500  # requests or tokens whose memory is counted
DONE = 100  # requests whose instructions are
STREAMS = 10
TOKENS = 50

ENDED = msgpack.packb(finished([97] * TOKENS))

CONNECT, ABORT = 0, 23


class Peer:
    """A coordinator that keeps nothing but how many requests came, and replies when it is told."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self._client = b""
        self.came = 0
        self._answered = 0

    def take(self, frames: Frames) -> None:
        kind, *number = msgpack.unpackb(frames[1])
        if kind == CONNECT:
            self._client = bytes(frames[0])
            self._socket.send([self._client, msgpack.packb([1])])
        elif kind == ABORT:
            self._reply(number[0], WHOLE)
        else:
            self.came += 1

    def _reply(self, number: int, body: bytes) -> None:
        self._socket.send([self._client, msgpack.packb([21, number]), bytes(memoryview(body))])

    @property
    def running(self) -> range:
        return range(self._answered, self.came)

    def send_token(self) -> None:
        """To each request that runs."""
        for number in self.running:
            token = bytes(memoryview(TOKEN))  # its own, as from a network
            self._socket.send([self._client, msgpack.packb([22, number]), token])

    def reply(self, body: bytes = WHOLE) -> None:
        """To each request that runs."""
        for number in self.running:
            self._reply(number, body)
        self._answered = self.came

    def forget(self) -> None:
        """They were aborted, and so answered."""
        self._answered = self.came


class Count(ABC):
    """What is counted in a block.

    Attributes:
        value: of all that was done in it, and later of each.
    """

    value = 0.0

    @abstractmethod
    def counted(self) -> AbstractContextManager[None]:
        """The block."""


class Kept(Count):
    """Blocks of memory that are there afterwards and were not before, or objects."""

    def __init__(self, state: Callable[[], int]) -> None:
        self._state = state

    @contextmanager
    def counted(self) -> Iterator[None]:
        gc.collect()
        before = self._state()
        yield
        gc.collect()
        self.value = self._state() - before


def objects() -> int:
    """What the collector of garbage looks through."""
    return len(gc.get_objects())


class Done(Count):
    """Instructions, but for those of the tests' own code."""

    @contextmanager
    def counted(self) -> Iterator[None]:
        instructions = 0

        def follow(frame: FrameType, event: str, _: object) -> Any:
            nonlocal instructions
            if event == "call":
                if frame.f_code.co_filename in OWN_FILES:
                    return None
                frame.f_trace_opcodes, frame.f_trace_lines = True, False
            elif event == "opcode":
                instructions += 1
            return follow

        sys.settrace(follow)
        try:
            yield
        finally:
            sys.settrace(None)
        self.value = instructions


class Uncounted(Count):
    """Nothing."""

    def counted(self) -> AbstractContextManager[None]:
        return nullcontext()


OWN_FILES = {__file__, msgpack.__file__}


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[InferenceClient, Peer]]:
    """A client and its peer, which have run each kind of request before."""
    socket = network_of("memory://").socket(ROUTER, Link())
    peer = Peer(socket)
    async with trio.open_nursery() as nursery:
        address = socket.bind("memory://*")
        nursery.start_soon(socket.read, peer.take)
        async with open_client(address) as client:
            for _ in range(3):
                await grouped(client, peer, Uncounted(), requests=10)
                await generated(client, peer, Uncounted(), requests=10)
                await streamed(client, peer, Uncounted(), streams=10, at_once=1)
                await cancelled(client, peer, Uncounted(), requests=10)
            await generated(client, peer, Done())  # Python 3.12 does not count the first time
            yield client, peer
        nursery.cancel_scope.cancel()
    socket.close()


# What is counted


async def grouped(client: InferenceClient, peer: Peer, count: Count, requests: int = DONE) -> None:
    """A group's requests, from being submitted to their outcomes."""
    with count.counted():
        async with client.open_group() as group:
            for _ in range(requests):
                group.submit_nowait(REQUEST)
            await wait_all_tasks_blocked()
            peer.reply()
            async for outcome in group.outcomes:
                outcome.unwrap()
    count.value /= requests


async def generated(
    client: InferenceClient, peer: Peer, count: Count, requests: int = DONE
) -> None:
    """Tasks that do a `generate` each."""
    with count.counted():
        async with trio.open_nursery() as nursery:
            for _ in range(requests):
                nursery.start_soon(client.generate, PROMPT, PARAMS)
            await wait_all_tasks_blocked()
            peer.reply()
    count.value /= requests


async def generate(client: InferenceClient) -> None:
    await client.generate(PROMPT, PARAMS)


async def read(client: InferenceClient) -> None:
    async with client.stream(PROMPT, PARAMS) as stream:
        async for _ in stream:
            pass


async def streamed(
    client: InferenceClient, peer: Peer, count: Count, streams: int = STREAMS, *, at_once: int
) -> None:
    """Tasks that read a stream each, of tokens that come so many at once."""
    async with trio.open_nursery() as nursery:
        for _ in range(streams):
            nursery.start_soon(read, client)
        await wait_all_tasks_blocked()
        with count.counted():
            for number in range(1, TOKENS + 1):
                peer.send_token()
                if number % at_once == 0:
                    await wait_all_tasks_blocked()
        peer.reply(ENDED)
    count.value /= streams * TOKENS


async def cancelled(
    client: InferenceClient, peer: Peer, count: Count, requests: int = DONE
) -> None:
    """Tasks that do a `generate` each, and are cancelled."""
    async with trio.open_nursery() as nursery:
        for _ in range(requests):
            nursery.start_soon(client.generate, PROMPT, PARAMS)
        await wait_all_tasks_blocked()
        with count.counted():
            nursery.cancel_scope.cancel()
            await trio.lowlevel.cancel_shielded_checkpoint()
            with trio.CancelScope(shield=True):
                await wait_all_tasks_blocked()
    peer.forget()
    count.value /= requests


async def kept_by_group(
    client: InferenceClient,
    peer: Peer,
    count: Count,
) -> None:
    async with client.open_group() as group:
        with count.counted():
            for _ in range(KEPT):
                group.submit_nowait(REQUEST)
            await wait_all_tasks_blocked()
        peer.reply()
        async for _ in group.outcomes:
            pass
    count.value /= KEPT


async def kept_by_tasks(
    do: Callable[[InferenceClient], Awaitable[object]],
    client: InferenceClient,
    peer: Peer,
    count: Count,
) -> None:
    async with trio.open_nursery() as nursery:
        with count.counted():
            for _ in range(KEPT):
                nursery.start_soon(do, client)
            await wait_all_tasks_blocked()
        peer.reply()
    count.value /= KEPT


async def kept_unread(client: InferenceClient, peer: Peer, count: Count) -> None:
    """Tokens of a stream that nobody reads."""
    async with client.stream(PROMPT, PARAMS) as stream:
        await wait_all_tasks_blocked()
        with count.counted():
            for _ in range(KEPT):
                peer.send_token()
            await wait_all_tasks_blocked()
        peer.reply(msgpack.packb(finished([97] * KEPT)))
        await stream.result()
    count.value /= KEPT


KEPT_BY: dict[str, Work] = {
    "a request of a group": kept_by_group,
    "a task that generates": partial(kept_by_tasks, generate),
    "a task that reads a stream": partial(kept_by_tasks, read),
    "a token that nobody has read": kept_unread,
}
DONE_BY: dict[str, Work] = {
    "a request of a group": grouped,
    "a task that generates": generated,
    "a cancellation": cancelled,
    "a token on its own": partial(streamed, at_once=1),
    "a token of ten at once": partial(streamed, at_once=10),
}


async def count_all() -> dict[str, dict[str, float]]:
    """Everything, by what is counted and for what."""
    kinds: dict[str, tuple[dict[str, Work], Callable[[], Count]]] = {
        "blocks": (KEPT_BY, lambda: Kept(sys.getallocatedblocks)),
        "objects": (KEPT_BY, lambda: Kept(objects)),
        "instructions": (DONE_BY, Done),
    }
    counts: dict[str, dict[str, float]] = {}
    async with connected() as (client, peer):
        for kind, (works, make_count) in kinds.items():
            counts[kind] = {}
            for name, work in works.items():
                count = make_count()
                await work(client, peer, count)
                counts[kind][name] = round(count.value, 1)
    return counts


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs it so that nothing depends on chance."""
    trio._core._run._r = random.Random(0)
    gc.disable()
    return trio.run(work, clock=MockClock())


if __name__ == "__main__":
    print(json.dumps(run(count_all), indent=1))
