"""A message that a coordinator has for a client."""

from __future__ import annotations

import attrs

from ..protocol.packing import Frames

__all__ = ["Outgoing"]


@attrs.frozen
class Outgoing:
    """A message, whom it is for, and what it is about.

    Attributes:
        identity: the client's routing id.
        frames: what it is sent.
        request: the coordinator's number of the request whose reply it is; None: it is none.
        place: how many replies to that request went before it.
    """

    identity: bytes
    frames: Frames
    request: int | None = None
    place: int = 0
