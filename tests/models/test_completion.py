from __future__ import annotations

import copy
import pickle
import weakref
from typing import Any

import attrs
import msgpack
import pytest

from trio_infer import ClientStatistics, Completion, EpochSpan, RequestEvent, TokenDelta
from trio_infer.models.packed import Packed

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


# Routing indices that are still packed

LISTS = [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]


def with_routing_indices(value: Any = LISTS) -> Completion:
    completion = VALUES[3]
    assert isinstance(completion, Completion)
    return attrs.evolve(completion, routing_indices=value)


def packed() -> Completion:
    return with_routing_indices(Packed(memoryview(msgpack.packb(LISTS))))


@pytest.mark.parametrize(
    "use",
    [
        repr,
        copy.copy,
        copy.deepcopy,
        attrs.asdict,
        attrs.astuple,
        attrs.evolve,
        lambda completion: attrs.evolve(completion, latency=1.5),
        lambda completion: attrs.evolve(completion, routing_indices=None),
        lambda completion: pickle.loads(pickle.dumps(completion)),
        lambda completion: completion == with_routing_indices(),
        lambda completion: with_routing_indices() == completion,
        lambda completion: completion == with_routing_indices([]),
        lambda completion: completion == packed(),
        lambda completion: completion.routing_indices,
        lambda completion: completion.array("routing_indices").tolist(),
        lambda completion: [attribute.name for attribute in attrs.fields(type(completion))],
    ],
)
def test_whatever_is_done_with_a_completion_does_not_show_that_it_was_still_packed(
    use: Any,
) -> None:
    completion = packed()
    for _ in range(2):
        assert use(completion) == use(with_routing_indices())
    assert completion.routing_indices == LISTS


def test_who_has_seen_the_lists_sees_the_same_ones_again() -> None:
    completion = packed()
    first = completion.routing_indices
    assert first is completion.routing_indices
    assert attrs.evolve(completion, latency=1.5).routing_indices is first


def test_a_completion_that_is_still_packed_cannot_be_changed_or_hashed_either() -> None:
    completion = packed()
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        completion.routing_indices = None  # type: ignore[misc]
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        del completion.routing_indices
    with pytest.raises(TypeError, match="unhashable"):
        hash(completion)
    assert completion.routing_indices == LISTS


def test_the_bytes_are_let_go_for_lists_and_an_array_takes_neither_to_stay() -> None:
    packed = Packed(memoryview(msgpack.packb(LISTS)))
    completion, held = with_routing_indices(packed), weakref.ref(packed)
    del packed
    assert completion.array("routing_indices").tolist() == LISTS
    assert held() is not None
    assert completion.routing_indices == LISTS
    assert held() is None
