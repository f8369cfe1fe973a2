"""Tensors of torch's, where it is installed: ``nox -s megatron`` does that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from tests.protocol.test_tensors import FORMATS, PIECEWISE, bytes_of, check, nested, packed
from tests.vector_files import read_vectors
from trio_infer.protocol.dialects import DIALECTS
from trio_infer.protocol.media import check_media
from trio_infer.protocol.tensors import as_tensor

if TYPE_CHECKING:
    from collections.abc import Callable

torch = pytest.importorskip("torch")

TORCH_LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "C": lambda t: t,
    "transposed": lambda t: t.permute(2, 0, 1),
    "every other": lambda t: t[:, :, ::2],
    "of another order": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "a part": lambda t: t[1:, 1:, 1:3],
    "one row": lambda t: t[1, 2],
    "repeated": lambda t: t[:1].expand(3, 3, 4),
    "overlapping": lambda t: t.as_strided((3, 4), (1, 2), 5),
    "without dimensions": lambda t: t[1, 1, 1],
    "empty": lambda t: t[:0],
    "empty inside": lambda t: t[:, :0],
    "channels last": lambda t: t[None].contiguous(memory_format=t_channels_last()),
}


def t_channels_last() -> Any:
    return torch.channels_last


def counted(dtype: str) -> Any:
    return torch.arange(24).reshape(2, 3, 4).to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", [*FORMATS, "bfloat16"])
@pytest.mark.parametrize("layout", TORCH_LAYOUTS)
def test_engines_get_the_numbers_and_their_key_however_a_tensor_lies_in_memory(
    layout: str, dtype: str
) -> None:
    check(TORCH_LAYOUTS[layout](counted(dtype)), dtype)


@pytest.mark.parametrize("layout", TORCH_LAYOUTS)
def test_the_key_is_over_the_bytes_that_megatron_core_hashes(layout: str) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64):
        tensor = TORCH_LAYOUTS[layout](torch.arange(24).reshape(2, 3, 4).to(dtype))
        flattened = tensor.detach().contiguous().cpu().reshape(-1)
        expected = flattened.view(torch.uint8).numpy().tobytes()
        assert bytes(as_tensor(tensor, "imgs").contiguous_bytes()) == expected
        assert packed(tensor) == msgpack.packb(tensor.tolist())


def test_a_tensor_that_is_being_trained_is_sent_as_it_is() -> None:
    leaf = counted("float32").requires_grad_()
    check(leaf, "float32")
    check(leaf * 2, "float32")
    check(torch.nn.Parameter(counted("float32")), "float32")
    assert leaf.requires_grad


@pytest.mark.filterwarnings("ignore")  # torch calls complex32 experimental
def test_a_tensor_whose_signs_torch_flips_only_when_asked_keeps_its_numbers() -> None:
    for numbers in ([1 + 2j, 3 - 4j], [1 + 2j]):  # of which the second lies without gaps
        imaginary = torch.tensor(numbers).conj().imag
        assert imaginary.is_neg()
        check(imaginary, "float32")
        assert packed(imaginary) == msgpack.packb([-number.imag for number in numbers])


def test_the_bytes_of_a_copy_live_as_long_as_who_holds_them() -> None:
    view = as_tensor(counted("float32").flip(0).permute(2, 0, 1), "imgs").contiguous_bytes()
    others = [counted("float32").permute(2, 0, 1).contiguous() for _ in range(100)]
    assert bytes(view) == bytes_of(nested(counted("float32").flip(0).permute(2, 0, 1)), "float32")
    del others


@pytest.mark.parametrize("shape", PIECEWISE, ids=str)
def test_a_torch_tensor_packed_in_pieces_is_the_one_packed_at_once(shape: tuple[int, ...]) -> None:
    backwards = range(len(shape))[::-1]
    for tensor in (torch.rand(shape), torch.rand(shape[::-1]).permute(*backwards)):
        assert packed(tensor) == msgpack.packb(tensor.tolist())
        half = tensor.to(torch.bfloat16)
        assert packed(half) == msgpack.packb(half.tolist())


TORCH_REFUSED: dict[str, Callable[[Any], Any]] = {
    "complex": lambda t: t.zeros(2, dtype=t.complex64),
    "conjugated": lambda t: t.zeros(2, dtype=t.complex64).conj(),
    "sparse": lambda t: t.zeros(2, 2).to_sparse(),
    "compressed": lambda t: t.zeros(2, 2).to_sparse_csr(),
    "quantized": lambda t: t.quantize_per_tensor(t.zeros(2), 1.0, 0, t.qint8),
    "nested": lambda t: t.nested.nested_tensor([t.zeros(2), t.zeros(3)]),
    "jagged": lambda t: t.nested.nested_tensor([t.zeros(2), t.zeros(3)], layout=t.jagged),
    "without data": lambda t: t.zeros(2, device="meta"),
    "smaller than a byte": lambda t: t.zeros(2, dtype=t.uint4),
}


@pytest.mark.filterwarnings("ignore")  # torch calls most of these a prototype
@pytest.mark.parametrize("kind", TORCH_REFUSED)
def test_what_is_no_dense_tensor_of_real_numbers_is_refused(kind: str) -> None:
    with pytest.raises(TypeError, match=r"imgs must be a dense tensor of real numbers with data"):
        as_tensor(TORCH_REFUSED[kind](torch), "imgs")


def revived_by_torch(value: Any) -> Any:
    if isinstance(value, dict) and "__tensor__" in value:
        return torch.tensor(value["__tensor__"], dtype=getattr(torch, value["dtype"]))
    return {k: revived_by_torch(v) for k, v in value.items()} if isinstance(value, dict) else value


OF_TENSORS = [
    vector
    for vector in read_vectors("0.20-media")
    if vector["case"].startswith("tensor dict") or vector["case"] == "None tensor"
]


@pytest.mark.parametrize("vector", OF_TENSORS, ids=lambda vector: vector["case"])
def test_torch_tensors_are_packed_as_megatron_cores_client_packs_them(
    vector: dict[str, Any],
) -> None:
    media = check_media(revived_by_torch(vector["input"]), DIALECTS["0.20"])
    assert media is not None
    assert b"".join(media.inline_pieces()).hex() == vector["msgpack_hex"]


@pytest.mark.parametrize(
    "vector",
    [vector for vector in read_vectors("framed-wire") if vector["call"].endswith("image tensors")],
    ids=lambda vector: vector["call"],
)
def test_torch_tensors_have_the_protocols_key(vector: dict[str, Any]) -> None:
    given = revived_by_torch(vector["request"]["multi_modal_data"])
    media = check_media(given, DIALECTS["framed"])
    assert media is not None
    head, *_, body, _ = map(bytes.fromhex, vector["frames_hex"])
    assert media.descriptor(media.cache_key()) == msgpack.unpackb(head)[3]
    assert media.packed() == body
