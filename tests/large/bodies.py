"""Finished requests that are large, packed by hand: packing one would take longer than its test."""

from __future__ import annotations

import random
from typing import Any

import msgpack

__all__ = ["large_reply"]

TOP_K = 8


def large_reply(tokens: int, layers: int, **fields: Any) -> bytes:
    """A finished request with log probs, and with the routing indices of a mixture of experts.

    Args:
        tokens: how many were generated.
        layers: a token has `TOP_K` indices for each, which take nine bytes in all.
        **fields: what it holds besides.
    """
    rng = random.Random(0)
    row = msgpack.packb([[rng.randrange(128) for _ in range(TOP_K)] for _ in range(layers)])
    parts = {
        "request_id": msgpack.packb(1000),
        "status": msgpack.packb("COMPLETED"),
        "generated_tokens": msgpack.packb([rng.randrange(150_000) for _ in range(tokens)]),
        "generated_log_probs": msgpack.packb([-rng.random() for _ in range(tokens)]),
        "routing_indices": b"\x92\xa6tensor\xdd" + tokens.to_bytes(4, "big") + row * tokens,
        **{name: msgpack.packb(value) for name, value in fields.items()},
    }
    assert len(parts) < 16
    return bytes([0x80 + len(parts)]) + b"".join(
        msgpack.packb(name) + part for name, part in parts.items()
    )
