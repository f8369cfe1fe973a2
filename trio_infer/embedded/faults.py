"""Faults on demand: what befalls the replies of a coordinator between its core and its socket.

Every draw depends on the seed, on the request's number and on the reply's place among its own: not
on time, on what else is going on, or on how probable other faults are. A fault that is made more
probable befalls what it befell before, and more.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from typing import TYPE_CHECKING, Final

import attrs

from ..models.scalars import to_float, to_probability
from .outgoing import Outgoing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..protocol.packing import Frame, Frames

__all__ = ["FaultInjector", "Faults"]

HEAD_BYTES: Final = 11
"""A list, a header number and a request id take no more, at the beginning of the first frame."""

NEVER_USED: Final = 0xC1
"""The one byte that MessagePack has no use for."""

MAX_SPOILED_BYTES: Final = 8

MAX_OVERTAKERS: Final = 4

OVERTAKEN_SECONDS: Final = 0.1
"""So long a reply waits at most to be overtaken."""


@attrs.frozen(kw_only=True)
class Faults:
    """How probable it is that a message of the embedded coordinator meets with a fault.

    A reply is a partial result or the final reply. Replies to one request keep their order,
    whatever befalls them, as they do over one connection.

    Args:
        drop: that a reply is lost.
        drop_acks: that the answer to a client's handshake is lost.
        duplicate: that a reply is sent twice.
        corrupt: that some bytes of a reply are others. It may not say any more whose it is, but
            never says that it is another request's.
        delay: that a reply is held back, and with it those behind it.
        delay_seconds: for how long, at least and at most.
        reorder: that a reply is overtaken by the next ones to its client's other requests. If none
            come it goes all the same: at once if the engines have nothing to do, else within a
            tenth of a second.
        fail: that a request fails as soon as it is submitted, with an error that is transient.

    Raises:
        TypeError: an argument is no number.
        ValueError: a probability is not in [0, 1], or ``delay_seconds`` no span of time.
    """

    drop: float = 0.0
    drop_acks: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    delay: float = 0.0
    delay_seconds: tuple[float, float] = (0.0, 0.1)
    reorder: float = 0.0
    fail: float = 0.0

    def __attrs_post_init__(self) -> None:
        for name, value in attrs.asdict(self, recurse=False).items():
            checked = _span(value, name) if name == "delay_seconds" else to_probability(value, name)
            object.__setattr__(self, name, checked)


def _span(value: object, name: str) -> tuple[float, float]:
    if not isinstance(value, tuple | list) or len(value) != 2:  # noqa: PLR2004 - a span's ends
        msg = f"{name} must be two numbers of seconds, the least and the most"
        raise TypeError(msg)
    least, most = (to_float(end, f"{name}[{index}]") for index, end in enumerate(value))
    if not 0 <= least <= most:
        msg = f"{name} must be a span of seconds, not from {least:g} to {most:g}"
        raise ValueError(msg)
    return least, most


@attrs.define(eq=False)
class _Held:
    """A reply that waits.

    Attributes:
        message: the reply.
        due: when it goes at the latest.
        overtakers: after so many replies to other requests it goes before that; 0: it does not.
        overtaken: how many there were.
    """

    message: Outgoing
    due: float
    overtakers: int = 0
    overtaken: int = 0


class FaultInjector:
    """Passes messages on, or does not. Without I/O or a clock of its own.

    Nothing is held for ever: `due` tells when to ask again.

    Args:
        faults: which, and how probable; may be others at any time, for what comes then.
        seed: where chance begins; None: somewhere else each time.

    Attributes:
        counts: what has been done, by its name in the statistics.
    """

    def __init__(self, faults: Faults | None = None, *, seed: int | None = None) -> None:
        self.faults: Faults = Faults() if faults is None else faults
        self.counts: Counter[str] = Counter()
        self._seed = random.SystemRandom().getrandbits(64) if seed is None else seed
        self._acks = 0
        self._queues: dict[int, deque[_Held]] = {}  # by request, in the order of its replies
        self._overtaken: dict[bytes, int] = {}  # by client, the request whose reply lets others by

    @property
    def due(self) -> float:
        """When the next reply has been held back for long enough; infinity if none is held."""
        return min((queue[0].due for queue in self._queues.values()), default=math.inf)

    def fails(self, request: int) -> bool:
        """Whether a request is failed now that it is submitted."""
        if self._strikes("fail", request) is None:
            return False
        self.counts["failed_on_purpose"] += 1
        return True

    def pass_on(
        self, outgoing: Sequence[Outgoing], now: float, *, busy: bool
    ) -> Sequence[Outgoing]:
        """What is to be sent now, in order, of new messages and of those held back.

        Args:
            outgoing: the new ones.
            now: the time in seconds, by whatever clock `due` is looked at with.
            busy: whether the engines have something to do; if not, no more replies come soon.
        """
        sent: list[Outgoing] = []
        for message in outgoing:
            self._take(message, now, sent)
        for request, queue in sorted(self._queues.items(), key=lambda item: item[1][0].due):
            if queue and (queue[0].due <= now or (queue[0].overtakers and not busy)):
                self._release(request, now, sent)
        return sent

    def forget(self) -> None:
        """Drops what is held back: the coordinator has ended."""
        self._queues.clear()
        self._overtaken.clear()

    def _strikes(self, fault: str, *what: int) -> random.Random | None:
        """If the fault befalls this, the chance that decides how."""
        probability = getattr(self.faults, fault)
        if not probability:
            return None
        key = "/".join(map(str, (self._seed, fault, *what)))
        chance = random.Random(key)  # noqa: S311 - no secret
        return chance if chance.random() < probability else None

    def _take(self, message: Outgoing, now: float, sent: list[Outgoing]) -> None:
        """Sends a message, holds it, or drops it."""
        if message.request is None:
            self._acks += 1
            if self._strikes("drop_acks", self._acks):
                self.counts["dropped_acks"] += 1
            else:
                sent.append(message)
            return
        request, place = message.request, message.place
        if self._strikes("drop", request, place):
            self.counts["dropped"] += 1
            return
        if chance := self._strikes("corrupt", request, place):
            self.counts["corrupted"] += 1
            message = attrs.evolve(message, frames=_corrupted(message.frames, chance))
        copies = [_Held(message, now)]
        if self._strikes("duplicate", request, place):
            self.counts["duplicated"] += 1
            copies.append(_Held(message, now))
        self._hold_back(copies[0], request)
        if copies[0].due > now or request in self._queues:
            self._queues.setdefault(request, deque()).extend(copies)
        else:
            for copy in copies:
                self._send(copy.message, now, sent)

    def _hold_back(self, held: _Held, request: int) -> None:
        """Says how long a reply is to wait, if at all.

        One at a time lets a client's other replies by: if all did, none would be overtaken.
        """
        message = held.message
        if chance := self._strikes("delay", request, message.place):
            self.counts["delayed"] += 1
            held.due += chance.uniform(*self.faults.delay_seconds)
        elif request in self._queues or message.identity in self._overtaken:
            return
        elif chance := self._strikes("reorder", request, message.place):
            held.due += OVERTAKEN_SECONDS
            held.overtakers = chance.randint(1, MAX_OVERTAKERS)
            self._overtaken[message.identity] = request

    def _send(self, message: Outgoing, now: float, sent: list[Outgoing]) -> None:
        """Sends a reply, and after it the one that it was to overtake, if it was the last to."""
        sent.append(message)
        request = self._overtaken.get(message.identity)
        if request is not None and request != message.request:
            slow = self._queues[request][0]
            slow.overtaken += 1
            if slow.overtaken == slow.overtakers:
                self._release(request, now, sent)

    def _release(self, request: int, now: float, sent: list[Outgoing]) -> None:
        """Sends the first reply that is held for a request, and those behind it that only wait."""
        queue = self._queues[request]
        first = queue.popleft()
        going = [first]
        while queue and queue[0].due <= now:
            going.append(queue.popleft())
        if not queue:
            del self._queues[request]
        if first.overtakers:
            del self._overtaken[first.message.identity]
            self.counts["reordered"] += first.overtaken > 0
        for held in going:
            self._send(held.message, now, sent)


def _corrupted(frames: Frames, chance: random.Random) -> Frames:
    """The frames, with some bytes in one place that are others.

    In the head, which says whose the reply is, they are such that it says nothing any more: noise
    there could make the reply another request's.
    """
    place = chance.randrange(sum(map(len, frames)))
    spoiled: list[Frame] = []
    for index, frame in enumerate(frames):
        content = bytearray(frame)
        if 0 <= place < len(content):
            if index == 0 and place < HEAD_BYTES:
                content[0] = NEVER_USED
            else:
                for each in range(place, min(place + MAX_SPOILED_BYTES, len(content))):
                    content[each] ^= chance.randrange(1, 256)
        place -= len(content)
        spoiled.append(bytes(content))
    return spoiled
