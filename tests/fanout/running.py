"""What the tests of fan-out have in common."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from tests.echoing import echo
from tests.peers import scripted_coordinator
from trio_infer import GenerateRequest, InferenceClient, open_client
from trio_infer.background import running_behind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.peers import Received, ScriptedCoordinator

__all__ = ["EITHER_WAY", "ERROR", "asking", "running_client", "submissions"]

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


@asynccontextmanager
async def running_client() -> AsyncIterator[InferenceClient]:
    """A client whose prompts are echoed, but for those that begin with ``held``.

    For runs of trio that a test starts by itself.
    """
    async with scripted_coordinator("memory://*") as coordinator:
        async with running_behind(lambda: echo(coordinator)):
            async with open_client(coordinator.address) as client:
                yield client
