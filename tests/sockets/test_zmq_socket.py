"""One ZeroMQ socket under trio: edges that get lost, budgets, misuse."""

from __future__ import annotations

import os
import threading
import time
import warnings
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import trio
import trio.lowlevel
import trio.testing
import zmq

from tests.peers import finished
from tests.waiting import until
from trio_infer import ConnectError, InferenceClient, open_client
from trio_infer.protocol.coordinator_codec import CoordinatorCodec
from trio_infer.protocol.dialect import Kind
from trio_infer.protocol.dialects import FRAMED
from trio_infer.sockets import (
    DEALER,
    ROUTER,
    Link,
    LinkEvent,
    NotConnected,
    ZmqSocket,
    dispose_context,
    draining,
    make_context,
    zmq_socket,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from trio_infer.protocol.packing import Frames


@contextmanager
def coordinator_in_a_thread() -> Iterator[str]:
    """A coordinator that answers at once, even while trio's own thread is busy."""
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    stopping = threading.Event()
    codec = CoordinatorCodec(FRAMED)

    def serve() -> None:
        while not stopping.is_set():
            if not router.poll(20):
                continue
            client, *frames = router.recv_multipart()
            message = codec.decode(frames)
            if message.kind is Kind.CONNECT:
                router.send_multipart([client, *codec.connect_ack()])
            elif message.request_id is not None:
                reply = codec.reply(message.request_id, finished([1]))
                router.send_multipart([client, *reply])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"tcp://127.0.0.1:{port}"
    finally:
        stopping.set()
        thread.join()
        router.close(0)
        context.term()


async def send_work_send(client: InferenceClient) -> None:
    """Two requests handed over in one tick, with 1.5 ms of work between: the first reply comes
    while trio does not look, and the second request takes its edge."""

    async def work_and_generate() -> None:
        busy_until = time.perf_counter() + 0.0015
        while time.perf_counter() < busy_until:
            pass
        await client.generate("second")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.generate, "first")
        nursery.start_soon(work_and_generate)


async def test_no_reply_is_slept_through_when_a_send_takes_its_edge() -> None:
    with coordinator_in_a_thread() as address:
        async with open_client(address) as client:
            for _ in range(200):
                with trio.fail_after(20):
                    await send_work_send(client)


async def test_without_the_wake_up_a_reply_is_slept_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Shows that the test above can fail."""

    def look_and_sleep_on(self: ZmqSocket) -> None:
        self._zmq.get(zmq.EVENTS)

    with coordinator_in_a_thread() as address:
        async with open_client(address, close_timeout=0) as client:
            monkeypatch.setattr(ZmqSocket, "_look", look_and_sleep_on)
            for _ in range(200):
                with trio.move_on_after(0.5) as scope:
                    await send_work_send(client)
                if scope.cancelled_caught:
                    connection = client._exchange._transport._current
                    assert connection is not None
                    assert isinstance(connection.socket, ZmqSocket)
                    assert connection.socket._parked
                    assert int(connection.socket._zmq.get(zmq.EVENTS)) & zmq.POLLIN
                    return
    pytest.fail("no edge was lost in 200 rounds")


class Pair:
    """A DEALER connected to a ROUTER."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.context = make_context()
        self.router = ZmqSocket(ROUTER, link=Link(), context=self.context)
        self.address = self.router.bind("tcp://127.0.0.1:*")
        self.dealer = ZmqSocket(DEALER, link=Link(), context=self.context)
        self.events: list[LinkEvent] = []
        self.nursery = nursery

    def notice(self, event: LinkEvent, _: str) -> None:
        self.events.append(event)

    async def connect(self) -> None:
        self.dealer.connect(self.address)
        self.nursery.start_soon(self.dealer.watch, self.notice)
        await until(lambda: LinkEvent.UP in self.events)


@pytest.fixture
async def pair(nursery: trio.Nursery) -> AsyncIterator[Pair]:
    pair = Pair(nursery)
    try:
        yield pair
    finally:
        pair.dealer.close(linger=False)
        pair.router.close(linger=False)
        await dispose_context(pair.context)


async def drain(socket: ZmqSocket, count: int) -> list[Frames]:
    messages: list[Frames] = []
    while len(messages) < count:
        socket.drain(messages.append)
        await trio.sleep(0.001)
    return messages


