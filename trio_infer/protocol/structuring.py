"""The fields of a peer's maps, checked one by one against what they should hold.

Lists of numbers, which may hold a million of them, are checked rather than copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from ..models import EpochSpan, KVHandoff, RequestEvent
from ..models.packed import Packed
from .packing import MalformedMessage
from .wire import is_id

__all__ = [
    "Wanted",
    "array",
    "array_of",
    "epoch_spans",
    "events",
    "floats",
    "ints",
    "kv_handoff",
    "named_map",
    "structure",
    "top_n",
    "unwrapped",
    "wrong_type",
]

Wanted: TypeAlias = type | Callable[[Any], Any]
"""What a field should hold: a plain type, or whatever a function lets pass, as it returns it."""

_NOTHING: Final[Mapping[str, Any]] = {}
_INT: Final = frozenset({int})
_FLOAT: Final = frozenset({float})
_STR: Final = frozenset({str})


def wrong_type(value: object, expected: str) -> MalformedMessage:
    """The error for a value of the wrong type."""
    return MalformedMessage(f"{expected} was expected, not {type(value).__name__}")


def structure(
    fields: Mapping[str, Any],
    wanted: Mapping[str, Wanted],
    defaults: Mapping[str, Any] = _NOTHING,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of a map that are wanted, checked, and all others, as they are.

    One that is None is as one that is absent.

    Args:
        fields: the map.
        wanted: what each field should hold, by its name.
        defaults: what stands for those that are absent.

    Raises:
        MalformedMessage: a field does not hold what it should, or has a name that is no string.
    """
    known = dict(defaults)
    others: dict[str, Any] = {}
    name = ""
    try:
        for name, value in fields.items():
            if value is None:
                continue
            kind: Any = wanted.get(name)
            if type(value) is kind:
                known[name] = value
            elif kind is None:
                others[name] = value
            else:
                known[name] = _coerced(value, kind) if type(kind) is type else kind(value)
    except MalformedMessage as error:
        msg = f"{name}: {error}"
        raise MalformedMessage(msg) from None
    return known, named_map(others)


def _coerced(value: Any, kind: type) -> float:
    """A number for a float; nothing else is taken for what it is not."""
    if kind is not float:
        raise wrong_type(value, kind.__name__)
    return _number(value)


def _just(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise wrong_type(value, kind.__name__)
    return value


def _number(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is not int:
        raise wrong_type(value, "a number")
    return float(value)


def ints(value: Any) -> list[int]:
    """A list of ints, itself."""
    if type(value) is not list or not _INT.issuperset(map(type, value)):
        raise wrong_type(value, "a list of ints")
    return value


def floats(value: Any) -> list[float]:
    """A list of numbers, itself if all are floats."""
    if type(value) is not list:
        raise wrong_type(value, "a list of numbers")
    if _FLOAT.issuperset(map(type, value)):
        return value
    return [_number(item) for item in value]


def top_n(value: Any) -> list[dict[str, float]]:
    """A list of numbers by names."""
    return [
        {key: _number(item) for key, item in named_map(entry).items()}
        for entry in _just(value, list)
    ]


def named_map(value: Any) -> dict[str, Any]:
    """A map whose keys are strings, itself."""
    if not _STR.issuperset(map(type, _just(value, dict))):
        msg = "a map with a key that is no string"
        raise MalformedMessage(msg)
    named: dict[str, Any] = value
    return named


def events(value: Any) -> tuple[RequestEvent, ...]:
    """What the engine noted."""
    return tuple([_event(item) for item in _just(value, list)])


def _event(value: Any) -> RequestEvent:
    get = _just(value, dict).get
    at, kind = get("timestamp"), get("type")
    if type(at) is not float:
        at = _number(at)
    if type(kind) is not str:
        raise wrong_type(kind, "str")
    return RequestEvent(at, kind, get("payload"))


def epoch_spans(value: Any) -> tuple[EpochSpan, ...]:
    """From which token on which epoch held."""
    return tuple([_epoch_span(item) for item in _just(value, list)])


def _epoch_span(value: Any) -> EpochSpan:
    start_and_epoch = ints(value)
    if len(start_and_epoch) != 2:  # noqa: PLR2004 - [token index, epoch]
        raise wrong_type(value, "a [token index, epoch]")
    return EpochSpan(*start_and_epoch)


def kv_handoff(value: Any) -> KVHandoff:
    """The handle of a prefill."""
    handoff = named_map(value)
    number: Any = handoff.get("request_id")
    if not is_id(number):
        raise wrong_type(number, "the number of a request")
    return KVHandoff(named_map(handoff.get("kv_meta")), ints(handoff.get("block_ids")), number)


def array(value: Any) -> Any:
    """Nested lists, or such that are still packed."""
    return value if type(value) is Packed else _just(value, list)


def array_of(items: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What lets an array pass, whichever way it is wrapped, that holds these items."""

    def check(value: Any) -> Any:
        is_wrapped = type(value) is list and value and type(value[0]) is str
        return items(unwrapped(value)[0] if is_wrapped else value)

    return check


_DTYPES: Final = frozenset(
    {"bool", "float16", "float32", "float64"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)


def unwrapped(value: Any) -> tuple[Any, str | None]:
    """An array as nested lists, whichever way it was wrapped, and its dtype if that is told.

    Arrays travel as ``["tensor", nested list]`` or ``["ndarray", {"data", "dtype"}]``, in the
    fields that hold arrays and in no other: a list of two strings elsewhere is just that.
    """
    if type(value) is list and len(value) == 2:  # noqa: PLR2004 - [tag, array]
        tag, content = value
        if tag == "tensor":
            return content, None
        if tag == "ndarray":
            if type(content) is not dict or "data" not in content:
                raise wrong_type(content, "a map with an ndarray's data")
            dtype = content.get("dtype")
            # A name of a number, and not what would have NumPy make records, or giants.
            return content["data"], dtype if type(dtype) is str and dtype in _DTYPES else None
    return value, None
