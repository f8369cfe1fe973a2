"""What both roles know of messages: how one is laid into frames, and which kind it is.

What stands where, a row of the table of dialects says. Each role has a codec of its own: they share
no more than this page, so that they cannot agree on a mistake.
"""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Any

from .packing import MalformedMessage, pack

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .dialect import Dialect, Kind
    from .packing import Frames

__all__ = ["frames_of", "is_id", "kind_of", "no_list"]


def frames_of(dialect: Dialect, kind: Kind, values: Mapping[str, Any]) -> Frames:
    """A message's frames.

    Args:
        dialect: what the peer speaks.
        kind: of the message.
        values: what it says, by the names of its layout.

    Raises:
        UnsupportedByDialect: there is no such message.
    """
    number, layout = dialect.number(kind), dialect.layouts[kind]
    fields = [values[name] for name in layout.fields]
    return [pack([number, *fields]), *(pack(values[name]) for name in layout.bodies)]


def kind_of(dialect: Dialect, number: object) -> Kind:
    """The kind of message that has this header number.

    Raises:
        MalformedMessage: there is none.
    """
    kind = dialect.kinds.get(number) if type(number) is int else None
    if kind is None:
        msg = f"unknown header {reprlib.repr(number)}"
        raise MalformedMessage(msg)
    return kind


def no_list() -> MalformedMessage:
    """The error for a message that has no header."""
    return MalformedMessage("a message that is no list of a header and its fields")


def is_id(value: object) -> bool:
    """Whether it can be the id of a request."""
    return type(value) is int and value >= 0
