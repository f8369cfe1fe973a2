"""Media beside a prompt: checked, hashed, and packed as the wire takes them.

A modality's value is encoded bytes, a list of them, or a dict of preprocessed tensors. Checking is
quick; the key and the bytes take time that grows with the media.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs
import msgpack

from ..models.scalars import to_flag, to_int
from .packing import pack
from .tensors import Tensor, as_tensor, pack_tensor

if TYPE_CHECKING:
    from .dialect import Dialect

__all__ = ["Media", "check_media"]

PREEXPANDED: Final = "media_tokens_preexpanded"
CACHE_KEY: Final = "media_cache_key"
_KEY_PREFIX: Final = b"megatron-media-v2\0"

_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "image": ("imgs", "imgs_sizes", "num_tiles", "num_img_embeddings_per_tile"),
    "video": ("imgs", "imgs_sizes", "num_frames"),
}
"""What the dict of a modality may hold, in the order of the wire: tensors, and one int."""

_INT: Final = "num_img_embeddings_per_tile"

MAX_ITEM: Final = 2**32 - 1
"""Bytes of an item: MessagePack counts them in 32 bits."""

_Raw: TypeAlias = tuple[bytes, ...]
_Preprocessed: TypeAlias = Mapping[str, Tensor | int]


@attrs.frozen(eq=False)
class Media:
    """The media of a request, checked.

    Attributes:
        modality: ``"image"`` or ``"video"``.
        value: the encoded items, or what they were made into.
        preexpanded: whether the prompt has the placeholder tokens already.
    """

    modality: str
    value: _Raw | _Preprocessed
    preexpanded: bool = False

    @property
    def packed_size(self) -> int:
        """How many bytes there are to pack, about: of a tensor nine for each number."""
        if isinstance(self.value, tuple):
            return sum(map(len, self.value))
        return sum(
            9 * math.prod(part.shape) for part in self.value.values() if isinstance(part, Tensor)
        )

    def cache_key(self) -> str:
        """What tells these media from others, whatever tokens stand for them in a prompt."""
        digest = sha256(_KEY_PREFIX + self.modality.encode() + b"\0")
        if isinstance(self.value, tuple):
            digest.update(b"raw\0")
            for item in self.value:
                digest.update(struct.pack(">Q", len(item)))
                digest.update(item)
            return digest.hexdigest()
        digest.update(b"preprocessed\0")
        for name in sorted(self.value):
            part = self.value[name]
            digest.update(name.encode() + b"\0")
            if isinstance(part, Tensor):
                digest.update(f"{part.dtype}\0{part.shape!r}\0".encode())
                digest.update(part.contiguous_bytes())
            else:
                digest.update(str(part).encode())
            digest.update(b"\0")
        return digest.hexdigest()

    def descriptor(self, cache_key: str) -> dict[str, Any]:
        """What the coordinator reads of them."""
        meta: dict[str, Any] = {"media_cache_key": cache_key}
        if self.preexpanded:
            meta[PREEXPANDED] = True
        return meta | {"modality": self.modality}

    def packed(self) -> bytes:
        """The items or tensors, as one value of MessagePack's."""
        return b"".join(self._pieces())

    def _pieces(self) -> list[bytes]:
        if isinstance(self.value, tuple):
            return list(_pack_items(self.value))
        packer = msgpack.Packer(autoreset=False)
        packer.pack_map_header(len(self.value))
        for name in _FIELDS[self.modality]:
            part = self.value.get(name)
            if part is not None:
                packer.pack(name)
                pack_tensor(packer, part) if isinstance(part, Tensor) else packer.pack(part)
        return [packer.bytes()]

    def inline_pieces(self) -> list[bytes]:
        """The same in pieces, under the modality's name, where media have no frame of their own."""
        return [b"\x81", pack(self.modality), *self._pieces()]


def _pack_items(items: _Raw) -> Iterator[bytes]:
    """The pieces of a packed list of bytes, of which the large ones are no copies."""
    packer = msgpack.Packer()
    yield packer.pack_array_header(len(items))
    for item in items:
        size = len(item)
        if size < 2**8:
            yield struct.pack(">BB", 0xC4, size)
        elif size < 2**16:
            yield struct.pack(">BH", 0xC5, size)
        else:
            yield struct.pack(">BI", 0xC6, size)
        yield item


