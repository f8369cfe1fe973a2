"""Every dialect, from a client's call to the wire and back."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.naming import named
from tests.peers import scripted_coordinator
from tests.vector_files import read_json
from tests.waiting import settled, until
from trio_infer import (
    PrefixCachingCoordinatorPolicy,
    RemoteProtocolError,
    RequestFailed,
    SamplingParams,
    UnsupportedByDialect,
    open_client,
)
from trio_infer.embedded import open_coordinator
from trio_infer.protocol import preparation
from trio_infer.protocol.dialect import Kind
from trio_infer.protocol.dialects import DIALECTS, ENVIRONMENT

if TYPE_CHECKING:
    from trio_infer import Completion, InferenceClient

EVERY = pytest.mark.parametrize("dialect", list(DIALECTS))
WITHOUT_ABORT = pytest.mark.parametrize("dialect", ["0.19", "0.18"])

LATER_THAN_0_18 = ("num_cached_tokens", "prompt_length", "cg_wait_iters")

greedy = partial(SamplingParams, top_k=1, num_tokens_to_generate=12)


@EVERY
async def test_text_comes_in_every_dialect(dialect: str) -> None:
    async with open_coordinator(dialect=dialect) as coordinator:
        async with open_client(coordinator.address, dialect=dialect) as client:
            assert client.dialect is DIALECTS[dialect]
            completion = await client.generate("The value of", greedy())
            assert len(completion.generated_tokens) == 12
            assert completion.finish_reason == "length"
            generated = coordinator.statistics().tokens
            async with client.stream("The value of", greedy()) as stream:
                await coordinator.wait_until(lambda: coordinator.statistics().tokens > generated)
                coordinator.pause()  # or all of them might come before anybody looks
                deltas = [await stream.receive()] if client.dialect.can_stream else []
                coordinator.unpause()
                deltas += [delta async for delta in stream]
                assert (await stream.result()).generated_tokens == completion.generated_tokens
        assert [t for delta in deltas for t in delta.tokens] == completion.generated_tokens
        assert (len(deltas) > 1) is client.dialect.can_stream
        assert coordinator.statistics().malformed == 0


@EVERY
async def test_log_probs_come_in_every_dialect(dialect: str) -> None:
    params = greedy(return_log_probs=True, top_n_logprobs=2)
    async with open_coordinator(dialect=dialect) as coordinator:
        async with open_client(coordinator.address, dialect=dialect) as client:
            async with client.stream("The value of", params) as stream:
                deltas = [delta async for delta in stream]
                completion = await stream.result()
    log_probs = [p for delta in deltas for p in delta.log_probs or ()]
    top_n = [entry for delta in deltas for entry in delta.top_n_logprobs or ()]
    assert log_probs == completion.generated_log_probs
    assert top_n == completion.generated_top_n_logprobs
    assert len(log_probs) == len(top_n) == 12


@pytest.mark.parametrize(
    ("dialect", "absent"),
    [
        ("framed", set()),
        ("0.20", set()),
        ("0.19", {"uid", "disaggregated_params"}),
        # Of 0.18 there is no recording: these fields its sources do not have.
        ("0.18", {"uid", "disaggregated_params", *LATER_THAN_0_18}),
    ],
)
async def test_an_embedded_reply_holds_what_its_release_holds(
    dialect: str, absent: set[str]
) -> None:
    async with open_coordinator(dialect=dialect) as coordinator:
        async with open_client(coordinator.address, dialect=dialect, deserialize=False) as client:
            fields = await client.generate([65], greedy())
    recorded = read_json("0.20-reply-completed_plain")["frame"][2]
    assert list(fields) == [name for name in recorded if name not in absent]
    if dialect == "0.19":
        assert list(fields) == list(read_json("0.19-reply-completed_plain")["frame"][2])
    assert tuple(fields["sampling_params"]) == DIALECTS[dialect].sampling_fields
    assert (fields["prompt_tokens"] is not None) is (dialect == "0.18")


NO_TOKEN_IDS: list[list[Any]] = [
    ["a"] * 8,
    [None],
    [1.5],
    [True],
    [b"a"],
    [[65]],
    [{"a": 65}],
    [-1],
    [2**63],
    [2**64 - 1],
]


@EVERY
async def test_a_prompt_that_is_no_token_ids_fails_alone_and_ends_no_coordinator(
    dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a client that lets everything pass, to a coordinator that looks at how prompts begin."""
    monkeypatch.setattr(preparation, "coerce_prompt", lambda prompt: prompt)
    options: dict[str, Any] = {
        "block_size_tokens": 1,
        "prefix_caching_coordinator_policy": "longest_prefix",
    }
    async with open_coordinator(dialect=dialect, engines=2, **options) as coordinator:
        async with open_client(coordinator.address, dialect=dialect) as client:
            for prompt in NO_TOKEN_IDS:
                with pytest.raises(RequestFailed):
                    await client.generate(prompt, greedy())
            assert (await client.generate([65] * 8, greedy())).status == "COMPLETED"
        statistics = coordinator.statistics()
    assert (statistics.failed, statistics.completed) == (len(NO_TOKEN_IDS), 1)
    assert (statistics.malformed, statistics.running, statistics.waiting) == (0, 0, 0)


