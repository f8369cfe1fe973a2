"""Maps off the wire to typed objects. cattrs does it, with hooks that trust nothing.

Lists of numbers, which may hold a million of them, are checked rather than copied.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias, get_args

import cattrs

from ..models import EpochSpan, KVHandoff
from ..models.packed import Packed
from .packing import MalformedMessage
from .wire import is_id

__all__ = ["structure", "wrong_type"]

_Hook: TypeAlias = Callable[[Any, Any], Any]


def wrong_type(value: object, expected: str) -> MalformedMessage:
    """The error for a value of the wrong type."""
    return MalformedMessage(f"{expected} was expected, not {type(value).__name__}")


def _just(kind: type) -> _Hook:
    def hook(value: Any, _: Any) -> Any:
        if type(value) is not kind:
            raise wrong_type(value, kind.__name__)
        return value

    return hook


_text: Final = _just(str)
_list: Final = _just(list)
_map: Final = _just(dict)


def _array(value: Any, _: Any) -> Any:
    return value if type(value) is Packed else _list(value, list)


def _number(value: Any, _: Any) -> float:
    if type(value) not in (float, int):
        raise wrong_type(value, "a number")
    return float(value)


def _ints(value: Any, _: Any) -> list[int]:
    if type(value) is not list or not all(type(item) is int for item in value):
        raise wrong_type(value, "a list of ints")
    return value


def _floats(value: Any, _: Any) -> list[float]:
    if type(value) is not list:
        raise wrong_type(value, "a list of numbers")
    if all(type(item) is float for item in value):
        return value
    return [_number(item, float) for item in value]


def _top_n(value: Any, _: Any) -> list[dict[str, float]]:
    return [
        {_text(key, str): _number(item, float) for key, item in _map(entry, dict).items()}
        for entry in _list(value, list)
    ]


def _named_map(value: Any, _: Any) -> dict[str, Any]:
    return {_text(key, str): item for key, item in _map(value, dict).items()}


def _epoch_span(value: Any, _: Any) -> EpochSpan:
    start_and_epoch = _ints(value, list[int])
    if len(start_and_epoch) != 2:  # noqa: PLR2004 - [token index, epoch]
        raise wrong_type(value, "a [token index, epoch]")
    return EpochSpan(*start_and_epoch)


def _kv_handoff(value: Any, _: Any) -> KVHandoff:
    handoff = _named_map(value, dict)
    kv_meta, block_ids = handoff.get("kv_meta"), handoff.get("block_ids")
    number: Any = handoff.get("request_id")
    if not is_id(number):
        raise wrong_type(number, "the number of a request")
    return KVHandoff(_named_map(kv_meta, dict), _ints(block_ids, list[int]), number)


_HOOKS: Final[tuple[tuple[Any, _Hook], ...]] = (
    (int, _just(int)),
    (str, _text),
    (bool, _just(bool)),
    (float, _number),
    (list[int], _ints),
    (list[float], _floats),
    (list[dict[str, float]], _top_n),
    (dict[str, Any], _named_map),
    (list[Any], _array),
    (EpochSpan, _epoch_span),
    (KVHandoff, _kv_handoff),
)


def _make_converter() -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=False)
    for annotation, hook in _HOOKS:
        if isinstance(annotation, type) and not get_args(annotation):
            converter.register_structure_hook(annotation, hook)
        else:
            converter.register_structure_hook_func(partial(operator.eq, annotation), hook)
    return converter


_converter: Final = _make_converter()

_NONSENSE: Final = (
    cattrs.BaseValidationError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


def structure(fields: Mapping[str, Any], into: Any) -> Any:
    """What a map of a peer's says, checked and typed.

    Args:
        fields: the map.
        into: an attrs class.

    Raises:
        MalformedMessage: if a field has a wrong type, or a required one is missing.
    """
    try:
        return _converter.structure(fields, into)
    except MalformedMessage:
        raise
    except _NONSENSE as error:
        msg = f"a body that makes no sense: {type(error).__name__} {error!s:.200}"
        raise MalformedMessage(msg) from None
