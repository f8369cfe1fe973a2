"""``trio-infer batch``: a file of prompts, and a file of what becomes of them."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import attrs
import click
import trio

from ..background import running_behind
from ..errors import ConnectionLost, UnsupportedByDialect
from ..models import SamplingParams
from .exits import EXIT_CODES, FAILED
from .interruption import Interruption, run_interruptible
from .progress import BatchView, Counts
from .records import completion_record
from .results import Done, Results
from .rows import LineReader, Row, count_lines, parse_row
from .sampling import sampling_options
from .target import Target, embedded_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..client import InferenceClient
    from ..groups import RequestGroup
    from ..groups.outcomes import Outcomes
    from ..models import Completion, Outcome

__all__ = ["Batch", "Job", "batch"]

CONCURRENCY: Final = 32

GOING_ON: Final = "the same command goes on from here"

EXAMPLES: Final = """
\b
Examples:
  trio-infer batch prompts.jsonl -o results.jsonl
  trio-infer batch prompts.jsonl -o results.jsonl --concurrency 256 -n 512 --temperature 0.7
  trio-infer batch --address tcp://localhost:5555 - -o results.jsonl < prompts.jsonl
"""


@attrs.frozen(kw_only=True)
class Job:
    """What the command line asks for."""

    target: Target
    sampling_params: SamplingParams
    name: str
    input: int
    results: Results
    concurrency: int
    fail_fast: bool


@click.command(short_help="Results for a file of prompts.", epilog=EXAMPLES + EXIT_CODES)
@click.argument("source", metavar="INPUT", type=click.Path())
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="Write the results there, a line of JSON each.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=CONCURRENCY,
    show_default=True,
    metavar="N",
    help="So many requests at a time.",
)
@click.option("--fail-fast", is_flag=True, help="End at the first line that is bad or fails.")
@sampling_options
@embedded_options
def batch(*, source: str, output: Path, **options: Any) -> int:
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
        job = Job(name=source, input=fd, results=results, **options)
        return run_interruptible(_run, job)


@contextmanager
def _open_input(source: str, output: Path) -> Iterator[int]:
    if source == "-":
        if sys.stdin is None:
            msg = "there is no standard input to read"
            raise click.UsageError(msg)
        _refuse_same(sys.stdin.fileno(), output)
        yield sys.stdin.fileno()
        return
    try:
        fd = os.open(source, os.O_RDONLY)
    except OSError as error:
        raise click.FileError(source, error.strerror) from None
    try:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            msg = "it is a directory"
            raise click.FileError(source, msg)
        _refuse_same(fd, output)
        yield fd
    finally:
        os.close(fd)


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
    except Exception:
        if counts.handled and not job.results.removed:
            view.note(f"{counts}; {GOING_ON}")
        raise
    if interruption.signal is None:
        view.note(str(counts))
    else:
        view.note(f"interrupted: {counts}, {counts.running} aborted; {GOING_ON}")
    return FAILED if counts.failed or counts.bad else 0


class Batch:
    """One run over the input."""

    def __init__(self, job: Job, counts: Counts, view: BatchView) -> None:
        self._job = job
        self._counts = counts
        self._view = view
        self._room = trio.Semaphore(job.concurrency)
        self._done = Done()

    async def run(self) -> None:
        """Reads what is done, and does the rest."""
        job = self._job
        self._done = await trio.to_thread.run_sync(job.results.read, abandon_on_cancel=True)
        if job.results.cut():
            self._view.note("the output's last line was torn: it is done again")
        if self._done.count:
            self._view.note(f"the output has {self._done.count} results already")
        async with (
            job.target.serving() as address,
            job.target.open_client(address) as client,
            running_behind(self._count_lines),
        ):
            client.stream("x", job.sampling_params)  # what the dialect lacks is told once
            await self._do_all(client)
        if client.statistics().undelivered:
            self._view.note(f"{address} owed last replies still, and may crash when it sends them")

    async def _count_lines(self) -> None:
        if stat.S_ISREG(os.fstat(self._job.input).st_mode):
            self._counts.total = await trio.to_thread.run_sync(
                count_lines, self._job.input, abandon_on_cancel=True
            )
        else:
            await trio.lowlevel.checkpoint()

    async def _do_all(self, client: InferenceClient[Completion]) -> None:
        async with client.open_group() as group:
            try:
                async with running_behind(partial(self._submit_all, group)):
                    async for outcome in group.outcomes:
                        self._take(outcome)
            except BaseException:
                self._take_finished(group)
                raise

    async def _submit_all(self, group: RequestGroup[Completion]) -> None:
        with group.keep_open():
            async for number, line in LineReader(self._job.input):
                try:
                    row = parse_row(number, line, self._job.sampling_params)
                    if row is None:
                        self._counts.blank += 1
                    elif self._done.meet(row):
                        self._counts.before += 1
                    else:
                        await self._submit(group, row)
                except (TypeError, ValueError, UnsupportedByDialect) as error:
                    self._counts.bad += 1
                    self._report(number, str(error))

    async def _submit(self, group: RequestGroup[Completion], row: Row) -> None:
        await self._room.acquire()
        submitted = False
        try:
            with trio.move_on_after(self._job.target.connect_timeout):
                await group.submit(row.request)
                submitted = True
        finally:
            if not submitted:
                self._room.release()
        if not submitted:
            msg = "the connection to the coordinator was lost, and there is no other"
            raise ConnectionLost(msg)
        self._counts.running += 1

    def _take(self, outcome: Outcome[Completion]) -> None:
        """Writes a result, or reports what happened instead."""
        row: Row = outcome.request.tag
        self._room.release()
        if isinstance(outcome.error, ConnectionLost):
            raise outcome.error
        self._counts.running -= 1
        if outcome.completion is None:
            self._counts.failed += 1
            self._report(row.line, str(outcome.error))
        else:
            self._job.results.write(row, completion_record(outcome.completion))
            self._counts.done += 1
            self._counts.tokens += outcome.completion.generated_length

    def _take_finished(self, group: RequestGroup[Completion]) -> None:
        """Keeps what had finished already when something ended the batch."""
        outcomes = cast("Outcomes[Completion]", group.outcomes)
        while True:
            try:
                outcome = outcomes.receive_nowait()
            except (trio.WouldBlock, trio.EndOfChannel, trio.ClosedResourceError):
                return
            if outcome.completion is not None:
                self._take(outcome)

    def _report(self, number: int, what: str) -> None:
        line = f"{self._job.name}, line {number}: {what}"
        if self._job.fail_fast:
            raise click.ClickException(line)
        self._view.note(line)
