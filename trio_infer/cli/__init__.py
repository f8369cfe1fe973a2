"""The command line, ``trio-infer``: a module for each command, and what they share.

It wants the extra ``cli``: click, and rich for what people look at.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["load"]


def load() -> Callable[[], int]:
    """The program, which runs for the arguments in `sys.argv` and returns its exit code.

    Raises:
        SystemExit: the extra is missing.
    """
    try:
        from .program import run  # noqa: PLC0415 - click and rich may be missing
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in {"click", "rich"}:
            raise
        sys.exit(f"trio-infer: no {error.name} here: install trio-infer[cli]")
    return run
