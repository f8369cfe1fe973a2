"""What people look at: rich on standard error, and rich as plain text."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from .output import visible

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["can_be_live", "make_console", "plain_text", "write_note"]


def make_console() -> Console:
    """Standard error."""
    return Console(stderr=True, highlight=False)


def can_be_live(console: Console) -> bool:
    """Whether it is a terminal, and one that can move its cursor; others get lines.

    To rich a pipe is a terminal as well where ``FORCE_COLOR`` says so: that gets colours alone.
    """
    return console.is_interactive and console.file.isatty()


def write_note(console: Console, line: str, style: str = "bold") -> None:
    """Writes a line of our own, and one only, whatever it quotes; above live ones, if any."""
    text = Text.assemble(("trio-infer:", style), " ", visible(" ".join(line.split())))
    console.print(text, soft_wrap=True)


def plain_text(*shown: RenderableType, width: int) -> str:
    """What is shown, without colours, and without blanks at the ends of lines."""
    written = StringIO()
    Console(file=written, width=width, color_system=None).print(*shown, sep="\n")
    return "".join(line.rstrip() + "\n" for line in written.getvalue().splitlines())
