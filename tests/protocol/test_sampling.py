from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from tests.vector_files import read_vectors
from trio_infer import SamplingParams, UnsupportedByDialect
from trio_infer.models.sampling_params import to_sampling_params
from trio_infer.protocol.dialects import DIALECTS
from trio_infer.protocol.sampling import sampling_fields

if TYPE_CHECKING:
    from trio_infer.protocol.dialect import Dialect

OLDER = ("0.19", "0.18")
VECTORS = [(name, vector) for name in OLDER for vector in read_vectors(f"{name}-sampling_params")]

REFUSED_ANYWHERE = [
    {"streaming_interval": True},
    {"streaming_interval": 1.5},
    {"top_k": 5, "top_p": 0.5},
    {"num_tokens_to_generate": 4, "num_tokens_total": 5},
    {"return_prompt_top_n_logprobs": True, "top_n_logprobs": 2},
]
"""What `SamplingParams` refuses, whatever the dialect."""

STREAMING_ALONE: dict[str, Any] = {"streaming": True}
"""What the caller need not ask for, and so cannot get wrong."""

SENT = [
    (name, vector)
    for name, vector in VECTORS
    if "kwargs" in vector and "raises" not in vector and vector["kwargs"] not in REFUSED_ANYWHERE
]
LACKING = [
    (name, vector["kwargs"])
    for name, vector in VECTORS
    if "raises" in vector and vector["kwargs"] not in (*REFUSED_ANYWHERE, STREAMING_ALONE)
]


def test_each_vector_is_sent_or_refused_or_means_nothing_here() -> None:
    refused = [vector for _, vector in VECTORS if vector.get("kwargs") in REFUSED_ANYWHERE]
    alone = [vector for _, vector in VECTORS if vector.get("kwargs") == STREAMING_ALONE]
    added = [vector for _, vector in VECTORS if "add_attributes" in vector]
    assert len(VECTORS) == len(SENT) + len(LACKING) + len(refused) + len(alone) + len(added)
    assert (len(SENT), len(LACKING), len(alone), len(added)) == (16, 4, 2, 4)


def made(kwargs: dict[str, Any]) -> tuple[SamplingParams, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        params = SamplingParams(**kwargs)
    return params, [warning.category.__name__ for warning in caught]


@pytest.mark.parametrize(("name", "vector"), SENT, ids=str)
def test_what_is_sent_is_what_the_releases_own_class_sends(
    name: str, vector: dict[str, Any]
) -> None:
    params, warned = made(vector["kwargs"])
    fields = sampling_fields(params, DIALECTS[name])
    assert warned == vector["warnings"]
    assert list(fields.items()) == list(vector["serialize"].items())
    assert msgpack.packb(fields).hex() == vector["msgpack_hex"]


@pytest.mark.parametrize(("name", "kwargs"), LACKING, ids=str)
def test_what_a_release_does_not_know_cannot_be_asked_of_it(
    name: str, kwargs: dict[str, Any]
) -> None:
    (lacking,) = kwargs.keys() & {"streaming_interval", "do_kv_handoff"}
    with pytest.raises(
        UnsupportedByDialect,
        match=f"'{re.escape(name)}' has no sampling param.* {lacking}: leave it at",
    ):
        sampling_fields(made(kwargs)[0], DIALECTS[name])


@pytest.mark.parametrize("name", OLDER)
def test_extra_parameters_are_sent_behind_the_rest(name: str) -> None:
    (vector,) = (
        vector
        for each, vector in VECTORS
        if each == name and vector.get("add_attributes") == {"min_length": 4, "eod_id": 153}
    )
    params = SamplingParams(extra=vector["add_attributes"])
    assert list(sampling_fields(params, DIALECTS[name]).items()) == list(
        vector["serialize"].items()
    )


class Foreign:
    """megatron-core's own class, of whatever release."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def serialize(self) -> dict[str, Any]:
        return dict(self.fields)


@pytest.mark.parametrize("sent_to", DIALECTS.values(), ids=repr)
@pytest.mark.parametrize("made_by", DIALECTS.values(), ids=repr)
def test_a_releases_own_object_can_be_sent_to_any_other(made_by: Dialect, sent_to: Dialect) -> None:
    defaults = SamplingParams(temperature=0.5).serialize()
    theirs = to_sampling_params(
        Foreign(**{name: defaults[name] for name in made_by.sampling_fields})
    )
    fields = sampling_fields(theirs, sent_to)
    assert list(fields.items()) == [(name, defaults[name]) for name in sent_to.sampling_fields]


def test_a_return_of_the_prompts_ids_cannot_be_asked_of_0_18() -> None:
    params = SamplingParams(return_prompt_tokens=True)
    assert sampling_fields(params, DIALECTS["0.19"])["return_prompt_tokens"] is True
    with pytest.raises(UnsupportedByDialect, match=r"return_prompt_tokens: leave it at False"):
        sampling_fields(params, DIALECTS["0.18"])


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=repr)
@pytest.mark.parametrize("wanted", [True, False])
def test_streaming_is_what_is_wanted_now_whatever_the_parameters_say(
    dialect: Dialect,
    wanted: bool,  # noqa: FBT001
) -> None:
    for said in (True, False):
        fields = sampling_fields(SamplingParams(streaming=said), dialect, streaming=wanted)
        assert fields.get("streaming", wanted) is wanted
        assert ("streaming" in fields) is dialect.can_stream
