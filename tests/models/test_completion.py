from __future__ import annotations

import copy
import pickle
from typing import Any

import attrs
import pytest

from trio_infer import ClientStatistics, Completion, EpochSpan, RequestEvent, TokenDelta

VALUES = [
    TokenDelta([1]),
    RequestEvent(1.5, "FINISH"),
    EpochSpan(0, 7),
    Completion(
        request_id=0,
        generated_tokens=[1],
        generated_length=1,
        finish_reason="stop",
        latency=0.5,
        status="COMPLETED",
        events=(RequestEvent(1.5, "FINISH"),),
        policy_epoch=(EpochSpan(0, 7),),
        extra={"new": 1},
    ),
    ClientStatistics(submitted=3, completed=2, in_flight=1),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_what_comes_out_cannot_be_changed_but_copied_and_sent_to_another_process(
    value: Any,
) -> None:
    for field in attrs.fields(type(value)):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(value, field.name, None)
    assert copy.deepcopy(value) == value
    assert pickle.loads(pickle.dumps(value)) == value


def test_what_was_not_asked_for_is_none() -> None:
    completion = VALUES[3]
    unset = {
        field.name
        for field in attrs.fields(Completion)
        if field.default is None and getattr(completion, field.name) is None
    }
    assert {"generated_log_probs", "prompt_tokens", "num_cached_tokens", "ttft"} <= unset
    assert TokenDelta([1]) == TokenDelta([1], None, None)
    assert ClientStatistics() == ClientStatistics(in_flight=0, undelivered=0)


def test_fields_are_given_by_name() -> None:
    with pytest.raises(TypeError, match="positional"):
        Completion(0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        ClientStatistics(1)  # type: ignore[call-arg]
