"""Spans and metrics by OpenTelemetry."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from ..instruments import Instrument
from . import conventions
from .conventions import OPERATION, Metric, Name, Token

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.context import Context
    from opentelemetry.metrics import Histogram, Meter, MeterProvider
    from opentelemetry.trace import Span, TracerProvider

    from ..models import ObservedRequest, RequestEnding, RequestMoment

__all__ = ["OpenTelemetryInstrument"]

SCOPE: Final = "trio_infer"


class _Running:
    """A request under way.

    Args:
        span: of it.
        context: with the span in it.
        labels: what each of its measurements says.
        began_at: when the span began, in nanoseconds.

    Attributes:
        last_at: when its last partial result came, by trio's clock.
    """

    __slots__ = ("began_at", "context", "labels", "last_at", "span")

    def __init__(
        self, span: Span, context: Context, labels: dict[str, str | int], began_at: int
    ) -> None:
        self.span = span
        self.context = context
        self.labels = labels
        self.began_at = began_at
        self.last_at: float | None = None


class OpenTelemetryInstrument(Instrument):
    """A client span for each request, and the metrics of the conventions for generative AI.

    A span begins in the context of the task that makes the request, and so has that task's current
    span for its parent; it ends with the request, waiting included. One of a request that was
    cancelled is finished like others, without an error; its attribute ``trio_infer.outcome`` is
    ``"aborted"``, or ``"withdrawn"`` if nothing had been sent. Neither prompts nor what is
    generated are recorded.

    One object may serve many clients. It wants the extra ``opentelemetry``.

    Args:
        tracer_provider: of the spans; by default the global one.
        meter_provider: of the metrics; by default the global one.
        model: the name of the model, which a coordinator does not tell.
        provider: what ``gen_ai.provider.name`` says.

    Raises:
        ModuleNotFoundError: opentelemetry-api is not installed.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        model: str | None = None,
        provider: str = "megatron_core",
    ) -> None:
        try:
            from opentelemetry import metrics, trace  # noqa: PLC0415 - may be missing
        except ModuleNotFoundError as error:
            error.add_note("install trio-infer[opentelemetry]")
            raise
        self._trace = trace
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
        meter = metrics.get_meter(SCOPE, meter_provider=meter_provider)
        self._duration = _histogram(meter, conventions.duration)
        self._first_chunk = _histogram(meter, conventions.time_to_first_chunk)
        self._next_chunk = _histogram(meter, conventions.time_per_output_chunk)
        self._usage = _histogram(meter, conventions.token_usage)
        self._labels = {Name.OPERATION: OPERATION, Name.PROVIDER: provider}
        self._name = OPERATION
        if model is not None:
            self._labels[Name.MODEL] = model
            self._name += f" {model}"
        self._running: dict[ObservedRequest, _Running] = {}

    def request_waiting(self, moment: RequestMoment) -> None:
        """Begins a span."""
        self._begin(moment)

    def request_submitted(self, moment: RequestMoment) -> None:
        """Begins a span, if none was begun when it waited."""
        running = self._running.get(moment.request) or self._begin(moment)
        running.span.set_attribute(Name.REQUEST_ID, moment.request_id or 0)

    def _begin(self, moment: RequestMoment) -> _Running:
        request = moment.request
        labels = {**self._labels, **_server(request.address)}
        began_at = time.time_ns() - round((moment.at - request.made_at) * 1e9)
        span = self._tracer.start_span(
            self._name,
            start_time=began_at,
            kind=self._trace.SpanKind.CLIENT,
            attributes={**labels, **_asked(request)},
        )
        context = self._trace.set_span_in_context(span)
        running = self._running[request] = _Running(span, context, labels, began_at)
        return running

    def request_delta(self, moment: RequestMoment) -> None:
        """Records how long it took: since the request was made, or since the one before."""
        running = self._running[moment.request]
        if running.last_at is None:
            seconds = moment.at - moment.request.made_at
            running.span.set_attribute(Name.FIRST_CHUNK, seconds)
            self._first_chunk.record(seconds, running.labels, running.context)
        else:
            seconds = moment.at - running.last_at
            self._next_chunk.record(seconds, running.labels, running.context)
        running.last_at = moment.at

    def request_withdrawn(self, moment: RequestMoment) -> None:
        """Ends the span."""
        self._end("withdrawn", moment)

    def request_finished(self, ending: RequestEnding) -> None:
        """Ends the span, and records what it took."""
        self._end_submitted("finished", ending)

    def request_aborted(self, ending: RequestEnding) -> None:
        """Ends the span without an error, and records what it took."""
        self._end_submitted("aborted", ending)

    def request_failed(self, ending: RequestEnding) -> None:
        """Ends the span with an error, and records what it took."""
        self._end_submitted("failed", ending, is_error=True)

    def request_lost(self, ending: RequestEnding) -> None:
        """Ends the span with an error, and records what it took."""
        self._end_submitted("lost", ending, is_error=True)

    def _end_submitted(
        self, outcome: str, ending: RequestEnding, *, is_error: bool = False
    ) -> None:
        running = self._running[ending.request]
        span = running.span
        for name, value in (
            (Name.INPUT_TOKENS, ending.prompt_length),
            (Name.CACHED_TOKENS, ending.cached_tokens),
            (Name.OUTPUT_TOKENS, ending.tokens),
        ):
            if value is not None:
                span.set_attribute(name, value)
        if ending.finish_reason is not None:
            span.set_attribute(Name.FINISH_REASONS, [ending.finish_reason])
        for kind, count in ((Token.INPUT, ending.prompt_length), (Token.OUTPUT, ending.tokens)):
            if count and count > 0:  # whatever the peer says
                labels = {**running.labels, Name.TOKEN_TYPE: kind}
                self._usage.record(count, labels, running.context)
        if is_error:
            span.set_status(self._trace.StatusCode.ERROR, ending.reason)
            self._end(outcome, ending, error=ending.error)
        else:
            self._end(outcome, ending)

    def _end(
        self, outcome: str, event: RequestMoment | RequestEnding, *, error: str | None = None
    ) -> None:
        running = self._running.pop(event.request)
        seconds = event.at - event.request.made_at
        facts = {Name.OUTCOME: outcome} | ({} if error is None else {Name.ERROR: error})
        running.span.set_attributes(facts)
        self._duration.record(seconds, {**running.labels, **facts}, running.context)
        running.span.end(running.began_at + round(seconds * 1e9))


