"""Where a thing belongs: the thread and the process that made it."""

from __future__ import annotations

import os
from threading import get_ident

__all__ = ["Home"]

_process = object()


def _note_fork() -> None:
    global _process  # noqa: PLW0603 - there is one of it
    _process = object()


os.register_at_fork(after_in_child=_note_fork)  # to ask the system each time would be felt


class Home:
    """The thread and the process in which it is made."""

    __slots__ = ("_process", "_thread")

    def __init__(self) -> None:
        self._process = _process
        self._thread = get_ident()

    def check(self) -> None:
        """Raises where this is not home.

        Raises:
            RuntimeError: in another thread, or in a forked process.
        """
        if _process is not self._process or get_ident() != self._thread:
            self.check_thread()
            msg = "used in another process than the one it was opened in"
            raise RuntimeError(msg)

    def check_thread(self) -> None:
        """As `check`, but lets a forked process pass: its one thread may be home's copy."""
        if get_ident() != self._thread:
            msg = "used from another thread than the one it was opened in"
            raise RuntimeError(msg)
