"""The embedded coordinator: `open_coordinator`, and what it opens."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ..background import check_task, running_behind
from ..models.scalars import to_count, to_flag, to_float, to_int
from ..protocol.dialects import resolve_dialect
from ..protocol.hashing import PrefixHashing
from ..sockets import MEMORY_SCHEME, ROUTER, Link, check_address, network_of
from .core import CoordinatorCore
from .engine import DEFAULT_MAX_REQUESTS, DEFAULT_MAX_SEQUENCE_LENGTH, Engine
from .faults import FaultInjector, Faults
from .lifecycle import STEPS_TO_PAUSE, EngineState
from .ngram import default_model
from .serving import Serving
from .tokenizer import ModelTokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from enum import Enum

    from ..protocol.dialect import Dialect
    from .language_model import LanguageModel
    from .received_request import ReceivedRequest
    from .statistics import CoordinatorStatistics, RunningRequest

__all__ = ["EmbeddedCoordinator", "open_coordinator"]


@asynccontextmanager
async def open_coordinator(
    *,
    dialect: str | Dialect | None = None,
    engines: int = 1,
    bind: str = "tcp://127.0.0.1:*",
    step_time: float = 0.0,
    max_requests: int = DEFAULT_MAX_REQUESTS,
    max_sequence_length: int = DEFAULT_MAX_SEQUENCE_LENGTH,
    model: LanguageModel | None = None,
    seed: int | None = None,
    block_size_tokens: int | None = None,
    prefix_caching_coordinator_policy: Enum | str = "first_prefix_block",
    kv_handoff: bool = True,
    steps_to_pause: int = STEPS_TO_PAUSE,
    max_message_size: int = 256 * 2**20,
    faults: Faults | None = None,
    keep_requests: bool = False,
) -> AsyncGenerator[EmbeddedCoordinator]:
    """A coordinator with its engines, in this process, for the length of an ``async with`` block.

    It serves any number of clients, here and in other processes. Leaving the block ends it at once,
    whatever still runs, so let clients leave first. A model that computes in a thread is waited
    for, and asked to make haste. Cancelled while entering, nothing is left.
    What the block raises comes out as it is, in no ExceptionGroup.

    Args:
        dialect: what the clients speak, as `trio_infer.open_client` has it.
        engines: how many engines serve the requests.
        bind: the ZeroMQ address to listen on; a ``*`` for the port takes a free one. Or
            ``"memory://name"``, for clients in the same trio run, under a mocked clock if need be;
            a ``*`` for the name takes a free one.
        step_time: how many seconds a step takes beyond what it takes to compute.
        max_requests: how many requests an engine runs at once.
        max_sequence_length: how many tokens a prompt and what follows it may have, unless the model
            holds less.
        model: the language model, such as a `LlamaModel`; None: n-grams counted from Python's help
            topics.
        seed: makes equal requests, sent in the same order, give equal tokens, and meet with the
            same faults; None: they do not.
        block_size_tokens: how many tokens make a block of the engines' prefix cache, which then
            shows in a completion's ``num_cached_tokens``; None: there is no such cache. A model
            with a cache of its own needs none, and tells its own number.
        prefix_caching_coordinator_policy: where there is one, by what an engine is chosen, as a
            `trio_infer.PrefixCachingCoordinatorPolicy` or its name.
        kv_handoff: whether the engines are set up for KV handoff. If they are not, they die of one,
            as real ones do.
        steps_to_pause: how many steps the engines take to heed a PAUSE. UNPAUSE, SUSPEND and STOP
            kill them before, as they do real ones.
        max_message_size: bytes; a client that sends a larger frame is disconnected.
        faults: what befalls its messages; None: nothing does.
        keep_requests: whether `EmbeddedCoordinator.requests` tells of those as well that have
            ended, which takes memory as long as the block lasts.

    Raises:
        TypeError, ValueError: for a wrong argument.
        ConnectError: if the address cannot be bound.
        RuntimeError: where trio does not run.
    """
    check_task()
    for name, count in (
        ("engines", engines),
        ("max_requests", max_requests),
        ("max_sequence_length", max_sequence_length),
        ("steps_to_pause", steps_to_pause),
        ("max_message_size", max_message_size),
    ):
        to_count(count, name)
    if seed is not None:
        to_int(seed, "seed")
    if to_float(step_time, "step_time") < 0:
        msg = f"step_time must be a number of seconds, not {step_time}"
        raise ValueError(msg)
    check_address(bind)
    _check_model(model)
    row = resolve_dialect(dialect)
    prefix_hashing = PrefixHashing(block_size_tokens, prefix_caching_coordinator_policy)
    if model is None and bind.startswith(MEMORY_SCHEME):
        model = default_model()  # a mocked clock would jump while a thread counts
    elif model is None:
        model = await trio.to_thread.run_sync(default_model)
    make_engine = partial(
        Engine,
        model,
        max_requests=max_requests,
        max_sequence_length=max_sequence_length,
        seed=seed,
        block_size_tokens=prefix_hashing.block_size,
        sampling_fields=row.sampling_fields,
        kv_handoff=to_flag(kv_handoff, "kv_handoff"),
        steps_to_pause=steps_to_pause,
    )
    injector = FaultInjector(_check_faults(Faults() if faults is None else faults), seed=seed)
    core = CoordinatorCore(
        row,
        [make_engine() for _ in range(engines)],
        prefix_hashing=prefix_hashing,
        fails=injector.fails,
        keep_requests=to_flag(keep_requests, "keep_requests"),
    )
    network = network_of(bind)
    try:
        socket = network.socket(ROUTER, Link(max_message_size=max_message_size))
        try:
            address = socket.bind(bind)
            serving = Serving(core, socket, step_time, injector)
            try:
                async with running_behind(serving.read, serving.decode, serving.send_held):
                    yield EmbeddedCoordinator(serving, address, ModelTokenizer(model))
            finally:
                serving.end()
        finally:
            socket.close()
    finally:
        with trio.CancelScope(shield=True):  # bounded by the socket's linger
            await network.dispose()


_OF_MODELS: Final = ("vocab_size", "end_token", "tokenize", "detokenize", "next_token_log_probs")


def _check_model(model: object) -> None:
    # From Python 3.12 on, isinstance() would not see what a model passes on to another.
    is_whole = all(hasattr(model, name) for name in _OF_MODELS)
    if model is not None and (isinstance(model, type) or not is_whole):
        found = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        msg = f"model must be a LanguageModel, such as LlamaModel(path), not {found}"
        raise TypeError(msg)


def _check_faults(faults: object) -> Faults:
    if not isinstance(faults, Faults):
        msg = f"faults must be Faults, not {type(faults).__name__}"
        raise TypeError(msg)
    return faults


class EmbeddedCoordinator:
    """A coordinator that runs in this process. Made by `open_coordinator`."""

    # So that a misspelt one is no attribute.
    __slots__ = ("_address", "_core", "_serving", "_tokenizer")

    def __init__(self, serving: Serving, address: str, tokenizer: ModelTokenizer) -> None:
        self._address = address
        self._tokenizer = tokenizer
        self._serving = serving
        self._core = serving.core

    def __repr__(self) -> str:
        return f"<EmbeddedCoordinator at {self.address}>"

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return self._address

    @property
    def dialect(self) -> Dialect:
        """What its clients have to speak."""
        return self._core.dialect

    @property
    def tokenizer(self) -> ModelTokenizer:
        """Its model's, for `trio_infer.open_client` and for prompts of token ids."""
        return self._tokenizer

    @property
    def running(self) -> tuple[RunningRequest, ...]:
        """The requests that are being decoded now, by engine, the oldest first."""
        return self._core.running

    @property
    def requests(self) -> tuple[ReceivedRequest, ...]:
        """The requests that have not ended, in the order in which they came.

        With ``keep_requests`` of `open_coordinator`, all that have come.
        """
        return self._serving.requests

    @property
    def paused(self) -> bool:
        """Whether all engines are paused, or suspended."""
        return self._core.fleet.paused

    @property
    def engine_states(self) -> tuple[str, ...]:
        """How each engine fares: running, pausing, paused, suspended, stopped or dead."""
        return tuple(state.name.lower() for state in self._core.fleet.states)

    @property
    def pinned(self) -> tuple[int, ...]:
        """The requests whose KV cache blocks are kept for other deployments.

        By the coordinator's numbers, which is what `trio_infer.KVHandoff.request_id` is.
        """
        return self._core.fleet.pinned

    @property
    def stopped(self) -> bool:
        """Whether the coordinator has ended, and serves nobody any more.

        A client has shut it down, a request found no engine left, it was told to `die`, or its
        block has been left.
        """
        return self._core.stopped

    def statistics(self) -> CoordinatorStatistics:
        """The counters, as they are now."""
        return attrs.evolve(self._core.statistics(), **self._serving.injector.counts)

    @property
    def faults(self) -> Faults:
        """What befalls the messages that it sends, and the requests that it takes.

        May be set at any time, to `Faults` that hold from then on. What is held back already goes
        when it would have gone.
        """
        return self._serving.injector.faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._serving.injector.faults = _check_faults(faults)

    @property
    def frozen(self) -> bool:
        """Whether it is frozen."""
        return self._serving.frozen

    def freeze(self) -> None:
        """Lets it hang: it takes no message, steps no engine and sends nothing.

        ZeroMQ's own thread goes on and answers heartbeats, so that clients cannot tell it from a
        slow one; over ``memory://`` they can, after their ``heartbeat_timeout``. What faults hold
        back is kept.
        """
        self._serving.freeze()

    def thaw(self) -> None:
        """Lets it go on, with all that came meanwhile and all that fell due."""
        self._serving.thaw()

    def die(self) -> None:
        """Ends it at once, as if its process were killed: clients see their connections break.

        What faults hold back, and what has not left yet, never does. When this returns the address
        is free for another coordinator.
        """
        self._serving.die()

    def kill_engine(self, index: int) -> None:
        """Lets an engine die with its requests, of which nobody is told; a dead one stays dead.

        Without any engine left, the coordinator ends on the next request.

        Raises:
            ValueError: there is no such engine.
        """
        count = len(self._core.fleet.states)
        if not 0 <= to_int(index, "index") < count:
            msg = f"index must be from 0 to {count - 1}, not {index}"
            raise ValueError(msg)
        self._core.kill_engine(index)
        self._serving.change()

    def pause(self) -> None:
        """Pauses the engines: they accept requests and aborts, but neither decode nor end any."""
        self._core.pause()
        self._serving.change()

    def unpause(self) -> None:
        """Lets the engines go on."""
        self._core.unpause()
        self._serving.change()

    async def engines_paused(self) -> None:
        """Returns once all engines are paused: what ``engines.paused`` is confirmed with.

        A model that computes in a thread has done so, and its weights may be changed.
        """
        await self._wait_engines(EngineState.PAUSED, EngineState.SUSPENDED)

    async def engines_suspended(self) -> None:
        """Returns once all engines are suspended: what ``engines.suspended`` is confirmed with."""
        await self._wait_engines(EngineState.SUSPENDED)

    async def engines_running(self) -> None:
        """Returns once all engines are running, such as before they are paused again.

        Raises:
            RuntimeError: no engine is left, or the coordinator has ended; so do the two before.
        """
        await self._wait_engines(EngineState.RUNNING)

    async def _wait_engines(self, *states: EngineState) -> None:
        core, fleet, serving = self._core, self._core.fleet, self._serving

        def reached() -> bool:
            settled = EngineState.RUNNING in states or not serving.computes
            return settled and fleet.are_all(*states)

        await self.wait_until(lambda: reached() or core.stopped or not fleet.left)
        if core.stopped or not fleet.left:
            wanted, found = states[0].name.lower(), ", ".join(self.engine_states)
            what = "the coordinator has ended" if core.stopped else "no engine is left"
            msg = f"{what}, and none will be {wanted}: {found}"
            raise RuntimeError(msg)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Returns once a condition on this coordinator holds, at once if it does already.

        It is looked at after messages and steps, though not after each: what lasts for one step
        alone may pass unseen, while counters never do. Cancelling it changes nothing.
        """
        await trio.lowlevel.checkpoint()
        while not condition():
            await self._serving.wait_changed()
