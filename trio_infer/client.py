"""The client: what users call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic

import trio

from .engines import EngineControl
from .generation import generate
from .groups import RequestGroup
from .handoff import Heir, Prefill
from .models.result import ResultT
from .models.scalars import UINT64_MAX, to_int, to_limit
from .protocol.detokenizing import check_tokenizer
from .protocol.dialect import Kind
from .reply import Terms
from .request import Request
from .streams import CompletionStream

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager

    from .lifetime import Lifetime
    from .models import (
        ClientStatistics,
        Completion,
        KVHandoff,
        Prompt,
        SamplingParams,
        SupportsSerialize,
    )
    from .protocol.detokenizing import Tokenizer
    from .protocol.dialect import Dialect
    from .protocol.preparation import Preparation, Prepared

__all__ = ["InferenceClient", "check_client"]


class InferenceClient(trio.abc.AsyncResource, Generic[ResultT]):
    """A connection to a coordinator, and the requests over it.

    Made by `open_client`, or by `connect_client`.

    Any task of the same trio run may use it. When the connection breaks, requests in flight raise
    `ConnectionLost`, the client connects again by itself, and new requests wait for that.

    Attributes:
        address: of the coordinator.
        dialect: what it speaks, and what that has.
        deserialize: whether requests end in a `Completion`, or else in the fields of the reply.
        tokenizer: what makes text of its streams' tokens, if anything does.
        engines: control over the engines behind it.
    """

    def __init__(
        self,
        lifetime: Lifetime,
        *,
        address: str,
        preparation: Preparation,
        deserialize: bool,
        tokenizer: Tokenizer | None,
    ) -> None:
        self.address = address
        self.dialect: Dialect = preparation.codec.dialect
        self._preparation = preparation
        self.deserialize = deserialize
        self.tokenizer = tokenizer
        self._lifetime = lifetime
        self._exchange = lifetime.exchange
        self._terms = Terms(lifetime.exchange, deserialize)
        self.engines: EngineControl = EngineControl(
            self._exchange, close_timeout=lifetime.close_timeout
        )

    def __repr__(self) -> str:
        return f"<InferenceClient of {self.address}, {self.statistics().in_flight} in flight>"

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | SupportsSerialize | None = None,
        *,
        multi_modal_data: Mapping[str, Any] | None = None,
        offload_params: object = None,
        kv_handoff: KVHandoff | None = None,
    ) -> ResultT:
        """Runs a request to its end.

        Waits for a connection if there is none. Cancelled before the request is handed over,
        nothing has been sent; cancelled later, ABORT is sent before the cancellation moves on.
        (Where ``dialect.can_abort`` is false the engine goes on, and its late reply is dropped.)

        Args:
            prompt: text, or token ids as any sequence or array of ints.
            sampling_params: how to sample; None for the defaults.
            multi_modal_data: the media that the prompt speaks of: a dict with ``"image"`` or
                ``"video"``, which is encoded ``bytes``, a list of them, or a dict of NumPy arrays
                or torch tensors (``imgs``, ``imgs_sizes``, ``num_tiles`` and the int
                ``num_img_embeddings_per_tile``; of a video ``imgs``, ``imgs_sizes``,
                ``num_frames``); and ``"media_tokens_preexpanded"``, if the prompt has all the
                placeholder tokens already. To be left unchanged until the request is handed over.
            offload_params: passed on to the engine as they are: what MessagePack can carry, with
                ``str`` for keys.
            kv_handoff: what another deployment's `prefill` has computed of this very prompt, which
                has to be token ids. Not together with log probs, media, or offload parameters.

        Returns:
            A `Completion`; from a client with ``deserialize=False``, the fields of the reply.

        Raises:
            TypeError, ValueError: for a wrong argument, before anything is sent.
            UnsupportedByDialect: the coordinator's dialect has no words for what is asked;
                nothing was sent.
            RequestFailed: the engine gave up on the request.
            ConnectionLost: the connection broke before the reply came.
            RemoteProtocolError: the reply makes no sense.
            trio.ClosedResourceError: the client is closed.
        """
        result: ResultT = await generate(
            self._terms,
            self._preparation.prepare(
                prompt,
                sampling_params,
                multi_modal_data=multi_modal_data,
                offload_params=offload_params,
                kv_handoff=kv_handoff,
            ),
        )
        return result

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | SupportsSerialize | None = None,
        *,
        multi_modal_data: Mapping[str, Any] | None = None,
        offload_params: object = None,
        kv_handoff: KVHandoff | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> CompletionStream[ResultT]:
        """A request whose tokens are received while it runs, for use in ``async with``.

        Entering the block waits for a connection, if there is none, and hands the request over.
        Leaving it ends the request.

        Args:
            prompt: text, or token ids as any sequence or array of ints.
            sampling_params: how to sample; None for the defaults.
            multi_modal_data: as `generate` takes it.
            offload_params: as `generate` takes it.
            kv_handoff: as `generate` takes it.
            tokenizer: what makes text of its tokens; None for the client's, if that has one.

        Raises:
            TypeError, ValueError: for a wrong argument.
            UnsupportedByDialect: the coordinator's dialect has no words for what is asked.
        """
        own_tokenizer = check_tokenizer(tokenizer)
        prepared = self._preparation.prepare(
            prompt,
            sampling_params,
            multi_modal_data=multi_modal_data,
            offload_params=offload_params,
            kv_handoff=kv_handoff,
            streaming=True,
        )
        return CompletionStream(
            self._make_request(prepared),
            self.tokenizer if own_tokenizer is None else own_tokenizer,
        )

    def prefill(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | SupportsSerialize | None = None,
        *,
        multi_modal_data: Mapping[str, Any] | None = None,
        offload_params: object = None,
    ) -> AbstractAsyncContextManager[KVHandoff, None]:
        """Computes a prompt for another deployment to go on from, for use in ``async with``.

        Entering the block waits for the engine to be done; it then keeps the KV cache blocks of the
        prompt until the block ends, which releases them, however it ends: by the engine's number,
        over the connection that they came from. If that is gone they cannot be released, which
        ``statistics().unreleased`` counts. Cancelled while entering, it leaves nothing behind: the
        request is aborted, and what the engine's last reply brings all the same is released.

        Args:
            prompt: text, or token ids, which is what the other deployment will want.
            sampling_params: how to sample the tokens that the engine generates behind the prompt:
                one, where they name no budget. Newer engines hand the first one over, and the other
                deployment goes on behind it: so give both the same sampling.
            multi_modal_data: as `generate` takes it.
            offload_params: as `generate` takes it.

        Raises:
            TypeError, ValueError: for a wrong argument.
            UnsupportedByDialect: the dialect knows no handoff; at once, as those before.
            RequestFailed, ConnectionLost: on entering, as `generate` raises them.
            RemoteProtocolError: on entering, also if the engine kept no blocks.
            trio.ClosedResourceError: on entering, if the client is closed.
        """
        prepared = self._preparation.prepare_prefill(
            prompt,
            sampling_params,
            multi_modal_data=multi_modal_data,
            offload_params=offload_params,
        )
        heir = Heir(self._exchange)
        request: Request[Completion] = Request(
            self._exchange, prepared, deserialize=True, heir=heir
        )
        return Prefill(self._exchange, request, heir)

    def open_group(self, *, max_concurrency: int | None = None) -> RequestGroup[ResultT]:
        """Many requests at once, for use in ``async with``: thousands, by one memory channel.

        Leaving the block aborts what runs. To get them all done in order, or as they finish, see
        `gather` and `as_completed`.

        Args:
            max_concurrency: how many requests may run, or have finished and wait to be received,
                at a time; None for any number.

        Raises:
            TypeError, ValueError: for a wrong argument.
        """
        return RequestGroup(
            self._terms,
            self._preparation,
            max_concurrency=to_limit(max_concurrency, "max_concurrency"),
        )

    def release_handoff(self, request_id: int) -> None:
        """Releases a handoff whose handle is kept elsewhere than in a block of `prefill`.

        Returns at once; nothing tells whether there was one.

        Args:
            request_id: `KVHandoff.request_id`, the engine's number, of this very connection: on
                another one it is nobody's, or somebody else's.

        Raises:
            TypeError, ValueError: for what is no such number.
            UnsupportedByDialect: the dialect knows no handoff.
            ConnectionLost: there is no connection.
            trio.ClosedResourceError: the client is closed.
        """
        number = to_int(request_id, "request_id", most=UINT64_MAX)
        if number < 0:
            msg = f"request_id must be an engine's number, not {number}"
            raise ValueError(msg)
        self._exchange.signals.release_by_number(number)

    def shutdown_coordinator(self) -> None:
        """Asks the coordinator to end, with all its clients' requests. Its engines live on.

        Returns at once; that it has ended shows by the connection's loss.

        Raises:
            ConnectionLost: there is no connection.
            trio.ClosedResourceError: the client is closed.
        """
        self._exchange.signals.send(Kind.SHUTDOWN)

    def _make_request(self, prepared: Prepared) -> Request[ResultT]:
        return Request(self._exchange, prepared, deserialize=self.deserialize)

    def statistics(self) -> ClientStatistics:
        """The counters as they stand."""
        return self._exchange.statistics()

    async def aclose(self) -> None:
        """Closes the client: what leaving its block does. Later uses of it raise.

        Aborts what runs and waits for the coordinator's last replies, shielded from cancellation
        and bounded by ``close_timeout``. Tasks that wait for something of this client get
        `trio.ClosedResourceError`.
        """
        await self._lifetime.leave()
        await trio.lowlevel.checkpoint()


def check_client(client: object) -> None:
    """Refuses what is no client, or one whose requests do not end in a `Completion`.

    Raises:
        TypeError, ValueError: for these two.
    """
    if not isinstance(client, InferenceClient):
        msg = f"client must be an InferenceClient, not {type(client).__name__}"
        raise TypeError(msg)
    if not client.deserialize:
        msg = "this needs completions: open the client with deserialize=True"
        raise ValueError(msg)
