"""An engine: continuous batching over a language model, without any I/O or clock of its own."""

from __future__ import annotations

import logging
import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import attrs

from ..complaints import Complaints
from ..models.sampling_params import FIELD_NAMES
from ..protocol.dialect import Kind
from .admission import Handoff, admit
from .engine_request import EngineRequest
from .finished_request import EngineEvent, EventType
from .kv_blocks import KVBlocks
from .lifecycle import STEPS_TO_PAUSE, EngineDied, EngineState, Lifecycle
from .prefix import Prefix
from .prefix_cache import PrefixCache

if TYPE_CHECKING:
    from .language_model import LanguageModel

__all__ = ["Engine", "EnginePartial", "EngineReply", "RunningState"]

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


class Engine:
    """Decodes a bounded number of requests at a time, a token of each in every step.

    Every request submitted gets exactly one `EngineReply`. Draws depend on the seed and on the
    request's id, not on what else is running.

    Args:
        model: what continues the sequences.
        max_requests: how many run at once; the others wait, first come first served.
        max_sequence_length: how many tokens a prompt and what follows it may have.
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
        self.max_requests = max_requests
        self.max_sequence_length = max_sequence_length
        self.life = Lifecycle(steps_to_pause=steps_to_pause)
        self.kv_blocks = KVBlocks() if kv_handoff else None
        self.steps = 0
        self.tokens = 0
        self._seed = seed
        self._sampling_fields = sampling_fields
        self._prefix_cache = None if block_size_tokens is None else PrefixCache(block_size_tokens)
        self._running: dict[int, EngineRequest] = {}
        self._waiting: OrderedDict[int, EngineRequest] = OrderedDict()
        self._last_step: float | None = None
        self._epoch: int | None = None
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
            for request in (*self._running.values(), *self._waiting.values()):
                request.stamp(epoch)

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
        self._running.clear()
        self._waiting.clear()

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
        self.life.count_step()
        if not self.life.steps:
            self._last_step = None
            return []
        self._fill_batch(now)
        if not self._running:
            self._last_step = None
            return []
        step_time = 0.0 if self._last_step is None else now - self._last_step
        self._last_step = now
        self.steps += 1
        over = [request for request in self._running.values() if request.is_over]
        over += self._decode(now, step_time)
        for request in over:
            del self._running[request.request_id]
        replies = [EngineReply(request.request_id, self._finish(request, now)) for request in over]
        return [*replies, *self._partials()]

    def _finish(self, request: EngineRequest, now: float) -> dict[str, Any]:
        handoff = None
        if request.params.do_kv_handoff:
            prompt = request.tokens[: request.prompt_length]
            handoff = self._handoffs().pin(request.request_id, prompt)
        return request.finish(now, self.model, handoff)

    def _fill_batch(self, now: float) -> None:
        while self._waiting and len(self._running) < self.max_requests:
            _, request = self._waiting.popitem(last=False)
            request.events.append(EngineEvent(now, EventType.ADD_CONTEXT))
            if self._prefix_cache is not None:
                request.num_cached_tokens = self._prefix_cache.take(request.block_hashes)
            self._running[request.request_id] = request

    def _decode(self, now: float, step_time: float) -> list[EngineRequest]:
        """Gives each request that goes on its next token. Returns those that it ends."""
        going_on = [request for request in self._running.values() if not request.is_over]
        self._score_prompts(going_on)
        ended = [request for request in going_on if request.is_over]  # asked for scores alone
        batch = [request for request in going_on if not (request.unscored or request.is_over)]
        rows = self._ask([request.tokens for request in batch])
        for request, row in zip(batch, rows, strict=True):
            self.tokens += 1
            if request.extend(row, self.model):
                ended.append(request)
            if request.ttft is None:
                request.ttft = now - request.events[0].timestamp
            if step_time > 0:
                request.tpot.append(step_time)
        return ended

    def _score_prompts(self, requests: Sequence[EngineRequest]) -> None:
        """Scores prompts, in order, as far as one step goes."""
        due = ((request, place) for request in requests for place in request.unscored)
        scored = list(islice(due, SCORED_PER_STEP))
        rows = self._ask([Prefix(request.tokens, place) for request, place in scored])
        for (request, place), row in zip(scored, rows, strict=True):
            request.score_prompt(place, row, self.model)

    def _ask(self, sequences: Sequence[Sequence[int]]) -> Sequence[Sequence[float]]:
        return self.model.next_token_log_probs(sequences) if sequences else []

    def _partials(self) -> list[EnginePartial]:
        bodies = ((each.request_id, each.take_partial()) for each in self._running.values())
        return [EnginePartial(request_id, body) for request_id, body in bodies if body is not None]
