"""The same work through megatron-core's own client, where that is installed, in its dialect.

It has every advantage: its replies stay dicts, and sampling parameters cost it no more than ours.
"""

from __future__ import annotations

import asyncio
import inspect
import time
import warnings
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from asyncio_peer import ticking, under_asyncio
from client import SUBMITTED_AT_ONCE
from floor import PROMPT
from measuring import Figures, median

from trio_infer import SamplingParams

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core import __version__
    from megatron.core.inference.inference_client import InferenceClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NAME = f"megatron-core {__version__}"

STREAMS = hasattr(InferenceClient, "add_request_streaming")


def dialect() -> str:
    """What this release speaks."""
    if "send_multipart" in inspect.getsource(InferenceClient):
        return "framed"
    return "0.20" if STREAMS else "0.19"


class Params:
    """Sampling parameters serialized beforehand."""

    streaming = False

    def __init__(self, *, streaming: bool = False) -> None:
        self._serialized = SamplingParams(streaming=streaming).serialize()

    def serialize(self) -> dict[str, Any]:
        return self._serialized


@asynccontextmanager
async def opened(address: str) -> AsyncIterator[Any]:
    client = InferenceClient(address)
    client.start()
    try:
        yield client
    finally:
        client.stop()


@under_asyncio
async def round_trip(address: str, count: int, dialect: str) -> Figures:
    params, figures, times = Params(), Figures(), []
    async with opened(address) as client, ticking(figures, ticks=False):
        for _ in range(count):
            start = time.perf_counter()
            await client.add_request(PROMPT, params)
            times.append(time.perf_counter() - start)
    figures.seconds = median(times)
    return figures


@under_asyncio
async def group(
    address: str, count: int, in_flight: int, dialect: str, *, ticks: bool = False
) -> Figures:
    params, figures = Params(), Figures()
    async with opened(address) as client, ticking(figures, ticks=ticks):
        futures = []
        for number in range(1, in_flight + 1):
            futures.append(client.add_request(PROMPT, params))
            if number % SUBMITTED_AT_ONCE == 0:
                await asyncio.sleep(0)
        for number in range(count):
            await futures[number]
            if number + in_flight < count:
                futures.append(client.add_request(PROMPT, params))
    return figures


@under_asyncio
async def streams(
    address: str, at_once: int, times: int, dialect: str, *, ticks: bool = False
) -> Figures:
    params, figures = Params(streaming=True), Figures()

    async def read(client: Any) -> None:
        async for _ in client.add_request_streaming(PROMPT, params):
            pass

    async with opened(address) as client, ticking(figures, ticks=ticks):
        for _ in range(times):
            async with asyncio.TaskGroup() as tasks:
                for _ in range(at_once):
                    tasks.create_task(read(client))
    return figures
