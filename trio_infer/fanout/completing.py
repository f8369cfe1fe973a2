"""All requests of an iterable, as they finish or in order, with one task for all of them.

That task takes the next request whenever there is room for one. What goes wrong with the iterable,
or with submitting, ends the taking; it is told to whoever receives the outcomes, behind those of
the requests that run, or before them, if the whole is to fail fast.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import trio

from ..background import running_behind
from ..client import check_client
from ..models import Completion, Outcome
from ..models.scalars import to_limit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ..client import InferenceClient
    from ..groups import RequestGroup
    from ..models import GenerateRequest

__all__ = ["Completed", "as_completed", "check_function", "completing", "gather"]

_END: Final[Any] = object()

_ENDS: Final = (trio.EndOfChannel, StopAsyncIteration)
"""What ends a loop over a channel, whoever raises it."""

Requests: TypeAlias = "Iterable[GenerateRequest] | AsyncIterable[GenerateRequest]"


def check_function(function: object, name: str) -> None:
    """Raises `TypeError` for what cannot be called."""
    if not callable(function):
        msg = f"{name} must be a function, not {type(function).__name__}"
        raise TypeError(msg)


async def gather(
    client: InferenceClient[Completion],
    requests: Iterable[GenerateRequest] | AsyncIterable[GenerateRequest],
    *,
    max_concurrency: int | None = None,
) -> list[Completion]:
    """Runs requests, and returns their completions in the order of the requests.

    The first failure aborts the rest. Cancelled, it aborts all of them.

    Args:
        client: of the coordinator.
        requests: which to run; taken as fast as they are run.
        max_concurrency: how many may run at a time; None for any number.

    Raises:
        RequestFailed, ConnectionLost, RemoteProtocolError: the first failure, as
            `InferenceClient.generate` raises it.
        TypeError, ValueError, UnsupportedByDialect: for a wrong argument, or a wrong request.
        trio.ClosedResourceError: the client is closed.
        Exception: whatever ``requests`` raises.
    """
    check_client(client)
    completions: dict[int, Completion] = {}
    limit = to_limit(max_concurrency, "max_concurrency")
    async with completing(client, requests, limit, fail_fast=True) as outcomes:
        async for outcome in outcomes:
            completions[outcome.index] = outcome.unwrap()
    return [completions[index] for index in range(len(completions))]


@asynccontextmanager
async def as_completed(
    client: InferenceClient[Completion],
    requests: Iterable[GenerateRequest] | AsyncIterable[GenerateRequest],
    *,
    max_concurrency: int | None = None,
) -> AsyncGenerator[trio.abc.ReceiveChannel[Outcome[Completion]]]:
    """Runs requests for the length of an ``async with`` block, and yields how they end, one by one.

    The block's ``outcomes`` are iterated over with ``async for``, by any number of tasks. One that
    has failed does not end the others. Leaving the block aborts what runs, and takes no more.

    Args:
        client: of the coordinator.
        requests: which to run; may be endless, and may be an asynchronous iterable. The next one
            is taken when there is room for it.
        max_concurrency: how many may run, or have finished and wait to be received, at a time.
            None for all of them at once, if ``requests`` has a length; otherwise it is required.

    Raises:
        TypeError, ValueError: for a wrong argument.
        Exception: whatever ``requests`` raises, and what submitting a wrong request raises: behind
            the outcomes of the requests before it; at the latest, when the block ends in peace.
    """
    check_client(client)
    limit = to_limit(max_concurrency, "max_concurrency")
    if limit is None and not _has_length(requests):
        msg = "max_concurrency is required for requests without a length, which may be endless"
        raise ValueError(msg)
    async with completing(client, requests, limit) as outcomes:
        yield outcomes


@asynccontextmanager
async def completing(
    client: InferenceClient[Completion],
    requests: Requests,
    limit: int | None,
    *,
    fail_fast: bool = False,
) -> AsyncGenerator[Completed]:
    """Runs requests, and yields how they end.

    Args:
        client: of the coordinator, checked.
        requests: which to run.
        limit: how many may run, or be unread, at a time; None: any number.
        fail_fast: whether an error of ``requests`` ends what runs.
    """
    # A progress bar may be both, and is fit for the one as well as for the other.
    taking = aiter(requests) if isinstance(requests, AsyncIterable) else iter(requests)
    async with client.open_group() as group:
        feed = _Feed(group, taking, limit, fail_fast=fail_fast)
        async with running_behind(feed.run):
            try:
                yield Completed(group, feed)
            finally:
                group.close()  # before the taking is given up, which may take a while
        if feed.error is not None and not feed.told:
            raise feed.error


def _has_length(requests: object) -> bool:
    try:
        len(requests)  # type: ignore[arg-type]  # a progress bar finds out only now
    except TypeError:
        return False
    return True


class _Feed:
    """Takes requests, and submits them to a group while there is room.

    Attributes:
        error: what ended that before its time.
        told: whether anybody knows of it.
    """

    def __init__(
        self,
        group: RequestGroup[Completion],
        requests: Iterator[GenerateRequest] | AsyncIterator[GenerateRequest],
        limit: int | None,
        *,
        fail_fast: bool,
    ) -> None:
        self.error: Exception | None = None
        self.told = False
        self._group = group
        self._requests = requests
        self._room = None if limit is None else trio.Semaphore(limit)
        self._fail_fast = fail_fast

    async def run(self) -> None:  # noqa: ASYNC910 - what is told is told at once
        """Submits all of them, in order."""
        with self._group.keep_open():
            try:
                await self._submit_all()
            except Exception as error:  # noqa: BLE001 - told to whoever receives
                if not self._group.closed:
                    self.error = error
                if self._fail_fast:
                    self._group.close()

    def make_room(self) -> None:
        """An outcome was received."""
        if self._room is not None:
            self._room.release()

    @trio.lowlevel.disable_ki_protection  # the caller's iterable may hang
    async def _submit_all(self) -> None:
        requests = self._requests
        while True:
            if self._room is not None:
                await self._room.acquire()
            if isinstance(requests, Iterator):
                request = next(requests, _END)
            else:
                request = await anext(requests, _END)
            if request is _END:
                return  # noqa: ASYNC910 - there was nothing to wait for
            await self._group.submit(request)


class Completed(trio.abc.ReceiveChannel[Outcome[Completion]]):
    """The outcomes of a group, each of which makes room for the next request."""

    def __init__(self, group: RequestGroup[Completion], feed: _Feed) -> None:
        self._group = group
        self._feed = feed

    async def receive(self) -> Outcome[Completion]:
        """Waits for the next outcome."""
        try:
            outcome = await self._group.outcomes.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            if self._feed.error is None:
                raise
            # What ends a loop over this channel is told behind the block.
            self._feed.told = not isinstance(self._feed.error, _ENDS)
            raise self._feed.error from None
        self._feed.make_room()
        return outcome

    def close(self) -> None:
        """Aborts what runs, and takes no more. May be called again."""
        self._group.close()

    async def aclose(self) -> None:
        """As `close`."""
        self.close()
        await trio.lowlevel.checkpoint()
