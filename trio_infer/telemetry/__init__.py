"""Instruments that come with the package, for ``open_client(instruments=…)``."""

from __future__ import annotations

from .logs import LoggingInstrument as LoggingInstrument
from .open_telemetry import OpenTelemetryInstrument as OpenTelemetryInstrument

__all__ = ["LoggingInstrument", "OpenTelemetryInstrument"]
