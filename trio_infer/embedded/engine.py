"""An engine: continuous batching over a language model, without any I/O or clock of its own."""

from __future__ import annotations

import logging
import random
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from ..complaints import Complaints
from ..models.sampling_params import FIELD_NAMES
from ..protocol.dialect import Kind
from .admission import Handoff, admit
from .computation import Computation
from .engine_request import EngineRequest, Finding
from .finished_request import EngineEvent, EventType
from .kv_blocks import KVBlocks
from .language_model import CachingModel, Traits
from .lifecycle import STEPS_TO_PAUSE, EngineDied, EngineState, Lifecycle
from .prefix_cache import PrefixCache

if TYPE_CHECKING:
    from .language_model import LanguageModel

__all__ = ["Engine", "EnginePartial", "EngineReply", "EngineStep", "RunningState"]

_logger: Final = logging.getLogger(__name__)

DEFAULT_MAX_REQUESTS: Final = 64
DEFAULT_MAX_SEQUENCE_LENGTH: Final = 2**17

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


class Engine:
    """Decodes a bounded number of requests at a time, a token of each in every step.

    Every request submitted gets exactly one `EngineReply`. Draws depend on the seed and on the
    request's id, not on what else is running.

    Args:
        model: what continues the sequences.
        max_requests: how many run at once; the others wait, first come first served.
        max_sequence_length: how many tokens a prompt and what follows it may have, unless the model
            holds less.
        seed: where chance begins; None: somewhere else each time.
        block_size_tokens: how many tokens make a block of the prefix cache; None: there is none.
        sampling_fields: the sampling parameters that it knows; of others it takes no notice.
        kv_handoff: whether it is set up for handoffs; if it is not, it dies of one.
        steps_to_pause: how many steps it takes to heed a PAUSE.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        max_requests: int = DEFAULT_MAX_REQUESTS,
        max_sequence_length: int = DEFAULT_MAX_SEQUENCE_LENGTH,
        seed: int | None = None,
        block_size_tokens: int | None = None,
        sampling_fields: Sequence[str] = FIELD_NAMES,
        kv_handoff: bool = True,
        steps_to_pause: int = STEPS_TO_PAUSE,
    ) -> None:
        if max_requests < 1 or max_sequence_length < 1:
            msg = "max_requests and max_sequence_length must be at least 1"
            raise ValueError(msg)
        self.model = model
        self.traits: Traits = Traits.of(model)
        self.max_requests = max_requests
        self.max_sequence_length: int = min(
            max_sequence_length, self.traits.max_sequence_length or max_sequence_length
        )
        self.life: Lifecycle = Lifecycle(steps_to_pause=steps_to_pause)
        self.kv_blocks: KVBlocks | None = KVBlocks() if kv_handoff else None
        self.steps: int = 0
        self.tokens: int = 0
        self._caching = model if isinstance(model, CachingModel) else None
        self._seed = seed
        self._sampling_fields = sampling_fields
        self._prefix_cache = None if block_size_tokens is None else PrefixCache(block_size_tokens)
        self._running: dict[int, EngineRequest] = {}
        self._waiting: OrderedDict[int, EngineRequest] = OrderedDict()
        self._last_step: float | None = None
        self._epoch: int | None = None
        self._computes = False
        self._stamps: list[tuple[int, list[EngineRequest]]] = []  # owed until a step is finished
        self._complaints = Complaints(_logger)

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

    @property
    def load(self) -> int:
        """How many requests it has yet to answer."""
        return len(self._running) + len(self._waiting)

    @property
    def wants_step(self) -> bool:
        """Whether a step would do anything now."""
        if self.life.state is EngineState.PAUSING:
            return True
        return self.load > 0 and self.life.steps

    @property
    def paused(self) -> bool:
        """Whether it accepts requests and aborts but acts on none."""
        return self.life.state in (EngineState.PAUSED, EngineState.SUSPENDED)

    def pause(self) -> None:
        """Pauses at once, without a signal."""
        if self.life.steps:
            self.life.state = EngineState.PAUSED
            self._last_step = None

    def unpause(self) -> None:
        """Goes on at once, without a signal."""
        if self.life.state in (EngineState.PAUSING, EngineState.PAUSED):
            self.life.state = EngineState.RUNNING

    def heed(self, kind: Kind, epoch: int | None = None) -> None:
        """Heeds a control signal.

        Raises:
            EngineDied: it is in no state for that.
        """
        self.life.take(kind)
        if kind is Kind.SET_GENERATION_EPOCH and epoch is not None:
            self._epoch = epoch
            self._stamps.append((epoch, [*self._running.values(), *self._waiting.values()]))
            if not self._computes:
                self._stamp()

    def _stamp(self, ended: Sequence[EngineRequest] = ()) -> None:
        """Epochs that came during a step begin behind it, as in real engines."""
        for epoch, requests in self._stamps:
            for request in requests:
                if request not in ended:
                    request.stamp(epoch)
        self._stamps.clear()

    def release(self, request_id: int) -> None:
        """Lets go of the KV cache blocks of a request that it kept for another deployment.

        Raises:
            EngineDied: it is not set up for that.
        """
        self._handoffs().release(request_id)

    def _handoffs(self) -> KVBlocks:
        if self.kv_blocks is None:
            msg = "it is not set up for KV handoff"
            raise EngineDied(msg)
        return self.kv_blocks

    def end(self, state: EngineState) -> None:
        """Is gone, with all requests."""
        self.life.state = state
        if self.kv_blocks is not None:
            self.kv_blocks.release_all()
        self.let_go()
        self._running.clear()
        self._waiting.clear()

    def let_go(self) -> None:
        """Tells the model that nothing more will be asked; what runs stays as it is."""
        for request in self._running.values():
            _close(request)

    def submit(
        self,
        request_id: int,
        prompt: str | list[int],
        sampling_params: Mapping[str, Any],
        now: float,
        *,
        handoff: Handoff | None = None,
        salt: str | None = None,
        is_cacheable: bool = True,
    ) -> EngineReply | None:
        """Takes a request on, or returns its failure, even while paused.

        Args:
            request_id: the coordinator's number.
            prompt: text or token ids.
            sampling_params: as they came.
            now: the time in seconds.
            handoff: what another engine has computed of the prompt.
            salt: the key of the media beside the prompt.
            is_cacheable: whether its blocks may be found again.

        Raises:
            KeyError: if a request of that id has not ended yet.
            EngineDied: of a handoff that it is not made for.
        """
        if self._find(request_id) is not None:
            raise KeyError(request_id)
        if handoff is not None or self._asks_for_handoff(sampling_params):
            self._handoffs()
        if handoff is not None and (
            isinstance(prompt, str) or sampling_params.get("return_log_probs")
        ):
            msg = "a handoff came with text, or with log probs to return"
            raise EngineDied(msg)
        admitted = admit(
            request_id,
            prompt,
            sampling_params,
            known_params=self._sampling_fields,
            prefix_cache=self._prefix_cache if is_cacheable else None,
            handoff=handoff,
            salt=salt,
            model=self.model,
            traits=self.traits,
            max_sequence_length=self.max_sequence_length,
            rng=random.Random(  # noqa: S311 - sampling, not cryptography
                None if self._seed is None else f"{self._seed}/{request_id}"
            ),
            now=now,
            complaints=self._complaints,
        )
        if isinstance(admitted, EngineRequest):
            if self._epoch is not None:
                admitted.stamp(self._epoch)
            self._waiting[request_id] = admitted
            return None
        return EngineReply(request_id, admitted.to_wire())

    def _asks_for_handoff(self, sampling_params: Mapping[str, Any]) -> bool:
        name = "do_kv_handoff"
        return name in self._sampling_fields and sampling_params.get(name) is True

    def abort(self, request_id: int) -> bool:
        """Leaves a request no budget, so that its next step ends it.

        A request that waits keeps its place: it ends when its turn comes. Returns whether there was
        such a request.
        """
        request = self._find(request_id)
        if request is None:
            return False
        request.abort()
        return True

    def _find(self, request_id: int) -> EngineRequest | None:
        return self._running.get(request_id) or self._waiting.get(request_id)

    def step(self, now: float) -> list[EnginePartial | EngineReply]:
        """Decodes a token of each running request, and returns what there is to send.

        Args:
            now: the time, in seconds, at which the tokens are there.
        """
        step = self.begin(now)
        if step is None:
            return []
        step.computation.run()
        return [*step.outputs, *self.finish(step, now)]

    def begin(self, now: float) -> EngineStep | None:
        """Begins a step: ends what is over already, and says what has to be computed.

        That may take its time. Whatever befalls the engine meanwhile, `finish` minds.

        Args:
            now: the time, in seconds.
        """
        self.life.count_step()
        if not self.life.steps:
            self._last_step = None
            return None
        self._fill_batch(now)
        if not self._running:
            self._last_step = None
            return None
        self.steps += 1
        over = [request for request in self._running.values() if request.is_over]
        ends = self._end_requests(over, now)
        self._computes = True
        return EngineStep(ends, Computation(self.model, self._caching, self._due()))

    def finish(self, step: EngineStep, now: float) -> list[EnginePartial | EngineReply]:
        """Finishes a step, after its computation, and returns what there is to send.

        What was aborted meanwhile ends, without a token of this step. An engine that has gone does
        nothing. One that was paused at once keeps the tokens, and tells of them when it goes on.

        Args:
            step: what `begin` returned.
            now: the time, in seconds, at which the tokens are there.
        """
        if self.life.is_gone:
            return []
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
        if not self.life.steps:
            self._last_step = None
            for request in ended:
                request.stopped = True
            return []
        return [*self._end_requests(ended, now), *self._partials()]

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

    def _end_requests(self, requests: Sequence[EngineRequest], now: float) -> list[EngineReply]:
        for request in requests:
            del self._running[request.request_id]
            _close(request)
        return [EngineReply(request.request_id, self._finish(request, now)) for request in requests]

    def _finish(self, request: EngineRequest, now: float) -> dict[str, Any]:
        handoff = None
        if request.params.do_kv_handoff:
            prompt = request.tokens[: request.prompt_length]
            handoff = self._handoffs().pin(request.request_id, prompt)
        return request.finish(now, self.model, handoff)

    def _fill_batch(self, now: float) -> None:
        while self._waiting and len(self._running) < self.max_requests:
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
