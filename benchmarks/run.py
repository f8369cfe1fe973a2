"""Prints how near the client comes to the floor, as ratios: `nox -s bench`.

Floor and client take turns in one run, so that a machine which slows down slows down both.
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable
from functools import partial
from importlib.metadata import version

import client
import floor
from server import server

ROUNDS = 5

Work = Callable[[str], float]

ROWS: tuple[tuple[str, Work, Work, bool], ...] = (
    # what is measured, by the floor, by the client, whether less is better
    (
        "round trip, one in flight, p50",
        partial(floor.round_trip, count=2000),
        partial(client.round_trip, count=2000),
        True,
    ),
    (
        "requests/s, 1,000 in flight, a task for each",
        partial(floor.requests, count=20_000, in_flight=1000),
        partial(client.requests, count=20_000, in_flight=1000),
        False,
    ),
    (
        "requests/s, 1,000 in flight, in a group",
        partial(floor.requests, count=20_000, in_flight=1000),
        partial(client.group, count=20_000, in_flight=1000),
        False,
    ),
    (
        "tokens/s, 64 streams",
        partial(floor.streams, count=64),
        partial(client.streams, count=64),
        False,
    ),
    (
        "tokens/s, 1,000 streams",
        partial(floor.streams, count=1000),
        partial(client.streams, count=1000),
        False,
    ),
)


def main() -> None:
    packages = ", ".join(f"{name} {version(name)}" for name in ("trio", "pyzmq", "msgpack"))
    print(f"Python {platform.python_version()}, {packages}; {ROUNDS} rounds\n")
    print("| | ratio to the floor | lowest | highest |")
    print("|---|---|---|---|")
    with server() as address:
        for name, by_floor, by_client, less_is_better in ROWS:
            ratios = sorted(by_client(address) / by_floor(address) for _ in range(ROUNDS))
            shown = " | ".join(
                f"{r:.2f}" for r in (statistics.median(ratios), ratios[0], ratios[-1])
            )
            print(
                f"| {name}{' (less is better)' if less_is_better else ''} | {shown} |", flush=True
            )


if __name__ == "__main__":
    main()
