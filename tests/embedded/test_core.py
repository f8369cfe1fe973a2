from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import msgpack
import pytest

from tests.messages import laid_out
from trio_infer.embedded.core import CoordinatorCore
from trio_infer.embedded.engine import Engine
from trio_infer.embedded.lifecycle import STEPS_TO_PAUSE
from trio_infer.embedded.statistics import CoordinatorStatistics
from trio_infer.protocol.client_codec import ClientCodec
from trio_infer.protocol.coordinator_codec import ClientMessage
from trio_infer.protocol.dialect import Kind
from trio_infer.protocol.dialects import FRAMED
from trio_infer.protocol.packing import Frames, unpack_map

if TYPE_CHECKING:
    from trio_infer.embedded import LanguageModel

CODEC = ClientCodec(FRAMED)


@attrs.define
class Peers:
    """A core, and the clients that talk to it."""

    core: CoordinatorCore
    now: float = 0.0

    def send(self, identity: bytes, frames: Frames) -> None:
        self.core.receive(identity, frames, self.now)

    def connect(self, identity: bytes = b"A") -> None:
        self.send(identity, CODEC.connect())
        assert self.received() == [(identity, Kind.CONNECT_ACK, -1, {})]

    def submit(
        self, request_id: int, prompt: str = "a", *, identity: bytes = b"A", **params: Any
    ) -> None:
        prepared = laid_out(CODEC, prompt, {"top_k": 1} | params)
        self.send(identity, prepared.frames(request_id))

    def abort(self, request_id: int, *, identity: bytes = b"A") -> None:
        self.send(identity, CODEC.abort(request_id))

    def signal(self, kind: Kind, *, identity: bytes = b"A") -> None:
        self.send(identity, [msgpack.packb([FRAMED.headers[kind]])])

    def pause(self) -> None:
        """By a signal, waiting until the engines have heeded it."""
        self.signal(Kind.PAUSE)
        self.step(STEPS_TO_PAUSE)
        assert self.core.fleet.paused

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.now += 1
            self.core.step(self.now)

    def received(self) -> list[tuple[bytes, Kind, int, dict[str, Any]]]:
        decoded = [(out.identity, CODEC.decode(out.frames)) for out in self.core.take_outgoing()]
        return [
            (who, each.kind, each.request_id, unpack_map(each.body) if each.body else {})
            for who, each in decoded
        ]

    def counts(self) -> dict[str, int]:
        """The statistics that are not 0."""
        return {k: v for k, v in attrs.asdict(self.core.statistics()).items() if v}

    @property
    def is_clean(self) -> bool:
        core = self.core
        return core.idle and not (core.wants_step or core._table._numbers)


def make(model: LanguageModel, *, engines: int = 1, **limits: Any) -> Peers:
    return Peers(CoordinatorCore(FRAMED, [Engine(model, **limits) for _ in range(engines)]))


@pytest.fixture
def peers(alphabet: LanguageModel) -> Peers:
    peers = make(alphabet)
    peers.connect()
    return peers


def test_a_request_is_answered_under_the_clients_own_id(peers: Peers) -> None:
    peers.submit(41, num_tokens_to_generate=2)
    assert peers.core.wants_step
    peers.step(2)
    ((who, kind, request_id, body),) = peers.received()
    assert (who, kind, request_id) == (b"A", Kind.ENGINE_REPLY, 41)
    assert body["request_id"] == 0
    assert body["generated_text"] == "bc"
    assert peers.is_clean


def test_partials_come_under_the_clients_own_id_too(peers: Peers) -> None:
    peers.submit(41, num_tokens_to_generate=2, streaming=True)
    peers.step(2)
    (partial, final) = peers.received()
    assert partial == (
        b"A", Kind.ENGINE_REPLY_PARTIAL, 41, {"request_id": 0, "new_tokens": [98]}
    )  # fmt: skip
    assert final[1:3] == (Kind.ENGINE_REPLY, 41)


