"""What a prefill leaves behind for another deployment to go on from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

__all__ = ["KVHandoff"]


@attrs.frozen
class KVHandoff:
    """KV cache blocks that an engine keeps pinned, and how to get at them.

    Made by `InferenceClient.prefill`; to be passed as ``kv_handoff`` to a client of the deployment
    that decodes.

    Attributes:
        kv_meta: where the blocks are; opaque, the engines' own.
        src_block_ids: which blocks they are.
        request_id: the prefill engine's number of the request, by which they are released.
    """

    kv_meta: Mapping[str, Any]
    src_block_ids: Sequence[int]
    request_id: int
