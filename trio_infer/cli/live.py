"""Where a live view can be shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["can_be_live"]


def can_be_live(console: Console) -> bool:
    """Whether it is a terminal, and one that can move its cursor; others get lines."""
    return console.is_terminal and not console.is_dumb_terminal
