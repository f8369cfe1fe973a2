"""Outcomes and what somebody thinks of them, each told as soon as it is known."""

from __future__ import annotations

import inspect
import math
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

import attrs
import trio

from ..background import running_behind
from ..models import Completion, Outcome

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from .completing import Completed

__all__ = ["Judged", "judging"]

Verdict = TypeVar("Verdict")


@attrs.frozen
class Judged(Generic[Verdict]):
    """An outcome, and what is thought of its completion: None if it has none."""

    outcome: Outcome[Completion]
    verdict: Verdict | None = None


@asynccontextmanager
async def judging(
    outcomes: Completed, judge: Callable[[Completion], Verdict | Awaitable[Verdict]]
) -> AsyncGenerator[trio.MemoryReceiveChannel[Judged[Verdict] | Exception]]:
    """Judges completions as they come, and yields the verdicts as they come.

    Where judging waits, several are judged at once, so that a slow judge of one holds up no other.
    What a judge raises is yielded, and not raised: it might be what ends a loop over a channel.
    Leaving the block closes the outcomes, and cancels the judges.
    """
    send, receive = trio.open_memory_channel[Judged[Verdict] | Exception](math.inf)
    async with running_behind(partial(_judge_all, outcomes, judge, send)):
        try:
            yield receive
        finally:
            outcomes.close()  # before the judges are given up, which may take a while


@trio.lowlevel.disable_ki_protection  # the caller's judge may hang
async def _judge_all(
    outcomes: Completed,
    judge: Callable[[Completion], Verdict | Awaitable[Verdict]],
    send: trio.MemorySendChannel[Judged[Verdict] | Exception],
) -> None:
    with send:  # a checkpoint here might replace Ctrl-C: who receives cancels what has ended
        async with trio.open_nursery() as nursery:
            try:
                async for outcome in outcomes:
                    if outcome.completion is None:
                        send.send_nowait(Judged(outcome))
                        continue
                    verdict = judge(outcome.completion)
                    if inspect.isawaitable(verdict):
                        nursery.start_soon(_finish, outcome, verdict, send)
                    else:
                        send.send_nowait(Judged(outcome, verdict))
            except Exception as error:  # noqa: BLE001 - told to whoever receives
                send.send_nowait(error)


async def _finish(  # noqa: ASYNC910 - an awaitable need not wait
    outcome: Outcome[Completion],
    verdict: Awaitable[Verdict],
    send: trio.MemorySendChannel[Judged[Verdict] | Exception],
) -> None:
    try:
        judged: Judged[Verdict] | Exception = Judged(outcome, await verdict)
    except Exception as error:  # noqa: BLE001 - told to whoever receives
        judged = error
    send.send_nowait(judged)
