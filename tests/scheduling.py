"""The order in which trio runs tasks, by a seed."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["scheduled_by"]


@contextmanager
def scheduled_by(seed: int) -> Iterator[None]:
    """Lets trio, which shuffles the tasks that are ready, shuffle them by a seed."""
    scheduler = "trio._core._run"
    with (
        patch(f"{scheduler}._ALLOW_DETERMINISTIC_SCHEDULING", new=True),
        patch(f"{scheduler}._r", new=random.Random(seed)),
    ):
        yield
