"""A TCP relay between a client and a coordinator, to freeze and to cut."""

from __future__ import annotations

from functools import partial
from typing import Self

import trio

from tests.waiting import until

__all__ = ["Relay"]


class Relay:
    """Passes bytes between a client and a coordinator.

    Args:
        target: the coordinator's address.
        cut_after: what has to have passed for the connection to be cut.

    Attributes:
        frozen: whether the bytes that come are kept until it thaws.
    """

    def __init__(self, target: str, *, cut_after: bytes | None = None) -> None:
        self._cut_after = cut_after
        host, port = target.removeprefix("tcp://").split(":")
        self._target = (host, int(port))
        self.frozen = False

    async def __aenter__(self) -> Self:
        self._nursery_block = trio.open_nursery()
        self._nursery = await self._nursery_block.__aenter__()
        listeners = await self._nursery.start(
            partial(trio.serve_tcp, self._serve, 0, host="127.0.0.1")
        )
        self.address = f"tcp://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._nursery.cancel_scope.cancel()
        await self._nursery_block.__aexit__(None, None, None)

    async def _serve(self, client: trio.SocketStream) -> None:
        server = await trio.open_tcp_stream(*self._target)
        async with client, server, trio.open_nursery() as nursery:
            nursery.start_soon(self._pump, client, server, nursery)
            nursery.start_soon(self._pump, server, client, nursery)

    async def _pump(
        self, source: trio.SocketStream, sink: trio.SocketStream, nursery: trio.Nursery
    ) -> None:
        try:
            async for data in source:
                await until(lambda: not self.frozen)
                await sink.send_all(data)
                if self._cut_after is not None and self._cut_after in data:
                    break
        except trio.BrokenResourceError:
            pass
        nursery.cancel_scope.cancel()
