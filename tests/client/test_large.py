"""Large replies and requests: others are served, nothing is lost, memory comes back."""

from __future__ import annotations

import gc
import itertools
import sys
import weakref
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
import trio
import zmq

from tests.large.bodies import TOP_K, large_reply
from tests.turns import turns_during
from tests.waiting import arrived, until
from trio_infer import Completion, InferenceClient, RemoteProtocolError, open_client
from trio_infer.protocol import unpacking
from trio_infer.protocol.client_codec import Submission
from trio_infer.protocol.dialect import Kind
from trio_infer.protocol.unpacking import HEAVY_BODY, unpack_map_in_pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.peers import Received, ScriptedCoordinator

TOKENS, LAYERS = 2_000, 60
BODY = large_reply(TOKENS, LAYERS)  # 1.1 MB
PIECES = sum(1 for _ in unpack_map_in_pieces(BODY, lazily=True)) - 1


def reply(coordinator: ScriptedCoordinator, to: Received, body: bytes = BODY) -> None:
    head, _ = coordinator.reply_frames(to, [])
    coordinator._tokens.pop((to.client, to.id), None)
    coordinator.send(to.client, [head, body])


def check(completion: Completion) -> None:
    assert completion.generated_length == TOKENS
    assert completion.generated_log_probs is not None
    assert len(completion.generated_log_probs) == TOKENS
    assert completion.routing_indices is not None
    assert len(completion.routing_indices) == TOKENS
    assert {len(layer) for token in completion.routing_indices for layer in token} == {TOP_K}


