"""What a batch remembers of lines that are done."""

from __future__ import annotations

import json
import resource
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from tests.programs import run
from trio_infer import SamplingParams
from trio_infer.cli.done import Done
from trio_infer.cli.rows import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

PROC = Path("/proc/self")

PEAK = """
import sys
from trio_infer.cli.program import run
code = run()
with open("/proc/self/status") as status:
    print(*(line.split()[1] for line in status if line.startswith("VmHWM")))
sys.exit(code)
"""


def row(number: int, own_id: str | int | None = None) -> Row:
    return Row(number, own_id, "hi", SamplingParams())


@pytest.fixture
def done() -> Iterator[Done]:
    with closing(Done()) as done:
        yield done


def test_a_line_is_done_by_its_id_or_else_by_its_number(done: Done) -> None:
    done.note(3, None)
    done.note(4, "a")
    done.note(9, 1)
    assert [number for number in range(12) if done.meet(row(number))] == [3]
    assert done.meet(row(5, "a"))
    assert not done.meet(row(6, "1"))
    assert done.meet(row(7, 1))
    assert done.count == 3


@pytest.mark.parametrize("own_id", ["done", "new"])
def test_an_id_that_two_lines_have_is_told_of_the_second(done: Done, own_id: str) -> None:
    done.note(1, "done")
    done.meet(row(1, own_id))
    with pytest.raises(ValueError, match=f"its id '{own_id}' is that of a line before it"):
        done.meet(row(2, own_id))


def test_a_full_disk_is_one_line(done: Done) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(click.ClickException, match="cannot be kept in a temporary file"):
            for number in range(500_000):
                done.note(number, number)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.skipif(not PROC.exists(), reason="Linux alone tells of a process's files so")
def test_nothing_is_left_behind_whatever_ends_it(done: Done) -> None:
    for number in range(100_000):
        done.note(number, number)
    files = [each.readlink() for each in (PROC / "fd").iterdir() if each.is_symlink()]
    (kept,) = (each for each in files if "etilqs" in each.name)
    assert not kept.exists()


async def peak_of(directory: Path, count: int) -> int:
    """Kilobytes that a batch takes which finds all done, its ids and those lines that have none."""
    source, output = directory / "in", directory / "out"
    ids = [f"id {number}" if number % 3 else None for number in range(count)]
    with source.open("w") as into:
        into.writelines(json.dumps({"prompt": "x", "id": each}) + "\n" for each in ids)
    with output.open("w") as into:
        into.writelines(
            json.dumps({"line": number} | ({"id": each} if each else {})) + "\n"
            for number, each in enumerate(ids, 1)
        )
    command = (sys.executable, "-c", PEAK, "batch", str(source), "-o", str(output))
    result = await run(command=command)
    assert f"{count} done ({count} before)" in result.stderr
    return int(result.stdout)


@pytest.mark.skipif(not PROC.exists(), reason="Linux alone tells the peak so")
async def test_memory_does_not_grow_with_what_is_done(tmp_path: Path) -> None:
    grown = await peak_of(tmp_path, 100_000) - await peak_of(tmp_path, 2_000)
    assert grown < 4_000, "what stood in memory took 9 MB"
