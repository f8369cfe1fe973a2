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

_NUMPY_DTYPES: Final = frozenset(
    {"bool", "float16", "float32", "float64", "bfloat16"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)


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
        if self.from_torch:
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
        dtype = value.dtype.name
        if dtype not in _NUMPY_DTYPES:
            msg = f"{name} must hold real numbers, not {value.dtype}"
            raise TypeError(msg)
        return Tensor(f"torch.{dtype}", value, from_torch=False)
    if torch is not None and isinstance(value, torch.Tensor):
        if value.is_complex() or value.is_quantized or value.layout is not torch.strided:
            msg = f"{name} must be a dense tensor of real numbers, not {value.dtype}"
            raise TypeError(msg)
        return Tensor(str(value.dtype), value.detach().cpu().resolve_neg(), from_torch=True)
    msg = f"{name} must be a NumPy array or a torch tensor, not {type(value).__name__}"
    raise TypeError(msg)


def pack_tensor(packer: msgpack.Packer, tensor: Tensor) -> None:
    """Packs the numbers as nested lists, piece by piece.

    Args:
        packer: one that keeps what it has packed (``autoreset=False``).
        tensor: the numbers.
    """
    shape = tensor.shape
    if len(shape) < 2 or math.prod(shape) <= PACKED_AT_ONCE:  # noqa: PLR2004 - no rows
        packer.pack(tensor.tolist())
        return
    packer.pack_array_header(shape[0])
    for row in tensor.array:
        pack_tensor(packer, attrs.evolve(tensor, array=row))
