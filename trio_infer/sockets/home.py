"""Where a thing belongs: the thread and the process that made it."""

from __future__ import annotations

import os
import threading

__all__ = ["Home"]


class Home:
    """The thread and the process in which it is made."""

    __slots__ = ("_pid", "_thread")

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._thread = threading.get_ident()

    def check(self) -> None:
        """Raises where this is not home.

        Raises:
            RuntimeError: in another thread, or in a forked process.
        """
        self.check_thread()
        if os.getpid() != self._pid:
            msg = "used in another process than the one it was opened in"
            raise RuntimeError(msg)

    def check_thread(self) -> None:
        """As `check`, but lets a forked process pass: its one thread may be home's copy."""
        if threading.get_ident() != self._thread:
            msg = "used from another thread than the one it was opened in"
            raise RuntimeError(msg)
