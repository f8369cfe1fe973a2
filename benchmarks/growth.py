"""Measures how cost grows with each size that has no bound: `nox -s bench -- growth`.

Client and floor take turns; each point is the median of some rounds.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import client
import floor
import msgpack
import pages
import trio
from measuring import Figures, median
from server import NOTHING, STREAM_TOKENS, server

from trio_infer import SamplingParams, open_client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Point = Callable[[str], float]  # seconds of something, given the server's address
    Series = dict[str, dict[int, Point]]  # by what is measured, and its size

ROUNDS = 3
ENOUGH = 20_000_000  # ids, bytes or log probs that all requests of a round have together
BLOCK_SIZE = 64

HASHING = {
    "block_size_tokens": BLOCK_SIZE,
    "prefix_caching_coordinator_policy": "longest_prefix",
}


def powers(most: int) -> list[int]:
    """1, 10, 100…"""
    return [10**exponent for exponent in range(len(str(most)))]


def often(size: int) -> int:
    """How many requests of such a size are enough for a median."""
    return max(3, min(100, ENOUGH // size))


async def _one_by_one(
    address: str, count: int, prompt: list[int], request: dict[str, Any], options: dict[str, Any]
) -> float:
    times = []
    async with open_client(address, **options) as opened:
        for _ in range(count):
            start = time.perf_counter()
            await opened.generate(prompt, SamplingParams(), **request)
            times.append(time.perf_counter() - start)
    return median(times)


def by_client(
    size: int,
    *,
    prompt: list[int] = floor.PROMPT,
    options: dict[str, Any] | None = None,
    **request: Any,
) -> Point:
    return lambda address: trio.run(
        _one_by_one, address, often(size), prompt, request, options or {}
    )


def by_floor(size: int, make_bodies: Callable[[], list[bytes]], media: object = None) -> Point:
    def measure(address: str) -> float:
        params, times = SamplingParams().serialize(), []
        with floor.dealer(address) as socket:
            for number in range(often(size)):
                start = time.perf_counter()
                metadata = msgpack.packb([20, number, params, media])
                socket.send_multipart([metadata, *make_bodies()])
                floor.receive(socket)
                times.append(time.perf_counter() - start)
        return median(times)

    return measure


def prompts() -> Series:
    series: Series = {"trio-infer, hashing": {}, "trio-infer": {}, "floor": {}}
    for size in powers(1_000_000):
        prompt = [number % 50_000 for number in range(size)]
        series["trio-infer, hashing"][size] = by_client(size, prompt=prompt, options=HASHING)
        series["trio-infer"][size] = by_client(size, prompt=prompt)
        bodies = partial(lambda ids: [msgpack.packb(ids), NOTHING, NOTHING, NOTHING], prompt)
        series["floor"][size] = by_floor(size, bodies)
    return series


def media() -> Series:
    series: Series = {"trio-infer": {}, "floor": {}}
    meta = {"media_cache_key": "0" * 64, "modality": "image"}
    for size in (2**exponent for exponent in range(10, 27, 2)):
        image = bytes(size)
        series["trio-infer"][size] = by_client(size, multi_modal_data={"image": image})
        bodies = partial(
            lambda image: [msgpack.packb([1]), NOTHING, msgpack.packb([image]), NOTHING], image
        )
        series["floor"][size] = by_floor(size, bodies, meta)
    return series


def log_probs() -> Series:
    series: Series = {"trio-infer": {}, "floor": {}}
    for size in powers(100_000):
        asked = {"log_probs": size}
        series["trio-infer"][size] = by_client(10 * size, offload_params=asked)
        body = msgpack.packb(asked)
        bodies = partial(lambda body: [msgpack.packb([1]), NOTHING, NOTHING, body], body)
        series["floor"][size] = by_floor(10 * size, bodies)
    return series


def each(run: Callable[[str], Figures], units: int) -> Point:
    return lambda address: run(address).seconds / units


def in_flight() -> Series:
    series: Series = {"trio-infer": {}, "floor": {}}
    for size in powers(100_000):
        count = max(2000, size)
        for name, module in (("trio-infer", client), ("floor", floor)):
            run = partial(module.group, count=count, in_flight=size)
            series[name][size] = each(run, count)
    return series


def streams() -> Series:
    series: Series = {"trio-infer": {}, "floor": {}}
    for size in (4**exponent for exponent in range(6)):
        times = max(1, 64 // size)
        for name, module in (("trio-infer", client), ("floor", floor)):
            run = partial(module.streams, at_once=size, times=times)
            series[name][size] = each(run, size * times * STREAM_TOKENS)
    return series


CHARTS: dict[str, tuple[Callable[[], Series], str, str]] = {
    # by file: what is drawn, what it grows with, of what the seconds are
    "prompts": (prompts, "token ids in the prompt", "a request"),
    "media": (media, "bytes of an image", "a request"),
    "in-flight": (in_flight, "requests in flight, in a group", "each request"),
    "streams": (streams, "streams at once", "each token"),
    "log-probs": (log_probs, "tokens in the reply, with log probs", "a request"),
}


def measure(series: Series, address: str) -> dict[str, dict[int, float]]:
    """All points, in rounds, the series taking turns."""
    measured: dict[str, dict[int, float]] = {name: {} for name in series}
    for size in next(iter(series.values())):
        rounds = [[points[size](address) for points in series.values()] for _ in range(ROUNDS)]
        for name, values in zip(series, zip(*rounds, strict=True), strict=True):
            measured[name][size] = statistics.median(values)
    return measured


def lines(name: str, measured: dict[str, dict[int, float]]) -> Iterator[str]:
    yield f"\n{name}: µs of {CHARTS[name][2]} by {CHARTS[name][1]}"
    for label, values in measured.items():
        yield f"  {label}: " + ", ".join(f"{size}: {s * 1e6:.1f}" for size, s in values.items())


def main(conditions: str, *, update_docs: bool, chosen: list[str]) -> None:
    """Measures and prints them, and draws them for the documentation."""
    print(conditions)
    with server() as address:
        for name in chosen or CHARTS:
            make, grows_with, of_what = CHARTS[name]
            measured = measure(make(), address)
            print("\n".join(lines(name, measured)), flush=True)
            if update_docs:
                import charts  # noqa: PLC0415 - wants matplotlib

                charts.draw_growth(name, measured, grows_with, of_what)
    if update_docs:
        pages.update("conditions of growth", [conditions])
