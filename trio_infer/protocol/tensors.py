"""Tensors of NumPy and torch, without importing either: who has one has imported its library.

What the protocol wants of a tensor are its dtype as torch prints it, its shape, its bytes without
gaps, and its numbers as nested lists.
"""

from __future__ import annotations

import ctypes
import math
import sys
from typing import TYPE_CHECKING, Any, Final

import attrs

if TYPE_CHECKING:
    import msgpack

__all__ = ["Tensor", "as_tensor", "pack_tensor"]

PACKED_AT_ONCE: Final = 2**14
"""So many numbers are made Python's, and packed, in one go; between two, other threads run."""

_DTYPES: Final = frozenset(
    {"bool", "float16", "float32", "float64", "bfloat16"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
_TORCH_DTYPES: Final = frozenset(
    {f"torch.{dtype}" for dtype in _DTYPES}
    | {f"torch.float8_{kind}" for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")}
)
"""Real numbers of whole bytes. What else there is, such as ``torch.uint4``, has no ``tolist``."""


@attrs.frozen(eq=False)
class Tensor:
    """An array of real numbers.

    Attributes:
        dtype: as torch prints it.
        array: itself, in the memory of this machine.
        from_torch: whether it is torch's, or else NumPy's.
    """

    dtype: str
    array: Any
    from_torch: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """How long it is in each dimension."""
        return tuple(self.array.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes its numbers take."""
        return math.prod(self.shape) * int(self.array.itemsize)

    def contiguous_bytes(self) -> memoryview:
        """Its numbers one behind the other, the last index running fastest, little-endian.

        Copied only if they do not lie so already.
        """
        if not self.nbytes:
            return memoryview(b"")
        if self.from_torch:  # pragma: no cover - nox -s megatron has torch
            tensor = self.array.contiguous()
            memory: Any = (ctypes.c_ubyte * self.nbytes).from_address(tensor.data_ptr())
            memory.owner = tensor  # which it does not keep alive by itself
            return memoryview(memory).cast("B")
        array = self.array
        array = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
        return memoryview(array.reshape(-1).view("uint8"))

    def tolist(self) -> Any:
        """Its numbers as nested lists; of a dimensionless tensor the number."""
        array = self.array
        if not self.from_torch and self.dtype == "torch.bfloat16":
            array = array.astype("float32")  # it would have scalars of its own
        return array.tolist()


def as_tensor(value: object, name: str) -> Tensor:
    """An array of NumPy's or torch's.

    Raises:
        TypeError: for anything else, and for what does not hold real numbers.
    """
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _of_numpy(numpy, value, name)
    if torch is not None and isinstance(value, torch.Tensor):  # pragma: no cover - as above
        return _of_torch(torch, value, name)
    msg = f"{name} must be a NumPy array or a torch tensor, not {type(value).__name__}"
    raise TypeError(msg)


def _of_numpy(numpy: Any, value: Any, name: str) -> Tensor:
    if value.dtype.name not in _DTYPES:
        msg = f"{name} must hold real numbers, not {value.dtype}"
        raise TypeError(msg)
    if isinstance(value, numpy.ma.MaskedArray):
        msg = f"{name} must not be a masked array: give its filled()"
        raise TypeError(msg)
    plain = numpy.asarray(value)  # whose rows have a dimension less, which a matrix's have not
    return Tensor(f"torch.{value.dtype.name}", plain, from_torch=False)


def _of_torch(torch: Any, value: Any, name: str) -> Tensor:  # pragma: no cover - as above
    dtype = str(value.dtype)
    is_dense = value.layout is torch.strided and not value.is_nested
    if dtype not in _TORCH_DTYPES or not is_dense or value.is_meta:
        is_like = f"{dtype}, {value.layout}, on {value.device}"
        msg = f"{name} must be a dense tensor of real numbers with data, not one of {is_like}"
        raise TypeError(msg)
    return Tensor(dtype, value.detach().cpu().resolve_neg(), from_torch=True)


def pack_tensor(packer: msgpack.Packer, tensor: Tensor) -> None:
    """Packs the numbers as nested lists, piece by piece.

    Args:
        packer: one that keeps what it has packed (``autoreset=False``).
        tensor: the numbers.
    """
    array, shape = tensor.array, tensor.shape
    if math.prod(shape) <= PACKED_AT_ONCE:
        packer.pack(tensor.tolist())
        return
    packer.pack_array_header(shape[0])
    rows = PACKED_AT_ONCE // math.prod(shape[1:])
    if not rows:
        for row in array:
            pack_tensor(packer, attrs.evolve(tensor, array=row))
        return
    for start in range(0, shape[0], rows):
        for row in attrs.evolve(tensor, array=array[start : start + rows]).tolist():
            packer.pack(row)
