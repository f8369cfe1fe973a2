"""The two hosts: this one, and one that coordinators run on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.partition.hosts import Coordinator, FarHost, coordinating, far_host

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture
def host() -> Iterator[FarHost]:
    with far_host() as host:
        yield host


@pytest.fixture
async def coordinator(host: FarHost) -> AsyncIterator[Coordinator]:
    async with coordinating(host) as coordinator:
        yield coordinator
