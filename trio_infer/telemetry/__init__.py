"""Instruments that come with the package, for ``open_client(instruments=…)``."""

from __future__ import annotations

from .logs import LoggingInstrument as LoggingInstrument

__all__ = ["LoggingInstrument"]
