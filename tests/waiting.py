"""Waiting for what has no event of its own, for however long: pytest-timeout is the limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio_infer import CompletionStream, InferenceClient

__all__ = ["arrived", "disconnected", "settled", "until"]


async def until(condition: Callable[[], object]) -> None:
    """Returns once a condition holds."""
    while not condition():  # noqa: ASYNC110 - a state of the network's has no event
        await trio.sleep(0.001)


async def settled(client: InferenceClient[Any]) -> None:
    """Returns once the coordinator has answered all aborts, and so has seen all of them."""
    await until(lambda: not client.statistics().aborting)


async def disconnected(client: InferenceClient[Any]) -> None:
    """Returns once a client knows that it has no connection."""
    await until(lambda: not client._exchange._transport.is_up)


async def arrived(stream: CompletionStream[Any], count: int) -> None:
    """Returns once so many partial results, at least, wait to be read."""
    await until(lambda: len(stream._reception._undecoded) >= count)
