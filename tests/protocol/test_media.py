from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.naming import named
from tests.vector_files import read_vectors
from trio_infer import UnsupportedByDialect
from trio_infer.protocol import media as media_module
from trio_infer.protocol.dialects import DIALECTS, FRAMED
from trio_infer.protocol.media import Media, check_media

if TYPE_CHECKING:
    from trio_infer.protocol.dialect import Dialect

ONE_FRAME = DIALECTS["0.20"]
REFUSALS = (TypeError, ValueError, UnsupportedByDialect)


def checked(multi_modal_data: Any, dialect: Dialect = FRAMED) -> Media:
    media = check_media(multi_modal_data, dialect)
    assert media is not None
    return media


def revived(value: Any) -> Any:
    """What a vector's JSON stands for."""
    if not isinstance(value, dict):
        return value
    if "__hex__" in value:
        return bytes.fromhex(value["__hex__"])
    if "__bytearray_hex__" in value:
        return bytearray.fromhex(value["__bytearray_hex__"])
    if "__memoryview_hex__" in value:
        return memoryview(bytes.fromhex(value["__memoryview_hex__"]))
    if "__tensor__" in value:
        return np.array(value["__tensor__"], value["dtype"])
    return {name: revived(item) for name, item in value.items()}


# --- what megatron-core's own client packs --------------------------------------------------------

RECORDED = {vector["case"]: vector for vector in read_vectors("0.20-media")}

IMGS = np.array([[[[0.0, 0.1], [-1.5, 2.25]]]], np.float32)

DESCRIBED: dict[str, Any] = {
    "tuple of bytes": {"image": (b"\x89PNG",)},
    "numpy imgs": {"image": {"imgs": IMGS}},
    "list imgs": {"image": {"imgs": IMGS.tolist()}},
    "image+audio": {"image": b"\x89PNG", "audio": b"RIFF"},
}
"""The inputs that a vector tells in words."""

ARRAYS_ARE_TAKEN = ["ndarray imgs"]
TEXT_IS_NOT_RUN_INSTEAD = ["unknown key only"]
NO_MEDIA = ["none", "image none"]
REFUSED = [
    case
    for case, vector in RECORDED.items()
    if ("raises" in vector and case not in ARRAYS_ARE_TAKEN) or case in TEXT_IS_NOT_RUN_INSTEAD
]
PACKED = [case for case in RECORDED if case not in (*REFUSED, *NO_MEDIA, *ARRAYS_ARE_TAKEN)]


def input_of(case: str) -> Any:
    given = RECORDED[case]["input"]
    return DESCRIBED[given] if isinstance(given, str) else revived(given)


def test_every_case_is_held() -> None:
    assert (len(RECORDED), len(PACKED), len(REFUSED)) == (17, 7, 7)
    described = {vector["input"] for vector in RECORDED.values() if type(vector["input"]) is str}
    assert described == DESCRIBED.keys()


@pytest.mark.parametrize("case", PACKED)
def test_media_are_packed_as_megatron_cores_client_packs_them(case: str) -> None:
    assert (
        b"".join(checked(input_of(case), ONE_FRAME).inline_pieces()).hex()
        == RECORDED[case]["msgpack_hex"]
    )


@pytest.mark.parametrize("case", PACKED)
def test_the_frame_of_media_holds_what_would_stand_in_the_payload(case: str) -> None:
    (value,) = revived(RECORDED[case]["output"]).values()
    packed = msgpack.unpackb(checked(input_of(case)).packed())
    assert packed == ([revived(item) for item in value] if isinstance(value, list) else value)


@pytest.mark.parametrize("case", NO_MEDIA)
@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=named)
def test_no_media_are_no_media_even_where_there_are_none(case: str, dialect: Dialect) -> None:
    assert RECORDED[case]["msgpack_hex"] == "c0"
    assert check_media(input_of(case), dialect) is None


@pytest.mark.parametrize("case", REFUSED)
def test_what_megatron_core_refuses_is_refused_and_what_it_would_ignore(case: str) -> None:
    with pytest.raises(REFUSALS):
        check_media(input_of(case), ONE_FRAME)


@pytest.mark.parametrize("case", ARRAYS_ARE_TAKEN)
def test_numpy_arrays_are_taken_where_megatron_core_wants_a_tensor(case: str) -> None:
    packed = b"".join(checked(input_of(case), ONE_FRAME).inline_pieces())
    assert packed == msgpack.packb({"image": {"imgs": IMGS.tolist()}})