def test_what_is_to_be_sent_is_handed_out_once(peers: Peers) -> None:
    peers.submit(0, num_tokens_to_generate=1)
    peers.step()
    assert len(peers.core.take_outgoing()) == 1
    assert peers.core.take_outgoing() == []


def test_two_clients_may_use_the_same_id(peers: Peers) -> None:
    peers.connect(b"B")
    peers.submit(0, "a", identity=b"A", num_tokens_to_generate=1)
    peers.submit(0, "x", identity=b"B", num_tokens_to_generate=1)
    peers.step()
    assert [(who, body["generated_text"]) for who, _, _, body in peers.received()] == [
        (b"A", "b"),
        (b"B", "y"),
    ]


def test_an_id_may_be_used_again_once_it_has_been_answered(peers: Peers) -> None:
    for number in range(3):
        peers.submit(5, num_tokens_to_generate=1)
        peers.step()
        ((_, _, request_id, body),) = peers.received()
        assert (request_id, body["request_id"]) == (5, number)
    assert peers.counts() == {
        "clients": 1, "submitted": 3, "completed": 3, "steps": 3, "tokens": 3
    }  # fmt: skip


def test_a_second_connect_is_not_acknowledged(peers: Peers) -> None:
    peers.send(b"A", CODEC.connect())
    assert peers.received() == []
    peers.submit(0, num_tokens_to_generate=1)
    peers.step()
    assert len(peers.received()) == 1


def test_who_has_not_connected_is_ignored_without_a_word(
    alphabet: LanguageModel, caplog: pytest.LogCaptureFixture
) -> None:
    peers = make(alphabet)
    peers.submit(0)
    peers.abort(0)
    peers.signal(Kind.PAUSE)
    peers.signal(Kind.SHUTDOWN)
    assert peers.received() == []
    assert peers.counts() == {"ignored": 4}
    assert not peers.core.stopped
    assert not peers.core.fleet.paused
    assert not caplog.messages


def test_an_abort_ends_the_request_of_that_client(peers: Peers) -> None:
    peers.connect(b"B")
    peers.submit(0, identity=b"A")
    peers.submit(0, identity=b"B")
    peers.step()
    peers.abort(0, identity=b"B")
    peers.step()
    ((who, kind, request_id, body),) = peers.received()
    assert (who, kind, request_id, body["generated_text"]) == (b"B", Kind.ENGINE_REPLY, 0, "b")
    assert [request.request_id for request in peers.core.running] == [0]


def test_an_abort_that_meets_nothing_is_dropped_and_counted(peers: Peers) -> None:
    peers.submit(0, num_tokens_to_generate=1)
    peers.step()
    peers.abort(0)
    peers.abort(99)
    assert len(peers.received()) == 1
    assert peers.counts()["stray_aborts"] == 2
    assert "aborts" not in peers.counts()


def test_a_refused_request_is_answered_at_once_even_while_paused(peers: Peers) -> None:
    peers.pause()
    peers.submit(3, temperature=-1.0)
    ((_, kind, request_id, body),) = peers.received()
    assert (kind, request_id, body["status"]) == (Kind.ENGINE_REPLY, 3, "FAILED")
    assert peers.counts() == {"clients": 1, "submitted": 1, "failed": 1}
    assert peers.is_clean


@pytest.mark.parametrize("by_message", [True, False])
def test_paused_engines_accept_but_do_not_step(peers: Peers, *, by_message: bool) -> None:
    if by_message:
        idle = make(peers.core.fleet[0].model, steps_to_pause=1)
        idle.connect()
        peers = idle
        peers.signal(Kind.PAUSE)
        peers.step()
        peers.submit(0, num_tokens_to_generate=1)
    else:
        peers.submit(0, num_tokens_to_generate=1)
        peers.core.pause()
    peers.submit(1, num_tokens_to_generate=1)
    peers.abort(0)
    assert peers.core.fleet.paused
    assert not peers.core.wants_step
    peers.step(3)
    assert peers.received() == []
    assert peers.counts() == {"clients": 1, "submitted": 2, "waiting": 2, "aborts": 1}
    if by_message:
        peers.signal(Kind.UNPAUSE)
    else:
        peers.core.unpause()
    peers.step()
    assert [request_id for _, _, request_id, _ in peers.received()] == [0, 1]
    assert not peers.core.fleet.paused


