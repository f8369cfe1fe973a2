"""What a client has done so far, in numbers."""

from __future__ import annotations

import attrs

__all__ = ["ClientStatistics"]


@attrs.frozen(kw_only=True)
class ClientStatistics:
    """A snapshot of a client's counters.

    ``submitted == in_flight + completed + failed + aborted + lost``, always.

    Attributes:
        in_flight: requests handed over, neither ended nor aborted.
        waiting: requests that wait for their turn under ``max_in_flight``, to be packed if they are
            large, or for the connection.
        aborting: aborted requests whose final reply has not come yet.
        submitted: requests handed over so far.
        completed: those that finished.
        failed: those that the engine failed, or whose reply made no sense.
        aborted: those that this client ended, or left where the dialect has no abort.
        lost: those that went down with a connection.
        discarded: messages that nobody waited for: late partial results of aborted requests, second
            final replies, replies to ids never sent.
        malformed: messages that made no sense.
        connections: how many times the handshake succeeded.
        undelivered: aborted requests whose final reply had not come when their connection ended.
        unreleased: KV handoffs that this client held when their connection ended; on another one
            it cannot release them, since their numbers may be somebody else's there.
    """

    in_flight: int = 0
    waiting: int = 0
    aborting: int = 0
    submitted: int = 0
    completed: int = 0
    failed: int = 0
    aborted: int = 0
    lost: int = 0
    discarded: int = 0
    malformed: int = 0
    connections: int = 0
    undelivered: int = 0
    unreleased: int = 0
