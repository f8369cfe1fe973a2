from __future__ import annotations

from typing import Any

import attrs
import pytest

from trio_infer.models import EpochSpan, RequestEvent
from trio_infer.protocol.packing import MalformedMessage
from trio_infer.protocol.structuring import structure, wrong_type


@attrs.frozen(kw_only=True)
class Sample:
    """A field of each type that a reply has."""

    needed: int = 0
    whole: int | None = None
    text: str | None = None
    flag: bool | None = None
    number: float | None = None
    ints: list[int] | None = None
    floats: list[float] | None = None
    top_n: list[dict[str, float]] | None = None
    named: dict[str, Any] | None = None
    items: list[Any] | None = None
    spans: tuple[EpochSpan, ...] | None = None
    events: tuple[RequestEvent, ...] | None = None


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
        *((name, None, None) for name in ("whole", "text", "ints", "top_n", "spans", "events")),
    ],
)
def test_what_a_field_may_hold(name: str, value: object, result: object) -> None:
    structured = getattr(structure({name: value}, Sample), name)
    assert structured == result
    assert type(structured) is type(result)
    assert repr(structured) == repr(result)  # 1 and 1.0 are equal, and not the same


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("needed", None, "^int was expected, not NoneType"),
        ("whole", True, "^int was expected, not bool"),
        ("whole", 7.0, "^int was expected, not float"),
        ("whole", "7", "^int was expected, not str"),
        ("text", b"bytes", "^str was expected, not bytes"),
        ("text", 7, "^str was expected, not int"),
        ("flag", 0, "^bool was expected, not int"),
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
        ("top_n", {}, "^list was expected, not dict"),
        ("top_n", [[]], "^dict was expected, not list"),
        ("top_n", [None], "^dict was expected, not NoneType"),
        ("top_n", [{b"a": 0.5}], "^str was expected, not bytes"),
        ("top_n", [{"a": None}], "a number was expected, not NoneType"),
        ("named", [], "^dict was expected, not list"),
        ("named", {b"a": 1}, "^str was expected, not bytes"),
        ("items", {}, "^list was expected, not dict"),
        ("spans", [[0]], r"a \[token index, epoch\] was expected"),
        ("spans", [[0, 1, 2]], r"a \[token index, epoch\] was expected"),
        ("spans", [[0, 1.0]], "a list of ints was expected"),
        ("spans", [7], "a list of ints was expected, not int"),
        ("spans", 7, "a body that makes no sense: TypeError"),
        ("events", 7, "a body that makes no sense: TypeError"),
        ("events", [7], "a body that makes no sense: TypeError"),
        ("events", "events", "a body that makes no sense"),
        ("events", [{"type": "FAIL"}], "a body that makes no sense: KeyError 'timestamp'"),
        ("events", [{"timestamp": "now", "type": "F"}], "a number was expected, not str"),
        ("events", [{"timestamp": 1, "type": None}], "^str was expected, not NoneType"),
    ],
)
def test_what_a_field_may_not_hold(name: str, value: object, complaint: str) -> None:
    with pytest.raises(MalformedMessage, match=complaint):
        structure({name: value}, Sample)


def test_a_field_that_nobody_knows_is_passed_over() -> None:
    assert structure({"unheard_of": object()}, Sample) == Sample()


def test_long_lists_are_checked_not_copied() -> None:
    ints, floats = [1, 2], [0.5]
    structured = structure({"ints": ints, "floats": floats}, Sample)
    assert structured.ints is ints
    assert structured.floats is floats


def test_a_refusal_names_types_only_however_large_the_value() -> None:
    assert str(wrong_type([[1] * 1000], "a map")) == "a map was expected, not list"
