"""Where llama.cpp keeps the KV of which tokens, and where a new prompt finds its beginning."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LlamaSequence", "Slot", "Slots"]


@attrs.define(eq=False)
class LlamaSequence:
    """A sequence of a request: a `trio_infer.embedded.ModelSequence`.

    Attributes:
        num_cached_tokens: how many of its first tokens had been computed for others.
        slot: where its KV is; None before the first question.
        closed: nothing more will be asked.
    """

    num_cached_tokens: int = 0
    slot: Slot | None = None
    closed: bool = False

    def close(self) -> None:
        """Its slot may be another's from the next question on."""
        self.closed = True


@attrs.define(eq=False)
class Slot:
    """A place for the KV of one sequence. It stays there when the sequence has been closed.

    Attributes:
        number: llama.cpp's id of it.
        tokens: those whose KV is there.
        owner: whose it is; None before the first.
        used: when that one came; of two the later has more.
    """

    number: int
    tokens: list[int] = attrs.field(factory=list)
    owner: LlamaSequence | None = None
    used: int = 0

    @property
    def is_idle(self) -> bool:
        """Whether a new sequence may have it."""
        return self.owner is None or self.owner.closed


class Slots:
    """All of them."""

    def __init__(self, size: int) -> None:
        self._slots = [Slot(number) for number in range(size)]
        self._clock = count(1)

    def take(
        self, owner: LlamaSequence, tokens: Sequence[int], most: int
    ) -> tuple[Slot, Slot, int]:
        """Gives a new sequence a slot.

        Idle KV is kept for as long as can be: one that is but continued goes on where it is, and
        otherwise the one that was not used for longest makes room.

        Args:
            owner: the sequence.
            tokens: how it begins.
            most: so many of its tokens at most may be found.

        Returns:
            The slot, the one in which the longest beginning is found, and how many tokens that has.
        """
        lengths = {slot: _common_length(slot.tokens, tokens, most) for slot in self._slots}
        idle = [slot for slot in self._slots if slot.is_idle]
        whole = [slot for slot in idle if lengths[slot] == len(slot.tokens)]
        source = max(self._slots, key=lambda slot: (lengths[slot], slot in whole))
        slot = source if source in whole else min(idle, key=lambda each: each.used)
        slot.owner, slot.used = owner, next(self._clock)
        owner.slot, owner.num_cached_tokens = slot, lengths[source]
        return slot, source, lengths[source]


def _common_length(known: Sequence[int], tokens: Sequence[int], most: int) -> int:
    length = 0
    for one, other in zip(known, tokens[:most], strict=False):
        if one != other:
            break
        length += 1
    return length
