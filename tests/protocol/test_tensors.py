from __future__ import annotations

import struct
import sys
from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np
import pytest

from tests.naming import named
from trio_infer.protocol import tensors
from trio_infer.protocol.tensors import PACKED_AT_ONCE, as_tensor, pack_tensor

if TYPE_CHECKING:
    from collections.abc import Callable

FORMATS = {
    "bool": "?",
    "float16": "e",
    "float32": "f",
    "float64": "d",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
}


def nested(array: Any) -> Any:
    """The numbers one by one, by their indices."""
    if not array.shape:
        return array.item()
    return [nested(array[index]) for index in range(array.shape[0])]


def flat(numbers: Any) -> list[Any]:
    if not isinstance(numbers, list):
        return [numbers]
    return [number for part in numbers for number in flat(part)]


def bytes_of(numbers: Any, dtype: str) -> bytes:
    """The bytes without gaps, little-endian, made of the numbers alone."""
    if dtype == "bfloat16":  # the upper half of a float32
        return b"".join(struct.pack("<f", number)[2:] for number in flat(numbers))
    return b"".join(struct.pack(f"<{FORMATS[dtype]}", number) for number in flat(numbers))


def packed(array: Any) -> bytes:
    packer = msgpack.Packer(autoreset=False)
    pack_tensor(packer, as_tensor(array, "imgs"))
    result: bytes = packer.bytes()
    return result


def check(array: Any, dtype: str) -> None:
    """Holds all that the protocol wants of a tensor against the numbers, taken one by one."""
    tensor, numbers = as_tensor(array, "imgs"), nested(array)
    assert tensor.dtype == f"torch.{dtype}"
    assert repr(tensor.shape) == repr(tuple(map(int, array.shape)))
    expected = bytes_of(numbers, dtype)
    assert bytes(tensor.contiguous_bytes()) == expected
    assert tensor.nbytes == len(tensor.contiguous_bytes()) == len(expected)
    assert repr(tensor.tolist()) == repr(numbers)
    assert packed(array) == msgpack.packb(numbers)


# --- NumPy ----------------------------------------------------------------------------------------

COUNTED = np.arange(24).reshape(2, 3, 4)

LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "C": lambda a: a,
    "Fortran": np.asfortranarray,
    "transposed": lambda a: a.transpose(2, 0, 1),
    "every other": lambda a: a[:, :, ::2],
    "backwards": lambda a: a[::-1, :, ::-1],
    "backwards by two": lambda a: a[:, ::-2],
    "a part": lambda a: a[1:, 1:, 1:3],
    "one row": lambda a: a[1, 2],
    "repeated": lambda a: np.broadcast_to(a[0], (3, 3, 4)),
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "big-endian, transposed": lambda a: a.astype(a.dtype.newbyteorder(">")).T,
    "without dimensions": lambda a: np.array(a[1, 1, 1]),
    "big-endian, without dimensions": lambda a: np.array(5, a.dtype.newbyteorder(">")),
    "empty": lambda a: a[:0],
    "empty inside": lambda a: a[:, :0],
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype),
    "not aligned": lambda a: np.frombuffer(b"\0" + a.tobytes(), "u1")[1:].view(a.dtype),
    "a field of records": lambda a: np.array([(7, 1), (8, 2)], [("x", "u1"), ("y", a.dtype)])["y"],
}


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_engines_get_the_numbers_and_their_key_however_an_array_lies_in_memory(
    layout: str, dtype: str
) -> None:
    array = LAYOUTS[layout](COUNTED.astype(dtype))
    check(array, dtype)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([-128, 127], "int8"),
        ([0, 255], "uint8"),
        ([-(2**63), 2**63 - 1], "int64"),
        ([2**64 - 1], "uint64"),
        ([0.1, -1e-40, 65504.0, float("inf"), -0.0], "float32"),
        ([0.1, 5e-324, 1.7976931348623157e308], "float64"),
        ([0.1, 6e-8, 65504.0], "float16"),
    ],
    ids=named,
)
def test_no_number_is_changed_on_the_way(values: list[Any], dtype: str) -> None:
    check(np.array(values, dtype), dtype)


