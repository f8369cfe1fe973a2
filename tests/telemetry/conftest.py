from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import trio.testing


@pytest.fixture
def bind(autojump_clock: trio.testing.MockClock) -> str:
    return "memory://*"
