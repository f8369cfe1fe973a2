"""What control signals do: to a coordinator at once, to its engines some steps later.

The coordinator's state moves as soon as it has passed a signal on. The engines' does not: a PAUSE
takes them several steps, and what overtakes it trips an assertion that ends them. So does whatever
else they are not in the right state for, without a word to anybody.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

import attrs

from ..protocol.dialect import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "CONTROL",
    "CoordinatorState",
    "EngineDied",
    "EngineState",
    "Lifecycle",
    "Transition",
]

STEPS_TO_PAUSE: Final = 3
"""So many steps an engine takes to heed a PAUSE; real ones take up to twenty."""


class CoordinatorState(enum.Enum):
    """What a coordinator takes its engines to be in."""

    RUNNING = enum.auto()
    PAUSED = enum.auto()
    SUSPENDED = enum.auto()


_ANY: Final = frozenset(CoordinatorState)


@attrs.frozen
class Transition:
    """What a coordinator does with a signal.

    Attributes:
        accepted_in: the states in which it is passed on to the engines.
        leads_to: the state afterwards; None for the same.
        ignored_in: the states in which it is dropped without a warning.
    """

    accepted_in: frozenset[CoordinatorState] = _ANY
    leads_to: CoordinatorState | None = None
    ignored_in: frozenset[CoordinatorState] = frozenset()


CONTROL: Final[Mapping[Kind, Transition]] = {
    Kind.PAUSE: Transition(
        accepted_in=frozenset({CoordinatorState.RUNNING}),
        leads_to=CoordinatorState.PAUSED,
        ignored_in=frozenset({CoordinatorState.PAUSED, CoordinatorState.SUSPENDED}),
    ),
    Kind.UNPAUSE: Transition(
        accepted_in=frozenset({CoordinatorState.PAUSED}), leads_to=CoordinatorState.RUNNING
    ),
    Kind.SUSPEND: Transition(
        accepted_in=frozenset({CoordinatorState.PAUSED}), leads_to=CoordinatorState.SUSPENDED
    ),
    Kind.RESUME: Transition(
        accepted_in=frozenset({CoordinatorState.SUSPENDED}), leads_to=CoordinatorState.PAUSED
    ),
    Kind.STOP: Transition(
        accepted_in=frozenset({CoordinatorState.PAUSED, CoordinatorState.SUSPENDED}),
        leads_to=CoordinatorState.RUNNING,  # for engines to come
    ),
    Kind.SET_GENERATION_EPOCH: Transition(),
    Kind.START_CUDA_PROFILER: Transition(),
    Kind.STOP_CUDA_PROFILER: Transition(),
}


class EngineDied(Exception):
    """An assertion of the engine's has failed."""


class EngineState(enum.Enum):
    """How an engine fares."""

    RUNNING = enum.auto()
    PAUSING = enum.auto()
    PAUSED = enum.auto()
    SUSPENDED = enum.auto()
    STOPPED = enum.auto()
    DEAD = enum.auto()


_MOVES: Final[Mapping[Kind, tuple[frozenset[EngineState], EngineState]]] = {
    Kind.UNPAUSE: (frozenset({EngineState.PAUSED}), EngineState.RUNNING),
    Kind.SUSPEND: (frozenset({EngineState.PAUSED}), EngineState.SUSPENDED),
    Kind.RESUME: (frozenset({EngineState.SUSPENDED}), EngineState.PAUSED),
    Kind.STOP: (frozenset({EngineState.PAUSED, EngineState.SUSPENDED}), EngineState.STOPPED),
}

GONE: Final = frozenset({EngineState.STOPPED, EngineState.DEAD})


@attrs.define
class Lifecycle:
    """The state of one engine.

    Attributes:
        state: as it is now.
        steps_to_pause: how many steps it goes on for after a PAUSE.
    """

    state: EngineState = EngineState.RUNNING
    steps_to_pause: int = STEPS_TO_PAUSE
    _left: int = 0

    @property
    def steps(self) -> bool:
        """Whether it does anything when its turn comes."""
        return self.state in (EngineState.RUNNING, EngineState.PAUSING)

    @property
    def is_gone(self) -> bool:
        """Whether it will never do anything again."""
        return self.state in GONE

    def take(self, kind: Kind) -> None:
        """Heeds a signal.

        Raises:
            EngineDied: it is in no state for that.
        """
        if kind is Kind.PAUSE:
            if self.state is EngineState.RUNNING:  # in any other it is ignored
                self.state, self._left = EngineState.PAUSING, self.steps_to_pause
        elif kind in _MOVES:
            wanted, state = _MOVES[kind]
            if self.state not in wanted:
                msg = f"{kind.name} came while it was {self.state.name}"
                raise EngineDied(msg)
            self.state = state

    def count_step(self) -> None:
        """A step has been made, or could have been."""
        if self.state is EngineState.PAUSING:
            self._left -= 1
            if self._left <= 0:
                self.state = EngineState.PAUSED