# What a dialect lacks


@pytest.mark.parametrize(
    ("dialect", "params"),
    [
        ("0.18", {"return_prompt_tokens": True}),
        ("0.18", {"streaming_interval": 2}),
        ("0.19", {"streaming_interval": 2}),
    ],
)
async def test_what_the_release_lacks_is_refused_before_anything_is_sent(
    dialect: str, params: dict[str, Any]
) -> None:
    async with scripted_coordinator(dialect=dialect) as coordinator:
        async with open_client(coordinator.address, dialect=dialect) as client:
            with pytest.raises(UnsupportedByDialect, match=next(iter(params))):
                await client.generate("hi", SamplingParams(**params))
            with pytest.raises(UnsupportedByDialect, match=next(iter(params))):
                client.stream("hi", SamplingParams(**params))
            assert client.statistics().submitted == 0
        assert coordinator.log == []


@pytest.mark.parametrize("dialect", ["0.20", "0.19", "0.18"])
async def test_offload_params_are_refused_where_no_frame_could_carry_them(dialect: str) -> None:
    async with scripted_coordinator(dialect=dialect) as coordinator:
        async with open_client(coordinator.address, dialect=dialect) as client:
            with pytest.raises(UnsupportedByDialect, match="leave out offload_params"):
                await client.generate("hi", offload_params={})
            with pytest.raises(UnsupportedByDialect, match="leave out offload_params"):
                client.stream("hi", offload_params={"trace": 1})
        assert coordinator.log == []


@pytest.mark.parametrize("dialect", ["0.20", "0.19", "0.18"])
@pytest.mark.parametrize(
    "hashing",
    [
        {"block_size_tokens": 16, "prefix_caching_coordinator_policy": "longest_prefix"},
        {"block_size_tokens": 16},
        {"prefix_caching_coordinator_policy": PrefixCachingCoordinatorPolicy.LOAD_BALANCED},
    ],
    ids=named,
)
def test_hashing_is_refused_where_the_coordinator_hashes_by_itself(
    dialect: str, hashing: dict[str, Any]
) -> None:
    with pytest.raises(UnsupportedByDialect, match="coordinators hash by themselves"):
        open_client("tcp://h:1", dialect=dialect, **hashing)


async def test_offload_params_arrive_as_they_are() -> None:
    offload = {"trace": "abc", "n": (1, 2), "blob": b"\0"}
    async with scripted_coordinator() as coordinator:
        async with open_client(coordinator.address) as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(client.generate, "hi", offload_params=offload))
                request = await coordinator.submission()
                coordinator.reply(request, [104])
            async with client.stream("hi", offload_params=0):
                assert (await coordinator.submission()).message.offload_params == 0
    assert request.message.offload_params == {"trace": "abc", "n": [1, 2], "blob": b"\0"}


@pytest.mark.parametrize("offload", [{1: 2}, {"a": object()}, {"a": {1, 2}}], ids=named)
async def test_offload_params_that_cannot_be_packed_are_refused(
    client: InferenceClient, offload: object
) -> None:
    with pytest.raises(TypeError, match="offload_params"):
        await client.generate("hi", offload_params=offload)
    assert client.statistics().submitted == 0


# A dialect without abort


@WITHOUT_ABORT
async def test_a_request_that_is_left_sends_nothing_and_its_late_reply_is_dropped(
    dialect: str,
) -> None:
    async with scripted_coordinator(dialect=dialect) as coordinator:
        async with open_client(coordinator.address, dialect=dialect) as client:
            assert not client.dialect.can_abort
            async with client.stream("hi") as stream:
                request = await coordinator.submission()
            statistics = client.statistics()
            assert (statistics.aborted, statistics.aborting, statistics.in_flight) == (1, 1, 0)
            coordinator.reply(request, [1, 2])
            await settled(client)
            assert client.statistics().discarded == 0
            assert stream.tokens == []
        assert [received.kind for received in coordinator.log] == [Kind.SUBMIT_REQUEST]
        assert coordinator.unroutable == 0


