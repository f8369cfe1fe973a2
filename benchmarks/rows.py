"""What is measured: each row of the table, with its bar and its aim."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple


class Work(NamedTuple):
    """A workload: a function of each contestant's module, and its arguments."""

    function: str
    arguments: dict[str, Any]


WORK: Final = {
    "round trip": Work("round_trip", {"count": 1000}),
    "group of 1,000": Work("group", {"count": 20_000, "in_flight": 1000}),
    "group of 10,000": Work("group", {"count": 30_000, "in_flight": 10_000}),
    "1,000 tasks": Work("tasks", {"at_once": 1000, "times": 10}),
    "10,000 tasks": Work("tasks", {"at_once": 10_000, "times": 1}),
    "64 streams": Work("streams", {"at_once": 64, "times": 5}),
    "1,000 streams": Work("streams", {"at_once": 1000, "times": 1}),
    "64 streams, paced": Work("streams", {"at_once": 64, "times": 1, "pause": 0.002}),
    "cancel": Work("cancel", {"count": 100}),
}


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        title: what it says.
        work: what is run for it.
        figure: what is looked at: seconds, rate (its inverse), cpu, or delay.
        bar: what has to be reached.
        aim: what is wanted.
    """

    title: str
    work: str
    figure: Literal["seconds", "rate", "cpu", "delay"]
    bar: float | None = None
    aim: float | None = None

    @property
    def more_is_better(self) -> bool:
        return self.figure == "rate"


ROWS: Final = (
    Row("round trip, one in flight, p50", "round trip", "seconds", 1.6, 1.3),
    Row("requests/s, a group with 1,000 in flight", "group of 1,000", "rate", 0.75, 1.0),
    Row("requests/s, a group with 10,000 in flight", "group of 10,000", "rate", 0.75, 1.0),
    Row("ticker's delay, a group of 10,000", "group of 10,000", "delay", 1 / 15, 1 / 50),
    Row("requests/s, 1,000 tasks", "1,000 tasks", "rate", 0.5, 0.75),
    Row("requests/s, 10,000 tasks", "10,000 tasks", "rate", 0.45, 0.65),
    Row("ticker's delay, 10,000 tasks", "10,000 tasks", "delay", 0.7, 0.25),
    Row("tokens/s, 64 streams of 200", "64 streams", "rate", 0.8, 1.0),
    Row("tokens/s, 1,000 streams of 200", "1,000 streams", "rate", 0.45, 0.65),
    Row("ticker's delay, 1,000 streams", "1,000 streams", "delay", 1 / 40, 1 / 200),
    Row("cancellation to ABORT at the server, p50", "cancel", "seconds", 1.7, 1.3),
    Row("CPU time per token, 64 streams", "64 streams", "cpu", 1.8, 1.4),
    Row("the same, a step every 2 ms", "64 streams, paced", "cpu"),
)
