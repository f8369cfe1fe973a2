"""Connections that do not come about, or break: the cause is named, and the client recovers."""

from __future__ import annotations

import logging
import re
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
import zmq

from tests.peers import ScriptedCoordinator, free_address, scripted_coordinator
from tests.strangers import answer_http, hang_up, listener, nobody, one_that_never_acks, stay_silent
from tests.waiting import until
from trio_infer import ConnectionLost, ConnectTimeout, SamplingParams, open_client
from trio_infer import connection as connection_module
from trio_infer import transport as transport_module
from trio_infer.protocol.dialect import Kind
from trio_infer.sockets import ROUTER, Link, ZmqSocket
from trio_infer.transport import Transport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from trio_infer.protocol.packing import Frames
    from trio_infer.sockets import SocketOptions

LONG = SamplingParams(num_tokens_to_generate=100_000)

SERVER, OTHER_SERVER, CLIENT = (zmq.curve_keypair() for _ in range(3))


def curve_server(keys: tuple[bytes, bytes]) -> SocketOptions:
    options: dict[str, int | bytes] = {"CURVE_SERVER": 1, "CURVE_SECRETKEY": keys[1]}
    return options


CURVE_CLIENT: SocketOptions = {
    "CURVE_SERVERKEY": SERVER[0],
    "CURVE_PUBLICKEY": CLIENT[0],
    "CURVE_SECRETKEY": CLIENT[1],
}
CURVE = Link(socket_options=curve_server(SERVER))
OTHER_CURVE = Link(socket_options=curve_server(OTHER_SERVER))

PLAIN_CLIENT: SocketOptions = {"PLAIN_USERNAME": b"ann", "PLAIN_PASSWORD": b"wrong"}
PLAIN = Link(socket_options={"PLAIN_SERVER": 1})

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00"
"""ZMTP 3.0's, as far as its mechanism."""


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "BACKOFF_SECONDS", (0.01, 0.01))


async def greet_by_another_mechanism(stream: trio.SocketStream) -> None:
    await stream.send_all(GREETING + b"SMOKE".ljust(20, b"\0") + b"\0" + bytes(31))
    await trio.sleep_forever()


NO_KEYS: SocketOptions = {}
DENIED = "it denied access (status 400)"
ANY_KEYS = r"is it a ZeroMQ coordinator, and does it want CURVE keys\?"
WHICH_KEYS = r"CURVE_SERVERKEY"

CAUSES = [
    pytest.param(nobody, NO_KEYS, "nobody listens there", id="nobody"),
    pytest.param(partial(listener, hang_up), NO_KEYS, ANY_KEYS, id="hangs up"),
    pytest.param(partial(listener, answer_http), NO_KEYS, ANY_KEYS, id="http"),
    pytest.param(partial(listener, stay_silent), NO_KEYS, "stays silent", id="silent"),
    pytest.param(one_that_never_acks, NO_KEYS, "no answer to CONNECT", id="no ack"),
    pytest.param(
        partial(listener, greet_by_another_mechanism),
        NO_KEYS,
        r"failed ZeroMQ's handshake \(error 0x\w+\): " + ANY_KEYS,
        id="mechanism",
    ),
    pytest.param(partial(scripted_coordinator, link=CURVE), NO_KEYS, ANY_KEYS, id="no key"),
    pytest.param(scripted_coordinator, CURVE_CLIENT, WHICH_KEYS, id="idle key"),
    pytest.param(
        partial(scripted_coordinator, link=OTHER_CURVE), CURVE_CLIENT, WHICH_KEYS, id="wrong key"
    ),
]


