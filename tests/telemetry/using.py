"""Requests that end in each way that there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from trio_infer import GenerateRequest, SamplingParams

if TYPE_CHECKING:
    from tests.peers import ScriptedCoordinator
    from trio_infer import InferenceClient

__all__ = ["LONG", "end_in_each_way", "stream"]

LONG = SamplingParams(num_tokens_to_generate=100)


async def stream(
    coordinator: ScriptedCoordinator, client: InferenceClient, prompt: str | list[int]
) -> None:
    """A stream of three partial results, a second between each."""

    async def reply() -> None:
        submission = await coordinator.submission()
        for token in (65, 66, 67):
            await trio.sleep(1)
            coordinator.partial(submission, [token])
        await trio.sleep(1)
        coordinator.reply(submission, [65, 66, 67], prompt_length=2, num_cached_tokens=1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reply)
        async with client.stream(prompt, LONG) as receiving:
            async for _ in receiving:
                pass


async def end_in_each_way(coordinator: ScriptedCoordinator, client: InferenceClient) -> None:
    """One finishes, one is aborted, one fails, and one is lost; with ``max_in_flight=1`` one waits
    in vain besides."""
    async with client.open_group() as group:
        group.submit_nowait(GenerateRequest([1, 2], LONG))
        with trio.move_on_after(1):
            await client.generate([1, 2], LONG)
        coordinator.reply(await coordinator.submission(), [65, 66, 67], prompt_length=2)
        await group.outcomes.receive()
        with trio.move_on_after(1):
            await client.generate([1, 2], LONG)
        await coordinator.submission()
        group.submit_nowait(GenerateRequest([1, 2], LONG))
        coordinator.reply(await coordinator.submission(), [], status="FAILED")
        await group.outcomes.receive()
        group.submit_nowait(GenerateRequest([1, 2], LONG))
        await coordinator.submission()
        coordinator.close()
        await group.outcomes.receive()
