"""What type checkers are told. The assertions are mypy's to check; here they only have to run."""

from __future__ import annotations

from typing import Any, assert_type

from trio_infer import Completion, CompletionStream, InferenceClient, open_client
from trio_infer.embedded import open_coordinator


async def test_what_requests_end_in_follows_from_how_the_client_was_opened() -> None:
    async with open_coordinator() as coordinator:
        async with open_client(coordinator.address) as client:
            assert_type(client, InferenceClient[Completion])
            assert_type(await client.generate([1]), Completion)
            async with client.stream([1]) as stream:
                assert_type(stream, CompletionStream[Completion])
                assert_type(await stream.result(), Completion)
                assert_type(stream.completion, Completion | None)
        async with open_client(coordinator.address, deserialize=False) as raw:
            assert_type(raw, InferenceClient[dict[str, Any]])
            assert_type(await raw.generate([1]), dict[str, Any])
            async with raw.stream([1]) as raw_stream:
                assert_type(await raw_stream.finish_early(), dict[str, Any])


async def test_whether_to_deserialize_may_be_a_variable() -> None:
    async with open_coordinator() as coordinator:
        for deserialize in (True, False):
            async with open_client(coordinator.address, deserialize=deserialize) as client:
                assert_type(client, InferenceClient[Any])


def test_a_client_without_parameters_is_one_of_completions() -> None:
    def takes(client: InferenceClient, stream: CompletionStream) -> None:
        assert_type(client, InferenceClient[Completion])
        assert_type(stream, CompletionStream[Completion])

    assert takes.__annotations__
