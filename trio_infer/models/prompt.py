"""Prompts as callers have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

__all__ = ["Prompt", "SupportsToList"]


class SupportsToList(Protocol):
    """An array of token ids: NumPy's, torch's, the standard library's."""

    def tolist(self) -> object:
        """The items as Python objects."""
        ...  # pragma: no cover


Prompt: TypeAlias = str | Sequence[int] | SupportsToList
"""Text, or token ids as a sequence of ints or a one-dimensional array that has ``tolist``."""
