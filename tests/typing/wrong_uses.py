"""What type checkers have to refuse. Nobody runs it.

Each line names the error that mypy has to find in it, and the one that pyright has to; where one of
them finds none, it complains of a needless comment. So nothing here can pass unseen.
"""

# pyright: reportUnusedCoroutine=false, reportUnusedExpression=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trio_infer import (
    Completion,
    CompletionStream,
    ConnectionLost,
    GenerateRequest,
    InferenceClient,
    RequestFailed,
    SamplingParams,
    as_completed,
    best_of,
    connect_client,
    continue_from,
    gather,
    generate_within,
    hedge,
    open_client,
    race,
)
from trio_infer.embedded import EmbeddedCoordinator, Faults, open_coordinator

if TYPE_CHECKING:
    import trio


async def opening(nursery: trio.Nursery) -> None:
    open_client()  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    open_client("tcp://a:1", "0.19")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    open_client("tcp://a:1", conect_timeout=1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    open_client("tcp://a:1", connect_timeout="1")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    open_client("tcp://a:1", close_timeout=None)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    open_client("tcp://a:1", dialect=0.19)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    open_client("tcp://a:1", deserialize="no")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    open_client("tcp://a:1", tokenizer=str)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await connect_client("tcp://a:1")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    with open_client("tcp://a:1"):  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass


async def requests(client: InferenceClient, stream: CompletionStream) -> None:
    await client.generate()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await client.generate(None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await client.generate(["text"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    await client.generate("a", {"temperature": 1.0})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await client.generate("a", SamplingParams(), [b"image"])  # type: ignore[arg-type, call-arg]  # pyright: ignore[reportCallIssue]
    await client.generate("a", timeout=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await client.generate("a", kv_handoff={"request_id": 1})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    client.generate("a").generated_text  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    (await client.generate("a")).generated_text.upper()  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    await client.stream("a")  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    stream.tokens = []  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    stream.send([1])  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    with client.stream("a"):  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass
    client.statistics.in_flight  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    client.release_handoff("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async with client.prefill("a") as handoff:
        handoff.kv_meta = {}  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


async def raw(client: InferenceClient[dict[str, Any]]) -> None:
    (await client.generate("a")).generated_text  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    await gather(client, [GenerateRequest("a")])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await race(client, [])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await hedge(client, GenerateRequest("a"), after=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await generate_within(client, 1, "a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def groups(client: InferenceClient) -> None:
    client.open_group(max_concurrency="4")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async with client.open_group() as group:
        group.submit_nowait("a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        await group.submit_nowait(GenerateRequest("a"))  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
        async for outcome in group:  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
            pass
        async for outcome in group.outcomes:
            outcome.completion.generated_text  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
            outcome.index = 1  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


async def purposes(client: InferenceClient, cut: Completion) -> None:
    await gather(client, ["a", "b"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    await gather([GenerateRequest("a")], client)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async for _ in as_completed(client, []):  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass
    await best_of(client, "a", n=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await best_of(client, "a", n=2, score=len)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await best_of(client, "a", n=2, score=lambda each: each.generated_text)  # type: ignore[arg-type, return-value]  # pyright: ignore[reportArgumentType]
    await race(client, [], accept=lambda: True)  # type: ignore[arg-type, misc]  # pyright: ignore[reportArgumentType]
    await hedge(client, GenerateRequest("a"))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await generate_within(client, "a")  # type: ignore[arg-type, call-arg]  # pyright: ignore[reportCallIssue]
    continue_from(cut)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await continue_from("cut short", "a")  # type: ignore[arg-type, misc]  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues]


async def engines(client: InferenceClient, coordinator: EmbeddedCoordinator) -> None:
    client.engines.paused()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    client.engines.paused(confirm=coordinator.engines_paused())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    client.engines.suspended(confirm=coordinator.pause)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await client.engines.pause()  # type: ignore[func-returns-value, misc]  # pyright: ignore[reportGeneralTypeIssues]
    client.engines.unpause(True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    client.engines.set_generation_epoch("3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def values(lost: ConnectionLost, completion: Completion) -> None:
    SamplingParams(0.5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    SamplingParams(temperature="hot")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    SamplingParams(stop_words=[1])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    SamplingParams(num_tokens=4)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    SamplingParams().temperature = 0.5  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    GenerateRequest()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    GenerateRequest("a").tag = 1  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    completion.generated_tokens = []  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    completion.finish_reason == "finished"  # type: ignore[comparison-overlap]  # pyright: ignore[reportUnnecessaryComparison]
    lost.tokens.append(1)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    RequestFailed("failed")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def embedded() -> None:
    open_coordinator("tcp://127.0.0.1:*")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    open_coordinator(model="ngram")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    open_coordinator(faults={"drop": 0.1})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Faults(drop="often")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async with open_coordinator() as coordinator:
        coordinator.running = ()  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
        coordinator.wait_until(lambda: True).running  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
        await coordinator.freeze()  # type: ignore[func-returns-value, misc]  # pyright: ignore[reportGeneralTypeIssues]