def test_an_unpause_of_running_engines_changes_nothing(peers: Peers) -> None:
    peers.signal(Kind.UNPAUSE)
    assert not peers.core.fleet.paused
    assert peers.received() == []


def test_a_shutdown_stops_it(peers: Peers) -> None:
    peers.signal(Kind.SHUTDOWN)
    assert peers.core.stopped


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"\xc1"],
        [msgpack.packb({})],
        [msgpack.packb([])],
        [msgpack.packb([99])],
        [msgpack.packb([0, 1])],
        [msgpack.packb([23])],
        [msgpack.packb([23, "x"])],
        [msgpack.packb([23, 1]), b""],
        [msgpack.packb([20, 1, {}, None])],
        [msgpack.packb([20, 1, {}, None]), *[msgpack.packb("a")] * 3],
        [msgpack.packb([20, 1, {}, None]), msgpack.packb(b"a"), *[msgpack.packb(None)] * 3],
        [msgpack.packb([20, 1, None, None]), msgpack.packb("a"), *[msgpack.packb(None)] * 3],
        [msgpack.packb([21, 1]), msgpack.packb({})],
    ],
    ids=repr,
)
def test_what_kills_a_real_coordinator_or_is_dropped_there_is_dropped_counted_and_logged(
    peers: Peers, frames: Frames, caplog: pytest.LogCaptureFixture
) -> None:
    peers.send(b"A", frames)
    assert peers.received() == []
    assert peers.counts() == {"clients": 1, "malformed": 1}
    assert "dropped" in caplog.text
    peers.submit(0, num_tokens_to_generate=1)
    peers.step()
    assert len(peers.received()) == 1


def test_an_id_that_is_in_use_is_dropped(peers: Peers) -> None:
    peers.submit(0, "a", num_tokens_to_generate=2)
    peers.submit(0, "x", num_tokens_to_generate=2)
    peers.step(3)
    ((_, _, _, body),) = peers.received()
    assert body["generated_text"] == "bc"
    assert peers.counts()["malformed"] == 1
    assert peers.is_clean


def test_the_least_loaded_engine_serves_and_of_equals_the_first(alphabet: LanguageModel) -> None:
    peers = make(alphabet, engines=3, max_requests=1)
    peers.connect()
    for number in range(5):
        peers.submit(number)
    peers.step()
    assert [(each.request_id, each.engine) for each in peers.core.running] == [
        (0, 0), (1, 1), (2, 2)
    ]  # fmt: skip
    assert peers.counts()["waiting"] == 2
    peers.abort(2)
    peers.step()
    peers.submit(5)
    peers.step()
    assert [(each.request_id, each.engine) for each in peers.core.running] == [
        (0, 0), (1, 1), (5, 2)
    ]  # fmt: skip


def test_running_tells_how_far_each_has_come(peers: Peers) -> None:
    peers.submit(9, "abc")
    peers.step(2)
    (request,) = peers.core.running
    assert attrs.asdict(request) == {
        "request_id": 0, "engine": 0, "prompt_length": 3, "generated_length": 2
    }  # fmt: skip


def test_requests_tells_what_has_not_ended_and_how_far_it_has_come(peers: Peers) -> None:
    peers.submit(7, "abc", num_tokens_to_generate=3)
    (waiting,) = peers.core.requests
    peers.step(2)
    (running,) = peers.core.requests
    assert (waiting.state, running.state, running.generated_length) == ("waiting", "running", 2)
    assert (running.request_id, running.prompt, running.received_at) == (0, "abc", 0.0)
    assert running.sampling_params["num_tokens_to_generate"] == 3
    peers.step()
    assert peers.core.requests == ()


