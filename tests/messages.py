"""Messages as clients send them, and what clients know of them, without a client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from trio_infer.protocol.dialect import Kind
from trio_infer.protocol.packing import pack

if TYPE_CHECKING:
    from trio_infer.protocol.client_codec import ClientCodec, Submission

__all__ = ["Known", "laid_out"]


@attrs.frozen(kw_only=True)
class Known:
    """What a client knows by itself of a request."""

    request_id: int = 7
    latency: float = 0.5
    time_to_first_token: float | None = None
    asked: Mapping[str, Any] = attrs.field(factory=dict)
    aborted: bool = False


def laid_out(
    codec: ClientCodec,
    prompt: str | list[int],
    sampling_params: dict[str, Any],
    kind: Kind = Kind.SUBMIT_REQUEST,
    **others: Any,
) -> Submission:
    """A request but for its id."""
    parts = {"prompt": prompt, "sampling_params": sampling_params, **others}
    return codec.lay_out(kind, {name: pack(part) for name, part in parts.items()})
