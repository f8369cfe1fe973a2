"""The long rehearsal: ``nox -s chaos``.

Half of it is in memory, under a clock that jumps, and half over real sockets. It ends at the first
thing that does not hold, and names the seed, with which ``--once`` repeats it.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import time

from tests.chaos.rehearsal import Report
from tests.chaos.running import NETWORKS, rehearse_once
from tests.listing import listed


def main() -> int:
    """Rehearses for as long as it is told, and prints what that took."""
    parser = argparse.ArgumentParser(description="Rehearse chaos.")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long, in all")
    parser.add_argument("--seed", type=int, default=0, help="the first seed; others count up")
    parser.add_argument("--once", choices=NETWORKS, help="rehearse that one seed, there, and log")
    options = parser.parse_args()
    if options.once:
        logging.basicConfig(level=logging.DEBUG)
        print(rehearse_once(options.once, options.seed))
        return 0
    logging.disable()
    for network in NETWORKS:
        rehearse_for(options.seconds / len(NETWORKS), network, options.seed)
    return 0


def rehearse_for(seconds: float, network: str, first_seed: int) -> None:
    """Rehearses one seed after another, and prints what that took."""
    total, end = Report(), time.monotonic() + seconds
    for runs in itertools.count():
        if time.monotonic() > end:
            break
        try:
            report = rehearse_once(network, first_seed + runs)
        except BaseException:
            print(f"repeat it by: --once {network} --seed {first_seed + runs}", file=sys.stderr)
            raise
        total.outcomes.update(report.outcomes)
        total.faults.update(report.faults)
    print(f"{network}: {runs:,} rehearsals held")
    print(f"  {total.outcomes.total():,} requests: {listed(total.outcomes)}")
    print(f"  {total.faults.total():,} faults: {listed(total.faults)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
