"""The requests that a coordinator has taken: whose each is, and what becomes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from .received_request import ReceivedRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .received_request import State

__all__ = ["RequestTable", "Route"]


@attrs.define
class Route:
    """Whose a request is (nobody's, once they have left), its id there, what it is, its replies."""

    identity: bytes | None
    client_id: int
    request: ReceivedRequest
    replies: int = 0
    aborted: bool = False


class RequestTable:
    """Those that have not ended, by the coordinator's numbers, and these by their clients' ids.

    Args:
        keep_ended: whether `told` tells of those as well that have ended.
    """

    def __init__(self, *, keep_ended: bool) -> None:
        self._routes: dict[int, Route] = {}
        self._numbers: dict[tuple[bytes, int], int] = {}
        self._ended: dict[int, ReceivedRequest] | None = {} if keep_ended else None

    def __len__(self) -> int:
        return len(self._routes)

    def __getitem__(self, number: int) -> Route:
        return self._routes[number]

    def number_of(self, identity: bytes, client_id: int) -> int | None:
        """The number of a client's request, unless it has ended."""
        return self._numbers.get((identity, client_id))

    def add(self, identity: bytes, client_id: int, request: ReceivedRequest) -> None:
        """Takes up a request."""
        number = request.request_id
        self._routes[number] = Route(identity, client_id, request)
        self._numbers[identity, client_id] = number

    def close(self, number: int, ending: State, generated_length: int) -> Route:
        """Forgets a request, but for what is to be kept of it."""
        route = self._routes.pop(number)
        if route.identity is not None:
            del self._numbers[route.identity, route.client_id]
        if self._ended is not None:
            self._ended[number] = attrs.evolve(
                route.request, state=ending, generated_length=generated_length
            )
        return route

    def disown(self, identity: bytes) -> dict[int, Route]:
        """Makes the requests of a client nobody's, and returns them."""
        found = {number: each for number, each in self._routes.items() if each.identity == identity}
        for route in found.values():
            del self._numbers[identity, route.client_id]
            route.identity = None
        return found

    def of_engine(self, index: int) -> list[int]:
        """The numbers of those that an engine has."""
        return [number for number, each in self._routes.items() if each.request.engine == index]

    def told(self, lengths: Mapping[int, int]) -> tuple[ReceivedRequest, ...]:
        """The requests that have not ended, or all; by number.

        Args:
            lengths: how many tokens have been generated for those that run.
        """
        requests = dict(self._ended or {})
        for number, route in self._routes.items():
            state: State = "running" if number in lengths else "waiting"
            requests[number] = attrs.evolve(
                route.request,
                state="aborting" if route.aborted else state,
                generated_length=lengths.get(number, 0),
            )
        return tuple(requests[number] for number in sorted(requests))
