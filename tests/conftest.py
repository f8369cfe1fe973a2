"""What all tests have in common: a client, and the coordinator that it talks to."""

from __future__ import annotations

import os
import signal
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.peers import ScriptedCoordinator, scripted_coordinator
from trio_infer import InferenceClient, open_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio_infer.embedded import EmbeddedCoordinator

# A shell starts what is to run in the background with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("trio_infer", deadline=None)  # how fast the machine is, is no property
settings.load_profile("trio_infer")

# nox -s megatron installs what the one needs, and nox -s partition gives the other a host to itself
collect_ignore = [] if find_spec("megatron") else ["megatron"]
if "TRIO_INFER_PARTITION" not in os.environ:
    collect_ignore.append("partition")


@pytest.fixture
def bind() -> str:
    """Where the coordinator listens: on a real socket, where no other fixture of this name stands
    nearer to the test."""
    return "tcp://127.0.0.1:*"


@pytest.fixture
async def coordinator(bind: str) -> AsyncIterator[ScriptedCoordinator]:
    async with scripted_coordinator(bind) as coordinator:
        yield coordinator
        assert coordinator.unroutable == 0, "the real coordinator would have crashed"


@pytest.fixture
async def client(
    coordinator: ScriptedCoordinator | EmbeddedCoordinator,
) -> AsyncIterator[InferenceClient]:
    async with open_client(coordinator.address) as client:
        yield client
