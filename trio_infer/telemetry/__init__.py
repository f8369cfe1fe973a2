"""Instruments that come with the package, for ``open_client(instruments=…)``."""

from __future__ import annotations

from .logs import LoggingInstrument as LoggingInstrument
from .open_telemetry import OpenTelemetryInstrument as OpenTelemetryInstrument
from .prometheus import PrometheusInstrument as PrometheusInstrument

__all__ = ["LoggingInstrument", "OpenTelemetryInstrument", "PrometheusInstrument"]
