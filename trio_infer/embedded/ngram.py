"""A small language model that is real: byte-level n-grams, interpolated as Witten and Bell do.

All n-grams of one length stand in a sorted list, each with its count. Those that begin with
a context are neighbours there, so that list answers for every shorter context too.
"""

from __future__ import annotations

import functools
import math
from array import array
from bisect import bisect_left
from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from .corpus import english_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["END_TOKEN", "NgramModel", "default_model"]

END_TOKEN: Final = 256
VOCAB_SIZE: Final = 257

_END_TEXT: Final = b"<|endoftext|>"
_END_BYTE: Final = 0xFF
_NO_BYTE: Final = b"\xfe"
_BEYOND: Final = b"\xff" * 2
"""Neither 0xFE nor 0xFF stands in UTF-8, so one can mean the end, the other what was never seen.

And two 0xFF in a row stand in no text, so that a context plus these sorts behind all its n-grams.
"""

_COUNTED_AT_ONCE: Final = 8192
"""In between other threads have their turn: counting in C does not let go of the interpreter."""

_CACHED_CONTEXTS: Final = 4096
_SHORT_CONTEXT: Final = 2


class NgramModel:
    """Continues bytes by what followed the last few of them in the texts it was made of.

    Ids 0 to 255 are bytes, 256 is the end of a text. No id is impossible, anywhere.

    Args:
        texts: what to count. Each ends with the end token.
        order: how many bytes of context are looked at, at most.
    """

    vocab_size: int = VOCAB_SIZE
    end_token: int = END_TOKEN

    def __init__(self, texts: Iterable[str], *, order: int = 8) -> None:
        self._order = order
        data = b"".join(text.encode() + bytes([_END_BYTE]) for text in texts if text)
        ring = data * (order // max(1, len(data)) + 2)
        counts: Counter[bytes] = Counter()
        for start in range(0, len(data), _COUNTED_AT_ONCE):
            starts = range(start, min(start + _COUNTED_AT_ONCE, len(data)))
            ends = range(starts.start + order + 1, starts.stop + order + 1)
            counts.update(map(ring.__getitem__, map(slice, starts, ends)))
        self._grams = sorted(counts)
        self._totals = [0, *accumulate(map(counts.__getitem__, self._grams))]
        cache = functools.lru_cache(_CACHED_CONTEXTS)
        self._log_probs = cache(self._compute_log_probs)
        self._followers = cache(self._count_followers)
        self._short_probs = cache(self._compute_short_probs)

    def tokenize(self, text: str) -> list[int]:
        """The bytes of the text in UTF-8.

        Raises:
            UnicodeEncodeError: for lone surrogates.
        """
        return list(text.encode())

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of these bytes, with U+FFFD for what is no UTF-8, and the end token visible."""
        pieces = (_END_TEXT if token == END_TOKEN else bytes((token,)) for token in tokens)
        return b"".join(pieces).decode(errors="replace")

    def next_token_log_probs(self, sequences: Sequence[Sequence[int]]) -> Sequence[Sequence[float]]:
        """The log probabilities of all 257 ids after each sequence.

        Raises:
            ValueError: for ids outside the vocabulary within the context.
        """
        return [self._log_probs(self._context(sequence)) for sequence in sequences]

    def _context(self, sequence: Sequence[int]) -> bytes:
        tail = sequence[-self._order :]
        try:
            return bytes(tail).replace(b"\xff", _NO_BYTE)
        except ValueError:
            unseen = _NO_BYTE[0]
            seen = (unseen if token == _END_BYTE else token for token in tail)
            return bytes(_END_BYTE if token == END_TOKEN else token for token in seen)

    def _compute_log_probs(self, context: bytes) -> array[float]:
        """The logarithms, all the contexts from the shortest to the longest mixed in."""
        short = context[-_SHORT_CONTEXT:]
        weight = 1.0
        longer: list[tuple[float, list[tuple[int, int]]]] = []
        for followers, total in reversed(self._longer_followers(context)):
            share = weight / (total + len(followers))
            longer.append((share, followers))
            weight = share * len(followers)
        mixed = [weight * prob for prob in self._short_probs(short)]
        for share, followers in longer:
            for token, count in followers:
                mixed[token] += share * count
        return array("d", map(math.log, mixed))

    def _longer_followers(self, context: bytes) -> list[tuple[list[tuple[int, int]], int]]:
        """What followed the ends of a context, from the first that is not short to what recurs."""
        found = []
        for length in range(_SHORT_CONTEXT + 1, len(context) + 1):
            followers, total = self._followers(context[-length:])
            if not total:
                break
            found.append((followers, total))
        return found

    def _compute_short_probs(self, context: bytes) -> list[float]:
        """The same for a context so short that nearly all of them recur: whole, to build upon."""
        probs = self._short_probs(context[1:]) if context else [1 / VOCAB_SIZE] * VOCAB_SIZE
        followers, total = self._followers(context)
        if not total:
            return probs
        share = 1 / (total + len(followers))
        mixed = [share * len(followers) * prob for prob in probs]
        for token, count in followers:
            mixed[token] += share * count
        return mixed

    def _count_followers(self, context: bytes) -> tuple[list[tuple[int, int]], int]:
        """What followed a context and how often, and how often anything did."""
        place, grams, totals = len(context), self._grams, self._totals
        low = bisect_left(grams, context)
        high = bisect_left(grams, context + _BEYOND, low)
        counts: dict[int, int] = {}
        for index in range(low, high):
            byte = grams[index][place]
            counts[byte] = counts.get(byte, 0) + totals[index + 1] - totals[index]
        ends = counts.pop(_END_BYTE, 0)
        followers = sorted(counts.items())
        if ends:
            followers.append((END_TOKEN, ends))
        return followers, totals[high] - totals[low]


@functools.cache
def default_model() -> NgramModel:
    """The model counted from the prose of Python's help topics, made once for each process.

    Takes some 0.1 seconds the first time: call it in a worker thread where that matters.
    """
    return NgramModel(english_texts())