async def test_before_connect_nothing_is_taken(pair: Pair) -> None:
    with pytest.raises(NotConnected):
        pair.dealer.send([b"early"])
    await pair.connect()
    pair.dealer.send([b"late"])
    (message,) = await drain(pair.router, 1)
    assert message[1:] == [b"late"]


@pytest.mark.parametrize(
    ("option", "value", "harm"),
    [
        (zmq.SNDHWM, 0, "a send blocks"),
        (zmq.RCVHWM, 0, "a client that stops reading holds up every other client"),
        (zmq.RECONNECT_IVL, 3_600_000, "what is queued for a dead peer reaches its successor"),
        (zmq.IMMEDIATE, 0, "a connection that breaks in mid-message aborts the process"),
        (zmq.LINGER, 500, "aborts are lost, or closing hangs"),
        (zmq.MAXMSGSIZE, Link().max_message_size, "one message takes all memory"),
        (zmq.HEARTBEAT_TIMEOUT, 20_000, "a frozen peer goes unnoticed"),
        (zmq.HEARTBEAT_IVL, 10_000, "a frozen peer goes unnoticed"),
        (zmq.TCP_MAXRT, 30_000, "a peer that is frozen in mid-message goes unnoticed"),
        (zmq.HANDSHAKE_IVL, 10_000, "a peer that does not shake hands goes unnoticed"),
    ],
)
async def test_an_option_keeps_harm_away(pair: Pair, option: int, value: int, harm: str) -> None:
    assert pair.dealer._zmq.get(option) == value, harm


async def test_a_peer_that_has_gone_is_told_of(pair: Pair) -> None:
    with pytest.raises(NotConnected):
        pair.router.send([b"nobody", b"hi"])
    await pair.connect()
    pair.router.close(linger=False)
    await until(lambda: LinkEvent.DOWN in pair.events)


async def queue(pair: Pair, count: int) -> None:
    """Sends messages, and waits until they can all be read at once."""
    for number in range(count):
        pair.dealer.send([b"%d" % number])
    await trio.testing.wait_all_tasks_blocked(0.1)


async def test_a_flood_does_not_hold_up_other_tasks(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pair.connect()
    monkeypatch.setattr(draining, "DRAIN_SECONDS", 1000.0)
    budgets = 5
    await queue(pair, budgets * draining.DRAIN_MESSAGES)
    messages: list[Frames] = []
    turns: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.router.read, messages.append)
        while len(messages) < budgets * draining.DRAIN_MESSAGES:
            await trio.lowlevel.checkpoint()
            turns.append(len(messages))
        nursery.cancel_scope.cancel()
    steps = [after - before for before, after in pairwise([0, *turns])]
    assert max(steps) <= 2 * draining.DRAIN_MESSAGES  # the last in one turn, the first in the next
    assert [message[1] for message in messages] == [b"%d" % n for n in range(len(messages))]


async def test_large_messages_do_not_hold_up_other_tasks_either(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pair.connect()
    monkeypatch.setattr(draining, "DRAIN_SECONDS", -1.0)
    await queue(pair, 5)
    messages: list[Frames] = []
    while len(messages) < 5:
        before = len(messages)
        pair.router.drain(messages.append)
        assert len(messages) - before <= 1, "out of time after each"
        await trio.lowlevel.checkpoint()


async def test_draining_does_not_nest(pair: Pair) -> None:
    await pair.connect()
    for number in range(5):
        pair.dealer.send([b"%d" % number])
    order: list[object] = []

    def deliver(frames: Frames) -> None:
        order.append(frames[1])
        assert pair.router.drain(order.append)

    while len(order) < 5:
        pair.router.drain(deliver)
        await trio.sleep(0.001)
    assert order == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_message_of_a_thousand_frames_costs_no_more_than_a_few(pair: Pair) -> None:
    await pair.connect()
    pair.dealer.send([b"x"] * 1000)
    pair.dealer.send([b"next"])
    long, after = await drain(pair.router, 2)
    assert len(long) == zmq_socket.MAX_FRAMES
    assert after[1:] == [b"next"]


async def test_a_message_of_frames_without_end_lets_others_have_their_turn(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draining, "DRAIN_MESSAGES", 1)
    await pair.connect()
    pair.dealer.send([b"x"] * 5000)
    pair.dealer.send([b"next"])
    messages: list[Frames] = []
    turns = 0
    await until(lambda: not pair.router.drain(messages.append))
    while pair.router._has_rest:
        turns += 1
        is_drained = pair.router.drain(messages.append)
        assert not (is_drained and pair.router._has_rest)
    assert turns > 15
    await until(lambda: pair.router.drain(messages.append) and len(messages) == 2)
    assert messages[1][1:] == [b"next"]


async def test_a_large_frame_is_not_copied(pair: Pair) -> None:
    await pair.connect()
    pair.dealer.send([bytes(zmq_socket.COPY_BELOW)])
    (message,) = await drain(pair.router, 1)
    assert isinstance(message[1], memoryview)
    assert bytes(message[1]) == bytes(zmq_socket.COPY_BELOW)


async def test_closing_wakes_whoever_reads_and_watches(pair: Pair) -> None:
    await pair.connect()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.dealer.read, lambda _: None)
        await trio.testing.wait_all_tasks_blocked()
        pair.dealer.close()
        pair.dealer.close()
    with pytest.raises(trio.ClosedResourceError):
        pair.dealer.send([b"hi"])
    assert pair.dealer.drain(lambda _: None)


