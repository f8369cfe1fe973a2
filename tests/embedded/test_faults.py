"""What befalls replies on their way out, without I/O: in which order they come, and whether."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_infer.embedded import Faults
from trio_infer.embedded.faults import OVERTAKEN_SECONDS, FaultInjector
from trio_infer.embedded.outgoing import Outgoing
from trio_infer.protocol.client_codec import ClientCodec, ServerMessage
from trio_infer.protocol.coordinator_codec import CoordinatorCodec
from trio_infer.protocol.dialect import Dialect, Kind
from trio_infer.protocol.dialects import DIALECTS, FRAMED
from trio_infer.protocol.packing import Frames, MalformedMessage, pack


def client_of(request: int) -> bytes:
    return b"AB"[request % 2 :][:1]


def reply(request: int, place: int = 0) -> Outgoing:
    frames: Frames = [pack([21, request]), pack({"place": place, "text": "some words"})]
    return Outgoing(client_of(request), frames, request, place)


@attrs.frozen(kw_only=True)
class Flush:
    """New replies, by their requests, and when they come."""

    pause: float
    busy: bool
    requests: list[int]


def passed_on(
    injector: FaultInjector, flushes: list[Flush]
) -> tuple[list[Outgoing], list[Outgoing]]:
    """What was given to the injector and what came of it, till nothing was held any more."""
    given: list[Outgoing] = []
    sent: list[Outgoing] = []
    now = 0.0
    places: Counter[int] = Counter()
    for flush in flushes:
        now += flush.pause
        new = []
        for request in flush.requests:
            new.append(reply(request, places[request]))
            places[request] += 1
        given += new
        sent += injector.pass_on(new, now, busy=flush.busy)
        assert injector.due > now, "who waits until then would wait for nothing, for ever"
    while injector.due < math.inf:
        now = injector.due
        sent += injector.pass_on([], now, busy=True)
    return given, sent


def once(faults: Faults, messages: list[Outgoing], seed: int = 0) -> FaultInjector:
    injector = FaultInjector(faults, seed=seed)
    injector.pass_on(messages, 0.0, busy=False)
    return injector


PROBABILITIES = st.sampled_from([0.0, 0.2, 0.5, 1.0])
FLUSHES = st.lists(
    st.builds(
        Flush,
        pause=st.sampled_from([0.0, 0.01, 0.3]),
        busy=st.booleans(),
        requests=st.lists(st.integers(0, 5), max_size=8),
    ),
    max_size=12,
)
ALL_BUT_CORRUPT = st.builds(
    Faults,
    drop=PROBABILITIES,
    duplicate=PROBABILITIES,
    delay=PROBABILITIES,
    delay_seconds=st.sampled_from([(0.0, 0.0), (0.0, 0.1), (0.5, 2.0)]),
    reorder=PROBABILITIES,
)


@given(faults=ALL_BUT_CORRUPT, flushes=FLUSHES, seed=st.integers(0, 99))
def test_nothing_is_invented_and_nothing_lost_but_what_is_dropped(
    faults: Faults, flushes: list[Flush], seed: int
) -> None:
    injector = FaultInjector(faults, seed=seed)
    given, sent = passed_on(injector, flushes)
    times = Counter((each.request, each.place) for each in sent)
    assert all(each in given for each in sent)
    copies = Counter(times[each.request, each.place] for each in given)
    assert copies[0] == injector.counts["dropped"]
    assert copies[2] == injector.counts["duplicated"]
    assert copies.keys() <= {0, 1, 2}


@given(faults=ALL_BUT_CORRUPT, flushes=FLUSHES, seed=st.integers(0, 99))
def test_the_replies_to_one_request_keep_their_order(
    faults: Faults, flushes: list[Flush], seed: int
) -> None:
    _, sent = passed_on(FaultInjector(faults, seed=seed), flushes)
    places = defaultdict(list)
    for each in sent:
        places[each.request].append(each.place)
    assert all(each == sorted(each) for each in places.values())


@given(faults=ALL_BUT_CORRUPT, flushes=FLUSHES, seed=st.integers(0, 99))
def test_the_same_seed_does_the_same_again(faults: Faults, flushes: list[Flush], seed: int) -> None:
    first, second = (passed_on(FaultInjector(faults, seed=seed), flushes) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("seeds", [(1, 2), (None, None)])
def test_other_seeds_do_other_things_and_without_one_no_run_is_like_another(
    seeds: tuple[int | None, int | None],
) -> None:
    faults = Faults(drop=0.5, duplicate=0.5, corrupt=0.5, delay=0.5, reorder=0.5)
    flushes = [Flush(pause=0.01, busy=True, requests=[0, 1, 2, 3])] * 20
    first, second = (passed_on(FaultInjector(faults, seed=seed), flushes)[1] for seed in seeds)
    assert first != second


@given(flushes=FLUSHES)
def test_without_faults_everything_goes_through_untouched(flushes: list[Flush]) -> None:
    injector = FaultInjector()
    given, sent = passed_on(injector, flushes)
    assert sent == given
    assert not injector.counts


MESSAGES = [reply(request, place) for place in range(20) for request in range(6)]


def test_a_fault_made_more_probable_befalls_what_it_befell_and_more() -> None:
    def kept(drop: float) -> list[Outgoing]:
        injector = FaultInjector(Faults(drop=drop), seed=3)
        return list(injector.pass_on(MESSAGES, 0.0, busy=True))

    few, many = kept(0.8), kept(0.2)
    assert 0 < len(few) < len(many) < len(MESSAGES)
    assert [each for each in many if each in few] == few


def test_what_befalls_a_request_does_not_depend_on_others_or_on_other_faults() -> None:
    mine = [each for each in MESSAGES if each.request == 4]
    faults = Faults(drop=0.3, duplicate=0.3, corrupt=0.3)
    alone = FaultInjector(faults, seed=3).pass_on(mine, 0.0, busy=True)
    among = FaultInjector(faults, seed=3).pass_on(MESSAGES, 9.0, busy=False)
    assert [each for each in among if each.request == 4] == list(alone)
    delayed = FaultInjector(attrs.evolve(faults, delay=1.0, delay_seconds=(1, 1)), seed=3)
    assert delayed.pass_on(mine, 0.0, busy=True) == []
    assert delayed.pass_on([], 1.0, busy=True) == alone


def test_faults_can_be_changed_between_two_messages() -> None:
    injector = FaultInjector(seed=0)
    injector.faults = Faults(drop=1.0)
    assert injector.pass_on([reply(0)], 0.0, busy=True) == []
    injector.faults = Faults()
    assert injector.pass_on([reply(0, 1)], 0.0, busy=True) == [reply(0, 1)]


# Corruption


def decoded(dialect: Dialect, frames: Frames) -> ServerMessage | MalformedMessage:
    try:
        return ClientCodec(dialect).decode(frames)
    except MalformedMessage as error:
        return error


@given(
    dialect=st.sampled_from(list(DIALECTS.values())),
    request_id=st.integers(0, 2**63 - 1),
    kind=st.sampled_from([Kind.ENGINE_REPLY, Kind.ENGINE_REPLY_PARTIAL]),
    seed=st.integers(),
)
def test_a_corrupted_reply_is_never_taken_for_another_requests(
    dialect: Dialect, request_id: int, kind: Kind, seed: int
) -> None:
    """Nor for another kind of message."""
    codec = CoordinatorCodec(dialect)
    is_partial = kind is Kind.ENGINE_REPLY_PARTIAL and dialect.can_stream
    make = codec.partial if is_partial else codec.reply
    frames = make(request_id, {"new_tokens": [1, 2, 3]})
    before = ClientCodec(dialect).decode(frames)
    injector = FaultInjector(Faults(corrupt=1.0), seed=seed)
    (sent,) = injector.pass_on([Outgoing(b"A", frames, 0)], 0.0, busy=False)
    assert sent.frames != frames
    assert list(map(len, sent.frames)) == list(map(len, frames))
    after = decoded(dialect, sent.frames)
    if isinstance(after, MalformedMessage):
        assert after.request_id is None
    else:
        assert (after.kind, after.request_id) == (before.kind, before.request_id)
        assert after.body != before.body


def test_a_reply_sent_twice_is_corrupted_once() -> None:
    injector = FaultInjector(Faults(corrupt=1.0, duplicate=1.0), seed=0)
    first, second = injector.pass_on([reply(0)], 0.0, busy=False)
    assert first == second != reply(0)
    assert injector.counts == {"corrupted": 1, "duplicated": 1}


# Delay


@given(seed=st.integers())
def test_a_delayed_reply_comes_within_its_span(seed: int) -> None:
    injector = FaultInjector(Faults(delay=1.0, delay_seconds=(2, 3)), seed=seed)
    assert injector.pass_on([reply(0)], 10.0, busy=False) == []
    assert 12 <= injector.due <= 13
    assert injector.pass_on([], injector.due - 0.001, busy=False) == []
    assert injector.pass_on([], injector.due, busy=False) == [reply(0)]
    assert injector.due == math.inf


def test_what_comes_behind_a_delayed_reply_waits_and_other_requests_do_not() -> None:
    injector = FaultInjector(Faults(delay=1.0, delay_seconds=(1, 1)), seed=0)
    injector.pass_on([reply(0)], 0.0, busy=True)
    injector.faults = Faults()
    assert injector.pass_on([reply(0, 1), reply(2)], 0.5, busy=True) == [reply(2)]
    assert injector.pass_on([], 1.0, busy=True) == [reply(0), reply(0, 1)]


def test_delayed_replies_that_fall_due_together_go_in_the_order_of_their_times() -> None:
    injector = FaultInjector(Faults(delay=1.0, delay_seconds=(0, 5)), seed=0)
    injector.pass_on([reply(number) for number in range(10)], 0.0, busy=True)
    one_by_one: list[Outgoing] = []
    for tick in range(51):
        one_by_one += injector.pass_on([], tick / 10, busy=True)
    injector.pass_on([reply(number) for number in range(10)], 0.0, busy=True)
    at_once = list(injector.pass_on([], 5.0, busy=True))
    assert [each.request for each in at_once] == [each.request for each in one_by_one]
    assert len(at_once) == 10
    assert at_once != sorted(at_once, key=lambda each: each.request or 0)


# Reordering


def overtaken(faults: Faults | None = None) -> FaultInjector:
    """An injector that holds the first reply to request 0, for others to go first."""
    injector = FaultInjector(Faults(reorder=1.0), seed=0)
    assert injector.pass_on([reply(0)], 0.0, busy=True) == []
    injector.faults = faults or Faults()
    return injector


def test_a_reply_is_overtaken_by_those_to_other_requests_of_its_client() -> None:
    injector = overtaken()
    sent: list[Outgoing] = []
    for number in range(2, 12, 2):
        sent += injector.pass_on([reply(number)], 0.0, busy=True)
    place = sent.index(reply(0))
    assert 1 <= place <= 4
    assert [each.request for each in sent if each.request] == [2, 4, 6, 8, 10]
    assert injector.counts == {"reordered": 1}


def test_the_replies_behind_it_wait_with_it() -> None:
    injector = overtaken()
    assert injector.pass_on([reply(0, 1)], 0.0, busy=True) == []
    sent = injector.pass_on([reply(number) for number in range(2, 12, 2)], 0.0, busy=True)
    place = sent.index(reply(0))
    assert sent[place + 1] == reply(0, 1)


def test_other_clients_replies_overtake_nothing_that_anybody_could_see() -> None:
    injector = overtaken()
    others = [reply(number) for number in range(1, 21, 2)]
    assert injector.pass_on(others, 0.0, busy=True) == others
    assert injector.pass_on([], 0.0, busy=False) == [reply(0)]
    assert not injector.counts["reordered"]


def test_a_reply_goes_at_once_if_no_other_is_to_come() -> None:
    assert overtaken().pass_on([], 0.0, busy=False) == [reply(0)]


def test_a_reply_goes_after_a_while_if_no_other_comes() -> None:
    injector = overtaken()
    assert injector.due == OVERTAKEN_SECONDS
    assert injector.pass_on([], OVERTAKEN_SECONDS, busy=True) == [reply(0)]
    assert injector.due == math.inf


def test_where_every_reply_is_to_be_overtaken_some_are() -> None:
    injector = FaultInjector(Faults(reorder=1.0), seed=0)
    new = [reply(number) for number in range(0, 100, 2)]
    sent = injector.pass_on(new, 0.0, busy=False)
    assert sent != new
    assert sorted(sent, key=lambda each: each.request or 0) == new
    assert injector.counts["reordered"] >= 10


def test_two_that_fall_due_where_one_overtakes_the_other_both_go_once() -> None:
    injector = overtaken(Faults(delay=1.0, delay_seconds=(0.05, 0.05)))
    injector.pass_on([reply(number) for number in range(2, 12, 2)], 0.0, busy=True)
    sent = injector.pass_on([], 1.0, busy=False)
    assert sorted(each.request or 0 for each in sent) == [0, 2, 4, 6, 8, 10]
    assert injector.due == math.inf


# The rest


def test_only_the_answer_to_a_handshake_is_lost_by_its_own_fault() -> None:
    ack = Outgoing(b"A", CoordinatorCodec(FRAMED).connect_ack())
    everything = Faults(drop=1, duplicate=1, corrupt=1, delay=1, reorder=1)
    assert FaultInjector(everything, seed=0).pass_on([ack], 0.0, busy=False) == [ack]
    injector = FaultInjector(Faults(drop_acks=1), seed=0)
    assert injector.pass_on([ack, reply(0)], 0.0, busy=False) == [reply(0)]
    assert injector.counts == {"dropped_acks": 1}


def test_each_handshake_has_its_own_luck() -> None:
    acks = [Outgoing(b"A", [b"ack"])] * 100
    assert 20 < once(Faults(drop_acks=0.5), acks).counts["dropped_acks"] < 80


def test_as_many_requests_fail_as_are_to() -> None:
    injector = FaultInjector(Faults(fail=0.5), seed=0)
    fate = [injector.fails(number) for number in range(100)]
    assert 20 < sum(fate) < 80
    assert injector.counts == {"failed_on_purpose": sum(fate)}
    assert not any(map(FaultInjector(seed=0).fails, range(100)))


def test_what_has_been_forgotten_does_not_come() -> None:
    injector = overtaken(Faults(delay=1.0))
    injector.pass_on([reply(2)], 0.0, busy=True)
    injector.forget()
    assert injector.due == math.inf
    assert injector.pass_on([], 100.0, busy=False) == []
    injector.faults = Faults(reorder=1.0)
    assert injector.pass_on([reply(4), reply(6)], 0.0, busy=False) == [reply(6), reply(4)]


NAMES = [each.name for each in attrs.fields(Faults) if each.name != "delay_seconds"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (1.1, ValueError),
        (-0.1, ValueError),
        (math.nan, ValueError),
        (True, TypeError),
        ("0.5", TypeError),
        (None, TypeError),
    ],
)
def test_what_is_no_probability_is_refused_by_name(
    name: str, value: object, error: type[Exception]
) -> None:
    with pytest.raises(error, match=f"^{name} must"):
        Faults(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (0.1, TypeError),
        ((0.1,), TypeError),
        ("01", TypeError),
        ((0.1, "1"), TypeError),
        ((0.2, 0.1), ValueError),
        ((-0.1, 0.1), ValueError),
        ((0.0, math.inf), ValueError),
    ],
)
def test_what_is_no_span_of_time_is_refused_by_name(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^delay_seconds(\[1\])? must"):
        Faults(delay_seconds=value)


def test_scalars_of_numpy_are_numbers_too() -> None:
    faults = Faults(drop=np.float32(0.5), delay_seconds=[np.int64(1), 2])  # type: ignore[arg-type]
    assert faults == Faults(drop=0.5, delay_seconds=(1.0, 2.0))
    assert type(faults.drop) is float
