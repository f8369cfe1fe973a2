"""Text while it streams: what deltas and streams tell of it, and what becomes of its faults."""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
import trio
import trio.testing

from tests.peers import scripted_coordinator
from tests.waiting import arrived, until
from trio_infer import (
    Completion,
    ConnectionLost,
    GenerateRequest,
    InferenceClient,
    RequestFailed,
    SamplingParams,
    TokenDelta,
    connect_client,
    generate_within,
    hedge,
    open_client,
)
from trio_infer.embedded import NgramModel, open_coordinator
from trio_infer.protocol.dialect import Kind

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from tests.peers import Received, ScriptedCoordinator
    from trio_infer import CompletionStream

EURO: Final = list("€".encode())
LONG: Final = SamplingParams(num_tokens_to_generate=100_000)


class Bytes:
    """Ids are bytes. Notes in which tasks it was called."""

    def __init__(self) -> None:
        self.tasks: set[object] = set()

    def decode(self, ids: list[int]) -> str:
        self.tasks.add(trio.lowlevel.current_task())
        return bytes(ids).decode(errors="replace")


class Shouting(Bytes):
    def decode(self, ids: list[int]) -> str:
        return super().decode(ids).upper()


class Failing(Bytes):
    """Fails so many times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def decode(self, ids: list[int]) -> str:
        self.times -= 1
        if self.times >= 0:
            msg = "no such token"
            raise KeyError(msg)
        return super().decode(ids)


class TakesBack(Bytes):
    """A byte that fits nowhere changes the text from its beginning on."""

    def decode(self, ids: list[int]) -> str:
        return "?" * len(ids) if 0xFF in ids else super().decode(ids)


@asynccontextmanager
async def streaming(
    coordinator: ScriptedCoordinator, client: InferenceClient, tokenizer: Bytes
) -> AsyncGenerator[tuple[CompletionStream, Received]]:
    """A stream, and what the coordinator has got of it."""
    async with client.stream("hi", LONG, tokenizer=tokenizer) as stream:
        yield stream, await coordinator.submission()


async def test_a_character_split_over_deltas_comes_whole_and_once(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with streaming(coordinator, client, Bytes()) as (stream, submission):
        assert stream.text == ""
        seen = []
        for tokens in ([97, EURO[0]], EURO[1:2], [EURO[2], 98]):
            coordinator.partial(submission, tokens)
            delta = await stream.receive()
            assert delta.tokens == tokens
            seen.append((delta.text, stream.text))
        assert seen == [("a", "a"), ("", "a"), ("€b", "a€b")]
        coordinator.reply(submission, stream.tokens)
        assert [delta async for delta in stream] == []
    assert stream.text == "a€b"


async def test_half_a_character_at_the_end_comes_in_a_last_delta(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with streaming(coordinator, client, Bytes()) as (stream, submission):
        coordinator.partial(submission, [97, EURO[0]])
        assert await stream.receive() == TokenDelta([97, EURO[0]], text="a")
        coordinator.reply(submission, [97, EURO[0]])
        assert await stream.receive() == TokenDelta([], text="\ufffd")
        with pytest.raises(trio.EndOfChannel):
            await stream.receive()
        assert stream.text == "a\ufffd"


async def test_what_only_the_final_reply_brings_has_its_text(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with streaming(coordinator, client, Bytes()) as (stream, submission):
        coordinator.partial(submission, [97, EURO[0]])
        assert (await stream.receive()).text == "a"
        coordinator.reply(submission, [97, *EURO, 98, EURO[0]])
        await until(lambda: stream.finished)
        assert stream.receive_nowait() == TokenDelta([*EURO[1:], 98, EURO[0]], text="€b\ufffd")
        with pytest.raises(trio.EndOfChannel):
            stream.receive_nowait()


async def test_the_text_stays_readable_when_the_block_was_left_early(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with streaming(coordinator, client, Bytes()) as (stream, submission):
        coordinator.partial(submission, [97, EURO[0]])
        await stream.receive()
        coordinator.partial(submission, [EURO[1]])
        await until(lambda: stream._reception.has_news)
        assert stream.text == "a"
    assert stream.tokens == [97, *EURO[:2]]
    assert stream.text == bytes(stream.tokens).decode(errors="replace") == "a\ufffd"
    await coordinator.abort()


async def test_the_text_is_whole_once_the_result_is_there(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with streaming(coordinator, client, Bytes()) as (stream, submission):
        coordinator.partial(submission, [97, EURO[0]])
        await stream.receive()
        coordinator.reply(submission, [97, EURO[0]])
        await stream.result()
        assert stream.text == "a\ufffd"
        with pytest.raises(trio.EndOfChannel):
            await stream.receive()


async def test_finishing_early_leaves_the_whole_text(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with streaming(coordinator, client, Bytes()) as (stream, submission):
        coordinator.partial(submission, [97])
        await stream.receive()
        coordinator.partial(submission, EURO)
        await stream.finish_early()
        assert stream.text == "a€"


async def test_a_stream_has_the_tokenizer_of_its_client_or_its_own(
    coordinator: ScriptedCoordinator,
) -> None:
    default = Bytes()
    async with open_client(coordinator.address, tokenizer=default) as client:
        assert client.tokenizer is default
        for tokenizer, text in ((None, "a"), (Shouting(), "A")):
            async with client.stream("hi", tokenizer=tokenizer) as stream:
                coordinator.reply(await coordinator.submission(), [97])
                assert [delta.text async for delta in stream] == [text]
                assert stream.text == text


async def test_without_a_tokenizer_there_is_no_text(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    assert client.tokenizer is None
    async with client.stream("hi") as stream:
        coordinator.reply(await coordinator.submission(), [97])
        assert [delta.text async for delta in stream] == [None]
        assert stream.text is None
    assert stream.text is None


async def test_replies_left_as_they_are_have_text_as_well(
    coordinator: ScriptedCoordinator,
) -> None:
    async with open_client(coordinator.address, deserialize=False, tokenizer=Bytes()) as client:
        async with client.stream("hi") as stream:
            submission = await coordinator.submission()
            coordinator.partial(submission, EURO[:2])
            assert (await stream.receive()).text == ""
            coordinator.reply(submission, EURO)
            assert (await stream.receive()).text == "€"
            assert (await stream.result())["generated_tokens"] == EURO


async def test_where_nothing_streams_all_text_comes_at_the_end() -> None:
    async with scripted_coordinator(dialect="0.19") as coordinator:
        async with open_client(
            coordinator.address, dialect="0.19", tokenizer=Bytes(), close_timeout=0
        ) as client:
            assert not client.dialect.can_stream
            async with client.stream("hi") as stream:
                coordinator.reply(await coordinator.submission(), [97, *EURO, EURO[0]])
                assert [delta.text async for delta in stream] == ["a€\ufffd"]


@pytest.mark.parametrize("wrong", ["gpt2", b"gpt2", 7, Bytes])
async def test_what_is_no_tokenizer_is_refused_before_anything_is_sent(
    coordinator: ScriptedCoordinator, client: InferenceClient, wrong: Any
) -> None:
    with pytest.raises(TypeError, match="tokenizer must be"):
        open_client(coordinator.address, tokenizer=wrong)
    async with trio.open_nursery() as nursery:
        with pytest.raises(TypeError, match="tokenizer must be"):
            await connect_client(nursery, coordinator.address, tokenizer=wrong)
    with pytest.raises(TypeError, match="tokenizer must be"):
        client.stream("hi", tokenizer=wrong)
    async with client.stream("hi"):
        await coordinator.submission()
    await coordinator.abort()
    assert coordinator.kinds == [Kind.SUBMIT_REQUEST, Kind.ABORT_REQUEST]
    assert len(coordinator.connects) == 1


async def test_a_tokenizer_that_fails_ends_nothing_and_loses_nothing(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with streaming(coordinator, client, Failing(3)) as (stream, submission):
        coordinator.partial(submission, [97])
        with pytest.raises(KeyError, match="no such token"):
            await stream.receive()
        with pytest.raises(KeyError, match="no such token"):
            stream.receive_nowait()
        assert stream.tokens == []
        assert stream.text == ""
        coordinator.partial(submission, [98])
        await arrived(stream, 1)
        with pytest.raises(KeyError, match="no such token"):
            await stream.receive()
        assert coordinator.of(Kind.ABORT_REQUEST) == []
        assert await stream.receive() == TokenDelta([97, 98], text="ab")
        coordinator.reply(submission, [97, 98, 99])
        assert [delta.text async for delta in stream] == ["c"]
    assert client.statistics().completed == 1


async def test_a_request_is_aborted_once_when_its_tokenizer_fails_in_the_block(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    with pytest.raises(KeyError, match="no such token"):
        async with client.stream("hi", LONG, tokenizer=Failing(1)) as stream:
            coordinator.partial(await coordinator.submission(), [97])
            async for _ in stream:
                pytest.fail("there is no text")
    await coordinator.abort()
    assert stream.tokens == [97]
    assert stream.text == "a"
    assert client.statistics().aborted == 1


async def test_the_result_comes_whatever_the_tokenizer_does(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with streaming(coordinator, client, Failing(1)) as (stream, submission):
        coordinator.partial(submission, [97])
        coordinator.reply(submission, [97, 98])
        completion = await stream.result()
        assert completion.generated_tokens == stream.tokens == [97, 98]
        with pytest.raises(KeyError, match="no such token"):
            _ = stream.text
        assert stream.text == "ab"


async def test_a_tokenizer_that_makes_no_str_is_told_of(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    class Raw:
        def decode(self, ids: list[int]) -> Any:
            return bytes(ids)

    async with client.stream("hi", LONG, tokenizer=Raw()) as stream:
        coordinator.partial(await coordinator.submission(), [97])
        with pytest.raises(TypeError, match="must decode to a str, not bytes"):
            await stream.receive()


async def test_text_that_is_taken_back_is_told_of_when_all_tokens_were_received(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with streaming(coordinator, client, TakesBack()) as (stream, submission):
        coordinator.partial(submission, [97])
        assert (await stream.receive()).text == "a"
        coordinator.reply(submission, [97, 0xFF])
        assert await stream.receive() == TokenDelta([0xFF], text="")
        for _ in range(2):
            with pytest.raises(ValueError, match="takes back text"):
                await stream.receive()
        assert (await stream.result()).generated_tokens == [97, 0xFF]
    assert stream.text == "??"


async def test_held_back_text_comes_before_the_error_that_a_request_ends_with(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with streaming(coordinator, client, Bytes()) as (stream, submission):
        coordinator.partial(submission, EURO[:2])
        assert (await stream.receive()).text == ""
        coordinator.reply(submission, [], status="FAILED")
        assert await stream.receive() == TokenDelta([], text="\ufffd")
        for _ in range(2):
            with pytest.raises(RequestFailed):
                await stream.receive()


async def test_a_request_that_fails_without_tokens_says_so_whatever_the_tokenizer_makes_of_none(
    coordinator: ScriptedCoordinator,
) -> None:
    class Joining:
        def decode(self, ids: list[int]) -> str:
            return chr(ids[0]) + "".join(map(chr, ids[1:]))

    async with open_client(coordinator.address, tokenizer=Joining()) as client:
        async with client.stream("hi", LONG) as stream:
            coordinator.reply(await coordinator.submission(), [], status="FAILED")
            with pytest.raises(RequestFailed):
                await stream.receive()
        assert stream.text == ""


async def test_the_error_that_a_request_ends_with_counts_more_than_its_text(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with streaming(coordinator, client, TakesBack()) as (stream, submission):
        coordinator.partial(submission, [97])
        await stream.receive()
        coordinator.partial(submission, [0xFF])
        await stream.receive()
        coordinator.close()
        with pytest.raises(ConnectionLost) as caught:
            await stream.receive()
    assert caught.value.tokens == (97, 0xFF)


async def test_cancelling_a_receive_loses_no_text_and_ends_nothing(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    async with streaming(coordinator, client, Bytes()) as (stream, submission):
        sofar = ""
        for token in [97, *EURO, 98]:
            coordinator.partial(submission, [token])
            await until(lambda: stream._reception.has_news)
            with trio.CancelScope() as scope:
                scope.cancel()
                await stream.receive()
            assert scope.cancelled_caught
            sofar += (await stream.receive()).text or ""
        assert sofar == stream.text == "a€b"
        assert coordinator.of(Kind.ABORT_REQUEST) == []


async def test_the_tokenizer_is_called_by_the_task_that_reads(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    tokenizer = Bytes()
    async with client.stream("hi", LONG, tokenizer=tokenizer) as stream:
        coordinator.reply(await coordinator.submission(), [97])
        await until(lambda: stream.finished)
        assert not tokenizer.tasks
        assert [delta.text async for delta in stream] == ["a"]
    assert tokenizer.tasks == {trio.lowlevel.current_task()}


async def by_group(client: InferenceClient) -> Completion:
    async with client.open_group() as group:
        group.submit_nowait(GenerateRequest("hi", LONG))
        return (await group.outcomes.receive()).unwrap()


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.generate("hi", LONG),
        lambda client: generate_within(client, math.inf, "hi", LONG),
        lambda client: hedge(client, GenerateRequest("hi", LONG), after=1000),
        by_group,
    ],
    ids=["generate", "generate_within", "hedge", "group"],
)
async def test_what_gives_no_deltas_never_calls_the_tokenizer(
    coordinator: ScriptedCoordinator, ask: Callable[[InferenceClient], Awaitable[Completion]]
) -> None:
    completions = []
    async with open_client(coordinator.address, tokenizer=Failing(100)) as client:
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def run() -> None:
                completions.append(await ask(client))

            submission = await coordinator.submission()
            coordinator.partial(submission, [97])
            coordinator.reply(submission, [97, 98])
    assert [completion.generated_tokens for completion in completions] == [[97, 98]]


STORY: Final = "日本語 and €, naïve café: 😀 said the model. " * 4


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"streaming_interval": 2},
        {"streaming_interval": 7, "return_log_probs": True, "top_n_logprobs": 2},
        {"stop_words": ["café"]},
        {"stop_words": ["café"], "detokenize_stop_sequence": True},
        {"stop_words": ["😀 said", "no such words, long as they are"]},
        {"num_tokens_to_generate": 14},  # within the euro sign
    ],
)
async def test_the_text_of_the_embedded_coordinator_is_that_of_its_completion(
    asked: dict[str, Any],
) -> None:
    params = SamplingParams(**{"top_k": 1, "num_tokens_to_generate": 150} | asked)
    async with open_coordinator(model=NgramModel([STORY])) as coordinator:
        tokenizer = coordinator.tokenizer
        async with open_client(coordinator.address, tokenizer=tokenizer) as client:
            async with client.stream("日本", params) as stream:
                texts = [delta.text or "" async for delta in stream]
                completion = await stream.result()
    assert "".join(texts) == stream.text == completion.generated_text
    assert stream.text == tokenizer.decode(completion.generated_tokens)
    assert stream.text.startswith("語 and ")
    assert not any(text.endswith("\ufffd") for text in texts[:-1])


async def test_the_end_of_the_text_has_no_text() -> None:
    async with open_coordinator(model=NgramModel(["Short."])) as coordinator:
        tokenizer = coordinator.tokenizer
        assert tokenizer.decode(tokenizer.encode("naïve")) == "naïve"
        async with open_client(coordinator.address, tokenizer=tokenizer) as client:
            params = SamplingParams(top_k=1, num_tokens_to_generate=50)
            async with client.stream("Sho", params) as stream:
                completion = await stream.result()
    assert completion.finish_reason == "stop"
    assert stream.text == completion.generated_text == "rt."
