from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import attrs
import msgpack
import numpy as np
import pytest

from tests.naming import named
from trio_infer import KVHandoff, SamplingParams, UnsupportedByDialect
from trio_infer.protocol import preparation as preparation_module
from trio_infer.protocol.client_codec import ClientCodec
from trio_infer.protocol.coordinator_codec import ClientMessage, CoordinatorCodec
from trio_infer.protocol.dialect import Dialect, Kind
from trio_infer.protocol.dialects import DIALECTS, FRAMED
from trio_infer.protocol.hashing import PrefixHashing, hash_blocks
from trio_infer.protocol.preparation import Preparation, Prepared

if TYPE_CHECKING:
    from trio_infer.protocol.packing import Frames

PREPARATION = Preparation(ClientCodec(FRAMED))
HANDOFF = KVHandoff(kv_meta={"peer": "x", "blob": b"\0\1"}, src_block_ids=[7, 8], request_id=12)
IMAGE = {"image": b"\x89PNG"}
WITH_HANDOFF = [dialect for dialect in DIALECTS.values() if dialect.can_hand_off]
WITHOUT_HANDOFF = [dialect for dialect in DIALECTS.values() if not dialect.can_hand_off]


def preparation(dialect: Dialect | str) -> Preparation:
    return Preparation(ClientCodec(DIALECTS[dialect] if isinstance(dialect, str) else dialect))


def arrived(prepared: Prepared, dialect: Dialect = FRAMED) -> ClientMessage:
    """What a coordinator understands."""
    return CoordinatorCodec(dialect).decode(prepared.frames(5))


@pytest.fixture
def nothing_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test if anything is."""

    def refuse(*_args: object, **_kwargs: object) -> None:
        pytest.fail("packed before everything was checked")

    monkeypatch.setattr(msgpack, "packb", refuse)
    monkeypatch.setattr(msgpack, "Packer", lambda: SimpleNamespace(pack=refuse))
    monkeypatch.setattr(preparation_module, "pack_plain", refuse)


# --- what is refused, before anything is packed ---------------------------------------------------


class Foreign:
    """megatron-core's own class."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def serialize(self) -> dict[str, Any]:
        return self.fields


WITH_LOG_PROBS = SamplingParams(return_log_probs=True)
ASKING_FOR_A_HANDOFF = SamplingParams(do_kv_handoff=True)


