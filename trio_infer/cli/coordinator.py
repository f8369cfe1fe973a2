"""``trio-infer coordinator``: the embedded coordinator, run for others."""

from __future__ import annotations

from typing import Any, Final

import click
import trio

from ..embedded import EmbeddedCoordinator, open_coordinator
from ..embedded.engine import DEFAULT_MAX_REQUESTS
from ..protocol.dialects import FRAMED
from .activity import make_view
from .exits import EXIT_CODES
from .interruption import Interruption
from .options import dialect_option

__all__ = ["coordinator"]

EXAMPLES: Final = """
\b
Examples:
  trio-infer coordinator --bind tcp://127.0.0.1:5555
  trio-infer coordinator --engines 2 --step-time 0.02
"""


@click.command(
    short_help="A coordinator for others, with a small model of its own.",
    epilog=EXAMPLES + EXIT_CODES,
)
@click.option(
    "--bind",
    default="tcp://127.0.0.1:*",
    show_default=True,
    metavar="ADDRESS",
    help="Listen there; * for the port takes a free one.",
)
@dialect_option
@click.option(
    "--engines",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How many engines serve the requests.",
)
@click.option(
    "--max-requests",
    type=click.IntRange(min=1),
    default=DEFAULT_MAX_REQUESTS,
    show_default=True,
    help="How many requests an engine runs at once.",
)
@click.option(
    "--step-time",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="How long an engine takes for a token of each request, beyond computing it.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Give equal requests, sent in the same order, the same text.",
)
def coordinator(**options: Any) -> int:
    """Run an embedded coordinator for clients in other processes, until Ctrl-C.

    The first line on standard output is its address, and there is no other. Standard error shows
    what it does: on a terminal as it is now, otherwise line by line as it changes.

    Ctrl-C, SIGTERM or a client's shutdown ends it, with the exit code 0, whatever still runs.
    """
    trio.run(_run, options)
    return 0


async def _run(options: dict[str, Any]) -> None:
    interruption = Interruption()
    async with interruption.watching():
        with interruption.cancels():
            async with open_coordinator(**options) as serving:
                click.echo(serving.address)
                _hint(serving.address, options["dialect"])
                await _show(serving)


def _hint(address: str, dialect: str) -> None:
    told = "" if dialect == FRAMED.name else f"--dialect {dialect} "
    asking = f"trio-infer generate --stream --tokenizer bytes {told}--address {address} PROMPT"
    click.echo(f"trio-infer: serving until Ctrl-C; to ask it: {asking}", err=True)


async def _show(serving: EmbeddedCoordinator) -> None:
    with make_view(serving) as view:
        while True:
            with trio.move_on_after(view.interval):
                await serving.wait_until(lambda: serving.stopped)
                return
            view.refresh()
