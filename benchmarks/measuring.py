"""What is measured of one run, and the ticker that feels how long others were kept from running."""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

_P = ParamSpec("_P")

TICK = 0.001


class Figures:
    """The figures of a run.

    Attributes:
        seconds: that it took, or, of a latency, the median.
        wall: seconds that it took, in any case.
        cpu: seconds of all threads of the process.
        delay: by which the latest tick came too late.
    """

    def __init__(self) -> None:
        self.seconds = self.wall = 0.0
        self.cpu = 0.0
        self.delay = 0.0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Measures the block."""
        cpu, start = time.process_time(), time.perf_counter()
        yield
        self.seconds = self.wall = time.perf_counter() - start
        self.cpu = time.process_time() - cpu

    @contextmanager
    def tick(self) -> Iterator[None]:
        """Notes by how much a sleep of `TICK` takes longer, and one that was cut short as well."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.delay = max(self.delay, time.perf_counter() - start - TICK)


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def under(
    run: Callable[[Callable[[], Coroutine[Any, Any, Figures]]], Figures],
) -> Callable[[Callable[_P, Coroutine[Any, Any, Figures]]], Callable[_P, Figures]]:
    """Lets each call of a workload be a run of its own, such as `trio.run`."""

    def decorate(work: Callable[_P, Coroutine[Any, Any, Figures]]) -> Callable[_P, Figures]:
        @wraps(work)
        def run_work(*args: _P.args, **kwargs: _P.kwargs) -> Figures:
            return run(partial(work, *args, **kwargs))

        return run_work

    return decorate
