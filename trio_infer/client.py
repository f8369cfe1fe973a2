"""The client: `open_client`, and what it opens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, overload

import trio

from .background import Background
from .lifetime import Lifetime
from .models.result import ResultT
from .models.scalars import to_flag, to_float, to_int, to_text
from .protocol.client_codec import ClientCodec
from .protocol.dialects import resolve_dialect
from .protocol.hashing import PrefixHashing
from .protocol.preparation import Preparation
from .request import Request
from .sockets import (
    Link,
    SocketOptions,
    ZmqContext,
    check_address,
    check_context,
    check_socket_options,
)
from .streams import CompletionStream

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from enum import Enum
    from types import TracebackType

    from .models import ClientStatistics, Completion, SamplingParams, SupportsSerialize
    from .protocol.dialect import Dialect
    from .protocol.preparation import Prepared
    from .protocol.prompt import Prompt

__all__ = ["InferenceClient", "open_client"]


MAX_HEARTBEAT_SECONDS: Final = 86_400.0
"""ZeroMQ counts milliseconds in 32 bits; a day is as good as for ever."""


@overload
def open_client(
    address: str,
    *,
    dialect: str | Dialect | None = None,
    deserialize: Literal[True] = True,
    block_size_tokens: int | None = None,
    prefix_caching_coordinator_policy: Enum | str | None = None,
    connect_timeout: float | None = 10.0,
    close_timeout: float = 5.0,
    heartbeat_timeout: float = 30.0,
    max_message_size: int = 256 * 2**20,
    socket_options: SocketOptions | None = None,
    context: ZmqContext | None = None,
) -> AbstractAsyncContextManager[InferenceClient[Completion]]: ...


@overload
def open_client(
    address: str,
    *,
    dialect: str | Dialect | None = None,
    deserialize: Literal[False],
    block_size_tokens: int | None = None,
    prefix_caching_coordinator_policy: Enum | str | None = None,
    connect_timeout: float | None = 10.0,
    close_timeout: float = 5.0,
    heartbeat_timeout: float = 30.0,
    max_message_size: int = 256 * 2**20,
    socket_options: SocketOptions | None = None,
    context: ZmqContext | None = None,
) -> AbstractAsyncContextManager[InferenceClient[dict[str, Any]]]: ...


@overload
def open_client(
    address: str,
    *,
    dialect: str | Dialect | None = None,
    deserialize: bool,
    block_size_tokens: int | None = None,
    prefix_caching_coordinator_policy: Enum | str | None = None,
    connect_timeout: float | None = 10.0,
    close_timeout: float = 5.0,
    heartbeat_timeout: float = 30.0,
    max_message_size: int = 256 * 2**20,
    socket_options: SocketOptions | None = None,
    context: ZmqContext | None = None,
) -> AbstractAsyncContextManager[InferenceClient[Any]]: ...


def open_client(
    address: str,
    *,
    dialect: str | Dialect | None = None,
    deserialize: bool = True,
    block_size_tokens: int | None = None,
    prefix_caching_coordinator_policy: Enum | str | None = None,
    connect_timeout: float | None = 10.0,
    close_timeout: float = 5.0,
    heartbeat_timeout: float = 30.0,
    max_message_size: int = 256 * 2**20,
    socket_options: SocketOptions | None = None,
    context: ZmqContext | None = None,
) -> AbstractAsyncContextManager[InferenceClient[Any]]:
    """A client for the length of an ``async with`` block.

    Entering connects and shakes hands. Leaving aborts what still runs, waits for the coordinator's
    last replies, since it crashes on a reply to a client that has gone, and closes. That is done
    in a cancelled scope as well, shielded and bounded by ``close_timeout``.

    What the block raises comes out as it is, in no ExceptionGroup.

    Args:
        address: of the coordinator, such as ``"tcp://coordinator:5555"``.
        dialect: what the coordinator speaks: ``"framed"``, ``"0.20"``, ``"0.19"``, ``"0.18"``, or
            such a `Dialect` itself. By default what ``TRIO_INFER_DIALECT`` in the environment
            says, or else ``"framed"``. It cannot be found out, and **sending another dialect
            can kill a coordinator**.
        deserialize: whether requests end in a `Completion`. Otherwise they end in the fields of
            the engine's reply as they came, in a dict, with ``latency`` in seconds added; deltas
            stay typed, and failures still raise.
        block_size_tokens: how many tokens make a block of the engines' prefix cache. With the
            policy as well, prompts of token ids are hashed here, which spares the coordinator the
            work; with one of the two alone the coordinator hashes.
        prefix_caching_coordinator_policy: by what the coordinator chooses an engine: the policy,
            its name, or megatron-core's own enum member. Block size and policy have to be those
            that the coordinator itself is set up with; others cost cache hits, without a sign.
        connect_timeout: seconds that connecting may take; None for no limit. A coordinator that was
            greeted and has not answered gets ``close_timeout`` on top, since it crashes when it
            answers a client that has gone.
        close_timeout: seconds that leaving may wait for the last replies.
        heartbeat_timeout: seconds of silence after which the coordinator counts as gone.
        max_message_size: bytes; a coordinator that sends a larger frame is disconnected.
        socket_options: further ZeroMQ options by name or number, such as CURVE keys; not those
            that this package sets by itself.
        context: the ZeroMQ context to use; by default the client has one of its own.

    Raises:
        UnsupportedByDialect: hashing is asked for, and the dialect has no block hashes; at once.
        TypeError, ValueError: for a wrong argument; at once, but for what only ZeroMQ can tell of
            an address or a socket option, which comes on entering.
        ConnectTimeout: on entering, when there was no handshake within ``connect_timeout``.
    """
    link = Link(
        heartbeat_timeout=_seconds(
            heartbeat_timeout, "heartbeat_timeout", least=0.001, most=MAX_HEARTBEAT_SECONDS
        ),
        max_message_size=_bytes(max_message_size, "max_message_size"),
        socket_options=check_socket_options(socket_options),
    )
    return _OpenClient(
        check_address(to_text(address, "address")),
        preparation=Preparation(
            ClientCodec(resolve_dialect(dialect)),
            PrefixHashing(block_size_tokens, prefix_caching_coordinator_policy),
        ),
        deserialize=to_flag(deserialize, "deserialize"),
        link=link,
        context=check_context(context),
        connect_timeout=(
            math.inf if connect_timeout is None else _seconds(connect_timeout, "connect_timeout")
        ),
        close_timeout=_seconds(close_timeout, "close_timeout"),
    )


def _seconds(value: float, name: str, *, least: float = 0.0, most: float = math.inf) -> float:
    seconds = to_float(value, name)
    if not least <= seconds <= most:
        span = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
        msg = f"{name} must be {span} seconds, not {seconds:g}"
        raise ValueError(msg)
    return seconds


def _bytes(value: int, name: str) -> int:
    size = to_int(value, name)
    if size < 1:
        msg = f"{name} must be at least 1 byte, not {size}"
        raise ValueError(msg)
    return size


class InferenceClient(trio.abc.AsyncResource, Generic[ResultT]):
    """A connection to a coordinator, and the requests over it. Made by `open_client`.

    Any task of the same trio run may use it. When the connection breaks, requests in flight raise
    `ConnectionLost`, the client connects again by itself, and new requests wait for that.

    Attributes:
        address: of the coordinator.
        dialect: what it speaks, and what that has.
    """

    def __init__(
        self, lifetime: Lifetime, *, address: str, preparation: Preparation, deserialize: bool
    ) -> None:
        self.address = address
        self.dialect: Dialect = preparation.codec.dialect
        self._preparation = preparation
        self._deserialize = deserialize
        self._lifetime = lifetime
        self._exchange = lifetime.exchange

    def __repr__(self) -> str:
        return f"<InferenceClient of {self.address}, {self.statistics().in_flight} in flight>"

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | SupportsSerialize | None = None,
        *,
        offload_params: object = None,
    ) -> ResultT:
        """Runs a request to its end.

        Waits for a connection if there is none. Cancelled before the request is handed over,
        nothing has been sent; cancelled later, ABORT is sent before the cancellation moves on.
        (Where ``dialect.can_abort`` is false the engine goes on, and its late reply is dropped.)

        Args:
            prompt: text, or token ids as any sequence or array of ints.
            sampling_params: how to sample; None for the defaults.
            offload_params: passed on to the engine as they are: what MessagePack can carry, with
                ``str`` for keys.

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
        prepared = self._preparation.prepare(prompt, sampling_params, offload_params=offload_params)
        return await self._make_request(prepared).run()

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | SupportsSerialize | None = None,
        *,
        offload_params: object = None,
    ) -> CompletionStream[ResultT]:
        """A request whose tokens are received while it runs, for use in ``async with``.

        Entering the block waits for a connection, if there is none, and hands the request over.
        Leaving it ends the request.

        Args:
            prompt: text, or token ids as any sequence or array of ints.
            sampling_params: how to sample; None for the defaults.
            offload_params: passed on to the engine as they are: what MessagePack can carry, with
                ``str`` for keys.

        Raises:
            TypeError, ValueError: for a wrong argument.
            UnsupportedByDialect: the coordinator's dialect has no words for what is asked.
        """
        prepared = self._preparation.prepare(
            prompt, sampling_params, offload_params=offload_params, streaming=True
        )
        return CompletionStream(self._make_request(prepared))

    def _make_request(self, prepared: Prepared) -> Request[ResultT]:
        return Request(self._exchange, prepared, deserialize=self._deserialize)

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


