"""A batch at work: its lines go out, so many at a time, and what comes back is written."""

from __future__ import annotations

import math
import os
import stat
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, cast

import attrs
import click
import trio

from ..background import running_behind
from ..errors import ConnectionLost, UnsupportedByDialect
from ..models import SamplingParams
from .records import completion_record
from .results import Results
from .rows import LineReader, Row, count_lines, parse_row
from .target import Target

if TYPE_CHECKING:
    from ..client import InferenceClient
    from ..groups import RequestGroup
    from ..groups.outcomes import Outcomes
    from ..models import Completion, Outcome
    from .done import Done
    from .progress import BatchView, Counts

__all__ = ["Batch", "Job"]


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
    timeout: float = math.inf


class Batch:
    """One run over the input."""

    def __init__(self, job: Job, counts: Counts, view: BatchView) -> None:
        self._job = job
        self._counts = counts
        self._view = view
        self._room = trio.Semaphore(job.concurrency)
        self._due: dict[int, tuple[float, Row]] = {}  # those that run, in order

    async def run(self) -> None:
        """Finds out what is done, and does the rest."""
        take_up = partial(self._job.results.take_up, trio.from_thread.check_cancelled)
        with closing(await trio.to_thread.run_sync(take_up)) as done:
            if done.torn:
                self._view.note("the output's last line was torn: it is done again")
            if done.count:
                self._view.note(f"the output has {done.count} results already")
            await self._do_rest(done)

    async def _do_rest(self, done: Done) -> None:
        job = self._job
        async with (
            job.target.serving() as address,
            job.target.asking(address, self._view.note) as client,
            running_behind(self._count_lines),
        ):
            client.stream("x", job.sampling_params)  # what the dialect lacks is told once
            await self._ask_all(client, done)

    async def _count_lines(self) -> None:
        if stat.S_ISREG(os.fstat(self._job.input).st_mode):
            self._counts.total = await trio.to_thread.run_sync(
                count_lines, self._job.input, abandon_on_cancel=True
            )
        else:
            await trio.lowlevel.checkpoint()

    async def _ask_all(self, client: InferenceClient[Completion], done: Done) -> None:
        async with client.open_group() as group:
            try:
                async with running_behind(
                    partial(self._submit_all, group, done), partial(self._end_late_ones, group)
                ):
                    async for outcome in group.outcomes:
                        self._take(outcome)
            except BaseException:
                self._take_finished(group)
                raise

    async def _submit_all(self, group: RequestGroup[Completion], done: Done) -> None:
        with group.keep_open():
            async for number, line in LineReader(self._job.input):
                try:
                    row = parse_row(number, line, self._job.sampling_params)
                    if row is None:
                        self._counts.blank += 1
                    elif done.meet(row):
                        self._counts.before += 1
                    else:
                        await self._submit(group, row)
                except (TypeError, ValueError, UnsupportedByDialect) as error:
                    self._counts.bad += 1
                    self._report(number, str(error))

    async def _submit(self, group: RequestGroup[Completion], row: Row) -> None:
        await self._room.acquire()
        index = None
        try:
            with trio.move_on_after(self._job.target.connect_timeout):
                index = await group.submit(row.request)
        finally:
            if index is None:
                self._room.release()
        if index is None:
            msg = "the connection to the coordinator was lost, and there is no other"
            raise ConnectionLost(msg)
        self._due[index] = (trio.current_time() + self._job.timeout, row)
        self._counts.running += 1

    async def _end_late_ones(self, group: RequestGroup[Completion]) -> None:
        """Ends requests that have taken too long, until cancelled."""
        timeout = self._job.timeout
        while True:
            first = next(iter(self._due), None)
            if first is None:  # nor will any be due before this
                await trio.sleep(timeout)
                continue
            due, row = self._due[first]
            await trio.sleep_until(due)
            if self._due.pop(first, None) is not None:
                group.cancel(first)
                self._room.release()
                self._counts.running -= 1
                self._fail(row, f"it had no result within {timeout:g} s")

    def _take(self, outcome: Outcome[Completion]) -> None:
        """Writes a result, or reports what happened instead."""
        row: Row = outcome.request.tag
        self._due.pop(outcome.index, None)
        self._room.release()
        if isinstance(outcome.error, ConnectionLost):
            raise outcome.error
        self._counts.running -= 1
        if outcome.completion is None:
            self._fail(row, str(outcome.error))
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

    def _fail(self, row: Row, why: str) -> None:
        self._counts.failed += 1
        self._report(row.line, why)

    def _report(self, number: int, what: str) -> None:
        line = f"{self._job.name}, line {number}: {what}"
        if self._job.fail_fast:
            raise click.ClickException(line)
        self._view.note(line)
