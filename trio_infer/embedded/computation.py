"""What one step of an engine computes, apart from the engine, so that a thread can do it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .language_model import Interruption, Question
from .prefix import Prefix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .engine_request import EngineRequest, Finding
    from .language_model import CachingModel, LanguageModel

__all__ = ["Computation", "WrongAnswer"]


class WrongAnswer(ValueError):
    """What a model has answered makes no sense."""


class Computation:
    """Asks a model what comes next in some requests, and draws from that.

    Nothing that it reads changes meanwhile, whatever becomes of the requests.

    Args:
        model: whom to ask.
        caching: the same, if it is asked in that way.
        asked: the requests, and for each of them what is to be found: the tokens of its prompt in
            these places, to be scored, and behind it the next one.

    Attributes:
        findings: for each of them, those for the first of its places, and at best for all.
    """

    __slots__ = ("_caching", "_interruption", "_model", "asked", "findings")

    def __init__(
        self,
        model: LanguageModel,
        caching: CachingModel | None,
        asked: Sequence[tuple[EngineRequest, range]],
    ) -> None:
        self.asked: Sequence[tuple[EngineRequest, range]] = asked
        self.findings: list[list[Finding]] = [[] for _ in asked]
        self._model = model
        self._caching = caching
        self._interruption = Interruption()

    @property
    def is_wanted(self) -> bool:
        """Whether any of the requests is to go on."""
        return not all(request.aborted for request, _ in self.asked)

    def interrupt(self) -> None:
        """Lets it end soon, if the model minds that. In the requests nothing may be found then."""
        self._interruption.set()

    def run(self) -> None:
        """Computes, in whatever thread."""
        if not self.asked:
            return
        model, caching = self._model, self._caching
        rows = self._rows() if caching is None else self._answers(caching)
        self.findings = [
            [request.find(place, row, model) for place, row in zip(places, found, strict=False)]
            for (request, places), found in zip(self.asked, rows, strict=True)
        ]

    def _answers(self, model: CachingModel) -> Sequence[Sequence[Sequence[float]]]:
        questions = [
            Question(request.sequence, request.tokens, places)
            for request, places in self.asked
            if request.sequence is not None  # none lacks one, with such a model
        ]
        return model.answer(questions, self._interruption)

    def _rows(self) -> list[Sequence[Sequence[float]]]:
        sequences: list[Sequence[int]] = []
        for request, places in self.asked:
            tokens = request.tokens
            length = len(tokens)
            sequences += [tokens if place == length else Prefix(tokens, place) for place in places]
        rows = self._model.next_token_log_probs(sequences)
        if len(rows) != len(sequences):
            msg = f"the model has {len(rows)} answers to {len(sequences)} sequences"
            raise WrongAnswer(msg)
        vocab_size = self._model.vocab_size
        for row in rows:
            if len(row) != vocab_size:
                msg = f"the model gave {len(row)} log probabilities for {vocab_size} ids"
                raise WrongAnswer(msg)
            if math.isnan(sum(row)):
                msg = "the model gave log probabilities of which one is no number"
                raise WrongAnswer(msg)
        end, slices = 0, []
        for _, places in self.asked:
            start, end = end, end + len(places)
            slices.append(rows[start:end])
        return slices
