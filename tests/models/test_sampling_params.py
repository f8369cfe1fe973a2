from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import attrs
import msgpack
import numpy as np
import pytest

from tests.vector_files import read_vectors
from trio_infer import SamplingParams
from trio_infer.models.sampling_params import FIELD_NAMES, to_sampling_params

VECTORS = read_vectors("0.20-sampling_params")

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"streaming_interval": True}, "streaming_interval must be an int, not bool"),
    ({"streaming_interval": 1.5}, "streaming_interval must be an int, not float"),
    ({"top_k": 5, "top_p": 0.5}, "top_k and top_p exclude each other"),
    ({"num_tokens_to_generate": 4, "num_tokens_total": 5}, "give one budget"),
    ({"return_prompt_top_n_logprobs": True, "top_n_logprobs": 2}, "wants return_log_probs=True"),
]
"""Those of the vectors that kill a request, or an engine, later: here they never leave."""

ACCEPTED = [
    vector
    for vector in VECTORS
    if "kwargs" in vector and vector["kwargs"] not in [kwargs for kwargs, _ in REFUSED]
]
ADDED = [v for v in VECTORS if "add_attributes" in v]


def test_each_vector_is_either_accepted_or_refused() -> None:
    assert len(VECTORS) == len(ACCEPTED) + len(REFUSED) + len(ADDED)
    assert len(ACCEPTED) == 11
    assert all("raises" not in vector for vector in ACCEPTED)


