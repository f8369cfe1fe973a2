"""The same work through trio_infer's client."""

from __future__ import annotations

import time
from functools import partial

import trio
from floor import PROMPT
from server import STREAM_TOKENS

from trio_infer import GenerateRequest, InferenceClient, SamplingParams, open_client


async def _round_trip(address: str, count: int) -> float:
    params = SamplingParams()
    times = []
    async with open_client(address) as client:
        for _ in range(count):
            start = time.perf_counter()
            await client.generate(PROMPT, params)
            times.append(time.perf_counter() - start)
    return sorted(times)[count // 2]


def round_trip(address: str, count: int) -> float:
    """Median seconds of a `generate`, one at a time."""
    return trio.run(_round_trip, address, count)


async def _requests(address: str, count: int, in_flight: int) -> float:
    params = SamplingParams()

    async def worker(client: InferenceClient) -> None:
        for _ in range(count // in_flight):
            await client.generate(PROMPT, params)

    async with open_client(address) as client:
        start = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(in_flight):
                nursery.start_soon(worker, client)
        return count / (time.perf_counter() - start)


def requests(address: str, count: int, in_flight: int) -> float:
    """Requests per second, a task for each in flight."""
    return trio.run(partial(_requests, address, count, in_flight))


async def _group(address: str, count: int, in_flight: int) -> float:
    request = GenerateRequest(PROMPT, SamplingParams())
    async with open_client(address) as client:
        start = time.perf_counter()
        async with client.open_group() as group:
            for _ in range(in_flight):
                group.submit_nowait(request)
            left = count - in_flight
            async for outcome in group.outcomes:
                outcome.unwrap()
                if left:
                    left -= 1
                    group.submit_nowait(request)
        return count / (time.perf_counter() - start)


def group(address: str, count: int, in_flight: int) -> float:
    """Requests per second, all of them in one group."""
    return trio.run(partial(_group, address, count, in_flight))


async def _streams(address: str, count: int) -> float:
    params = SamplingParams()

    async def read(client: InferenceClient) -> None:
        async with client.stream(PROMPT, params) as stream:
            async for _ in stream:
                pass

    async with open_client(address) as client:
        start = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(read, client)
        return count * STREAM_TOKENS / (time.perf_counter() - start)


def streams(address: str, count: int) -> float:
    """Tokens per second over so many streams at once, a task for each."""
    return trio.run(_streams, address, count)
