"""What a request may cost: counts that grow by a defect, and not by a busy machine.

Where one of these fails and the cost is wanted, whoever wants it raises the figure below. They
stand some tenth above what the costliest of the supported Pythons counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TypeAlias

import pytest

Counts: TypeAlias = dict[str, dict[str, float]]

ROOT = Path(__file__).parent.parent.parent

KEPT = {
    "a request of a group": (5, 2.2),
    "a task that generates": (22, 15.5),
    "a task that reads a stream": (36.5, 29),
    "a token that nobody has read": (1.2, 0.2),
}
INSTRUCTIONS = {
    "a request of a group": 2400,
    "a task that generates": 3050,
    "a cancellation": 2000,
    "a token on its own": 1540,
    "a token of ten at once": 615,
}


@pytest.fixture(scope="module")
def counts() -> Counts:
    """Counted in a process where nothing has run before, and no coverage is measured."""
    unmeasured = {
        name: value for name, value in os.environ.items() if not name.startswith("COV")
    } | {"PYTHONHASHSEED": "0"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.performance.counting"]
    answer = subprocess.run(command, env=unmeasured, cwd=ROOT, capture_output=True, check=False)
    assert answer.returncode == 0, answer.stderr.decode()
    counted: Counts = json.loads(answer.stdout)
    return counted


@pytest.mark.parametrize("what", KEPT)
def test_many_in_flight_do_not_fill_the_memory(counts: Counts, what: str) -> None:
    most, _ = KEPT[what]
    assert counts["blocks"][what] <= most


@pytest.mark.parametrize("what", KEPT)
def test_many_in_flight_do_not_keep_the_collector_of_garbage_busy(
    counts: Counts, what: str
) -> None:
    _, most = KEPT[what]
    assert counts["objects"][what] <= most


@pytest.mark.parametrize("what", INSTRUCTIONS)
def test_throughput_does_not_fall_for_want_of_the_processor(counts: Counts, what: str) -> None:
    assert 0 < counts["instructions"][what] <= INSTRUCTIONS[what]
