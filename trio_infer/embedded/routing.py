"""Which engine gets a request: the least loaded, or one that knows how the prompt begins.

As megatron-core's coordinator chooses. It remembers what it gave to whom, not what the engines have
still cached.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from ..protocol.hashing import PrefixCachingCoordinatorPolicy, PrefixHashing
from .fleet import Fleet

__all__ = ["Router"]

ALPHA: Final = 0.5
"""How much a known beginning counts, against free room for the rest."""

MAX_KNOWN_BLOCKS: Final = 2**16
"""So many hashes are remembered; beyond them, those go that were not seen for longest."""


@attrs.define(eq=False)
class Router:
    """Chooses engines, and remembers which hashes went to which.

    Attributes:
        fleet: who can be chosen, as far as they are left.
        hashing: how the coordinator hashes prompts, if at all.
        tokenize: makes token ids of text.
    """

    fleet: Fleet
    hashing: PrefixHashing
    tokenize: Callable[[str], list[int]]
    _seen: OrderedDict[int, dict[int, int]] = attrs.field(factory=OrderedDict)
    _assignments: int = 0

    def route(
        self,
        prompt: str | list[int],
        block_hashes: list[int] | None,
        *,
        salt: str | None = None,
    ) -> int:
        """The index of the engine that gets a request.

        Args:
            prompt: text or token ids.
            block_hashes: what the client sent; None if it left the hashing to the coordinator.
            salt: the key of the media beside the prompt.

        Raises:
            LookupError: no engine is left.
        """
        if not self.fleet.left:
            msg = "no engine is left"
            raise LookupError(msg)
        hashes = self._relevant(prompt, block_hashes, salt)
        index = self._best(hashes)
        self._remember(index, hashes)
        return index

    def _relevant(
        self, prompt: str | list[int], sent: list[int] | None, salt: str | None
    ) -> list[int]:
        hashing = self.hashing
        if hashing.block_size is None or not hashing.reads_hashes:
            return []
        if sent is None:
            sent = self._hashes(prompt, salt)
        only_first = hashing.policy is PrefixCachingCoordinatorPolicy.FIRST_PREFIX_BLOCK
        return sent[:1] if only_first else sent

    def _hashes(self, prompt: str | list[int], salt: str | None) -> list[int]:
        """None of what has no token ids, or is none, which admission refuses."""
        try:
            tokens = self.tokenize(prompt) if isinstance(prompt, str) else prompt
            return self.hashing.of(tokens, salt=salt) or []
        except (TypeError, OverflowError, ValueError):
            return []

    def _best(self, hashes: Sequence[int]) -> int:
        """Of equally good engines the one that got a matching prompt last, else the first."""
        match, known_by = self._deepest(hashes)
        if not known_by:
            return self._least_loaded()

        def rank(index: int) -> tuple[float, int]:
            engine = self.fleet[index]
            free_share = max(0, engine.max_requests - engine.load) / engine.max_requests
            last = known_by.get(index, 0)
            return ALPHA * (match if last else 0.0) + (1 - ALPHA) * free_share, last

        return max(self.fleet.left, key=rank)

    def _least_loaded(self) -> int:
        return min(self.fleet.left, key=lambda index: self.fleet[index].load)

    def _deepest(self, hashes: Sequence[int]) -> tuple[float, dict[int, int]]:
        """How deep the deepest known block lies, as a share of all; and who got it, and when."""
        for depth in range(len(hashes), 0, -1):
            known_by = self._seen.get(hashes[depth - 1])
            if known_by is not None:
                return depth / len(hashes), known_by
        return 0.0, {}

    def _remember(self, index: int, hashes: Sequence[int]) -> None:
        self._assignments += 1
        for block in reversed(hashes):
            self._seen.setdefault(block, {})[index] = self._assignments
            self._seen.move_to_end(block)
        while len(self._seen) > MAX_KNOWN_BLOCKS:
            self._seen.popitem(last=False)
