"""What a coordinator does, for those who watch it."""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from .rate import Rate
from .view import View

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, RenderableType

    from ..embedded import CoordinatorStatistics, EmbeddedCoordinator, RunningRequest

__all__ = ["ActivityView"]

SHOWN_REQUESTS: Final = 8
"""So many running requests are listed; of more, how many more."""

FAULTS: Final = (
    *("dropped", "dropped_acks", "duplicated", "corrupted", "delayed", "reordered"),
    "failed_on_purpose",
)


class ActivityView(View):
    """Shows a coordinator: the counters, and on a terminal the requests that run.

    Args:
        coordinator: what to show.
        console: where; None: on standard error.
    """

    plain_seconds: float = 1.0

    def __init__(self, coordinator: EmbeddedCoordinator, console: Console | None = None) -> None:
        super().__init__(console)
        self._coordinator = coordinator
        self._rate = Rate()
        self._last = self.summary()

    @contextmanager
    def showing(self) -> Iterator[None]:
        """The block in which it is shown, and above it what the coordinator logs."""
        handler = _NoteHandler(self)
        logger = logging.getLogger("trio_infer")
        logger.addHandler(handler)
        try:
            with super().showing():
                try:
                    yield
                finally:
                    self.refresh()  # how things stood at the end stays to be read
        finally:
            logger.removeHandler(handler)

    def summary(self) -> str:
        """The counters."""
        statistics = self._coordinator.statistics()
        return _summary(statistics, self._rate.update(statistics.tokens))

    def render(self) -> RenderableType:
        """The counters, and a line for each of some requests that run."""
        running = self._coordinator.running
        head = Text(self.summary(), style="bold")
        if not running:
            return head
        table = Table(box=None, pad_edge=False, header_style="dim")
        for column in ("request", "engine", "prompt", "generated"):
            table.add_column(column, justify="right")
        for request in running[:SHOWN_REQUESTS]:
            table.add_row(*_row(request))
        more = len(running) - SHOWN_REQUESTS
        return Group(head, table, *([Text(f"and {more} more", style="dim")] if more > 0 else []))


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


class _NoteHandler(logging.Handler):
    """Notes in a view what the coordinator logs."""

    def __init__(self, view: View) -> None:
        super().__init__(logging.WARNING)
        self._view = view

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line."""
        with suppress(OSError):  # nobody reads it any more
            self._view.note(record.getMessage())
