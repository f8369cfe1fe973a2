"""The coordinator without I/O: messages in, messages out, a clock given.

What it takes for granted and what it drops follows megatron-core's own coordinator, but where that
one dies of a message or of a vanished client this one logs and counts.
"""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ..complaints import Complaints
from ..protocol.coordinator_codec import ClientMessage, CoordinatorCodec
from ..protocol.dialect import Kind
from ..protocol.hashing import PrefixHashing
from ..protocol.packing import Frames, MalformedMessage
from .admission import Handoff
from .batching import EnginePartial, EngineReply
from .finished_request import LACKING, Status, failed_on_purpose
from .fleet import Fleet, FleetStep
from .lifecycle import CONTROL, CoordinatorState, EngineDied, EngineState
from .outgoing import Outgoing
from .received_request import ReceivedRequest
from .request_table import RequestTable, Route
from .routing import Router
from .statistics import CoordinatorStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ..protocol.dialect import Dialect
    from ..protocol.packing import Frame
    from .engine import Engine
    from .received_request import State
    from .statistics import RunningRequest

__all__ = ["CoordinatorCore"]

_logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class CoordinatorCore:
    """Passes the requests of clients to engines, and what these answer back.

    Args:
        dialect: what the clients speak.
        engines: who serves the requests.
        prefix_hashing: whether the beginning of a prompt decides which of them; by default the
            least loaded takes the next one.
        fails: whether a request of that number is failed as soon as it is submitted.
        keep_requests: whether `requests` tells of those as well that have ended.

    Attributes:
        stopped: whether it has ended.
        state: what it takes its engines to be in.
        dialect: as given.
        fleet: its engines.
    """

    def __init__(
        self,
        dialect: Dialect,
        engines: Sequence[Engine],
        *,
        prefix_hashing: PrefixHashing | None = None,
        fails: Callable[[int], bool] = lambda _: False,
        keep_requests: bool = False,
    ) -> None:
        if not engines:
            msg = "a coordinator needs at least one engine"
            raise ValueError(msg)
        self.stopped: bool = False
        self.state: CoordinatorState = CoordinatorState.RUNNING
        self.dialect = dialect
        self._codec = CoordinatorCodec(dialect)
        self._fails = fails
        self._lacking = LACKING.get(dialect.name, frozenset())
        self.fleet: Fleet = Fleet(tuple(engines))
        tokenize = engines[0].model.tokenize
        self._router = Router(self.fleet, prefix_hashing or PrefixHashing(), tokenize)
        self._clients: set[bytes] = set()
        self._table = RequestTable(keep_ended=keep_requests)
        self._outgoing: list[Outgoing] = []
        self._counts: Counter[str] = Counter()
        self._complaints = Complaints(_logger)

    @property
    def wants_step(self) -> bool:
        """Whether an engine has something to do."""
        return self.fleet.wants_step

    @property
    def idle(self) -> bool:
        """Whether every request has been answered."""
        return not self._table

    @property
    def running(self) -> tuple[RunningRequest, ...]:
        """The requests that are being decoded, by engine, the oldest first."""
        return tuple(self.fleet.running)

    @property
    def requests(self) -> tuple[ReceivedRequest, ...]:
        """The requests that have not ended, or all; by number."""
        lengths = {each.request_id: each.generated_length for each in self.fleet.running}
        return self._table.told(lengths)

    def statistics(self) -> CoordinatorStatistics:
        """The counters, as they are now."""
        return CoordinatorStatistics(
            clients=len(self._clients),
            running=sum(len(engine.running) for engine in self.fleet.engines),
            waiting=sum(len(engine.waiting) for engine in self.fleet.engines),
            steps=sum(engine.steps for engine in self.fleet.engines),
            tokens=sum(engine.tokens for engine in self.fleet.engines),
            **self._counts,
        )

    def pause(self) -> None:
        """The engines accept requests and aborts from now on, but act on none."""
        if self.state is CoordinatorState.RUNNING:
            self.state = CoordinatorState.PAUSED
        for engine in self.fleet.left.values():
            engine.pause()

    def unpause(self) -> None:
        """The engines go on."""
        if self.state is CoordinatorState.PAUSED:
            self.state = CoordinatorState.RUNNING
        for engine in self.fleet.left.values():
            engine.unpause()

    def kill_engine(self, index: int) -> None:
        """An engine dies, with its requests. Nobody is told."""
        if not self.fleet[index].life.is_gone:
            _logger.warning("engine %d was killed", index)
            self._bury(index, EngineState.DEAD)

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
        step = self.begin(now)
        step.run()
        self.finish(step, now)

    def begin(self, now: float) -> FleetStep:
        """Begins a step of each engine, and tells of what has ended already.

        Messages may be taken before it is finished.
        """
        step = self.fleet.begin(now)
        self._answer(step.outputs)
        return step

    def finish(self, step: FleetStep, now: float) -> None:
        """Finishes the steps that have been computed.

        Args:
            step: what `begin` returned.
            now: the time, in seconds, at which the tokens are there.
        """
        self._answer(self.fleet.finish(step, now))

    def _answer(self, outputs: Iterable[EnginePartial | EngineReply]) -> None:
        for output in outputs:
            if isinstance(output, EnginePartial):
                route = self._table[output.request_id]
                frames = self._codec.partial(route.client_id, output.body)
                self._send(output.request_id, route, frames)
            else:
                self._reply(output)

    def take_outgoing(self) -> list[Outgoing]:
        """What is to be sent, in order; it is handed out once."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def undeliverable(self, identity: bytes) -> None:
        """Notes that a reply could not be sent, since its client is gone.

        Its other requests are aborted, and what would still be sent to it is counted and dropped.
        """
        self._counts["unroutable"] += 1
        if identity in self._clients:
            self._complaints.warn("client %r has left with replies outstanding", identity)
            self._clients.discard(identity)
            for number, route in self._table.disown(identity).items():
                route.aborted = True
                self.fleet[route.request.engine].abort(number)

    def _connect(self, identity: bytes) -> None:
        if identity in self._clients:
            _logger.debug("client %r is connected already", identity)
        else:
            self._clients.add(identity)
            self._outgoing.append(Outgoing(identity, self._codec.connect_ack()))

    def _obey(self, identity: bytes, message: ClientMessage, now: float) -> None:
        kind, number = message.kind, message.request_id
        if kind in (Kind.SUBMIT_REQUEST, Kind.SUBMIT_REQUEST_WITH_KV) and number is not None:
            self._submit((identity, number), message, now)
        elif kind is Kind.ABORT_REQUEST and number is not None:
            self._abort((identity, number))
        elif kind is Kind.RELEASE_KV and number is not None:
            self._broadcast(lambda engine: engine.release(number))
        elif kind is Kind.SHUTDOWN:
            self.stopped = True
        elif kind in CONTROL:
            self._control(identity, message)
        else:
            self._drop(identity, f"{kind.name} is not understood here")

    def _control(self, identity: bytes, message: ClientMessage) -> None:
        """Passes a control signal on, if it fits the state."""
        kind = message.kind
        transition = CONTROL[kind]
        if self.state not in transition.accepted_in:
            if self.state not in transition.ignored_in:
                text = "%s of client %r was dropped: the coordinator is %s"
                self._complaints.warn(text, kind.name, identity, self.state.name)
            return
        self.state = transition.leads_to or self.state
        self._broadcast(lambda engine: engine.heed(kind, message.epoch))

    def _broadcast(self, action: Callable[[Engine], None]) -> None:
        for index, engine in self.fleet.left.items():
            self._let(index, partial(action, engine))

    def _let(self, index: int, action: Callable[[], _Result]) -> _Result | None:
        """Lets an engine do something, which it may die of; and looks whether it has gone."""
        engine = self.fleet[index]
        try:
            return action()
        except EngineDied as death:
            _logger.error("engine %d died: %s", index, death)  # noqa: TRY400 - no traceback of ours
            self._bury(index, EngineState.DEAD)
            return None
        finally:
            if engine.life.state is EngineState.STOPPED:
                self._bury(index, EngineState.STOPPED)

    def _bury(self, index: int, state: EngineState) -> None:
        """Forgets the requests of an engine that has gone. Nobody is told."""
        lengths = {each.request_id: each.generated_length for each in self.fleet[index].running}
        for number in self._table.of_engine(index):
            self._table.close(number, "lost", lengths.get(number, 0))
            self._counts["lost"] += 1
        self.fleet[index].end(state)

    def _submit(self, key: tuple[bytes, int], message: ClientMessage, now: float) -> None:
        prompt = "" if message.prompt is None else message.prompt  # which the codec lets pass not
        if self._table.number_of(*key) is not None:
            self._drop(key[0], f"request id {key[1]} is in use")
            return
        key_of_media, has_media = _media(message)
        hashes = [] if has_media and key_of_media is None else message.block_hashes
        try:
            index = self._router.route(prompt, hashes, salt=key_of_media)
        except LookupError as error:
            _logger.warning("the coordinator ends: %s for request %d of %r", error, key[1], key[0])
            self.stopped = True
            return
        number = self._counts["submitted"]
        self._counts["submitted"] += 1
        sampling_params = message.sampling_params or {}
        self._table.add(
            *key,
            ReceivedRequest(
                request_id=number,
                engine=index,
                prompt=prompt,
                sampling_params=sampling_params,
                received_at=now,
            ),
        )
        if self._fails(number):
            failure = failed_on_purpose(number, sampling_params, now)
            self._reply(EngineReply(number, failure.to_wire()))
            return
        submit = partial(
            self.fleet[index].submit,
            number,
            prompt,
            sampling_params,
            now,
            handoff=_handoff(message),
            salt=key_of_media,
            is_cacheable=not has_media or key_of_media is not None,
        )
        refusal = self._let(index, submit)
        if refusal is not None:
            self._reply(refusal)

    def _abort(self, key: tuple[bytes, int]) -> None:
        number = self._table.number_of(*key)
        if number is None:
            self._counts["stray_aborts"] += 1
        else:
            self._counts["aborts"] += 1
            route = self._table[number]
            route.aborted = True
            self.fleet[route.request.engine].abort(number)

    def _reply(self, reply: EngineReply) -> None:
        completed = reply.body["status"] == Status.COMPLETED.name
        aborted = completed and self._table[reply.request_id].aborted
        self._counts["completed" if completed else "failed"] += 1
        self._counts["aborted"] += aborted
        ending: State = "aborted" if aborted else "completed" if completed else "failed"
        route = self._table.close(reply.request_id, ending, reply.body["generated_length"])
        body = {name: value for name, value in reply.body.items() if name not in self._lacking}
        self._send(reply.request_id, route, self._codec.reply(route.client_id, body))

    def _send(self, number: int, route: Route, frames: Frames) -> None:
        if route.identity is None:
            self._counts["unroutable"] += 1
        else:
            self._outgoing.append(Outgoing(route.identity, frames, number, route.replies))
            route.replies += 1

    def _drop(self, identity: bytes, reason: str) -> None:
        self._counts["malformed"] += 1
        dialect = self._codec.dialect.name
        self._complaints.warn(
            "message of %r dropped: %s (does it speak another dialect than %r?)",
            identity,
            reason,
            dialect,
        )


def _handoff(message: ClientMessage) -> Handoff | None:
    if message.kind is not Kind.SUBMIT_REQUEST_WITH_KV:
        return None
    return Handoff(message.kv_meta or {}, message.src_block_ids or [])


def _media(message: ClientMessage) -> tuple[str | None, bool]:
    """The key of the media beside a prompt, where the dialect has one, and whether there are any.

    The embedded models see no media: they run the prompt alone. But equal prompts beside other
    media are told apart, or not cached at all, as real engines do it.
    """
    meta = message.media_meta or {}
    key = meta.get("media_cache_key")
    has_media = bool(message.media_meta or message.media or message.multi_modal_data)
    return key if isinstance(key, str) else None, has_media
