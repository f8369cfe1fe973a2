"""The program itself: its commands, and how whatever happens becomes an exit code."""

from __future__ import annotations

import errno
from typing import Final

import click

from .batch import batch
from .coordinator import coordinator
from .exits import EXIT_CODES, USAGE, exit_code_for
from .generate import generate
from .options import SETTINGS

__all__ = ["program", "run"]

NAME: Final = "trio-infer"

EXAMPLES: Final = """
\b
Examples:
  trio-infer generate --stream "Structured concurrency is"
  trio-infer coordinator --bind tcp://127.0.0.1:5555
"""


@click.group(
    name=NAME,
    invoke_without_command=True,
    epilog=EXAMPLES + EXIT_CODES,
    context_settings=SETTINGS,
)
@click.version_option(package_name=NAME, prog_name=NAME, message="%(prog)s %(version)s")
@click.pass_context
def program(context: click.Context) -> int:
    """Talk to the inference coordinator of Megatron-Core.

    Each command tells all about itself with --help.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
    return USAGE


for command in (generate, batch, coordinator):
    program.add_command(command)


def run() -> int:
    """Runs the program and returns its exit code. Shows no traceback, whatever happens."""
    try:
        code = program.main(prog_name=NAME, standalone_mode=False)
    except SystemExit:  # click's answer to a broken pipe, and to nothing else
        return exit_code_for(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - whatever happens
        return exit_code_for(error)
    return code if isinstance(code, int) else 0
