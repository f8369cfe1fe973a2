"""How fast something goes."""

from __future__ import annotations

import time
from collections import deque

__all__ = ["Rate"]


class Rate:
    """How fast a counter grows, over the last seconds.

    Args:
        span: over how many.
    """

    def __init__(self, span: float = 2.0) -> None:
        self._span = span
        self._before = (time.monotonic(), 0)
        self._samples: deque[tuple[float, int]] = deque()

    def update(self, count: int) -> float:
        """Takes the counter as it is now, and returns its growth per second."""
        now = time.monotonic()
        self._samples.append((now, count))
        while self._samples[0][0] < now - self._span:
            self._before = self._samples.popleft()
        then, before = self._before
        return (count - before) / max(now - then, 1e-9)
