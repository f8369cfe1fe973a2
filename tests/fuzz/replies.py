"""A coordinator that sends nonsense to a client with requests in every state.

Whatever comes, requests end as they should or by the errors that have a name, the one that nothing
named is served, the counters add up, and nothing is left.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs
import trio
import trio.testing

from tests.books import check_books
from tests.fuzz.choices import Choices
from tests.fuzz.nonsense import STRANGE, changed_fields, mangled, named_id, strange_number
from tests.peers import finished
from tests.scheduling import scheduled_by
from tests.vector_files import file_names, read_frame
from trio_infer import (
    ClientStatistics,
    InferenceClient,
    RemoteProtocolError,
    RequestFailed,
    SamplingParams,
    open_client,
)
from trio_infer.protocol.coordinator_codec import CoordinatorCodec
from trio_infer.protocol.dialect import Dialect, Kind
from trio_infer.protocol.dialects import DIALECTS
from trio_infer.sockets import ROUTER, Link, network_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trio_infer.protocol.packing import Frames
    from trio_infer.sockets import Socket

__all__ = ["Replies", "play_replies"]

_Client: TypeAlias = "InferenceClient[Any]"

_BODIES: Final = {
    kind: [read_frame(name)[2] for name in file_names(pattern)]
    for kind, pattern in (
        (Kind.ENGINE_REPLY, "*-reply-*.msgpack"),
        (Kind.ENGINE_REPLY_PARTIAL, "*-partial-*.msgpack"),
    )
}
_PLAIN: Final[dict[Kind, list[dict[str, Any]]]] = {
    Kind.ENGINE_REPLY: [finished([1, 2]), finished([1]), finished([]), finished([7])],
    Kind.ENGINE_REPLY_PARTIAL: [{"new_tokens": [1]}, {"new_tokens": []}, {"new_tokens": [2]}],
}
"""Such as go together, and so lead further."""


@attrs.define
class Replies:
    """What a run was like.

    Attributes:
        messages: how many messages came.
        statistics: of the client, in the end.
    """

    messages: int
    statistics: ClientStatistics


def play_replies(data: bytes) -> Replies:
    """Plays one run.

    Raises:
        AssertionError, or whatever came out: something did not hold that has to.
    """
    clock = trio.testing.MockClock(autojump_threshold=0)
    with scheduled_by(0):
        return trio.run(_Play(Choices(data)).run, clock=clock)


class _Play:
    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self._dialect: Dialect = choices.of(list(DIALECTS.values()))
        self._deserialize = not choices.one_in(4)
        self._codec = CoordinatorCodec(self._dialect)
        self._peer: Socket
        self._identity = b""
        self._bystander = -1
        self._messages = 0

    async def run(self) -> Replies:
        network = network_of("memory://*")
        self._peer = network.socket(ROUTER, Link())
        address = self._peer.bind("memory://*")
        try:
            with trio.fail_after(1000):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._peer.read, self._take)
                    async with open_client(
                        address, dialect=self._dialect.name, deserialize=self._deserialize
                    ) as client:
                        await self._serve(client)
                        check_books(client, undelivered=0, lost=0, connections=1)
                    nursery.cancel_scope.cancel()
        finally:
            self._peer.close()
        return Replies(self._messages, client.statistics())

    def _take(self, frames: Frames) -> None:
        self._identity = bytes(frames[0])
        if self._codec.decode(frames[1:]).kind is Kind.CONNECT:
            self._send(self._codec.connect_ack())

    def _send(self, frames: Frames) -> None:
        self._peer.send([self._identity, *frames])

    async def _serve(self, client: _Client) -> None:
        lives: list[Callable[[_Client], Awaitable[object]]] = [
            *(_read, _read_late, _take_result, _generate, _leave, _finish_early, _prefill)
        ]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stand_by, client)
            await trio.testing.wait_all_tasks_blocked()
            for live in lives:
                nursery.start_soon(_expect_named_errors, live, client)
            await trio.testing.wait_all_tasks_blocked()
            while self._choices.are_left:
                if self._choices.one_in(6):
                    nursery.start_soon(_expect_named_errors, self._choices.of(lives), client)
                self._send_nonsense(client.statistics().submitted)
                if self._choices.one_in(2):
                    await trio.testing.wait_all_tasks_blocked()
            await trio.testing.wait_all_tasks_blocked()
            self._answer_all(client)

    async def _stand_by(self, client: _Client) -> None:
        """The request that nothing names."""
        async with client.stream([1]) as stream:
            self._bystander = stream.request_id
            await stream.result()
            assert stream.tokens == [5, 6]

    def _send_nonsense(self, known: int) -> None:
        choices = self._choices
        kinds = [kind for kind in _PLAIN if kind in self._dialect.headers]
        kind = choices.of(kinds)
        number = self._dialect.headers[kind]
        if choices.one_in(12):
            number = choices.of([*self._dialect.kinds, 99])
        request_id = self._bystander + 1 + choices.below(known + 2)
        if not choices.one_in(3):
            request_id = max(1, known - 1 - choices.below(8))
        fields = choices.of([*_PLAIN[kind], *_BODIES[kind]])
        body = choices.of(STRANGE) if choices.one_in(8) else changed_fields(choices, fields)
        if choices.one_in(8):  # what is like the id of another
            request_id, head = self._bystander, choices.of([b"\xcb" + bytes(8), b"\xc2", b"\xa10"])
        else:
            head = strange_number(choices, request_id)
        head = strange_number(choices, number) + head
        parts = [b"\x92" + head, body] if self._dialect.is_multipart else [b"\x93" + head + body]
        frames: Frames = list(mangled(choices, parts))
        named = named_id(bytes(frames[0]))
        if type(named) is int and named == self._bystander:
            return
        for _ in range(choices.of([1, 1, 1, 2, 50])):
            self._messages += 1
            self._send(frames)

    def _answer_all(self, client: _Client) -> None:
        """What is owed comes, and makes sense."""
        session = client._exchange._session
        for request_id, _ in session.owners():
            if request_id != self._bystander:
                self._send(self._codec.reply(request_id, finished([9])))
        for request_id in tuple(session._aborting):
            self._send(self._codec.reply(request_id, finished([9])))
        if self._dialect.can_stream:
            self._send(self._codec.partial(self._bystander, {"new_tokens": [5]}))
        self._send(self._codec.reply(self._bystander, finished([5, 6])))


async def _expect_named_errors(
    live: Callable[[_Client], Awaitable[object]], client: InferenceClient
) -> None:
    """What has been named, or told in another way, is what a peer's nonsense may cost."""
    try:
        await live(client)
    except (RemoteProtocolError, RequestFailed) as error:
        repr(error)


_LONG: Final = SamplingParams(num_tokens_to_generate=1000)


async def _read(client: _Client) -> None:
    async with client.stream([1], _LONG) as stream:
        tokens = [token async for delta in stream for token in delta.tokens]
        repr(await stream.result())
    assert tokens == stream.tokens


async def _read_late(client: _Client) -> None:
    """Whatever has come by then is read at once."""
    async with client.stream([1]) as stream:
        await trio.sleep(1)
        await stream.result()


async def _take_result(client: _Client) -> None:
    async with client.stream([1]) as stream:
        with contextlib.suppress(trio.EndOfChannel):
            await stream.receive()
        await stream.result()


async def _generate(client: _Client) -> None:
    repr(await client.generate([1]))


async def _leave(client: _Client) -> None:
    async with client.stream([1]):
        pass


async def _finish_early(client: _Client) -> None:
    async with client.stream([1]) as stream:
        if client.dialect.can_abort:
            await stream.finish_early()


async def _prefill(client: _Client) -> None:
    """Left at once: the reply has an heir."""
    if client.dialect.can_hand_off:
        with trio.move_on_after(0.5):
            async with client.prefill([1]):
                pass
