"""From log probabilities to a token."""

from __future__ import annotations

import heapq
import math
from abc import abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

__all__ = ["LogProbs", "sample_token", "top_log_probs"]


class LogProbs(Sequence[float]):
    """Log probabilities that know a faster way to do the same, as those of large vocabularies."""

    __slots__ = ()

    @abstractmethod
    def sample_token(
        self, rng: random.Random, *, temperature: float, top_k: int, top_p: float
    ) -> int:
        """Draws a token id."""

    @abstractmethod
    def top_log_probs(self, count: int) -> list[tuple[int, float]]:
        """The likeliest ids with their log probabilities, the likeliest first."""


def sample_token(
    log_probs: Sequence[float],
    rng: random.Random,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 0.0,
) -> int:
    """Draws a token id.

    Args:
        log_probs: the natural logarithm of each id's probability.
        rng: where chance comes from.
        temperature: below one favours the likely, above one the unlikely; 0 takes the likeliest.
        top_k: how many of the likeliest ids are in the draw; 0: all.
        top_p: the likeliest ids whose probabilities add up to this much are in it; 0: all.
    """
    if isinstance(log_probs, LogProbs):
        return log_probs.sample_token(rng, temperature=temperature, top_k=top_k, top_p=top_p)
    if temperature == 0:
        return max(range(len(log_probs)), key=log_probs.__getitem__)
    if not top_k and not top_p:
        return _draw(_weights(log_probs, temperature), rng)
    ranked = _likeliest(log_probs, top_k or len(log_probs))
    weights = _weights([log_probs[token] for token in ranked], temperature)
    if top_p:
        weights = weights[: _nucleus(weights, top_p)]
    return ranked[_draw(weights, rng)]


def top_log_probs(log_probs: Sequence[float], count: int) -> list[tuple[int, float]]:
    """The likeliest ids with their log probabilities, the likeliest first."""
    if isinstance(log_probs, LogProbs):
        return log_probs.top_log_probs(count)
    return [(token, log_probs[token]) for token in _likeliest(log_probs, count)]


def _likeliest(log_probs: Sequence[float], count: int) -> list[int]:
    """Ids by falling probability; of equal ones the lowest first."""
    return heapq.nlargest(count, range(len(log_probs)), key=log_probs.__getitem__)


def _weights(log_probs: Sequence[float], temperature: float) -> list[float]:
    """Probabilities up to a common factor, such that the largest is one and none overflows."""
    highest = max(log_probs)
    return [math.exp((log_prob - highest) / temperature) for log_prob in log_probs]


def _nucleus(weights: Sequence[float], top_p: float) -> int:
    """How many of the first weights it takes to reach a share of their sum; one at least."""
    sums = list(accumulate(weights))
    return min(len(sums), bisect_left(sums, top_p * sums[-1]) + 1)


def _draw(weights: Sequence[float], rng: random.Random) -> int:
    sums = list(accumulate(weights))
    return min(len(sums) - 1, bisect_right(sums, rng.random() * sums[-1]))
