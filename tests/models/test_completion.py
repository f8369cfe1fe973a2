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


# Epochs


def sampled_under(spans: list[tuple[int, int]] | None, **fields: Any) -> Completion:
    """Three tokens behind a prompt of ten."""
    values: dict[str, Any] = {"generated_tokens": [1, 2, 3], "prompt_length": 10}
    return Completion(
        request_id=0,
        generated_length=3,
        finish_reason="stop",
        latency=0.5,
        status="COMPLETED",
        policy_epoch=None if spans is None else tuple(EpochSpan(*span) for span in spans),
        **values | fields,
    )


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(0, 7)], 7),
        ([(0, 7), (11, 8)], 7),
        ([(0, 7), (10, 8), (12, 9)], 8),  # 7 was the prompt's
        ([(0, 7), (12, 3)], 3),
        ([(0, 7), (11, 3), (11, 9)], 7),  # 3 was over before a token was sampled
        ([(0, 7), (13, 3)], 7),  # 3 came behind the last token
        ([(11, 7)], None),  # what was the first token sampled under?
        ([], None),
        (None, None),
    ],
)
def test_the_oldest_epoch_is_that_of_the_stalest_token(
    spans: list[tuple[int, int]] | None, expected: int | None
) -> None:
    completion = sampled_under(spans)
    assert completion.oldest_epoch == expected
    if expected is not None:
        assert completion.oldest_epoch == min(
            epoch for i in range(3) if (epoch := completion.policy_epoch_of(i)) is not None
        )


def test_without_tokens_or_a_known_prompt_there_is_no_oldest_epoch() -> None:
    assert sampled_under([(0, 7)], generated_tokens=[]).oldest_epoch is None
    assert sampled_under([(0, 7)], prompt_length=None).oldest_epoch is None
