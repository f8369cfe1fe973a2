"""Sockets driven by trio, for both roles: ZeroMQ's, which nothing else imports, and in memory."""

from __future__ import annotations

from .home import Home as Home
from .link import DEALER as DEALER
from .link import MEMORY_SCHEME as MEMORY_SCHEME
from .link import ROUTER as ROUTER
from .link import Link as Link
from .link import SocketOptions as SocketOptions
from .link import ZmqContext as ZmqContext
from .link import check_address as check_address
from .link import check_context as check_context
from .link import check_socket_options as check_socket_options
from .link import dispose_context as dispose_context
from .link import make_context as make_context
from .link_event import LinkEvent as LinkEvent
from .network import Network as Network
from .network import Socket as Socket
from .network import network_of as network_of
from .zmq_socket import NotConnected as NotConnected
from .zmq_socket import ZmqSocket as ZmqSocket

__all__ = [
    "DEALER",
    "MEMORY_SCHEME",
    "ROUTER",
    "Home",
    "Link",
    "LinkEvent",
    "Network",
    "NotConnected",
    "Socket",
    "SocketOptions",
    "ZmqContext",
    "ZmqSocket",
    "check_address",
    "check_context",
    "check_socket_options",
    "dispose_context",
    "make_context",
    "network_of",
]
