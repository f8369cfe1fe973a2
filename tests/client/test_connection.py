"""The life of a connection: coming up, breaking, coming up again. Over real sockets."""

from __future__ import annotations

import errno
import itertools
from typing import TYPE_CHECKING

import pytest
import trio
import trio.lowlevel
import trio.testing
import zmq

from tests.peers import ScriptedCoordinator, free_address, scripted_coordinator
from tests.relay import Relay
from tests.waiting import until
from trio_infer import (
    ConnectionLost,
    ConnectTimeout,
    InferenceClient,
    SamplingParams,
    open_client,
)
from trio_infer import transport as transport_module
from trio_infer.protocol.client_codec import ClientCodec
from trio_infer.protocol.dialect import Kind
from trio_infer.protocol.dialects import FRAMED
from trio_infer.sockets import Link, LinkEvent, draining
from trio_infer.sockets import network as network_module
from trio_infer.sockets.memory import MemorySocket
from trio_infer.sockets.network import ZmqNetwork
from trio_infer.transport import BACKOFF_SECONDS, Transport, backoff

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG = SamplingParams(num_tokens_to_generate=100_000)


# Coming up


@pytest.mark.parametrize(
    "address",
    ["tcp://127.0.0.1:1", "ipc:///nowhere/socket", "tcp://no-such-host.invalid:5555"],
)
async def test_where_nobody_listens_connecting_times_out_with_a_reason(address: str) -> None:
    with pytest.raises(ConnectTimeout, match=f"{address}.*(nobody listens|no such host)"):
        async with open_client(address, connect_timeout=1):
            pytest.fail("entered")


async def test_a_listener_that_never_acks_makes_connecting_time_out() -> None:
    async with scripted_coordinator() as coordinator:
        coordinator.acks = False
        with pytest.raises(ConnectTimeout, match="no answer"):
            async with open_client(coordinator.address, connect_timeout=0.1, close_timeout=0.1):
                pytest.fail("entered")
        assert len(coordinator.connects) == 1
        assert coordinator.log == []


async def test_a_client_may_start_before_its_coordinator() -> None:
    address = free_address()
    completions: list[list[int]] = []
    async with trio.open_nursery() as nursery:

        async def generate() -> None:
            async with open_client(address, connect_timeout=None) as client:
                completions.append((await client.generate("hi")).generated_tokens)

        nursery.start_soon(generate)
        await trio.testing.wait_all_tasks_blocked(0.05)
        async with scripted_coordinator(address) as coordinator:
            coordinator.reply(await coordinator.submission(), [1])
            await until(lambda: completions)
            await until(lambda: not nursery.child_tasks)
    assert completions == [[1]]


async def test_cancelled_connecting_waits_for_an_ack_that_is_owed() -> None:
    """A coordinator that acks a client who has gone crashes."""
    async with scripted_coordinator() as coordinator:
        coordinator.acks = False
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def connect() -> None:
                    async with open_client(coordinator.address):
                        pytest.fail("entered")

                nursery.start_soon(connect)
                await until(lambda: coordinator.connects)
                scope.cancel()
                with trio.CancelScope(shield=True):
                    await trio.testing.wait_all_tasks_blocked(0.01)
                    coordinator.send(coordinator.connects[0], coordinator.ack())
        assert scope.cancelled_caught
        assert coordinator.unroutable == 0


async def test_ipc_works_as_tcp_does() -> None:
    async with scripted_coordinator("ipc://*") as coordinator:
        async with open_client(coordinator.address) as client, trio.open_nursery() as nursery:
            nursery.start_soon(client.generate, "hi")
            coordinator.reply(await coordinator.submission(), [1])


