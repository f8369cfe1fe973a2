"""A coordinator that is tormented, and comes back each time at the same address."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import trio

from trio_infer import ConnectError
from trio_infer.embedded import EmbeddedCoordinator, Faults, open_coordinator

if TYPE_CHECKING:
    import random

__all__ = ["Site"]

KV_BLOCK = 16
RATES = ("drop", "drop_acks", "duplicate", "corrupt", "delay", "reorder", "fail")
INJECTED = (
    *("dropped", "dropped_acks", "duplicated", "corrupted", "delayed", "reordered"),
    "failed_on_purpose",
)


class Site:
    """Whoever serves an address, one coordinator after another.

    Args:
        address: where.
        rng: what decides everything.
        moment: seconds between one fault and the next, on average.

    Attributes:
        faults: how many of each kind there were.
        corrupts: whether bytes are changed, so that nobody knows what a completion should be.
    """

    def __init__(self, address: str, rng: random.Random, *, moment: float) -> None:
        self.address = address
        self.faults: Counter[str] = Counter()
        self.corrupts = rng.random() < 0.5
        self._rng = rng
        self._moment = moment
        self._calming = trio.Event()
        self._calm: list[EmbeddedCoordinator] = []
        self._calmed = trio.Event()

    async def run(self) -> None:
        """Serves until cancelled."""
        while True:
            try:
                async with open_coordinator(
                    bind=self.address,
                    engines=self._rng.randint(1, 3),
                    max_requests=self._rng.choice([2, 8, 64]),
                    block_size_tokens=self._rng.choice([None, KV_BLOCK]),
                    step_time=self._moment / 50,
                    seed=self._rng.getrandbits(32),
                    faults=self._some_faults(),
                ) as coordinator:
                    await self._torment(coordinator)
                    self.note_injected(coordinator)
            except ConnectError:  # its predecessor has not let go of the address yet
                await trio.sleep(0.01)
            else:
                self.faults["restart"] += 1
                await self._pause()

    async def calm(self) -> EmbeddedCoordinator:
        """Ends all faults, and returns the last coordinator, which goes on serving."""
        self._calming.set()
        await self._calmed.wait()
        return self._calm[0]

    def note_injected(self, coordinator: EmbeddedCoordinator) -> None:
        """Counts what befell a coordinator's replies."""
        statistics = coordinator.statistics()
        self.faults.update({name: getattr(statistics, name) for name in INJECTED})

    async def _torment(self, coordinator: EmbeddedCoordinator) -> None:
        """Returns once the coordinator is gone, or never if all is calm."""
        unharmed = True
        while not self._calming.is_set():
            with trio.move_on_after(self._rng.expovariate(1 / self._moment)):
                await self._calming.wait()
                break
            if coordinator.stopped:
                return
            fault = self._rng.choice(["die", "freeze", "pause", "kill engine", *["change"] * 4])
            if fault != "change":
                self.faults[fault] += 1
            if fault == "die":
                coordinator.die()
                return
            unharmed = unharmed and fault != "kill engine"
            await self._inflict(coordinator, fault)
        if coordinator.stopped or not unharmed:  # what an engine took with it is never answered
            coordinator.die()
            return
        coordinator.faults = Faults()
        self._calm.append(coordinator)
        self._calmed.set()
        await trio.sleep_forever()

    async def _inflict(self, coordinator: EmbeddedCoordinator, fault: str) -> None:
        if fault == "freeze":
            coordinator.freeze()
            await self._pause()
            coordinator.thaw()
        elif fault == "pause":
            coordinator.pause()
            await self._pause()
            coordinator.unpause()
        elif fault == "kill engine":
            coordinator.kill_engine(self._rng.randrange(len(coordinator.engine_states)))
        else:
            coordinator.faults = self._some_faults()

    async def _pause(self) -> None:
        """A short while, or at times a long one."""
        with trio.move_on_after(self._moment * self._rng.choice([0.1, 1.0, 10.0])):
            await self._calming.wait()

    def _some_faults(self) -> Faults:
        if self._calming.is_set():
            return Faults()
        rates = {name: self._rng.choice([0.0, 0.0, 0.02, 0.2]) for name in RATES}
        if not self.corrupts:
            rates["corrupt"] = 0.0
        return Faults(delay_seconds=(0.0, self._moment), **rates)
