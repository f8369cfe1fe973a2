"""The tables in the docs say what the code does."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from trio_infer import DIALECTS
from trio_infer.models.sampling_params import FIELD_NAMES

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "dialects.md").read_text("utf-8")


def rows(first_header: str) -> list[list[str]]:
    """The cells of the table whose first header that is, headers included, without backquotes."""
    lines = PAGE[PAGE.index(f"| {first_header} |") :].split("\n\n")[0].splitlines()
    cells = [
        [cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines
    ]
    return [cells[0], *cells[2:]]


def test_each_dialect_has_its_row_and_no_other() -> None:
    _, *dialects = rows("dialect")
    assert [row[0].split('"')[1] for row in dialects] == list(DIALECTS)


@pytest.mark.parametrize("name", DIALECTS)
def test_the_table_says_of_each_dialect_what_it_can(name: str) -> None:
    (_, _, *attributes), *dialects = rows("dialect")
    (said,) = ([*row[2:]] for row in dialects if f'"{name}"' in row[0])
    row = DIALECTS[name]
    expected = {True: "yes", False: "no"}
    assert dict(zip(attributes, said, strict=True)) == {
        attribute: expected[getattr(row, attribute)]
        for attribute in dir(row)
        if attribute.startswith("can_")
    } | {"modalities": ", ".join(sorted(row.modalities)) or "none"}


def test_the_table_says_since_when_each_sampling_parameter_is_known() -> None:
    _, *lines = rows("sampling parameter")
    since = {name: line[1].split()[0] for line in lines for name in line[0].split(", ")}
    releases = [name for name in [*DIALECTS][::-1] if name != "framed"]
    for older, newer in pairwise(releases):
        added = [*DIALECTS[newer].sampling_fields[len(DIALECTS[older].sampling_fields) :]]
        assert {name for name in added if name != "streaming"} == {
            name for name, release in since.items() if release == newer
        }
    assert DIALECTS[releases[-1]].sampling_fields == FIELD_NAMES
