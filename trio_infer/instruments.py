"""Observers: who is told what happens to a client's requests and connections.

A client without instruments has no `Instruments`, and its requests no `Observation`: one test of an
attribute is all that is spent on them. What no instrument listens to is not made.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import trio

from .models import ConnectionChange, ObservedRequest, RequestEnding, RequestMoment, SignalSent
from .models.frozen import FrozenMapping
from .observation import Observation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .protocol.dialect import Kind
    from .protocol.preparation import Prepared

__all__ = ["Instrument", "Instruments", "check_instruments"]

_logger: Final = logging.getLogger(__name__)


class Instrument:
    """What an object in ``instruments=`` may have: any of these methods; a base class or a guide.

    They are called synchronously, in the middle of what they tell of: they must be quick, leave the
    client alone, and be no ``async def``, which nobody would await. One that raises is logged, and
    its instrument switched off for that client.

    Each request that waits, if only for an instant, is either submitted or withdrawn; each that is
    submitted ends in exactly one of finished, aborted, failed and lost.
    """

    def request_waiting(self, moment: RequestMoment) -> None:
        """A request was made, and waits for a connection, and its turn under ``max_in_flight``.

        Told in the task that makes it. What waits for its turn in a group is made after that. One
        that cannot wait, of ``submit_nowait``, is left out.
        """

    def request_withdrawn(self, moment: RequestMoment) -> None:
        """A request that waited was left before anything was sent."""

    def request_submitted(self, moment: RequestMoment) -> None:
        """A request was handed over. Told in the task that made it, and so in its context."""

    def request_first_token(self, moment: RequestMoment) -> None:
        """The first partial result of a stream came."""

    def request_delta(self, moment: RequestMoment) -> None:
        """A partial result of a stream came, the first included."""

    def request_finished(self, ending: RequestEnding) -> None:
        """A request completed.

        Told when its reply is decoded, by whoever reads it; or, unread, when its caller leaves.
        """

    def request_aborted(self, ending: RequestEnding) -> None:
        """A request was left before its end.

        Of one that is finished early this is told when the engine's last reply is decoded.
        """

    def request_failed(self, ending: RequestEnding) -> None:
        """The engine gave up on a request, or its reply made no sense."""

    def request_lost(self, ending: RequestEnding) -> None:
        """A request went down with its connection."""

    def connection_up(self, change: ConnectionChange) -> None:
        """The handshake of a connection has succeeded."""

    def connection_lost(self, change: ConnectionChange) -> None:
        """A connection that was up is gone, or was closed."""

    def signal_sent(self, signal: SignalSent) -> None:
        """A signal, or the release of a KV handoff, was sent."""


HOOKS: Final = tuple(name for name in vars(Instrument) if not name.startswith("_"))

OF_REQUESTS: Final = tuple(name for name in HOOKS if name.startswith("request_"))


def check_instruments(instruments: object) -> tuple[object, ...]:
    """The instruments as a tuple.

    Raises:
        TypeError: for one that has none of the methods, or an asynchronous one.
        ValueError: for one that is given twice.
    """
    if not isinstance(instruments, Iterable):
        msg = f"instruments must be an iterable, not {type(instruments).__name__}"
        raise TypeError(msg)
    given = tuple(instruments)
    for each in given:
        methods = _methods(each)
        if isinstance(each, type):
            msg = f"each of instruments must be an object, not the class {each.__name__}"
            raise TypeError(msg)
        if not methods or not all(map(callable, methods.values())):
            msg = f"each of instruments must have a method of Instrument: {each!r} has none"
            raise TypeError(msg)
        for name, method in methods.items():
            if inspect.iscoroutinefunction(method):
                msg = f"instruments are called synchronously, and {name} of {each!r} is async"
                raise TypeError(msg)
    if len(set(map(id, given))) < len(given):
        msg = "instruments must not hold the same object twice"
        raise ValueError(msg)
    return given


def _methods(instrument: object) -> dict[str, Any]:
    """Its methods by their names, but for those that are inherited and do nothing."""
    methods = {name: getattr(instrument, name) for name in HOOKS if hasattr(instrument, name)}
    return {
        name: method
        for name, method in methods.items()
        if getattr(method, "__func__", None) is not getattr(Instrument, name)
    }


class Instruments:
    """The instruments of one client.

    Args:
        instruments: as given, checked.
        address: of the coordinator.
        dialect: the name of what it speaks.
    """

    def __init__(self, instruments: tuple[object, ...], *, address: str, dialect: str) -> None:
        self._address = address
        self._dialect = dialect
        given = [(each, _methods(each)) for each in instruments]
        self._listeners: dict[str, tuple[tuple[object, Callable[[Any], None]], ...]] = {
            hook: tuple((each, methods[hook]) for each, methods in given if hook in methods)
            for hook in HOOKS
        }

    def wants(self, hook: str) -> bool:
        """Whether any of them listens to that."""
        return bool(self._listeners[hook])

    def tell(self, hook: str, event: object) -> None:
        """Tells all that listen to it. Does not raise."""
        for instrument, method in self._listeners[hook]:
            try:
                method(event)
            except BaseException:  # noqa: ASYNC103 - nothing waits here: who observes disturbs none
                _logger.exception(
                    "%s raised in %r, which is switched off for this client", hook, instrument
                )
                self._switch_off(instrument)

    def _switch_off(self, instrument: object) -> None:
        for hook, listeners in self._listeners.items():
            self._listeners[hook] = tuple(one for one in listeners if one[0] is not instrument)

    def observe(self, prepared: Prepared) -> Observation | None:
        """A request is made; None if none of them listens to what becomes of it."""
        if not any(map(self.wants, OF_REQUESTS)):
            return None
        return Observation(
            self,
            ObservedRequest(
                address=self._address,
                dialect=self._dialect,
                prompt_length=prepared.prompt_length,
                sampling_params=FrozenMapping(prepared.asked),
                streaming=bool(prepared.asked.get("streaming")),
                made_at=trio.current_time(),
            ),
        )

    def connection(self, hook: str, reason: str | None = None, *, closing: bool = False) -> None:
        """A connection came up, or is gone."""
        if self.wants(hook):
            self.tell(
                hook,
                ConnectionChange(
                    address=self._address,
                    dialect=self._dialect,
                    at=trio.current_time(),
                    reason=reason,
                    closing=closing,
                ),
            )

    def signal_sent(self, kind: Kind, values: Mapping[str, int]) -> None:
        """A signal was sent."""
        if self.wants("signal_sent"):
            self.tell(
                "signal_sent",
                SignalSent(
                    address=self._address,
                    dialect=self._dialect,
                    at=trio.current_time(),
                    name=kind.name,
                    values=values,
                ),
            )
