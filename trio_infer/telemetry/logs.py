"""A line in the log for each event."""

from __future__ import annotations

import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ..instruments import HOOKS, Instrument
from ..models.scalars import to_int

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..models import ConnectionChange, RequestEnding, RequestMoment, SignalSent

__all__ = ["LoggingInstrument"]

LEVELS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "request_waiting": logging.DEBUG,
        "request_withdrawn": logging.INFO,
        "request_submitted": logging.DEBUG,
        "request_first_token": logging.DEBUG,
        "request_delta": logging.DEBUG,
        "request_finished": logging.INFO,
        "request_aborted": logging.INFO,
        "request_failed": logging.WARNING,
        "request_lost": logging.WARNING,
        "connection_up": logging.INFO,
        "connection_lost": logging.WARNING,
        "signal_sent": logging.INFO,
    }
)


class LoggingInstrument(Instrument):
    """Logs each event as one line; each record has the event as its attribute ``event`` as well.

    Ends of requests, connections that come up or are closed, and signals are logged as ``INFO``;
    requests that fail or are lost, and lost connections, as ``WARNING``; all else as ``DEBUG``.
    Prompts and what is generated do not get into the log.

    Args:
        logger: where to; by default that named ``trio_infer.telemetry``.
        levels: other levels than these, such as ``logging.DEBUG``, by the names of
            `trio_infer.Instrument`'s methods.

    Raises:
        TypeError: for what is no logger, or no number of a level.
        ValueError: for a level of what is no event.
    """

    def __init__(
        self, logger: logging.Logger | None = None, *, levels: Mapping[str, int] = LEVELS
    ) -> None:
        given: object = logging.getLogger("trio_infer.telemetry") if logger is None else logger
        if not isinstance(given, logging.Logger | logging.LoggerAdapter):
            msg = f"logger must be a logging.Logger, not {type(given).__name__}"
            raise TypeError(msg)
        for hook in levels:
            if hook not in HOOKS:
                msg = f"levels must be of methods of Instrument, and {hook!r} is none"
                raise ValueError(msg)
        self._logger = given
        self._levels = {**LEVELS} | {hook: to_int(level, hook) for hook, level in levels.items()}

    def _log(self, hook: str, event: object, text: str, *arguments: object) -> None:
        self._logger.log(self._levels[hook], text, *arguments, extra={"event": event})

    def request_waiting(self, moment: RequestMoment) -> None:
        """Logs it."""
        self._log("request_waiting", moment, "a request waits to be handed over")

    def request_withdrawn(self, moment: RequestMoment) -> None:
        """Logs it, and how long it had waited."""
        waited = moment.at - moment.request.made_at
        self._log(
            "request_withdrawn", moment, "a request was left after it had waited for %.3f s", waited
        )

    def request_submitted(self, moment: RequestMoment) -> None:
        """Logs it, and how long it had waited."""
        waited = moment.at - moment.request.made_at
        text = "request %d handed over after %.3f s"
        self._log("request_submitted", moment, text, moment.request_id, waited)

    def request_first_token(self, moment: RequestMoment) -> None:
        """Logs it."""
        self._log("request_first_token", moment, "request %d: first tokens", moment.request_id)

    def request_delta(self, moment: RequestMoment) -> None:
        """Logs it, and its size."""
        text = "request %d: %d bytes of tokens"
        self._log("request_delta", moment, text, moment.request_id, moment.size)

    def request_finished(self, ending: RequestEnding) -> None:
        """Logs it, and its tokens and seconds."""
        self._end("request_finished", ending, f"finished ({ending.finish_reason or 'unread'})")

    def request_aborted(self, ending: RequestEnding) -> None:
        """Logs it, and its tokens and seconds."""
        self._end("request_aborted", ending, "aborted")

    def request_failed(self, ending: RequestEnding) -> None:
        """Logs it, and why."""
        self._end("request_failed", ending, "failed")

    def request_lost(self, ending: RequestEnding) -> None:
        """Logs it, and why."""
        self._end("request_lost", ending, "lost")

    def _end(self, hook: str, ending: RequestEnding, how: str) -> None:
        tokens = "unread tokens" if ending.tokens is None else f"{ending.tokens} tokens"
        reason = "" if ending.reason is None else f": {ending.reason}"
        seconds = ending.at - ending.submitted_at
        text = "request %d %s with %s after %.3f s%s"
        self._log(hook, ending, text, ending.request_id, how, tokens, seconds, reason)

    def connection_up(self, change: ConnectionChange) -> None:
        """Logs it."""
        self._log("connection_up", change, "connected to %s", change.address)

    def connection_lost(self, change: ConnectionChange) -> None:
        """Logs it, and why; as connections that come up are, if the client was closed."""
        hook = "connection_up" if change.closing else "connection_lost"
        text = "connection to %s ended: %s"
        self._log(hook, change, text, change.address, change.reason)

    def signal_sent(self, signal: SignalSent) -> None:
        """Logs it, and what went with it."""
        values = "".join(f", {name} {value}" for name, value in signal.values.items())
        self._log("signal_sent", signal, "sent %s%s to %s", signal.name, values, signal.address)
