"""The command line, ``trio-infer``: a module for each command, and what they share.

It wants the extra ``cli``: click, and rich for what people look at.
"""

from __future__ import annotations

import signal
import sys

__all__ = ["main"]


def main() -> int:
    """Runs the program for the arguments in `sys.argv`, and returns its exit code.

    Before and behind code that minds Ctrl-C it ends the process without a word. Python's handler
    may raise within what swallows it, such as a finalizer, and then nothing would end.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from .program import run  # noqa: PLC0415 - click and rich may be missing
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in {"click", "rich"}:
            raise
        print(f"trio-infer: no {error.name} here: install trio-infer[cli]", file=sys.stderr)  # noqa: T201
        return 1
    return run()
