"""Standard input, line by line, as somebody types it or a pipe brings it."""

from __future__ import annotations

import os
import sys
from typing import Final

import trio

__all__ = ["Lines"]

PIECE: Final = 2**16


class Lines:
    """Reads past Python's buffer: at exit that must not wait for a thread that never returns."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._rest: list[bytes] = []
        self._ended = False

    async def read(self) -> bytes | None:
        """The next line, without its end; None if there is none. Cancelled, it may be lost."""
        await trio.lowlevel.checkpoint()
        while not self._lines and not self._ended:
            piece = await trio.to_thread.run_sync(
                os.read, sys.stdin.fileno(), PIECE, abandon_on_cancel=True
            )
            self._ended = not piece
            first, *others = piece.split(b"\n")
            self._rest.append(first)
            if others or self._ended:
                *whole, rest = [b"".join(self._rest), *others]
                if self._ended and rest:
                    whole.append(rest)
                self._lines, self._rest = whole[::-1], [rest]
        return self._lines.pop() if self._lines else None
