"""A coordinator's requests that last until somebody ends them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trio_infer.embedded import EmbeddedCoordinator

__all__ = ["Endless", "far", "idle"]


class Endless:
    """Says the same for ever."""

    vocab_size = 257
    end_token = 256

    def tokenize(self, text: str) -> list[int]:
        return list(text.encode())

    def detokenize(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode()

    def next_token_log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        certain = [-1e9] * self.vocab_size
        certain[ord("x")] = 0.0
        return [certain] * len(sequences)


def idle(coordinator: EmbeddedCoordinator) -> bool:
    return not coordinator.running


def far(coordinator: EmbeddedCoordinator) -> bool:
    return any(request.generated_length > 20 for request in coordinator.running)
