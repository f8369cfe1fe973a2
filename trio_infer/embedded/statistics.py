"""What a coordinator has done so far, in numbers."""

from __future__ import annotations

import attrs

__all__ = ["CoordinatorStatistics", "RunningRequest"]


@attrs.frozen(kw_only=True)
class RunningRequest:
    """A request that an engine is decoding.

    Attributes:
        request_id: the coordinator's number for it, not its client's.
        engine: the index of the engine.
        prompt_length: tokens of its prompt.
        generated_length: tokens generated so far.
    """

    request_id: int
    engine: int
    prompt_length: int
    generated_length: int


@attrs.frozen(kw_only=True)
class CoordinatorStatistics:
    """A snapshot of a coordinator's counters.

    ``submitted == running + waiting + completed + failed + lost``, always.

    Attributes:
        clients: those that have shaken hands.
        submitted: requests taken from them.
        running: those that are being decoded.
        waiting: those that wait for one to end, or for the engines to go on.
        completed: those that ended well, aborted ones among them.
        aborted: those of the completed that an abort ended, or that their client left behind.
        failed: those that were refused.
        lost: those of engines that died or were stopped: nobody is told of them.
        aborts: ABORT messages that met a request.
        stray_aborts: those that met none: finished, or never sent.
        ignored: messages of clients that have not shaken hands.
        malformed: messages that made no sense, or no sense then.
        unroutable: replies whose client had gone. A real coordinator crashes on the first.
        steps: steps of the engines.
        tokens: tokens that they generated.
        dropped: replies lost on purpose, as `Faults` have it; so are the following.
        dropped_acks: answers to handshakes lost.
        duplicated: replies sent twice.
        corrupted: replies some bytes of which were others.
        delayed: replies held back.
        reordered: replies that others overtook.
        failed_on_purpose: requests failed, which count as failed as well.
    """

    clients: int = 0
    submitted: int = 0
    running: int = 0
    waiting: int = 0
    completed: int = 0
    aborted: int = 0
    failed: int = 0
    lost: int = 0
    aborts: int = 0
    stray_aborts: int = 0
    ignored: int = 0
    malformed: int = 0
    unroutable: int = 0
    steps: int = 0
    tokens: int = 0
    dropped: int = 0
    dropped_acks: int = 0
    duplicated: int = 0
    corrupted: int = 0
    delayed: int = 0
    reordered: int = 0
    failed_on_purpose: int = 0
