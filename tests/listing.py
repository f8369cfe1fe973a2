"""Counts, as the sessions that run for long print them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["listed"]


def listed(counts: Mapping[str, int]) -> str:
    """What there was, the most frequent first."""
    pairs = sorted(counts.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{count:,} {name}" for name, count in pairs)
