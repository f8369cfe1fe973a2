"""What a socket is told before it connects or binds: options, and the context it lives in."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Final, TypeAlias

import attrs
import trio
import zmq

__all__ = [
    "DEALER",
    "LINGER_MS",
    "MEMORY_SCHEME",
    "ROUTER",
    "Link",
    "SocketOptions",
    "ZmqContext",
    "check_address",
    "check_context",
    "check_socket_options",
    "configure",
    "dispose_context",
    "make_context",
]

ZmqContext: TypeAlias = zmq.Context[zmq.Socket[bytes]]
SocketOptions: TypeAlias = (
    Mapping[str, int | bytes] | Mapping[int, int | bytes] | Mapping[int | str, int | bytes]
)
"""ZeroMQ options by name, such as ``"CURVE_SERVERKEY"``, or by number."""

DEALER: Final = zmq.DEALER
ROUTER: Final = zmq.ROUTER

MEMORY_SCHEME: Final = "memory://"
"""What addresses begin with that lead nowhere but within one trio run."""

LINGER_MS: Final = 500
"""What is queued at closing gets this long to leave; 0 would lose aborts, -1 hang."""

TERM_SECONDS: Final = 2 * LINGER_MS / 1000
"""So long the end of a context is waited for."""

MAX_PORT: Final = 65_535

NEVER_MS: Final = 3_600_000
"""Longer than any socket outlives its connection."""

HANDSHAKE_MS: Final = 10_000
"""How long a peer may take over ZeroMQ's own handshake."""

_RESERVED: Final = frozenset(
    {
        "CONFLATE",
        "DISCONNECT_MSG",
        "EVENTS",
        "FD",
        "HANDSHAKE_IVL",
        "HEARTBEAT_IVL",
        "HEARTBEAT_TIMEOUT",
        "HEARTBEAT_TTL",
        "HELLO_MSG",
        "HICCUP_MSG",
        "HWM",
        "IMMEDIATE",
        "LINGER",
        "MAXMSGSIZE",
        "PROBE_ROUTER",  # sends an empty frame, which coordinators take for an engine's
        "RCVHWM",
        "RCVMORE",
        "RECONNECT_IVL",
        "RECONNECT_IVL_MAX",
        "RECONNECT_STOP",
        "ROUTER_MANDATORY",
        "ROUTING_ID",
        "SNDHWM",
        "TCP_MAXRT",
        "TYPE",
    }
)


@attrs.frozen(kw_only=True)
class Link:
    """How a socket treats its connections.

    Attributes:
        heartbeat_timeout: seconds of silence after which a peer counts as gone.
        max_message_size: bytes; a larger frame ends the connection.
        socket_options: further ZeroMQ options, by number or name.
    """

    heartbeat_timeout: float = 30.0
    max_message_size: int = 256 * 2**20
    socket_options: SocketOptions = attrs.field(factory=dict)


def make_context() -> ZmqContext:
    """A ZeroMQ context of one's own, to be ended by `dispose_context`."""
    return zmq.Context()


@trio.lowlevel.enable_ki_protection
async def dispose_context(context: ZmqContext) -> None:
    """Ends a context. Waits, up to `LINGER_MS`, for what its closed sockets have still to send.

    That blocks, so it happens in a thread, which touches no socket, and which is left to itself
    after `TERM_SECONDS`: ZeroMQ looks names up in the thread that would have to close, and where no
    name server answers that takes longer than anybody would wait. To be called shielded.
    """
    ended = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def tell(_: object) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(ended.set)

    try:
        trio.lowlevel.start_thread_soon(context.term, tell)
    except RuntimeError:  # no more threads
        context.term()
        raise
    with trio.move_on_after(TERM_SECONDS):
        await ended.wait()


