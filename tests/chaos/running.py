"""A rehearsal in a trio run of its own."""

from __future__ import annotations

import random
from functools import partial

import trio
import trio.testing

from tests.chaos.rehearsal import Report, rehearse
from tests.peers import free_address
from tests.scheduling import scheduled_by

__all__ = ["NETWORKS", "rehearse_once"]

NETWORKS = ("memory", "tcp")


def rehearse_once(network: str, seed: int) -> Report:
    """Rehearses in memory, where a seed leads to the same each time, or over TCP, where it cannot.

    Raises:
        AssertionError: something did not hold that has to.
    """
    random.seed(seed)
    if network == "tcp":
        return trio.run(partial(rehearse, seed, free_address(), moment=0.05))
    clock = trio.testing.MockClock(autojump_threshold=0)
    with scheduled_by(seed):
        return trio.run(partial(rehearse, seed, "memory://chaos", moment=1.0), clock=clock)
