from __future__ import annotations

from typing import Any

import pytest

from trio_infer.models import EpochSpan, RequestEvent
from trio_infer.protocol.packing import MalformedMessage
from trio_infer.protocol.structuring import (
    array,
    array_of,
    epoch_spans,
    events,
    floats,
    ints,
    named_map,
    structure,
    top_n,
    wrong_type,
)

WANTED: dict[str, Any] = {
    "whole": int,
    "text": str,
    "flag": bool,
    "number": float,
    "ints": ints,
    "floats": floats,
    "top_n": top_n,
    "named": named_map,
    "items": array,
    "wrapped": array_of(ints),
    "spans": epoch_spans,
    "events": events,
}


@pytest.mark.parametrize(
    ("name", "value", "result"),
    [
        ("whole", 7, 7),
        ("whole", -(2**63), -(2**63)),
        ("text", "", ""),
        ("flag", False, False),
        ("number", 0.5, 0.5),
        ("number", 2, 2.0),
        ("number", float("-inf"), float("-inf")),
        ("ints", [], []),
        ("ints", [1, 2], [1, 2]),
        ("floats", [], []),
        ("floats", [0.5, 1.5], [0.5, 1.5]),
        ("floats", [0.5, 1], [0.5, 1.0]),
        ("top_n", [{}, {"a": -1, "b": -0.5}], [{}, {"a": -1.0, "b": -0.5}]),
        ("named", {"a": [1, None]}, {"a": [1, None]}),
        ("items", [[1], "a", None], [[1], "a", None]),
        ("spans", [], ()),
        ("spans", [[0, 1], [20, 2]], (EpochSpan(0, 1), EpochSpan(20, 2))),
        ("events", [{"timestamp": 1, "type": "FAIL"}], (RequestEvent(1.0, "FAIL", None),)),
        (
            "events",
            [{"timestamp": 1.5, "type": "E", "payload": {"a": [1]}, "unheard_of": 1}],
            (RequestEvent(1.5, "E", {"a": [1]}),),
        ),
        ("wrapped", [1, 2], [1, 2]),
        ("wrapped", ["tensor", [1, 2]], [1, 2]),
        ("wrapped", ["ndarray", {"data": [1, 2], "dtype": "int8"}], [1, 2]),
    ],
)
def test_what_a_field_may_hold(name: str, value: object, result: object) -> None:
    known, others = structure({name: value}, WANTED)
    assert known == {name: result}
    assert type(known[name]) is type(result)
    assert repr(known[name]) == repr(result)  # 1 and 1.0 are equal, and not the same
    assert not others


@pytest.mark.parametrize("name", WANTED)
def test_a_field_that_is_none_is_as_one_that_is_not_there(name: str) -> None:
    assert structure({name: None}, WANTED) == ({}, {})


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("whole", True, "int was expected, not bool"),
        ("whole", 7.0, "int was expected, not float"),
        ("whole", "7", "int was expected, not str"),
        ("text", b"bytes", "str was expected, not bytes"),
        ("text", 7, "str was expected, not int"),
        ("flag", 0, "bool was expected, not int"),
        ("number", "0.5", "a number was expected, not str"),
        ("number", True, "a number was expected, not bool"),
        ("ints", (1, 2), "a list of ints was expected, not tuple"),
        ("ints", {}, "a list of ints was expected, not dict"),
        ("ints", [1, 2.0], "a list of ints was expected"),
        ("ints", [True], "a list of ints was expected"),
        ("ints", [[1]], "a list of ints was expected"),
        ("floats", "12", "a list of numbers was expected, not str"),
        ("floats", [0.5, None], "a number was expected, not NoneType"),
        ("floats", [0.5, True], "a number was expected, not bool"),
        ("floats", [[0.5]], "a number was expected, not list"),
        ("top_n", {}, "list was expected, not dict"),
        ("top_n", [[]], "dict was expected, not list"),
        ("top_n", [None], "dict was expected, not NoneType"),
        ("top_n", [{b"a": 0.5}], "a map with a key that is no string"),
        ("top_n", [{"a": None}], "a number was expected, not NoneType"),
        ("named", [], "dict was expected, not list"),
        ("named", {b"a": 1}, "a map with a key that is no string"),
        ("items", {}, "list was expected, not dict"),
        ("spans", [[0]], r"a \[token index, epoch\] was expected"),
        ("spans", [[0, 1, 2]], r"a \[token index, epoch\] was expected"),
        ("spans", [[0, 1.0]], "a list of ints was expected"),
        ("spans", [7], "a list of ints was expected, not int"),
        ("spans", 7, "list was expected, not int"),
        ("events", 7, "list was expected, not int"),
        ("events", [7], "dict was expected, not int"),
        ("events", "events", "list was expected, not str"),
        ("events", [{"type": "FAIL"}], "a number was expected, not NoneType"),
        ("wrapped", ["tensor", "abc"], "a list of ints was expected, not str"),
        ("wrapped", ["ndarray", [1]], "a map with an ndarray's data was expected, not list"),
        ("events", [{"timestamp": "now", "type": "F"}], "a number was expected, not str"),
        ("events", [{"timestamp": 1, "type": None}], "str was expected, not NoneType"),
    ],
)
def test_what_a_field_may_not_hold(name: str, value: object, complaint: str) -> None:
    with pytest.raises(MalformedMessage, match=f"{name}: .*{complaint.removeprefix('^')}"):
        structure({name: value}, WANTED)


def test_a_field_that_nobody_knows_is_kept_apart() -> None:
    assert structure({"unheard_of": [1], "whole": 7, "gone": None}, WANTED) == (
        {"whole": 7},
        {"unheard_of": [1]},
    )


def test_long_lists_are_checked_not_copied() -> None:
    fields = {"ints": [1, 2], "floats": [0.5], "wrapped": ["tensor", [1]], "named": {"a": 1}}
    known, _ = structure(fields, WANTED)
    assert known["ints"] is fields["ints"]
    assert known["floats"] is fields["floats"]
    assert known["wrapped"] is fields["wrapped"][1]  # type: ignore[index]
    assert known["named"] is fields["named"]


def test_a_refusal_names_types_only_however_large_the_value() -> None:
    assert str(wrong_type([[1] * 1000], "a map")) == "a map was expected, not list"


def test_no_field_is_passed_on_whose_name_is_no_string() -> None:
    fields: dict[Any, Any] = {"whole": 7, b"unheard_of": 1}
    with pytest.raises(MalformedMessage, match="a key that is no string"):
        structure(fields, WANTED)
