"""What arrives in the very tick of something else."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio_infer import InferenceClient
    from trio_infer.protocol.packing import Frames

__all__ = ["arrive", "hear_by"]


def arrive(client: InferenceClient) -> None:
    """Lets what has been sent to a client arrive, here and now: no other task runs meanwhile."""
    connection = client._exchange._transport._current
    assert connection is not None
    while not connection.socket.drain(connection.deliver):
        pass  # it stops after some milliseconds, for others' sake


def hear_by(client: InferenceClient, on_frames: Callable[[Frames], None]) -> None:
    """Calls something with all that arrives, in the place of the client's exchange."""
    connection = client._exchange._transport._current
    assert connection is not None
    connection.on_frames = on_frames
