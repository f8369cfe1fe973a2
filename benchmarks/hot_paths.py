"""Prints where the client's time goes, for each workload: `python benchmarks/hot_paths.py`.

The profiler makes small functions look dearer than they are: what counts is their order.
"""

from __future__ import annotations

import cProfile
import pstats
import sys

import client
from rows import WORKS
from server import server

LINES = 25


def main(chosen: list[str]) -> None:
    """Profiles the workloads of these names, or all."""
    with server() as address:
        client.round_trip(address, count=100)  # imports, and what is made once
        for name, work in WORKS.items():
            if chosen and name not in chosen:
                continue
            profile = cProfile.Profile()
            profile.runcall(getattr(client, work.function), address, **work.arguments)
            print(f"\n=== {name}: {work.function}({work.arguments}) ===")
            pstats.Stats(profile).sort_stats("tottime").print_stats(LINES)


if __name__ == "__main__":
    main(sys.argv[1:])