@pytest.mark.parametrize("vector", ACCEPTED, ids=lambda vector: str(vector["kwargs"]))
def test_what_is_sent_is_what_the_peers_own_class_sends(vector: dict[str, Any]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        serialized = SamplingParams(**vector["kwargs"]).serialize()
    assert [warning.category.__name__ for warning in caught] == vector["warnings"]
    assert serialized == vector["serialize"]
    assert list(serialized) == list(vector["serialize"])
    assert msgpack.packb(serialized).hex() == vector["msgpack_hex"]


@pytest.mark.parametrize(("kwargs", "complaint"), REFUSED, ids=str)
def test_what_would_kill_the_request_later_is_refused(
    kwargs: dict[str, Any], complaint: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=complaint):
        SamplingParams(**kwargs)


class Foreign:
    """Has ``serialize``, as megatron-core's own class does."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        self.asked = 0

    def serialize(self) -> dict[str, Any]:
        self.asked += 1
        return self.fields


def test_what_newer_engines_know_is_sent_behind_the_rest() -> None:
    (vector,) = (v for v in ADDED if v["add_attributes"] == {"min_length": 4, "eod_id": 153})
    expected = vector["serialize"]
    ours = SamplingParams(extra=vector["add_attributes"]).serialize()
    assert list(ours.items()) == list(expected.items())
    theirs = to_sampling_params(Foreign(**expected)).serialize()
    assert list(theirs.items()) == list(expected.items())


def test_an_added_attribute_that_is_a_parameter_after_all_is_checked_like_one() -> None:
    (vector,) = (v for v in ADDED if v["add_attributes"] == {"top_n_logprobs": 3})
    with pytest.raises(ValueError, match="top_n_logprobs wants return_log_probs"):
        to_sampling_params(Foreign(**vector["serialize"]))
    asking = vector["serialize"] | {"return_log_probs": True}
    assert to_sampling_params(Foreign(**asking)).serialize() == asking


FULL: dict[str, Any] = {
    "temperature": 0.5,
    "top_k": 3,
    "return_log_probs": True,
    "num_tokens_to_generate": 9,
    "termination_id": 2,
    "top_n_logprobs": 2,
    "stop_words": ["a", "b"],
    "streaming_interval": 4,
    "extra": {"list": [1, {"a": [2]}], "none": None},
}


def test_nobody_can_change_parameters_that_serve_several_requests() -> None:
    words, extra = ["a"], {"list": [1]}
    params = SamplingParams(stop_words=words, extra=extra)
    words.append("b")
    extra["list"].append(2)
    before = params.serialize()
    assert before["stop_words"] == ["a"]
    assert before["list"] == [1]
    for name in (*FIELD_NAMES, "extra", "unheard_of"):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(params, name, None)
    with pytest.raises(TypeError):
        params.extra["list"] = None  # type: ignore[index]
    with pytest.raises(AttributeError):
        params.extra["list"].append(3)
    params.serialize()["stop_words"].append("c")
    params.serialize()["list"].append(3)
    assert params.serialize() == before


def test_parameters_can_be_compared_hashed_copied_and_sent_to_another_process() -> None:
    params = SamplingParams(**FULL)
    assert params == SamplingParams(**FULL)
    assert params != SamplingParams()
    assert len({params, SamplingParams(**FULL), SamplingParams()}) == 2
    for same in (copy.copy(params), copy.deepcopy(params), pickle.loads(pickle.dumps(params))):
        assert same == params
        assert hash(same) == hash(params)
        assert same.serialize() == params.serialize()


def test_a_changed_copy_is_neither_warned_about_nor_refused() -> None:
    params = SamplingParams(return_log_probs=True, top_n_logprobs=2)
    assert params.return_prompt_top_n_logprobs
    assert attrs.evolve(params, temperature=0.5).serialize()["return_prompt_top_n_logprobs"]
    without = attrs.evolve(params, skip_prompt_log_probs=True)
    assert not without.return_prompt_top_n_logprobs
    assert not without.serialize()["return_prompt_top_n_logprobs"]
    assert not attrs.evolve(params, top_n_logprobs=0).return_prompt_top_n_logprobs


def test_the_warning_points_at_the_callers_line() -> None:
    with pytest.warns(DeprecationWarning, match="return_prompt_top_n_logprobs") as caught:
        SamplingParams(return_prompt_top_n_logprobs=True)
    assert caught[0].filename == __file__


def test_repr_shows_what_one_would_type() -> None:
    shown = repr(SamplingParams(**FULL))
    assert shown.startswith("SamplingParams(temperature=0.5, top_k=3, ")
    assert "(_" not in shown
    assert " _" not in shown


@pytest.mark.parametrize(
    ("name", "value", "plain"),
    [
        ("temperature", np.float32(0.5), 0.5),
        ("temperature", 1, 1.0),
        ("top_p", np.float64(0.25), 0.25),
        ("top_k", np.int64(3), 3),
        ("num_tokens_to_generate", np.uint16(3), 3),
        ("termination_id", np.array(3), 3),
        ("add_BOS", np.True_, True),
        ("streaming_interval", np.int8(3), 3),
        ("stop_words", ("a", "b"), ["a", "b"]),
        ("stop_words", [], []),
        ("num_tokens_total", 0, 0),
        ("top_p", 1, 1.0),
        ("termination_id", -1, -1),
    ],
)
def test_values_are_made_plain(name: str, value: object, plain: object) -> None:
    serialized = SamplingParams(**{name: value}).serialize()  # type: ignore[arg-type]
    assert serialized[name] == plain
    assert type(serialized[name]) is type(plain)


FLAGS = [name for name in FIELD_NAMES if SamplingParams().serialize()[name] is False]
NUMBERS = ["temperature", "top_p"]
COUNTS = ["top_k", "num_tokens_to_generate", "num_tokens_total", "top_n_logprobs"]
INTS = [*COUNTS, "termination_id", "streaming_interval"]


def test_the_tables_below_miss_no_parameter() -> None:
    assert {*FLAGS, *NUMBERS, *INTS, "stop_words"} == set(FIELD_NAMES)


@pytest.mark.parametrize(
    ("names", "value", "error", "complaint"),
    [
        (FLAGS, 1, TypeError, "must be a bool, not int"),
        (FLAGS, None, TypeError, "must be a bool, not NoneType"),
        (FLAGS, "yes", TypeError, "must be a bool, not str"),
        (NUMBERS, "0.5", TypeError, "must be a number, not str"),
        (NUMBERS, True, TypeError, "must be a number, not bool"),
        (NUMBERS, None, TypeError, "must be a number, not NoneType"),
        (NUMBERS, float("nan"), ValueError, "must be finite"),
        (NUMBERS, float("inf"), ValueError, "must be finite"),
        (["top_p"], 1.5, ValueError, "must lie between 0 and 1, not at 1.5"),
        (["top_p"], -0.5, ValueError, "must lie between 0 and 1, not at -0.5"),
        (INTS, True, TypeError, "must be an int, not bool"),
        (INTS, 1.0, TypeError, "must be an int, not float"),
        (INTS, "1", TypeError, "must be an int, not str"),
        (INTS, 2**63, ValueError, "must fit signed 64 bits"),
        (INTS, np.array([1, 2]), TypeError, "must be a single value, not ndarray"),
        (["top_k", "top_n_logprobs", "streaming_interval"], None, TypeError, "must be an int"),
        (COUNTS, -1, ValueError, "must be at least 0, not -1"),
        (["streaming_interval"], 0, ValueError, "must be at least 1, not 0"),
        (["stop_words"], "end", TypeError, "must be a list of str, not str"),
        (["stop_words"], {"end"}, TypeError, "must be a list of str, not set"),
        (["stop_words"], ["a", ""], ValueError, "must not contain an empty string"),
        (["stop_words"], ["a", b"b"], TypeError, r"\[1\] must be a str, not bytes"),
        (["stop_words"], ["\udc80"], ValueError, r"\[0\] has a lone surrogate"),
        (["extra"], [("a", 1)], TypeError, "must be a mapping, not list"),
        (["extra"], {"a": {1}}, TypeError, r"\['a'\] must be of what MessagePack can carry"),
        (["extra"], {"a": 2**64}, ValueError, r"\['a'\] must fit 64 bits"),
    ],
)
def test_a_wrong_value_is_refused_and_the_parameter_named(
    names: list[str], value: Any, error: type[Exception], complaint: str
) -> None:
    for name in names:
        with pytest.raises(error, match=f"^{name} ?{complaint}"):
            SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("kwargs", "complaint"),
    [
        ({"num_tokens_to_generate": 0, "num_tokens_total": 0}, "give one budget"),
        ({"top_k": 1, "top_p": 0.1}, "top_k and top_p exclude each other"),
        ({"top_n_logprobs": 1}, "top_n_logprobs wants return_log_probs=True"),
        (
            {"return_prompt_top_n_logprobs": True, "skip_prompt_log_probs": True},
            "return_prompt_top_n_logprobs and skip_prompt_log_probs exclude each other",
        ),
        ({"extra": {"top_k": 3}}, "extra must not name a parameter that SamplingParams has"),
        ({"extra": {"return_prompt_top_n_logprobs": True}}, "extra must not name a parameter"),
    ],
    ids=str,
)
def test_parameters_that_exclude_each_other_are_refused(
    kwargs: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        SamplingParams(**kwargs)


def test_no_parameters_are_the_defaults_and_own_ones_are_taken_as_they_are() -> None:
    assert to_sampling_params(None) == SamplingParams()
    params = SamplingParams(top_k=1)
    assert to_sampling_params(params) is params


def test_a_foreign_object_is_asked_once_and_never_changed() -> None:
    fields = SamplingParams(**FULL).serialize() | {"new": [1]}
    foreign = Foreign(**fields)
    untouched = copy.deepcopy(fields)
    params = to_sampling_params(foreign)
    assert foreign.asked == 1
    assert foreign.fields == untouched
    assert params.serialize() == untouched
    foreign.fields["new"].append(2)
    assert params.serialize() == untouched


def test_a_foreign_object_that_names_few_parameters_gets_the_other_defaults() -> None:
    params = to_sampling_params(Foreign(top_k=3))
    assert params == SamplingParams(top_k=3)


class Reckless(SamplingParams):
    """Says something else than it was checked for."""

    def serialize(self) -> dict[str, Any]:
        return super().serialize() | {"top_p": 3.0}


def test_a_subclass_that_says_something_else_is_checked_for_that() -> None:
    with pytest.raises(ValueError, match="top_p must lie between 0 and 1"):
        to_sampling_params(Reckless())


@pytest.mark.parametrize(
    "value", [{"top_k": 1}, 0.5, "greedy", [], SamplingParams, Foreign], ids=repr
)
def test_what_cannot_be_serialized_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"must be a SamplingParams, or have serialize\(\), not"):
        to_sampling_params(value)


@pytest.mark.parametrize(
    ("fields", "error", "complaint"),
    [
        ([("top_k", 1)], TypeError, r"serialize\(\) must return a mapping, not list"),
        (None, TypeError, r"serialize\(\) must return a mapping, not NoneType"),
        ({"top_k": "1"}, TypeError, "^top_k must be an int, not str"),
        ({"top_k": 1, "top_p": 0.5}, ValueError, "top_k and top_p exclude each other"),
        ({3: 1}, TypeError, "a key of extra must be a str, not int"),
    ],
    ids=repr,
)
def test_what_a_foreign_object_says_is_checked(
    fields: Any, error: type[Exception], complaint: str
) -> None:
    foreign = Foreign()
    foreign.fields = fields
    with pytest.raises(error, match=complaint):
        to_sampling_params(foreign)
