from __future__ import annotations

import logging
import signal
import threading
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import msgpack
import pytest
import trio
import trio.testing

from tests.messages import laid_out
from tests.peers import has_ipv6
from trio_infer.background import running_behind
from trio_infer.embedded import EmbeddedCoordinator, NgramModel, open_coordinator, server
from trio_infer.errors import ConnectError
from trio_infer.protocol.client_codec import ClientCodec, ServerMessage
from trio_infer.protocol.dialect import Kind
from trio_infer.protocol.dialects import FRAMED
from trio_infer.protocol.packing import Frames, unpack_map
from trio_infer.sockets import (
    DEALER,
    Link,
    LinkEvent,
    ZmqSocket,
    dispose_context,
    make_context,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from trio_infer.embedded import LanguageModel

CODEC = ClientCodec(FRAMED)


@attrs.define
class Peer:
    """A client that says whatever it is told to."""

    socket: ZmqSocket
    receive: trio.MemoryReceiveChannel[ServerMessage]
    gone: trio.Event

    def submit(self, request_id: int, prompt: str = "a", **params: Any) -> None:
        self.socket.send(laid_out(CODEC, prompt, {"top_k": 1} | params).frames(request_id))

    def abort(self, request_id: int) -> None:
        self.socket.send(CODEC.abort(request_id))

    def signal(self, kind: Kind) -> None:
        self.socket.send([msgpack.packb([FRAMED.headers[kind]])])

    async def final(self) -> tuple[int, dict[str, Any]]:
        while True:
            message = await self.receive.receive()
            if message.kind is Kind.ENGINE_REPLY:
                return message.request_id, unpack_map(message.body)


@asynccontextmanager
async def connected(address: str, *, shake_hands: bool = True) -> AsyncGenerator[Peer]:
    context = make_context()
    socket = ZmqSocket(DEALER, link=Link(), context=context)
    send, receive = trio.open_memory_channel[ServerMessage](10_000)
    up, gone = trio.Event(), trio.Event()

    def deliver(frames: Frames) -> None:
        send.send_nowait(CODEC.decode(frames))

    def notice(event: LinkEvent, _: str) -> None:
        if event is LinkEvent.UP:
            up.set()
        elif event in (LinkEvent.FAILED, LinkEvent.DOWN):
            gone.set()

    try:
        socket.connect(address)
        async with running_behind(partial(socket.watch, notice), partial(socket.read, deliver)):
            await up.wait()
            if shake_hands:
                socket.send(CODEC.connect())
                assert (await receive.receive()).kind is Kind.CONNECT_ACK
            yield Peer(socket, receive, gone)
    finally:
        socket.close()
        with trio.CancelScope(shield=True):
            await dispose_context(context)


@pytest.fixture
async def coordinator(alphabet: LanguageModel) -> AsyncGenerator[EmbeddedCoordinator]:
    async with open_coordinator(model=alphabet) as coordinator:
        yield coordinator


@pytest.fixture
async def peer(coordinator: EmbeddedCoordinator) -> AsyncGenerator[Peer]:
    async with connected(coordinator.address) as peer:
        yield peer


@pytest.mark.parametrize("budget", ["num_tokens_total", "num_tokens_to_generate"])
async def test_a_budget_far_below_nothing_fails_its_own_request_alone(
    peer: Peer, budget: str
) -> None:
    params: dict[str, Any] = {budget: -(2**63)}
    peer.submit(1, **params)
    peer.submit(2, num_tokens_to_generate=1)
    assert [(await peer.final())[1]["status"] for _ in range(2)] == ["FAILED", "COMPLETED"]


async def test_a_request_goes_there_and_back(coordinator: EmbeddedCoordinator, peer: Peer) -> None:
    peer.submit(3, num_tokens_to_generate=3)
    request_id, body = await peer.final()
    assert (request_id, body["generated_text"]) == (3, "bcd")
    assert coordinator.running == ()
    assert attrs.asdict(coordinator.statistics()) == {
        "clients": 1, "submitted": 1, "running": 0, "waiting": 0, "completed": 1, "aborted": 0,
        "failed": 0, "lost": 0, "aborts": 0, "stray_aborts": 0, "ignored": 0, "malformed": 0,
        "unroutable": 0, "steps": 3, "tokens": 3, "dropped": 0, "dropped_acks": 0, "duplicated": 0,
        "corrupted": 0, "delayed": 0, "reordered": 0, "failed_on_purpose": 0,
    }  # fmt: skip


async def test_the_default_model_answers_in_english() -> None:
    async with open_coordinator(seed=1) as coordinator, connected(coordinator.address) as peer:
        peer.submit(0, "The statement", num_tokens_to_generate=40)
        _, body = await peer.final()
        assert body["generated_length"] == 40
        assert " " in body["generated_text"]


async def test_the_seed_decides_what_it_answers() -> None:
    answers = []
    for seed in (1, 1, 2):
        async with (
            open_coordinator(seed=seed) as coordinator,
            connected(coordinator.address) as peer,
        ):
            peer.submit(0, "The ", num_tokens_to_generate=40, top_k=0)
            answers.append((await peer.final())[1]["generated_text"])
    assert answers[0] == answers[1] != answers[2]


async def test_many_requests_of_many_clients(coordinator: EmbeddedCoordinator) -> None:
    async def ask(count: int) -> None:
        async with connected(coordinator.address) as peer:
            for number in range(count):
                peer.submit(number, num_tokens_to_generate=5, streaming=True)
            finals = [(await peer.final())[0] for _ in range(count)]
            assert sorted(finals) == list(range(count))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask, 100)
    counts = coordinator.statistics()
    assert (counts.clients, counts.completed, counts.unroutable) == (5, 500, 0)


