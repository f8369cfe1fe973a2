"""What ZeroMQ's monitor tells of a link, and the words for it."""

from __future__ import annotations

import enum
import errno
import struct
from typing import TYPE_CHECKING, Final

import zmq

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NOBODY", "SILENT", "WATCHED", "LinkEvent", "read_event"]


class LinkEvent(enum.Enum):
    """What becomes of the link to a peer."""

    TRIED = enum.auto()  # it has an address, and somebody may answer there
    REACHED = enum.auto()  # ZeroMQ's handshake begins
    UP = enum.auto()
    FAILED = enum.auto()  # it does not come up
    DOWN = enum.auto()
    RETRIED = enum.auto()  # ZeroMQ would try again, as it does unless the peer broke its protocol


NOBODY: Final = "nobody listens there, or no way leads there"
SILENT: Final = "it accepts connections, but stays silent: is it a ZeroMQ coordinator?"

_EVENTS: Final[Mapping[int, tuple[LinkEvent, str]]] = {
    zmq.EVENT_CONNECT_DELAYED: (LinkEvent.TRIED, ""),
    zmq.EVENT_CONNECTED: (LinkEvent.REACHED, SILENT),
    zmq.EVENT_HANDSHAKE_SUCCEEDED: (LinkEvent.UP, ""),
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: (
        LinkEvent.FAILED,
        "it hung up during ZeroMQ's handshake: {question}",
    ),
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: (
        LinkEvent.FAILED,
        "it failed ZeroMQ's handshake (error {value:#x}): {question}",
    ),
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: (
        LinkEvent.FAILED,
        "it denied access (status {value}): does it know this client's key, or its password?",
    ),
    zmq.EVENT_CLOSED: (LinkEvent.FAILED, NOBODY),
    zmq.EVENT_DISCONNECTED: (LinkEvent.DOWN, ""),
    # Alone, that is the only sign of a name without an address.
    zmq.EVENT_CONNECT_RETRIED: (
        LinkEvent.RETRIED,
        "there is no such host (IPv6 wants the socket option ipv6)",
    ),
}

WATCHED: Final = sum(_EVENTS)
"""What a monitor has to tell of."""

_QUESTIONS: Final = {
    True: "are its CURVE keys those that CURVE_SERVERKEY says, and does it use any?",
    False: "is it a ZeroMQ coordinator, and does it want CURVE keys?",
}


_NUMBERS: Final = struct.Struct("=Hi")
"""Event and value. pyzmq's own parser makes an enum member of each value, and keeps it for ever."""


def read_event(message: list[bytes], *, curve: bool) -> tuple[LinkEvent, str]:
    """What a monitor's message says; and if that names the cause of a failure, the words for it.

    Args:
        message: one of those in `WATCHED`.
        curve: whether this side uses CURVE keys.
    """
    number, value = _NUMBERS.unpack(message[0])
    event, words = _EVENTS[number]
    if number == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and value == errno.EAGAIN:
        words = SILENT  # for as long as HANDSHAKE_IVL has it
    return event, words.format(value=value, question=_QUESTIONS[curve])
