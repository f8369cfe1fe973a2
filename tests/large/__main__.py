"""Large things at their full size, and what others feel of them: ``nox -s large``.

The coordinator runs in a process of its own, and answers without looking into what it gets. While
each large request runs, a task in the client's process takes a turn whenever it is let, which tells
how long all tasks stood still; and another one sends small requests, one after the other.
"""

from __future__ import annotations

import gc
import multiprocessing
import random
import time
from typing import TYPE_CHECKING, Any

import trio

from tests.large.peer import LARGE_REPLY, serve
from tests.soak.belongings import resident
from trio_infer import InferenceClient, open_client

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

HASHING: dict[str, Any] = {
    "block_size_tokens": 16,
    "prefix_caching_coordinator_policy": "longest_prefix",
}


def megabytes() -> int:
    """How much memory this process has now."""
    return resident() // 10**6


async def measure(
    name: str, client: InferenceClient, request: Callable[[], Awaitable[object]]
) -> None:
    """Prints what others feel of a large request."""
    served = turns = peak = 0
    longest = 0.0

    async def take_turns() -> None:
        nonlocal turns, longest, peak
        last = time.perf_counter()
        while True:
            await trio.sleep(0.001)
            now = time.perf_counter()
            longest, last, turns = max(longest, now - last), now, turns + 1
            peak = max(peak, megabytes()) if turns % 20 == 0 else peak

    async def ask() -> None:
        nonlocal served
        while True:
            await client.generate("small")
            served += 1

    gc.collect()
    before = megabytes()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_turns)
        nursery.start_soon(ask)
        await trio.sleep(0.1)
        served, longest, start = 0, 0.0, time.perf_counter()
        result = await request()
        whole = time.perf_counter() - start
        counts = served, longest
        nursery.cancel_scope.cancel()
    del result
    await trio.sleep(0.5)  # ZeroMQ's thread lets go of what has left
    gc.collect()
    print(
        f"{name}: {whole:.2f} s, {counts[0]} others served, longest standstill "
        f"{counts[1]:.3f} s ({counts[1] / whole:.0%}); memory {before} MB before, "
        f"{max(peak, before)} at most, {megabytes()} after",
        flush=True,
    )


async def main(address: str, size: int) -> None:
    """All rows, twice: the first time includes what comes about once for all."""
    images = [random.Random(seed).randbytes(8 * 10**6) for seed in range(50)]
    ids = list(range(100_000, 1_100_000))
    async with open_client(address, **HASHING) as client:
        for _ in range(2):
            await measure("a million ids", client, lambda: client.generate(ids))
            await measure(
                "50 images of 8 MB",
                client,
                lambda: client.generate("see", multi_modal_data={"image": images}),
            )
            await measure(
                f"a reply of {size / 10**6:.0f} MB", client, lambda: client.generate(LARGE_REPLY)
            )


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there,), daemon=True)
    process.start()
    trio.run(main, *here.recv())
    process.kill()
