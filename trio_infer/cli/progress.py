"""How far a batch has got, for those who watch it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

import attrs
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from .rate import Rate
from .view import View

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["BatchView", "Counts"]

WORDS: Final = 66
"""What stands beside the bar takes so many columns."""

RATE_SECONDS: Final = 10.0


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


class BatchView(View):
    """Shows counts: on a terminal as a bar.

    Args:
        counts: what to show, which changes.
        console: where; None: on standard error.
    """

    def __init__(self, counts: Counts, console: Console | None = None) -> None:
        super().__init__(console)
        self._counts = counts
        self._lines, self._tokens = Rate(RATE_SECONDS), Rate(RATE_SECONDS)
        self._bar = Progress(
            BarColumn(bar_width=min(24, max(1, self.console.width - WORDS))),
            MofNCompleteColumn(),
            TextColumn("{task.fields[pace]}"),
            console=self.console,
            auto_refresh=False,
        )
        self._task = self._bar.add_task("batch", total=None, pace="")

    def render(self) -> RenderableType:
        """The bar as it is now; where there is no room for it, the words alone, in some lines."""
        if self.console.width <= WORDS:
            return Text(self.summary())
        counts = self._counts
        self._bar.update(
            self._task, completed=counts.handled, total=counts.total, pace=self._pace()
        )
        return self._bar.get_renderable()

    def summary(self) -> str:
        """How far it is, and how fast it goes."""
        of = "" if self._counts.total is None else f" of {self._counts.total}"
        return f"{self._counts.handled}{of} lines, {self._pace()}"

    def _pace(self) -> str:
        counts = self._counts
        ended = counts.done + counts.failed
        lines, tokens = self._lines.update(ended), self._tokens.update(counts.tokens)
        parts = [f"{lines:.1f} requests/s", f"{tokens:.0f} tokens/s"]
        if counts.total is not None and lines > 0:
            left = max(0, counts.total - counts.handled) / lines
            parts.append(f"{timedelta(seconds=round(left))} left")
        return ", ".join(parts)
