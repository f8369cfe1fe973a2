"""ZeroMQ sockets driven through trio's fd wait, for both roles. Nothing else imports zmq."""

from __future__ import annotations

from .home import Home as Home
from .link import DEALER as DEALER
from .link import ROUTER as ROUTER
from .link import Link as Link
from .link import SocketOptions as SocketOptions
from .link import ZmqContext as ZmqContext
from .link import check_address as check_address
from .link import check_context as check_context
from .link import check_socket_options as check_socket_options
from .link import dispose_context as dispose_context
from .link import make_context as make_context
from .zmq_socket import LinkEvent as LinkEvent
from .zmq_socket import NotConnected as NotConnected
from .zmq_socket import ZmqSocket as ZmqSocket

__all__ = [
    "DEALER",
    "ROUTER",
    "Home",
    "Link",
    "LinkEvent",
    "NotConnected",
    "SocketOptions",
    "ZmqContext",
    "ZmqSocket",
    "check_address",
    "check_context",
    "check_socket_options",
    "dispose_context",
    "make_context",
]