# --- the key, by the protocol's description -------------------------------------------------------

TYPES = {"float32": "f", "int32": "i", "int64": "q", "uint8": "B", "bool": "?", "float16": "e"}


def key_of_items(modality: str, items: list[bytes]) -> str:
    text = b"megatron-media-v2\0" + modality.encode() + b"\0raw\0"
    return hashlib.sha256(
        text + b"".join(len(item).to_bytes(8, "big") + item for item in items)
    ).hexdigest()


def key_of_fields(modality: str, fields: dict[str, np.ndarray[Any, Any] | int]) -> str:
    text = b"megatron-media-v2\0" + modality.encode() + b"\0preprocessed\0"
    for name, value in sorted(fields.items()):
        text += name.encode() + b"\0"
        if isinstance(value, int):
            text += b"%d" % value
        else:
            dtype, numbers = (
                value.dtype.name,
                [value[index].item() for index in np.ndindex(value.shape)],
            )
            text += f"torch.{dtype}\0({', '.join(map(str, value.shape))}".encode()
            text += b",)\0" if value.ndim == 1 else b")\0"
            text += struct.pack(f"<{len(numbers)}{TYPES[dtype]}", *numbers)
        text += b"\0"
    return hashlib.sha256(text).hexdigest()


FRAMED_VECTORS = [
    vector for vector in read_vectors("framed-wire") if "multi_modal_data" in vector["request"]
]


@pytest.mark.parametrize("vector", FRAMED_VECTORS, ids=lambda vector: vector["call"])
def test_the_vectors_keys_are_what_the_protocol_describes(vector: dict[str, Any]) -> None:
    given = vector["request"]["multi_modal_data"]
    (modality,) = given.keys() & {"image", "video"}
    value = given[modality]
    if isinstance(value, dict) and "__hex__" not in value:
        key = key_of_fields(modality, revived(value))
    else:
        items = value if isinstance(value, list) else [value]
        value = [revived(item) for item in items]
        key = key_of_items(modality, value)
    media = checked(revived(given) | {modality: revived(value)})
    descriptor = msgpack.unpackb(bytes.fromhex(vector["frames_hex"][0]))[3]
    assert media.cache_key() == key == descriptor["media_cache_key"]
    assert media.descriptor(key) == descriptor
    assert media.packed() == bytes.fromhex(vector["frames_hex"][3])


ITEMS = st.lists(st.binary(max_size=100), max_size=5)
MODALITIES = st.sampled_from(["image", "video"])


@given(MODALITIES, ITEMS)
def test_encoded_items_get_the_key_that_engines_compute(modality: str, items: list[bytes]) -> None:
    for form in (items, list(map(bytearray, items)), [items[0]] if len(items) == 1 else items):
        media = checked({modality: form})
        assert media.cache_key() == key_of_items(modality, items)
        assert media.packed() == msgpack.packb(items)
        assert b"".join(media.inline_pieces()) == msgpack.packb({modality: items})
        assert media.packed_size == sum(map(len, items))


@given(MODALITIES, st.binary())
def test_one_item_is_a_list_of_one(modality: str, item: bytes) -> None:
    for form in (item, bytearray(item), [item]):
        media = checked({modality: form})
        assert media.cache_key() == key_of_items(modality, [item])
        assert media.packed() == msgpack.packb([item])


IMAGE_FIELDS: dict[str, Any] = {
    "imgs": IMGS.repeat(2, axis=0),
    "imgs_sizes": np.array([[2, 2], [2, 2]]),
    "num_tiles": np.array([1, 1], np.int32),
    "num_img_embeddings_per_tile": 256,
}
VIDEO_FIELDS: dict[str, Any] = {
    "imgs": np.asfortranarray(IMGS),
    "imgs_sizes": np.array([[2, 2]], ">i8"),
    "num_frames": np.array([4], np.uint8),
}


