"""What llama.cpp computes for one step, such that no sequence feels the others.

Sums of floats depend on their order, and llama.cpp's on how many tokens of a sequence it computes
at once: one, or more. So those that go on by one token are one batch, of any number of sequences,
and each piece of a prompt, of two tokens or more, is a batch of its own. Then the answers are to
the last bit the same, whatever else runs and however much of a prompt was there already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from .context import BATCH_TOKENS, Context, Entry
from .rows import ArrayLogProbs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..language_model import Interruption, Question
    from .slots import LlamaSequence, Slot, Slots

__all__ = ["Step"]


class Step:
    """One step of a model.

    Args:
        context: what computes.
        slots: where the KV is.
        questions: one for each sequence.
        interruption: whether to stop.
    """

    def __init__(
        self,
        context: Context,
        slots: Slots,
        questions: Sequence[Question],
        interruption: Interruption,
    ) -> None:
        self._context = context
        self._slots = slots
        self._interruption = interruption
        self._questions = [(_sequence(question), question) for question in questions]
        self._answers: dict[LlamaSequence, list[ArrayLogProbs]] = {}

    def answer(self) -> list[list[ArrayLogProbs]]:
        """What may come next: for each question, as far as one step goes.

        Raises:
            RuntimeError: llama.cpp failed.
        """
        going_on, prompts = [], []
        for sequence, question in self._questions:
            if sequence.closed:  # another may have its slot
                continue
            slot, length = sequence.slot, len(question.tokens)
            if slot is not None and length == question.places.start == len(slot.tokens) + 1:
                going_on.append((sequence, slot, question, question.tokens[-1:]))
            else:
                prompts.append((sequence, question))
        self._decode(going_on)
        room = BATCH_TOKENS
        for sequence, question in prompts:
            slot, tokens = self._prepare(sequence, question)
            taken = tokens[: room - (len(tokens) == room + 1)]  # which leaves two, not one
            if len(taken) == 1 < len(tokens):
                break
            self._decode([(sequence, slot, question, taken)])
            room -= len(taken)
            if room <= 1:
                break
        return [self._answers.get(sequence, []) for sequence, _ in self._questions]

    def _prepare(self, sequence: LlamaSequence, question: Question) -> tuple[Slot, Sequence[int]]:
        """The slot of a sequence, and the tokens whose KV it still lacks for the answers.

        They are two at least, if there are so many, for no piece is to be of one.
        """
        tokens, places = question.tokens, question.places
        slot = sequence.slot
        if slot is None:
            most = max(0, places.start - 2) if self._context.shares else 0
            slot, source, length = self._slots.take(sequence, tokens, most)
            if slot is not source:
                self._trim(slot, 0)
                if length:
                    self._context.copy(source.number, slot.number)
                    slot.tokens += source.tokens
            self._trim(slot, length)
            sequence.num_cached_tokens = len(slot.tokens)
        self._trim(slot, places.start - 1)  # were it computed already, it would not be answered
        known = len(slot.tokens)
        return slot, tokens[known : max(known + 2, places.stop - 1)]

    def _trim(self, slot: Slot, length: int) -> None:
        if len(slot.tokens) > length:
            if self._context.keep(slot.number, length):
                del slot.tokens[length:]
            else:
                slot.tokens.clear()

    def _decode(self, parts: Sequence[tuple[LlamaSequence, Slot, Question, Sequence[int]]]) -> None:
        """Computes some tokens of some sequences, and answers for them."""
        entries: list[Entry] = []
        answered: list[tuple[LlamaSequence, range]] = []
        for sequence, slot, question, tokens in parts:
            known = len(slot.tokens)
            places = question.places
            asked = range(
                max(0, places.start - 1 - known), min(len(tokens), places.stop - 1 - known)
            )
            start = len(entries)
            entries += [
                Entry(slot.number, token, known + place, wanted=place in asked)
                for place, token in enumerate(tokens)
            ]
            answered.append((sequence, range(start + asked.start, start + asked.stop)))
        if not entries or self._interruption:
            return
        done = False
        try:
            done = self._context.decode(entries, self._interruption)
        finally:
            for _, slot, _, tokens in parts:
                if done:
                    slot.tokens += tokens
                elif not self._context.keep(slot.number, len(slot.tokens)):
                    slot.tokens.clear()
        if done:
            for sequence, places in answered:
                rows = [ArrayLogProbs(self._context.logits(place)) for place in places]
                self._answers[sequence] = rows


def _sequence(question: Question) -> LlamaSequence:
    return cast("LlamaSequence", question.sequence)
