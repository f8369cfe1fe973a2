"""The KV cache blocks that a prefill engine keeps for others, and what an engine asks of them.

An n-gram model has no such cache. What travels in place of it is a digest of the prompt, so that a
decode engine can tell a handoff that is not its request's; and within one process it can tell as
well whether the blocks are still there.
"""

from __future__ import annotations

import uuid
import weakref
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from ..protocol.hashing import hash_blocks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["KVBlocks", "check_handoff"]

BLOCK_TOKENS: Final = 16
BACKEND: Final = "embedded"

_all: Final[weakref.WeakValueDictionary[str, KVBlocks]] = weakref.WeakValueDictionary()


class KVBlocks:
    """The pinned blocks of one engine."""

    def __init__(self) -> None:
        self.name: str = uuid.uuid4().hex
        self._pinned: dict[int, list[int]] = {}
        self._numbers = count()
        _all[self.name] = self

    @property
    def pinned(self) -> tuple[int, ...]:
        """The requests whose blocks are kept, by the engine's numbers."""
        return tuple(self._pinned)

    def pin(self, request_id: int, prompt: Sequence[int]) -> dict[str, Any]:
        """Keeps the blocks of a prompt, and says how to get at them."""
        blocks = [next(self._numbers) for _ in range(0, len(prompt), BLOCK_TOKENS)]
        self._pinned[request_id] = blocks
        return {
            "request_id": request_id,
            "block_ids": list(blocks),
            "kv_meta": {
                "transfer_backend": BACKEND,
                "engine": self.name,
                "prompt_digest": _digest(prompt),
            },
        }

    def release(self, request_id: int) -> None:
        """Lets go of blocks; of a request that has none, nothing happens."""
        self._pinned.pop(request_id, None)

    def release_all(self) -> None:
        """Lets go of everything: the engine is gone."""
        self._pinned.clear()

    def has(self, block_ids: Sequence[int]) -> bool:
        """Whether these are the blocks of a prompt that is kept."""
        return list(block_ids) in self._pinned.values()


def check_handoff(
    prompt: Sequence[int], kv_meta: Mapping[str, Any], block_ids: Sequence[int]
) -> str | None:
    """What is wrong with a handoff; None if nothing is."""
    if kv_meta.get("transfer_backend") != BACKEND:
        return f"no transfer backend {kv_meta.get('transfer_backend')!r:.40} here"
    if kv_meta.get("prompt_digest") != _digest(prompt):
        return "the blocks are those of another prompt"
    source = _all.get(str(kv_meta.get("engine")))
    if source is not None and not source.has(block_ids):
        return "the blocks have been released, or never were there"
    return None


def _digest(prompt: Sequence[int]) -> int:
    return hash_blocks(prompt, len(prompt))[0]
