"""As much of a completion as there is by a deadline."""

from __future__ import annotations

import math
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

import attrs
import trio

from .errors import ConnectionLost
from .fanout.completing import check_client
from .models import Completion, TokenDelta
from .models.scalars import to_seconds
from .streams import CompletionStream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .client import InferenceClient
    from .models import KVHandoff, Prompt, SamplingParams, SupportsSerialize

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
            arriving = _Arriving(await stack.enter_async_context(block))
        with trio.move_on_at(deadline):
            return await arriving.whole()
        if block.finished:  # in the very moment of the deadline
            return await block.result()
        if dialect.can_abort:
            return await arriving.cut_short(patience)
        return arriving.so_far()


def _or_for_ever(value: object, name: str) -> float:
    if isinstance(value, float) and value == math.inf:
        return math.inf
    return to_seconds(value, name)


@attrs.define(eq=False)
class _Arriving:
    """What has arrived of a request that was handed over just now."""

    _stream: CompletionStream[Completion]
    _began: float = attrs.field(factory=trio.current_time, init=False)
    _first_at: float | None = attrs.field(default=None, init=False)
    _deltas: list[TokenDelta] = attrs.field(factory=list, init=False)

    async def whole(self) -> Completion:
        """The completion, waited for; what comes before it is kept. May be cancelled."""
        async for delta in self._stream:
            self._keep(delta)
        return await self._stream.result()

    async def cut_short(self, grace: float) -> Completion:
        """Aborts it, and returns the engine's last reply, or after the grace what has arrived."""
        self._take()  # before a loss of the connection takes it
        try:
            with trio.move_on_after(grace):
                return await self._stream.finish_early()
            if self._stream.finished:  # in the very moment that the grace was over
                return await self._stream.result()
        except ConnectionLost:
            return self._completion()  # noqa: ASYNC910 - the loss was waited for
        return self.so_far()

    def so_far(self) -> Completion:
        """What has arrived. The request goes on."""
        self._take()
        return self._completion()

    def _keep(self, delta: TokenDelta) -> None:
        if self._first_at is None:
            self._first_at = trio.current_time()
        self._deltas.append(delta)

    def _take(self) -> None:
        """Takes what has arrived and was not received."""
        with suppress(trio.WouldBlock):
            self._keep(self._stream.receive_nowait())

    def _completion(self) -> Completion:
        deltas = self._deltas
        tokens = [token for delta in deltas for token in delta.tokens]
        return Completion(
            request_id=self._stream.request_id,
            generated_tokens=tokens,
            generated_length=len(tokens),
            generated_log_probs=[p for delta in deltas for p in delta.log_probs or ()] or None,
            generated_top_n_logprobs=[
                entry for delta in deltas for entry in delta.top_n_logprobs or ()
            ]
            or None,
            finish_reason="abort",
            from_deltas=True,
            latency=trio.current_time() - self._began,
            time_to_first_token=None if self._first_at is None else self._first_at - self._began,
            status="UNKNOWN",
        )
