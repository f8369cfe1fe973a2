"""The prompt: an argument, a file, or standard input."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

import click
import trio

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read_prompt"]

PIECE: Final = 2**16


async def read_prompt(prompt: str | None, file: Path | None) -> str:
    """The prompt; from standard input where it is ``-``, or absent and no file is given.

    A newline at the end of the input is not part of it. Cancelled, what was read is lost.

    Raises:
        click.UsageError: if there is none, or it is no text.
        click.FileError: the file cannot be read.
    """
    await trio.lowlevel.checkpoint()
    if file is not None:
        if prompt is not None:
            msg = "PROMPT and --prompt-file exclude each other: give one of them"
            raise click.UsageError(msg)
        return _text(await _read_file(file), str(file))
    if prompt is not None and prompt != "-":
        return prompt
    if prompt is None and sys.stdin.isatty():
        msg = "no prompt: give one, or - to read it from standard input"
        raise click.UsageError(msg)
    data = await trio.to_thread.run_sync(_read, sys.stdin.fileno(), abandon_on_cancel=True)
    return _text(data, "standard input")


async def _read_file(file: Path) -> bytes:
    try:
        return await trio.to_thread.run_sync(file.read_bytes, abandon_on_cancel=True)
    except OSError as error:
        raise click.FileError(str(file), error.strerror) from None


def _text(data: bytes, source: str) -> str:
    try:
        return data.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        msg = f"the prompt on {source} is not UTF-8: {error.reason} at byte {error.start}"
        raise click.UsageError(msg) from None


def _read(fd: int) -> bytes:
    """Reads past Python's buffer: at exit that must not wait for a thread that never returns."""
    pieces = []
    while piece := os.read(fd, PIECE):
        pieces.append(piece)
    return b"".join(pieces)