@pytest.mark.parametrize(
    ("modality", "names"),
    [("image", [name]) for name in IMAGE_FIELDS]
    + [("video", [name]) for name in VIDEO_FIELDS]
    + [
        ("image", list(IMAGE_FIELDS)),
        ("image", list(IMAGE_FIELDS)[::-1]),
        ("image", ["num_tiles", "imgs"]),
        ("video", list(VIDEO_FIELDS)),
        ("video", list(VIDEO_FIELDS)[::-1]),
    ],
    ids=named,
)
def test_tensors_get_the_key_that_engines_compute_in_whatever_order_they_are_given(
    modality: str, names: list[str]
) -> None:
    known = IMAGE_FIELDS if modality == "image" else VIDEO_FIELDS
    value = {name: known[name] for name in names}
    media = checked({modality: value})
    assert media.cache_key() == key_of_fields(modality, value)
    lists = {
        name: item if isinstance(item, int) else item.tolist()
        for name, item in known.items()
        if name in names
    }
    assert media.packed() == msgpack.packb(lists)
    assert b"".join(media.inline_pieces()) == msgpack.packb({modality: lists})
    assert media.packed_size == sum(
        9 * item.size for item in value.values() if not isinstance(item, int)
    )


@pytest.mark.parametrize(
    "array",
    [
        IMGS,
        IMGS.astype(np.float16),
        IMGS.astype(bool),
        IMGS.astype(">f4"),
        IMGS[..., ::-1],
        IMGS.T,
        IMGS[:0],
        np.array(3, np.int64),
    ],
    ids=lambda array: f"{array.dtype.str} {array.shape} {array.strides}",
)
def test_the_key_does_not_depend_on_how_an_array_lies_in_memory(array: Any) -> None:
    media = checked({"image": {"imgs": array}})
    assert media.cache_key() == key_of_fields("image", {"imgs": array})
    assert media.cache_key() == checked({"image": {"imgs": array.copy("C")}}).cache_key()
    assert media.packed() == msgpack.packb({"imgs": array.tolist()})


def test_different_media_never_share_their_key() -> None:
    different: list[dict[str, Any]] = [
        {"image": []},
        {"image": b""},
        {"image": [b"", b""]},
        {"image": b"ab"},
        {"image": [b"a", b"b"]},
        {"image": [b"b", b"a"]},
        {"video": b"ab"},
        {"image": {"imgs": np.zeros(4, np.float32)}},
        {"image": {"imgs": np.zeros((2, 2), np.float32)}},
        {"image": {"imgs": np.zeros((4, 1), np.float32)}},
        {"image": {"imgs": np.zeros(4, np.int32)}},
        {"image": {"imgs": np.zeros(2, np.float64)}},
        {"image": {"imgs_sizes": np.zeros(4, np.float32)}},
        {"image": {"imgs": np.zeros(4, np.float32), "num_img_embeddings_per_tile": 0}},
        {"image": {"num_img_embeddings_per_tile": 0}},
        {"image": {"num_img_embeddings_per_tile": 1}},
        {"video": {"imgs": np.zeros(4, np.float32)}},
    ]
    assert len({checked(given).cache_key() for given in different}) == len(different)


def test_placeholders_expanded_already_are_said_but_change_no_key() -> None:
    plain, expanded = (
        checked({"image": b"x", "media_tokens_preexpanded": flag}) for flag in (False, True)
    )
    assert plain.cache_key() == expanded.cache_key()
    assert plain.descriptor("k") == {"media_cache_key": "k", "modality": "image"}
    assert expanded.descriptor("k") == {
        "media_cache_key": "k",
        "media_tokens_preexpanded": True,
        "modality": "image",
    }


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535, 65_536, 2**20])
def test_items_of_any_size_are_packed_as_bytes(size: int) -> None:
    for count in (1, 2, 16):
        media = checked({"image": [bytes(size)] * count})
        assert media.packed() == msgpack.packb([bytes(size)] * count)