@WITHOUT_ABORT
async def test_a_cancelled_generate_sends_nothing_and_the_next_works(dialect: str) -> None:
    async with scripted_coordinator(dialect=dialect) as coordinator:
        async with open_client(coordinator.address, dialect=dialect) as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.generate, "hi")
                first = await coordinator.submission()
                nursery.cancel_scope.cancel()
            outcomes: list[Completion] = []

            async def generate() -> None:
                outcomes.append(await client.generate("ho"))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(generate)
                second = await coordinator.submission()
                coordinator.reply(first, [1])
                coordinator.reply(second, [2])
            assert [outcome.generated_tokens for outcome in outcomes] == [[2]]
        assert len(coordinator.log) == 2
        assert client.statistics().undelivered == 0


@WITHOUT_ABORT
async def test_leaving_waits_for_replies_that_nothing_can_hasten(dialect: str) -> None:
    async with scripted_coordinator(dialect=dialect) as coordinator:
        left = trio.Event()

        async def use() -> None:
            async with open_client(
                coordinator.address, dialect=dialect, close_timeout=60
            ) as client:
                async with client.stream("hi"):
                    request.append(await coordinator.submission())
                leaving.append(client)
            left.set()

        request: list[Any] = []
        leaving: list[InferenceClient] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(use)
            await until(lambda: bool(leaving))
            for _ in range(20):
                await trio.lowlevel.checkpoint()
            assert not left.is_set()
            coordinator.reply(request[0], [1])
            await left.wait()
        assert coordinator.unroutable == 0
        assert leaving[0].statistics().undelivered == 0


@WITHOUT_ABORT
async def test_leaving_is_bounded_where_the_engine_goes_on_for_ever(
    dialect: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted_coordinator(dialect=dialect) as coordinator:
        async with open_client(coordinator.address, dialect=dialect, close_timeout=0.05) as client:
            async with client.stream("hi"):
                await coordinator.submission()
        assert client.statistics().undelivered == 1
        assert "owed the final replies to 1 aborted requests" in caplog.text
        assert "a longer close_timeout lets them finish" in caplog.text


@WITHOUT_ABORT
async def test_nothing_can_be_finished_early_and_the_request_goes_on(dialect: str) -> None:
    async with scripted_coordinator(dialect=dialect) as coordinator:
        async with open_client(coordinator.address, dialect=dialect) as client:
            async with client.stream("hi") as stream:
                request = await coordinator.submission()
                with pytest.raises(UnsupportedByDialect, match="has no abort: await result"):
                    await stream.finish_early()
                coordinator.reply(request, [1, 2])
                assert (await stream.result()).finish_reason == "stop"
                assert await stream.finish_early() is stream.completion
        assert client.statistics().completed == 1


@WITHOUT_ABORT
async def test_finishing_early_in_a_cancelled_scope_is_cancelled_and_the_request_goes_on(
    dialect: str,
) -> None:
    async with scripted_coordinator(dialect=dialect) as coordinator:
        async with open_client(coordinator.address, dialect=dialect) as client:
            async with client.stream("hi") as stream:
                request = await coordinator.submission()
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await stream.finish_early()
                assert scope.cancelled_caught
                coordinator.reply(request, [1, 2])
                assert (await stream.result()).finish_reason == "stop"
        assert client.statistics().completed == 1
        assert len(coordinator.log) == 1


@WITHOUT_ABORT
async def test_a_reply_that_makes_no_sense_fails_its_request_and_sends_nothing(
    dialect: str,
) -> None:
    async with scripted_coordinator(dialect=dialect) as coordinator:
        async with open_client(coordinator.address, dialect=dialect) as client:
            async with client.stream("hi") as stream:
                request = await coordinator.submission()
                coordinator.reply(request, [1], status=7)
                with pytest.raises(RemoteProtocolError):
                    await stream.receive()
        statistics = client.statistics()
        assert (statistics.failed, statistics.malformed, statistics.aborted) == (1, 1, 0)
        assert len(coordinator.log) == 1


# Who says the dialect


async def test_the_environment_says_what_both_ends_speak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, "0.18")
    async with open_coordinator() as coordinator:
        async with open_client(coordinator.address) as client:
            assert client.dialect.name == "0.18"
            assert (await client.generate("hi", greedy())).status == "COMPLETED"
        async with open_client(coordinator.address, dialect=client.dialect) as client:
            assert client.dialect.name == "0.18"


@pytest.mark.parametrize("opened", [open_client, lambda _: open_coordinator().__aenter__()])
async def test_an_unknown_dialect_in_the_environment_is_refused(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT, "0.1")
    with pytest.raises(ValueError, match="TRIO_INFER_DIALECT must be one of"):
        await opened("tcp://h:1")
