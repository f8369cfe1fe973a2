"""Coordinators for tests: one that does what the test says, over a real socket or in memory."""

from __future__ import annotations

import socket as stdlib_socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
import trio

from trio_infer import ConnectError
from trio_infer.protocol.coordinator_codec import ClientMessage, CoordinatorCodec
from trio_infer.protocol.dialect import Dialect, Kind
from trio_infer.protocol.dialects import FRAMED, resolve_dialect
from trio_infer.sockets import ROUTER, Link, NotConnected, Socket, network_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio_infer.protocol.packing import Frames
    from trio_infer.sockets import Socket

__all__ = [
    "Received",
    "ScriptedCoordinator",
    "finished",
    "free_address",
    "has_ipv6",
    "scripted_coordinator",
]


def finished(tokens: list[int], **fields: Any) -> dict[str, Any]:
    """A finished request with such tokens: bytes of UTF-8, if they can be."""
    is_text = max(tokens, default=0) < 256
    return {
        "request_id": 1000,
        "status": "COMPLETED",
        "generated_tokens": tokens,
        "generated_length": len(tokens),
        "generated_text": bytes(tokens).decode(errors="replace") if is_text else "",
    } | fields


@attrs.frozen
class Received:
    """A message of a client, and which client's it is."""

    client: bytes
    message: ClientMessage

    @property
    def kind(self) -> Kind:
        return self.message.kind

    @property
    def id(self) -> int:
        assert self.message.request_id is not None
        return self.message.request_id


class ScriptedCoordinator:
    """Acks whom it should, notes what comes, and sends what it is told to.

    Attributes:
        address: where it listens.
        log: all messages but CONNECT, in order.
        connects: the clients that sent one.
        acks: whether CONNECT is answered.
        answers_aborts: whether an abort is, with the tokens sent so far, as engines do it.
        block_hashes: what came with each submission.
        unroutable: messages that found their client gone: the real coordinator dies of one.
    """

    def __init__(self, socket: Socket, address: str, dialect: Dialect = FRAMED) -> None:
        self.address = address
        self.log: list[Received] = []
        self.connects: list[bytes] = []
        self.acks = True
        self.answers_aborts = True
        self._tokens: dict[tuple[bytes, int], list[int]] = {}
        self.unroutable = 0
        self.block_hashes: list[list[int] | None] = []
        self._socket = socket
        self._codec = CoordinatorCodec(dialect)
        self._news = {kind: trio.open_memory_channel[Received](1_000_000) for kind in Kind}

    async def run(self) -> None:
        await self._socket.read(self._take)

    def _take(self, frames: Frames) -> None:
        client = bytes(frames[0])
        received = Received(client, self._codec.decode(frames[1:]))
        if received.kind is Kind.CONNECT:
            self.connects.append(client)
            if self.acks:
                self.send(client, self._codec.connect_ack())
            return
        self.log.append(received)
        self._news[received.kind][0].send_nowait(received)
        if received.kind is Kind.ABORT_REQUEST and self.answers_aborts:
            tokens = self._tokens.pop((client, received.id), None)
            if tokens is not None:
                self.reply(received, tokens)
        elif received.kind in (Kind.SUBMIT_REQUEST, Kind.SUBMIT_REQUEST_WITH_KV):
            self.block_hashes.append(received.message.block_hashes)
            self._tokens[client, received.id] = []

    async def submission(self) -> Received:
        """The next submission, waited for."""
        return await self.next(Kind.SUBMIT_REQUEST)

    async def abort(self) -> Received:
        """The next abort, waited for."""
        return await self.next(Kind.ABORT_REQUEST)

    async def next(self, kind: Kind) -> Received:
        """The next message of a kind, waited for."""
        return await self._news[kind][1].receive()

    @property
    def kinds(self) -> list[Kind]:
        """What has come, in order."""
        return [received.kind for received in self.log]

    def of(self, kind: Kind) -> list[int]:
        """The ids of all messages of a kind, in order."""
        return [received.id for received in self.log if received.kind is kind]

    def send(self, client: bytes, frames: Frames) -> None:
        try:
            self._socket.send([client, *frames])
        except NotConnected:
            self.unroutable += 1

    def has_answered(self, submission: Received) -> bool:
        """Whether its final reply has gone, such as after an abort."""
        return (submission.client, submission.id) not in self._tokens

    def ack(self) -> Frames:
        return self._codec.connect_ack()

    def partial_frames(self, to: Received, tokens: list[int], **fields: Any) -> Frames:
        return self._codec.partial(to.id, {"request_id": 1000, "new_tokens": tokens} | fields)

    def partial(self, to: Received, tokens: list[int], **fields: Any) -> None:
        self._tokens[to.client, to.id] += tokens
        self.send(to.client, self.partial_frames(to, tokens, **fields))

    def reply_frames(self, to: Received, tokens: list[int], **fields: Any) -> Frames:
        return self._codec.reply(to.id, finished(tokens, **fields))

    def reply(self, to: Received, tokens: list[int], **fields: Any) -> None:
        self._tokens.pop((to.client, to.id), None)
        self.send(to.client, self.reply_frames(to, tokens, **fields))

    def close(self) -> None:
        """Dies, without a word."""
        self._socket.close(linger=False)


def free_address() -> str:
    """An address that nobody listens on."""
    with stdlib_socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def has_ipv6() -> bool:
    """Whether this machine can be reached by IPv6 from itself."""
    with stdlib_socket.socket(stdlib_socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
    return True


async def _bind(socket: Socket, address: str) -> str:
    """Binds, once whoever had the address before has let go of it."""
    while True:
        try:
            return socket.bind(address)
        except ConnectError:
            await trio.sleep(0.01)


@asynccontextmanager
async def scripted_coordinator(
    bind: str = "tcp://127.0.0.1:*", *, link: Link | None = None, dialect: str = FRAMED.name
) -> AsyncIterator[ScriptedCoordinator]:
    network = network_of(bind)
    socket = network.socket(ROUTER, link or Link())
    try:
        coordinator = ScriptedCoordinator(
            socket, await _bind(socket, bind), resolve_dialect(dialect)
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(coordinator.run)
            yield coordinator
            nursery.cancel_scope.cancel()
    finally:
        socket.close()
        with trio.CancelScope(shield=True):
            await network.dispose()
