"""What the tests of fan-out have in common."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.echoing import echoing
from tests.peers import scripted_coordinator
from trio_infer import GenerateRequest, InferenceClient, open_client
from trio_infer.protocol.dialect import Kind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.peers import Received, ScriptedCoordinator

__all__ = [
    "EITHER_WAY",
    "ERROR",
    "Result",
    "aborted",
    "asking",
    "beside",
    "running_client",
    "submissions",
]

ERROR = {"status": "FAILED", "events": [{"type": "ERROR_NONTRANSIENT", "timestamp": 0.0}]}
"""The fields of a reply that a request has failed."""

EITHER_WAY = pytest.mark.parametrize(
    "strict",
    [
        True,
        pytest.param(False, marks=pytest.mark.filterwarnings("ignore:.*strict_exception_groups")),
    ],
)
"""For each of trio's two ways to treat exception groups."""


def asking(*prompts: str) -> list[GenerateRequest]:
    return [GenerateRequest(prompt) for prompt in prompts]


async def submissions(coordinator: ScriptedCoordinator, number: int) -> list[Received]:
    """The next ones, waited for."""
    return [await coordinator.submission() for _ in range(number)]


def aborted(coordinator: ScriptedCoordinator) -> list[int]:
    """Which requests were, in the order of their numbers."""
    return sorted(coordinator.of(Kind.ABORT_REQUEST))


class Result:
    """What comes of a coroutine that runs beside the test.

    Attributes:
        value: what it returned.
        error: what it raised.
    """

    def __init__(self) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self._done = trio.Event()

    async def run(self, act: Callable[[], Any]) -> None:
        try:
            self.value = await act()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error
        self._done.set()

    async def wait(self) -> Result:
        await self._done.wait()
        return self


def beside(nursery: trio.Nursery, act: Callable[[], Any]) -> Result:
    """Starts something beside the test, and is what comes of it."""
    result = Result()
    nursery.start_soon(result.run, act)
    return result


@asynccontextmanager
async def running_client() -> AsyncIterator[InferenceClient]:
    """A client whose prompts are echoed, but for those that begin with ``held``.

    For runs of trio that a test starts by itself.
    """
    async with scripted_coordinator("memory://*") as coordinator:
        async with echoing(coordinator):
            async with open_client(coordinator.address) as client:
                yield client
