"""What a load has shown, in the vocabulary of vLLM's bench: as numbers by name, and as a table."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table

from .console import natural_width, plain_text
from .load import METRICS, Load

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["WIDTH", "figures", "metric_table", "percentile", "report"]

WIDTH: Final = 80
"""Columns where no terminal says how many."""

_NAMES: Final = {
    "ttft": "Time to first token (TTFT)",
    "tpot": "Time per output token (TPOT)",
    "itl": "Inter-token latency (ITL)",
    "e2el": "End-to-end latency (E2EL)",
}
_ROWS: Final = (
    ("Successful requests", "completed", "d"),
    ("Failed requests", "failed", "d"),
    ("Aborted requests", "aborted", "d"),
    ("Aborted by the interruption", "interrupted", "d"),
    ("Request rate configured (req/s)", "request_rate", ".2f"),
    ("Maximum request concurrency", "max_concurrency", "d"),
    ("Benchmark duration (s)", "duration", ".2f"),
    ("Total input tokens", "total_input_tokens", "d"),
    ("Total generated tokens", "total_output_tokens", "d"),
    ("Request throughput (req/s)", "request_throughput", ".2f"),
    ("Output token throughput (tok/s)", "output_throughput", ".2f"),
    ("Total token throughput (tok/s)", "total_token_throughput", ".2f"),
)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which so many percent of others lie, between its neighbours.

    Args:
        values: one or more, in order.
        percent: from 0 to 100.
    """
    place = (len(values) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (place - below)


def figures(
    load: Load, percentiles: Sequence[float], *, recent: int | None = None
) -> dict[str, Any]:
    """All numbers, by the names that they have in vLLM's results; times are in milliseconds.

    What was not measured is None. Tokens count if they arrived, those of aborted requests as well.

    Args:
        load: that has ended, or runs.
        percentiles: which of them to tell.
        recent: of each kind of time so many at most, the last ones; None: all.
    """
    plan, duration = load.plan, max(load.duration, 1e-9)
    numbers: dict[str, Any] = {
        "request_rate": plan.rate,
        "max_concurrency": plan.concurrency,
        "duration": load.duration,
        "completed": load.completed,
        "failed": load.failed,
        "aborted": load.aborted,
        "interrupted": load.interrupted,
        "total_input_tokens": load.input_tokens,
        "total_output_tokens": load.output_tokens,
        "request_throughput": load.completed / duration,
        "output_throughput": load.output_tokens / duration,
        "total_token_throughput": (load.input_tokens + load.output_tokens) / duration,
    }
    for metric in METRICS:
        measured = load.measured[metric]
        values = sorted(1000 * seconds for seconds in measured[-(recent or len(measured)) :])
        numbers |= _describe(metric, values, percentiles)
    return numbers


def _describe(
    metric: str, values: Sequence[float], percentiles: Sequence[float]
) -> dict[str, float | None]:
    described: dict[str, float | None] = {
        f"mean_{metric}_ms": statistics.fmean(values) if values else None,
        f"median_{metric}_ms": percentile(values, 50) if values else None,
        f"std_{metric}_ms": statistics.pstdev(values) if values else None,
    }
    for percent in percentiles:
        name = f"p{percent:.12g}_{metric}_ms"
        described[name] = percentile(values, percent) if values else None
    return described


def metric_table(numbers: dict[str, Any], percentiles: Sequence[float], width: int) -> Table:
    """The times: a line for each metric; where that is too wide, a column; or a line for each."""
    kinds = ("mean", "median", "std", *(f"p{percent:.12g}" for percent in percentiles))
    rows = [
        [_number(numbers[f"{kind}_{metric}_ms"], ".2f") for kind in kinds] for metric in METRICS
    ]
    table = _times("milliseconds", kinds, dict(zip(_NAMES.values(), rows, strict=True)))
    if natural_width(table) <= width:
        return table
    names = [metric.upper() for metric in METRICS]
    columns = dict(zip(kinds, map(list, zip(*rows, strict=True)), strict=True))
    table = _times("ms", names, columns)
    if natural_width(table) <= width:
        return table
    lines = {
        f"{name} {kind}": [cell]
        for name, row in zip(names, rows, strict=True)
        for kind, cell in zip(kinds, row, strict=True)
    }
    return _times("", ["ms"], lines)


def _times(corner: str, heads: Sequence[str], rows: dict[str, list[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(corner, no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for name, cells in rows.items():
        table.add_row(name, *cells)
    return table


def report(numbers: dict[str, Any], percentiles: Sequence[float], width: int = WIDTH) -> str:
    """All of it, for people to read, in so many columns."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for name, key, form in _ROWS:
        if numbers[key] is not None and (numbers[key] or key != "interrupted"):
            table.add_row(name, _number(numbers[key], form))
    return plain_text(table, "", metric_table(numbers, percentiles, width))


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
