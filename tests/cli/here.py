"""The program within the tests' own process, where a process of its own would show no more."""

from __future__ import annotations

import sys

import attrs
import pytest

from tests.programs import Result
from trio_infer.cli.program import run

__all__ = ["Here"]


@attrs.frozen
class Here:
    """Runs the program here, and takes what it writes."""

    _monkeypatch: pytest.MonkeyPatch
    _capture: pytest.CaptureFixture[str]

    def run(self, *arguments: str) -> Result:
        """Runs it to its end."""
        self._monkeypatch.setattr(sys, "argv", ["trio-infer", *arguments])
        self._capture.readouterr()
        code = run()
        return Result(code, *self._capture.readouterr())