async def test_an_abort_frees_the_engine(coordinator: EmbeddedCoordinator, peer: Peer) -> None:
    peer.submit(0, termination_id=-1)
    await coordinator.wait_until(lambda: len(coordinator.running) == 1)
    peer.abort(0)
    await coordinator.wait_until(lambda: not coordinator.running)
    _, body = await peer.final()
    assert body["generated_length"] == body["sampling_params"]["num_tokens_to_generate"]
    assert coordinator.statistics().aborts == 1


async def test_a_paused_coordinator_accepts_and_goes_on_when_told_to(
    coordinator: EmbeddedCoordinator, peer: Peer
) -> None:
    coordinator.pause()
    assert coordinator.paused
    peer.submit(0, num_tokens_to_generate=1)
    await coordinator.wait_until(lambda: coordinator.statistics().waiting == 1)
    await trio.testing.wait_all_tasks_blocked()
    assert coordinator.statistics().steps == 0
    coordinator.unpause()
    assert (await peer.final())[0] == 0


async def test_a_client_can_pause_it_too(coordinator: EmbeddedCoordinator, peer: Peer) -> None:
    peer.signal(Kind.PAUSE)
    await coordinator.wait_until(lambda: coordinator.paused)
    peer.submit(0, num_tokens_to_generate=1)
    peer.signal(Kind.UNPAUSE)
    assert (await peer.final())[0] == 0