def test_a_nan_arrives_as_one() -> None:
    array = np.array([float("nan")], np.float32)
    (arrived,) = msgpack.unpackb(packed(array))
    assert arrived != arrived  # noqa: PLR0124 - which is how to tell
    assert bytes(as_tensor(array, "imgs").contiguous_bytes()) == array.tobytes()


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if "endian" not in name])
def test_bfloat16_of_numpy_is_what_torch_would_send(layout: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = LAYOUTS[layout]((COUNTED / 3).astype(ml_dtypes.bfloat16))
    tensor, numbers = as_tensor(array, "imgs"), nested(array.astype(np.float32))
    assert tensor.dtype == "torch.bfloat16"
    assert bytes(tensor.contiguous_bytes()) == bytes_of(numbers, "bfloat16")
    assert packed(array) == msgpack.packb(numbers)
    assert all(type(number) is float for number in flat(tensor.tolist()))


def test_bytes_that_lie_right_already_are_not_copied() -> None:
    array = COUNTED.astype(np.float32)
    view = as_tensor(array[1:], "imgs").contiguous_bytes()
    array[1, 0, 0] = 99
    assert bytes(view) == array[1:].tobytes()


def test_callers_arrays_stay_as_they_are() -> None:
    array = COUNTED.astype(">f4").T
    before = (array.copy(), array.strides, array.dtype)
    check(array, "float32")
    assert np.array_equal(array, before[0])
    assert (array.strides, array.dtype) == before[1:]


PIECEWISE = [
    (PACKED_AT_ONCE,),
    (PACKED_AT_ONCE + 1,),
    (3 * PACKED_AT_ONCE + 5,),
    (PACKED_AT_ONCE, 2),
    (2, PACKED_AT_ONCE + 1),
    (3, 70, 100),
    (2, 3, 130, 130),
    (1, 1, 2 * PACKED_AT_ONCE),
]


@pytest.mark.parametrize("shape", PIECEWISE, ids=named)
def test_a_tensor_packed_in_pieces_is_the_one_packed_at_once(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    assert packed(array) == msgpack.packb(array.tolist())
    assert packed(array[::-1]) == msgpack.packb(array[::-1].tolist())


class Counting(msgpack.Packer):  # type: ignore[misc] # it has no types
    """Remembers how many numbers it was given at most at a time."""

    most = 0

    def pack(self, value: Any) -> None:
        self.most = max(self.most, len(flat(value)))
        super().pack(value)


@pytest.mark.parametrize("shape", PIECEWISE, ids=named)
def test_no_piece_is_so_large_that_other_tasks_would_feel_it(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[int] = []
    to_list = tensors.Tensor.tolist

    def tolist(tensor: tensors.Tensor) -> Any:
        listed.append(int(np.prod(tensor.shape)))
        return to_list(tensor)

    monkeypatch.setattr(tensors.Tensor, "tolist", tolist)
    packer = Counting(autoreset=False)
    pack_tensor(packer, as_tensor(np.zeros(shape), "imgs"))
    assert packer.most <= PACKED_AT_ONCE
    assert max(listed) <= PACKED_AT_ONCE
    assert sum(listed) == np.prod(shape)
    assert len(listed) <= 2 * np.prod(shape) / PACKED_AT_ONCE + 2  # and none is needlessly small


@pytest.mark.parametrize("most", range(1, 30))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_where_the_pieces_end_changes_nothing(
    layout: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "PACKED_AT_ONCE", most)
    array = LAYOUTS[layout](COUNTED.astype(np.int16))
    assert packed(array) == msgpack.packb(nested(array))


def test_a_matrix_ends_though_its_rows_are_matrices_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "PACKED_AT_ONCE", 3)
    matrix = COUNTED[0].view(np.matrix)
    assert packed(matrix) == msgpack.packb(COUNTED[0].tolist())
    assert bytes(as_tensor(matrix, "imgs").contiguous_bytes()) == COUNTED[0].tobytes()


@pytest.mark.parametrize(
    ("array", "complaint"),
    [
        (np.zeros(2, complex), "real numbers, not complex128"),
        (np.zeros(2, np.complex64), "real numbers, not complex64"),
        (np.array([1, None]), "real numbers, not object"),
        (np.array(["text"]), "real numbers, not <U4"),
        (np.array([b"text"]), r"real numbers, not \|S4"),
        (np.zeros(2, [("x", "f4")]), r"real numbers, not \[\('x', '<f4'\)\]"),
        (np.zeros(2, "V4"), "real numbers, not"),
        (np.zeros(2, "M8[s]"), "real numbers, not datetime64"),
        (np.zeros(2, "m8[s]"), "real numbers, not timedelta64"),
        (np.zeros(2, [("x", "f4")]).view(np.recarray), "real numbers, not"),
        (np.ma.masked_array([1.0, 2.0], [False, True]), r"not be a masked array: give its filled"),
        (np.float32(1), "a NumPy array or a torch tensor, not float32"),
        ([[1.0]], "a NumPy array or a torch tensor, not list"),
        ((1.0,), "a NumPy array or a torch tensor, not tuple"),
        (1.0, "a NumPy array or a torch tensor, not float"),
        (b"bytes", "a NumPy array or a torch tensor, not bytes"),
        (memoryview(b"bytes"), "a NumPy array or a torch tensor, not memoryview"),
        (np.ndarray, "a NumPy array or a torch tensor, not type"),
    ],
    ids=named,
)
def test_what_is_no_array_of_real_numbers_is_refused(array: Any, complaint: str) -> None:
    with pytest.raises(TypeError, match=rf"imgs must .*{complaint}"):
        as_tensor(array, "imgs")


@pytest.mark.parametrize("longer", ["longdouble", "clongdouble"])
def test_numbers_that_torch_does_not_know_are_refused(longer: str) -> None:
    if np.dtype(longer).itemsize in (8, 16) and np.dtype(longer).name in ("float64", "complex128"):
        pytest.skip("no longer than the others on this machine")
    with pytest.raises(TypeError, match="real numbers"):
        as_tensor(np.zeros(2, longer), "imgs")


@pytest.mark.parametrize("dtype", ["int4", "float8_e4m3fn"])
def test_small_numbers_of_ml_dtypes_are_refused(dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with pytest.raises(TypeError, match=f"real numbers, not {dtype}"):
        as_tensor(np.zeros(2, getattr(ml_dtypes, dtype)), "imgs")


def test_who_has_neither_library_is_told_what_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.zeros(2)
    monkeypatch.delitem(sys.modules, "numpy")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(TypeError, match="must be a NumPy array or a torch tensor, not ndarray"):
        as_tensor(array, "imgs")
