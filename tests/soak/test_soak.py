"""A short long run, in a process of its own; `nox -s soak` is the long one."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.programs import run
from tests.soak.belongings import OTHER_OBJECTS, RESIDENT_BYTES, Belongings

SHORT = ("--requests", "4000", "--at-once", "100", "--intervals", "4")

HELD = Belongings(
    objects=Counter({"trio.MemoryReceiveChannel": 3, "builtins.dict": 40}),
    descriptors=9,
    threads=3,
    tasks=5,
    resident=2**26,
)


@pytest.mark.slow
async def test_thousands_of_requests_left_at_any_moment_leave_nothing_behind() -> None:
    command = (sys.executable, "-m", "tests.soak")
    result = await run(*SHORT, command=command, cwd=Path(__file__).parents[2])
    assert not result.code, result.stderr
    assert result.stdout.startswith("4,000 requests")


@pytest.mark.parametrize(
    "leak",
    [
        {"descriptors": 10},
        {"threads": 4},
        {"tasks": 6},
        {"resident": 2**26 + RESIDENT_BYTES + 1},
        {"objects": HELD.objects + Counter({"trio.MemoryReceiveChannel": 1})},
        {"objects": HELD.objects + Counter({"trio_infer.reception.Reception": 1})},
        {"objects": HELD.objects + Counter({"builtins.dict": OTHER_OBJECTS + 1})},
    ],
)
def test_what_a_long_run_leaves_does_not_pass_unseen(leak: dict[str, Any]) -> None:
    HELD.check_no_more_than(HELD)
    with pytest.raises(AssertionError, match="too much more"):
        attrs.evolve(HELD, **leak).check_no_more_than(HELD)