async def test_who_waits_for_a_pause_hears_of_one_by_hand(
    coordinator: EmbeddedCoordinator,
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(coordinator.engines_paused)
        await trio.testing.wait_all_tasks_blocked()
        coordinator.pause()


async def test_paused_engines_are_not_taken_for_suspended_ones(
    coordinator: EmbeddedCoordinator, peer: Peer
) -> None:
    suspended = trio.Event()

    async def wait() -> None:
        await coordinator.engines_suspended()
        suspended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        coordinator.pause()
        await trio.testing.wait_all_tasks_blocked()
        assert not suspended.is_set()
        peer.signal(Kind.SUSPEND)


async def test_waiting_for_what_holds_already_lets_other_tasks_run(
    coordinator: EmbeddedCoordinator,
) -> None:
    with trio.testing.assert_checkpoints():
        await coordinator.wait_until(lambda: True)


async def test_engines_take_as_many_steps_to_pause_as_they_are_told(
    alphabet: LanguageModel,
) -> None:
    async with (
        open_coordinator(model=alphabet, steps_to_pause=50) as coordinator,
        connected(coordinator.address) as peer,
    ):
        peer.submit(0, num_tokens_to_generate=1000, termination_id=-1)
        await coordinator.wait_until(lambda: coordinator.statistics().tokens >= 1)
        before = coordinator.statistics().tokens
        peer.signal(Kind.PAUSE)
        await coordinator.engines_paused()
        assert coordinator.statistics().tokens >= before + 49


async def test_engines_without_handoff_die_of_one(alphabet: LanguageModel) -> None:
    async with (
        open_coordinator(model=alphabet, kv_handoff=False) as coordinator,
        connected(coordinator.address) as peer,
    ):
        peer.submit(0, num_tokens_to_generate=1, do_kv_handoff=True)
        await coordinator.wait_until(lambda: coordinator.engine_states == ("dead",))


async def test_who_has_not_shaken_hands_gets_no_answer(coordinator: EmbeddedCoordinator) -> None:
    async with connected(coordinator.address, shake_hands=False) as peer:
        peer.submit(0)
        await coordinator.wait_until(lambda: coordinator.statistics().ignored == 1)
        assert coordinator.statistics().submitted == 0


async def test_it_outlives_a_client_that_goes_without_a_word(
    coordinator: EmbeddedCoordinator, peer: Peer
) -> None:
    async with connected(coordinator.address) as other:
        other.submit(0, termination_id=-1, streaming=True)
        other.submit(1, termination_id=-1)
        await coordinator.wait_until(lambda: len(coordinator.running) == 2)
    await coordinator.wait_until(lambda: not coordinator.running)
    assert coordinator.statistics().unroutable >= 2
    peer.submit(0, num_tokens_to_generate=1)
    assert (await peer.final())[0] == 0


async def test_a_shutdown_ends_it_but_not_the_block(
    coordinator: EmbeddedCoordinator, peer: Peer
) -> None:
    peer.submit(0, termination_id=-1)
    peer.signal(Kind.SHUTDOWN)
    peer.submit(1)
    await coordinator.wait_until(lambda: coordinator.stopped)
    await peer.gone.wait()
    assert coordinator.statistics().submitted == 1


async def test_a_shutdown_ends_it_while_it_has_nothing_to_do(
    coordinator: EmbeddedCoordinator, peer: Peer
) -> None:
    peer.signal(Kind.SHUTDOWN)
    await peer.gone.wait()
    assert coordinator.stopped


async def test_a_step_takes_the_time_it_is_given(alphabet: LanguageModel) -> None:
    async with (
        open_coordinator(model=alphabet, step_time=0.02) as coordinator,
        connected(coordinator.address) as peer,
    ):
        began = trio.current_time()
        peer.submit(0, num_tokens_to_generate=5)
        _, body = await peer.final()
        assert trio.current_time() - began >= 0.1
        assert body["ttft"] >= 0.02
        assert len(body["tpot"]) == 4


async def test_engines_share_the_load(alphabet: LanguageModel) -> None:
    async with (
        open_coordinator(model=alphabet, engines=3, max_requests=1) as coordinator,
        connected(coordinator.address) as peer,
    ):
        for number in range(4):
            peer.submit(number, termination_id=-1)
        await coordinator.wait_until(lambda: len(coordinator.running) == 3)
        assert [request.engine for request in coordinator.running] == [0, 1, 2]
        for number in range(4):
            peer.abort(number)
        await coordinator.wait_until(lambda: coordinator.statistics().completed == 4)


async def test_a_busy_engine_lets_other_tasks_run_between_its_steps() -> None:
    async with open_coordinator() as coordinator, connected(coordinator.address) as peer:
        for number in range(64):
            peer.submit(number, "The ", termination_id=-1, temperature=1.0, top_k=0)
        await coordinator.wait_until(lambda: len(coordinator.running) == 64)
        for _ in range(50):
            before = coordinator.statistics().steps
            await trio.lowlevel.checkpoint()
            assert coordinator.statistics().steps - before <= 2  # before and behind us in a tick


async def test_the_default_model_is_made_off_the_trio_thread(
    alphabet: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def make() -> LanguageModel:
        threads.append(threading.current_thread())
        return alphabet

    monkeypatch.setattr(server, "default_model", make)
    async with open_coordinator():
        assert len(threads) == 1
        assert threads[0] is not threading.current_thread()


@pytest.mark.parametrize(
    "bind",
    [
        "tcp://127.0.0.1:*",
        "ipc://*",
        pytest.param(
            "tcp://[::1]:*",
            marks=pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6"),
        ),
    ],
)
async def test_the_address_is_one_that_clients_can_use(alphabet: LanguageModel, bind: str) -> None:
    async with open_coordinator(model=alphabet, bind=bind) as coordinator:
        assert coordinator.address.startswith(bind.removesuffix("*"))
        assert "*" not in coordinator.address
        assert coordinator.address in repr(coordinator)
        async with connected(coordinator.address) as peer:
            peer.submit(0, num_tokens_to_generate=1)
            assert (await peer.final())[0] == 0


async def test_the_address_is_free_again_afterwards(alphabet: LanguageModel) -> None:
    async with open_coordinator(model=alphabet) as first:
        address = first.address
        with pytest.raises(ConnectError, match="in use"):
            async with open_coordinator(model=alphabet, bind=address):
                pytest.fail("bound twice")  # pragma: no cover
    async with open_coordinator(model=alphabet, bind=address) as second:
        assert second.address == address


@pytest.mark.parametrize(
    "wrong",
    [
        {"engines": 0},
        {"step_time": -1.0},
        {"step_time": float("nan")},
        {"step_time": float("inf")},
        {"max_requests": 0},
        {"max_sequence_length": 0},
        {"steps_to_pause": 0},
        {"dialect": "klingon"},
        {"bind": "nonsense"},
    ],
    ids=str,
)
async def test_wrong_arguments_are_refused(alphabet: LanguageModel, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each says something else
        async with open_coordinator(model=alphabet, **wrong):
            pytest.fail("opened")  # pragma: no cover


class Apart:
    """Knows tokens, and says nothing about them."""

    vocab_size = 2
    end_token = 1

    def tokenize(self, text: str) -> list[int]:
        raise NotImplementedError

    def detokenize(self, tokens: Sequence[int]) -> str:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("model", "named"),
    [("gpt2", "str"), (Apart(), "Apart"), (NgramModel, "the class NgramModel")],
    ids=["name", "tokenizer", "class"],
)
async def test_what_is_no_model_is_refused_before_anything_runs(model: Any, named: str) -> None:
    complaint = f"^model must be a LanguageModel, such as LlamaModel\\(path\\), not {named}$"
    with pytest.raises(TypeError, match=complaint):
        async with open_coordinator(model=model, bind="memory://model"):
            pytest.fail("opened")  # pragma: no cover


class Wrapper:
    """Passes everything on."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


async def test_a_model_that_passes_everything_on_to_another_is_one(alphabet: LanguageModel) -> None:
    model: Any = Wrapper(alphabet)
    async with open_coordinator(model=model) as coordinator:
        assert coordinator.tokenizer.encode("a") == [97]


@pytest.mark.parametrize("name", ["address", "dialect", "tokenizer", "adress"])
async def test_what_clients_go_by_cannot_be_overwritten_by_mistake(
    coordinator: EmbeddedCoordinator, name: str
) -> None:
    with pytest.raises(AttributeError):
        setattr(coordinator, name, "tcp://elsewhere:1")


async def test_what_the_block_raises_comes_out_bare(alphabet: LanguageModel) -> None:
    with pytest.raises(KeyError):
        async with open_coordinator(model=alphabet):
            raise KeyError


async def test_a_model_that_fails_ends_the_block_with_its_own_exception(
    alphabet: LanguageModel,
) -> None:
    class Broken(type(alphabet)):  # type: ignore[misc]
        def next_token_log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async with (
            open_coordinator(model=Broken()) as coordinator,
            connected(coordinator.address) as peer,
        ):
            peer.submit(0)
            await trio.sleep_forever()


async def test_cancelling_its_scope_leaves_it(alphabet: LanguageModel) -> None:
    with trio.CancelScope() as scope:
        async with (
            open_coordinator(model=alphabet) as coordinator,
            connected(coordinator.address) as peer,
        ):
            peer.submit(0, termination_id=-1)
            await coordinator.wait_until(lambda: bool(coordinator.running))
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_cancelling_while_it_opens_leaves_nothing() -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        async with open_coordinator():
            pytest.fail("opened")  # pragma: no cover
    assert scope.cancelled_caught


def test_ctrl_c_in_the_middle_of_decoding_is_the_blocks(alphabet: LanguageModel) -> None:
    class Interrupting(type(alphabet)):  # type: ignore[misc]
        def next_token_log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
            if len(sequences[0]) == 3:
                signal.raise_signal(signal.SIGINT)
            rows: list[list[float]] = super().next_token_log_probs(sequences)
            return rows

    async def main() -> None:
        async with (
            open_coordinator(model=Interrupting()) as coordinator,
            connected(coordinator.address) as peer,
        ):
            peer.submit(0)
            try:
                await trio.sleep_forever()
            except KeyboardInterrupt:
                interrupted.append("in the block")
                raise

    interrupted: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert interrupted == ["in the block"]


async def test_a_malformed_message_is_logged(
    coordinator: EmbeddedCoordinator, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    peer.socket.send([b"\xc1"])
    peer.socket.send([b""])
    await coordinator.wait_until(lambda: coordinator.statistics().malformed == 2)
    assert "dropped" in caplog.text


async def test_text_without_ids_fails_its_request_and_nothing_else(
    alphabet: LanguageModel,
) -> None:
    async with (
        open_coordinator(model=alphabet, block_size_tokens=2) as coordinator,
        connected(coordinator.address) as peer,
    ):
        peer.submit(0, "é")
        peer.submit(1, "ab", num_tokens_to_generate=1)
        bodies = [(await peer.final())[1]["status"] for _ in range(2)]
    assert bodies == ["FAILED", "COMPLETED"]


async def test_waiting_for_engines_that_are_all_gone_says_so() -> None:
    async with (
        open_coordinator(kv_handoff=False) as coordinator,
        connected(coordinator.address) as peer,
    ):
        peer.submit(0, "hi", do_kv_handoff=True)
        await coordinator.wait_until(lambda: "dead" in coordinator.engine_states)
        for wait in (
            coordinator.engines_paused,
            coordinator.engines_suspended,
            coordinator.engines_running,
        ):
            with pytest.raises(RuntimeError, match=r"no engine is left, and none will be .*: dead"):
                await wait()


async def test_who_waits_for_the_engines_of_a_coordinator_that_is_left_is_told() -> None:
    async with trio.open_nursery() as nursery:

        async def wait(coordinator: EmbeddedCoordinator) -> None:
            with pytest.raises(RuntimeError, match="the coordinator has ended"):
                await coordinator.engines_paused()

        async with open_coordinator() as coordinator:
            nursery.start_soon(wait, coordinator)
            await trio.testing.wait_all_tasks_blocked()
    assert coordinator.stopped