def _histogram(meter: Meter, metric: Metric) -> Histogram:
    return meter.create_histogram(
        metric.name,
        metric.unit,
        metric.description,
        explicit_bucket_boundaries_advisory=metric.boundaries,
    )


def _server(address: str) -> dict[str, str | int]:
    """Where the coordinator is, as the conventions have it."""
    scheme, _, rest = address.partition("://")
    host, _, port = rest.rpartition(";")[2].rpartition(":")  # behind a source address, if any
    if scheme == "tcp" and port.isdecimal():
        return {Name.SERVER: host.strip("[]"), Name.PORT: int(port)}
    return {Name.SERVER: rest if scheme == "ipc" else address}


def _asked(request: ObservedRequest) -> Mapping[str, Any]:
    """What a span says of a request from its beginning."""
    params = request.sampling_params
    stop_words = params.get("stop_words")
    asked = {
        Name.DIALECT: request.dialect,
        Name.STREAM: request.streaming,
        Name.MAX_TOKENS: params.get("num_tokens_to_generate"),
        Name.TEMPERATURE: params.get("temperature"),
        Name.TOP_K: params.get("top_k") or None,  # 0 is no limit
        Name.TOP_P: params.get("top_p") or None,
        Name.STOP: list(stop_words) if stop_words else None,
        Name.INPUT_TOKENS: request.prompt_length,
    }
    return {name: value for name, value in asked.items() if value is not None}
