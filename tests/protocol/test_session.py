from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from trio_infer.protocol.session import Session

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

OWNER = "owner"


def session_in(state: str) -> tuple[Session[str], int]:
    """A session with one request in the state, and the request's id."""
    session: Session[str] = Session()
    request_id = session.reserve_id()
    session.submit(request_id, OWNER)
    if state == "finishing":
        assert session.finish_early(request_id)
    elif state == "aborting":
        assert session.abandon(request_id)
    elif state == "ended":
        assert session.final(request_id) == OWNER
    assert state_of(session, request_id) == state
    return session, request_id


def state_of(session: Session[str], request_id: int) -> str:
    if request_id in session._running:
        return "running"
    if request_id in session._finishing:
        return "finishing"
    return "aborting" if request_id in session._aborting else "ended"


@pytest.mark.parametrize("state", ["running", "finishing"])
def test_an_heir_gets_the_final_reply_of_a_request_that_was_left(state: str) -> None:
    session, request_id = session_in(state)
    session.abandon(request_id, "heir")
    assert session.partial(request_id) is None
    assert session.final(request_id) == "heir"
    assert session.final(request_id) is None


@pytest.mark.parametrize(
    ("state", "event", "result", "then"),
    [
        ("running", "partial", OWNER, "running"),
        ("running", "final", OWNER, "ended"),
        ("running", "abandon", True, "aborting"),
        ("running", "finish_early", True, "finishing"),
        ("running", "fail", True, "aborting"),
        ("finishing", "partial", OWNER, "finishing"),
        ("finishing", "final", OWNER, "ended"),
        ("finishing", "abandon", False, "aborting"),
        ("finishing", "finish_early", False, "finishing"),
        ("finishing", "fail", False, "aborting"),
        ("aborting", "partial", None, "aborting"),
        ("aborting", "final", None, "ended"),
        ("aborting", "abandon", False, "aborting"),
        ("aborting", "finish_early", False, "aborting"),
        ("aborting", "fail", False, "aborting"),
        ("ended", "partial", None, "ended"),
        ("ended", "final", None, "ended"),
        ("ended", "abandon", False, "ended"),
        ("ended", "finish_early", False, "ended"),
        ("ended", "fail", False, "ended"),
    ],
)
def test_the_table_at_the_head_of_the_module(
    state: str, event: str, result: object, then: str
) -> None:
    session, request_id = session_in(state)
    assert getattr(session, event)(request_id) == result
    assert state_of(session, request_id) == then


@pytest.mark.parametrize(
    ("state", "told", "lost", "undelivered"),
    [
        ("running", [OWNER], 1, 0),
        ("finishing", [OWNER], 0, 1),
        ("aborting", [], 0, 1),
        ("ended", [], 0, 0),
    ],
)
def test_a_loss_ends_everything_and_tells_who_still_waits(
    state: str, told: list[str], lost: int, undelivered: int
) -> None:
    session, request_id = session_in(state)
    assert session.lose() == told
    assert state_of(session, request_id) == "ended"
    assert (session.lost, session.undelivered) == (lost, undelivered)
    assert session.lose() == []


@pytest.mark.parametrize(
    ("state", "event", "counter"),
    [
        ("aborting", "partial", 1),
        ("aborting", "final", 0),  # the coordinator owed it
        ("ended", "partial", 1),
        ("ended", "final", 1),
    ],
)
def test_late_and_double_replies_are_counted(state: str, event: str, counter: int) -> None:
    session, request_id = session_in(state)
    getattr(session, event)(request_id)
    assert session.discarded == counter


def test_ids_go_on_after_a_loss_so_that_a_late_reply_finds_nobody() -> None:
    session, request_id = session_in("running")
    session.lose()
    assert session.reserve_id() > request_id
    assert session.final(request_id) is None


def test_a_final_that_turned_out_to_be_a_failure_counts_as_one() -> None:
    session, _ = session_in("ended")
    session.recount_as_failed()
    assert (session.completed, session.failed) == (0, 1)


@attrs.define(eq=False)
class Waiter:
    """Who asked for a request, and how far it is by the rules; compared by identity."""

    request_id: int
    state: str = "running"
    beginning: bytes = b""


@attrs.define
class Expected:
    """The counters as they should be."""

    submitted: int = 0
    completed: int = 0
    failed: int = 0
    aborted: int = 0
    lost: int = 0
    discarded: int = 0
    undelivered: int = 0


