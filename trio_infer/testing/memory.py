"""The transport for mocked clocks, by its address."""

from __future__ import annotations

from typing import Final

__all__ = ["IN_MEMORY"]

IN_MEMORY: Final = "memory://*"
"""What to bind a coordinator to for tests under a mocked clock: no socket, and no thread.

``open_coordinator(bind=IN_MEMORY)`` takes a name that is free. Its ``address`` leads there from the
same trio run, and a clock that jumps whenever all tasks wait jumps past no message.
"""
