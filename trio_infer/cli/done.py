"""Which lines of a batch are done, kept where memory does not grow with their number.

That is a temporary database, whose file has no name: whatever ends the program, nothing of it is
left behind.
"""

from __future__ import annotations

import json
import sqlite3
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from .rows import Row

__all__ = ["Done"]

_TABLES: Final = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA temp_store = FILE;
PRAGMA cache_size = -2048;
CREATE TABLE lines (number INTEGER PRIMARY KEY);
CREATE TABLE ids (own BLOB PRIMARY KEY, met INTEGER) WITHOUT ROWID;
BEGIN;
"""
"""The cache is counted in KiB. An id is met once a line of the input has it."""


class Done:
    """Lines by their numbers, and those that have an id by a fingerprint of it. To be closed.

    It may be made in one thread and used in another.

    Attributes:
        count: how many results were found.
        torn: whether one more was, which is torn.
    """

    def __init__(self) -> None:
        self.count: int = 0
        self.torn = False
        self._base = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._base.executescript(_TABLES)

    def close(self) -> None:
        """Gives up its file."""
        self._base.close()

    def note(self, line: int, own_id: object) -> None:
        """Takes a result that was found.

        Raises:
            click.ClickException: there is no room for it on the disk.
        """
        self.count += 1
        if own_id is None:
            self._ask("INSERT OR IGNORE INTO lines VALUES (?)", line)
        else:
            self._ask("INSERT OR IGNORE INTO ids VALUES (?, 0)", _fingerprint(own_id))

    def meet(self, row: Row) -> bool:
        """Whether a line is done, now that it has been read.

        Raises:
            ValueError: another line had its id.
            click.ClickException: there is no room for it on the disk.
        """
        if row.id is None:
            return self._ask("SELECT 1 FROM lines WHERE number = ?", row.line) is not None
        own = _fingerprint(row.id)
        found = self._ask("SELECT met FROM ids WHERE own = ?", own)
        if found == (1,):
            msg = f"its id {row.id!r:.80} is that of a line before it"
            raise ValueError(msg)
        self._ask("INSERT OR REPLACE INTO ids VALUES (?, 1)", own)
        return found is not None

    def _ask(self, statement: str, value: int | bytes) -> tuple[Any, ...] | None:
        try:
            found: tuple[Any, ...] | None = self._base.execute(statement, (value,)).fetchone()
        except sqlite3.Error as error:
            msg = f"what is done cannot be kept in a temporary file: {error}"
            raise click.ClickException(msg) from error
        return found


def _fingerprint(own_id: object) -> bytes:
    return blake2b(json.dumps(own_id).encode(), digest_size=16).digest()
