"""The contestants, who take turns, each in a process of its own.

So a machine which slows down slows down all of them, and nobody's garbage is another's.
"""

from __future__ import annotations

import multiprocessing
import statistics
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from measuring import Figures
    from rows import Row, Work

ROUNDS: Final = 5
PATIENCE: Final = 8.0  # seconds for all the rounds of a peer; a slower one has fewer

FLOOR, OURS, ASYNCIO, ANYIO = "floor", "client", "asyncio_peer", "anyio_peer"
MEGATRON: Final = "megatron_peer"
ALWAYS: Final = (FLOOR, OURS, ASYNCIO)  # what the others are compared with
NEEDS: Final = {FLOOR: "zmq", OURS: "trio", ASYNCIO: "zmq", ANYIO: "zmq_anyio"}
NEEDS_IN_ITS_DIALECT: Final = {FLOOR: "zmq", OURS: "trio", MEGATRON: "megatron"}


def _run(module: str, work: Work, address: str) -> Figures:
    arguments = work.arguments | ({"ticks": True} if work.ticks and module != FLOOR else {})
    figures: Figures = getattr(import_module(module), work.function)(address, **arguments)
    return figures


def _name(module: str) -> str:
    name: str = import_module(module).NAME
    return name


def _dialect(module: str) -> str:
    dialect: str = import_module(module).dialect()
    return dialect


class Spread(NamedTuple):
    """A figure of some rounds."""

    median: float
    lowest: float
    highest: float


class Result(NamedTuple):
    """What came of a row, by contestant.

    Attributes:
        row: what was measured.
        base: the median that all is a ratio to: of the floor, or, of a delay, of zmq.asyncio.
        ratios: to that, of each round.
    """

    row: Row
    base: float
    ratios: dict[str, Spread]


class Contest:
    """The contestants.

    Attributes:
        names: what they are called, by their modules.
    """

    def __init__(self, pools: dict[str, ProcessPoolExecutor]) -> None:
        self._pools = pools
        self.names = {module: pool.submit(_name, module).result() for module, pool in pools.items()}

    def dialect(self, module: str) -> str:
        """What a contestant speaks."""
        return self._pools[module].submit(_dialect, module).result()

    def run(self, work: Work, address: str) -> dict[str, list[Figures]]:
        """All rounds of one workload."""
        taken: dict[str, list[Figures]] = {module: [] for module in self._pools}
        for _ in range(ROUNDS):
            for module, figures in taken.items():
                spent = sum(figure.wall for figure in figures)
                if module in ALWAYS or spent < PATIENCE:
                    future = self._pools[module].submit(_run, module, work, address)
                    figures.append(future.result())
        return taken

    def results(
        self, rows: Iterable[Row], works: dict[str, Work], address: str
    ) -> Iterator[Result]:
        """What comes of the rows, each as soon as it is known."""
        taken: dict[str, dict[str, list[Figures]]] = {}
        for row in rows:
            if row.work not in taken:
                taken[row.work] = self.run(works[row.work], address)
            yield _result(row, taken[row.work])


def _result(row: Row, taken: dict[str, list[Figures]]) -> Result:
    figure = "seconds" if row.figure == "rate" else row.figure
    values = {
        module: [getattr(figures, figure) for figures in rounds] for module, rounds in taken.items()
    }
    base = values[ASYNCIO if row.figure == "delay" else FLOOR]
    spreads = {}
    for module, own in values.items():
        pairs = zip(own, base, strict=False)
        ratios = [other / mine if row.figure == "rate" else mine / other for mine, other in pairs]
        spreads[module] = Spread(statistics.median(ratios), min(ratios), max(ratios))
    return Result(row, statistics.median(base), spreads)


@contextmanager
def contest(needs: dict[str, str]) -> Iterator[Contest]:
    """Those contestants whose needs are installed."""
    context = multiprocessing.get_context("spawn")
    pools = {
        module: ProcessPoolExecutor(1, mp_context=context)
        for module, need in needs.items()
        if find_spec(need)
    }
    try:
        yield Contest(pools)
    finally:
        for pool in pools.values():
            pool.shutdown()
