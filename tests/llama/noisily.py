"""The program as users start it, warnings and all: llama_cpp leaves files open."""

from __future__ import annotations

import sys
from functools import partial

from tests import programs

__all__ = ["run", "started"]

_COMMAND = (sys.executable, "-m", "trio_infer")

run = partial(programs.run, command=_COMMAND)
started = partial(programs.started, command=_COMMAND)
