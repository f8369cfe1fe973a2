"""What an address leads through: ZeroMQ, or this trio run's own memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from .link import MEMORY_SCHEME, ZmqContext, dispose_context, make_context
from .memory import MemorySocket
from .zmq_socket import ZmqSocket

if TYPE_CHECKING:
    from .link import Link

__all__ = ["MemoryNetwork", "Network", "Socket", "ZmqNetwork", "network_of"]


class ZmqNetwork:
    """ZeroMQ sockets in one context: a caller's, which stays, or one of its own."""

    def __init__(self, context: ZmqContext | None = None) -> None:
        self._context = make_context() if context is None else context
        self._owns_context = context is None

    def socket(self, role: int, link: Link) -> ZmqSocket:
        """A new socket, as `ZmqSocket` makes and refuses them."""
        return ZmqSocket(role, link=link, context=self._context)

    async def dispose(self) -> None:  # noqa: ASYNC910 - somebody else's context stays
        """Ends it, once all sockets are closed. To be called shielded; bounded by the linger."""
        if self._owns_context:
            await dispose_context(self._context)


class MemoryNetwork:
    """Sockets in memory."""

    def socket(self, role: int, link: Link) -> MemorySocket:
        """A new socket."""
        return MemorySocket(role, link=link)

    async def dispose(self) -> None:  # noqa: ASYNC910 - as far as it goes
        """There is nothing to end."""


Socket: TypeAlias = ZmqSocket | MemorySocket
Network: TypeAlias = ZmqNetwork | MemoryNetwork


def network_of(address: str, context: ZmqContext | None = None) -> Network:
    """The network that an address belongs to.

    Args:
        address: checked already.
        context: the ZeroMQ context to make sockets in, where they are ZeroMQ's.
    """
    return MemoryNetwork() if address.startswith(MEMORY_SCHEME) else ZmqNetwork(context)
