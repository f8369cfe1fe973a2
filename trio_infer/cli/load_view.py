"""What a load does, for those who watch it."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

import trio
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .console import can_be_live, make_console, write_note
from .figures import figures, metric_table
from .rate import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, RenderableType

    from .load import Load

__all__ = ["LoadView"]

LIVE_SECONDS: Final = 0.25
PLAIN_SECONDS: Final = 5.0
BAR_WIDTH: Final = 40

RECENT: Final = 2000
"""The live view tells of so many times of each kind: to sort all of them would take too long."""


class LoadView:
    """Shows a load on standard error: live if that is a terminal, else a line now and then.

    Args:
        load: what to show, which changes.
        percentiles: which of them.
        console: where.
    """

    def __init__(
        self, load: Load, percentiles: Sequence[float], console: Console | None = None
    ) -> None:
        self.console = console or make_console()
        self._load = load
        self._percentiles = percentiles
        self._rate = Rate()
        self._live = Live(
            console=self.console, auto_refresh=False, transient=True, get_renderable=self.render
        )

    @contextmanager
    def showing(self) -> Iterator[None]:
        """The block in which it is shown; of a live view nothing is left behind it."""
        with self._live if can_be_live(self.console) else nullcontext():
            yield

    async def refresh_now_and_then(self) -> None:
        """Shows how things stand, until cancelled."""
        is_live = can_be_live(self.console)
        while True:
            await trio.sleep(LIVE_SECONDS if is_live else PLAIN_SECONDS)
            if is_live:
                self._live.refresh()
            else:
                write_note(self.console, self._summary())

    def render(self) -> RenderableType:
        """The lines as they are now."""
        load = self._load
        ended = load.completed + load.failed + load.aborted
        head = Table.grid(padding=(0, 1))
        total = load.plan.requests
        head.add_row(
            "bench", ProgressBar(total, ended, width=BAR_WIDTH), Text(f"{ended}/{total}", "green")
        )
        numbers = figures(load, self._percentiles, recent=RECENT)
        times = metric_table(numbers, self._percentiles)
        return Group(head, Text(self._summary(), "bold"), times)

    def _summary(self) -> str:
        load = self._load
        return (
            f"{load.running} running, {load.completed} completed, {load.aborted} aborted, "
            f"{load.failed} failed, {self._rate.update(load.output_tokens):.0f} tokens/s"
        )
