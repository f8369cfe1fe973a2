"""Something that changes, for those who watch it on standard error."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio
from rich.live import Live

from .console import can_be_live, make_console, write_note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, RenderableType

__all__ = ["View"]


class View:
    """Shows it: live if standard error is a terminal, else by a line now and then.

    Args:
        console: where; None: on standard error.
    """

    live_seconds: float = 0.125
    plain_seconds: float = 10.0
    stays: bool = True
    """Whether what was shown live last stays to be read at the end."""

    def __init__(self, console: Console | None = None) -> None:
        self.console: Console = console or make_console()
        self._live: Live | None = None
        self._last = ""

    def render(self) -> RenderableType:
        """What a terminal shows, as it is now."""
        raise NotImplementedError

    def summary(self) -> str:
        """The same in one line."""
        raise NotImplementedError

    @contextmanager
    def showing(self) -> Iterator[None]:
        """The block in which it is shown."""
        if not can_be_live(self.console):
            yield
            return
        # Without a thread of rich's own: what is shown is this thread's business.
        with Live(
            console=self.console,
            auto_refresh=False,
            transient=not self.stays,
            get_renderable=self.render,
        ) as self._live:
            yield

    async def refresh_now_and_then(self) -> None:
        """Shows how things stand, until cancelled. To be used within `showing`."""
        while True:
            await trio.sleep(self.plain_seconds if self._live is None else self.live_seconds)
            self.refresh()

    def refresh(self) -> None:
        """Shows how things stand now; of lines another than the last alone."""
        if self._live is not None:
            self._live.refresh()
        elif (line := self.summary()) != self._last:
            self._last = line
            self.note(line)

    def note(self, line: str) -> None:
        """Writes a line, above what is live, if anything is."""
        write_note(self.console, line)
