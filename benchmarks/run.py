"""Prints how near the client comes to the floor, and what its peers reach: `nox -s bench`.

All take turns in one run, each in a process of its own, so that a machine which slows down slows
down all of them, and nobody's garbage is another's.
"""

from __future__ import annotations

import multiprocessing
import platform
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from rows import ROWS, WORK, Row, Work
from server import server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from measuring import Figures

ROUNDS = 5

FLOOR, OURS, ASYNCIO, ANYIO = "floor", "client", "asyncio_peer", "anyio_peer"
NEEDS = {FLOOR: "zmq", OURS: "trio", ASYNCIO: "zmq", ANYIO: "zmq_anyio"}


def work_of(module: str, work: Work, address: str) -> Figures:
    """Runs in the contestant's own process."""
    figures: Figures = getattr(import_module(module), work.function)(address, **work.arguments)
    return figures


class Contest:
    """The contestants, each with its process, and what they took of each work."""

    def __init__(self, stack: ExitStack) -> None:
        context = multiprocessing.get_context("spawn")
        self.modules = [module for module, need in NEEDS.items() if find_spec(need)]
        self._pools = {
            module: stack.enter_context(ProcessPoolExecutor(1, mp_context=context))
            for module in self.modules
        }

    def run(self, work: Work, address: str) -> dict[str, list[Figures]]:
        taken: dict[str, list[Figures]] = {module: [] for module in self.modules}
        for _ in range(ROUNDS):
            for module, figures in taken.items():
                future = self._pools[module].submit(work_of, module, work, address)
                figures.append(future.result())
        return taken


def ratios(row: Row, taken: dict[str, list[Figures]], module: str) -> list[float]:
    """Of each round: to the floor, or, of a delay, to zmq.asyncio's."""
    figure = "seconds" if row.figure == "rate" else row.figure
    base = taken[ASYNCIO if row.figure == "delay" else FLOOR]
    pairs = [
        (getattr(mine, figure), getattr(other, figure))
        for mine, other in zip(taken[module], base, strict=True)
    ]
    if row.more_is_better:
        return sorted(other / mine for mine, other in pairs)
    return sorted(mine / other for mine, other in pairs)


def shown(ratio: float) -> str:
    if ratio < 0.1:
        return f"1/{1 / ratio:.0f}" if ratio else "0"
    return f"{ratio:.2f}"


def absolute(row: Row, taken: dict[str, list[Figures]]) -> str:
    module = ASYNCIO if row.figure == "delay" else FLOOR
    figure = "seconds" if row.figure == "rate" else row.figure
    value = statistics.median(getattr(figures, figure) for figures in taken[module])
    return f"{value * 1000:.3g} ms"


def table(contest: Contest, address: str) -> Iterator[str]:
    peers = [module for module in contest.modules if module not in (FLOOR, OURS)]
    names = [import_module(module).NAME for module in peers]
    yield f"| | bar | aim | trio-infer | lowest | highest | {' | '.join(names)} | base |"
    yield "|---" * (7 + len(peers)) + "|"
    done: dict[str, dict[str, list[Figures]]] = {}
    for row in ROWS:
        if row.work not in done:
            done[row.work] = contest.run(WORK[row.work], address)
        taken = done[row.work]
        sign = "≥" if row.more_is_better else "≤"
        ours = ratios(row, taken, OURS)
        cells = [
            row.title,
            "" if row.bar is None else f"{sign} {shown(row.bar)}",
            "" if row.aim is None else shown(row.aim),
            *map(shown, (statistics.median(ours), ours[0], ours[-1])),
            *(shown(statistics.median(ratios(row, taken, peer))) for peer in peers),
            absolute(row, taken),
        ]
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    packages = ", ".join(f"{name} {version(name)}" for name in ("trio", "pyzmq", "msgpack"))
    print(f"Python {platform.python_version()}, {packages}; {ROUNDS} rounds\n")
    with ExitStack() as stack:
        address = stack.enter_context(server())
        for line in table(Contest(stack), address):
            print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
