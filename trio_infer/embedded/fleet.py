"""All engines of a coordinator as one: how they fare, what they run, what step they make."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from .batching import EnginePartial, EngineReply, EngineStep
from .engine import Engine
from .lifecycle import EngineState
from .statistics import RunningRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Fleet", "FleetStep"]


@attrs.frozen
class FleetStep:
    """A step of all engines that has begun."""

    steps: list[tuple[Engine, EngineStep]]

    @property
    def outputs(self) -> list[EngineReply]:
        """What there is to send at once."""
        return [output for _, step in self.steps for output in step.outputs]

    @property
    def is_wanted(self) -> bool:
        """Whether anybody waits for what it computes."""
        return any(
            not engine.life.is_gone and step.computation.is_wanted for engine, step in self.steps
        )

    def run(self) -> None:
        """Computes it, in whatever thread."""
        for _, step in self.steps:
            step.computation.run()

    def interrupt(self) -> None:
        """Lets the computation end soon, if the models mind that."""
        for _, step in self.steps:
            step.computation.interrupt()


@attrs.frozen(eq=False)
class Fleet:
    """The engines of a coordinator.

    Attributes:
        engines: all of them, those that have gone as well.
    """

    engines: tuple[Engine, ...]

    def __getitem__(self, index: int) -> Engine:
        return self.engines[index]

    @property
    def left(self) -> dict[int, Engine]:
        """Those that are neither dead nor stopped, by their index."""
        return {index: each for index, each in enumerate(self.engines) if not each.life.is_gone}

    @property
    def states(self) -> tuple[EngineState, ...]:
        """How each engine fares."""
        return tuple(engine.life.state for engine in self.engines)

    def are_all(self, *states: EngineState) -> bool:
        """Whether all that are left are in such a state; without any they never are."""
        left = self.left.values()
        return bool(left) and all(engine.life.state in states for engine in left)

    @property
    def paused(self) -> bool:
        """Whether all that are left are paused, or suspended."""
        return self.are_all(EngineState.PAUSED, EngineState.SUSPENDED)

    @property
    def pinned(self) -> tuple[int, ...]:
        """The requests whose KV cache blocks are kept for other deployments."""
        tables = (engine.kv_blocks for engine in self.left.values())
        return tuple(number for table in tables if table for number in table.pinned)

    @property
    def running(self) -> Iterator[RunningRequest]:
        """The requests that are being decoded, by engine, the oldest first."""
        for index, engine in enumerate(self.engines):
            for request in engine.running:
                yield RunningRequest(
                    request_id=request.request_id,
                    engine=index,
                    prompt_length=request.prompt_length,
                    generated_length=request.generated_length,
                )

    @property
    def wants_step(self) -> bool:
        """Whether an engine has something to do."""
        return any(engine.wants_step for engine in self.engines)

    @property
    def runs_in_thread(self) -> bool:
        """Whether steps are to be computed in a worker thread."""
        return any(engine.traits.runs_in_thread for engine in self.left.values())

    def begin(self, now: float) -> FleetStep:
        """Begins a step of each engine."""
        begun = [(engine, engine.begin(now)) for engine in self.engines]
        return FleetStep([(engine, step) for engine, step in begun if step is not None])

    def finish(self, step: FleetStep, now: float) -> Iterator[EnginePartial | EngineReply]:
        """Finishes the steps that have been computed, and tells what there is to send."""
        for engine, each in step.steps:
            yield from engine.finish(each, now)

    def let_go(self) -> None:
        """Tells the models that nothing more will be asked; what runs stays as it is."""
        for engine in self.engines:
            engine.let_go()
