"""A short rehearsal of chaos; `nox -s chaos` is the long one."""

from __future__ import annotations

import pytest

from tests.chaos.running import rehearse_once


@pytest.mark.parametrize("seed", range(16))
def test_whatever_happens_each_request_ends_once_and_nothing_is_left(seed: int) -> None:
    report = rehearse_once("memory", seed)
    assert report.outcomes.total() == 3 * 8 * 6
    assert report.faults


def test_over_real_sockets_as_well() -> None:
    report = rehearse_once("tcp", 0)
    assert report.outcomes["completed"]
    assert report.faults


def test_a_seed_leads_to_the_same_each_time_and_another_to_something_else() -> None:
    """So that what a long rehearsal finds can be looked into."""
    assert rehearse_once("memory", 1) == rehearse_once("memory", 1)
    assert rehearse_once("memory", 1) != rehearse_once("memory", 2)
