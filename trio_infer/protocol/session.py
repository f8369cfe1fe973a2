"""The table of requests, and the state of each. The rules of a request's life stand here.

A request is known by its id from the moment it is handed over until its final reply, whoever has
left it meanwhile. Its owner is opaque: whatever wants to hear of it.

=========== ================ ================ ==================== ===================
state       partial          final            its owner leaves     finish early
=========== ================ ================ ==================== ===================
running     to the owner     owner; **ended** ABORT; **aborting**  ABORT; **finishing**
finishing   to the owner     owner; **ended** **aborting**         stays
aborting    discarded        heir; **ended**  --                   --
ended       discarded        discarded        nothing              nothing
=========== ================ ================ ==================== ===================

An heir is who wants the final reply of a request that was left: only a prefill has one, since its
handoff has to be released. A reply that makes no sense takes its owner away as well: `fail` is
leaving, counted otherwise. When the connection is lost every state becomes *ended*. Ids are never
used twice, so a late reply finds nobody rather than somebody else.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import attrs

__all__ = ["Session"]

Owner = TypeVar("Owner")


@attrs.define(eq=False)
class Session(Generic[Owner]):
    """The requests of one client, over all its connections.

    ``submitted == in_flight + completed + failed + aborted + lost`` holds after every call.

    Attributes:
        recognized: who wants the partial results that begin with these bytes.
    """

    submitted: int = 0
    completed: int = 0
    failed: int = 0
    aborted: int = 0
    lost: int = 0
    discarded: int = 0
    undelivered: int = 0
    _next_id: int = 0
    _running: dict[int, Owner] = attrs.field(factory=dict)
    _finishing: dict[int, Owner] = attrs.field(factory=dict)
    _aborting: dict[int, Owner | None] = attrs.field(factory=dict)
    recognized: dict[bytes, Owner] = attrs.field(factory=dict)
    _beginnings: dict[int, bytes] = attrs.field(factory=dict)

    @property
    def in_flight(self) -> int:
        """How many requests run."""
        return len(self._running)

    @property
    def aborting(self) -> int:
        """How many final replies are owed for aborts."""
        return len(self._aborting) + len(self._finishing)

    def reserve_id(self) -> int:
        """An id for a request about to be handed over; it need not come to that."""
        request_id = self._next_id
        self._next_id += 1
        return request_id

    def submit(self, request_id: int, owner: Owner) -> None:
        """The request was handed over."""
        self._running[request_id] = owner
        self.submitted += 1

    def partial(self, request_id: int, beginning: bytes = b"") -> Owner | None:
        """A partial result arrived. Returns who wants it.

        Args:
            request_id: the request.
            beginning: what no message begins with but partial results of this request, if known:
                for the next ones it is enough to look at `recognized`.
        """
        owner = self._running.get(request_id)
        if owner is None:
            owner = self._finishing.get(request_id)
            if owner is None:
                self.discard()
                return None
        if beginning and request_id not in self._beginnings:
            self._beginnings[request_id] = beginning
            self.recognized[beginning] = owner
        return owner

    def _forget(self, request_id: int) -> None:
        beginning = self._beginnings.pop(request_id, None)
        if beginning is not None:
            del self.recognized[beginning]

    def final(self, request_id: int) -> Owner | None:
        """The final reply arrived; the request has ended. Returns who wants the reply."""
        if self._beginnings:
            self._forget(request_id)
        owner = self._running.pop(request_id, None)
        if owner is not None:
            self.completed += 1
            return owner
        owner = self._finishing.pop(request_id, None)
        if owner is None:
            if request_id in self._aborting:
                return self._aborting.pop(request_id)
            self.discard()
        return owner

    def discard(self) -> None:
        """Something came that nobody waits for."""
        self.discarded += 1

    def abandon(self, request_id: int, heir: Owner | None = None) -> bool:
        """The owner leaves.

        Args:
            request_id: the request.
            heir: who gets its final reply all the same, if anybody.

        Returns:
            Whether an ABORT has to be sent, now.
        """
        if self._beginnings:
            self._forget(request_id)
        if self._running.pop(request_id, None) is not None:
            self._aborting[request_id] = heir
            self.aborted += 1
            return True
        if self._finishing.pop(request_id, None) is not None:
            self._aborting[request_id] = heir
        return False

    def finish_early(self, request_id: int) -> bool:
        """The owner wants the final reply soon. Returns whether an ABORT has to be sent, now."""
        owner = self._running.pop(request_id, None)
        if owner is None:
            return False
        self._finishing[request_id] = owner
        self.aborted += 1
        return True

    def fail(self, request_id: int, heir: Owner | None = None) -> bool:
        """A reply to the request made no sense; for the rest as `abandon`."""
        must_abort = self.abandon(request_id, heir)
        if must_abort:
            self.aborted -= 1
            self.failed += 1
        return must_abort

    def recount_as_failed(self) -> None:
        """A final reply, counted as completed when it arrived, turned out to be a failure."""
        self.completed -= 1
        self.failed += 1

    def owners(self) -> list[tuple[int, Owner]]:
        """All who still wait for something, with the ids of their requests."""
        return [*self._running.items(), *self._finishing.items()]

    def lose(self) -> list[Owner]:
        """The connection is gone, and all requests with it. Returns who has to be told."""
        owners = [*self._running.values(), *self._finishing.values()]
        self.lost += len(self._running)
        self.undelivered += self.aborting
        self.recognized.clear()
        self._beginnings.clear()
        self._running.clear()
        self._finishing.clear()
        self._aborting.clear()
        return owners
