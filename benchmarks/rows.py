"""What is measured: each row of the table, with its bar and its aim."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

from server import STREAM_TOKENS


class Work(NamedTuple):
    """A workload.

    Attributes:
        function: of each contestant's module.
        arguments: for that.
        units: how many requests or tokens come of it.
        ticks: whether a ticker runs beside it, except beside the floor.
    """

    function: str
    arguments: dict[str, Any]
    units: int
    ticks: bool = False


def _streams(at_once: int, times: int, **arguments: Any) -> Work:
    arguments |= {"at_once": at_once, "times": times}
    return Work("streams", arguments, units=at_once * times * STREAM_TOKENS)


def _tasks(at_once: int, times: int) -> Work:
    return Work("tasks", {"at_once": at_once, "times": times}, units=at_once * times)


def _group(in_flight: int, count: int) -> Work:
    return Work("group", {"in_flight": in_flight, "count": count}, units=count)


WORKS: Final = {
    "round trip": Work("round_trip", {"count": 1000}, units=1),
    "group of 1,000": _group(1000, count=10_000),
    "group of 10,000": _group(10_000, count=20_000)._replace(ticks=True),
    "1,000 tasks": _tasks(1000, times=5),
    "10,000 tasks": _tasks(10_000, times=1)._replace(ticks=True),
    "64 streams": _streams(64, times=5),
    "1,000 streams": _streams(1000, times=1)._replace(ticks=True),
    "paced streams": _streams(64, times=1, pause=0.002),
    "cancel": Work("cancel", {"count": 100}, units=1),
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
    def units(self) -> int:
        """How many requests or tokens are in what is measured."""
        return WORKS[self.work].units


ROWS: Final = (
    Row("round trip, one in flight, p50", "round trip", "seconds", 1.6, 1.3),
    Row("requests/s, a group with 1,000 in flight", "group of 1,000", "rate", 0.75, 1.0),
    Row("requests/s, a group with 10,000 in flight", "group of 10,000", "rate", 0.75, 1.0),
    Row("delay of a ticker, a group of 10,000", "group of 10,000", "delay", 1 / 15, 1 / 50),
    Row("requests/s, 1,000 tasks", "1,000 tasks", "rate", 0.5, 0.75),
    Row("requests/s, 10,000 tasks", "10,000 tasks", "rate", 0.45, 0.65),
    Row("delay of a ticker, 10,000 tasks", "10,000 tasks", "delay", 0.7, 0.25),
    Row("tokens/s, 64 streams of 200", "64 streams", "rate", 0.8, 1.0),
    Row("tokens/s, 1,000 streams of 200", "1,000 streams", "rate", 0.45, 0.65),
    Row("delay of a ticker, 1,000 streams", "1,000 streams", "delay", 1 / 40, 1 / 200),
    Row("cancellation to ABORT at the server, p50", "cancel", "seconds", 1.7, 1.3),
    Row("CPU time per token, 64 streams", "64 streams", "cpu", 1.8, 1.4),
    Row("the same, with a step every 2 ms", "paced streams", "cpu"),
)

# Beside a release of megatron-core, in the dialect that it speaks, which may have no streams.
ROWS_IN_ITS_DIALECT: Final = (
    Row("round trip, one in flight, p50", "round trip", "seconds"),
    Row("requests/s, 1,000 in flight", "group of 1,000", "rate"),
    Row("requests/s, 10,000 in flight", "group of 10,000", "rate"),
    Row("tokens/s, 64 streams of 200", "64 streams", "rate"),
    Row("tokens/s, 1,000 streams of 200", "1,000 streams", "rate"),
)
