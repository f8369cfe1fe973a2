"""Numbers, flags and text as callers hand them over, and as the wire takes them.

NumPy's and torch's scalars are numbers too, recognised by what they can do, so that neither
library has to be installed.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Final

__all__ = [
    "INT64_MAX",
    "INT64_MIN",
    "UINT64_MAX",
    "plain",
    "to_count",
    "to_flag",
    "to_float",
    "to_int",
    "to_limit",
    "to_probability",
    "to_seconds",
    "to_text",
]

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
UINT64_MAX: Final = 2**64 - 1


def plain(value: object, name: str) -> Any:
    """The Python object that a scalar of an array library stands for; all else as it is.

    Raises:
        TypeError: for an array that is no scalar.
    """
    item = getattr(value, "item", None)
    if not callable(item):
        return value
    try:
        return item()
    except (ValueError, RuntimeError, TypeError):
        msg = f"{name} must be a single value, not {type(value).__name__}"
        raise TypeError(msg) from None


def to_int(value: object, name: str, *, most: int = INT64_MAX) -> int:
    """An int that fits 64 bits, signed ones unless ``most`` is more.

    Raises:
        TypeError: for anything but an integer; a bool is none.
        ValueError: for one that does not fit.
    """
    item = plain(value, name)
    try:
        number = operator.index(item)
    except TypeError:
        number = None
    if number is None or isinstance(item, bool):
        msg = f"{name} must be an int, not {type(value).__name__}"
        raise TypeError(msg)
    if not INT64_MIN <= number <= most:
        msg = f"{name} must fit {'signed ' if most == INT64_MAX else ''}64 bits"
        raise ValueError(msg)
    return number


def to_count(value: object, name: str, *, least: int = 1) -> int:
    """How many there are, from 1 on, or another number.

    Raises:
        TypeError, ValueError: as `to_int` does, and for less.
    """
    count = to_int(value, name)
    if count < least:
        msg = f"{name} must be at least {least}, not {count}"
        raise ValueError(msg)
    return count


def to_limit(value: object, name: str) -> int | None:
    """How many there may be at most, from 1 on; None: any number.

    Raises:
        TypeError, ValueError: as `to_int` does, and for less.
    """
    if value is None:
        return None
    limit = to_int(value, name)
    if limit < 1:
        msg = f"{name} must be at least 1, or None for no limit, not {limit}"
        raise ValueError(msg)
    return limit


def to_float(value: object, name: str) -> float:
    """A finite float, from any real number.

    Raises:
        TypeError: for anything but a number; a bool and a numeral in a string are none.
        ValueError: for infinities, NaN, and ints too large for a float.
    """
    item = plain(value, name)
    is_number = hasattr(item, "__float__") or hasattr(item, "__index__")
    if isinstance(item, bool) or not is_number:
        msg = f"{name} must be a number, not {type(value).__name__}"
        raise TypeError(msg)
    try:
        number = float(item)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        msg = f"{name} must be finite, and not too large for a float"
        raise ValueError(msg)
    return number


def to_seconds(value: object, name: str, *, least: float = 0.0, most: float = math.inf) -> float:
    """A finite number of seconds, within bounds.

    Raises:
        TypeError: as `to_float` does.
        ValueError: as `to_float` does, and for one out of bounds.
    """
    seconds = to_float(value, name)
    if not least <= seconds <= most:
        span = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
        msg = f"{name} must be {span} seconds, not {seconds:g}"
        raise ValueError(msg)
    return seconds


def to_probability(value: object, name: str) -> float:
    """A float in [0, 1], from any real number.

    Raises:
        TypeError: as `to_float` does.
        ValueError: for a number that lies elsewhere.
    """
    number = to_float(value, name)
    if not 0.0 <= number <= 1.0:
        msg = f"{name} must lie between 0 and 1, not at {number}"
        raise ValueError(msg)
    return number


def to_flag(value: object, name: str) -> bool:
    """A bool.

    Raises:
        TypeError: for anything else, 0 and 1 included.
    """
    item = plain(value, name)
    if not isinstance(item, bool):
        msg = f"{name} must be a bool, not {type(value).__name__}"
        raise TypeError(msg)
    return item


def to_text(value: object, name: str) -> str:
    """A string that UTF-8 can carry.

    Raises:
        TypeError: for anything but a string.
        ValueError: for one with lone surrogates.
    """
    if not isinstance(value, str):
        msg = f"{name} must be a str, not {type(value).__name__}"
        raise TypeError(msg)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        msg = (
            f"{name} has a lone surrogate at index {error.start}, which UTF-8 cannot carry; "
            "decode its bytes with errors='replace' to get rid of it"
        )
        raise ValueError(msg) from None
    return str.__str__(value)  # an enum's own __str__ would say its name, not its value
