"""What a load does, for those who watch it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .figures import figures, metric_table
from .rate import Rate
from .view import View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

    from .load import Load

__all__ = ["LoadView"]

BAR_WIDTH: Final = 40
WORDS: Final = 26
"""What stands beside the bar takes so many columns at most."""

RECENT: Final = 2000
"""The live view tells of so many times of each kind: to sort all of them would take too long."""


class LoadView(View):
    """Shows a load; of what is live nothing is left behind, since the figures are the same.

    Args:
        load: what to show, which changes.
        percentiles: which of them.
        console: where; None: on standard error.
    """

    live_seconds: float = 0.25
    plain_seconds: float = 5.0
    stays = False

    def __init__(
        self, load: Load, percentiles: Sequence[float], console: Console | None = None
    ) -> None:
        super().__init__(console)
        self._load = load
        self._percentiles = percentiles
        self._rate = Rate()

    def render(self) -> RenderableType:
        """The lines as they are now."""
        load = self._load
        head = Table.grid(padding=(0, 1))
        total = load.plan.requests
        head.add_row(
            "bench",
            ProgressBar(
                total, load.handled, width=max(1, min(BAR_WIDTH, self.console.width - WORDS))
            ),
            Text(f"{load.handled}/{total}", "green"),
        )
        numbers = figures(load, self._percentiles, recent=RECENT)
        times = metric_table(numbers, self._percentiles, self.console.width)
        return Group(head, Text(self.summary(), "bold"), times)

    def summary(self) -> str:
        """The counters."""
        load = self._load
        return (
            f"{load.running} running, {load.completed} completed, {load.aborted} aborted, "
            f"{load.failed} failed, {self._rate.update(load.output_tokens):.0f} tokens/s"
        )
