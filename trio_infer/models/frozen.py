"""Containers that nobody can change any more, of what MessagePack can carry."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, SupportsIndex, TypeAlias

from .scalars import INT64_MIN, UINT64_MAX, plain, to_float, to_int, to_text

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


_AS_THEY_ARE: Final = frozenset({type(None), bool, bytes})

MAX_DEPTH: Final = 32
"""Levels of lists and mappings that are sent; peers decode somewhat more."""


def freeze(value: object, name: str, *, finite: bool = True) -> Any:
    """A copy of a value, with nothing in it that could still be changed.

    Args:
        value: the value.
        name: what to call it where it is refused.
        finite: whether NaN and infinities are refused.

    Raises:
        TypeError: for what MessagePack cannot carry, and for keys that are no strings.
        ValueError: for ints beyond 64 bits, lone surrogates, NaN and infinities,
            and for nesting deeper than `MAX_DEPTH`.
    """
    return _Freezing(name, finite=finite).freeze(value, (), 0)


_Path: TypeAlias = tuple[Any, ...]
"""The keys and indices that lead to a part of a value, the last one outermost: (key, path)."""


class _Freezing:
    """One value while it is frozen. Names of parts are made only for what is refused."""

    __slots__ = ("_finite", "_name")

    def __init__(self, name: str, *, finite: bool) -> None:
        self._name = name
        self._finite = finite

    def freeze(self, value: Any, path: _Path, depth: int) -> Any:
        kind = type(value)
        if kind in _AS_THEY_ARE or (kind is str and value.isascii()):
            return value
        if kind is int and INT64_MIN <= value <= UINT64_MAX:
            return value
        if kind is float and (math.isfinite(value) or not self._finite):
            return value
        if depth > MAX_DEPTH:
            msg = f"{self._name} is nested more than {MAX_DEPTH} levels deep"
            raise ValueError(msg)
        if isinstance(value, Mapping):
            return FrozenMapping(
                {
                    self._key(key, path): self.freeze(item, (key, path), depth + 1)
                    for key, item in value.items()
                }
            )
        if isinstance(value, list | tuple):
            return tuple(
                self.freeze(item, (index, path), depth + 1) for index, item in enumerate(value)
            )
        return self._scalar(value, self._called(path))

    def _scalar(self, value: object, name: str) -> Any:
        """A scalar of another type than those that are most common, or out of its range."""
        value = plain(value, name)
        if value is None or isinstance(value, bool | bytes):
            return value
        if isinstance(value, str):
            return to_text(value, name)
        if isinstance(value, float):
            return to_float(value, name) if self._finite else float(value)
        if isinstance(value, SupportsIndex):
            return to_int(value, name, most=UINT64_MAX)
        msg = f"{name} must be of what MessagePack can carry, not {type(value).__name__}"
        raise TypeError(msg)

    def _key(self, key: object, path: _Path) -> str:
        if type(key) is str and key.isascii():
            return key
        return to_text(key, f"a key of {self._called(path)}")

    def _called(self, path: _Path) -> str:
        steps = []
        while path:
            step, path = path
            steps.append(f"[{step!r}]")
        return self._name + "".join(reversed(steps))


def freeze_mapping(value: object, name: str, *, finite: bool = True) -> Mapping[str, Any]:
    """As `freeze`, of a mapping.

    Raises:
        TypeError: also for anything else.
    """
    if not isinstance(value, Mapping):
        msg = f"{name} must be a mapping, not {type(value).__name__}"
        raise TypeError(msg)
    frozen: Mapping[str, Any] = freeze(value, name, finite=finite)
    return frozen


def thaw(value: Any) -> Any:
    """What `freeze` was given, as dicts and lists of its own."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [thaw(item) for item in value]
    return value
