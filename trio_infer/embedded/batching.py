"""Continuous batching: which requests an engine runs, and what a step finds for each of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from .computation import Computation
from .finished_request import EngineEvent, EventType
from .language_model import CachingModel

if TYPE_CHECKING:
    from .engine_request import EngineRequest, Finding
    from .kv_blocks import KVBlocks
    from .language_model import LanguageModel
    from .prefix_cache import PrefixCache

__all__ = ["Batch", "EnginePartial", "EngineReply", "EngineStep", "RunningState"]

SCORED_PER_STEP: Final = 256
"""How many prompt tokens are scored in one step, so that long prompts do not hold up the others."""


@attrs.frozen
class EnginePartial:
    """New tokens of a request that goes on."""

    request_id: int
    body: Mapping[str, Any]


@attrs.frozen
class EngineReply:
    """A request's end, whatever it was."""

    request_id: int
    body: Mapping[str, Any]


@attrs.frozen
class RunningState:
    """How far a running request has come.

    Attributes:
        request_id: the coordinator's number for it.
        prompt_length: tokens of its prompt.
        generated_length: tokens generated so far.
    """

    request_id: int
    prompt_length: int
    generated_length: int


@attrs.frozen
class EngineStep:
    """A step that has begun: what there is to send at once, and what has to be computed first."""

    outputs: list[EngineReply]
    computation: Computation


