"""Log probabilities in an array do what lists of them do."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from trio_infer.embedded.llama.rows import RANKED_FIRST, ArrayLogProbs
from trio_infer.embedded.sampling import sample_token, top_log_probs

SIZE = 3 * RANKED_FIRST


@pytest.fixture(params=["spread", "flat", "ties"])
def row(request: pytest.FixtureRequest) -> ArrayLogProbs:
    rng = np.random.default_rng(1)
    scale = {"spread": 3.0, "flat": 0.01, "ties": 1.0}[request.param]
    logits = rng.normal(scale=scale, size=SIZE).astype(np.float32)
    return ArrayLogProbs(np.round(logits) if request.param == "ties" else logits)


def test_they_are_the_log_softmax_of_the_logits(row: ArrayLogProbs) -> None:
    assert len(row) == SIZE
    assert math.fsum(map(math.exp, row)) == pytest.approx(1)
    logits = row.logits.astype(float)
    assert row[5] - row[9] == pytest.approx(logits[5] - logits[9])
    assert type(row[5]) is float
    assert row[3:5] == [row[3], row[4]]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0},
        {"temperature": 0.5},
        {"temperature": 1e-300},
        {"top_k": 1},
        {"top_k": 7},
        {"top_k": 7, "temperature": 2.0},
        {"top_k": SIZE + 1},
        {"top_p": 0.9},
        {"top_p": 0.999},
        {"top_p": 1.0},
        {"top_p": 1e-9, "temperature": 3.0},
    ],
)
def test_the_same_token_is_drawn_from_an_array_as_from_a_list(
    row: ArrayLogProbs, params: dict[str, Any]
) -> None:
    plain = list(row)
    drawn = Counter(
        sample_token(row, random.Random(seed), **params)
        == sample_token(plain, random.Random(seed), **params)
        for seed in range(100)
    )
    assert drawn[False] <= 1  # a draw that falls on the border, to the last bit


def test_the_likeliest_are_the_same(row: ArrayLogProbs) -> None:
    for count in (1, 5, SIZE, SIZE + 9):
        assert top_log_probs(row, count) == top_log_probs(list(row), count)


def test_what_is_impossible_is_never_drawn() -> None:
    logits = np.full(SIZE, -np.inf, np.float32)
    logits[[3, 700]] = 1.0
    row = ArrayLogProbs(logits)
    assert {sample_token(row, random.Random(seed)) for seed in range(50)} == {3, 700}
    assert {sample_token(row, random.Random(seed), top_p=1.0) for seed in range(50)} == {3, 700}
    assert row[4] == -math.inf
