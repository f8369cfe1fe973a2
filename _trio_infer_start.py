"""Starts ``trio-infer``. It stands beside the package, whose import takes most of the start.

Importing anything of a package imports all of what it is; a Ctrl-C meanwhile would show where.
"""

from __future__ import annotations

import signal

__all__ = ["main"]


def main() -> int:
    """Runs the program for the arguments in `sys.argv`, and returns its exit code.

    Before and behind code that minds Ctrl-C it ends the process without a word. Python's handler
    may raise within what swallows it, such as a finalizer, and then nothing would end.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from trio_infer.cli import load  # noqa: PLC0415 - as it says

    return load()()
