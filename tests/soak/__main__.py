"""The long run: ``nox -s soak``."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from functools import partial

import trio

from tests.listing import listed
from tests.soak.belongings import threads_that_idle_end
from tests.soak.rehearsal import soak


def main() -> int:
    """Makes as many requests as it is told, and prints what became of them and what is left."""
    parser = argparse.ArgumentParser(description="Make very many requests, and leave most early.")
    parser.add_argument("--requests", type=int, default=1_000_000, help="how many, about")
    parser.add_argument("--at-once", type=int, default=500, help="how many there are at a time")
    parser.add_argument("--intervals", type=int, default=20, help="how often to count")
    parser.add_argument("--seed", type=int, default=0, help="decides who is left when, and how")
    options = parser.parse_args()
    logging.disable()
    start = time.monotonic()
    with threads_that_idle_end:
        report = trio.run(
            partial(soak, intervals=options.intervals, at_once=options.at_once),
            options.requests,
            options.seed,
        )
    seconds = time.monotonic() - start
    print(f"{report.made.total():,} requests in {seconds:,.0f} s: {listed(report.made)}")
    print(f"as their callers saw it: {listed(report.outcomes)}")
    print(f"as the clients counted: {listed(report.statistics)}")
    print(f"as the coordinator counted: {listed(report.coordinator)}")
    for process, growth in report.growth.items():
        print(f"growth in the {process}'s process: {listed(growth)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
