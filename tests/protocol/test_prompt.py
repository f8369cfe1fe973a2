from __future__ import annotations

import array
import enum
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.naming import named
from trio_infer.models.scalars import INT64_MAX, INT64_MIN
from trio_infer.protocol.prompt import coerce_prompt


class Ids(Sequence[int]):
    """A sequence of the caller's own."""

    def __init__(self, *ids: int) -> None:
        self._ids = ids

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        return self._ids[index]

    def __len__(self) -> int:
        return len(self._ids)


class Tensor:
    """Does what torch's does here: it is no Sequence, has ``tolist``, and its items ``item``."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def tolist(self) -> Any:
        return self.content

    def item(self) -> Any:
        if isinstance(self.content, list):
            msg = "a Tensor with several elements cannot be converted to Scalar"
            raise RuntimeError(msg)  # noqa: TRY004 - as torch does
        return self.content

    def __iter__(self) -> Iterator[Tensor]:
        return (Tensor(item) for item in self.content)

    def __len__(self) -> int:
        return len(self.content)


class Token(enum.IntEnum):
    ONE = 1
    TWO = 2
    THREE = 3


@pytest.mark.parametrize(
    "prompt",
    [
        [1, 2, 3],
        (1, 2, 3),
        range(1, 4),
        deque([1, 2, 3]),
        Ids(1, 2, 3),
        array.array("b", [1, 2, 3]),
        array.array("Q", [1, 2, 3]),
        np.array([1, 2, 3]),
        np.array([1, 2, 3], dtype=np.uint8),
        np.array([1, 2, 3], dtype=np.int32),
        np.array([1, 2, 3], dtype=np.uint64),
        np.array([1, 2, 3], dtype=">i4"),
        np.array([1, 2, 3], dtype=object),
        np.array([3, 0, 2, 0, 1])[::-2],
        np.array([[1, 0], [2, 0], [3, 0]])[:, 0],
        list(np.array([1, 2, 3], dtype=np.int16)),
        [1, np.int64(2), np.uint8(3)],
        [np.array(1), 2, 3],
        Tensor([1, 2, 3]),
        list(Tensor([1, 2, 3])),
        Tensor((1, 2, 3)),
        list(Token),
    ],
    ids=named,
)
def test_token_ids_come_in_any_form(prompt: Any) -> None:
    ids = coerce_prompt(prompt)
    assert ids == [1, 2, 3]
    assert type(ids) is list
    assert all(type(item) is int for item in ids)


@pytest.mark.parametrize("own", [[1, 2, 3], Tensor([1, 2, 3])], ids=["list", "tolist"])
def test_what_the_caller_changes_afterwards_is_not_sent(own: Any) -> None:
    ids = coerce_prompt(own)
    (own if isinstance(own, list) else own.content).append(4)
    assert ids == [1, 2, 3]


@given(st.lists(st.integers(INT64_MIN, INT64_MAX), min_size=1))
def test_no_id_is_changed_on_the_way(ids: list[int]) -> None:
    assert coerce_prompt(ids) == ids
    assert coerce_prompt(tuple(ids)) == ids
    assert coerce_prompt(np.array(ids, dtype=np.int64)) == ids


@pytest.mark.parametrize("text", ["x", "naïve 🎉", "\0", "line\n", np.str_("numpy's")])
def test_text_stays_as_it_is(text: str) -> None:
    coerced = coerce_prompt(text)
    assert coerced == text
    assert type(coerced) is str


def test_an_enum_of_prompts_is_sent_as_its_text_not_as_its_name() -> None:
    class Prompts(str, enum.Enum):  # noqa: UP042 - a StrEnum would hide it
        GREETING = "hello"

    assert coerce_prompt(Prompts.GREETING) == "hello"


@pytest.mark.parametrize(
    "prompt",
    ["", [], (), range(0), deque(), Ids(), array.array("i"), np.array([], dtype=int), Tensor([])],
    ids=named,
)
def test_an_empty_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(ValueError, match="prompt is empty"):
        coerce_prompt(prompt)


@pytest.mark.parametrize(
    "prompt",
    [b"text", bytearray(b"text"), memoryview(b"text"), b"", np.bytes_(b"text")],
    ids=named,
)
def test_bytes_are_neither_text_nor_ids(prompt: Any) -> None:
    with pytest.raises(TypeError, match=r"not bytes|not bytearray|not memoryview"):
        coerce_prompt(prompt)


@pytest.mark.parametrize(
    ("prompt", "complaint"),
    [
        (None, "prompt must be str or a sequence of token ids, not NoneType"),
        (5, "a sequence of token ids, not int"),
        (np.int64(5), "a sequence of token ids, not int64"),
        (np.array(5), "a sequence of token ids, not ndarray"),
        (np.array("text"), "a sequence of token ids, not ndarray"),
        (np.array(b"text"), "a sequence of token ids, not ndarray"),
        (Tensor(5), "a sequence of token ids, not Tensor"),
        ({1, 2}, "a sequence of token ids, not set"),
        ({1: 2}, "a sequence of token ids, not dict"),
        (iter([1, 2]), "a sequence of token ids, not list_iterator"),
        ([True], r"prompt\[0\] must be an int, not bool"),
        ([1, False, 2], r"prompt\[1\] must be an int, not bool"),
        (np.array([True]), r"prompt\[0\] must be an int, not bool"),
        ([np.True_], r"prompt\[0\] must be an int, not bool"),
        ([1, 2.0], r"prompt\[1\] must be an int, not float"),
        (array.array("d", [1.0]), r"prompt\[0\] must be an int, not float"),
        (np.array([1, 2.0]), r"prompt\[0\] must be an int, not float"),
        ([np.float32(1)], r"prompt\[0\] must be an int, not float32"),
        (["1"], "each request has one prompt"),
        ([None], r"prompt\[0\] must be an int, not NoneType"),
        ([[1, 2]], r"prompt\[0\] must be an int, not list"),
        (np.array([[1, 2]]), r"prompt\[0\] must be an int, not list"),
        ([np.array([1, 2])], r"prompt\[0\] must be a single value, not ndarray"),
        ([Tensor([1, 2])], r"prompt\[0\] must be a single value, not Tensor"),
        (Tensor([[1], [2]]), r"prompt\[0\] must be an int, not list"),
    ],
    ids=named,
)
def test_what_is_no_list_of_ids_is_refused_and_pointed_at(prompt: Any, complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        coerce_prompt(prompt)


@pytest.mark.parametrize(
    "prompt",
    [
        [1, INT64_MAX + 1],
        [INT64_MIN - 1],
        [10**5000],
        [np.int8(1), INT64_MAX + 1],
        np.array([2**63], dtype=np.uint64),
        [np.uint64(2**63)],
        range(INT64_MAX, INT64_MAX + 2),
    ],
    ids=["above", "below", "huge", "mixed", "uint64 array", "uint64", "range"],
)
def test_an_id_beyond_64_bits_is_refused(prompt: Any) -> None:
    with pytest.raises(ValueError, match=r"prompt.* fit signed 64 bits"):
        coerce_prompt(prompt)


def test_text_that_utf8_cannot_carry_is_refused_with_a_way_out() -> None:
    with pytest.raises(ValueError, match=r"prompt has a lone surrogate at index 2, .*errors="):
        coerce_prompt("ab\udc80")
