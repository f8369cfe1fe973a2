"""The coordinator without I/O: messages in, messages out, a clock given.

What it takes for granted and what it drops follows megatron-core's own coordinator, but where that
one dies of a message or of a vanished client this one logs and counts.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

import attrs

from ..protocol.coordinator_codec import ClientMessage, CoordinatorCodec
from ..protocol.dialect import Kind
from ..protocol.hashing import PrefixHashing
from ..protocol.packing import Frames, MalformedMessage
from .engine import Engine, EnginePartial, EngineReply
from .finished_request import LACKING, Status
from .routing import Router
from .statistics import CoordinatorStatistics, RunningRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..protocol.dialect import Dialect
    from ..protocol.packing import Frame

__all__ = ["CoordinatorCore"]

_logger = logging.getLogger(__name__)


@attrs.frozen
class _Route:
    """Whose a request is (nobody's, once they have left), its id there, and its engine."""

    identity: bytes | None
    client_id: int
    engine: int


class CoordinatorCore:
    """Passes the requests of clients to engines, and what these answer back.

    Args:
        dialect: what the clients speak.
        engines: who serves the requests.
        prefix_hashing: whether the beginning of a prompt decides which of them; by default the
            least loaded takes the next one.
    """

    def __init__(
        self,
        dialect: Dialect,
        engines: Sequence[Engine],
        *,
        prefix_hashing: PrefixHashing | None = None,
    ) -> None:
        if not engines:
            msg = "a coordinator needs at least one engine"
            raise ValueError(msg)
        self.stopped = False
        self.paused = False
        self._codec = CoordinatorCodec(dialect)
        self._lacking = LACKING.get(dialect.name, frozenset())
        self._engines = tuple(engines)
        self._router = Router(
            self._engines, prefix_hashing or PrefixHashing(), self._engines[0].model.tokenize
        )
        self._clients: set[bytes] = set()
        self._routes: dict[int, _Route] = {}
        self._numbers: dict[tuple[bytes, int], int] = {}
        self._outgoing: list[tuple[bytes, Frames]] = []
        self._counts: Counter[str] = Counter()

    @property
    def wants_step(self) -> bool:
        """Whether an engine has something to do."""
        return any(engine.wants_step for engine in self._engines)

    @property
    def idle(self) -> bool:
        """Whether every request has been answered."""
        return not self._routes

    @property
    def running(self) -> tuple[RunningRequest, ...]:
        """The requests that are being decoded."""
        return tuple(
            RunningRequest(
                request_id=request.request_id,
                engine=index,
                prompt_length=request.prompt_length,
                generated_length=request.generated_length,
            )
            for index, engine in enumerate(self._engines)
            for request in engine.running
        )

    def statistics(self) -> CoordinatorStatistics:
        """The counters, as they are now."""
        return CoordinatorStatistics(
            clients=len(self._clients),
            running=sum(len(engine.running) for engine in self._engines),
            waiting=sum(len(engine.waiting) for engine in self._engines),
            steps=sum(engine.steps for engine in self._engines),
            tokens=sum(engine.tokens for engine in self._engines),
            **self._counts,
        )

    def pause(self) -> None:
        """The engines accept requests and aborts from now on, but act on none."""
        self.paused = True
        for engine in self._engines:
            engine.pause()

    def unpause(self) -> None:
        """The engines go on."""
        self.paused = False
        for engine in self._engines:
            engine.unpause()

    def receive(self, identity: bytes, frames: Sequence[Frame], now: float) -> None:
        """Takes a client's message.

        Args:
            identity: the client's routing id.
            frames: what it sent.
            now: the time in seconds.
        """
        try:
            message = self._codec.decode(frames)
        except MalformedMessage as error:
            self._drop(identity, str(error))
            return
        if message.kind is Kind.CONNECT:
            self._connect(identity)
        elif identity in self._clients:
            self._obey(identity, message, now)
        else:
            self._counts["ignored"] += 1
            _logger.debug("%s of unknown client %r ignored", message.kind.name, identity)

    def step(self, now: float) -> None:
        """Lets each engine decode a token of each request that it runs.

        Args:
            now: the time, in seconds, at which the tokens are there.
        """
        for engine in self._engines:
            for output in engine.step(now):
                if isinstance(output, EnginePartial):
                    route = self._routes[output.request_id]
                    self._send(route, self._codec.partial(route.client_id, output.body))
                else:
                    self._reply(output)

    def take_outgoing(self) -> list[tuple[bytes, Frames]]:
        """What is to be sent, to whom, in order; it is handed out once."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def undeliverable(self, identity: bytes) -> None:
        """Notes that a reply could not be sent, since its client is gone.

        Its other requests are aborted, and what would still be sent to it is counted and dropped.
        """
        self._counts["unroutable"] += 1
        if identity in self._clients:
            _logger.warning("client %r has left with replies outstanding", identity)
            self._clients.discard(identity)
            for number, route in self._routes.items():
                if route.identity == identity:
                    del self._numbers[identity, route.client_id]
                    self._routes[number] = attrs.evolve(route, identity=None)
                    self._engines[route.engine].abort(number)

    def _connect(self, identity: bytes) -> None:
        if identity in self._clients:
            _logger.debug("client %r is connected already", identity)
        else:
            self._clients.add(identity)
            self._outgoing.append((identity, self._codec.connect_ack()))

    def _obey(self, identity: bytes, message: ClientMessage, now: float) -> None:
        match message:
            case ClientMessage(kind=Kind.SUBMIT_REQUEST, request_id=int(client_id)):
                self._submit((identity, client_id), message, now)
            case ClientMessage(kind=Kind.ABORT_REQUEST, request_id=int(client_id)):
                self._abort((identity, client_id))
            case ClientMessage(kind=Kind.PAUSE):
                self.pause()
            case ClientMessage(kind=Kind.UNPAUSE):
                self.unpause()
            case ClientMessage(kind=Kind.SHUTDOWN):
                self.stopped = True
            case _:
                self._drop(identity, f"{message.kind.name} is not understood here")

    def _submit(self, key: tuple[bytes, int], message: ClientMessage, now: float) -> None:
        prompt = message.prompt or ""  # the codec takes no submission without one
        if key in self._numbers:
            self._drop(key[0], f"request id {key[1]} is in use")
            return
        number = self._counts["submitted"]
        self._counts["submitted"] += 1
        index = self._router.route(prompt, message.block_hashes)
        self._routes[number] = _Route(*key, index)
        self._numbers[key] = number
        refusal = self._engines[index].submit(number, prompt, message.sampling_params or {}, now)
        if refusal is not None:
            self._reply(refusal)

    def _abort(self, key: tuple[bytes, int]) -> None:
        number = self._numbers.get(key)
        if number is None:
            self._counts["stray_aborts"] += 1
        else:
            self._counts["aborts"] += 1
            self._engines[self._routes[number].engine].abort(number)

    def _reply(self, reply: EngineReply) -> None:
        route = self._routes.pop(reply.request_id)
        if route.identity is not None:
            del self._numbers[route.identity, route.client_id]
        completed = reply.body["status"] == Status.COMPLETED.name
        self._counts["completed" if completed else "failed"] += 1
        body = {name: value for name, value in reply.body.items() if name not in self._lacking}
        self._send(route, self._codec.reply(route.client_id, body))

    def _send(self, route: _Route, frames: Frames) -> None:
        if route.identity is None:
            self._counts["unroutable"] += 1
        else:
            self._outgoing.append((route.identity, frames))

    def _drop(self, identity: bytes, reason: str) -> None:
        self._counts["malformed"] += 1
        dialect = self._codec.dialect.name
        _logger.warning(
            "message of %r dropped: %s (does it speak another dialect than %r?)",
            identity,
            reason,
            dialect,
        )
