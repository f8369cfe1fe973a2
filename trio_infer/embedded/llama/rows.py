"""The log probabilities of a large vocabulary, as an array."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, overload

import numpy as np

from ..sampling import LogProbs

if TYPE_CHECKING:
    import random

    import numpy.typing as npt

__all__ = ["ArrayLogProbs"]

RANKED_FIRST: Final = 512
"""The likeliest tokens have a share of `top_p` nearly always; sorting all takes much longer."""


class ArrayLogProbs(LogProbs):
    """The log probabilities that follow from logits.

    Args:
        logits: those of all tokens.
    """

    __slots__ = ("__dict__", "logits")

    def __init__(self, logits: npt.NDArray[np.float32]) -> None:
        self.logits: npt.NDArray[np.float32] = logits

    @cached_property
    def _scaled(self) -> npt.NDArray[np.float64]:
        """The logits less the highest of them."""
        scaled: npt.NDArray[np.float64] = self.logits.astype(np.float64) - self.logits.max()
        return scaled

    @cached_property
    def _log_sum(self) -> float:
        return float(np.log(np.exp(self._scaled).sum()))

    def __len__(self) -> int:
        return len(self.logits)

    @overload
    def __getitem__(self, index: int) -> float: ...

    @overload
    def __getitem__(self, index: slice) -> list[float]: ...

    def __getitem__(self, index: int | slice) -> float | list[float]:
        found: Any = (self._scaled[index] - self._log_sum).tolist()
        return found  # type: ignore[no-any-return]

    def sample_token(
        self, rng: random.Random, *, temperature: float, top_k: int, top_p: float
    ) -> int:
        """As `trio_infer.embedded.sampling.sample_token`."""
        if temperature == 0 or top_k == 1:
            return int(self.logits.argmax())
        if not top_k and not top_p:
            return _draw(_weights(self._scaled, temperature), rng)
        if top_k:
            ranked = self._likeliest(top_k)
            return int(ranked[_draw(_weights(self._scaled[ranked], temperature), rng)])
        ranked, weights = self._nucleus(temperature, top_p)
        return int(ranked[_draw(weights, rng)])

    def top_log_probs(self, count: int) -> list[tuple[int, float]]:
        """As `trio_infer.embedded.sampling.top_log_probs`."""
        return [(int(token), self[int(token)]) for token in self._likeliest(count)]

    def _likeliest(self, count: int) -> npt.NDArray[np.intp]:
        """Ids by falling probability; of equal ones the lowest first."""
        logits = self.logits
        count = min(count, len(logits))
        least = np.partition(logits, len(logits) - count)[len(logits) - count]
        candidates = np.flatnonzero(logits >= least)
        order = np.argsort(-logits[candidates], kind="stable")
        return candidates[order[:count]]

    def _nucleus(
        self, temperature: float, top_p: float
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
        """The likeliest ids that have a share of all weights, one at least; and their weights."""
        share = top_p * _weights(self._scaled, temperature).sum()
        for count in (RANKED_FIRST, len(self)):
            ranked = self._likeliest(count)
            weights = _weights(self._scaled[ranked], temperature)
            length = int(np.searchsorted(np.cumsum(weights), share)) + 1
            if length <= len(ranked):
                break
        return ranked[:length], weights[:length]


def _weights(scaled: npt.NDArray[np.float64], temperature: float) -> npt.NDArray[np.float64]:
    """Probabilities up to a common factor, such that the largest is one and none overflows."""
    with np.errstate(over="ignore", under="ignore"):
        return np.exp(scaled / temperature)


def _draw(weights: npt.NDArray[np.float64], rng: random.Random) -> int:
    sums = np.cumsum(weights)
    return min(len(sums) - 1, int(np.searchsorted(sums, rng.random() * sums[-1], side="right")))