def check_media(multi_modal_data: object, dialect: Dialect) -> Media | None:
    """The media that a caller gave, or None.

    Args:
        multi_modal_data: None, or a dict with one of ``image`` and ``video``, whose value is bytes,
            a list of bytes, or a dict of tensors; and perhaps ``media_tokens_preexpanded``.
        dialect: what the coordinator speaks.

    Raises:
        TypeError, ValueError: for anything else.
        UnsupportedByDialect: for media that the dialect has no words for.
    """
    if multi_modal_data is None:
        return None
    if not isinstance(multi_modal_data, Mapping):
        msg = f"multi_modal_data must be a dict, not {type(multi_modal_data).__name__}"
        raise TypeError(msg)
    modality = _modality(multi_modal_data, dialect)
    preexpanded = to_flag(
        multi_modal_data.get(PREEXPANDED, False), f"multi_modal_data[{PREEXPANDED!r}]"
    )
    if modality is None:
        if preexpanded:
            msg = f"multi_modal_data holds {PREEXPANDED}, but no image or video"
            raise ValueError(msg)
        return None
    if preexpanded and not dialect.is_multipart:
        dialect.refuse(PREEXPANDED, "leave it out, and let the engine expand the media's tokens")
    return Media(modality, _value(multi_modal_data[modality], modality), preexpanded)


def _modality(given: Mapping[Any, object], dialect: Dialect) -> str | None:
    """Which modality is given, if any: None stands for one that is not."""
    if CACHE_KEY in given:
        msg = f"multi_modal_data must not hold {CACHE_KEY}: it is computed here"
        raise ValueError(msg)
    unknown = sorted(repr(name) for name in given if name not in (*_FIELDS, PREEXPANDED))
    if unknown:
        msg = f"multi_modal_data holds {', '.join(unknown)}: there are only image and video"
        raise ValueError(msg)
    modalities = [name for name in _FIELDS if given.get(name) is not None]
    if len(modalities) > 1:
        msg = "multi_modal_data holds image and video: send a request for each"
        raise ValueError(msg)
    if not modalities:
        return None
    (modality,) = modalities
    if modality not in dialect.modalities:
        dialect.refuse(modality, "send text or token ids alone")
    return modality


def _value(value: object, modality: str) -> _Raw | _Preprocessed:
    name = f"multi_modal_data[{modality!r}]"
    if isinstance(value, bytes | bytearray):
        value = [value]
    if isinstance(value, list):
        for index, item in enumerate(value):
            if not isinstance(item, bytes | bytearray):
                msg = f"{name}[{index}] must be bytes, not {type(item).__name__}"
                raise TypeError(msg)
            if len(item) > MAX_ITEM:
                msg = f"{name}[{index}] has {len(item)} bytes; {MAX_ITEM} can be sent"
                raise ValueError(msg)
        return tuple(map(bytes, value))  # no copies, but of what the caller can still change
    if isinstance(value, Mapping):
        return _tensors(value, modality, name)
    msg = f"{name} must be bytes, a list of bytes, or a dict of tensors, not {type(value).__name__}"
    raise TypeError(msg)


def _tensors(value: Mapping[Any, object], modality: str, name: str) -> _Preprocessed:
    fields = _FIELDS[modality]
    value = {field: part for field, part in value.items() if part is not None}
    unknown = sorted(repr(field) for field in value if field not in fields)
    if unknown:
        msg = f"{name} holds {', '.join(unknown)}: it may hold {', '.join(fields)}"
        raise ValueError(msg)
    if not value:
        msg = f"{name} holds none of {', '.join(fields)}: the engine would run the prompt as text"
        raise ValueError(msg)
    return {
        field: (
            to_int(part, f"{name}[{field!r}]")
            if field == _INT
            else as_tensor(part, f"{name}[{field!r}]")
        )
        for field, part in value.items()
    }
