"""A short run of the fuzzer; `nox -s fuzz` is the long one."""

from __future__ import annotations

import random
from collections import Counter

import attrs
import pytest

from tests.fuzz.replies import play_replies
from tests.fuzz.requests import play_requests


@pytest.mark.parametrize("seed", range(12))
def test_whatever_a_coordinator_sends_costs_what_it_names_and_no_more(seed: int) -> None:
    play_replies(random.Random(seed).randbytes(4000))


@pytest.mark.parametrize("seed", range(12))
def test_whatever_a_client_sends_the_coordinator_serves_the_others(seed: int) -> None:
    play_requests(random.Random(seed).randbytes(4000))


def test_runs_lead_everywhere() -> None:
    replies: Counter[str] = Counter()
    requests: Counter[str] = Counter()
    for seed in range(8):
        data = bytes([seed % 4]) + random.Random(seed).randbytes(3000)
        replies.update(attrs.asdict(play_replies(data).statistics))
        requests.update(attrs.asdict(play_requests(data).statistics))
    assert min(replies[name] for name in ("completed", "failed", "discarded", "malformed")) > 10
    assert min(requests[name] for name in ("completed", "failed", "malformed", "aborts")) > 10