@pytest.mark.parametrize("count", [15, 16, 65_536])
def test_any_number_of_items_is_packed(count: int) -> None:
    assert checked({"image": [b"x"] * count}).packed() == msgpack.packb([b"x"] * count)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (b"\x89PNG", "multi_modal_data must be a dict, not bytes"),
        ([b"\x89PNG"], "multi_modal_data must be a dict, not list"),
        ("image", "multi_modal_data must be a dict, not str"),
        ({"image": "x"}, r"\['image'\] must be bytes, a list of bytes, or a dict .*, not str"),
        ({"image": (b"x",)}, r"\['image'\] must be bytes, .* not tuple"),
        ({"image": memoryview(b"x")}, r"\['image'\] must be bytes, .* not memoryview"),
        ({"image": np.zeros(2)}, r"\['image'\] must be bytes, .* not ndarray"),
        ({"image": 0}, r"\['image'\] must be bytes, .* not int"),
        ({"image": ["x"]}, r"\['image'\]\[0\] must be bytes, not str"),
        ({"image": [b"x", None]}, r"\['image'\]\[1\] must be bytes, not NoneType"),
        ({"image": [b"x", memoryview(b"x")]}, r"\['image'\]\[1\] must be bytes, not memoryview"),
        ({"video": [b"x", [b"x"]]}, r"\['video'\]\[1\] must be bytes, not list"),
        ({"image": {"imgs": [[1.0]]}}, r"\['image'\]\['imgs'\] must be a NumPy array .* not list"),
        ({"video": {"num_frames": 4}}, r"\['video'\]\['num_frames'\] must be a NumPy .* not int"),
        ({"image": {"imgs": np.zeros(2, complex)}}, r"\['imgs'\] must hold real numbers"),
        ({"image": {"imgs": np.array(["x"])}}, r"\['imgs'\] must hold real numbers"),
        (
            {"image": {"num_img_embeddings_per_tile": 1.0}},
            r"\['num_img_embeddings_per_tile'\] must be an int, not float",
        ),
        ({"image": {"num_img_embeddings_per_tile": True}}, "must be an int, not bool"),
        ({"image": {"num_img_embeddings_per_tile": np.zeros(2, int)}}, "must be a single value"),
        ({"image": b"x", "media_tokens_preexpanded": 1}, r"preexpanded'\] must be a bool, not int"),
        ({"image": b"x", "media_tokens_preexpanded": None}, "must be a bool, not NoneType"),
        ({"image": None, "media_tokens_preexpanded": "yes"}, "must be a bool, not str"),
    ],
    ids=named,
)
def test_media_of_a_wrong_type_are_pointed_at(given: Any, complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        check_media(given, FRAMED)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"image": b"x", "media_cache_key": "0" * 64}, "must not hold media_cache_key"),
        ({"image": b"x", "media_cache_key": None}, "must not hold media_cache_key"),
        ({"media_cache_key": "0" * 64}, "must not hold media_cache_key"),
        ({"image": b"x", "audio": b"x"}, "holds 'audio': there are only image and video"),
        ({"image": b"x", "audio": None}, "holds 'audio'"),
        ({"audio": b"x", "Image": b"x"}, "holds 'Image', 'audio'"),
        ({1: b"x"}, "holds 1: there are only"),
        ({"modality": "image", "image": b"x"}, "holds 'modality'"),
        ({"image": b"x", "video": b"x"}, "holds image and video: send a request for each"),
        ({"image": [], "video": {}}, "holds image and video"),
        ({"media_tokens_preexpanded": True}, "media_tokens_preexpanded, but no image or video"),
        ({"image": None, "media_tokens_preexpanded": True}, "but no image or video"),
        ({"image": {}}, r"\['image'\] holds none of imgs, .* would run the prompt as text"),
        ({"video": {}}, r"\['video'\] holds none of imgs, imgs_sizes, num_frames"),
        ({"image": {"imgs": None}}, r"\['image'\] holds none of"),
        ({"image": {"foo": 1}}, r"\['image'\] holds 'foo': it may hold imgs, "),
        ({"image": {"imgs": IMGS, "img_sizes": IMGS}}, r"holds 'img_sizes': it may hold imgs, "),
        ({"image": {"imgs": IMGS, "num_frames": IMGS}}, "holds 'num_frames'"),
        ({"video": {"imgs": IMGS, "num_tiles": IMGS}}, "holds 'num_tiles'"),
        ({"video": {"imgs": IMGS, "num_img_embeddings_per_tile": 4}}, "holds 'num_img_emb"),
        ({"image": {"num_img_embeddings_per_tile": 2**63}}, "must fit signed 64 bits"),
    ],
    ids=named,
)
def test_media_that_an_engine_would_ignore_or_mistake_are_refused(
    given: Any, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        check_media(given, FRAMED)


def test_an_item_larger_than_messagepack_can_count_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert media_module.MAX_ITEM == 2**32 - 1
    monkeypatch.setattr(media_module, "MAX_ITEM", 3)
    assert checked({"image": b"xxx"}).packed_size == 3
    with pytest.raises(ValueError, match=r"\['image'\]\[1\] has 4 bytes; 3 can be sent"):
        check_media({"image": [b"x", bytearray(4)]}, FRAMED)


@pytest.mark.parametrize(
    ("name", "given", "complaint"),
    [
        ("0.20", {"video": b"x"}, "'0.20' has no video"),
        ("0.20", {"video": {"imgs": IMGS}}, "'0.20' has no video"),
        ("0.20", {"image": b"x", "media_tokens_preexpanded": True}, "has no media_tokens_preexp"),
        ("0.19", {"image": b"x"}, "'0.19' has no image: send text or token ids alone"),
        ("0.19", {"video": b"x"}, "'0.19' has no video"),
        ("0.18", {"image": b"x"}, "'0.18' has no image"),
        ("0.18", {"image": []}, "'0.18' has no image"),
    ],
    ids=named,
)
def test_media_that_a_release_does_not_know_cannot_be_sent_to_it(
    name: str, given: Any, complaint: str
) -> None:
    with pytest.raises(UnsupportedByDialect, match=complaint):
        check_media(given, DIALECTS[name])


# --- what is taken --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [{}, {"video": None}, {"image": None, "video": None}, {"media_tokens_preexpanded": False}],
    ids=named,
)
@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=named)
def test_a_dict_without_media_is_a_text_request(given: Any, dialect: Dialect) -> None:
    assert check_media(given, dialect) is None


