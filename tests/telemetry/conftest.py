from __future__ import annotations

import pytest


@pytest.fixture
def bind() -> str:
    return "memory://*"