class _OpenClient:
    """The block of `open_client`.

    The client's tasks live in a nursery around the block, whose exceptions the block's own never
    meet: they come out bare.
    """

    def __init__(
        self,
        address: str,
        *,
        preparation: Preparation,
        deserialize: bool,
        link: Link,
        context: ZmqContext | None,
        connect_timeout: float,
        close_timeout: float,
    ) -> None:
        self._address = address
        self._preparation = preparation
        self._deserialize = deserialize
        self._link = link
        self._context = context
        self._connect_timeout = connect_timeout
        self._close_timeout = close_timeout
        self._lifetime: Lifetime | None = None
        self._background = Background()

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> InferenceClient[Any]:
        if self._lifetime is not None:
            msg = "open_client() opens once: call it again for another client"
            raise RuntimeError(msg)
        await trio.lowlevel.checkpoint_if_cancelled()
        self._lifetime = lifetime = Lifetime(
            self._address,
            codec=self._preparation.codec,
            link=self._link,
            context=self._context,
            close_timeout=self._close_timeout,
        )
        nursery = await self._background.open()
        try:
            nursery.start_soon(lifetime.serve)  # noqa: ASYNC113 - connect waits for its work
            await lifetime.connect(self._connect_timeout)
        except BaseException as error:
            await self._end(lifetime, error)  # noqa: ASYNC102 - shielded and bounded inside
            raise
        return InferenceClient(
            lifetime,
            address=self._address,
            preparation=self._preparation,
            deserialize=self._deserialize,
        )

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(  # noqa: ASYNC910 - a client that closed before is left at once
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._lifetime is not None:
            await self._end(self._lifetime, exc_value)  # noqa: ASYNC102 - shielded, bounded

    async def _end(self, lifetime: Lifetime, error: BaseException | None) -> None:
        try:
            await lifetime.leave()
        finally:
            await self._background.close(error)  # noqa: ASYNC102 - waits for what has ended
