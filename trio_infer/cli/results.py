"""The output file of a batch: what is done already, and where the rest is written.

A result is one line, written at once, so whatever ends the program leaves at most one line that is
torn: the last. It is cut off when the file is opened again.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import click

from .done import Done
from .records import to_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .rows import Row

__all__ = ["Results"]

BEGINNING: Final = b'{"line": '
"""So each result begins, and a torn line that does not is none of ours."""

MOST_LINES: Final = 10**10


class Results:
    """The file, locked against other runs.

    Args:
        path: of the file, which need not be there yet.

    Raises:
        click.ClickException: it cannot be written, or another run is writing it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o666)
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                msg = "it is no regular file"
                raise click.FileError(str(path), msg)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            msg = f"{path} is being written by another run"
            raise click.ClickException(msg) from None
        except OSError as error:
            raise click.FileError(str(path), error.strerror) from None
        self._size = 0

    def close(self) -> None:
        """Lets others have the file."""
        os.close(self._fd)

    @property
    def removed(self) -> bool:
        """Whether the file has no name any more, so that nobody will find what is in it."""
        return os.fstat(self._fd).st_nlink == 0

    def take_up(self, check_cancelled: Callable[[], None] = lambda: None) -> Done:
        """Finds out what is done, and cuts off a line that was torn. To be called once, at first.

        It reads the whole file, and holds no more of it than a line.

        Args:
            check_cancelled: called now and then; what it raises comes out.

        Raises:
            click.ClickException: the file holds something else; it is left as it is.
        """
        done = Done()
        try:
            with open(self._fd, "rb", closefd=False) as file:
                for number, line in enumerate(file, 1):
                    if not line.endswith(b"\n") and _is_ours(line):
                        done.torn = True
                        break
                    done.note(*self._parse(number, line))
                    self._size += len(line)
                    check_cancelled()
            os.ftruncate(self._fd, self._size)
        except BaseException:
            done.close()
            raise
        return done

    def _parse(self, number: int, line: bytes) -> tuple[int, object]:
        try:
            if line.startswith(BEGINNING) and line.endswith(b"\n"):
                record = json.loads(line)
                of_input = record["line"]
                if isinstance(of_input, int) and 0 < of_input <= MOST_LINES:
                    return of_input, record.get("id")
        except (ValueError, RecursionError):
            pass
        msg = f"{self._path} is left as it is: its line {number} is no result of a batch"
        raise click.ClickException(msg)

    def write(self, row: Row, record: dict[str, Any]) -> None:
        """Writes the result of a line, so that it is in the file when this returns.

        Raises:
            OSError: it cannot be written; then nothing of it is left there.
            click.ClickException: the file has been removed, or replaced by another.
        """
        own_id = {} if row.id is None else {"id": row.id}
        data = to_line({"line": row.line, **own_id, **record}).encode(errors="replace")
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)
        if self.removed:
            msg = f"{self._path} was removed meanwhile, and all results in it are lost"
            raise click.ClickException(msg)


def _is_ours(torn: bytes) -> bool:
    written = torn.rstrip(b"\0")  # which a machine that crashes may leave for what is not there
    return written[: len(BEGINNING)] == BEGINNING[: len(written)]
