"""What a socket does whatever carries it, and what the memory of a trio run does besides."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from tests.peers import free_address
from tests.waiting import until
from trio_infer import ConnectError
from trio_infer.sockets import (
    DEALER,
    ROUTER,
    Link,
    LinkEvent,
    Network,
    NotConnected,
    Socket,
    draining,
    network_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from trio_infer.protocol.packing import Frames

LINK = Link(heartbeat_timeout=30.0, max_message_size=1_000_000)
ADDRESSES: dict[str, Callable[[], str]] = {"tcp": free_address, "memory": lambda: "memory://here"}


class End:
    """A socket, with what came to it and what became of it."""

    def __init__(self, socket: Socket) -> None:
        self.socket = socket
        self.messages: list[Frames] = []
        self.events: list[LinkEvent] = []

    async def read(self) -> None:
        await self.socket.read(lambda frames: self.messages.append([bytes(f) for f in frames]))

    async def watch(self) -> None:
        await self.socket.watch(self.notice)

    def notice(self, event: LinkEvent, _: str) -> None:
        self.events.append(event)


class Ends:
    """Sockets of one network, made and run as they are asked for."""

    def __init__(self, network: Network, nursery: trio.Nursery, address: str) -> None:
        self.address = address
        self._network = network
        self._nursery = nursery
        self.made: list[Socket] = []

    def router(self) -> End:
        end = self._make(ROUTER)
        end.socket.bind(self.address)
        self._nursery.start_soon(end.read)
        return end

    def dealer(self) -> End:
        end = self._make(DEALER)
        end.socket.connect(self.address)
        self._nursery.start_soon(end.read)
        self._nursery.start_soon(end.watch)
        return end

    def _make(self, role: int) -> End:
        end = End(self._network.socket(role, LINK))
        self.made.append(end.socket)
        return end


@pytest.fixture(params=ADDRESSES)
async def ends(request: pytest.FixtureRequest) -> AsyncIterator[Ends]:
    address = ADDRESSES[request.param]()
    network = network_of(address)
    async with trio.open_nursery() as nursery:
        ends = Ends(network, nursery, address)
        yield ends
        nursery.cancel_scope.cancel()
    for socket in ends.made:
        socket.close(linger=False)
    await network.dispose()


async def up(end: End) -> End:
    await until(lambda: LinkEvent.UP in end.events)
    return end


async def test_messages_arrive_whole_in_order_and_by_the_name_of_their_sender(ends: Ends) -> None:
    router = ends.router()
    dealers = [await up(ends.dealer()) for _ in range(2)]
    for number in range(500):
        for each in range(2):
            dealers[each].socket.send([b"%d" % each, memoryview(b"%d" % number), b""])
    await until(lambda: len(router.messages) == 1000)
    names = {}
    for each in range(2):
        own = [frames for frames in router.messages if frames[1] == b"%d" % each]
        assert [frames[2:] for frames in own] == [[b"%d" % number, b""] for number in range(500)]
        (names[each],) = {bytes(frames[0]) for frames in own}
    assert names[0] != names[1]
    router.socket.send([names[1], b"hi", b"there"])
    await until(lambda: dealers[1].messages)
    assert dealers[1].messages == [[b"hi", b"there"]]
    assert dealers[0].messages == []


async def test_what_is_sent_to_nobody_is_not_taken(ends: Ends) -> None:
    router = ends.router()
    dealer = await up(ends.dealer())
    dealer.socket.send([b"hi"])
    await until(lambda: router.messages)
    name = router.messages[0][0]
    dealer.socket.close()
    with pytest.raises(NotConnected):
        while True:
            router.socket.send([name, b"hi"])
            await trio.sleep(0.001)
    with pytest.raises(NotConnected):
        router.socket.send([b"\0nobody", b"hi"])


async def test_whom_nobody_answers_is_refused(ends: Ends) -> None:
    dealer = ends.dealer()
    await until(lambda: set(dealer.events) - {LinkEvent.TRIED})
    assert dealer.events[-1] in (LinkEvent.FAILED, LinkEvent.RETRIED)
    assert LinkEvent.FAILED in dealer.events


async def test_the_end_of_a_peer_shows_behind_all_that_it_sent(ends: Ends) -> None:
    router = ends.router()
    dealer = await up(ends.dealer())
    dealer.socket.send([b"hi"])
    await until(lambda: router.messages)
    for number in range(100):
        router.socket.send([router.messages[0][0], b"%d" % number])
    router.socket.close()
    await until(lambda: LinkEvent.RETRIED in dealer.events)
    assert dealer.events[-2:] == [LinkEvent.DOWN, LinkEvent.RETRIED]
    assert dealer.socket.drain(dealer.messages.append)
    assert len(dealer.messages) == 100


async def test_an_address_has_one_owner_and_is_free_behind_it(ends: Ends) -> None:
    router = ends.router()
    with pytest.raises(ConnectError):
        ends.router()
    router.socket.close(linger=False)
    while True:
        try:
            successor = ends.router()
            break
        except ConnectError:
            await trio.sleep(0.001)
    dealer = await up(ends.dealer())
    dealer.socket.send([b"hi"])
    await until(lambda: successor.messages)
    assert router.messages == []


async def test_a_frame_that_is_too_large_ends_the_connection(ends: Ends) -> None:
    router = ends.router()
    dealer = await up(ends.dealer())
    dealer.socket.send([b"hi"])
    await until(lambda: router.messages)
    router.socket.send([router.messages[0][0], bytes(LINK.max_message_size + 1)])
    await until(lambda: LinkEvent.DOWN in dealer.events)
    assert LinkEvent.RETRIED not in dealer.events
    assert dealer.messages == []


async def test_whose_frame_is_too_large_for_the_peer_finds_the_peer_gone(ends: Ends) -> None:
    ends.router()
    dealer = await up(ends.dealer())
    dealer.socket.send([bytes(LINK.max_message_size + 1)])
    await until(lambda: LinkEvent.RETRIED in dealer.events)
    assert dealer.events[-2:] == [LinkEvent.DOWN, LinkEvent.RETRIED]


async def test_a_closed_socket_refuses_everything(ends: Ends) -> None:
    router = ends.router()
    dealer = await up(ends.dealer())
    dealer.socket.close()
    dealer.socket.close()
    for use in (
        partial(dealer.socket.send, [b"hi"]),
        partial(dealer.socket.connect, ends.address),
        partial(dealer.socket.bind, ends.address),
    ):
        with pytest.raises(trio.ClosedResourceError):
            use()
    with pytest.raises(trio.ClosedResourceError):
        await dealer.watch()
    await dealer.read()
    assert dealer.socket.drain(dealer.messages.append)
    assert router.messages == []


async def test_a_socket_is_used_where_it_was_made_only(ends: Ends) -> None:
    ends.router()
    dealer = await up(ends.dealer())
    with pytest.raises(RuntimeError, match="another thread"):
        await trio.to_thread.run_sync(dealer.socket.send, [b"hi"])


async def test_a_flood_lets_other_tasks_run(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "DRAIN_MESSAGES", 256)
    router = ends.router()
    dealer = await up(ends.dealer())
    for _ in range(2_000):
        dealer.socket.send([b"hi"])
    turns: list[int] = []
    while len(router.messages) < 2_000:
        turns.append(len(router.messages))
        await trio.lowlevel.checkpoint()
    assert len(set(turns)) >= 4  # a turn for each budget, or for every other one


# In memory only


@pytest.fixture
def ends_in_memory(nursery: trio.Nursery) -> Ends:
    return Ends(network_of("memory://here"), nursery, "memory://here")


async def test_a_frozen_peer_takes_nothing_and_then_everything(
    autojump_clock: trio.testing.MockClock, ends_in_memory: Ends
) -> None:
    router = ends_in_memory.router()
    dealer = await up(ends_in_memory.dealer())
    router.socket.freeze()
    dealer.socket.send([b"hi"])
    late = ends_in_memory.dealer()
    await trio.sleep(LINK.heartbeat_timeout - 1)
    assert router.messages == []
    assert late.events == [LinkEvent.REACHED]
    router.socket.thaw()
    router.socket.thaw()
    await up(late)
    await trio.sleep(math.floor(LINK.heartbeat_timeout) * 2)
    assert len(router.messages) == 1
    assert LinkEvent.DOWN not in dealer.events


async def test_a_peer_frozen_for_too_long_counts_as_gone_and_finds_so_too(
    autojump_clock: trio.testing.MockClock, ends_in_memory: Ends
) -> None:
    router = ends_in_memory.router()
    dealer = await up(ends_in_memory.dealer())
    dealer.socket.send([b"hi"])
    await until(lambda: router.messages)
    await trio.sleep(5)
    began = trio.current_time()
    router.socket.freeze()
    router.socket.freeze()
    await until(lambda: LinkEvent.DOWN in dealer.events)
    assert trio.current_time() - began == pytest.approx(LINK.heartbeat_timeout, abs=0.01)
    router.socket.thaw()
    with pytest.raises(NotConnected):
        router.socket.send([router.messages[0][0], b"hi"])
    with pytest.raises(NotConnected):
        dealer.socket.send([b"hi"])


async def test_names_are_found_for_those_who_ask_for_any() -> None:
    network = network_of("memory://*")
    sockets = [network.socket(ROUTER, LINK) for _ in range(2)]
    names = {socket.bind("memory://*") for socket in sockets}
    assert len(names) == 2
    assert all(name.startswith("memory://") for name in names)


async def test_another_run_knows_nothing_of_this_ones_addresses() -> None:
    network_of("memory://here").socket(ROUTER, LINK).bind("memory://here")

    async def elsewhere() -> None:
        network_of("memory://here").socket(ROUTER, LINK).bind("memory://here")

    await trio.to_thread.run_sync(trio.run, elsewhere)
