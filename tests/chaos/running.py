"""A rehearsal in a trio run of its own."""

from __future__ import annotations

import random
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING
from unittest.mock import patch

import trio
import trio.testing

from tests.chaos.rehearsal import Report, rehearse
from tests.peers import free_address

if TYPE_CHECKING:
    from collections.abc import Iterator

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


@contextmanager
def scheduled_by(seed: int) -> Iterator[None]:
    """Lets trio, which shuffles the tasks that are ready, shuffle them by a seed."""
    scheduler = "trio._core._run"
    with (
        patch(f"{scheduler}._ALLOW_DETERMINISTIC_SCHEDULING", new=True),
        patch(f"{scheduler}._r", new=random.Random(seed)),
    ):
        yield