class Decoding:
    """Watches large bodies being unpacked, and does something at one of the pieces."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[weakref.ref[Iterator[Any]]] = []
        self.pieces = 0
        self.meanwhile: dict[int, Callable[[], object]] = {}
        monkeypatch.setattr(unpacking, "unpack_map_in_pieces", self._begin)

    def _begin(self, body: Any, *, lazily: bool) -> Iterator[Any]:
        begun = self._watched(body, lazily=lazily)
        self.begun.append(weakref.ref(begun))
        return begun

    def _watched(self, body: Any, *, lazily: bool) -> Iterator[Any]:
        for fields in unpack_map_in_pieces(body, lazily=lazily):
            if fields is None:
                self.pieces += 1
                self.meanwhile.get(self.pieces, int)()
            yield fields


@pytest.fixture
def decoding(monkeypatch: pytest.MonkeyPatch) -> Decoding:
    return Decoding(monkeypatch)


async def test_other_tasks_run_between_the_pieces_of_a_large_reply(
    coordinator: ScriptedCoordinator, client: InferenceClient, decoding: Decoding
) -> None:
    turns: list[int] = []

    async def tick() -> None:
        while True:
            await trio.lowlevel.checkpoint()
            turns.append(decoding.pieces)

    async with trio.open_nursery() as nursery, client.stream("large") as stream:
        reply(coordinator, await coordinator.submission())
        nursery.start_soon(tick)
        check(await stream.result())
        nursery.cancel_scope.cancel()
    assert decoding.pieces == PIECES > 60
    steps = [after - before for before, after in itertools.pairwise([0, *turns, PIECES])]
    assert max(steps) <= 2  # trio runs those who can run once each, in any order


async def test_other_requests_are_served_while_a_large_reply_is_decoded(
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []

    def unpack_slowly(body: Any, *, lazily: bool) -> Iterator[Any]:
        order.append("large begins")
        for _ in range(1_000_000):
            if "small" in order:
                break
            yield None
        yield from unpack_map_in_pieces(body, lazily=lazily)

    monkeypatch.setattr(unpacking, "unpack_map_in_pieces", unpack_slowly)

    async def generate(prompt: str) -> None:
        await client.generate(prompt)
        order.append(prompt)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(generate, "large")
        reply(coordinator, await coordinator.submission())
        await until(lambda: order)
        nursery.start_soon(generate, "small")
        coordinator.reply(await coordinator.submission(), [1])
    assert order == ["large begins", "small", "large"]


async def test_cancelled_while_it_decodes_a_reader_loses_nothing_and_the_next_goes_on_from_there(
    coordinator: ScriptedCoordinator, client: InferenceClient, decoding: Decoding
) -> None:
    async with client.stream("large") as stream:
        reply(coordinator, await coordinator.submission())
        for piece, read in ((3, stream.receive), (PIECES - 2, stream.result)):
            with trio.CancelScope() as scope:
                decoding.meanwhile[piece] = scope.cancel
                await read()
            assert scope.cancelled_caught
            assert decoding.pieces == piece
        delta = await stream.receive()
        completion = await stream.result()
    check(completion)
    assert delta.tokens == completion.generated_tokens == stream.tokens
    assert decoding.pieces == PIECES
    assert len(decoding.begun) == 1
    assert coordinator.of(Kind.ABORT_REQUEST) == []
    assert client.statistics().completed == 1


async def test_what_arrives_while_a_large_partial_is_decoded_comes_behind_it(
    coordinator: ScriptedCoordinator, client: InferenceClient, decoding: Decoding
) -> None:
    tokens = list(range(2**16, 2**16 + 100_000))
    async with client.stream("large") as stream:
        submission = await coordinator.submission()
        coordinator.partial(submission, tokens)
        with trio.CancelScope() as scope:
            decoding.meanwhile[2] = scope.cancel
            await stream.receive()
        coordinator.partial(submission, [1])
        coordinator.reply(submission, [*tokens, 1, 2])
        await until(lambda: stream.finished)
        assert (await stream.receive()).tokens == [*tokens, 1, 2]
    assert len(decoding.begun) == 2  # the partial and the final


@pytest.mark.parametrize("look", ["completion", "receive_nowait"])
async def test_who_cannot_wait_decodes_the_rest_at_once(
    coordinator: ScriptedCoordinator, client: InferenceClient, decoding: Decoding, look: str
) -> None:
    async with client.stream("large") as stream:
        reply(coordinator, await coordinator.submission())
        with trio.CancelScope() as scope:
            decoding.meanwhile[5] = scope.cancel
            await stream.result()
        if look == "receive_nowait":
            assert len(stream.receive_nowait().tokens) == TOKENS
        assert stream.completion is not None
        check(stream.completion)
    assert decoding.pieces == PIECES
    assert len(decoding.begun) == 1


async def test_a_look_at_the_completion_while_another_task_decodes_it_disturbs_nobody(
    coordinator: ScriptedCoordinator, client: InferenceClient, decoding: Decoding
) -> None:
    seen: list[Completion | None] = []

    async with trio.open_nursery() as nursery, client.stream("large") as stream:

        async def look() -> None:
            await until(lambda: decoding.pieces >= 5)
            seen.append(stream.completion)

        nursery.start_soon(look)
        reply(coordinator, await coordinator.submission())
        completion = await stream.result()
    check(completion)
    assert seen == [completion]
    assert len(decoding.begun) == 1
    assert decoding.pieces == PIECES


async def test_a_stream_closed_while_its_reader_decodes_keeps_what_has_come(
    coordinator: ScriptedCoordinator, client: InferenceClient, decoding: Decoding
) -> None:
    async with client.stream("large") as stream:
        decoding.meanwhile[5] = stream.close
        reply(coordinator, await coordinator.submission())
        with pytest.raises(trio.ClosedResourceError):
            await stream.receive()
    assert decoding.pieces == 5
    assert len(stream.tokens) == TOKENS
    assert stream.completion is not None
    check(stream.completion)
    assert coordinator.of(Kind.ABORT_REQUEST) == []


async def test_a_client_closed_while_a_reply_is_decoded_takes_it_from_nobody(
    coordinator: ScriptedCoordinator, client: InferenceClient, decoding: Decoding
) -> None:
    async with trio.open_nursery() as nursery:
        decoding.meanwhile[2] = lambda: nursery.start_soon(client.aclose)
        async with client.stream("large") as stream:
            reply(coordinator, await coordinator.submission())
            check(await stream.result())


async def test_left_while_it_is_decoded_a_large_reply_is_dropped_at_once(
    coordinator: ScriptedCoordinator, client: InferenceClient, decoding: Decoding
) -> None:
    gc.collect()
    gc.disable()
    try:
        with trio.CancelScope() as scope:
            decoding.meanwhile[5] = scope.cancel
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.generate, "large")
                reply(coordinator, await coordinator.submission())
        assert scope.cancelled_caught
        assert [begun() for begun in decoding.begun] == [None]
        assert frames_held() == 0
    finally:
        gc.enable()
    assert coordinator.of(Kind.ABORT_REQUEST) == []
    assert client.statistics().completed == 1


@pytest.mark.parametrize(
    "body",
    [BODY[:-1], BODY + b"\x00", BODY[:900_000] + b"\xc1" + BODY[900_001:], b"\xc4" * 10**6],
    ids=["cut off", "with something behind it", "broken in the middle", "of anything"],
)
async def test_a_large_reply_that_makes_no_sense_costs_its_request_alone(
    coordinator: ScriptedCoordinator, client: InferenceClient, body: bytes
) -> None:
    async with client.stream("other") as other:
        waiting = await coordinator.submission()
        async with client.stream("large") as stream:
            reply(coordinator, await coordinator.submission(), body)
            for _ in range(2):
                with pytest.raises(RemoteProtocolError, match="no MessagePack"):
                    await stream.result()
        coordinator.reply(waiting, [1])
        assert (await other.result()).generated_tokens == [1]
    assert client.statistics().failed == client.statistics().malformed == 1


async def test_a_stream_left_unread_for_long_is_read_while_other_tasks_run(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    count = 20_000

    async def read() -> None:
        assert (await stream.receive()).tokens == [*range(count)]

    async with client.stream("slow") as stream:
        submission = await coordinator.submission()
        for token in range(count):
            coordinator.partial(submission, [token])
        coordinator.reply(submission, [*range(count)])
        await until(lambda: stream.finished)
        assert await turns_during(read) >= count // 256


@pytest.mark.slow
async def test_other_tasks_run_while_many_partials_are_read_that_are_nearly_large(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    tokens = [7] * (HEAVY_BODY - 1000)

    async def read() -> None:
        assert (await stream.receive()).tokens == tokens * 50

    async with client.stream("slow") as stream:
        submission = await coordinator.submission()
        for _ in range(50):
            coordinator.partial(submission, tokens)
        await arrived(stream, 50)
        assert await turns_during(read) >= 20


def frames_held() -> int:
    return sum(isinstance(item, zmq.Frame) for item in gc.get_objects())


async def test_of_a_large_reply_nothing_is_kept_that_its_reader_has_dropped(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async def generate() -> None:
        check(await client.generate("large"))

    for _ in range(3):
        gc.collect()
        before = len(gc.get_objects())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(generate)
            reply(coordinator, await coordinator.submission())
        await until(lambda: not frames_held())
        gc.collect()
        assert len(gc.get_objects()) - before < TOKENS * LAYERS / 100


async def test_a_large_reply_that_nobody_has_looked_into_holds_no_lists_to_walk(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    completions: list[Completion] = []

    async def generate() -> None:
        completions.append(await client.generate("large"))

    async def look() -> None:
        looks.append(completions[0].routing_indices)

    looks: list[Any] = []
    gc.collect()
    before = len(gc.get_objects())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(generate)
        reply(coordinator, await coordinator.submission())
    gc.collect()
    assert len(gc.get_objects()) - before < TOKENS * LAYERS / 100
    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        nursery.start_soon(look)
    assert looks[0] is looks[1] is completions[0].routing_indices
    assert looks[0] == msgpack.unpackb(BODY)["routing_indices"][1]
    assert frames_held() == 0  # the bytes are let go


async def test_who_takes_replies_as_they_are_gets_a_large_one_whole(
    coordinator: ScriptedCoordinator,
) -> None:
    async with open_client(coordinator.address, deserialize=False) as client:
        async with client.stream("large") as stream:
            reply(coordinator, await coordinator.submission())
            fields = await stream.result()
    assert fields == msgpack.unpackb(BODY) | {"latency": fields["latency"]}


@pytest.mark.parametrize(
    "row",
    [b"\x97\xa1\xff" + bytes(6), b"\x96\x81\x01\x01" + bytes(5)],
    ids=["text that is none", "a key that is a number"],
)
async def test_a_large_array_that_makes_no_sense_costs_its_request_before_anybody_looks(
    coordinator: ScriptedCoordinator, client: InferenceClient, row: bytes
) -> None:
    start = BODY.index(b"\x98", BODY.index(b"routing_indices") + 500_000)
    async with client.stream("large") as stream:
        body = BODY[:start] + row + BODY[start + len(row) :]
        reply(coordinator, await coordinator.submission(), body)
        with pytest.raises(RemoteProtocolError, match="no MessagePack"):
            await stream.result()
    assert client.statistics().failed == client.statistics().malformed == 1


async def test_of_a_large_request_nothing_is_kept_once_it_has_left(
    coordinator: ScriptedCoordinator, client: InferenceClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []
    make_frames = Submission.frames

    def watched(*args: Any) -> Any:
        frames = make_frames(*args)
        sent.extend(frame for frame in frames if isinstance(frame, bytes) and len(frame) >= 2**20)
        return frames

    monkeypatch.setattr(Submission, "frames", watched)
    images = [bytes(2**20)] * 4
    async with client.stream(list(range(2**18)), multi_modal_data={"image": images}):
        await coordinator.submission()
        assert len(sent) == 2  # the ids, the images
        await until(lambda: [sys.getrefcount(frame) for frame in sent] == [3, 3])  # here alone


async def test_an_abandoned_prefill_with_a_large_reply_is_released(
    coordinator: ScriptedCoordinator, client: InferenceClient, decoding: Decoding
) -> None:
    handle = {"request_id": 77, "block_ids": [1, 2], "kv_meta": {"a": 1}}
    coordinator.answers_aborts = False
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.prefill([1, 2, 3]).__aenter__)
            submission = await coordinator.submission()
            scope.cancel()
    reply(coordinator, submission, large_reply(TOKENS, LAYERS, disaggregated_params=handle))
    assert (await coordinator.next(Kind.RELEASE_KV)).id == 77
    assert decoding.begun == []
