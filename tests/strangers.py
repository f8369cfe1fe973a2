"""Who else may be found at a coordinator's address."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from tests.peers import ScriptedCoordinator, scripted_coordinator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

__all__ = ["answer_http", "hang_up", "listener", "nobody", "one_that_never_acks", "stay_silent"]


@asynccontextmanager
async def listener(
    handle: Callable[[trio.SocketStream], Awaitable[object]], address: str
) -> AsyncIterator[None]:
    """Somebody who speaks TCP and no more."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            with trio.CancelScope() as scope:
                try:
                    await handle(stream)
                except trio.BrokenResourceError:
                    scope.cancel()

    port = int(address.rpartition(":")[2])
    listeners = await _listen(port)
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, serve, listeners)
        yield
        nursery.cancel_scope.cancel()


async def _listen(port: int) -> list[trio.SocketListener]:
    """Listens, once whoever had the port before has let go of it."""
    while True:
        try:
            return await trio.open_tcp_listeners(port, host="127.0.0.1")
        except OSError:
            await trio.sleep(0.01)


async def hang_up(stream: trio.SocketStream) -> None:
    pass


async def answer_http(stream: trio.SocketStream) -> None:
    await stream.receive_some()
    await stream.send_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


async def stay_silent(stream: trio.SocketStream) -> None:
    await trio.sleep_forever()


@asynccontextmanager
async def nobody(address: str) -> AsyncIterator[None]:
    yield


@asynccontextmanager
async def one_that_never_acks(address: str) -> AsyncIterator[ScriptedCoordinator]:
    async with scripted_coordinator(address) as coordinator:
        coordinator.acks = False
        yield coordinator