def with_handoff(**changes: Any) -> dict[str, Any]:
    return {"prompt": [1, 2], "kv_handoff": attrs.evolve(HANDOFF, **changes)}


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    # of any request
    ({"prompt": ""}, ValueError, "prompt is empty"),
    ({"prompt": []}, ValueError, "prompt is empty"),
    ({"prompt": b"x"}, TypeError, "prompt must be str or token ids, not bytes"),
    ({"prompt": [True]}, TypeError, r"prompt\[0\] must be an int, not bool"),
    ({"sampling_params": {"top_k": 1}}, TypeError, "sampling_params must be a SamplingParams"),
    ({"sampling_params": Foreign(top_k=-1)}, ValueError, "top_k must be at least 0"),
    ({"multi_modal_data": b"x"}, TypeError, "multi_modal_data must be a dict, not bytes"),
    ({"multi_modal_data": {"image": "x"}}, TypeError, "must be bytes, a list of bytes"),
    ({"multi_modal_data": {"image": {}}}, ValueError, "holds none of imgs"),
    ({"multi_modal_data": {"audio": b"x"}}, ValueError, "only image and video"),
    ({"offload_params": object()}, TypeError, "offload_params must be of what MessagePack"),
    ({"offload_params": {1: 2}}, TypeError, "a key of offload_params must be a str"),
    ({"offload_params": {"x": [1.0, 2**64]}}, ValueError, r"offload_params\['x'\]\[1\]"),
]
OF_PREPARE: list[tuple[dict[str, Any], type[Exception], str]] = [
    # a handoff is what prefill() asks for
    ({"sampling_params": ASKING_FOR_A_HANDOFF}, ValueError, "do_kv_handoff is for prefill"),
    ({"sampling_params": Foreign(do_kv_handoff=True)}, ValueError, "do_kv_handoff is for prefill"),
    (
        with_handoff() | {"sampling_params": ASKING_FOR_A_HANDOFF},
        ValueError,
        "do_kv_handoff is for prefill",
    ),
    # a handoff with what makes the engine die of it
    (with_handoff() | {"prompt": "x"}, ValueError, "goes with token ids, not with text"),
    (with_handoff() | {"prompt": ""}, ValueError, "prompt is empty"),
    (with_handoff() | {"prompt": []}, ValueError, "prompt is empty"),
    (with_handoff() | {"prompt": [1.5]}, TypeError, r"prompt\[0\] must be an int"),
    (with_handoff() | {"sampling_params": WITH_LOG_PROBS}, ValueError, "without return_log_probs"),
    (
        with_handoff() | {"sampling_params": Foreign(return_log_probs=True)},
        ValueError,
        "without return_log_probs",
    ),
    (with_handoff() | {"multi_modal_data": IMAGE}, ValueError, "without multi_modal_data and off"),
    (with_handoff() | {"multi_modal_data": {}}, ValueError, "without multi_modal_data and offload"),
    (with_handoff() | {"offload_params": {}}, ValueError, "without multi_modal_data and offload"),
    (with_handoff() | {"offload_params": 0}, ValueError, "without multi_modal_data and offload"),
    # what is no handoff
    ({"kv_handoff": {"kv_meta": {}}}, TypeError, "kv_handoff must be a KVHandoff, not dict"),
    ({"kv_handoff": ({}, [7])}, TypeError, "kv_handoff must be a KVHandoff, not tuple"),
    ({"kv_handoff": False}, TypeError, "kv_handoff must be a KVHandoff, not bool"),
    ({"kv_handoff": KVHandoff}, TypeError, "kv_handoff must be a KVHandoff, not type"),
    (with_handoff(kv_meta=None), TypeError, "kv_meta must be a mapping, not NoneType"),
    (with_handoff(kv_meta=[1]), TypeError, "kv_meta must be a mapping, not list"),
    (with_handoff(kv_meta={1: 2}), TypeError, "a key of kv_meta must be a str, not int"),
    (with_handoff(kv_meta={"x": {1}}), TypeError, r"kv_meta\['x'\] must be of what MessagePack"),
    (with_handoff(kv_meta={"x": "\udc80"}), ValueError, r"kv_meta\['x'\] has a lone surrogate"),
    (with_handoff(kv_meta={"x": 2**64}), ValueError, r"kv_meta\['x'\] must fit 64 bits"),
    (with_handoff(src_block_ids=None), TypeError, "src_block_ids must be a sequence of ints"),
    (with_handoff(src_block_ids=7), TypeError, "src_block_ids must be a sequence of ints, not int"),
    (with_handoff(src_block_ids="78"), TypeError, "src_block_ids must be a sequence of ints"),
    (with_handoff(src_block_ids={7}), TypeError, "src_block_ids must be a sequence of ints"),
    (with_handoff(src_block_ids=[7, None]), TypeError, r"src_block_ids\[1\] must be an int"),
    (with_handoff(src_block_ids=[7, True]), TypeError, r"src_block_ids\[1\] must be an int"),
    (with_handoff(src_block_ids=[7, 8.0]), TypeError, r"src_block_ids\[1\] must be an int"),
    (with_handoff(src_block_ids=[2**63]), ValueError, r"src_block_ids\[0\] must fit signed 64"),
]


