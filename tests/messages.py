"""Messages as clients send them, without a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trio_infer.protocol.dialect import Kind
from trio_infer.protocol.packing import pack

if TYPE_CHECKING:
    from trio_infer.protocol.client_codec import ClientCodec, Submission

__all__ = ["laid_out"]


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