def test_requests_that_are_kept_tell_how_they_ended(alphabet: LanguageModel) -> None:
    engines = [Engine(alphabet) for _ in range(2)]
    peers = Peers(CoordinatorCore(FRAMED, engines, keep_requests=True))
    peers.connect()
    fates = ("completed", "failed", "aborted", "lost")
    peers.submit(0, num_tokens_to_generate=1)
    peers.submit(1, temperature=-1.0)
    peers.step()
    peers.submit(2)
    peers.step(2)
    peers.abort(2)
    assert peers.core.requests[2].state == "aborting"
    peers.step()
    peers.submit(3)
    peers.step(3)
    peers.core.kill_engine(peers.core.running[0].engine)
    peers.submit(4)
    assert [each.state for each in peers.core.requests] == [*fates, "waiting"]
    assert [each.generated_length for each in peers.core.requests] == [1, 0, 2, 3, 0]
    assert peers.counts()["completed"] == 2
    assert peers.counts()["aborted"] == 1


def test_what_a_client_that_has_gone_left_behind_counts_as_aborted(peers: Peers) -> None:
    peers.submit(0)
    peers.core.undeliverable(b"A")
    assert [each.state for each in peers.core.requests] == ["aborting"]
    peers.step()
    assert (peers.counts()["completed"], peers.counts()["aborted"]) == (1, 1)


def test_replies_to_a_client_that_has_gone_are_counted_and_its_requests_ended(
    peers: Peers, caplog: pytest.LogCaptureFixture
) -> None:
    peers.connect(b"B")
    peers.submit(0, streaming=True)
    peers.submit(1)
    peers.submit(0, identity=b"B")
    peers.step()
    peers.core.take_outgoing()
    peers.core.undeliverable(b"A")
    peers.step()
    assert peers.received() == []
    assert peers.counts()["unroutable"] == 3
    assert peers.counts()["running"] == 1
    assert peers.counts()["clients"] == 1
    assert "has left" in caplog.text


def test_a_client_that_comes_back_gets_nothing_of_its_old_requests(peers: Peers) -> None:
    peers.submit(0)
    peers.step()
    peers.core.undeliverable(b"A")
    peers.core.undeliverable(b"A")
    peers.connect()
    peers.submit(0, "x", num_tokens_to_generate=2)
    peers.step(2)
    ((_, _, _, body),) = peers.received()
    assert body["generated_text"] == "yz"
    assert peers.is_clean


def test_nothing_is_left_of_many_requests_however_they_end(peers: Peers) -> None:
    for number in range(200):
        peers.submit(number, num_tokens_to_generate=number % 5 - 1, streaming=number % 2 == 0)
        if number % 3 == 0:
            peers.abort(number)
        if number % 7 == 0:
            peers.step()
    while peers.core.wants_step:
        peers.step()
    finals = [each[2] for each in peers.received() if each[1] is Kind.ENGINE_REPLY]
    assert sorted(finals) == list(range(200))
    assert peers.is_clean
    counts = peers.core.statistics()
    assert (counts.submitted, counts.failed, counts.completed) == (200, 40, 160)
    assert counts.running == counts.waiting == 0


def test_nothing_has_been_counted_at_first(alphabet: LanguageModel) -> None:
    assert make(alphabet).core.statistics() == CoordinatorStatistics()


def test_a_coordinator_without_engines_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one engine"):
        CoordinatorCore(FRAMED, [])


def test_a_kind_of_message_that_the_dialect_has_but_nobody_serves_is_dropped(
    peers: Peers,
) -> None:
    peers.core._obey(b"A", ClientMessage(kind=Kind.CONNECT_ACK), 0.0)
    assert peers.counts() == {"clients": 1, "malformed": 1}
