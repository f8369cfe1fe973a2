"""Names of test cases, which have to be the same in every process."""

from __future__ import annotations

import re

__all__ = ["named"]


def named(value: object) -> str:
    """What the value looks like, without its address in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))[:70]
