"""Warnings that a peer can cause: the log must not grow as fast as it sends."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import logging

__all__ = ["Complaints"]

ONE_BY_ONE: Final = 10
"""So many warnings of a kind are logged one by one, then the hundredth, the thousandth…"""


class Complaints:
    """Counts warnings, each kind by itself, and logs ever fewer of them.

    Args:
        logger: where to.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._counts: Counter[str] = Counter()

    def warn(self, kind: str, *arguments: object) -> None:
        """Logs a warning, or leaves it out.

        Args:
            kind: its text, with a place for each argument.
            *arguments: what fills them.
        """
        self._counts[kind] += 1
        count = self._counts[kind]
        if count <= ONE_BY_ONE:
            self._logger.warning(kind, *arguments)
        elif count == 10 ** (len(str(count)) - 1):
            self._logger.warning(f"{kind} (no. %d; few are logged)", *arguments, count)  # noqa: G004
