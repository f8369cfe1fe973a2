"""A coordinator in a process of its own, which tells what it has done and holds when it is asked.

Its model is next to nothing, so that it keeps up with thousands of requests a second.
"""

from __future__ import annotations

import json
import math
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

import attrs
import trio

from tests.programs import started
from tests.soak.belongings import take_stock, threads_that_idle_end
from trio_infer.embedded import Faults, open_coordinator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tests.programs import Program

__all__ = ["Peer", "peer_process"]


class _Dice:
    """Rolls a one, a two or a three."""

    vocab_size = 4
    end_token = 0
    _faces = (-math.inf, *3 * [math.log(1 / 3)])

    def tokenize(self, text: str) -> list[int]:
        return [1] * len(text)

    def detokenize(self, tokens: Sequence[int]) -> str:
        return "".join(map(str, tokens))

    def next_token_log_probs(self, sequences: Sequence[Sequence[int]]) -> list[tuple[float, ...]]:
        return [self._faces] * len(sequences)


async def _serve() -> None:
    async with open_coordinator(
        model=_Dice(),
        engines=2,
        max_requests=128,
        step_time=0.001,
        seed=1,
        faults=Faults(fail=0.01),
    ) as coordinator:
        core = coordinator._core
        table = core._table
        _say(coordinator.address)
        async with trio.lowlevel.FdStream(sys.stdin.fileno()) as questions:
            while await questions.receive_some():
                _say(
                    {
                        "statistics": attrs.asdict(coordinator.statistics()),
                        "tables": [len(table), len(table._numbers), len(core.fleet.pinned)],
                        "belongings": attrs.asdict(await take_stock()),
                    }
                )


def _say(what: Any) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201 - that is what it is for


class Peer:
    """The process, as its user sees it.

    Attributes:
        address: where the coordinator listens.
    """

    def __init__(self, program: Program) -> None:
        self.address = ""
        self._program = program

    async def ask(self) -> Any:
        """What it has done and holds."""
        stdin = self._program.process.stdin
        assert stdin is not None
        await stdin.send_all(b"?\n")
        return await self.hear()

    async def hear(self) -> Any:
        """The next thing that it says."""
        stdout = self._program.process.stdout
        assert stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            piece = await stdout.receive_some()
            assert piece, "the coordinator has ended"
            line += piece
        return json.loads(line)


@asynccontextmanager
async def peer_process() -> AsyncIterator[Peer]:
    command = (sys.executable, "-m", "tests.soak.serve")
    async with started(command=command, cwd=Path(__file__).parents[2], stdin=PIPE) as program:
        peer = Peer(program)
        peer.address = await peer.hear()
        yield peer


if __name__ == "__main__":
    with threads_that_idle_end:
        trio.run(_serve)