@pytest.mark.parametrize(("given", "error", "complaint"), [*REFUSED, *OF_PREPARE], ids=named)
@pytest.mark.usefixtures("nothing_is_packed")
def test_a_wrong_request_is_refused_before_anything_is_packed(
    given: dict[str, Any], error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        PREPARATION.prepare(**({"prompt": [1, 2]} | given))


@pytest.mark.parametrize(("given", "error", "complaint"), REFUSED, ids=named)
@pytest.mark.usefixtures("nothing_is_packed")
def test_a_wrong_prefill_is_refused_before_anything_is_packed(
    given: dict[str, Any], error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        PREPARATION.prepare_prefill(**({"prompt": [1, 2]} | given))


LACKING: list[tuple[str, dict[str, Any], str]] = [
    ("0.20", {"multi_modal_data": {"video": b"x"}}, "'0.20' has no video"),
    (
        "0.20",
        {"multi_modal_data": IMAGE | {"media_tokens_preexpanded": True}},
        "tokens_preexpanded",
    ),
    ("0.19", {"multi_modal_data": IMAGE}, "'0.19' has no image"),
    ("0.18", {"multi_modal_data": IMAGE}, "'0.18' has no image"),
    ("0.18", {"multi_modal_data": {"video": b"x"}}, "'0.18' has no video"),
    ("0.20", {"offload_params": {"x": 1}}, "'0.20' has no offload parameters: leave out"),
    ("0.20", {"offload_params": {}}, "has no offload parameters"),
    ("0.20", {"offload_params": False}, "has no offload parameters"),
    ("0.19", {"offload_params": {"x": 1}}, "has no offload parameters"),
    ("0.18", {"offload_params": {"x": 1}}, "has no offload parameters"),
]


@pytest.mark.parametrize(
    ("name", "given", "complaint"),
    [
        *LACKING,
        ("0.19", {"kv_handoff": HANDOFF}, "'0.19' has no KV handoff: leave out kv_handoff"),
        ("0.18", {"kv_handoff": HANDOFF}, "'0.18' has no KV handoff"),
        ("0.19", {"sampling_params": SamplingParams(streaming_interval=2)}, "streaming_interval"),
        ("0.18", {"sampling_params": SamplingParams(return_prompt_tokens=True)}, "prompt_tokens"),
    ],
    ids=named,
)
@pytest.mark.usefixtures("nothing_is_packed")
def test_what_a_release_does_not_know_is_not_sent_to_it(
    name: str, given: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UnsupportedByDialect, match=complaint):
        preparation(name).prepare([1, 2], **given)


@pytest.mark.parametrize(
    ("name", "given", "complaint"),
    [
        *[(name, given, complaint) for name, given, complaint in LACKING if name == "0.20"],
        ("0.19", {}, "'0.19' has no KV handoff: let one deployment do both"),
        ("0.18", {}, "'0.18' has no KV handoff: let one deployment do both"),
    ],
    ids=named,
)
@pytest.mark.usefixtures("nothing_is_packed")
def test_a_release_that_cannot_hand_off_is_not_asked_to_prefill(
    name: str, given: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UnsupportedByDialect, match=complaint):
        preparation(name).prepare_prefill([1, 2], **given)


@pytest.mark.parametrize("name", ["0.20", "0.19", "0.18"])
@pytest.mark.parametrize(
    "hashing",
    [
        PrefixHashing(block_size=4, policy="longest_prefix"),
        PrefixHashing(block_size=4),
        PrefixHashing(policy="load_balanced"),
    ],
    ids=named,
)
def test_hashes_that_nobody_would_get_cannot_be_asked_for(
    name: str, hashing: PrefixHashing
) -> None:
    with pytest.raises(UnsupportedByDialect, match=r"has no block hashes: leave out block_size"):
        Preparation(ClientCodec(DIALECTS[name]), hashing)


# --- who asks for a handoff, and who goes on from one ---------------------------------------------


@pytest.mark.parametrize("dialect", WITH_HANDOFF, ids=named)
@pytest.mark.parametrize(
    "given",
    [{}, {"sampling_params": SamplingParams()}, {"multi_modal_data": IMAGE}, {"streaming": True}],
    ids=named,
)
def test_no_engine_pins_blocks_for_an_ordinary_request(
    given: dict[str, Any], dialect: Dialect
) -> None:
    prepared = preparation(dialect).prepare([1, 2], **given)
    assert not prepared.asked.get("do_kv_handoff")
    assert prepared.asked["do_kv_handoff"] is False
    message = arrived(prepared, dialect)
    assert message.kind is Kind.SUBMIT_REQUEST
    assert message.sampling_params == prepared.asked
    assert prepared.asked["streaming"] is given.get("streaming", False)


@pytest.mark.parametrize("dialect", WITH_HANDOFF, ids=named)
@pytest.mark.parametrize(
    ("params", "budget"),
    [
        (None, 1),
        (SamplingParams(), 1),
        (SamplingParams(streaming=True), 1),
        (SamplingParams(num_tokens_to_generate=8), 8),
        (SamplingParams(num_tokens_to_generate=8, do_kv_handoff=True, streaming=True), 8),
        (Foreign(num_tokens_to_generate=8, do_kv_handoff=False), 8),
    ],
    ids=named,
)
def test_a_prefill_asks_for_the_handoff_and_for_one_token_unless_told_otherwise(
    params: Any, budget: int | None, dialect: Dialect
) -> None:
    prepared = preparation(dialect).prepare_prefill([1, 2], params)
    assert prepared.asked["do_kv_handoff"]
    message = arrived(prepared, dialect)
    assert message.kind is Kind.SUBMIT_REQUEST
    assert message.sampling_params == prepared.asked
    assert (
        prepared.asked
        == SamplingParams(num_tokens_to_generate=budget, do_kv_handoff=True).serialize()
    )


def test_a_prefill_may_have_media_and_offload_params() -> None:
    prepared = PREPARATION.prepare_prefill(
        "see", multi_modal_data=IMAGE, offload_params={"x": [1, None]}
    )
    message = arrived(prepared)
    assert message.media == [b"\x89PNG"]
    assert message.offload_params == {"x": [1, None]}


@pytest.mark.parametrize("dialect", WITH_HANDOFF, ids=named)
def test_a_decode_goes_on_from_the_blocks_it_was_given(dialect: Dialect) -> None:
    blocks: Any = np.array([7, 8])
    handoff = KVHandoff(kv_meta={"peer": ("x", np.int64(3))}, src_block_ids=blocks, request_id=12)
    params = SamplingParams(num_tokens_to_generate=8)
    prepared = preparation(dialect).prepare(
        np.array([1, 2]), params, kv_handoff=handoff, streaming=True
    )
    assert not prepared.asked.get("do_kv_handoff")
    assert arrived(prepared, dialect) == ClientMessage(
        kind=Kind.SUBMIT_REQUEST_WITH_KV,
        request_id=5,
        prompt=[1, 2],
        sampling_params=params.serialize() | {"streaming": True},
        kv_meta={"peer": ["x", 3]},
        src_block_ids=[7, 8],
    )


def test_media_salt_the_hashes_of_the_prompt_beside_them() -> None:
    hashing = PrefixHashing(block_size=2, policy="longest_prefix")
    hashed = Preparation(ClientCodec(FRAMED), hashing)
    plain, image, same, video = (
        arrived(hashed.prepare([1, 2, 3, 4, 5], multi_modal_data=data))
        for data in (None, IMAGE, {"image": [bytearray(b"\x89PNG")]}, {"video": b"\x89PNG"})
    )
    assert plain.block_hashes == hash_blocks([1, 2, 3, 4], 2)
    assert image.media_meta is not None
    salt = image.media_meta["media_cache_key"]
    assert image.block_hashes == hash_blocks([1, 2, 3, 4], 2, salt=salt)
    assert image.block_hashes == same.block_hashes
    assert len({tuple(m.block_hashes or ()) for m in (plain, image, video)}) == 3


def test_nothing_that_grows_with_prompt_or_media_stands_in_the_first_frame() -> None:
    small = PREPARATION.prepare([1], multi_modal_data={"image": [b"x"]}).frames(5)
    large = PREPARATION.prepare([1] * 1000, multi_modal_data={"image": [b"x" * 999] * 9}).frames(5)
    assert len(small[0]) == len(large[0])
    assert len(small) == len(large) == 5


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=named)
def test_offload_params_that_are_none_are_none_anywhere(dialect: Dialect) -> None:
    message = arrived(preparation(dialect).prepare("x", offload_params=None), dialect)
    assert message.offload_params is None


@pytest.mark.parametrize("offload", [{}, [], 0, False, "", {"a": (1, [2.5, b"x"])}], ids=named)
def test_offload_params_arrive_even_if_they_look_like_nothing(offload: Any) -> None:
    message = arrived(PREPARATION.prepare("x", offload_params=offload))
    assert message.offload_params == msgpack.unpackb(msgpack.packb(offload))
    assert message.offload_params is not None


# --- heavy requests -------------------------------------------------------------------------------

TOKENS, TEXT = list(range(2**14)), "x" * 2**18
IMGS = np.arange(2**16, dtype=np.float32).reshape(16, 16, 16, 16).T

HEAVY: dict[str, dict[str, Any]] = {
    "tokens": {"prompt": TOKENS},
    "text": {"prompt": TEXT},
    "an item": {"prompt": [1], "multi_modal_data": {"image": bytes(2**18)}},
    "items": {"prompt": [1], "multi_modal_data": {"image": [bytes(2**17)] * 2}},
    "tensors": {
        "prompt": [1],
        "multi_modal_data": {"image": {"imgs": IMGS, "num_img_embeddings_per_tile": 4}},
    },
    "a handoff": {"prompt": TOKENS, "kv_handoff": HANDOFF},
}
LIGHT: dict[str, dict[str, Any]] = {
    "tokens": {"prompt": TOKENS[1:]},
    "text": {"prompt": TEXT[1:]},
    "an item": {"prompt": [1], "multi_modal_data": {"image": bytes(2**18 - 1)}},
    "items": {"prompt": TEXT[1:], "multi_modal_data": {"image": [bytes(2**17), bytes(2**16)]}},
    "tensors": {"prompt": [1], "multi_modal_data": {"image": {"imgs": IMGS[:7]}}},
    "a handoff": {"prompt": TOKENS[1:], "kv_handoff": HANDOFF},
    "nothing": {"prompt": [1]},
}
CODEC_FOR_ALL = Preparation(
    ClientCodec(FRAMED),
    PrefixHashing(block_size=16, policy="longest_prefix"),
)


def of(given: dict[str, Any], prepares: Preparation) -> Prepared:
    return prepares.prepare(**given)


@pytest.mark.parametrize("case", LIGHT)
def test_what_is_soon_packed_is_packed_at_once(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = of(LIGHT[case], PREPARATION)
    assert not prepared.is_heavy
    monkeypatch.setattr(preparation_module, "pack", lambda _: pytest.fail("packed again"))
    first, second = prepared.frames(5), prepared.frames(5)
    assert first == second


@pytest.mark.parametrize("case", HEAVY)
@pytest.mark.usefixtures("nothing_is_packed")
def test_what_takes_long_to_pack_does_not_hold_up_other_tasks(case: str) -> None:
    assert of(HEAVY[case], PREPARATION).is_heavy


@pytest.mark.parametrize("case", ["tokens", "an item", "tensors"])
@pytest.mark.usefixtures("nothing_is_packed")
def test_a_heavy_prefill_does_not_either(case: str) -> None:
    prepared = PREPARATION.prepare_prefill(**HEAVY[case])
    assert prepared.is_heavy
    assert prepared.asked["do_kv_handoff"]


def framed_and_0_20(given: dict[str, Any]) -> dict[str, Frames]:
    return {
        dialect.name: of(
            given, CODEC_FOR_ALL if dialect is FRAMED else preparation(dialect)
        ).frames(5)
        for dialect in WITH_HANDOFF
    }


@pytest.mark.parametrize("case", HEAVY)
def test_a_heavy_request_has_the_same_frames_as_a_light_one(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heavy = framed_and_0_20(HEAVY[case])
    monkeypatch.setattr(preparation_module, "HEAVY_BYTES", 2**30)
    monkeypatch.setattr(preparation_module, "HEAVY_TOKENS", 2**30)
    assert not of(HEAVY[case], PREPARATION).is_heavy
    assert framed_and_0_20(HEAVY[case]) == heavy


# --- what is the caller's stays the caller's ------------------------------------------------------


@pytest.mark.parametrize("prefill", [False, True])
def test_nothing_of_the_callers_is_changed(prefill: bool) -> None:  # noqa: FBT001
    given: dict[str, Any] = {
        "prompt": [1, 2],
        "sampling_params": Foreign(stop_words=["a"], num_tokens_to_generate=3, later={"x": [1]}),
        "multi_modal_data": {"image": [b"x"], "media_tokens_preexpanded": True},
        "offload_params": {"x": [1, {"y": None}]},
    }
    before = copy.deepcopy(given | {"sampling_params": given["sampling_params"].fields})
    (PREPARATION.prepare_prefill if prefill else PREPARATION.prepare)(**given).frames(5)
    assert given | {"sampling_params": given["sampling_params"].fields} == before


def test_nothing_of_a_handoff_is_changed() -> None:
    before = copy.deepcopy(HANDOFF)
    PREPARATION.prepare([1], kv_handoff=HANDOFF).frames(5)
    assert before == HANDOFF
    assert type(HANDOFF.kv_meta) is dict


@pytest.mark.parametrize("heavy", [False, True])
def test_what_the_caller_changes_afterwards_is_not_sent(heavy: bool) -> None:  # noqa: FBT001
    prompt = [1] * (2**14 if heavy else 2)
    fields: dict[str, Any] = {"extra": [1]}
    image, items = bytearray(b"before"), [b"x"]
    offload: dict[str, Any] = {"x": [1]}
    kv_meta: dict[str, Any] = {"x": [1]}
    blocks = [7]
    ordinary = PREPARATION.prepare(
        prompt, Foreign(**fields), multi_modal_data={"image": image}, offload_params=offload
    )
    listed = PREPARATION.prepare(prompt, multi_modal_data={"image": items})
    handoff = KVHandoff(kv_meta=kv_meta, src_block_ids=blocks, request_id=12)
    decode = PREPARATION.prepare(prompt, kv_handoff=handoff)
    assert ordinary.is_heavy is listed.is_heavy is decode.is_heavy is heavy
    image[:] = b"after"
    items.append(b"y")
    for changed in (prompt, blocks, fields["extra"], offload["x"], kv_meta["x"]):
        changed.append(99)
    offload["y"] = kv_meta["y"] = 1
    message = arrived(ordinary)
    assert message.prompt == prompt[:-1]
    assert message.sampling_params is not None
    assert message.sampling_params["extra"] == [1]
    assert message.media == [b"before"]
    assert message.offload_params == {"x": [1]}
    assert arrived(listed).media == [b"x"]
    message = arrived(decode)
    assert (message.prompt, message.kv_meta) == (prompt[:-1], {"x": [1]})
    assert message.src_block_ids == [7]


def test_a_light_requests_tensor_may_be_used_anew_at_once() -> None:
    array = np.array([1.0, 2.0], np.float32)
    prepared = PREPARATION.prepare("see", multi_modal_data={"image": {"imgs": array}})
    array[:] = 0
    assert arrived(prepared).media == {"imgs": [1.0, 2.0]}


@pytest.mark.parametrize("dialect", WITHOUT_HANDOFF, ids=named)
def test_the_oldest_releases_get_no_parameter_of_a_handoff(dialect: Dialect) -> None:
    prepared = preparation(dialect).prepare("x", streaming=True)
    assert not prepared.asked.get("do_kv_handoff")
    assert prepared.asked.keys().isdisjoint({"do_kv_handoff", "streaming"})
    assert arrived(prepared, dialect).sampling_params == prepared.asked


def test_each_request_carries_its_own_parameters_though_the_last_are_remembered() -> None:
    hot, cold = SamplingParams(temperature=2.0), SamplingParams(temperature=0.5)
    prepares = Preparation(ClientCodec(FRAMED))
    sent = []
    for params, streaming in ((hot, False), (cold, False), (cold, True), (hot, False), (hot, True)):
        prepared = prepares.prepare([1], params, streaming=streaming)
        message = CoordinatorCodec(FRAMED).decode(prepared.frames(0))
        assert message.sampling_params == prepared.asked
        assert message.sampling_params is not None
        sent.append((message.sampling_params["temperature"], message.sampling_params["streaming"]))
    assert sent == [(2.0, False), (0.5, False), (0.5, True), (2.0, False), (2.0, True)]


def test_parameters_of_a_prefill_are_not_mistaken_for_those_of_others() -> None:
    params = SamplingParams(num_tokens_to_generate=3)
    prepares = Preparation(ClientCodec(FRAMED))
    for make, expected in (
        (prepares.prepare, False),
        (prepares.prepare_prefill, True),
        (prepares.prepare, False),
    ):
        message = CoordinatorCodec(FRAMED).decode(make([1], params).frames(0))
        assert message.sampling_params is not None
        assert message.sampling_params["do_kv_handoff"] is expected
