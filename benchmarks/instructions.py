"""Prints how many instructions of the processor each thing takes: `nox -s instructions`.

Valgrind counts them, in what `tests/performance` counts as well: no time passes in it, and a busy
machine changes nothing. Two runs differ by less than a hundredth.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.performance import counting

if TYPE_CHECKING:
    from collections.abc import Iterator

SIGN = "getpgrp"  # a call of this, which nobody else makes, ends a part of the count


class Marked(counting.Count):
    """A block that is a part of the count."""

    @contextmanager
    def counted(self) -> Iterator[None]:
        os.getpgrp()
        yield
        os.getpgrp()
        self.value = 1.0


async def do_all() -> list[float]:
    """Does each thing, and tells what share each is of what was done in its part."""
    shares = []
    async with counting.connected() as (client, peer):
        for work in counting.DONE_BY.values():
            marked = Marked()
            await work(client, peer, marked)
            shares.append(marked.value)
    return shares


def total(part: Path) -> int:
    """What a part of callgrind's output sums up to."""
    line = next(line for line in part.read_text().splitlines() if line.startswith("totals:"))
    return int(line.split()[1])


def main() -> None:
    """Runs this very script under valgrind."""
    if shutil.which("valgrind") is None:
        print("valgrind is not installed: nothing to count with")
        return
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "out"
        answer = subprocess.run(
            [
                *("valgrind", "--quiet", "--tool=callgrind"),
                *(f"--dump-before={SIGN}", f"--callgrind-out-file={out}"),
                *(sys.executable, __file__, "under valgrind"),
            ],
            check=True,
            capture_output=True,
            env=os.environ | {"PYTHONHASHSEED": "0"},
        )
        shares = map(float, answer.stdout.split())
        for number, (name, share) in enumerate(zip(counting.DONE_BY, shares, strict=True)):
            print(f"{name}: {total(Path(f'{out}.{2 * number + 2}')) * share:,.0f}")


if __name__ == "__main__":
    if sys.argv[1:]:
        print(*counting.run(do_all))
    else:
        main()
