"""An engine: a language model, and a batch of requests that it decodes, without I/O or a clock."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Any, Final

from ..complaints import Complaints
from ..models.sampling_params import FIELD_NAMES
from ..protocol.dialect import Kind
from .admission import Handoff, admit
from .batching import Batch, EnginePartial, EngineReply, EngineStep, RunningState
from .engine_request import EngineRequest
from .kv_blocks import KVBlocks
from .language_model import Traits
from .lifecycle import STEPS_TO_PAUSE, EngineDied, EngineState, Lifecycle
from .prefix_cache import PrefixCache

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .language_model import LanguageModel

__all__ = ["Engine"]

_logger: Final = logging.getLogger(__name__)

DEFAULT_MAX_REQUESTS: Final = 64
DEFAULT_MAX_SEQUENCE_LENGTH: Final = 2**17


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
        self._seed = seed
        self._sampling_fields = sampling_fields
        self._prefix_cache = None if block_size_tokens is None else PrefixCache(block_size_tokens)
        self._batch = Batch(
            model,
            max_requests=max_requests,
            prefix_cache=self._prefix_cache,
            kv_blocks=self.kv_blocks,
        )
        self._epoch: int | None = None
        self._complaints = Complaints(_logger)

    @property
    def running(self) -> tuple[RunningState, ...]:
        """The requests that are being decoded."""
        return self._batch.running

    @property
    def waiting(self) -> tuple[int, ...]:
        """The ids of those that wait for one to end."""
        return self._batch.waiting

    @property
    def load(self) -> int:
        """How many requests it has yet to answer."""
        return len(self._batch)

    @property
    def steps(self) -> int:
        """How many steps it has made."""
        return self._batch.steps

    @property
    def tokens(self) -> int:
        """How many tokens it has generated in them."""
        return self._batch.tokens

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
            self._batch.rest()

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
            self._batch.stamp(epoch)

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
        self._batch.clear()

    def let_go(self) -> None:
        """Tells the model that nothing more will be asked; what runs stays as it is."""
        self._batch.let_go()

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
        if self._batch.find(request_id) is not None:
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
            self._batch.add(admitted)
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
        request = self._batch.find(request_id)
        if request is None:
            return False
        request.abort()
        return True

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
            self._batch.rest()
            return None
        return self._batch.begin(now)

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
        return self._batch.finish(step, now, tells=self.life.steps)
