"""How far a batch has got, for those who watch it."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import attrs
import trio
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from .console import can_be_live, make_console, write_note
from .rate import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

__all__ = ["BatchView", "Counts"]

WORDS: Final = 66
"""What stands beside the bar takes so many columns."""

RATE_SECONDS: Final = 10.0

LIVE_SECONDS: Final = 0.125
PLAIN_SECONDS: Final = 10.0


@attrs.define
class Counts:
    """What a batch has done.

    Attributes:
        total: lines there are; None while they are not counted.
        before: lines that were done before.
        done: lines done now.
        failed: those that the engines gave up on.
        bad: those that make no sense.
        blank: those that hold nothing.
        running: those that run.
        tokens: generated ones.
    """

    total: int | None = None
    before: int = 0
    done: int = 0
    failed: int = 0
    bad: int = 0
    blank: int = 0
    running: int = 0
    tokens: int = 0

    @property
    def handled(self) -> int:
        """Lines that nothing more will be done about."""
        return self.before + self.done + self.failed + self.bad + self.blank

    def __str__(self) -> str:
        before = f" ({self.before} before)" if self.before else ""
        return f"{self.done + self.before} done{before}, {self.failed} failed, {self.bad} bad lines"


class BatchView:
    """Shows counts on standard error: a bar if that is a terminal, else a line now and then.

    Args:
        counts: what to show, which changes.
        console: where.
    """

    def __init__(self, counts: Counts, console: Console | None = None) -> None:
        self.console = console or make_console()
        self._counts = counts
        self._lines, self._tokens = Rate(RATE_SECONDS), Rate(RATE_SECONDS)
        self._ended = 0
        self.bar = Progress(
            BarColumn(bar_width=min(24, max(1, self.console.width - WORDS))),
            MofNCompleteColumn(),
            TextColumn("{task.fields[pace]}"),
            console=self.console,
            auto_refresh=False,  # the counters are the business of trio's thread
        )
        self._task = self.bar.add_task("batch", total=None, pace="")

    @contextmanager
    def showing(self) -> Iterator[None]:
        """The block in which it is shown."""
        if not can_be_live(self.console):
            yield
            return
        with self.bar:
            try:
                yield
            finally:
                self.update()

    async def refresh_now_and_then(self) -> None:
        """Shows how things stand, until cancelled."""
        is_live = can_be_live(self.console)
        while True:
            await trio.sleep(LIVE_SECONDS if is_live else PLAIN_SECONDS)
            if is_live:
                self.update()
            else:
                of = "" if self._counts.total is None else f" of {self._counts.total}"
                self.note(f"{self._counts.handled}{of} lines, {self._pace()}")

    def update(self) -> None:
        """Draws the bar anew."""
        counts = self._counts
        self.bar.update(self._task, completed=counts.handled, total=counts.total, pace=self._pace())
        self.bar.refresh()

    def note(self, line: str) -> None:
        """Writes a line, above the bar if there is one."""
        write_note(self.console, line)

    def _pace(self) -> str:
        counts = self._counts
        ended = counts.done + counts.failed
        lines, tokens = self._lines.update(ended), self._tokens.update(counts.tokens)
        parts = [f"{lines:.1f} requests/s", f"{tokens:.0f} tokens/s"]
        if counts.total is not None and lines > 0:
            left = max(0, counts.total - counts.handled) / lines
            parts.append(f"{timedelta(seconds=round(left))} left")
        return ", ".join(parts)
