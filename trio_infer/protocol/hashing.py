"""Hashes of a prompt's blocks, by which a coordinator finds the engine that has them cached.

Each hash covers its block and all before it, so two prompts share as many hashes as leading blocks.
The formula is the coordinator's own; a client that hashes spares it the work.
"""

from __future__ import annotations

import enum
import sys
from array import array
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import attrs

from ..models.scalars import to_count

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PrefixCachingCoordinatorPolicy", "PrefixHashing", "hash_blocks"]

_NO_PARENT: Final = bytes(32)
_SALT_PREFIX: Final = b"megatron-prefix-cache-salt-v1\0"
_MODULUS: Final = 2**63 - 1
_HASH_BYTES: Final = 8
_TOKEN_BYTES: Final = 8


def hash_blocks(tokens: Sequence[int], block_size: int, *, salt: str | None = None) -> list[int]:
    """The hash of each complete block, from 1 to ``2**63 - 1``. Linear in the number of tokens.

    Args:
        tokens: token ids that fit signed 64 bits.
        block_size: how many tokens make a block, from 1.
        salt: what else the cached values depend on, such as the key of a prompt's media.
    """
    complete = array("q", tokens[: len(tokens) // block_size * block_size])
    if sys.byteorder == "big":  # pragma: no cover - the wire's order is the little one
        complete.byteswap()
    data = memoryview(complete.tobytes())
    step = block_size * _TOKEN_BYTES
    parent = _NO_PARENT if salt is None else sha256(_SALT_PREFIX + salt.encode()).digest()
    hashes = []
    for start in range(0, len(data), step):
        block = sha256(parent)
        block.update(data[start : start + step])
        parent = block.digest()
        hashes.append(int.from_bytes(parent[:_HASH_BYTES], "little") % _MODULUS + 1)
    return hashes


class PrefixCachingCoordinatorPolicy(enum.Enum):
    """How a coordinator chooses an engine, and so whether it reads hashes.

    Attributes:
        LONGEST_PREFIX: by how much of the prompt its cache knows, and by how busy it is.
        FIRST_PREFIX_BLOCK: likewise, but only the first block counts.
        LOAD_BALANCED: by how busy it is; hashes are not read.
    """

    LONGEST_PREFIX = "longest_prefix"
    FIRST_PREFIX_BLOCK = "first_prefix_block"
    LOAD_BALANCED = "load_balanced"


def _block_size(value: object) -> int | None:
    return None if value is None else to_count(value, "block_size_tokens")


def _policy(value: object) -> PrefixCachingCoordinatorPolicy | None:
    """A policy by itself, by name, or as megatron-core's own enum has it."""
    if value is None:
        return None
    name = value.value if isinstance(value, enum.Enum) else value
    try:
        return PrefixCachingCoordinatorPolicy(name)
    except ValueError:
        known = ", ".join(repr(policy.value) for policy in PrefixCachingCoordinatorPolicy)
        msg = f"prefix_caching_coordinator_policy must be one of {known}, not {value!r:.80}"
        raise ValueError(msg) from None


@attrs.frozen
class PrefixHashing:
    """What a client sends for hashes, which depends on how its coordinator is set up.

    None tells the coordinator that this client did not hash, so it does; an empty list, that there
    is nothing to hash or nobody who would read it. Mistaking one for the other turns prefix-aware
    routing into mere load balancing, without a word.
    """

    block_size: int | None = attrs.field(default=None, converter=_block_size)
    policy: PrefixCachingCoordinatorPolicy | None = attrs.field(default=None, converter=_policy)

    @property
    def reads_hashes(self) -> bool:
        """Whether the policy has any use for hashes."""
        return self.policy not in (None, PrefixCachingCoordinatorPolicy.LOAD_BALANCED)

    @property
    def is_wanted(self) -> bool:
        """Whether anything is sent for hashes, if only that there are none."""
        return self.block_size is not None and self.policy is not None

    def of(self, prompt: str | list[int], *, salt: str | None = None) -> list[int] | None:
        """The hashes to send with a prompt; None for text, which only the coordinator tokenizes."""
        if self.block_size is None or not self.is_wanted or isinstance(prompt, str):
            return None
        if not self.reads_hashes:
            return []
        return hash_blocks(prompt, self.block_size, salt=salt)