class SessionMachine(RuleBasedStateMachine):
    """Whatever the order of things, every request ends once, and nothing is left behind."""

    ids: Bundle[int] = Bundle("ids")
    finished: Bundle[int] = Bundle("finished")
    """Ids whose final reply was counted as completed and has not been decoded yet."""

    any_id: SearchStrategy[int] = ids | st.integers(-2, 2**64)

    def __init__(self) -> None:
        super().__init__()
        self.session: Session[Waiter] = Session()
        self.waiters: dict[int, Waiter] = {}
        self.aborts: Counter[int] = Counter()
        self.expected = Expected()
        self.seen_ids: set[int] = set()

    def _state(self, request_id: int) -> str:
        waiter = self.waiters.get(request_id)
        return "ended" if waiter is None else waiter.state

    def _move(self, request_id: int, state: str) -> None:
        self.waiters[request_id].state = state

    def _asked_to_abort(self, request_id: int, *, asked: bool) -> bool:
        """Notes an ABORT that would be sent; the peer knows the request, and got none before."""
        if asked:
            assert self._state(request_id) == "running"
            self.aborts[request_id] += 1
            assert self.aborts[request_id] == 1
        return asked

    def _new_id(self) -> int:
        request_id = self.session.reserve_id()
        assert request_id not in self.seen_ids
        self.seen_ids.add(request_id)
        return request_id

    @rule(target=ids)
    def submit(self) -> int:
        request_id = self._new_id()
        self.waiters[request_id] = Waiter(request_id)
        self.session.submit(request_id, self.waiters[request_id])
        self.expected.submitted += 1
        return request_id

    @rule(target=ids)
    def reserve_in_vain(self) -> int:
        """The connection went down before the frames were handed over."""
        return self._new_id()

    @rule(request_id=any_id, beginning=st.sampled_from([b"", b"%d", b"0%d"]))
    def partial(self, request_id: int, beginning: bytes) -> None:
        """A request's partial results may begin in more than one way."""
        beginning = beginning and beginning % request_id
        owner = self.session.partial(request_id, beginning)
        if self._state(request_id) in ("running", "finishing"):
            waiter = self.waiters[request_id]
            assert owner is waiter
            waiter.beginning = waiter.beginning or beginning
        else:
            assert owner is None
            self.expected.discarded += 1

    @rule(request_id=any_id, target=finished)
    def final(self, request_id: int) -> Any:
        state = self._state(request_id)
        owner = self.session.final(request_id)
        if state in ("running", "finishing"):
            assert owner is self.waiters[request_id]
        else:
            assert owner is None
        self.expected.completed += state == "running"
        self.expected.discarded += state == "ended"
        if state != "ended":
            self._move(request_id, "ended")
        return request_id if state == "running" else multiple()

    @rule(request_id=consumes(finished))
    def recount_as_failed(self, request_id: int) -> None:
        self.session.recount_as_failed()
        self.expected.completed -= 1
        self.expected.failed += 1

    @rule(request_id=any_id)
    def abandon(self, request_id: int) -> None:
        state = self._state(request_id)
        asked = self._asked_to_abort(request_id, asked=self.session.abandon(request_id))
        assert asked == (state == "running")
        self.expected.aborted += asked
        if state in ("running", "finishing"):
            self._move(request_id, "aborting")

    @rule(request_id=any_id)
    def finish_early(self, request_id: int) -> None:
        state = self._state(request_id)
        asked = self._asked_to_abort(request_id, asked=self.session.finish_early(request_id))
        assert asked == (state == "running")
        self.expected.aborted += asked
        if asked:
            self._move(request_id, "finishing")

    @rule(request_id=any_id)
    def fail(self, request_id: int) -> None:
        state = self._state(request_id)
        asked = self._asked_to_abort(request_id, asked=self.session.fail(request_id))
        assert asked == (state == "running")
        self.expected.failed += asked
        if state in ("running", "finishing"):
            self._move(request_id, "aborting")

    @rule()
    def lose(self) -> None:
        told = self.session.lose()
        states = Counter(waiter.state for waiter in self.waiters.values())
        expecting = [w for w in self.waiters.values() if w.state in ("running", "finishing")]
        assert {id(waiter) for waiter in told} == {id(waiter) for waiter in expecting}
        assert len(told) == len(expecting)
        self.expected.lost += states["running"]
        self.expected.undelivered += states["finishing"] + states["aborting"]
        for waiter in self.waiters.values():
            waiter.state = "ended"

    @invariant()
    def the_counters_add_up(self) -> None:
        session = self.session
        ended = session.completed + session.failed + session.aborted + session.lost
        assert session.submitted == session.in_flight + ended
        counted = {name: getattr(session, name) for name in attrs.asdict(self.expected)}
        assert counted == attrs.asdict(self.expected)

    @invariant()
    def it_recognizes_what_is_wanted_and_nothing_else(self) -> None:
        recognized = {beginning: w.request_id for beginning, w in self.session.recognized.items()}
        assert recognized == {
            w.beginning: w.request_id
            for w in self.waiters.values()
            if w.beginning and w.state in ("running", "finishing")
        }

    @invariant()
    def what_it_remembers_is_what_is_owed(self) -> None:
        states = Counter(waiter.state for waiter in self.waiters.values())
        assert self.session.in_flight == states["running"]
        assert self.session.aborting == states["finishing"] + states["aborting"]
        assert sorted(request_id for request_id, _ in self.session.owners()) == sorted(
            w.request_id for w in self.waiters.values() if w.state in ("running", "finishing")
        )
        assert all(owner.request_id == request_id for request_id, owner in self.session.owners())

    def teardown(self) -> None:
        for request_id in self.waiters:
            if self._state(request_id) != "ended":
                self.final(request_id=request_id)
        self.the_counters_add_up()
        assert self.session.in_flight == self.session.aborting == 0
        for container in (
            self.session._running,
            self.session._finishing,
            self.session._aborting,
            self.session._beginnings,
            self.session.owners(),
        ):
            assert not container


TestSession = SessionMachine.TestCase
TestSession.settings = settings(max_examples=200, stateful_step_count=40)
