"""``trio-infer bench``: load for a coordinator, and the figures of what it makes of it."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any, Final

import attrs
import click

from ..background import running_behind
from ..protocol.dialects import DIALECTS
from .console import width_of
from .exits import EXIT_CODES, FAILED
from .figures import WIDTH, figures, report
from .interruption import Interruption, run_interruptible
from .load import Load, Plan
from .load_view import LoadView
from .options import check_finite
from .output import Output
from .plot import check_plot, draw
from .records import to_line
from .target import Target, paced_options

__all__ = ["bench"]

CONCURRENCY: Final = 16

MOST: Final = 10**8
"""Requests, and tokens of each: what nobody means is refused before memory runs out."""

EXAMPLES: Final = """
\b
Examples:
  trio-infer bench
  trio-infer bench --requests 200 --rate 20 --cancel-fraction 0.1 --step-time 0.01
  trio-infer bench --address tcp://localhost:5555 --concurrency 64 --json > figures.json
  trio-infer bench --requests 100 --plot figures.svg
"""


@attrs.frozen(kw_only=True)
class _Job:
    """What the command line asks for."""

    target: Target
    plan: Plan
    percentiles: tuple[float, ...]
    as_json: bool
    plot: Path | None


def _parse_percentiles(_context: object, _option: object, value: str) -> tuple[float, ...]:
    try:
        percentiles = tuple(float(part) for part in value.split(","))
    except ValueError:
        percentiles = (math.nan,)
    if not all(0 <= percent <= 100 for percent in percentiles):  # noqa: PLR2004 - percent
        msg = f"{value!r} is no list of percentages, such as 90,99"
        raise click.BadParameter(msg)
    return percentiles


@click.command(
    short_help="Load for a coordinator, and figures of it.", epilog=EXAMPLES + EXIT_CODES
)
@click.option(
    "--requests",
    type=click.IntRange(1, MOST),
    default=100,
    show_default=True,
    metavar="N",
    help="So many requests.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    callback=check_finite,
    metavar="R",
    help="So many a second on average, at random moments (a Poisson process), however many run.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"So many at a time, each as soon as one has ended.  [default: {CONCURRENCY}]",
)
@click.option(
    "--prompt-tokens",
    type=click.IntRange(1, MOST),
    default=64,
    show_default=True,
    metavar="N",
    help="The length of the prompts, which are random token ids.",
)
@click.option(
    "--output-tokens",
    type=click.IntRange(1, MOST),
    default=64,
    show_default=True,
    metavar="N",
    help="How many tokens each generates; the model's end token ends none.",
)
@click.option(
    "--cancel-fraction",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    metavar="F",
    help="So many of the requests are aborted, after some of their tokens.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Gives the same prompts, moments and aborts each time.",
)
@click.option(
    "--metric-percentiles",
    "percentiles",
    default="99",
    show_default=True,
    callback=_parse_percentiles,
    metavar="P,P…",
    help="Which percentiles of the times to tell.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON, on one line.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw a picture as well, .svg or .png. Wants trio-infer[plot].",
)
@paced_options
def bench(
    *,
    target: Target,
    percentiles: tuple[float, ...],
    as_json: bool,
    plot: Path | None,
    **options: Any,
) -> int:
    """Put load on a coordinator, and print what its requests felt of it.

    The figures are named as in vLLM's bench: the time to first token (TTFT), the time per output
    token behind it (TPOT), the inter-token latency (ITL), the end-to-end latency (E2EL), and the
    throughput. Aborted requests have no TPOT and no E2EL; their tokens count. In the dialects 0.19
    and 0.18 nothing comes before the end, so the TTFT is the E2EL there.

    Ctrl-C aborts what runs, and prints the figures so far.
    """
    plan = _make_plan(target, options)
    if plot is not None:
        check_plot(plot)
    job = _Job(target=target, plan=plan, percentiles=percentiles, as_json=as_json, plot=plot)
    return run_interruptible(_run, job)


def _make_plan(target: Target, options: dict[str, Any]) -> Plan:
    rate, concurrency = options.pop("rate"), options.pop("concurrency")
    if rate is not None and concurrency is not None:
        msg = "--rate and --concurrency exclude each other: give one of them"
        raise click.UsageError(msg)
    if options["cancel_fraction"] and not DIALECTS[target.dialect].can_abort:
        msg = f"--cancel-fraction is nothing for the dialect {target.dialect}, which has no abort"
        raise click.UsageError(msg)
    if rate is None and concurrency is None:
        concurrency = CONCURRENCY
    return Plan(rate=rate, concurrency=concurrency, **options)


async def _run(interruption: Interruption, job: _Job) -> int:
    load = Load(job.plan)
    view = LoadView(load, job.percentiles)
    output = Output()
    async with job.target.serving() as address, output.writing():
        try:
            with view.showing():
                async with (
                    running_behind(view.refresh_now_and_then),
                    interruption.told_on(view.console),
                ):
                    with interruption.cancels():
                        async with job.target.open_client(address) as client:
                            await load.run(client)
        finally:
            if load.ended is not None:
                _tell(load, job, output)
            if interruption.signal is not None:
                done = f"{load.handled} of {job.plan.requests} requests had ended"
                output.note(f"interrupted: {done}, {load.interrupted} aborted")
        if interruption.signal is None:
            await output.flush()
    return FAILED if load.failed else 0


def _tell(load: Load, job: _Job, output: Output) -> None:
    numbers = figures(load, job.percentiles)
    width = width_of(sys.stdout, WIDTH)
    output.text(to_line(numbers) if job.as_json else report(numbers, job.percentiles, width))
    if load.first_failure is not None:
        output.note(f"{load.failed} requests failed, the first like this: {load.first_failure}")
    if job.plot is not None:
        draw(load, job.plot)
