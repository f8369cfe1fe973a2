"""``trio-infer ping``: whether a coordinator answers, and how soon."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Final

import attrs
import click
import trio

from .exits import EXIT_CODES
from .interruption import Interruption, run_interruptible
from .options import check_finite
from .output import Output
from .records import to_line
from .target import Target, target_options

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ping"]

EXAMPLES: Final = """
\b
Examples:
  trio-infer ping --address tcp://localhost:5555
  trio-infer ping --count 5 --interval 0.2
"""


@attrs.frozen(kw_only=True)
class _Job:
    """What the command line asks for."""

    target: Target
    count: int
    interval: float
    as_json: bool


@click.command(
    short_help="Whether a coordinator answers, and how soon.", epilog=EXAMPLES + EXIT_CODES
)
@click.option(
    "--count",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Connect so many times.",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0),
    callback=check_finite,
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Wait so long in between.",
)
@click.option("--json", "as_json", is_flag=True, help="Print an object of JSON for each.")
@target_options
def ping(**options: Any) -> int:
    """Connect to a coordinator, shake hands, and print how long that took.

    Each time is that of a new connection. A coordinator that does not answer within
    --connect-timeout ends it with the exit code 1. Engines are not asked: that one answers does not
    say that it has any.
    """
    return run_interruptible(_run, _Job(**options))


async def _run(interruption: Interruption, job: _Job) -> None:
    output = Output()
    taken: list[float] = []
    async with job.target.serving() as address, output.writing():
        with interruption.cancels():
            for number in range(job.count):
                await trio.sleep(job.interval if number else 0)
                began = trio.current_time()
                async with job.target.open_client(address):
                    taken.append(trio.current_time() - began)
                _tell(job, address, taken[-1], output)
        if len(taken) > 1 and not job.as_json:
            _sum_up(taken, output)


def _tell(job: _Job, address: str, seconds: float, output: Output) -> None:
    if job.as_json:
        output.text(to_line({"address": address, "handshake_ms": seconds * 1000}))
    else:
        output.text(f"{address} shook hands in {seconds * 1000:.2f} ms\n")


def _sum_up(taken: Sequence[float], output: Output) -> None:
    least, mean, most = (1000 * each for each in (min(taken), statistics.fmean(taken), max(taken)))
    output.text(
        f"{len(taken)} times: {least:.2f} ms at least, {mean:.2f} mean, {most:.2f} at most\n"
    )
