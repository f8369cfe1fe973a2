"""What a process holds, counted, so that two counts can be compared."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import attrs
import trio

from tests.waiting import until

__all__ = ["Belongings", "resident", "take_stock", "threads_that_idle_end"]

RESIDENT_BYTES = 16 * 2**20
"""So much more memory may be resident: what the allocator keeps differs from time to time."""

OTHER_OBJECTS = 100
"""So many more objects of Python's own there may be: its abstract classes remember types."""

NO_MORE = ("trio_infer.", "trio.", "outcome.", "zmq.")
"""Packages of whose objects there may be no more."""

threads_that_idle_end = patch("trio._core._thread_cache.IDLE_TIMEOUT", 0.05)
"""Otherwise trio keeps them for ten seconds."""


@attrs.frozen
class Belongings:
    """What there was at one moment.

    Attributes:
        objects: those that the garbage collector knows, by type.
        descriptors: open files and sockets.
        threads: ZeroMQ's among them.
        tasks: of trio.
        resident: bytes of memory.
    """

    objects: Counter[str]
    descriptors: int
    threads: int
    tasks: int
    resident: int

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Belongings:
        return cls(**fields | {"objects": Counter(fields["objects"])})

    def growth_since(self, before: Belongings) -> dict[str, int]:
        """How much more of everything there is, and how many objects of which type."""
        counts = {
            name: getattr(self, name) - getattr(before, name)
            for name in ("descriptors", "threads", "tasks", "resident")
        }
        objects = Counter(self.objects)
        objects.subtract(before.objects)
        more = {name: count for name, count in objects.items() if count > 0}
        return counts | {"objects": objects.total()} | more

    def check_no_more_than(self, before: Belongings) -> None:
        """Checks that nothing has been added, but some memory and some objects of Python's own."""
        allowed = {"resident": RESIDENT_BYTES, "objects": OTHER_OBJECTS}
        too_much = {
            name: more
            for name, more in self.growth_since(before).items()
            if more > allowed.get(name, 0) and ("." not in name or name.startswith(NO_MORE))
        }
        assert not too_much, f"there is too much more: {too_much}"


async def take_stock() -> Belongings:
    """Counts, once trio's idle threads have ended and all garbage is collected."""
    await until(lambda: threading.active_count() == 1)
    await trio.lowlevel.checkpoint()  # trio holds on to what it woke this task with
    trio._core._run.GLOBAL_RUN_CONTEXT.runner.deadlines._prune()
    gc.collect()
    return Belongings(
        objects=Counter(_name(type(thing)) for thing in gc.get_objects()),
        descriptors=_entries("/proc/self/fd"),
        threads=_entries("/proc/self/task"),
        tasks=trio.lowlevel.current_statistics().tasks_living,
        resident=resident(),
    )


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _entries(directory: str) -> int:
    return sum(1 for _ in Path(directory).iterdir())


def resident() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
