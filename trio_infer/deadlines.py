"""As much of a completion as there is by a deadline."""

from __future__ import annotations

import math
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

import trio

from .client import check_client
from .errors import ConnectionLost
from .models.scalars import to_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .client import InferenceClient
    from .models import Completion, KVHandoff, Prompt, SamplingParams, SupportsSerialize
    from .streams import CompletionStream

__all__ = ["generate_within"]


@trio.lowlevel.enable_ki_protection
async def generate_within(
    client: InferenceClient[Completion],
    seconds: float,
    prompt: Prompt,
    sampling_params: SamplingParams | SupportsSerialize | None = None,
    *,
    grace: float = 1.0,
    multi_modal_data: Mapping[str, Any] | None = None,
    offload_params: object = None,
    kv_handoff: KVHandoff | None = None,
) -> Completion:
    """Runs a request to its end, or to a deadline, and returns what there is by then.

    At the deadline the request is aborted, and the engine's last reply is the completion, with
    ``finish_reason`` ``"abort"``. If that does not come within ``grace``, or the connection breaks
    meanwhile, the completion is made of the tokens that have arrived and of what came with them;
    its ``from_deltas`` is true then. Where ``client.dialect.can_abort`` is false this is done at
    the deadline, without a wait: the engine goes on, and its late reply is dropped.

    Cancelled, it ends the request as leaving the block of a stream does, and returns nothing.

    Args:
        client: of the coordinator.
        seconds: how long it may take from the call on, waiting for a connection and for its turn
            included; ``math.inf`` for as long as it takes.
        prompt: as `InferenceClient.generate` takes it.
        sampling_params: as `InferenceClient.generate` takes them.
        grace: how many seconds to wait for the engine's last reply, beyond the deadline. A running
            engine answers an abort on its next step. The default leaves time for a long one, and
            is not long to wait for engines that are paused or dead; ``math.inf`` waits for ever.
        multi_modal_data: as `InferenceClient.generate` takes it.
        offload_params: as `InferenceClient.generate` takes them.
        kv_handoff: as `InferenceClient.generate` takes it.

    Raises:
        trio.TooSlowError: the deadline came before the request could be handed over: there is
            nothing to keep, and nothing was sent.
        UnsupportedByDialect: as `InferenceClient.generate` raises it; and where the dialect has
            neither partial results nor aborts, so that there would be nothing to return.
        TypeError, ValueError: for a wrong argument, before anything is sent.
        RequestFailed, ConnectionLost, RemoteProtocolError, trio.ClosedResourceError: as
            `InferenceClient.generate` raises them, the second one only before the deadline.
    """
    check_client(client)
    deadline = trio.current_time() + _or_for_ever(seconds, "seconds")
    patience = _or_for_ever(grace, "grace")
    dialect = client.dialect
    if not (dialect.can_stream or dialect.can_abort):
        dialect.refuse(
            "partial results to keep at a deadline, and no abort",
            "put a deadline around generate(), which keeps nothing",
        )
    block = client.stream(
        prompt,
        sampling_params,
        multi_modal_data=multi_modal_data,
        offload_params=offload_params,
        kv_handoff=kv_handoff,
    )
    async with AsyncExitStack() as stack:
        with trio.fail_at(deadline):
            stream = await stack.enter_async_context(block)
        with trio.move_on_at(deadline):
            return await stream.result()
        if stream.finished:  # in the very moment of the deadline
            return await stream.result()
        if dialect.can_abort:
            with suppress(ConnectionLost):
                return await _cut_short(stream, patience)
        return stream._so_far()  # noqa: SLF001 - which is for here alone


async def _cut_short(stream: CompletionStream[Completion], grace: float) -> Completion:
    """Aborts it, and returns the engine's last reply, or after the grace what has arrived."""
    with trio.move_on_after(grace):
        return await stream.finish_early()
    if stream.finished:  # in the very moment that the grace was over
        return await stream.result()
    return stream._so_far()  # noqa: SLF001 - as above


def _or_for_ever(value: object, name: str) -> float:
    if isinstance(value, float) and value == math.inf:
        return math.inf
    return to_seconds(value, name)