def check_context(context: object) -> ZmqContext | None:
    """The ZeroMQ context of a caller's, or None.

    Raises:
        TypeError: for anything else; an asyncio context makes sockets of another kind.
        ValueError: for one that is closed.
    """
    if context is not None and type(context) is not zmq.Context:
        kind = type(context)
        msg = f"context must be a zmq.Context, not {kind.__module__}.{kind.__qualname__}"
        raise TypeError(msg)
    if context is not None and context.closed:
        msg = "context is closed"
        raise ValueError(msg)
    return context


def check_address(address: str) -> str:
    """The address, if it is one that a connection can be watched on.

    Raises:
        ValueError: for an address without a transport or port, and for ``inproc``.
    """
    scheme, separator, rest = address.partition("://")
    if not (scheme and separator and rest) or scheme == "inproc":
        msg = f"{address!r} is no address such as 'tcp://host:5555' or 'ipc:///path'"
        raise ValueError(msg)
    port = rest.rpartition(":")[2]
    if scheme == "tcp" and port != "*" and not (port.isdecimal() and int(port) <= MAX_PORT):
        msg = f"{address!r} ends in no port from 0 to {MAX_PORT}"
        raise ValueError(msg)
    return address


def check_socket_options(options: object) -> dict[int | str, int | bytes]:
    """The options, by name or number, if they may be set.

    Raises:
        TypeError: for what is no mapping, and for names that are neither str nor int.
        ValueError: for an unknown option, and for one that this package sets by itself.
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        msg = f"socket_options must be a mapping, not {type(options).__name__}"
        raise TypeError(msg)
    checked = dict(options)
    for key in checked:
        option = _option(key)
        if option.name in _RESERVED:
            msg = f"socket option {option.name} is set by trio_infer itself"
            raise ValueError(msg)
    return checked


def _option(key: object) -> zmq.SocketOption:
    if not isinstance(key, str | int) or isinstance(key, bool):
        msg = f"a socket option is named by a str or an int, not by {type(key).__name__}"
        raise TypeError(msg)
    try:
        return zmq.SocketOption[key.upper()] if isinstance(key, str) else zmq.SocketOption(key)
    except (KeyError, ValueError):
        msg = f"unknown socket option {key!r}"
        raise ValueError(msg) from None


def configure(socket: zmq.Socket[bytes], socket_type: int, link: Link) -> None:
    """Sets all options of a socket that is not connected yet.

    Raises:
        ValueError: if ZeroMQ refuses one of ``link.socket_options``.
    """
    for key, value in link.socket_options.items():
        try:
            socket.set(_option(key), value)
        except (zmq.ZMQError, TypeError) as error:
            msg = f"socket option {key!r}: {error}"
            raise ValueError(msg) from error
    timeout_ms = max(1, round(link.heartbeat_timeout * 1000))
    options: dict[int, int] = {
        zmq.LINGER: LINGER_MS,
        zmq.SNDHWM: 0,
        zmq.RCVHWM: 0,
        zmq.MAXMSGSIZE: link.max_message_size,
        zmq.HANDSHAKE_IVL: min(HANDSHAKE_MS, timeout_ms),
        # A silence is noticed when the answer to a ping is overdue: together that is the timeout.
        zmq.HEARTBEAT_IVL: max(1, timeout_ms // 3),
        zmq.HEARTBEAT_TIMEOUT: max(1, timeout_ms - timeout_ms // 3),
        # No ping gets past a message that is stuck: then it is the system that counts the silence.
        zmq.TCP_MAXRT: timeout_ms,
    }
    if socket_type == ROUTER:
        options[zmq.ROUTER_MANDATORY] = 1
    else:
        # ZeroMQ must not connect again by itself: what it had queued would reach whoever took the
        # peer's place. But neither RECONNECT_IVL -1 nor IMMEDIATE says that safely. With either,
        # a connection that breaks takes along what came and is still unread, and if that happens
        # between two frames of one message, libzmq 4.3 aborts the process (an assertion in fq.cpp).
        options |= {zmq.IMMEDIATE: 0, zmq.RECONNECT_IVL: NEVER_MS}
    for option, number in options.items():
        socket.set(option, number)
