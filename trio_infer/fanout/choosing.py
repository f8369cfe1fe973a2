"""The first of many that will do, and the best of several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from ..client import check_client
from ..errors import NoneAccepted
from ..models import Completion, GenerateRequest, Outcome
from ..models.scalars import to_count, to_float
from .completing import check_function, completing
from .judging import judging

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from ..client import InferenceClient
    from ..models import KVHandoff, Prompt, SamplingParams, SupportsSerialize

__all__ = ["Scored", "best_of", "race"]


async def race(
    client: InferenceClient[Completion],
    requests: Iterable[GenerateRequest],
    *,
    accept: Callable[[Completion], bool | Awaitable[bool]] | None = None,
) -> Completion:
    """Runs requests at once, and returns the first completion that will do; the rest is aborted.

    Cancelled, it aborts all of them.

    Args:
        client: of the coordinator.
        requests: which to run, all at a time.
        accept: whether a completion will do; may be async, and then judges several at once. None:
            any completion does.

    Raises:
        NoneAccepted: none did; it holds what became of all of them.
        TypeError, ValueError, UnsupportedByDialect: for a wrong argument, or a wrong request.
        trio.ClosedResourceError: the client is closed.
        Exception: whatever ``accept`` raises.
    """
    check_client(client)
    judge = _anything if accept is None else accept
    check_function(judge, "accept")
    entrants = tuple(requests)
    if not entrants:
        msg = "requests is empty: nobody can win"
        raise ValueError(msg)
    async with (
        completing(client, entrants, None, fail_fast=True) as outcomes,
        judging(outcomes, judge) as verdicts,
    ):
        losers: list[Outcome[Completion]] = []
        async for judged in verdicts:
            if isinstance(judged, Exception):
                raise judged
            if judged.verdict:
                return judged.outcome.unwrap()
            losers.append(judged.outcome)
    raise NoneAccepted(_none_of(losers, "accepted"), outcomes=losers)


@attrs.frozen
class Scored:
    """The best of several completions.

    Attributes:
        completion: the best one.
        score: how good it is.
        outcomes: all that had ended, and been scored, when it was chosen; failures as well.
    """

    completion: Completion
    score: float
    outcomes: tuple[Outcome[Completion], ...]


async def best_of(
    client: InferenceClient[Completion],
    prompt: Prompt,
    sampling_params: SamplingParams | SupportsSerialize | None = None,
    *,
    n: int,
    score: Callable[[Completion], float | Awaitable[float]],
    good_enough: float | None = None,
    multi_modal_data: Mapping[str, Any] | None = None,
    offload_params: object = None,
    kv_handoff: KVHandoff | None = None,
) -> Scored:
    """Samples a prompt several times at once, and returns the best completion.

    As soon as one is good enough the rest is aborted. Cancelled, it aborts all of them.

    Args:
        client: of the coordinator.
        prompt: as `InferenceClient.generate` takes it.
        sampling_params: as `InferenceClient.generate` takes them; greedy ones make all alike.
        n: how many times.
        score: how good a completion is, as a number; may be async, and then judges several at once.
            Of equally good ones the first to be scored is chosen.
        good_enough: the score that stops the search; None: all are scored.
        multi_modal_data: as `InferenceClient.generate` takes it.
        offload_params: as `InferenceClient.generate` takes them.
        kv_handoff: as `InferenceClient.generate` takes it.

    Raises:
        NoneAccepted: all requests failed; it holds what became of them.
        TypeError, ValueError, UnsupportedByDialect: for a wrong argument; and for a score that is
            no finite number.
        trio.ClosedResourceError: the client is closed.
        Exception: whatever ``score`` raises.
    """
    check_client(client)
    check_function(score, "score")
    count = to_count(n, "n")
    enough = None if good_enough is None else to_float(good_enough, "good_enough")
    request = GenerateRequest(
        prompt,
        sampling_params,
        multi_modal_data=multi_modal_data,
        offload_params=offload_params,
        kv_handoff=kv_handoff,
    )
    best: tuple[float, Completion] | None = None
    seen: list[Outcome[Completion]] = []
    async with (
        completing(client, [request] * count, None, fail_fast=True) as outcomes,
        judging(outcomes, score) as verdicts,
    ):
        async for judged in verdicts:
            if isinstance(judged, Exception):
                raise judged
            seen.append(judged.outcome)
            if judged.outcome.completion is None:
                continue
            number = to_float(judged.verdict, "the score")
            if best is None or number > best[0]:
                best = number, judged.outcome.completion
            if enough is not None and number >= enough:
                break
    if best is None:
        raise NoneAccepted(_none_of(seen, "completed"), outcomes=seen)
    return Scored(best[1], best[0], tuple(seen))


def _anything(_: Completion) -> bool:
    return True


def _none_of(outcomes: list[Outcome[Completion]], what: str) -> str:
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    failed = f", {len(errors)} of which failed, first: {errors[0]!r:.500}" if errors else ""
    return f"none of {len(outcomes)} requests was {what}{failed}"
