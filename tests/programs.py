"""The program as users start it: a process, in a pipe or in a terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
import trio

if TYPE_CHECKING:
    import signal
    from collections.abc import AsyncIterator, Mapping

__all__ = ["COMMAND", "Program", "Reader", "Result", "in_terminal", "run", "started"]

COMMAND = (sys.executable, "-W", "error", "-m", "trio_infer")

# Makes the terminal at its standard input its own, so that what is typed there becomes signals.
_TAKE_TERMINAL = """
import os, sys
os.open(os.ttyname(0), os.O_RDWR)
os.execv(sys.argv[1], sys.argv[1:])
"""

PATIENCE = 15.0
"""Seconds after which a text that has not come never will."""

_UNSET = (
    *("TRIO_INFER_ADDRESS", "TRIO_INFER_DEBUG", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"),
    *("PYTHONIOENCODING", "PYTHONUNBUFFERED"),
)


class Reader:
    """Reads what a program writes.

    Args:
        stream: where to read.
        plain: whether to leave out the commands that colour a terminal and move its cursor.

    Attributes:
        pieces: what each read brought.
    """

    def __init__(self, stream: trio.abc.ReceiveStream, *, plain: bool = False) -> None:
        self.pieces: list[bytes] = []
        self._stream = stream
        self._plain = plain

    @property
    def text(self) -> str:
        """All that has been read so far."""
        text = b"".join(self.pieces).decode()
        return re.sub(r"\x1b\[[\d?;]*[A-Za-z]", "", text) if self._plain else text

    async def until(self, text: str) -> str:
        """Reads until the text has come, and returns all that has."""
        with trio.move_on_after(PATIENCE):
            while text not in self.text and await self._read():
                pass
        assert text in self.text, f"{text!r} did not come, but {self.text[-500:]!r}"
        return self.text

    async def rest(self) -> str:
        """Reads to the end, and returns all that has come."""
        while await self._read():
            pass
        return self.text

    async def aclose(self) -> None:
        """Reads no more, as ``head`` does."""
        await self._stream.aclose()

    async def _read(self) -> bytes:
        try:
            piece = await self._stream.receive_some()
        except (OSError, trio.BrokenResourceError):
            return b""  # so a terminal tells that nobody writes to it any more
        self.pieces.append(bytes(piece))
        return bytes(piece)


@attrs.frozen
class Program:
    """A program that runs."""

    process: trio.Process
    stdout: Reader
    stderr: Reader

    def send(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        self.process.send_signal(number)

    async def say(self, text: str) -> None:
        """Writes to its standard input, if it was started with ``stdin=PIPE``."""
        assert self.process.stdin is not None
        await self.process.stdin.send_all(text.encode())

    async def hang_up(self) -> None:
        """Ends its standard input."""
        assert self.process.stdin is not None
        await self.process.stdin.aclose()

    async def ended(self) -> int:
        """Waits for its end, and returns the exit code."""
        return await self.process.wait()


@attrs.frozen
class Result:
    """What became of a program that has ended."""

    code: int
    stdout: str
    stderr: str


def _environment(changes: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _UNSET}
    return kept | {"PYTHONUTF8": "1", "COLUMNS": "100", "TERM": "xterm", **changes}


@asynccontextmanager
async def started(
    *arguments: str,
    stdin: int | None = None,
    env: Mapping[str, str] = {},
    command: tuple[str, ...] = COMMAND,
    **options: Any,
) -> AsyncIterator[Program]:
    """A program in pipes, killed at the end of the block if it still runs."""
    process = await trio.lowlevel.open_process(
        [*command, *arguments],
        stdin=subprocess.DEVNULL if stdin is None else stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(env),
        **options,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    async with _killed_at_the_end(process):
        async with process.stdout, process.stderr:
            yield Program(process, Reader(process.stdout), Reader(process.stderr))


async def run(
    *arguments: str,
    stdin: bytes = b"",
    env: Mapping[str, str] = {},
    command: tuple[str, ...] = COMMAND,
    **options: Any,
) -> Result:
    """Runs a program to its end."""
    done = await trio.run_process(
        [*command, *arguments],
        stdin=stdin,
        capture_stdout="stdout" not in options,
        capture_stderr=True,
        check=False,
        env=_environment(env),
        **options,
    )
    return Result(done.returncode, (done.stdout or b"").decode(), done.stderr.decode())


@attrs.frozen
class Terminal:
    """A program in a terminal: all that it writes comes on one screen."""

    process: trio.Process
    screen: Reader
    _keyboard: trio.lowlevel.FdStream

    async def type(self, text: str) -> None:
        """Types something."""
        await self._keyboard.send_all(text.encode())

    async def ended(self) -> int:
        """Waits for the program's end, and returns the exit code."""
        return await self.process.wait()


@asynccontextmanager
async def in_terminal(
    *arguments: str,
    env: Mapping[str, str] = {},
    stdout: int | None = None,
) -> AsyncIterator[Terminal]:
    """A program in a terminal of its own; standard output may go elsewhere."""
    ours, theirs = pty.openpty()
    async with trio.lowlevel.FdStream(ours) as stream:
        try:
            process = await trio.lowlevel.open_process(
                [sys.executable, "-c", _TAKE_TERMINAL, *COMMAND, *arguments],
                stdin=theirs,
                stdout=theirs if stdout is None else stdout,
                stderr=theirs,
                start_new_session=True,
                env=_environment(env),
            )
        finally:
            os.close(theirs)
        async with _killed_at_the_end(process):
            yield Terminal(process, Reader(stream, plain=True), stream)


@asynccontextmanager
async def _killed_at_the_end(process: trio.Process) -> AsyncIterator[None]:
    try:
        yield
    finally:
        process.kill()
        with trio.move_on_after(10, shield=True):
            await process.wait()
