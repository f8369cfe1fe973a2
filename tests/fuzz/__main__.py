"""The long run of the fuzzer: ``nox -s fuzz``.

Atheris looks for bytes that lead further, where it is installed; where it is not, Hypothesis draws
them. It ends at the first thing that does not hold, and keeps the bytes, which ``--repeat`` plays.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_BYTES = 4096
SECONDS_OF_ONE = 60
KEPT = Path("fuzz-failure.bin")


def main() -> int:
    """Fuzzes for as long as it is told, and prints what that took."""
    parser = argparse.ArgumentParser(description="Fuzz what is received.")
    parser.add_argument("--seconds", type=int, default=600, help="how long, in all")
    parser.add_argument("--seed", type=int, default=0, help="where chance begins")
    parser.add_argument("--repeat", type=Path, help="play the bytes of this file alone, and log")
    parser.add_argument("--engine", choices=("atheris", "hypothesis"), help="what draws the bytes")
    options = parser.parse_args()
    if options.repeat:
        logging.basicConfig(level=logging.DEBUG)
        print(Run().play(options.repeat.read_bytes()))
        return 0
    logging.disable()
    engine = options.engine or ("atheris" if find_spec("atheris") else "hypothesis")
    fuzz = by_atheris if engine == "atheris" else by_hypothesis
    fuzz(options.seconds, options.seed)
    return 0


class Run:
    """Plays bytes, and counts what came of them."""

    def __init__(self) -> None:
        self._plays: tuple[Callable[[bytes], Any], ...] = (
            importlib.import_module("tests.fuzz.replies").play_replies,
            importlib.import_module("tests.fuzz.requests").play_requests,
        )
        self.counts: Counter[str] = Counter()

    def play(self, data: bytes) -> object:
        """Plays them against a client or a coordinator, whichever the first byte says."""
        play = self._plays[data[0] % 2 if data else 0]
        try:
            played = play(data[1:])
        except BaseException:
            KEPT.write_bytes(data)
            print(f"repeat it by: --repeat {KEPT}", file=sys.stderr)
            raise
        name = play.__name__.removeprefix("play_")
        self.counts[f"runs of {name}"] += 1
        self.counts[f"messages of {name}"] += played.messages
        for outcome in ("malformed", "completed", "failed"):
            self.counts[f"{outcome} {name}"] += getattr(played.statistics, outcome)
        return played

    def report(self) -> None:
        """Prints what there was."""
        for name, count in self.counts.items():
            print(f"{count:>12,} {name}", flush=True)


def by_atheris(seconds: int, seed: int) -> None:
    """By coverage of the library. LibFuzzer ends the process."""
    import atheris  # noqa: PLC0415 - not everywhere

    with atheris.instrument_imports(include=["trio_infer"]):
        run = Run()
    end = time.monotonic() + seconds
    told = False

    def play(data: bytes) -> None:
        nonlocal told
        run.play(data)
        if time.monotonic() > end and not told:
            told = True
            run.report()

    corpus = tempfile.mkdtemp(prefix="fuzz-")
    for number in range(64):
        drawn = random.Random(f"{seed}/{number}").randbytes(64 * (1 + number))
        Path(corpus, str(number)).write_bytes(drawn)
    limits = {"max_total_time": seconds + 5, "max_len": MAX_BYTES, "timeout": SECONDS_OF_ONE}
    arguments = [f"-{name}={value}" for name, value in limits.items()]
    atheris.Setup(
        [sys.argv[0], *arguments, f"-seed={seed + 1}", f"-artifact_prefix={corpus}/", corpus], play
    )
    atheris.Fuzz()


def by_hypothesis(seconds: int, seed: int) -> None:
    """By chance, which shrinks what it finds."""
    from hypothesis import HealthCheck, given, settings  # noqa: PLC0415 - either this or atheris
    from hypothesis import seed as seeded  # noqa: PLC0415
    from hypothesis import strategies as st  # noqa: PLC0415

    run = Run()
    end = time.monotonic() + seconds

    @settings(
        max_examples=200, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.integers(0, 2**64), st.integers(1, MAX_BYTES), st.binary(max_size=256))
    def play(drawn: int, length: int, more: bytes) -> None:
        run.play(more + random.Random(drawn).randbytes(length))

    while time.monotonic() < end:
        seeded(seed)(play)()
        seed += 1
    run.report()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
