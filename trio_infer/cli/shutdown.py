"""``trio-infer shutdown``: the end of a coordinator."""

from __future__ import annotations

import sys
from typing import Final

import click

from .exits import EXIT_CODES
from .interruption import Interruption, run_interruptible
from .output import Output
from .target import Target, target_options

__all__ = ["shutdown"]

EXAMPLES: Final = """
\b
Examples:
  trio-infer shutdown --address tcp://localhost:5555
  trio-infer shutdown --address tcp://localhost:5555 --yes
"""


@click.command(short_help="End a coordinator.", epilog=EXAMPLES + EXIT_CODES)
@click.option("-y", "--yes", is_flag=True, help="Do not ask whether that is meant.")
@target_options
def shutdown(*, target: Target, yes: bool) -> int:
    """Ask a coordinator to end, with the requests of all of its clients.

    It asks you first, unless --yes is given, which is needed where standard input is no terminal.
    Where you do not agree nothing is sent, and the exit code is 1. Nothing acknowledges it. The
    engines live on: to end them, pause and stop them before.
    """
    if not yes:
        if not sys.stdin.isatty():
            msg = "there is nobody to ask whether that is meant: say --yes"
            raise click.UsageError(msg)
        whom = target.address or "an embedded coordinator"
        question = f"End {whom} and the requests of all of its clients?"
        try:
            is_meant = click.confirm(question, err=True)
        except click.Abort:  # at the end of the input; Ctrl-C ends the process
            is_meant = False
        if not is_meant:
            msg = "nothing was sent"
            raise click.ClickException(msg)
    return run_interruptible(_run, target)


async def _run(interruption: Interruption, target: Target) -> None:
    output = Output()
    async with target.serving() as address, output.writing():
        with interruption.cancels():
            async with target.open_client(address) as client:
                client.shutdown_coordinator()
                output.note(f"{address} was asked to end; nothing acknowledges it")
