"""The same work through zmq.asyncio: a dict of futures and queues, and one task that reads.

It has every advantage: it checks nothing, sends without waiting, and unpacks to a dict.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgpack
import zmq
import zmq.asyncio
from client import SUBMITTED_AT_ONCE
from floor import PAUSE, request, stamps, unpack
from measuring import TICK, Figures, median, under

from trio_infer import SamplingParams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterator

NAME = "zmq.asyncio"

under_asyncio = under(lambda work: asyncio.run(work()))


class Client:
    def __init__(self, socket: zmq.asyncio.Socket) -> None:
        self._socket = socket
        self._futures: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._queues: dict[int, asyncio.Queue[dict[str, Any]]] = {}
        self._loop = asyncio.get_running_loop()
        self._next = 0

    async def run(self) -> None:
        while True:
            metadata, packed = await self._socket.recv_multipart()
            header, number = unpack(metadata)
            body = unpack(packed)
            if header == 22:
                if number in self._queues:
                    self._queues[number].put_nowait(body)
            elif number in self._queues:
                self._queues.pop(number).put_nowait(body)
            elif number in self._futures:
                future = self._futures.pop(number)
                if not future.done():
                    future.set_result(body)

    def _submit(self, params: dict[str, Any], asked: object) -> int:
        number, self._next = self._next, self._next + 1
        # Not awaited: the socket takes it at once.
        self._socket.send_multipart(request(number, params, msgpack.packb(asked)))
        return number

    def start(self, params: dict[str, Any]) -> asyncio.Future[dict[str, Any]]:
        future = self._loop.create_future()
        self._futures[self._submit(params, None)] = future
        return future

    async def generate(self, params: dict[str, Any], asked: object = None) -> dict[str, Any]:
        number = self._submit(params, asked)
        future = self._futures[number] = self._loop.create_future()
        try:
            return await future
        except asyncio.CancelledError:
            self._futures.pop(number, None)
            self._socket.send_multipart([msgpack.packb([23, number])])
            raise

    async def stream(self, params: dict[str, Any], asked: object) -> None:
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._queues[self._submit(params, asked)] = queue
        while "new_tokens" in await queue.get():
            pass


@asynccontextmanager
async def opened(address: str) -> AsyncIterator[Client]:
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as socket:
        for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
            socket.set(option, 0)
        socket.connect(address)
        await socket.send(msgpack.packb([0]))
        await socket.recv()
        client = Client(socket)
        with running(client.run()):
            yield client


@contextmanager
def running(work: Coroutine[Any, Any, None]) -> Iterator[None]:
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()


@asynccontextmanager
async def ticking(figures: Figures, *, ticks: bool) -> AsyncIterator[None]:
    async def tick() -> None:
        while ticks:
            with figures.tick():
                await asyncio.sleep(TICK)

    with running(tick()):
        await asyncio.sleep(2 * TICK)
        with figures.taken():
            yield
    await asyncio.sleep(0)  # the last tick is noted as it is cancelled


@under_asyncio
async def round_trip(address: str, count: int) -> Figures:
    params = SamplingParams().serialize()
    figures, times = Figures(), []
    async with opened(address) as client, ticking(figures, ticks=False):
        for _ in range(count):
            start = time.perf_counter()
            await client.generate(params)
            times.append(time.perf_counter() - start)
    figures.seconds = median(times)
    return figures


@under_asyncio
async def group(address: str, count: int, in_flight: int, *, ticks: bool = False) -> Figures:
    params = SamplingParams().serialize()
    figures = Figures()
    async with opened(address) as client, ticking(figures, ticks=ticks):
        futures = []
        for number in range(1, in_flight + 1):
            futures.append(client.start(params))
            if number % SUBMITTED_AT_ONCE == 0:
                await asyncio.sleep(0)
        for number in range(count):
            await futures[number]
            if number + in_flight < count:
                futures.append(client.start(params))
    return figures


@under_asyncio
async def tasks(address: str, at_once: int, times: int, *, ticks: bool = False) -> Figures:
    params = SamplingParams().serialize()
    figures = Figures()
    async with opened(address) as client, ticking(figures, ticks=ticks):
        for _ in range(times):
            async with asyncio.TaskGroup() as tasks:
                for _ in range(at_once):
                    tasks.create_task(client.generate(params))
    return figures


@under_asyncio
async def streams(
    address: str, at_once: int, times: int, pause: float = 0.0, *, ticks: bool = False
) -> Figures:
    params = SamplingParams(streaming=True).serialize()
    asked = {"pause": pause} if pause else None
    figures = Figures()
    async with opened(address) as client, ticking(figures, ticks=ticks):
        for _ in range(times):
            async with asyncio.TaskGroup() as tasks:
                for _ in range(at_once):
                    tasks.create_task(client.stream(params, asked))
    return figures


@under_asyncio
async def cancel(address: str, count: int) -> Figures:
    params = SamplingParams().serialize()
    figures, times = Figures(), []
    with stamps(address) as arrivals:
        async with opened(address) as client, ticking(figures, ticks=False):
            for _ in range(count):
                task = asyncio.create_task(client.generate(params, {"hold": True}))
                await asyncio.sleep(PAUSE)
                start = time.perf_counter()
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                await asyncio.sleep(PAUSE)
                times.append(arrivals.next() - start)
    figures.seconds = median(times)
    return figures
