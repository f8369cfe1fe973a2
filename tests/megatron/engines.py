"""Engines for megatron-core's coordinator: ours, speaking its own dialect of the other side."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgpack
import trio

from trio_infer.embedded.admission import Handoff
from trio_infer.embedded.batching import EnginePartial, EngineReply
from trio_infer.embedded.engine import Engine
from trio_infer.embedded.finished_request import LACKING
from trio_infer.embedded.ngram import default_model
from trio_infer.protocol.dialect import Dialect, Kind
from trio_infer.sockets import DEALER, Link, ZmqSocket, dispose_context, make_context

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from trio_infer.embedded.lifecycle import EngineState
    from trio_infer.protocol.packing import Frames

__all__ = ["RegisteredEngine", "registered_engine"]


class RegisteredEngine:
    """An engine that a coordinator knows."""

    def __init__(self, socket: ZmqSocket, dialect: Dialect, step_time: float) -> None:
        self.engine = Engine(default_model(), sampling_fields=dialect.sampling_fields, seed=1)
        self._socket = socket
        self._dialect = dialect
        self._step_time = step_time
        self._lacking = LACKING.get(dialect.name, frozenset())
        self._changed = trio.Event()

    @property
    def state(self) -> EngineState:
        return self.engine.life.state

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._socket.watch, lambda *_: None)
            nursery.start_soon(self._socket.read, self._take)
            self._socket.send([b""])
            while True:
                while not self.engine.wants_step:
                    await self.changed()
                await trio.sleep(self._step_time)
                outputs = self.engine.step(time.time())
                partials = [o.body for o in outputs if isinstance(o, EnginePartial)]
                if partials:
                    self._send(Kind.ENGINE_REPLY_PARTIAL, partials)
                self._reply([o.body for o in outputs if isinstance(o, EngineReply)])
                self._change()

    async def changed(self) -> None:
        await self._changed.wait()

    async def wait_until(self, *states: EngineState) -> None:
        """Returns once it is in one of these states: to confirm with."""
        await trio.lowlevel.checkpoint()
        while self.state not in states:
            await self.changed()

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _take(self, frames: Frames) -> None:
        number, *fields = msgpack.unpackb(bytes(frames[0]))
        kind = self._dialect.kinds[number]
        if kind in (Kind.SUBMIT_REQUEST, Kind.SUBMIT_REQUEST_WITH_KV):
            request_id, prompt, params, *others = fields
            handoff = Handoff(*others) if kind is Kind.SUBMIT_REQUEST_WITH_KV else None
            refusal = self.engine.submit(request_id, prompt, params, time.time(), handoff=handoff)
            if refusal is not None:
                self._reply([refusal.body])
        elif kind is Kind.ABORT_REQUEST:
            self.engine.abort(*fields)
        elif kind is Kind.RELEASE_KV:
            self.engine.release(*fields)
        else:
            self.engine.heed(kind, *fields)
        self._change()

    def _reply(self, finished: list[Any]) -> None:
        if finished:
            lacking = self._lacking
            bodies = [{n: v for n, v in body.items() if n not in lacking} for body in finished]
            self._send(Kind.ENGINE_REPLY, bodies)

    def _send(self, kind: Kind, bodies: list[Any]) -> None:
        self._socket.send([msgpack.packb([self._dialect.number(kind), bodies])])


@asynccontextmanager
async def registered_engine(
    address: str, dialect: Dialect, *, step_time: float = 0.001
) -> AsyncGenerator[RegisteredEngine]:
    """An engine behind the coordinator at an address."""
    context = make_context()
    socket = ZmqSocket(DEALER, link=Link(), context=context)
    try:
        socket.connect(address)
        engine = RegisteredEngine(socket, dialect, step_time)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.run)
            yield engine
            nursery.cancel_scope.cancel()
    finally:
        socket.close()
        with trio.CancelScope(shield=True):
            await dispose_context(context)
