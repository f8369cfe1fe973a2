"""Prints how near the client comes to the floor, and what its peers reach: `nox -s bench`.

With ``--update-docs`` the table and its chart go into the documentation as well; with ``growth`` it
is measured instead how cost grows.
"""

from __future__ import annotations

import argparse
import datetime as dt
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import pages
from contest import MEGATRON, NEEDS, NEEDS_IN_ITS_DIALECT, ROUNDS, Contest, Result, contest
from rows import ROWS, ROWS_IN_ITS_DIALECT, WORKS
from server import Peer, SingleFramePeer, server
from tables import table, table_beside

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PACKAGES = ("trio", "pyzmq", "msgpack", "msgspec", "zmq-anyio", "anyio")


def conditions(rounds: int) -> str:
    """When this is, and with what."""
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    today = dt.datetime.now(tz=dt.UTC).date()
    versions = ", ".join([f"Python {platform.python_version()}", *found])
    return f"Measured on {today} with {versions}; {rounds} rounds."


def printed(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        print(line, flush=True)
        yield line


def kept(results: Iterable[Result], into: list[Result]) -> Iterator[Result]:
    for result in results:
        into.append(result)
        yield result


def main_table() -> tuple[list[str], list[Result], Contest]:
    """Beside what can be had from PyPI, in the dialect `framed`."""
    results: list[Result] = []
    with server() as address, contest(NEEDS) as contestants:
        measured = kept(contestants.results(ROWS, WORKS, address), results)
        lines = list(printed(["", conditions(ROUNDS), ""]))
        lines += printed(table(contestants, measured))
    return lines, results, contestants


def table_in_its_dialect() -> list[str]:
    """Beside megatron-core's own client, if it is installed."""
    with contest(NEEDS_IN_ITS_DIALECT) as contestants:
        if MEGATRON not in contestants.names:
            print("\nmegatron-core is not installed: nothing to compare with")
            return []
        dialect = contestants.dialect(MEGATRON)
        works = {
            name: work._replace(arguments=work.arguments | {"dialect": dialect})
            for name, work in WORKS.items()
        }
        rows = [
            row for row in ROWS_IN_ITS_DIALECT if dialect != "0.19" or "streams" not in row.work
        ]
        with server(Peer if dialect == "framed" else SingleFramePeer) as address:
            lines = list(printed(["", f"In the dialect `{dialect}`:", ""]))
            results = contestants.results(rows, works, address)
            lines += printed(table_beside(contestants, MEGATRON, results))
            return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=("table", "growth"), default="table")
    parser.add_argument("chart", nargs="*", help="which charts of growth; all, if none is named")
    parser.add_argument("--update-docs", action="store_true")
    options = parser.parse_args()
    if options.what == "growth":
        import growth  # noqa: PLC0415 - takes long to import

        growth.main(
            conditions(growth.ROUNDS), update_docs=options.update_docs, chosen=options.chart
        )
        return
    lines, results, contestants = main_table()
    lines += table_in_its_dialect()
    if options.update_docs:
        pages.update("table", lines)
        import charts  # noqa: PLC0415 - wants matplotlib

        charts.draw_table(results, contestants.names)


if __name__ == "__main__":
    main()
