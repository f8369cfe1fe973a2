"""Models with faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from tests.cli.talking import Talker

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Absent", "Broken", "Curt", "Gone", "Mute", "broken"]


class Broken(Talker):
    def next_token_log_probs(self, sequences: Sequence[Sequence[int]]) -> NoReturn:
        msg = "no such shape"
        raise ValueError(msg)


broken = Broken()


class Curt(Talker):
    def next_token_log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[0.0] for _ in sequences]


class Absent(Talker):
    """Where the coordinator is opened a wrong argument would be the command line's."""

    @property
    def end_tokens(self) -> NoReturn:
        raise TypeError


class Gone(Talker):
    """Its own pipe is broken, and not that of whoever reads the output."""

    def next_token_log_probs(self, sequences: Sequence[Sequence[int]]) -> NoReturn:
        raise BrokenPipeError


class Mute(Talker):
    def detokenize(self, tokens: Sequence[int]) -> NoReturn:
        raise KeyError(72)
