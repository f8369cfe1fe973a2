from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.peers import ScriptedCoordinator, scripted_coordinator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import trio.testing


@pytest.fixture
async def coordinator(
    autojump_clock: trio.testing.MockClock,
) -> AsyncIterator[ScriptedCoordinator]:
    async with scripted_coordinator("memory://*") as coordinator:
        yield coordinator
