from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_infer.embedded.sampling import sample_token, top_log_probs

LOG_PROBS = [math.log(prob) for prob in (0.1, 0.4, 0.05, 0.3, 0.15)]


def shares(count: int = 20_000, **params: Any) -> dict[int, float]:
    rng = random.Random(7)
    drawn = Counter(sample_token(LOG_PROBS, rng, **params) for _ in range(count))
    return {token: number / count for token, number in drawn.items()}


def test_draws_follow_the_probabilities() -> None:
    assert shares() == pytest.approx({0: 0.1, 1: 0.4, 2: 0.05, 3: 0.3, 4: 0.15}, abs=0.02)


def test_greedy_takes_the_likeliest() -> None:
    assert shares(100, temperature=0) == {1: 1}
    assert shares(100, top_k=1) == {1: 1}
    assert shares(100, top_k=1, temperature=9) == {1: 1}


def test_of_equals_greedy_takes_the_first() -> None:
    assert sample_token([-1.0, -0.5, -0.5], random.Random(0), temperature=0) == 1


def test_top_k_draws_among_the_likeliest_in_proportion() -> None:
    assert shares(top_k=2) == pytest.approx({1: 4 / 7, 3: 3 / 7}, abs=0.02)
    assert set(shares(top_k=1000)) == set(range(5))


def test_top_p_draws_among_the_likeliest_that_reach_it() -> None:
    assert set(shares(top_p=0.35)) == {1}
    assert shares(top_p=0.6) == pytest.approx({1: 4 / 7, 3: 3 / 7}, abs=0.02)
    assert set(shares(top_p=0.8)) == {1, 3, 4}
    assert set(shares(top_p=1.0)) == set(range(5))


def test_temperature_flattens_and_sharpens() -> None:
    assert shares(temperature=0.5)[1] == pytest.approx(0.16 / 0.285, abs=0.02)
    assert shares(temperature=1000)[2] == pytest.approx(0.2, abs=0.02)
    assert shares(100, temperature=1e-300) == {1: 1}


def test_top_p_looks_at_what_temperature_made_of_it() -> None:
    assert set(shares(top_p=0.6, temperature=0.1)) == {1}


def test_top_log_probs_are_the_likeliest_first() -> None:
    assert [token for token, _ in top_log_probs(LOG_PROBS, 3)] == [1, 3, 4]
    assert top_log_probs(LOG_PROBS, 1) == [(1, math.log(0.4))]
    assert len(top_log_probs(LOG_PROBS, 99)) == 5


@given(
    st.lists(st.floats(-700, 0), min_size=1, max_size=20),
    st.floats(0, 100),
    st.integers(0, 30),
    st.integers(),
)
def test_whatever_is_drawn_exists_and_the_seed_decides(
    log_probs: list[float], temperature: float, top_k: int, seed: int
) -> None:
    drawn = [
        sample_token(log_probs, random.Random(seed), temperature=temperature, top_k=top_k)
        for _ in range(2)
    ]
    assert drawn[0] == drawn[1]
    assert 0 <= drawn[0] < len(log_probs)
