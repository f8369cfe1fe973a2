"""Ctrl-C in the middle of what must not be torn: it waits, and the engine hears of the abort."""

from __future__ import annotations

import signal
from typing import Any

import pytest
import trio

from tests.peers import ScriptedCoordinator, scripted_coordinator
from trio_infer import InferenceClient, SamplingParams, open_client
from trio_infer.protocol.client_codec import ClientCodec
from trio_infer.protocol.dialect import Kind
from trio_infer.protocol.session import Session

LONG = SamplingParams(num_tokens_to_generate=100_000)


def interrupt_once(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, *, before: bool = False
) -> None:
    """Has Ctrl-C come before or behind the first call of a method."""
    original = getattr(owner, name)
    due = [signal.SIGINT]

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if before and due:
            signal.raise_signal(due.pop())
        result = original(*args, **kwargs)
        if due:
            signal.raise_signal(due.pop())
        return result

    monkeypatch.setattr(owner, name, interrupted)


async def stream_a_token(coordinator: ScriptedCoordinator, client: InferenceClient) -> None:
    async with client.stream("hi", LONG) as stream:
        submission = await coordinator.submission()
        coordinator.partial(submission, [1])
        await stream.receive()


@pytest.mark.parametrize(
    ("owner", "name", "before"),
    [
        (Session, "submit", True),  # sent, and not yet in the table
        (Session, "submit", False),
        (Session, "abandon", True),
        (Session, "abandon", False),  # out of the table, and the abort not yet sent
        (ClientCodec, "decode", False),  # read from the socket, and not yet passed on
        (Session, "partial", False),
    ],
)
def test_ctrl_c_leaves_no_request_behind(
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    before: bool,  # noqa: FBT001 - a table
) -> None:
    coordinators: list[ScriptedCoordinator] = []

    async def main() -> None:
        async with scripted_coordinator() as coordinator:
            coordinators.append(coordinator)
            async with open_client(coordinator.address) as client:
                interrupt_once(monkeypatch, owner, name, before=before)
                clients.append(client)
                await stream_a_token(coordinator, client)

    clients: list[InferenceClient] = []
    with pytest.RaisesGroup(KeyboardInterrupt, flatten_subgroups=True):
        trio.run(main)
    (coordinator,) = coordinators
    assert coordinator.of(Kind.SUBMIT_REQUEST) == coordinator.of(Kind.ABORT_REQUEST) == [0]
    assert coordinator.unroutable == 0
    statistics = clients[0].statistics()
    assert (statistics.submitted, statistics.aborted, statistics.undelivered) == (1, 1, 0)