class Batch:
    """The requests of an engine: those that run, a token of each in every step, and the others.

    Args:
        model: what continues the sequences.
        max_requests: how many run at once; the others wait, first come first served.
        prefix_cache: what is remembered of prompts, if anything is.
        kv_blocks: what is kept for other engines, if anything can be.

    Attributes:
        steps: how many there were.
        tokens: how many were generated in them.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        max_requests: int,
        prefix_cache: PrefixCache | None,
        kv_blocks: KVBlocks | None,
    ) -> None:
        self.steps: int = 0
        self.tokens: int = 0
        self._model = model
        self._caching = model if isinstance(model, CachingModel) else None
        self._max_requests = max_requests
        self._prefix_cache = prefix_cache
        self._kv_blocks = kv_blocks
        self._running: dict[int, EngineRequest] = {}
        self._waiting: OrderedDict[int, EngineRequest] = OrderedDict()
        self._last_step: float | None = None
        self._computes = False
        self._stamps: list[tuple[int, list[EngineRequest]]] = []  # owed until a step is finished

    def __len__(self) -> int:
        return len(self._running) + len(self._waiting)

    @property
    def running(self) -> tuple[RunningState, ...]:
        """The requests that are being decoded."""
        return tuple(
            RunningState(request.request_id, request.prompt_length, request.generated_length)
            for request in self._running.values()
        )

    @property
    def waiting(self) -> tuple[int, ...]:
        """The ids of those that wait for one to end."""
        return tuple(self._waiting)

    def add(self, request: EngineRequest) -> None:
        """Lets a request wait for its turn."""
        self._waiting[request.request_id] = request

    def find(self, request_id: int) -> EngineRequest | None:
        """The request of that id, unless it has ended."""
        return self._running.get(request_id) or self._waiting.get(request_id)

    def stamp(self, epoch: int) -> None:
        """A generation epoch begins for all; during a step, behind it, as in real engines."""
        self._stamps.append((epoch, [*self._running.values(), *self._waiting.values()]))
        if not self._computes:
            self._stamp()

    def _stamp(self, ended: Sequence[EngineRequest] = ()) -> None:
        for epoch, requests in self._stamps:
            for request in requests:
                if request not in ended:
                    request.stamp(epoch)
        self._stamps.clear()

    def let_go(self) -> None:
        """Tells the model that nothing more will be asked; what runs stays as it is."""
        for request in self._running.values():
            _close(request)

    def clear(self) -> None:
        """Forgets all of them."""
        self.let_go()
        self._running.clear()
        self._waiting.clear()

    def rest(self) -> None:
        """Does not step for a while, which is not the time that a token takes."""
        self._last_step = None

    def begin(self, now: float) -> EngineStep | None:
        """Begins a step: ends what is over, lets others move up, and says what is to be computed.

        None if nothing runs.

        Args:
            now: the time, in seconds.
        """
        self._fill(now)
        if not self._running:
            self.rest()
            return None
        self.steps += 1
        over = [request for request in self._running.values() if request.is_over]
        ends = self._end(over, now)
        self._computes = True
        return EngineStep(ends, Computation(self._model, self._caching, self._due()))

    def finish(
        self, step: EngineStep, now: float, *, tells: bool
    ) -> list[EnginePartial | EngineReply]:
        """Finishes a step, after its computation, and returns what there is to send.

        What was aborted meanwhile ends, without a token of this step.

        Args:
            step: what `begin` returned.
            now: the time, in seconds, at which the tokens are there.
            tells: whether anything is sent; if not, the next step tells of it.
        """
        step_time = 0.0 if self._last_step is None else now - self._last_step
        self._last_step = now
        computed = step.computation
        ended = [
            request
            for (request, places), found in zip(computed.asked, computed.findings, strict=True)
            if self._apply(request, zip(places, found, strict=False), now, step_time)
        ]
        self._computes = False
        self._stamp(ended)
        if not tells:
            self.rest()
            for request in ended:
                request.stopped = True
            return []
        return [*self._end(ended, now), *self._partials()]

    def _apply(
        self,
        request: EngineRequest,
        found: Iterable[tuple[int, Finding]],
        now: float,
        step_time: float,
    ) -> bool:
        """Gives a request what was found for it. Returns whether it ends."""
        if request.aborted:
            return True
        for place, finding in found:
            if place < request.prompt_length:
                request.prompt_scores.add(finding)
                continue
            self.tokens += 1
            if request.ttft is None:
                request.ttft = now - request.events[0].timestamp
            if step_time > 0:
                request.tpot.append(step_time)
            return request.extend(finding)
        return request.is_over  # asked for scores alone

    def _end(self, requests: Sequence[EngineRequest], now: float) -> list[EngineReply]:
        for request in requests:
            del self._running[request.request_id]
            _close(request)
        return [EngineReply(request.request_id, self._reply(request, now)) for request in requests]

    def _reply(self, request: EngineRequest, now: float) -> dict[str, Any]:
        handoff = None
        if request.params.do_kv_handoff and self._kv_blocks is not None:
            prompt = request.tokens[: request.prompt_length]
            handoff = self._kv_blocks.pin(request.request_id, prompt)
        return request.finish(now, self._model, handoff)

    def _fill(self, now: float) -> None:
        while self._waiting and len(self._running) < self._max_requests:
            request = next(iter(self._waiting.values()))
            if self._caching is not None and not request.is_over:
                request.sequence = self._caching.open_sequence()
                if request.sequence is None:
                    return
            del self._waiting[request.request_id]
            request.events.append(EngineEvent(now, EventType.ADD_CONTEXT))
            if self._prefix_cache is not None:
                request.num_cached_tokens = self._prefix_cache.take(request.block_hashes)
            self._running[request.request_id] = request

    def _due(self) -> list[tuple[EngineRequest, range]]:
        """What is to be found in this step; of prompts no more than one step scores, in order."""
        left, due = SCORED_PER_STEP, []
        for request in self._running.values():
            places = request.due(left)
            left -= min(left, len(request.unscored))
            if places:
                due.append((request, places))
        return due

    def _partials(self) -> list[EnginePartial]:
        bodies = ((each.request_id, each.take_partial()) for each in self._running.values())
        return [EnginePartial(request_id, body) for request_id, body in bodies if body is not None]


def _close(request: EngineRequest) -> None:
    if request.sequence is not None:
        request.sequence.close()
