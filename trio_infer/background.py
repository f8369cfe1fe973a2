"""Tasks that run behind a block, and leave its exceptions as they are.

A nursery wraps what its block raises into an ExceptionGroup. Here the block's exceptions never meet
the nursery: they come out bare, and so does what a task crashed with.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

__all__ = ["Background", "check_task", "running_behind"]


def check_task() -> None:
    """Raises where no task of trio's runs, such as in one of asyncio's."""
    if not trio.lowlevel.in_trio_task():
        msg = (
            "trio-infer runs under trio, and this is no task of trio's: start it by trio.run(main) "
            'or anyio.run(main, backend="trio"), or as a guest of asyncio, shown in docs/asyncio.md'
        )
        raise RuntimeError(msg)


class Background:
    """A nursery around a block, to be opened before it and closed after it, in the same task."""

    __slots__ = ("_block", "_nursery")

    @trio.lowlevel.enable_ki_protection
    async def open(self) -> trio.Nursery:
        """The nursery, in which a task that crashes cancels the block."""
        self._block = trio.open_nursery()
        self._nursery = await self._block.__aenter__()
        return self._nursery

    @trio.lowlevel.enable_ki_protection
    async def close(self, block_error: BaseException | None) -> None:  # noqa: ASYNC910
        """Cancels the tasks and waits for them. Not cancelled itself, since that is bounded.

        Args:
            block_error: what the block raised, which the caller goes on raising. It comes before a
                crash, which is then added to it as a note; a crash comes before a cancellation.

        Raises:
            BaseException: what a task crashed with, as it is; of several the first.
        """
        self._nursery.cancel_scope.cancel()
        try:
            await self._block.__aexit__(None, None, None)
        except BaseException as error:  # noqa: BLE001, ASYNC103 - the block's own goes on
            crash = _first(error)
            if block_error is None or isinstance(block_error, trio.Cancelled):
                raise crash from None  # noqa: ASYNC104
            if isinstance(crash, trio.Cancelled):
                return  # noqa: ASYNC104, ASYNC910
            if not isinstance(crash, Exception):  # Ctrl-C comes before everything
                raise crash from block_error  # noqa: ASYNC104
            block_error.add_note(f"A task behind the block crashed as well: {crash!r}")


def _first(error: BaseException) -> BaseException:
    """The leaf of a group that matters most: Ctrl-C and its like, then a crash, then Cancelled."""
    return min(_leaves(error), key=_rank)


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in _leaves(part)]
    return [error]


def _rank(error: BaseException) -> int:
    if isinstance(error, trio.Cancelled):
        return 2
    return 1 if isinstance(error, Exception) else 0


@trio.lowlevel.enable_ki_protection
async def _run_in(scope: trio.CancelScope, service: Callable[[], Awaitable[object]]) -> None:
    with scope:
        await service()


@asynccontextmanager
async def running_behind(*services: Callable[[], Awaitable[object]]) -> AsyncGenerator[None]:
    """Runs services until the block ends, then cancels them.

    A cancelled scope around it all ends the block first: while the block unwinds, the services are
    still there. What the block raises comes out bare, and so does what a service raises, which
    ends the block.
    """
    background = Background()
    nursery = await background.open()
    scopes = [trio.CancelScope(shield=True) for _ in services]
    error: BaseException | None = None
    try:
        for service, scope in zip(services, scopes, strict=True):
            nursery.start_soon(_run_in, scope, service)
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        for scope in scopes:
            scope.cancel()
        await background.close(error)  # noqa: ASYNC102 - waits for cancelled tasks only
