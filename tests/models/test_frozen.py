from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_infer.models.frozen import FrozenMapping, freeze, thaw
from trio_infer.models.scalars import INT64_MAX, INT64_MIN

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(INT64_MIN, INT64_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary(),
    lambda items: st.lists(items, max_size=3) | st.dictionaries(st.text(), items, max_size=3),
    max_leaves=10,
)


@given(VALUES)
def test_what_is_frozen_thaws_to_what_it_was(value: object) -> None:
    frozen = freeze(value, "x")
    assert thaw(frozen) == value
    assert hash(frozen) == hash(freeze(value, "x"))
    assert pickle.loads(pickle.dumps(frozen)) == frozen == copy.deepcopy(frozen)


def test_a_change_of_the_original_does_not_reach_the_copy() -> None:
    original: dict[str, Any] = {"list": [1], "map": {"a": [2]}}
    frozen = freeze(original, "x")
    original["list"].append(3)
    original["map"]["a"].append(3)
    original["new"] = 3
    assert thaw(frozen) == {"list": [1], "map": {"a": [2]}}


def test_a_change_of_what_was_thawed_does_not_reach_the_frozen() -> None:
    frozen = freeze({"list": [1], "map": {"a": 2}}, "x")
    thawed = thaw(frozen)
    thawed["list"].append(3)
    thawed["map"]["a"] = 3
    assert thaw(frozen) == {"list": [1], "map": {"a": 2}}


def test_a_frozen_mapping_is_read_like_a_dict_and_cannot_be_written() -> None:
    items = {"a": 1, "b": 2}
    mapping = FrozenMapping(items)
    items["b"] = 3
    assert mapping["b"] == 2
    assert list(mapping) == ["a", "b"]
    assert len(mapping) == 2
    assert mapping == {"b": 2, "a": 1}
    assert mapping != {"a": 1}
    assert repr(mapping) == "{'a': 1, 'b': 2}"
    assert hash(mapping) == hash(FrozenMapping({"b": 2, "a": 1}))
    with pytest.raises(TypeError):
        mapping["a"] = 2  # type: ignore[index]
    with pytest.raises(AttributeError):
        mapping.more = 2  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("value", "frozen"),
    [(np.int16(3), 3), (np.float32(0.5), 0.5), (np.True_, True), ((1, [2]), (1, (2,)))],
)
def test_scalars_and_tuples_become_plain(value: object, frozen: object) -> None:
    assert freeze(value, "x") == frozen
    assert type(freeze(value, "x")) is type(frozen)


def nested(levels: int) -> list[object]:
    value: list[object] = []
    for _ in range(levels):
        value = [value]
    return value


def test_nesting_and_ints_go_as_far_as_peers_can_follow() -> None:
    assert thaw(freeze(nested(31), "x")) == nested(31)
    assert freeze([2**64 - 1], "x") == (2**64 - 1,)


def test_a_value_that_holds_itself_is_refused() -> None:
    circle: list[object] = []
    circle.append(circle)
    with pytest.raises(ValueError, match="nested more than 32 levels"):
        freeze(circle, "x")


@pytest.mark.parametrize(
    ("value", "error", "complaint"),
    [
        ({"a": {1, 2}}, TypeError, r"x\['a'\] must be of what MessagePack can carry, not set"),
        (1j, TypeError, "x must be of what MessagePack can carry, not complex"),
        (bytearray(b"a"), TypeError, "x must be of what MessagePack can carry, not bytearray"),
        ({"a": [0, object()]}, TypeError, r"x\['a'\]\[1\] must be of what .* not object"),
        ({1: 2}, TypeError, "a key of x must be a str, not int"),
        (np.array([1, 2]), TypeError, "x must be a single value, not ndarray"),
        ([2**64], ValueError, r"x\[0\] must fit 64 bits"),
        ([-(2**63) - 1], ValueError, r"x\[0\] must fit 64 bits"),
        (nested(33), ValueError, "^x is nested more than 32 levels deep"),
        ({"a": float("nan")}, ValueError, r"x\['a'\] must be finite"),
        ({"a": "\udc80"}, ValueError, r"x\['a'\] has a lone surrogate"),
        ({"\udc80": 1}, ValueError, "a key of x has a lone surrogate"),
    ],
)
def test_what_cannot_be_sent_is_refused_and_pointed_at(
    value: object, error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=f"^{complaint}"):
        freeze(value, "x")
