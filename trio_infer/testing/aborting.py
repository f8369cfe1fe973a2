"""Whether nothing is decoded any more for callers who have left."""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Final

import trio
from trio.testing import wait_all_tasks_blocked

from ..embedded import EmbeddedCoordinator
from ..models.scalars import to_count, to_seconds

if TYPE_CHECKING:
    from ..embedded import ReceivedRequest

__all__ = ["assert_all_aborted"]

_ARRIVAL: Final = 0.01
"""Seconds without anything to do after which what was sent has most likely arrived."""


async def assert_all_aborted(
    coordinator: EmbeddedCoordinator, *, completed: int | None = None, within: float = 1.0
) -> None:
    """Asserts that no engine decodes for a caller who has left.

    It waits until the coordinator has no request any more, and fails if one is still to be decoded
    by then, or has meanwhile been decoded to the end. A request that was told to stop will: it may
    still be there, if the engines are paused or take long steps. Those that failed, or are lost
    with their engine, nobody decodes.

    What was complete before, somebody may have waited for. What was forgotten, and soon complete,
    looks the same. ``completed`` tells them apart; so do a ``step_time`` and a budget of tokens
    that is not spent within the test. Cancelling it changes nothing.

    A frozen coordinator takes nothing: thaw it first, lest what was sent meanwhile be overlooked.

    Args:
        coordinator: where the requests went.
        completed: how many may be decoded to the end since the coordinator was opened; None: those
            that are complete when this is called.
        within: how many seconds of trio's clock it waits.

    Raises:
        AssertionError: not all were aborted. It says which, how long ago they came, and how many
            tokens were generated for them.
        TypeError, ValueError: for a wrong argument.
    """
    __tracebackhide__ = True
    _check(coordinator)
    patience = to_seconds(within, "within")
    known = coordinator.requests if completed is None else ()
    allowed = (
        _decoded(coordinator) if completed is None else to_count(completed, "completed", least=0)
    )
    with trio.move_on_after(patience):
        await wait_all_tasks_blocked(_ARRIVAL)
        await coordinator.wait_until(lambda: _is_quiet(coordinator))
    going_on, decoded = _going_on(coordinator), _decoded(coordinator)
    complaints = []
    if going_on:
        frozen = ", and the coordinator is frozen" if coordinator.frozen else ""
        complaints += [f"not aborted within {patience:g} s{frozen}:", *map(_told, going_on)]
    if decoded > allowed:
        complete = [each for each in coordinator.requests if each.state == "completed"]
        complaints += [f"decoded to the end: {decoded}, where {allowed} may be"]
        complaints += [_told(each) for each in complete if each not in known]
    if complaints:
        raise AssertionError("\n".join(complaints))


def _check(coordinator: object) -> None:
    if not isinstance(coordinator, EmbeddedCoordinator):
        msg = f"coordinator must be an EmbeddedCoordinator, not {type(coordinator).__name__}"
        raise TypeError(msg)


def _going_on(coordinator: EmbeddedCoordinator) -> list[ReceivedRequest]:
    """The requests that are decoded, or will be."""
    return [each for each in coordinator.requests if each.state in ("waiting", "running")]


def _is_quiet(coordinator: EmbeddedCoordinator) -> bool:
    """Whether no request is left, but for those that paused engines cannot end."""
    counts = coordinator.statistics()
    return not (_going_on(coordinator) if coordinator.paused else counts.running + counts.waiting)


def _decoded(coordinator: EmbeddedCoordinator) -> int:
    """How many requests were decoded to the end so far."""
    counts = coordinator.statistics()
    return counts.completed - counts.aborted


def _told(request: ReceivedRequest) -> str:
    age = trio.current_time() - request.received_at
    return (
        f"- request {request.request_id}, {request.state}, which came {age:.3g} s ago: "
        f"{request.generated_length} tokens for {reprlib.repr(request.prompt)}"
    )