async def test_a_handler_may_close_the_socket_it_reads_from(pair: Pair) -> None:
    await pair.connect()
    pair.dealer.send([b"1"])
    pair.dealer.send([b"2"])
    messages: list[Frames] = []

    def deliver(frames: Frames) -> None:
        messages.append(frames)
        pair.router.close()

    with trio.fail_after(20):
        await pair.router.read(deliver)
    assert len(messages) == 1


async def test_a_cancelled_reader_loses_nothing(pair: Pair) -> None:
    await pair.connect()
    messages: list[Frames] = []
    for number in range(100):
        with trio.CancelScope() as scope:
            pair.dealer.send([b"%d" % number])
            scope.cancel()
            await pair.router.read(messages.append)
    messages += await drain(pair.router, 100 - len(messages))
    assert [message[1] for message in messages] == [b"%d" % number for number in range(100)]


async def test_another_thread_is_refused(pair: Pair) -> None:
    await pair.connect()
    with pytest.raises(RuntimeError, match="thread"):
        await trio.to_thread.run_sync(pair.dealer.send, [b"hi"])
    with pytest.raises(RuntimeError, match="thread"):
        await trio.to_thread.run_sync(pair.dealer.close)


async def test_a_forked_process_is_refused(pair: Pair) -> None:
    await pair.connect()
    here, there = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside ZeroMQ's threads
        child = os.fork()
    if child == 0:
        try:
            pair.dealer.send([b"hi"])
        except RuntimeError as error:
            os.write(there, str(error).encode())
        finally:
            os._exit(0)
    os.close(there)
    with os.fdopen(here) as said:
        assert "process" in said.read()
    os.waitpid(child, 0)  # noqa: ASYNC222 - it ends at once


async def test_watching_what_is_not_connected_is_a_mistake(pair: Pair) -> None:
    with pytest.raises(RuntimeError, match="connect first"):
        await pair.router.watch(pair.notice)


async def test_an_address_that_is_taken_cannot_be_bound(pair: Pair) -> None:
    other = ZmqSocket(ROUTER, link=Link(), context=pair.context)
    with pytest.raises(ConnectError, match="in use"):
        other.bind(pair.address)
    with pytest.raises(ConnectError, match="cannot use"):
        other.bind("tcp://192.0.2.1:5555")
    with pytest.raises(ValueError, match="no address"):
        other.bind("nonsense")
    other.close()


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
async def test_an_address_left_in_a_hurry_can_be_bound_again_at_once(
    pair: Pair, tmp_path: Path, scheme: str
) -> None:
    address = pair.address if scheme == "tcp" else f"ipc://{tmp_path}/socket"
    pair.router.close(linger=False)
    for _ in range(100):  # ZeroMQ's thread is slow to let go in one of some ten rounds
        router = ZmqSocket(ROUTER, link=Link(), context=pair.context)
        dealer = ZmqSocket(DEALER, link=Link(), context=pair.context)
        try:
            router.bind(address)
            dealer.connect(address)
            dealer.send([b"hello"])
            await drain(router, 1)
        finally:
            router.close(linger=False)
            dealer.close(linger=False)


async def test_what_zeromq_refuses_otherwise_is_not_hidden(pair: Pair) -> None:
    await pair.connect()
    pair.router._zmq.close(0)
    with pytest.raises(zmq.ZMQError):
        pair.router.send([b"x", b"y"])
    pair.router._closed = True
