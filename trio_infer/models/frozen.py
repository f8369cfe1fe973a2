"""Containers that nobody can change any more, of what MessagePack can carry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, SupportsIndex

from .scalars import UINT64_MAX, plain, to_float, to_int, to_text

__all__ = ["FrozenMapping", "freeze", "freeze_mapping", "thaw"]


class FrozenMapping(Mapping[str, Any]):
    """A dict that cannot be changed, and so can be hashed; unlike a mappingproxy it pickles."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, Any]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


MAX_DEPTH: Final = 32
"""Levels of lists and mappings that are sent; peers decode somewhat more."""


def freeze(value: object, name: str, *, depth: int = 0) -> Any:
    """A copy of a value, with nothing in it that could still be changed.

    Raises:
        TypeError: for what MessagePack cannot carry, and for keys that are no strings.
        ValueError: for ints beyond 64 bits, lone surrogates, NaN and infinities,
            and for nesting deeper than `MAX_DEPTH`.
    """
    if depth > MAX_DEPTH:
        msg = f"{name.partition('[')[0]} is nested more than {MAX_DEPTH} levels deep"
        raise ValueError(msg)
    if isinstance(value, Mapping):
        return FrozenMapping(
            {
                to_text(key, f"a key of {name}"): freeze(item, f"{name}[{key!r}]", depth=depth + 1)
                for key, item in value.items()
            }
        )
    if isinstance(value, list | tuple):
        return tuple(
            freeze(item, f"{name}[{index}]", depth=depth + 1) for index, item in enumerate(value)
        )
    value = plain(value, name)
    if value is None or isinstance(value, bool | bytes):
        return value
    if isinstance(value, str):
        return to_text(value, name)
    if isinstance(value, float):
        return to_float(value, name)
    if isinstance(value, SupportsIndex):
        return to_int(value, name, most=UINT64_MAX)
    msg = f"{name} must be of what MessagePack can carry, not {type(value).__name__}"
    raise TypeError(msg)


def freeze_mapping(value: object, name: str) -> Mapping[str, Any]:
    """As `freeze`, of a mapping.

    Raises:
        TypeError: also for anything else.
    """
    if not isinstance(value, Mapping):
        msg = f"{name} must be a mapping, not {type(value).__name__}"
        raise TypeError(msg)
    frozen: Mapping[str, Any] = freeze(value, name)
    return frozen


def thaw(value: Any) -> Any:
    """What `freeze` was given, as dicts and lists of its own."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [thaw(item) for item in value]
    return value
