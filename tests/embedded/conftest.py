from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trio_infer.embedded import LanguageModel


class Alphabet:
    """Ids are ASCII codes; after a letter comes the next one, after ``z`` the end, most likely."""

    vocab_size = 128
    end_token = 0

    def tokenize(self, text: str) -> list[int]:
        return list(text.encode("ascii"))

    def detokenize(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode("ascii").replace("\0", "<end>")

    def next_token_log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        return [self._after(sequence[-1]) for sequence in sequences]

    def _after(self, token: int) -> list[float]:
        likeliest = 0 if token == ord("z") else (token + 1) % self.vocab_size
        probs = [0.1 / (self.vocab_size - 1)] * self.vocab_size
        probs[likeliest] = 0.9
        return [math.log(prob) for prob in probs]


@pytest.fixture
def alphabet() -> LanguageModel:
    return Alphabet()
