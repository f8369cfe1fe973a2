"""A client of a coordinator in memory, for runs of trio that a test starts by itself."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tests.echoing import echo
from tests.peers import scripted_coordinator
from trio_infer import InferenceClient, open_client
from trio_infer.background import running_behind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["running_client"]


@asynccontextmanager
async def running_client() -> AsyncIterator[InferenceClient]:
    """A client whose prompts are echoed, but for those that begin with ``held``."""
    async with scripted_coordinator("memory://*") as coordinator:
        async with running_behind(lambda: echo(coordinator)):
            async with open_client(coordinator.address) as client:
                yield client
