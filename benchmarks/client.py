"""The same work through trio_infer's client."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import trio
from floor import PAUSE, PROMPT, stamps
from measuring import TICK, Figures, median, under

from trio_infer import GenerateRequest, InferenceClient, SamplingParams, open_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NAME = "trio-infer"

SUBMITTED_AT_ONCE = 64  # requests, before other tasks have their turn

under_trio = under(trio.run)


@asynccontextmanager
async def ticking(figures: Figures, *, ticks: bool) -> AsyncIterator[None]:
    """Measures the block, and the delay of a task beside it that ticks."""

    async def tick() -> None:
        while True:
            with figures.tick():
                await trio.sleep(TICK)

    async with trio.open_nursery() as nursery:
        if ticks:
            nursery.start_soon(tick)
            await trio.sleep(2 * TICK)
        with figures.taken():
            yield
        nursery.cancel_scope.cancel()


@under_trio
async def round_trip(address: str, count: int, dialect: str = "framed") -> Figures:
    """A `generate` at a time."""
    params = SamplingParams()
    figures, times = Figures(), []
    async with open_client(address, dialect=dialect) as client, ticking(figures, ticks=False):
        for _ in range(count):
            start = time.perf_counter()
            await client.generate(PROMPT, params)
            times.append(time.perf_counter() - start)
    figures.seconds = median(times)
    return figures


@under_trio
async def group(
    address: str, count: int, in_flight: int, dialect: str = "framed", *, ticks: bool = False
) -> Figures:
    """All of them in one group."""
    request = GenerateRequest(PROMPT, SamplingParams())
    figures = Figures()
    async with (
        open_client(address, dialect=dialect) as client,
        ticking(figures, ticks=ticks),
        client.open_group() as group,
    ):
        for number in range(1, in_flight + 1):
            group.submit_nowait(request)
            if number % SUBMITTED_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        left = count - in_flight
        async for outcome in group.outcomes:
            outcome.unwrap()
            if left:
                left -= 1
                group.submit_nowait(request)
    return figures


@under_trio
async def tasks(address: str, at_once: int, times: int, *, ticks: bool = False) -> Figures:
    """A task for each, which does one `generate`."""
    params = SamplingParams()
    figures = Figures()
    async with open_client(address) as client, ticking(figures, ticks=ticks):
        for _ in range(times):
            async with trio.open_nursery() as nursery:
                for _ in range(at_once):
                    nursery.start_soon(client.generate, PROMPT, params)
    return figures


@under_trio
async def streams(
    address: str,
    at_once: int,
    times: int,
    pause: float = 0.0,
    dialect: str = "framed",
    *,
    ticks: bool = False,
) -> Figures:
    """A task for each stream."""
    params = SamplingParams()
    asked: dict[str, Any] = {"offload_params": {"pause": pause}} if pause else {}
    figures = Figures()

    async def read(client: InferenceClient) -> None:
        async with client.stream(PROMPT, params, **asked) as stream:
            async for _ in stream:
                pass

    async with (
        open_client(address, dialect=dialect) as client,
        ticking(figures, ticks=ticks),
    ):
        for _ in range(times):
            async with trio.open_nursery() as nursery:
                for _ in range(at_once):
                    nursery.start_soon(read, client)
    return figures


@under_trio
async def cancel(address: str, count: int) -> Figures:
    """A cancelled `generate`, from the cancellation to the arrival of its ABORT."""
    params = SamplingParams()
    figures, times = Figures(), []
    with stamps(address) as arrivals:
        async with open_client(address) as client, ticking(figures, ticks=False):
            held = partial(client.generate, PROMPT, params, offload_params={"hold": True})
            for _ in range(count):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(held)
                    await trio.sleep(PAUSE)
                    start = time.perf_counter()
                    nursery.cancel_scope.cancel()
                await trio.sleep(PAUSE)
                times.append(arrivals.next() - start)
    figures.seconds = median(times)
    return figures
