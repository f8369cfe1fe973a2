"""A client and the coordinator that it talks to, in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.peers import ScriptedCoordinator, scripted_coordinator
from trio_infer import InferenceClient, open_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def coordinator() -> AsyncIterator[ScriptedCoordinator]:
    async with scripted_coordinator("memory://*") as coordinator:
        yield coordinator
        assert coordinator.unroutable == 0, "the real coordinator would have crashed"


@pytest.fixture
async def client(coordinator: ScriptedCoordinator) -> AsyncIterator[InferenceClient]:
    async with open_client(coordinator.address) as client:
        yield client
