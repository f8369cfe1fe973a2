"""One of many requests, and what became of it."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from trio_infer import GenerateRequest, Outcome, SamplingParams


def test_a_request_holds_what_it_was_given_unchanged() -> None:
    params, media, tag = SamplingParams(top_k=1), {"image": b"png"}, object()
    request = GenerateRequest([1, 2], params, multi_modal_data=media, tag=tag)
    assert request.prompt == [1, 2]
    assert request.sampling_params is params
    assert request.multi_modal_data is media
    assert request.tag is tag
    assert request.offload_params is request.kv_handoff is None


def test_only_prompt_and_parameters_are_given_by_position() -> None:
    with pytest.raises(TypeError):
        GenerateRequest("hi", None, {"image": b"png"})  # type: ignore[call-arg]


def test_requests_and_outcomes_cannot_be_changed() -> None:
    request = GenerateRequest("hi")
    outcome: Outcome[dict[str, Any]] = Outcome(0, request, completion={})
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        request.prompt = "ho"  # type: ignore[misc]
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        outcome.index = 1  # type: ignore[misc]


def test_equal_requests_stay_apart_in_a_set_whatever_their_tags() -> None:
    """A tag, or an array of token ids, may be nothing that can be compared or hashed."""
    requests = [GenerateRequest([1], tag=[]), GenerateRequest([1], tag=[])]
    assert len(set(requests)) == 2


def test_unwrapping_returns_even_an_empty_reply() -> None:
    outcome: Outcome[dict[str, Any]] = Outcome(0, GenerateRequest("hi"), completion={})
    assert outcome.unwrap() == {}


def test_unwrapping_a_failure_raises_it() -> None:
    error = ValueError("no")
    outcome: Outcome[dict[str, Any]] = Outcome(0, GenerateRequest("hi"), error=error)
    with pytest.raises(ValueError, match="no") as raised:
        outcome.unwrap()
    assert raised.value is error
