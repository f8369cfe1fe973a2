"""What a coordinator does, for those who watch it."""

from __future__ import annotations

import logging
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Final, Protocol

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .console import can_be_live, make_console, write_note
from .rate import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, RenderableType

    from ..embedded import CoordinatorStatistics, EmbeddedCoordinator, RunningRequest

__all__ = ["View", "make_view"]

SHOWN_REQUESTS: Final = 8
"""So many running requests are listed; of more, how many more."""

FAULTS: Final = (
    *("dropped", "dropped_acks", "duplicated", "corrupted", "delayed", "reordered"),
    "failed_on_purpose",
)


class View(Protocol):
    """Something that shows what a coordinator does."""

    interval: float
    """Seconds between two refreshments."""

    def refresh(self) -> None:
        """Shows how things stand now."""


@contextmanager
def make_view(coordinator: EmbeddedCoordinator) -> Iterator[View]:
    """Shows a coordinator on standard error: live if that is a terminal, else line by line."""
    console = make_console()
    make = LiveView if can_be_live(console) else PlainView
    view = make(coordinator, console)
    handler = _ConsoleHandler(console)
    logger = logging.getLogger("trio_infer")
    logger.addHandler(handler)
    try:
        with view.live if isinstance(view, LiveView) else nullcontext():
            try:
                yield view
            finally:
                view.refresh()  # how things stood at the end stays to be read
    finally:
        logger.removeHandler(handler)


class LiveView:
    """A few lines that change: the counters, and the requests that run."""

    interval = 0.125

    def __init__(self, coordinator: EmbeddedCoordinator, console: Console) -> None:
        self._coordinator = coordinator
        self._rate = Rate()
        # Without a thread of rich's own: the coordinator is this thread's business.
        self.live = Live(console=console, auto_refresh=False, get_renderable=self.render)

    def refresh(self) -> None:
        """Draws the lines anew."""
        self.live.refresh()

    def render(self) -> RenderableType:
        """The lines as they are now."""
        statistics = self._coordinator.statistics()
        running = self._coordinator.running
        head = Text(_summary(statistics, self._rate.update(statistics.tokens)), style="bold")
        if not running:
            return head
        table = Table(box=None, pad_edge=False, header_style="dim")
        for column in ("request", "engine", "prompt", "generated"):
            table.add_column(column, justify="right")
        for request in running[:SHOWN_REQUESTS]:
            table.add_row(*_row(request))
        more = len(running) - SHOWN_REQUESTS
        return Group(head, table, *([Text(f"and {more} more", style="dim")] if more > 0 else []))


class PlainView:
    """A line whenever the counters have changed, at most one a second."""

    interval = 1.0

    def __init__(self, coordinator: EmbeddedCoordinator, console: Console) -> None:
        self._coordinator = coordinator
        self._console = console
        self._rate = Rate()
        self._last = _summary(coordinator.statistics(), 0.0)

    def refresh(self) -> None:
        """Writes a line, if it would be another than the last."""
        statistics = self._coordinator.statistics()
        line = _summary(statistics, self._rate.update(statistics.tokens))
        if line != self._last:
            self._last = line
            write_note(self._console, line)


def _summary(statistics: CoordinatorStatistics, rate: float) -> str:
    return (
        f"{statistics.running} running, {statistics.waiting} waiting, "
        f"{statistics.completed} completed ({statistics.aborts} aborted), "
        f"{statistics.failed} failed, {rate:.0f} tokens/s{_faults(statistics)}"
    )


def _faults(statistics: CoordinatorStatistics) -> str:
    """What was done to messages on purpose, if anything was."""
    told = [
        f"{count} {name.replace('_', ' ')}"
        for name in FAULTS
        if (count := getattr(statistics, name))
    ]
    return "".join(f", {each}" for each in told)


def _row(request: RunningRequest) -> Iterator[str]:
    numbers = (
        request.request_id,
        request.engine,
        request.prompt_length,
        request.generated_length,
    )
    return map(str, numbers)


class _ConsoleHandler(logging.Handler):
    """Writes what the coordinator logs above the live lines."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line."""
        with suppress(OSError):  # nobody reads it any more
            write_note(self._console, record.getMessage())
