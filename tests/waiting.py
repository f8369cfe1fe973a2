"""Waiting for what has no event of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["until"]


async def until(condition: Callable[[], object]) -> None:
    """Returns once a condition holds, however long that takes: pytest-timeout is the limit."""
    while not condition():  # noqa: ASYNC110 - a state of the network's has no event
        await trio.sleep(0.001)