def test_the_other_modality_may_stand_there_as_none() -> None:
    assert checked({"image": None, "video": b"x"}).modality == "video"
    assert checked({"image": b"x", "video": None}, ONE_FRAME).modality == "image"


@pytest.mark.parametrize("flag", [True, np.True_])
def test_a_flag_may_be_numpys(flag: Any) -> None:
    media = checked({"image": b"x", "media_tokens_preexpanded": flag})
    assert media.descriptor("k")["media_tokens_preexpanded"] is True


def test_one_may_say_that_nothing_is_expanded_where_nothing_can_be() -> None:
    media = checked({"image": b"x", "media_tokens_preexpanded": False}, ONE_FRAME)
    assert b"".join(media.inline_pieces()) == msgpack.packb({"image": [b"x"]})


@pytest.mark.parametrize("number", [np.int64(4), np.uint8(4), np.array(4)], ids=named)
def test_the_one_int_may_be_numpys(number: Any) -> None:
    media = checked({"image": {"num_img_embeddings_per_tile": number}})
    assert media.cache_key() == key_of_fields("image", {"num_img_embeddings_per_tile": 4})
    assert media.packed() == msgpack.packb({"num_img_embeddings_per_tile": 4})


def test_a_tensor_that_is_none_is_left_out_whatever_its_name() -> None:
    given = {"image": {"imgs": IMGS, "num_tiles": None, "num_frames": None}}
    assert checked(given).cache_key() == key_of_fields("image", {"imgs": IMGS})


def test_mappings_need_not_be_dicts() -> None:
    inner = MappingProxyType({"imgs": IMGS})
    assert checked(OrderedDict(image=inner)).packed() == msgpack.packb({"imgs": IMGS.tolist()})


def test_what_the_caller_changes_afterwards_is_neither_hashed_nor_sent() -> None:
    item, items = bytearray(b"before"), [b"first"]
    fields: dict[str, Any] = {"imgs": IMGS}
    data: list[dict[str, Any]] = [{"image": item}, {"image": items}, {"image": fields}]
    media = [checked(given) for given in data]
    before = [(each.cache_key(), each.packed()) for each in media]
    item[:] = b"and after"
    items.append(b"second")
    fields["imgs_sizes"] = IMGS
    for each in data:
        each["media_tokens_preexpanded"] = True
    assert [(each.cache_key(), each.packed()) for each in media] == before
    assert not any(each.preexpanded for each in media)


def test_large_items_are_not_copied_to_be_checked() -> None:
    item = bytes(1000)
    assert checked({"image": [item]}).value[0] is item  # type: ignore[index]


def test_callers_media_stay_as_they_are() -> None:
    array = IMGS.T
    given: dict[str, Any] = {
        "image": {"num_tiles": None, "imgs": array},
        "media_tokens_preexpanded": True,
    }
    media = checked(given)
    media.cache_key()
    media.packed()
    assert list(given) == ["image", "media_tokens_preexpanded"]
    assert list(given["image"]) == ["num_tiles", "imgs"]
    assert given["image"]["imgs"] is array
