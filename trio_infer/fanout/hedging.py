"""A second copy of a request whose first says nothing."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import trio

from ..background import running_behind
from ..client import check_client
from ..groups import check_request
from ..models import Completion
from ..models.scalars import to_seconds
from ..protocol.detokenizing import NO_TEXT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..client import InferenceClient
    from ..models import GenerateRequest
    from ..streams import CompletionStream

__all__ = ["hedge"]


async def hedge(
    client: InferenceClient[Completion], request: GenerateRequest, *, after: float
) -> Completion:
    """Runs a request, and a second copy of it if the first says nothing for a while.

    The first completion is returned, and the other copy aborted. Cancelled, it aborts both. Where
    ``client.dialect.can_stream`` is false, a request says nothing before its end.

    Args:
        client: of the coordinator.
        request: the request.
        after: how many seconds after it was handed over the second copy is, unless a first token
            or the final reply has come by then.

    Raises:
        RequestFailed, ConnectionLost, RemoteProtocolError: as `InferenceClient.generate` raises
            them; if there were two copies, both have failed, and this is the first one's error.
        TypeError, ValueError, UnsupportedByDialect: for a wrong argument, or a wrong request.
        trio.ClosedResourceError: the client is closed.
    """
    check_client(client)
    check_request(request)
    seconds = to_seconds(after, "after")
    async with _stream(client, request) as first:
        with trio.move_on_after(seconds) as silence:  # noqa: ASYNC912 - receive can be cancelled
            with suppress(trio.EndOfChannel):  # it has finished, without a token
                await first.receive()
        if not silence.cancelled_caught:
            return await first.result()
        return await _first_completion(first.result, partial(_run, client, request))


def _stream(
    client: InferenceClient[Completion], request: GenerateRequest
) -> CompletionStream[Completion]:
    return client.stream(
        request.prompt,
        request.sampling_params,
        multi_modal_data=request.multi_modal_data,
        offload_params=request.offload_params,
        kv_handoff=request.kv_handoff,
        tokenizer=NO_TEXT,
    )


async def _run(client: InferenceClient[Completion], request: GenerateRequest) -> Completion:
    async with _stream(client, request) as stream:
        return await stream.result()


async def _first_completion(*copies: Callable[[], Awaitable[Completion]]) -> Completion:
    """The first completion; or the first copy's error, if all have failed."""
    send, receive = trio.open_memory_channel[tuple[int, Completion | Exception]](len(copies))

    async def run(place: int) -> None:  # noqa: ASYNC910 - the copies do wait
        try:
            result: Completion | Exception = await copies[place]()
        except Exception as error:  # noqa: BLE001 - raised, if the other copy fails as well
            result = error
        send.send_nowait((place, result))

    errors: dict[int, Exception] = {}
    async with running_behind(*(partial(run, place) for place in range(len(copies)))):
        while len(errors) < len(copies):
            place, result = await receive.receive()
            if not isinstance(result, Exception):
                return result
            errors[place] = result
    raise errors[0]
