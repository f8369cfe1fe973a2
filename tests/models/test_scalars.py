from __future__ import annotations

import enum
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.naming import named
from trio_infer.models.scalars import INT64_MAX, INT64_MIN, to_flag, to_float, to_int, to_text


class Color(enum.IntEnum):
    RED = 7


class Scalar:
    """A number by what it can do, such as torch's."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def item(self) -> Any:
        return self._value


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (7, 7),
        (Color.RED, 7),
        (np.int8(7), 7),
        (np.uint64(7), 7),
        (np.array(7), 7),
        (Scalar(7), 7),
        (INT64_MIN, INT64_MIN),
        (INT64_MAX, INT64_MAX),
    ],
    ids=named,
)
def test_ints(value: object, number: int) -> None:
    assert to_int(value, "x") == number
    assert type(to_int(value, "x")) is int


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, "bool"),
        (np.True_, "bool"),
        (Scalar(value=True), "Scalar"),
        (7.0, "float"),
        (np.float64(7), "float64"),
        ("7", "str"),
        (None, "NoneType"),
        ([7], "list"),
    ],
    ids=named,
)
def test_what_is_no_int(value: object, kind: str) -> None:
    with pytest.raises(TypeError, match=rf"^x must be an int, not {kind}"):
        to_int(value, "x")


@pytest.mark.parametrize(
    "value",
    [INT64_MIN - 1, INT64_MAX + 1, np.uint64(2**63), 10**5000],
    ids=["below", "above", "uint64", "too long to print"],
)
def test_ints_that_do_not_fit(value: object) -> None:
    with pytest.raises(ValueError, match=r"^x must fit signed 64 bits$"):
        to_int(value, "x")


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (0.5, 0.5),
        (1, 1.0),
        (np.float16(0.5), 0.5),
        (np.int32(2), 2.0),
        (Scalar(0.5), 0.5),
        (Decimal("0.5"), 0.5),
        (Fraction(1, 2), 0.5),
        (-0.0, 0.0),
    ],
    ids=named,
)
def test_floats(value: object, number: float) -> None:
    assert to_float(value, "x") == number
    assert type(to_float(value, "x")) is float


@pytest.mark.parametrize(
    ("value", "kind"),
    [(True, "bool"), (np.False_, "bool"), ("0.5", "str"), (None, "NoneType"), (1j, "complex")],
    ids=named,
)
def test_what_is_no_number(value: object, kind: str) -> None:
    with pytest.raises(TypeError, match=rf"^x must be a number, not {kind}"):
        to_float(value, "x")


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -np.inf, np.float32("nan"), 10**400, 10**5000],
    ids=["nan", "inf", "-inf", "float32 nan", "too large", "too long to print"],
)
def test_numbers_that_no_engine_can_take(value: object) -> None:
    with pytest.raises(ValueError, match=r"^x must be finite, and not too large for a float$"):
        to_float(value, "x")


@pytest.mark.parametrize("value", [True, False, np.True_, np.False_, np.array(object=True)])
def test_flags(value: object) -> None:
    assert to_flag(value, "x") is bool(value)


@pytest.mark.parametrize("value", [0, 1, "true", None, np.int64(1), 1.0])
def test_what_is_no_flag(value: object) -> None:
    with pytest.raises(TypeError, match=r"^x must be a bool, not "):
        to_flag(value, "x")


@pytest.mark.parametrize("convert", [to_int, to_float, to_flag])
def test_an_array_is_no_single_value(convert: Any) -> None:
    with pytest.raises(TypeError, match=r"^x must be a single value, not ndarray"):
        convert(np.array([1, 2]), "x")


def test_text() -> None:
    assert to_text("é", "x") == "é"
    assert type(to_text(np.str_("é"), "x")) is str
    with pytest.raises(TypeError, match=r"^x must be a str, not bytes"):
        to_text(b"e", "x")
    with pytest.raises(ValueError, match=r"^x has a lone surrogate at index 0"):
        to_text("\ud800", "x")
