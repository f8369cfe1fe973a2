"""Metrics by prometheus-client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..instruments import Instrument

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from ..models import (
        ConnectionChange,
        ObservedRequest,
        RequestEnding,
        RequestMoment,
        SignalSent,
    )

__all__ = ["PrometheusInstrument"]

SECONDS: Final = tuple(0.005 * 2**n for n in range(16))
"""The boundaries of times: five milliseconds, doubled, to 164 seconds."""


class PrometheusInstrument(Instrument):
    """Counts and measures requests, tokens, connections and signals, by the coordinator's address.

    One object may serve many clients, and a registry has room for one. It wants the extra
    ``prometheus``.

    Args:
        registry: where the metrics are; by default prometheus-client's own.

    Raises:
        ModuleNotFoundError: prometheus-client is not installed.
        ValueError: the registry has these metrics already.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        try:
            import prometheus_client as prometheus  # noqa: PLC0415 - may be missing
        except ModuleNotFoundError as error:
            error.add_note("install trio-infer[prometheus]")
            raise
        where = prometheus.REGISTRY if registry is None else registry
        address, outcome = ("address",), ("address", "outcome")
        self._waiting = prometheus.Gauge(
            "trio_infer_requests_waiting",
            "Requests that wait for their turn or a connection.",
            address,
            registry=where,
        )
        self._in_flight = prometheus.Gauge(
            "trio_infer_requests_in_flight",
            "Requests that were handed over and have not ended.",
            address,
            registry=where,
        )
        self._submitted = prometheus.Counter(
            "trio_infer_requests_submitted",
            "Requests that were handed over.",
            address,
            registry=where,
        )
        self._ended = prometheus.Counter(
            "trio_infer_requests_ended",
            "Requests that ended, by how: finished, aborted, failed, lost; or withdrawn, unsent.",
            outcome,
            registry=where,
        )
        self._waited = prometheus.Histogram(
            "trio_infer_request_waiting_seconds",
            "From making a request to handing it over.",
            address,
            buckets=SECONDS,
            registry=where,
        )
        self._duration = prometheus.Histogram(
            "trio_infer_request_duration_seconds",
            "From making a request that was handed over to its end.",
            outcome,
            buckets=SECONDS,
            registry=where,
        )
        self._first_token = prometheus.Histogram(
            "trio_infer_time_to_first_token_seconds",
            "From making a request to its first partial result.",
            address,
            buckets=SECONDS,
            registry=where,
        )
        self._next_delta = prometheus.Histogram(
            "trio_infer_time_per_delta_seconds",
            "From each partial result to the next one.",
            address,
            buckets=SECONDS,
            registry=where,
        )
        self._tokens = prometheus.Counter(
            "trio_infer_tokens",
            "Tokens of requests that ended: of prompts, cached ones among these, and generated.",
            ("address", "type"),
            registry=where,
        )
        self._connections = prometheus.Gauge(
            "trio_infer_connections_up", "Connections that are up.", address, registry=where
        )
        self._connections_lost = prometheus.Counter(
            "trio_infer_connections_lost",
            "Connections that were lost; those that were closed are left out.",
            address,
            registry=where,
        )
        self._signals = prometheus.Counter(
            "trio_infer_signals_sent",
            "Signals to the engines, and releases of KV handoffs.",
            ("address", "signal"),
            registry=where,
        )
        self._in_queue: set[ObservedRequest] = set()
        self._last_at: dict[ObservedRequest, float] = {}

    def request_waiting(self, moment: RequestMoment) -> None:
        """Counts it as waiting."""
        self._in_queue.add(moment.request)
        self._waiting.labels(moment.request.address).inc()

    def _wait_no_more(self, request: ObservedRequest) -> None:
        if request in self._in_queue:
            self._in_queue.remove(request)
            self._waiting.labels(request.address).dec()

    def request_withdrawn(self, moment: RequestMoment) -> None:
        """Counts it."""
        self._wait_no_more(moment.request)
        self._ended.labels(moment.request.address, "withdrawn").inc()

    def request_submitted(self, moment: RequestMoment) -> None:
        """Counts it, and measures how long it waited."""
        request = moment.request
        self._wait_no_more(request)
        self._submitted.labels(request.address).inc()
        self._in_flight.labels(request.address).inc()
        self._waited.labels(request.address).observe(moment.at - request.made_at)

    def request_delta(self, moment: RequestMoment) -> None:
        """Measures how long it took."""
        request = moment.request
        last_at = self._last_at.get(request)
        if last_at is None:
            self._first_token.labels(request.address).observe(moment.at - request.made_at)
        else:
            self._next_delta.labels(request.address).observe(moment.at - last_at)
        self._last_at[request] = moment.at

    def request_finished(self, ending: RequestEnding) -> None:
        """Counts and measures it, and its tokens."""
        self._end("finished", ending)

    def request_aborted(self, ending: RequestEnding) -> None:
        """Counts and measures it, and its tokens as far as they are known."""
        self._end("aborted", ending)

    def request_failed(self, ending: RequestEnding) -> None:
        """Counts and measures it."""
        self._end("failed", ending)

    def request_lost(self, ending: RequestEnding) -> None:
        """Counts and measures it."""
        self._end("lost", ending)

    def _end(self, outcome: str, ending: RequestEnding) -> None:
        request = ending.request
        self._last_at.pop(request, None)
        self._in_flight.labels(request.address).dec()
        self._ended.labels(request.address, outcome).inc()
        self._duration.labels(request.address, outcome).observe(ending.at - request.made_at)
        for kind, count in (
            ("prompt", ending.prompt_length),
            ("cached", ending.cached_tokens),
            ("generated", ending.tokens),
        ):
            if count and count > 0:  # whatever the peer says
                self._tokens.labels(request.address, kind).inc(count)

    def connection_up(self, change: ConnectionChange) -> None:
        """Counts it."""
        self._connections.labels(change.address).inc()

    def connection_lost(self, change: ConnectionChange) -> None:
        """Counts it, unless it was closed."""
        self._connections.labels(change.address).dec()
        if not change.closing:
            self._connections_lost.labels(change.address).inc()

    def signal_sent(self, signal: SignalSent) -> None:
        """Counts it."""
        self._signals.labels(signal.address, signal.name).inc()
