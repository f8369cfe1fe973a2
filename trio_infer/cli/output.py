"""What goes to standard output and standard error, in order, and without holding anything up.

A pipe whose reader is slow blocks whoever writes to it. Here that is a worker thread; trio's own
goes on receiving, and hears Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TextIO

import trio

from ..background import running_behind

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

__all__ = ["Output", "visible"]

FLUSH_SECONDS: Final = 1.0
"""How long what is left to write may take at the end."""

_CONTROL: Final = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"} | {
    0x7F: "\u2421",
    **dict.fromkeys(range(0x80, 0xA0), "\N{REPLACEMENT CHARACTER}"),
}
"""What a terminal would take for commands, made visible. Models may say anything."""


def visible(text: str) -> str:
    """A text that commands no terminal."""
    return text.translate(_CONTROL)


class Output:
    """Text for standard output, and notes for standard error. Used within `writing`."""

    def __init__(self) -> None:
        self._pending: deque[tuple[TextIO, str]] = deque()
        self._news = trio.Event()
        self._written = trio.Event()
        self._in_line = False
        self._ended = False

    def text(self, text: str) -> None:
        """Writes to standard output: the answer, and nothing else."""
        if text:
            self._in_line = not text.endswith("\n")
            self._put(sys.stdout, text)

    def end_line(self) -> None:
        """Ends the text's last line, if it has not ended yet."""
        if self._in_line:
            self.text("\n")

    def aside(self, text: str) -> None:
        """Writes to standard error, as it stands."""
        self._put(sys.stderr, text)

    def note(self, line: str) -> None:
        """Writes a line of our own to standard error."""
        self.aside(f"trio-infer: {line}\n")

    def _put(self, stream: TextIO | None, text: str) -> None:
        if stream is not None:  # else it is closed, and print() would say nothing either
            self._pending.append((stream, text))
            self._news.set()

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator[None]:
        """The block in which everything gets written. At its end what is left gets a second.

        Raises:
            OSError: it cannot be written, such as when nobody reads any more; that cancels the
                block. Where standard output is closed it is not entered.
        """
        os.write(sys.stdout.fileno(), b"")
        async with running_behind(self._write_all):
            try:
                yield
            finally:
                # Why the program ends, an error or an interruption, is to be read: so shielded.
                with trio.move_on_after(FLUSH_SECONDS, shield=True):
                    await self.flush()

    async def flush(self) -> None:
        """Returns when everything is written, or nothing more can be."""
        await trio.lowlevel.checkpoint()
        while self._pending and not self._ended:
            await self._written.wait()

    async def _write_all(self) -> None:
        try:
            while True:
                while self._pending:
                    stream, text = self._pending[0]
                    await trio.to_thread.run_sync(_write, stream, text, abandon_on_cancel=True)
                    self._pending.popleft()
                self._written.set()
                self._written = trio.Event()
                await self._news.wait()
                self._news = trio.Event()
        finally:
            self._ended = True
            self._written.set()


def _write(stream: TextIO, text: str) -> None:
    """Writes past Python's buffer: at exit that must not wait for a thread that never returns."""
    if stream.isatty():
        text = visible(text)
    data = memoryview(text.encode(stream.encoding or "utf-8", errors="replace"))
    while data:
        data = data[os.write(stream.fileno(), data) :]
