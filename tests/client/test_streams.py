"""What a stream gives its reader, and in which order."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import numpy as np
import pytest
import trio
import trio.testing

from tests.waiting import arrived, until
from trio_infer import (
    CompletionStream,
    ConnectionLost,
    InferenceClient,
    LocalProtocolError,
    RemoteProtocolError,
    RequestFailed,
    SamplingParams,
    TokenDelta,
    open_client,
)
from trio_infer.protocol.hashing import hash_blocks
from trio_infer.reception import Reception
from trio_infer.sockets import NotConnected, ZmqSocket

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.peers import ScriptedCoordinator
    from trio_infer.protocol.packing import Frame

LONG = SamplingParams(num_tokens_to_generate=100_000)


async def test_all_that_has_come_is_one_delta(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.stream("hi", LONG) as stream:
        submission = await coordinator.submission()
        for token in range(5):
            coordinator.partial(
                submission,
                [token],
                new_log_probs=[-float(token)],
                new_top_n_logprobs=[{"a": -float(token)}],
            )
        await arrived(stream, 5)
        assert await stream.receive() == TokenDelta(
            tokens=[0, 1, 2, 3, 4],
            log_probs=[-0.0, -1.0, -2.0, -3.0, -4.0],
            top_n_logprobs=[{"a": -float(token)} for token in range(5)],
        )


async def test_what_has_come_can_be_taken_without_waiting(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.stream("hi", LONG) as stream:
        with pytest.raises(trio.WouldBlock):
            stream.receive_nowait()
        submission = await coordinator.submission()
        coordinator.partial(submission, [1])
        await arrived(stream, 1)
        assert stream.receive_nowait().tokens == [1]
        with pytest.raises(trio.WouldBlock):
            stream.receive_nowait()
        coordinator.reply(submission, [1, 2])
        await until(lambda: stream.finished)
        assert stream.receive_nowait().tokens == [2]
        for _ in range(2):
            with pytest.raises(trio.EndOfChannel):
                stream.receive_nowait()
            with pytest.raises(trio.EndOfChannel):
                await stream.receive()


async def test_a_partial_without_tokens_is_no_delta(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.stream("hi", LONG) as stream, trio.open_nursery() as nursery:
        submission = await coordinator.submission()

        async def send() -> None:
            coordinator.partial(submission, [])
            await trio.testing.wait_all_tasks_blocked(0.01)
            coordinator.partial(submission, [7])

        nursery.start_soon(send)
        assert (await stream.receive()).tokens == [7]


async def test_result_takes_what_is_unread_into_tokens(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.stream("hi", LONG) as stream:
        submission = await coordinator.submission()
        coordinator.partial(submission, [1])
        coordinator.partial(submission, [2])
        coordinator.reply(submission, [1, 2, 3])
        completion = await stream.result()
        assert completion.generated_tokens == stream.tokens == [1, 2, 3]
        assert stream.completion is completion
        with pytest.raises(trio.EndOfChannel):
            await stream.receive()
    assert stream.tokens == [1, 2, 3]
    assert stream.completion is completion


async def test_looking_at_the_completion_beside_a_reader_takes_nothing_from_it(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.stream("hi", LONG) as stream, trio.open_nursery() as nursery:
        received: list[int] = []

        async def read() -> None:
            async for delta in stream:
                received.extend(delta.tokens)
            assert (await stream.result()).generated_tokens == [1, 2, 3]

        nursery.start_soon(read)
        submission = await coordinator.submission()
        await trio.testing.wait_all_tasks_blocked()
        assert stream.completion is None
        coordinator.partial(submission, [1])
        coordinator.partial(submission, [2])
        await until(lambda: stream.completion is not None or len(received) == 2)
        coordinator.reply(submission, [1, 2, 3])
        await until(lambda: stream.completion is not None)
    assert received == stream.tokens == [1, 2, 3]


async def test_tokens_decoded_by_a_look_at_the_completion_are_still_received(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.stream("hi", LONG) as stream:
        coordinator.partial(await coordinator.submission(), [1])
        await arrived(stream, 1)
        assert stream.completion is None
        assert stream.tokens == []
        assert (await stream.receive()).tokens == [1]


async def test_looking_at_the_completion_in_the_tick_of_two_arrivals_keeps_their_order(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.stream("hi", LONG) as stream, trio.open_nursery() as nursery:

        async def read() -> None:
            assert (await stream.receive()).tokens == [1, 2]
            assert (await stream.result()).generated_tokens == [1, 2]

        nursery.start_soon(read)
        submission = await coordinator.submission()
        await trio.testing.wait_all_tasks_blocked()
        for token in (1, 2):
            stream._reception.partial(coordinator.partial_frames(submission, [token])[1])
        assert stream.completion is None
        await until(lambda: stream.tokens == [1, 2])
        coordinator.reply(submission, [1, 2])


async def test_closing_in_the_tick_of_two_arrivals_keeps_them_in_order(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.stream("hi", LONG) as stream, trio.open_nursery() as nursery:

        async def read() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await stream.receive()

        nursery.start_soon(read)
        submission = await coordinator.submission()
        await trio.testing.wait_all_tasks_blocked()
        for token in (1, 2):
            stream._reception.partial(coordinator.partial_frames(submission, [token])[1])
        stream.close()
        assert stream.tokens == [1, 2]
    assert stream.tokens == [1, 2]


async def test_a_second_reader_at_once_is_refused(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.stream("hi", LONG) as stream, trio.open_nursery() as nursery:
        nursery.start_soon(stream.receive)
        await trio.testing.wait_all_tasks_blocked()
        for read in (stream.receive, stream.result, stream.finish_early):
            with pytest.raises(trio.BusyResourceError):
                await read()
        with pytest.raises(trio.BusyResourceError):
            stream.receive_nowait()
        coordinator.partial(await coordinator.submission(), [1])


async def test_a_stream_that_was_not_entered_knows_nothing(client: InferenceClient) -> None:
    stream = client.stream("hi")
    assert stream.tokens == []
    assert stream.completion is None
    assert not stream.finished
    with pytest.raises(LocalProtocolError, match="enter"):
        stream.request_id  # noqa: B018 - the property raises
    with pytest.raises(LocalProtocolError, match="enter"):
        stream.receive_nowait()
    await stream.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await stream.receive()


async def test_finish_early_of_a_request_that_then_fails_raises(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    coordinator.answers_aborts = False
    ways: tuple[dict[str, object], ...] = ({"status": "FAILED"}, {"status": 7})
    for fields in ways:
        async with client.stream("hi", LONG) as stream, trio.open_nursery() as nursery:

            async def fail(fields: dict[str, object] = fields) -> None:
                coordinator.reply(await coordinator.abort(), [], **fields)

            nursery.start_soon(fail)
            with pytest.raises((RequestFailed, RemoteProtocolError)):
                await stream.finish_early()
    statistics = client.statistics()
    assert (statistics.aborted, statistics.failed, statistics.completed) == (2, 0, 0)
    assert statistics.submitted == 2


async def test_a_final_reply_in_pieces_after_an_abort_counts_once(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    coordinator.answers_aborts = False
    async with client.stream("hi", LONG) as stream, trio.open_nursery() as nursery:

        async def reply_in_pieces() -> None:
            abort = await coordinator.abort()
            coordinator.send(abort.client, [b"\x92\x15" + bytes([abort.id]), b"\x80", b"\x80"])

        nursery.start_soon(reply_in_pieces)
        with pytest.raises(RemoteProtocolError):
            await stream.finish_early()
    statistics = client.statistics()
    assert (statistics.aborted, statistics.failed, statistics.malformed) == (1, 0, 1)


@pytest.mark.parametrize("end", ["connection", "client"])
async def test_nonsense_that_is_read_after_the_end_changes_no_count(
    coordinator: ScriptedCoordinator, client: InferenceClient, end: str
) -> None:
    async with client.stream("hi", LONG) as stream:
        submission = await coordinator.submission()
        coordinator.partial(submission, [1], new_tokens="one")
        await arrived(stream, 1)
        if end == "connection":
            coordinator.close()
            await until(lambda: stream.finished)
        else:
            await client.aclose()
        with pytest.raises(RemoteProtocolError):
            await stream.result()
    statistics = client.statistics()
    assert (statistics.completed, statistics.failed) == (0, 0)
    assert (statistics.lost, statistics.aborted) == ((1, 0) if end == "connection" else (0, 1))


async def test_every_request_ends_in_one_way(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    """Read, never read, failed, senseless, left, finished early, lost: each is counted once."""
    coordinator.answers_aborts = False

    async def one(prompt: str) -> CompletionStream:
        stream = client.stream(prompt, LONG)
        await stream.__aenter__()
        return stream

    read = await one("read")
    coordinator.reply(await coordinator.submission(), [1])
    await read.result()
    unread = await one("never read")
    coordinator.reply(await coordinator.submission(), [1])
    await until(lambda: unread.finished)
    failed = await one("failed")
    coordinator.reply(await coordinator.submission(), [], status="FAILED")
    with pytest.raises(RequestFailed):
        await failed.result()
    senseless = await one("senseless")
    coordinator.reply(await coordinator.submission(), [], status=7)
    with pytest.raises(RemoteProtocolError):
        await senseless.result()
    left = await one("left")
    await coordinator.submission()
    left.close()
    coordinator.reply(await coordinator.abort(), [1])
    early = await one("finished early")
    submission = await coordinator.submission()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(early.finish_early)
        await coordinator.abort()
        coordinator.reply(submission, [1])
    lost = await one("lost")
    await coordinator.submission()
    coordinator.close()
    with pytest.raises(ConnectionLost):
        await lost.result()
    for stream in (read, unread, failed, senseless, left, early, lost):
        await stream.aclose()
    statistics = client.statistics()
    assert statistics.submitted == 7
    assert statistics.completed == 2
    assert statistics.failed == 2
    assert statistics.aborted == 2
    assert statistics.lost == 1
    assert statistics.in_flight == statistics.aborting == statistics.undelivered == 0


async def test_what_has_ended_is_held_by_nobody_but_its_reader(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    before = receptions_alive()  # a test that failed may hold some
    for leave in (False, True):
        async with client.stream("hi", LONG) as stream:
            submission = await coordinator.submission()
            if not leave:
                coordinator.reply(submission, [1])
                await stream.result()
    assert receptions_alive() == before + 1
    del stream
    assert receptions_alive() == before


def receptions_alive() -> int:
    gc.collect()
    return sum(type(thing) is Reception for thing in gc.get_objects())


async def test_a_contradicting_final_reply_is_refused(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with client.stream("hi", LONG) as stream:
        submission = await coordinator.submission()
        coordinator.partial(submission, [1, 2])
        coordinator.reply(submission, [1, 3])
        assert (await stream.receive()).tokens == [1, 2]
        with pytest.raises(RemoteProtocolError, match="contradict"):
            await stream.receive()
    assert client.statistics().failed == 1


@pytest.mark.parametrize(
    "prompt",
    [[1, 2, 3], (1, 2, 3), range(1, 4), np.array([1, 2, 3]), np.array([1, 2, 3], dtype=np.int8)],
)
async def test_token_ids_may_come_in_any_sequence(
    coordinator: ScriptedCoordinator, client: InferenceClient, prompt: Sequence[int]
) -> None:
    async with client.stream(prompt):
        assert (await coordinator.submission()).message.prompt == [1, 2, 3]


async def test_what_a_caller_changes_afterwards_is_not_sent(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    prompt = [1, 2, 3]
    stream = client.stream(prompt)
    prompt.append(4)
    async with stream:
        assert (await coordinator.submission()).message.prompt == [1, 2, 3]


@pytest.mark.parametrize("prompt", ["", [], [1.0], [True], b"bytes", None, ["a"], {1: 2}, "\ud800"])
async def test_a_wrong_prompt_is_refused_before_anything_is_sent(
    coordinator: ScriptedCoordinator, client: InferenceClient, prompt: object
) -> None:
    with pytest.raises((TypeError, ValueError), match="prompt"):
        client.stream(prompt)  # type: ignore[arg-type]
    with pytest.raises((TypeError, ValueError), match="prompt"):
        await client.generate(prompt)  # type: ignore[arg-type]
    assert client.statistics().submitted == 0


async def test_a_handoff_is_not_asked_for_by_accident(client: InferenceClient) -> None:
    """Nobody would release what it pins."""
    with pytest.raises(ValueError, match="do_kv_handoff"):
        client.stream("hi", SamplingParams(do_kv_handoff=True))


async def test_streaming_is_set_on_what_is_sent_and_on_nothing_else(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    params = SamplingParams(num_tokens_to_generate=5, streaming=True)
    async with client.stream("streamed", params), trio.open_nursery() as nursery:
        nursery.start_soon(client.generate, "whole", params)
        for streaming in (True, False):
            submission = await coordinator.submission()
            assert submission.message.sampling_params == params.serialize() | {
                "streaming": streaming
            }
        coordinator.reply(submission, [1])
    assert params == SamplingParams(num_tokens_to_generate=5, streaming=True)


async def test_prompts_are_hashed_where_the_coordinator_is_said_to_read_it(
    coordinator: ScriptedCoordinator,
) -> None:
    async with open_client(
        coordinator.address,
        block_size_tokens=2,
        prefix_caching_coordinator_policy="longest_prefix",
    ) as client:
        async with client.stream([1, 2, 3]), client.stream("text"):
            for _ in range(2):
                await coordinator.submission()
    assert coordinator.block_hashes == [hash_blocks([1, 2], 2), None]


async def test_a_request_that_the_socket_does_not_take_waits_for_the_next_connection(
    coordinator: ScriptedCoordinator, client: InferenceClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = ["the first"]
    send = ZmqSocket.send

    def refuse_once(socket: ZmqSocket, frames: Sequence[Frame]) -> None:
        if refusals and len(frames) == 5:
            refusals.pop()
            raise NotConnected
        send(socket, frames)

    monkeypatch.setattr(ZmqSocket, "send", refuse_once)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.generate, "hi")
        submission = await coordinator.submission()
        coordinator.reply(submission, [1])
    statistics = client.statistics()
    assert (statistics.submitted, statistics.completed, statistics.connections) == (1, 1, 2)


async def test_an_abort_that_the_socket_does_not_take_goes_down_with_the_connection(
    coordinator: ScriptedCoordinator, client: InferenceClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client.stream("hi", LONG):
        await coordinator.submission()

        def refuse(socket: ZmqSocket, frames: Sequence[Frame]) -> None:
            raise NotConnected

        monkeypatch.setattr(ZmqSocket, "send", refuse)
    monkeypatch.undo()
    await until(lambda: client.statistics().connections == 2)
    statistics = client.statistics()
    assert (statistics.aborted, statistics.undelivered, statistics.lost) == (1, 1, 0)
