"""The two doors to a client: `open_client`, whose block owns it, and `connect_client`."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, cast, overload

import trio

from .background import Background, check_task
from .client import InferenceClient
from .settings import Settings, check_options

if TYPE_CHECKING:
    from collections.abc import Iterable
    from enum import Enum
    from types import TracebackType

    from .lifetime import Lifetime
    from .models import Completion
    from .protocol.detokenizing import Tokenizer
    from .protocol.dialect import Dialect
    from .sockets import SocketOptions, ZmqContext

__all__ = ["ClientOptions", "connect_client", "open_client"]


class ClientOptions(TypedDict, total=False):
    """The options of `open_client`, but for ``deserialize``, for those who pass them on."""

    dialect: str | Dialect | None
    tokenizer: Tokenizer | None
    block_size_tokens: int | None
    prefix_caching_coordinator_policy: Enum | str | None
    connect_timeout: float | None
    close_timeout: float
    max_in_flight: int | None
    heartbeat_timeout: float
    max_message_size: int
    socket_options: SocketOptions | None
    context: ZmqContext | None
    instruments: Iterable[object]


@overload
def open_client(
    address: str, *, deserialize: Literal[True] = True, **options: Unpack[ClientOptions]
) -> AbstractAsyncContextManager[InferenceClient[Completion]]: ...


@overload
def open_client(
    address: str, *, deserialize: Literal[False], **options: Unpack[ClientOptions]
) -> AbstractAsyncContextManager[InferenceClient[dict[str, Any]]]: ...


@overload
def open_client(
    address: str, *, deserialize: bool, **options: Unpack[ClientOptions]
) -> AbstractAsyncContextManager[InferenceClient[Any]]: ...


def open_client(
    address: str,
    *,
    dialect: str | Dialect | None = None,
    deserialize: bool = True,
    tokenizer: Tokenizer | None = None,
    block_size_tokens: int | None = None,
    prefix_caching_coordinator_policy: Enum | str | None = None,
    connect_timeout: float | None = 10.0,
    close_timeout: float = 5.0,
    max_in_flight: int | None = None,
    heartbeat_timeout: float = 30.0,
    max_message_size: int = 256 * 2**20,
    socket_options: SocketOptions | None = None,
    context: ZmqContext | None = None,
    instruments: Iterable[object] = (),
) -> AbstractAsyncContextManager[InferenceClient[Any]]:
    """A client for the length of an ``async with`` block.

    Entering connects and shakes hands. Leaving aborts what still runs, waits for the coordinator's
    last replies, since it crashes on a reply to a client that has gone, and closes. That is done
    in a cancelled scope as well, shielded and bounded by ``close_timeout``.

    What the block raises comes out as it is, in no ExceptionGroup.

    Args:
        address: of the coordinator, such as ``"tcp://coordinator:5555"``; ``"memory://name"`` of
            one in the same trio run, for tests under a mocked clock.
        dialect: what the coordinator speaks: ``"framed"``, ``"0.20"``, ``"0.19"``, ``"0.18"``, or
            such a `Dialect` itself. By default what ``TRIO_INFER_DIALECT`` in the environment
            says, or else ``"framed"``. It cannot be found out, and **sending another dialect
            can kill a coordinator**.
        deserialize: whether requests end in a `Completion`. Otherwise they end in the fields of
            the engine's reply as they came, in a dict, with ``latency`` in seconds added; deltas
            stay typed, and failures still raise.
        tokenizer: what makes text of the tokens of its streams while they arrive: a
            ``tokenizers.Tokenizer``, or anything else with ``decode(ids)``. None: nothing does,
            and there is but the coordinator's own text, at the end.
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
        max_in_flight: how many requests may run at a time; None for any number. Further ones wait,
            and are handed over in the order in which they came. An aborted request does not count;
            where the dialect has no abort it does, until it has ended.
        heartbeat_timeout: seconds of silence after which the coordinator counts as gone.
        max_message_size: bytes; a coordinator that sends a larger frame is disconnected.
        socket_options: further ZeroMQ options by name or number, such as CURVE keys; not those
            that this package sets by itself. Over ``memory://`` they are ignored.
        context: the ZeroMQ context to use; by default the client has one of its own. Over
            ``memory://`` it is ignored.
        instruments: objects with any of the methods of `Instrument`, which are told what happens
            to requests and connections, and of signals. One that raises is switched off.

    Raises:
        UnsupportedByDialect: hashing is asked for, and the dialect has no block hashes; at once.
        TypeError, ValueError: for a wrong argument; at once, but for what only ZeroMQ can tell of
            an address or a socket option, which comes on entering.
        ConnectTimeout: on entering, when there was no handshake within ``connect_timeout``.
        RuntimeError: on entering, where trio does not run.
    """
    settings = check_options(
        address,
        dialect=dialect,
        deserialize=deserialize,
        tokenizer=tokenizer,
        block_size_tokens=block_size_tokens,
        prefix_caching_coordinator_policy=prefix_caching_coordinator_policy,
        connect_timeout=connect_timeout,
        close_timeout=close_timeout,
        max_in_flight=max_in_flight,
        heartbeat_timeout=heartbeat_timeout,
        max_message_size=max_message_size,
        socket_options=socket_options,
        context=context,
        instruments=instruments,
    )
    return _OpenClient(settings)


@overload
async def connect_client(
    nursery: trio.Nursery,
    address: str,
    *,
    deserialize: Literal[True] = True,
    **options: Unpack[ClientOptions],
) -> InferenceClient[Completion]: ...


@overload
async def connect_client(
    nursery: trio.Nursery,
    address: str,
    *,
    deserialize: Literal[False],
    **options: Unpack[ClientOptions],
) -> InferenceClient[dict[str, Any]]: ...


@overload
async def connect_client(
    nursery: trio.Nursery, address: str, *, deserialize: bool, **options: Unpack[ClientOptions]
) -> InferenceClient[Any]: ...


@trio.lowlevel.enable_ki_protection
async def connect_client(
    nursery: trio.Nursery,
    address: str,
    *,
    deserialize: bool = True,
    **options: Unpack[ClientOptions],
) -> InferenceClient[Any]:
    """A client whose tasks run in a nursery of yours, for where no block can hold it.

    It lives until `InferenceClient.aclose`, the end of ``async with client:``, or the cancellation
    of the nursery, all of which do what leaving the block of `open_client` does. **A nursery whose
    client is never closed never ends.**

    Cancelled while connecting, it leaves nothing behind.

    Args:
        nursery: where the tasks run. If one crashes, which no peer can bring about, the nursery is
            cancelled.
        address: of the coordinator.
        deserialize: as `open_client` has it.
        **options: as `open_client` has them.

    Raises:
        TypeError, ValueError, UnsupportedByDialect: for a wrong argument.
        ConnectTimeout: there was no handshake within ``connect_timeout``.
        RuntimeError: the nursery is closed, or the caller is no task of trio's.
        trio.ClosedResourceError: the nursery was cancelled meanwhile.
    """
    _check_nursery(nursery)
    check_task()
    opening = open_client(address, deserialize=deserialize, **options)
    settings = cast("_OpenClient", opening).settings
    await trio.lowlevel.checkpoint_if_cancelled()
    lifetime = settings.make_lifetime()
    await lifetime.serve_in(nursery)
    try:
        await lifetime.connect(settings.connect_timeout)
    except BaseException:
        await lifetime.leave()  # noqa: ASYNC102 - shielded and bounded inside
        raise
    return settings.make_client(lifetime)


def _check_nursery(nursery: object) -> None:
    if not isinstance(nursery, trio.Nursery):
        msg = f"nursery must be a trio.Nursery, not {type(nursery).__name__}"
        raise TypeError(msg)


class _OpenClient(AbstractAsyncContextManager[InferenceClient[Any], None]):
    """The block of `open_client`.

    The client's tasks live in a nursery around the block, whose exceptions the block's own never
    meet: they come out bare.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._lifetime: Lifetime | None = None
        self._background = Background()

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> InferenceClient[Any]:
        if self._lifetime is not None:
            msg = "open_client() opens once: call it again for another client"
            raise RuntimeError(msg)
        check_task()
        await trio.lowlevel.checkpoint_if_cancelled()
        self._lifetime = lifetime = self.settings.make_lifetime()
        nursery = await self._background.open()
        try:
            nursery.start_soon(lifetime.serve)  # noqa: ASYNC113 - connect waits for its work
            await lifetime.connect(self.settings.connect_timeout)
        except BaseException as error:
            await self._end(lifetime, error)  # noqa: ASYNC102 - shielded and bounded inside
            raise
        return self.settings.make_client(lifetime)

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
