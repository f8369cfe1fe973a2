"""Starts ``trio-infer``. It stands beside the package, whose import takes most of the start.

Importing anything of a package imports all of what it is; a Ctrl-C meanwhile would show where.
"""

from __future__ import annotations

import signal

__all__ = ["main"]


def main() -> int:
    """Imports the program, where Ctrl-C ends the process without a word, and runs it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from trio_infer import cli  # noqa: PLC0415 - as it says

    return cli.main()
