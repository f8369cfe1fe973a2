"""A client's counters and tables, once all its requests have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trio_infer import InferenceClient

__all__ = ["check_books"]


def check_books(client: InferenceClient[Any], **expected: int) -> None:
    """Every request has ended, in one way; in which, and how often, the test may know."""
    statistics = client.statistics()
    ended = statistics.completed + statistics.failed + statistics.aborted + statistics.lost
    assert statistics.submitted == ended
    assert (statistics.in_flight, statistics.waiting, statistics.aborting) == (0, 0, 0)
    assert {name: getattr(statistics, name) for name in expected} == expected
    session = client._exchange._session
    assert (session._running, session._finishing, session._aborting) == ({}, {}, {})
    assert client._exchange._scopes == 0
    assert client._exchange._admission._promised == 0
