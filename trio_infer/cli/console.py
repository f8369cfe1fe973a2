"""What people look at: rich on standard error, and rich as plain text."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING, Final, TextIO

from rich.console import Console
from rich.measure import Measurement
from rich.text import Text

from .output import visible

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = [
    "can_be_live",
    "make_console",
    "natural_width",
    "plain_text",
    "width_of",
    "write_note",
]

BOUNDLESS: Final = 2**20
"""More columns than anything has."""


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


def width_of(stream: TextIO | None, otherwise: int) -> int:
    """How many columns a terminal has; of what is none the other number."""
    if stream is None or not stream.isatty():
        return otherwise
    return Console(file=stream).width


def natural_width(shown: RenderableType) -> int:
    """How many columns it takes to show it with nothing cut off."""
    console = Console(file=StringIO(), width=BOUNDLESS)
    return Measurement.get(console, console.options, shown).maximum


def plain_text(*shown: RenderableType) -> str:
    """What is shown, without colours, without blanks at the ends of lines, and nothing cut off."""
    written = StringIO()
    width = max(1, *map(natural_width, shown))
    Console(file=written, width=width, color_system=None).print(*shown, sep="\n")
    return "".join(line.rstrip() + "\n" for line in written.getvalue().splitlines())
