"""``trio-infer batch``: a file of prompts, and a file of what becomes of them."""

from __future__ import annotations

import math
import os
import sys
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ..background import running_behind
from .exits import EXIT_CODES, FAILED, exit_code_for
from .interruption import Interruption, run_interruptible
from .options import check_finite
from .progress import BatchView, Counts
from .results import Results
from .sampling import sampling_options
from .target import embedded_options
from .work import Batch, Job

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["batch"]

CONCURRENCY: Final = 32

GOING_ON: Final = "the same command goes on from here"

EXAMPLES: Final = """
\b
Examples:
  trio-infer batch prompts.jsonl -o results.jsonl
  trio-infer batch prompts.jsonl -o results.jsonl --concurrency 256 -n 512 --temperature 0.7
  trio-infer batch --address tcp://localhost:5555 - -o results.jsonl < prompts.jsonl
"""


def _check_output(_context: object, _option: object, value: str) -> Path:
    if value == "-":
        msg = "results go to a file, which the next run goes by, and not to standard output"
        raise click.BadParameter(msg)
    return Path(value)


@click.command(short_help="Results for a file of prompts.", epilog=EXAMPLES + EXIT_CODES)
@click.argument(
    "source", metavar="INPUT", type=click.Path(exists=True, dir_okay=False, allow_dash=True)
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(),
    callback=_check_output,
    help="Write the results to this file, a line of JSON each. No pipe and no -: it is read, too.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=CONCURRENCY,
    show_default=True,
    metavar="N",
    help="So many requests at a time.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    callback=check_finite,
    metavar="SECONDS",
    help="Abort a request that has no result after this time; it has failed.  [default: never]",
)
@click.option("--fail-fast", is_flag=True, help="End at the first line that is bad or fails.")
@sampling_options
@embedded_options
def batch(*, source: str, output: Path, timeout: float | None, **options: Any) -> int:
    """Generate for each line of INPUT, and write the results to a file as they come.

    INPUT, or standard input where it is -, has an object of JSON on each line: its "prompt" is
    text or a list of token ids, its "id", if there is one, comes back with the result, and its
    "sampling_params" override the options given here. What else it holds is ignored.

    A result is a line of JSON: the line's number, its id, and the completion. Results stand in the
    order in which they came. A line that makes no sense, or that the engines give up on, is
    reported and has no result; then the exit code is 1.

    Started again with the same output, it goes on where it stopped: lines whose id, or number if
    they have none, has a result are left out. Ctrl-C aborts what runs, and keeps what is done.
    """
    with _open_input(source, output) as fd, closing(Results(output)) as results:
        late = math.inf if timeout is None else timeout
        job = Job(name=source, input=fd, results=results, timeout=late, **options)
        return run_interruptible(_run, job)


@contextmanager
def _open_input(source: str, output: Path) -> Iterator[int]:
    if source == "-":
        _refuse_same(sys.stdin.fileno(), output)
        yield sys.stdin.fileno()
        return
    with Path(source).open("rb") as file:
        _refuse_same(file.fileno(), output)
        yield file.fileno()


def _refuse_same(fd: int, output: Path) -> None:
    if output.exists() and os.path.samestat(os.fstat(fd), output.stat()):
        msg = "INPUT and --output are the same file"
        raise click.UsageError(msg)


async def _run(interruption: Interruption, job: Job) -> int:
    counts = Counts()
    view = BatchView(counts)
    try:
        with view.showing():
            async with (
                running_behind(view.refresh_now_and_then),
                interruption.told_on(view.console),
            ):
                with interruption.cancels():
                    await Batch(job, counts, view).run()
    except Exception as error:  # noqa: BLE001 - is told before what was done
        code = exit_code_for(error)
        if counts.handled and not job.results.removed:
            view.note(f"ended early: {counts}; {GOING_ON}")
        return code  # noqa: ASYNC910 - what failed has waited, or was refused
    if interruption.signal is None:
        view.note(str(counts))
    else:
        view.note(f"interrupted: {counts}, {counts.running} aborted; {GOING_ON}")
    return FAILED if counts.failed or counts.bad else 0
