"""Everything that this package raises of its own.

::

    InferenceError
    ├── ConnectError                 no connection came about
    │   └── ConnectTimeout           within ``connect_timeout``
    ├── ConnectionLost               it broke with the request in flight
    ├── ProtocolError
    │   ├── LocalProtocolError       you asked for what cannot be sent now
    │   │   └── UnsupportedByDialect or not in this dialect
    │   └── RemoteProtocolError      the peer sent what makes no sense
    ├── RequestFailed                the engine gave up on the request
    └── NoneAccepted                 of many requests none would do

Wrong arguments raise `TypeError` or `ValueError`; what is closed raises `trio.ClosedResourceError`;
and a cancelled scope raises `trio.Cancelled`, which nothing here replaces.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .models import Completion, Outcome

__all__ = [
    "ConnectError",
    "ConnectTimeout",
    "ConnectionLost",
    "InferenceError",
    "LocalProtocolError",
    "NoneAccepted",
    "ProtocolError",
    "RemoteProtocolError",
    "RequestFailed",
    "UnsupportedByDialect",
]


class InferenceError(Exception):
    """The root of the tree."""


class ConnectError(InferenceError):
    """No connection to the coordinator came about."""


class ConnectTimeout(ConnectError):
    """The coordinator did not complete the handshake within ``connect_timeout``."""


class ConnectionLost(InferenceError):
    """The connection broke after the request was handed over and before it finished.

    Nothing is resubmitted by itself, since sampling is not idempotent.

    Attributes:
        tokens: the ids of the tokens that had arrived; empty for `InferenceClient.generate`, which
            asks for no partial results.
    """

    def __init__(self, message: str, *, tokens: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.tokens: tuple[int, ...] = tuple(tokens)


class ProtocolError(InferenceError):
    """The protocol was broken, here or there."""


class LocalProtocolError(ProtocolError):
    """What you asked for cannot be valid now; nothing was sent."""


class UnsupportedByDialect(LocalProtocolError):
    """The dialect that this client speaks has no words for it; nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that make no sense; where they named a request, it was aborted."""


class RequestFailed(InferenceError):
    """The engine ended the request with the status ``FAILED``.

    Attributes:
        completion: what the engine replied, with its events.
        retryable: True when every error event of the reply says that it is transient, False when
            one says that it is not, None when the engine gave no reason.
    """

    def __init__(
        self, message: str, *, completion: Completion, retryable: bool | None = None
    ) -> None:
        super().__init__(message)
        self.completion = completion
        self.retryable = retryable

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is rebuilt from its args alone, which lack what is required here.
        make = partial(type(self), completion=self.completion, retryable=self.retryable)
        return make, self.args, self.__dict__


class NoneAccepted(InferenceError):
    """Of many requests, none ended in a completion that would do.

    Attributes:
        outcomes: what became of all of them, in the order in which they ended.
    """

    def __init__(self, message: str, *, outcomes: Sequence[Outcome[Completion]] = ()) -> None:
        super().__init__(message)
        self.outcomes: tuple[Outcome[Completion], ...] = tuple(outcomes)