@pytest.mark.parametrize(
    ("address", "options"),
    [
        ("localhost:5555", {}),
        ("inproc://here", {}),
        ("tcp://", {}),
        ("tcp://host", {}),
        ("tcp://host:99999", {}),  # ZeroMQ would take it for another
        ("tcp://h:1", {"dialect": "latin"}),
        ("tcp://h:1", {"dialect": 20}),
        ("tcp://h:1", {"connect_timeout": -1}),
        ("tcp://h:1", {"close_timeout": float("nan")}),
        ("tcp://h:1", {"heartbeat_timeout": 0}),
        ("tcp://h:1", {"max_message_size": 0}),
        ("tcp://h:1", {"heartbeat_timeout": 1e7}),
        ("tcp://h:1", {"socket_options": {"IMMEDIATE": 0}}),
        ("tcp://h:1", {"socket_options": {"probe_router": 1}}),  # an empty frame is an engine's
        ("tcp://h:1", {"socket_options": {"HELLO_MSG": b""}}),
        ("tcp://h:1", {"socket_options": {"CONFLATE": 1}}),
        ("tcp://h:1", {"socket_options": {"NO_SUCH_OPTION": 0}}),
        ("tcp://h:1", {"socket_options": {-5: 0}}),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_happens(
    address: str, options: dict[str, object]
) -> None:
    with pytest.raises(ValueError, match=r".+"):
        open_client(address, **options)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("address", "options"),
    [
        (5555, {}),
        ("tcp://h:1", {"connect_timeout": "10"}),
        ("tcp://h:1", {"max_message_size": 1.5}),
        ("tcp://h:1", {"socket_options": [("SNDTIMEO", 1)]}),
        ("tcp://h:1", {"socket_options": {True: 1}}),
        ("tcp://h:1", {"socket_options": {1.0: 1}}),
        ("tcp://h:1", {"context": "tcp"}),
        ("tcp://h:1", {"context": object()}),
    ],
)
def test_an_argument_of_a_wrong_type_is_refused_before_anything_happens(
    address: object, options: dict[str, object]
) -> None:
    with pytest.raises(TypeError):
        open_client(address, **options)  # type: ignore[call-overload]


async def test_an_address_that_only_zeromq_can_refuse_is_refused_on_entering() -> None:
    with pytest.raises(ValueError, match="no address"):
        async with open_client("smoke://signals:1"):
            pytest.fail("entered")


async def test_an_option_value_that_zeromq_refuses_is_refused_on_entering() -> None:
    with pytest.raises(ValueError, match="SNDBUF"):
        async with open_client("tcp://127.0.0.1:1", socket_options={"SNDBUF": b"wide"}):
            pytest.fail("entered")


async def test_other_socket_options_are_set() -> None:
    async with (
        scripted_coordinator() as coordinator,
        open_client(coordinator.address, socket_options={"sndbuf": 65536}),
    ):
        pass


# Breaking


async def test_a_killed_coordinator_ends_every_request_with_the_tokens_so_far(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async def stream() -> None:
        with pytest.raises(ConnectionLost) as caught:
            async with client.stream("hi", LONG) as stream:
                received = [(await stream.receive()).tokens]
                received += [delta.tokens async for delta in stream]
        assert caught.value.tokens == (1, 2)
        assert [token for tokens in received for token in tokens] == [1, 2]

    async def generate() -> None:
        with pytest.raises(ConnectionLost) as caught:
            await client.generate("hi", LONG)
        assert caught.value.tokens == ()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream)
        submission = await coordinator.submission()
        nursery.start_soon(generate)
        await coordinator.submission()
        coordinator.partial(submission, [1, 2])
        while not client._exchange._session.owners()[0][1]._first_at:  # type: ignore[attr-defined]
            await trio.lowlevel.checkpoint()
        coordinator.close()
    assert coordinator.of(Kind.ABORT_REQUEST) == []
    statistics = client.statistics()
    assert (statistics.lost, statistics.aborted, statistics.in_flight) == (2, 0, 0)


async def test_the_error_of_a_lost_request_is_raised_each_time_and_after_the_tokens(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.stream("hi", LONG) as stream:
        submission = await coordinator.submission()
        coordinator.partial(submission, [1])
        await until(lambda: stream._reception._first_at)
        coordinator.close()
        await until(lambda: stream.finished)
        assert (await stream.receive()).tokens == [1]
        for _ in range(2):
            with pytest.raises(ConnectionLost):
                await stream.receive()
            with pytest.raises(ConnectionLost):
                stream.receive_nowait()
            with pytest.raises(ConnectionLost):
                await stream.result()
            with pytest.raises(ConnectionLost):
                await stream.finish_early()
        assert stream.completion is None
        assert stream.tokens == [1]


async def test_requests_wait_for_a_new_connection_and_then_work() -> None:
    address = free_address()
    async with trio.open_nursery() as nursery:
        async with scripted_coordinator(address) as first, open_client(address) as client:
            with pytest.raises(ConnectionLost):
                async with client.stream("lost") as stream:
                    first.close()
                    await stream.result()
            nursery.start_soon(client.generate, "waits")
            await until(lambda: client.statistics().waiting)
            async with scripted_coordinator(address) as second:
                submission = await second.submission()
                assert submission.message.prompt == "waits"
                assert submission.id > 0, "ids never restart"
                second.reply(submission, [1])
                await until(lambda: client.statistics().completed >= 1)
                assert [received.kind for received in second.log] == [Kind.SUBMIT_REQUEST]
                assert client.statistics().connections == 2
                assert not set(first.connects) & set(second.connects)
                assert second.unroutable == 0


async def test_nothing_of_an_old_connection_reaches_the_new_coordinator() -> None:
    """Not even what is sent between the death of the old one and its being noticed."""
    address = free_address()
    async with scripted_coordinator(address) as first, open_client(address) as client:
        streams = [client.stream("old", LONG) for _ in range(5)]
        for stream in streams:
            await stream.__aenter__()
        for _ in range(5):
            await first.submission()
        first.close()
        async with scripted_coordinator(address) as second:
            for stream in streams:
                await stream.__aexit__(None, None, None)
            await until(lambda: client.statistics().connections == 2)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.generate, "new")
                second.reply(await second.submission(), [1])
            assert [received.message.prompt for received in second.log] == ["new"]
    assert first.of(Kind.ABORT_REQUEST) == []


async def test_what_came_before_the_end_of_the_connection_is_not_lost(
    coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is noticed while thousands of tokens still wait to be read from the socket."""
    monkeypatch.setattr(draining, "DRAIN_SECONDS", -1.0)  # one message at a time
    tokens = list(range(3000))
    async with (
        Relay(coordinator.address, cut_after=b"the last") as relay,
        open_client(relay.address) as client,
    ):
        with pytest.raises(ConnectionLost) as caught:
            async with client.stream("hi", LONG) as stream:
                submission = await coordinator.submission()
                for token in tokens:
                    coordinator.partial(submission, [token])
                coordinator.partial(submission, [3000], comment="the last")
                await stream.result()
    assert caught.value.tokens == (*tokens, 3000)


def test_the_pauses_between_attempts_grow_are_bounded_and_differ() -> None:
    pauses = [pause for pause, _ in zip(backoff(), range(50), strict=False)]
    assert pauses[0] <= BACKOFF_SECONDS[0]
    assert max(pauses) <= BACKOFF_SECONDS[1]
    assert min(pauses[10:]) >= BACKOFF_SECONDS[1] / 2
    assert len(set(pauses)) > 40


async def test_a_want_of_file_descriptors_delays_the_next_connection_and_no_more(
    coordinator: ScriptedCoordinator, client: InferenceClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    wants = [zmq.ZMQError(errno.EMFILE)] * 3
    make = zmq.Context.socket

    def make_or_want(
        context: zmq.Context[zmq.Socket[bytes]], socket_type: int
    ) -> zmq.Socket[bytes]:
        if wants:
            raise wants.pop()
        return make(context, socket_type)

    with pytest.raises(ConnectionLost):
        async with client.stream("lost") as stream:
            await coordinator.submission()
            monkeypatch.setattr(zmq.Context, "socket", make_or_want)
            coordinator.close()
            await stream.result()
    await until(lambda: not wants)
    async with scripted_coordinator(coordinator.address) as second, trio.open_nursery() as nursery:
        nursery.start_soon(client.generate, "goes on")
        second.reply(await second.submission(), [1])


async def test_a_client_left_before_its_first_connection_makes_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would greet the coordinator, and be gone when that answers."""
    made: list[Transport] = []

    async def connect_once(transport: Transport) -> None:
        made.append(transport)

    monkeypatch.setattr(Transport, "_connect_once", connect_once)
    with zmq.Context() as context:
        network = ZmqNetwork(context)
        transport = Transport("tcp://h:1", ClientCodec(FRAMED), Link(), network, listener=Deaf())
        transport.stop_waiting()
        with trio.CancelScope() as scope:
            scope.cancel()
            await transport.run()
    assert made == []


@pytest.mark.parametrize(("lasted", "starts"), [(2.0, [0, 1]), (1.9, [0])])
async def test_a_connection_that_lasted_makes_the_next_pause_short_again(
    monkeypatch: pytest.MonkeyPatch, lasted: float, starts: list[int]
) -> None:
    """Attempts fail twice, succeed once, fail twice: the pauses begin anew behind the success."""
    outcomes = iter([None, None, lasted, None, None])
    started: list[int] = []

    async def connect_once(transport: Transport) -> float | None:
        return next(outcomes)

    def count_starts() -> Iterator[float]:
        started.append(len(started))
        return itertools.repeat(0.0)

    monkeypatch.setattr(Transport, "_connect_once", connect_once)
    monkeypatch.setattr(transport_module, "backoff", count_starts)
    with zmq.Context() as context:
        codec = ClientCodec(FRAMED)
        transport = Transport("tcp://h:1", codec, Link(), ZmqNetwork(context), listener=Deaf())
        with pytest.raises((StopIteration, RuntimeError)):
            await transport.run()
    assert started == starts


async def test_what_is_opened_does_not_pile_up_while_no_name_server_answers(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZeroMQ closes nothing while it looks a name up, which can take longer than an attempt may."""
    begun: list[float] = []

    class WithoutNews(MemorySocket):
        def connect(self, address: str) -> None:
            begun.append(trio.current_time())

    monkeypatch.setattr(network_module, "MemorySocket", WithoutNews)
    with pytest.raises(ConnectTimeout, match="no answer"):
        async with open_client("memory://name", connect_timeout=600):
            pytest.fail("entered")
    assert 1 < len(begun) < 10
    assert min(later - earlier for earlier, later in itertools.pairwise(begun)) > 60


async def test_a_connection_that_breaks_in_the_tick_of_its_ack_is_told_of(
    coordinator: ScriptedCoordinator,
) -> None:
    """A request may have been handed over in that tick; it would wait for ever."""
    coordinator.acks = False
    losses: list[str] = []

    class Listening(Deaf):
        def on_lost(self, reason: str) -> None:
            losses.append(reason)

    with zmq.Context() as context:
        codec = ClientCodec(FRAMED)
        transport = Transport(
            coordinator.address, codec, Link(), ZmqNetwork(context), listener=Listening()
        )
        async with trio.open_nursery() as running:
            running.start_soon(transport.run)
            await until(lambda: coordinator.connects)
            connection = transport._current
            assert connection is not None
            connection.deliver(coordinator.ack())
            assert transport.is_up
            connection.notice(LinkEvent.DOWN, "")
            await until(lambda: losses)
            running.cancel_scope.cancel()


class Deaf:
    def on_frames(self, frames: object) -> None: ...
    def on_up(self) -> None: ...
    def on_lost(self, reason: str) -> None: ...


async def test_after_the_loss_streams_may_be_left_without_a_word(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.stream("hi", LONG) as stream:
        await coordinator.submission()
        coordinator.close()
        await until(lambda: stream.finished)
    assert client.statistics().lost == 1


async def test_a_frozen_coordinator_counts_as_gone_after_the_heartbeat_timeout() -> None:
    """A TCP peer that takes bytes and never answers, behind a ZeroMQ handshake that succeeded."""
    async with scripted_coordinator() as coordinator, Relay(coordinator.address) as relay:
        async with open_client(relay.address, heartbeat_timeout=0.2) as client:
            with pytest.raises(ConnectionLost):
                async with client.stream("hi", LONG) as stream:
                    await coordinator.submission()
                    relay.frozen = True
                    await stream.result()
