"""Writes what was measured into the documentation, between two comments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "numbers.md"


def update(name: str, lines: Iterable[str]) -> None:
    """Puts the lines where the page says ``<!-- name -->``, up to ``<!-- end of name -->``."""
    before, begin, rest = PAGE.read_text().partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->\n")
    if not end:
        msg = f"{PAGE} has no place for the {name}"
        raise ValueError(msg)
    text = "\n".join(lines).strip("\n")
    PAGE.write_text(f"{before}{begin}\n{text}\n\n{end}{after}")
