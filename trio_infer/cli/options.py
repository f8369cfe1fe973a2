"""Options that several commands have, and the prompt."""

from __future__ import annotations

import os
import sys
from typing import Final

import click
import trio

from ..protocol.dialects import DIALECTS, ENVIRONMENT, FRAMED

__all__ = ["dialect_option", "read_prompt"]

PIECE: Final = 2**16

dialect_option = click.option(
    "--dialect",
    type=click.Choice(list(DIALECTS)),
    envvar=ENVIRONMENT,
    show_envvar=True,
    default=FRAMED.name,
    show_default=True,
    help="What the coordinator speaks. The wrong one can kill it.",
)


async def read_prompt(prompt: str | None) -> str:
    """The prompt, from standard input where it is ``-`` or absent.

    A newline at the end of the input is not part of it. Cancelled, what was read is lost.

    Raises:
        click.UsageError: if there is none, or it is no text.
    """
    await trio.lowlevel.checkpoint()
    if prompt is not None and prompt != "-":
        return prompt
    if sys.stdin is None or (prompt is None and sys.stdin.isatty()):
        msg = "no prompt: give one, or - to read it from standard input"
        raise click.UsageError(msg)
    data = await trio.to_thread.run_sync(_read, sys.stdin.fileno(), abandon_on_cancel=True)
    try:
        return data.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        msg = f"the prompt on standard input is not UTF-8: {error.reason} at byte {error.start}"
        raise click.UsageError(msg) from None


def _read(fd: int) -> bytes:
    """Reads past Python's buffer: at exit that must not wait for a thread that never returns."""
    pieces = []
    while piece := os.read(fd, PIECE):
        pieces.append(piece)
    return b"".join(pieces)
