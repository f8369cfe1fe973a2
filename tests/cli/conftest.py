from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.cli.here import Here

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def heard_signals() -> Iterator[None]:
    """Lets programs hear signals even where these tests were started in the background."""
    ignored = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_IGN
    ]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Here:
    for name in ("TRIO_INFER_ADDRESS", "TRIO_INFER_DIALECT", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    return Here(monkeypatch, capfd)
