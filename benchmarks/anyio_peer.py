"""The same work through zmq-anyio on trio: parked tasks and memory channels, one task that reads.

It has every advantage: it checks nothing, sends without waiting, and unpacks to a dict.
"""

from __future__ import annotations

import math
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgpack
import trio
import zmq
import zmq_anyio
from client import SUBMITTED_AT_ONCE, ticking, under_trio
from floor import PAUSE, request, stamps, unpack
from measuring import Figures, median

from trio_infer import SamplingParams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NAME = "zmq-anyio"


class Client:
    def __init__(self, socket: zmq_anyio.Socket) -> None:
        self._socket = socket
        self._inboxes: dict[int, trio.MemorySendChannel[dict[str, Any]]] = {}
        self._next = 0

    async def run(self) -> None:
        while True:
            metadata, packed = await self._socket.arecv_multipart()
            header, number = unpack(metadata)
            inbox = self._inboxes.get(number) if header == 22 else self._inboxes.pop(number, None)
            body = unpack(packed)
            if inbox is not None:
                inbox.send_nowait(body)

    def submit(
        self,
        params: dict[str, Any],
        inbox: trio.MemorySendChannel[dict[str, Any]],
        asked: object = None,
    ) -> int:
        number, self._next = self._next, self._next + 1
        self._inboxes[number] = inbox
        # Not waited for: the socket takes it at once.
        self._socket.asend_multipart(request(number, params, msgpack.packb(asked)))
        return number

    async def generate(self, params: dict[str, Any], asked: object = None) -> dict[str, Any]:
        inbox, replies = trio.open_memory_channel[dict[str, Any]](1)
        number = self.submit(params, inbox, asked)
        try:
            return await replies.receive()
        except trio.Cancelled:
            del self._inboxes[number]
            self._socket.asend_multipart([msgpack.packb([23, number])])
            raise

    async def stream(self, params: dict[str, Any], asked: object) -> None:
        inbox, replies = trio.open_memory_channel[dict[str, Any]](math.inf)
        self.submit(params, inbox, asked)
        while True:
            body = await replies.receive()
            try:
                while "new_tokens" in body:
                    body = replies.receive_nowait()
            except trio.WouldBlock:
                continue
            return


@asynccontextmanager
async def opened(address: str) -> AsyncIterator[Client]:
    with zmq.Context() as context:
        async with zmq_anyio.Socket(context.socket(zmq.DEALER)) as socket:
            for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
                socket.set(option, 0)
            socket.connect(address)
            await socket.asend(msgpack.packb([0]))
            await socket.arecv()
            client = Client(socket)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.run)
                yield client
                nursery.cancel_scope.cancel()


@under_trio
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


@under_trio
async def group(address: str, count: int, in_flight: int, *, ticks: bool = False) -> Figures:
    params = SamplingParams().serialize()
    figures = Figures()
    inbox, replies = trio.open_memory_channel[dict[str, Any]](math.inf)
    async with opened(address) as client, ticking(figures, ticks=ticks):
        for number in range(1, in_flight + 1):
            client.submit(params, inbox)
            if number % SUBMITTED_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        for number in range(in_flight, count + in_flight):
            await replies.receive()
            if number < count:
                client.submit(params, inbox)
    return figures


@under_trio
async def tasks(address: str, at_once: int, times: int, *, ticks: bool = False) -> Figures:
    params = SamplingParams().serialize()
    figures = Figures()
    async with opened(address) as client, ticking(figures, ticks=ticks):
        for _ in range(times):
            async with trio.open_nursery() as nursery:
                for _ in range(at_once):
                    nursery.start_soon(client.generate, params)
    return figures


@under_trio
async def streams(
    address: str, at_once: int, times: int, pause: float = 0.0, *, ticks: bool = False
) -> Figures:
    params = SamplingParams(streaming=True).serialize()
    asked = {"pause": pause} if pause else None
    figures = Figures()
    async with opened(address) as client, ticking(figures, ticks=ticks):
        for _ in range(times):
            async with trio.open_nursery() as nursery:
                for _ in range(at_once):
                    nursery.start_soon(client.stream, params, asked)
    return figures


@under_trio
async def cancel(address: str, count: int) -> Figures:
    params = SamplingParams().serialize()
    figures, times = Figures(), []
    with stamps(address) as arrivals:
        async with opened(address) as client, ticking(figures, ticks=False):
            for _ in range(count):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(client.generate, params, {"hold": True})
                    await trio.sleep(PAUSE)
                    start = time.perf_counter()
                    nursery.cancel_scope.cancel()
                await trio.sleep(PAUSE)
                times.append(arrivals.next() - start)
    figures.seconds = median(times)
    return figures
