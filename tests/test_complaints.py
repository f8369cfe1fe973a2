"""A flood of what a peer gets wrong does not fill the disk."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from trio_infer.complaints import ONE_BY_ONE, Complaints

if TYPE_CHECKING:
    import pytest


def test_warnings_of_a_kind_become_rare_and_say_how_many_there_were(
    caplog: pytest.LogCaptureFixture,
) -> None:
    complaints = Complaints(logging.getLogger("peer"))
    for number in range(100_000):
        complaints.warn("%s is wrong", number)
    told = [record.getMessage() for record in caplog.records]
    assert told[: ONE_BY_ONE + 1] == [
        *(f"{number} is wrong" for number in range(10)),
        "99 is wrong (no. 100; few are logged)",
    ]
    assert len(told) == ONE_BY_ONE + 4


def test_a_flood_of_one_kind_does_not_hide_another(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(logging.getLogger("peer"))
    for _ in range(1000):
        complaints.warn("wrong")
    caplog.clear()
    complaints.warn("worse")
    assert [record.getMessage() for record in caplog.records] == ["worse"]
