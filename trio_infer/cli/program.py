"""The program itself: its commands, and how whatever happens becomes an exit code."""

from __future__ import annotations

import errno
import os
import sys
from typing import Final

import click

from .batch import batch
from .bench import bench
from .chat import chat
from .completion import NAME, VARIABLE, completion
from .coordinator import coordinator
from .engines import engines
from .exits import EXIT_CODES, exit_code_for, show_help
from .generate import generate
from .options import SETTINGS
from .ping import ping
from .shutdown import shutdown

__all__ = ["program", "run"]

EXAMPLES: Final = """
\b
Examples:
  trio-infer generate --stream "Structured concurrency is"
  trio-infer batch prompts.jsonl -o results.jsonl
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

    Each command tells all about itself with --help. Those that ask a coordinator ask an embedded
    one where no --address is given.
    """
    return show_help(context)


COMMANDS: Final = (generate, chat, batch, bench, ping, engines, shutdown, coordinator, completion)

for _command in COMMANDS:
    program.add_command(_command)


def run() -> int:
    """Runs the program and returns its exit code. Shows no traceback, whatever happens."""
    if sys.stdin is None:  # closed: then it is empty
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115 - to the end
    if sys.stdout is None:  # closed: then writing to it fails, rather than doing nothing
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")
    try:
        code = program.main(prog_name=NAME, standalone_mode=False)
    except SystemExit as end:  # click's answer to a shell that completes, and to a broken pipe
        if os.environ.get(VARIABLE):
            return int(end.code or 0)
        return exit_code_for(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - whatever happens
        return exit_code_for(error)
    return code if isinstance(code, int) else 0
