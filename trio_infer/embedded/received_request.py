"""A request as the coordinator took it, and what has become of it."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import attrs

__all__ = ["ReceivedRequest", "State"]

State: TypeAlias = Literal[
    "waiting", "running", "aborting", "aborted", "completed", "failed", "lost"
]


@attrs.frozen(kw_only=True)
class ReceivedRequest:
    """A request that a coordinator has taken, as it stood when it was asked for.

    Attributes:
        request_id: the coordinator's number for it, not its client's: they count up from 0.
        engine: the index of the engine that it went to.
        prompt: text or token ids, as they came.
        sampling_params: as they came: megatron-core's names, in a dict.
        received_at: when it came, by trio's clock.
        state: ``"waiting"`` for its turn, or ``"running"``; ``"aborting"``, if it has been told to
            stop and has not yet; ``"aborted"``; ``"completed"``, which is decoded to the end;
            ``"failed"``, or ``"lost"`` with its engine.
        generated_length: tokens generated for it so far.
    """

    request_id: int
    engine: int
    prompt: str | list[int]
    sampling_params: dict[str, Any]
    received_at: float
    state: State = "waiting"
    generated_length: int = 0
