"""What an engine remembers of prompts: the blocks whose KV it has, known by their hashes."""

from __future__ import annotations

from collections import OrderedDict
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from ..protocol.hashing import hash_blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PrefixCache"]

MAX_BLOCKS: Final = 2**16
"""So many blocks are kept; beyond them, those go that were not used for longest."""


class PrefixCache:
    """The blocks of earlier prompts.

    Args:
        block_size: how many tokens make a block.
        max_blocks: how many are kept.
    """

    def __init__(self, block_size: int, *, max_blocks: int = MAX_BLOCKS) -> None:
        self.block_size = block_size
        self._max_blocks = max_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def hashes(self, tokens: Sequence[int], *, salt: str | None = None) -> list[int]:
        """The hashes of a prompt's complete blocks."""
        return hash_blocks(tokens, self.block_size, salt=salt)

    def take(self, hashes: Sequence[int]) -> int:
        """Keeps the blocks of a prompt, and returns how many tokens of it were known already."""
        known = sum(1 for _ in takewhile(self._blocks.__contains__, hashes))
        for block in reversed(hashes):  # the first are the last to go: without them none is found
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)
        return known * self.block_size