@pytest.mark.parametrize(("peer", "options", "cause"), CAUSES)
async def test_who_waits_for_a_coordinator_is_told_what_is_wrong_and_has_it_once_that_is_right(
    peer: Callable[[str], AbstractAsyncContextManager[object]],
    options: SocketOptions,
    cause: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    address = free_address()
    async with trio.open_nursery() as nursery:
        async with peer(address):
            done = await nursery.start(generate_once, address, options)
            await until(lambda: f"no connection to {address}: " in caplog.text)
        assert re.search(cause, caplog.text)
        async with scripted_coordinator(address, link=CURVE if options else None) as coordinator:
            coordinator.reply(await coordinator.submission(), [1])
            await done.wait()


async def generate_once(
    address: str,
    options: SocketOptions,
    task_status: trio.TaskStatus[trio.Event] = trio.TASK_STATUS_IGNORED,
) -> None:
    """A client that waits for its coordinator, for as long as that takes."""
    done = trio.Event()
    task_status.started(done)
    async with open_client(
        address, connect_timeout=None, heartbeat_timeout=0.5, socket_options=options
    ) as client:
        await client.generate("hi")
    done.set()


@attrs.define
class Guard:
    """Says who may connect to a coordinator: ZeroMQ asks it, by its protocol ZAP."""

    status: bytes
    _socket: ZmqSocket

    def answer(self, frames: Frames) -> None:
        identity, delimiter, version, request, *_ = frames
        self._socket.send([identity, delimiter, version, request, self.status, b"", b"", b""])


@asynccontextmanager
async def guarding(coordinator: ScriptedCoordinator, status: bytes) -> AsyncIterator[Guard]:
    assert isinstance(coordinator._socket, ZmqSocket)
    socket = ZmqSocket(ROUTER, link=Link(), context=coordinator._socket._zmq.context)
    socket.bind("inproc://zeromq.zap.01")
    guard = Guard(status, socket)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(socket.read, guard.answer)
            yield guard
            nursery.cancel_scope.cancel()
    finally:
        socket.close()


@pytest.mark.parametrize(
    ("link", "options"),
    [(CURVE, CURVE_CLIENT), (PLAIN, PLAIN_CLIENT)],
    ids=["curve", "plain"],
)
async def test_a_client_that_is_denied_is_told_so_and_works_once_it_is_allowed(
    link: Link, options: SocketOptions, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        scripted_coordinator(link=link) as coordinator,
        guarding(coordinator, b"400") as guard,
    ):
        async with trio.open_nursery() as nursery:
            done = await nursery.start(generate_once, coordinator.address, options)
            await until(lambda: DENIED in caplog.text)
            guard.status = b"200"
            coordinator.reply(await coordinator.submission(), [1])
            await done.wait()


async def test_a_client_that_is_denied_when_it_reconnects_tells_the_log_and_signals(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nobody waits to connect, who could be told by an exception."""
    address = free_address()
    async with scripted_coordinator(address, link=PLAIN) as first, guarding(first, b"200"):
        async with open_client(address, socket_options=PLAIN_CLIENT) as client:
            first.close()
            async with scripted_coordinator(address, link=PLAIN) as second:
                async with guarding(second, b"400") as guard, trio.open_nursery() as nursery:
                    await until(lambda: DENIED in caplog.text)
                    with pytest.raises(ConnectionLost, match="no connection"):
                        client.engines.pause()
                    nursery.start_soon(client.generate, "waits")
                    await until(lambda: client.statistics().waiting)
                    guard.status = b"200"
                    second.reply(await second.submission(), [1])
    assert client.statistics().completed == 1


async def test_the_error_of_connecting_names_the_cause() -> None:
    async with scripted_coordinator(link=OTHER_CURVE) as coordinator:
        with pytest.raises(ConnectTimeout, match=WHICH_KEYS):
            async with open_client(
                coordinator.address, connect_timeout=1, socket_options=CURVE_CLIENT
            ):
                pytest.fail("entered")


async def test_connecting_that_ends_before_its_first_attempt_says_how_far_that_came() -> None:
    address = free_address()
    async with listener(stay_silent, address):
        with pytest.raises(ConnectTimeout, match="stays silent"):
            async with open_client(address, connect_timeout=1):
                pytest.fail("entered")


# What the log says


async def test_each_cause_is_logged_once_until_the_connection_is_up_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning at each attempt would fill the disk while a coordinator is away."""
    caplog.set_level(logging.INFO, "trio_infer")
    attempts: list[None] = []
    connect_once = Transport._connect_once

    async def counted(transport: Transport) -> float | None:
        attempts.append(None)
        return await connect_once(transport)

    async def five_attempts() -> None:
        wanted = len(attempts) + 5
        await until(lambda: len(attempts) >= wanted)

    monkeypatch.setattr(Transport, "_connect_once", counted)
    address = free_address()
    async with scripted_coordinator(address) as first, open_client(address) as client:
        first.close()
        await five_attempts()
        async with listener(hang_up, address):
            await five_attempts()
        await five_attempts()
        async with scripted_coordinator(address) as second:
            await until(lambda: client.statistics().connections == 2)
            second.close()
        await five_attempts()
    told = [(record.levelname, *record.getMessage().split(address)) for record in caplog.records]
    away = ("WARNING", "no connection to ", ": nobody listens there, or no way leads there")
    assert [line for line in told if line[2] == "" or line == away] == [
        ("INFO", "connected to ", ""),
        away,
        ("INFO", "connected to ", ""),
        away,
    ]
    assert len([line for line in told if "hung up" in line[2]]) == 1


# A frame that is too large


async def test_a_frame_over_max_message_size_is_named_and_the_client_goes_on(
    coordinator: ScriptedCoordinator,
) -> None:
    async with open_client(coordinator.address, max_message_size=10_000) as client:
        with pytest.raises(ConnectionLost, match=r"max_message_size \(10000\)") as caught:
            async with client.stream("hi", LONG) as stream:
                submission = await coordinator.submission()
                coordinator.partial(submission, [1, 2])
                coordinator.partial(submission, [1] * 20_000)
                await stream.result()
        assert caught.value.tokens == (1, 2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.generate, "hi")
            coordinator.reply(await coordinator.submission(), [1])
    assert client.statistics().connections == 2


async def test_while_the_cause_is_sought_nothing_is_handed_over_and_what_came_is_read(
    coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "RETRY_SECONDS", 1000.0)
    async with open_client(coordinator.address, max_message_size=10_000) as client:
        transport = client._exchange._transport
        async with client.stream("hi", LONG) as stream:
            async with trio.open_nursery() as nursery:
                submission = await coordinator.submission()
                coordinator.partial(submission, [1, 2])
                coordinator.partial(submission, [1] * 20_000)
                await until(lambda: not transport.is_up)
                assert (await stream.receive()).tokens == [1, 2]
                with pytest.raises(ConnectionLost):
                    client.engines.pause()
                nursery.start_soon(client.generate, "waits")
                await until(lambda: client.statistics().waiting)
                assert not stream.finished
                connection = transport._current
                assert connection is not None
                connection.retried.set()
                coordinator.reply(await coordinator.submission(), [3])
            with pytest.raises(ConnectionLost):
                await stream.result()
    assert coordinator.kinds.count(Kind.SUBMIT_REQUEST) == 2
    assert Kind.PAUSE not in coordinator.kinds


async def test_a_peer_that_is_gone_is_told_of_at_once(
    coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for a time that passes without news."""
    monkeypatch.setattr(connection_module, "RETRY_SECONDS", 1000.0)
    async with open_client(coordinator.address) as client:
        with pytest.raises(ConnectionLost, match="the peer is gone"):
            async with client.stream("hi", LONG) as stream:
                await coordinator.submission()
                coordinator.close()
                await stream.result()
