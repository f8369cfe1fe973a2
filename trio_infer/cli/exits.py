"""How the program ends: its exit codes, and the one line that says what went wrong."""

from __future__ import annotations

import errno
import os
import signal
import sys
from typing import Final, TextIO

import click

from ..errors import InferenceError
from .blame import blamed
from .console import make_console, write_note

__all__ = ["EXIT_CODES", "FAILED", "by_signal", "exit_code_for", "show_help"]

FAILED: Final = 1
USAGE: Final = 2

EXIT_CODES: Final = """
\b
Exit codes:
  0    it worked, or a coordinator was told to stop
  1    it failed, or a part of it did: lines of a batch, requests of a bench, turns of a chat
  2    the command line makes no sense
  130  Ctrl-C ended it; likewise 143 SIGTERM, 129 SIGHUP,
       141 nobody reads the output any more"""

DEBUG: Final = "TRIO_INFER_DEBUG"
"""Set in the environment, unforeseen errors show where they come from."""


def by_signal(number: int) -> int:
    """The exit code of a program that a signal has ended, as shells have it."""
    return 128 + number


def show_help(context: click.Context) -> int:
    """What a group does by itself: where no command is given, it shows which there are."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
    return USAGE


def exit_code_for(error: BaseException) -> int:
    """Tells the user in one line what went wrong, if that is news, and returns the exit code."""
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return by_signal(signal.SIGINT)
    if isinstance(error, OSError) and not blamed(error):
        _silence(sys.stdout)
        if error.errno == errno.EPIPE:
            _silence(sys.stderr)
            return by_signal(signal.SIGPIPE)
    line, code = _diagnose(error)
    _complain(line)
    return code


def _diagnose(error: BaseException) -> tuple[str, int]:
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx else "trio-infer"
        return f"{error.format_message()} (see {command} --help)", USAGE
    if isinstance(error, click.ClickException):
        return error.format_message(), error.exit_code
    own = blamed(error)
    if own is not None:
        return _unforeseen(f"{own} failed", error), FAILED
    if isinstance(error, InferenceError):
        return str(error) or type(error).__name__, FAILED
    if isinstance(error, OSError):
        closed = error.errno == errno.EBADF
        what = "standard output is closed" if closed else error.strerror or error
        return f"input or output failed: {what}", FAILED
    return _unforeseen("internal error", error), FAILED


def _unforeseen(what: str, error: BaseException) -> str:
    if os.environ.get(DEBUG):
        raise error
    line = "".join(str(error).splitlines()[:1])
    return f"{what}: {type(error).__name__}: {line} ({DEBUG}=1 shows where)"


def _complain(line: str) -> None:
    try:
        write_note(make_console(), line, "bold red")
    except OSError:  # nobody to tell
        _silence(sys.stderr)


def _silence(stream: TextIO | None) -> None:
    """Lets what Python still has to flush at exit go nowhere, since it would complain again."""
    if stream is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
