"""The tables, in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contest import FLOOR, OURS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from contest import Contest, Result, Spread
    from rows import Row


def shown(ratio: float) -> str:
    """A ratio, or a small one as a fraction."""
    return f"1/{1 / ratio:.0f}" if 0 < ratio < 0.095 else f"{ratio:.2f}"


def bound(row: Row, value: float | None) -> str:
    if value is None:
        return ""
    return f"{'≥' if row.figure == 'rate' else '≤'} {shown(value)}"


def time_shown(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds >= 0.001 else f"{seconds * 1e6:.0f} µs"


def base_shown(result: Result) -> str:
    """The median that the ratios are to: as a rate, where it is one."""
    row = result.row
    if row.figure == "rate":
        return f"{row.units / result.base / 1000:.0f}k/s"
    if row.figure == "cpu":
        return f"{result.base / row.units * 1e6:.2f} µs"
    return time_shown(result.base)


def spread_shown(spread: Spread) -> str:
    return " | ".join(map(shown, spread))


def table(contest: Contest, results: Iterable[Result]) -> Iterator[str]:
    """The rows, ours with its bar, its aim and its spread."""
    peers = [module for module in contest.names if module not in (FLOOR, OURS)]
    names = [contest.names[peer] for peer in peers]
    yield f"| | bar | aim | trio-infer | lowest | highest | {' | '.join(names)} | 1.00 is |"
    yield "|---" * (7 + len(peers)) + "|"
    for result in results:
        row = result.row
        yield "| " + " | ".join([
            row.title,
            bound(row, row.bar),
            bound(row, row.aim),
            spread_shown(result.ratios[OURS]),
            *(shown(result.ratios[peer].median) for peer in peers),
            base_shown(result),
        ]) + " |"  # fmt: skip


def table_beside(contest: Contest, peer: str, results: Iterable[Result]) -> Iterator[str]:
    """The rows, ours and a peer's, each with its spread."""
    name = contest.names[peer]
    yield f"| | trio-infer | lowest | highest | {name} | lowest | highest | 1.00 is |"
    yield "|---" * 8 + "|"
    for result in results:
        ours, theirs = (spread_shown(result.ratios[module]) for module in (OURS, peer))
        yield f"| {result.row.title} | {ours} | {theirs} | {base_shown(result)} |"
