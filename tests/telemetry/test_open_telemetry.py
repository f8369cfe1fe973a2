"""OpenTelemetry: spans by its exporter in memory, and metrics by its reader in memory."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
import trio.testing
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.telemetry.using import LONG, end_in_each_way, stream
from trio_infer import (
    GenerateRequest,
    InferenceClient,
    ObservedRequest,
    RequestMoment,
    SamplingParams,
    open_client,
)
from trio_infer.telemetry import OpenTelemetryInstrument
from trio_infer.telemetry.open_telemetry import _server

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.peers import ScriptedCoordinator

Clock = trio.testing.MockClock

DURATION = "gen_ai.client.operation.duration"
FIRST_CHUNK = "gen_ai.client.operation.time_to_first_chunk"
NEXT_CHUNK = "gen_ai.client.operation.time_per_output_chunk"
USAGE = "gen_ai.client.token.usage"


class Collected:
    """What OpenTelemetry was told."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.spans = TracerProvider()
        self.spans.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.metrics = MeterProvider([self._reader])
        self.tracer = self.spans.get_tracer("tests")

    def instrument(self, **options: Any) -> OpenTelemetryInstrument:
        return OpenTelemetryInstrument(
            tracer_provider=self.spans, meter_provider=self.metrics, **options
        )

    def finished(self, outcome: str | None = None) -> list[ReadableSpan]:
        return [
            span
            for span in self._exporter.get_finished_spans()
            if span.kind is SpanKind.CLIENT
            and outcome in (None, (span.attributes or {})["trio_infer.outcome"])
        ]

    def points(self) -> dict[str, list[HistogramDataPoint]]:
        points: dict[str, list[HistogramDataPoint]] = defaultdict(list)
        data = self._reader.get_metrics_data()
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    points[metric.name] += metric.data.data_points  # type: ignore[arg-type]
        return points


@pytest.fixture
def collected() -> Collected:
    return Collected()


def said(span: ReadableSpan) -> Mapping[str, Any]:
    assert span.attributes is not None
    return span.attributes


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


async def test_a_stream_is_a_client_span_that_says_what_was_asked_and_what_came(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, collected: Collected
) -> None:
    instrument = collected.instrument(model="nemotron")
    async with open_client(coordinator.address, instruments=[instrument]) as client:
        await stream(coordinator, client, "hi")
    (span,) = collected.finished()
    assert span.name == "text_completion nemotron"
    assert span.status.status_code is StatusCode.UNSET
    attributes = dict(said(span))
    assert attributes.pop("gen_ai.response.time_to_first_chunk") == pytest.approx(1, abs=0.1)
    assert attributes == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "megatron_core",
        "gen_ai.request.model": "nemotron",
        "gen_ai.request.max_tokens": 100,
        "gen_ai.request.temperature": 1.0,
        "gen_ai.request.stream": True,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 1,
        "gen_ai.usage.output_tokens": 3,
        "server.address": coordinator.address,
        "trio_infer.dialect": "framed",
        "trio_infer.outcome": "finished",
        "trio_infer.request_id": 0,
    }
    assert seconds(span) == pytest.approx(4, abs=0.1)


async def test_sampling_parameters_are_said_where_the_conventions_have_names(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, collected: Collected
) -> None:
    asked = SamplingParams(temperature=0.5, top_p=0.25, stop_words=["end"])
    async with open_client(coordinator.address, instruments=[collected.instrument()]) as client:
        async with client.stream([1, 2], asked), client.stream("hi", attrs.evolve(LONG, top_k=5)):
            pass
    sampled, likeliest = sorted(
        collected.finished(), key=lambda each: said(each)["trio_infer.request_id"]
    )
    assert said(sampled)["gen_ai.request.temperature"] == 0.5
    assert said(sampled)["gen_ai.request.top_p"] == 0.25
    assert said(sampled)["gen_ai.request.stop_sequences"] == ("end",)
    assert said(sampled)["gen_ai.usage.input_tokens"] == 2
    assert "gen_ai.request.top_k" not in said(sampled)
    assert said(likeliest)["gen_ai.request.top_k"] == 5
    assert "gen_ai.request.top_p" not in said(likeliest)


@pytest.mark.parametrize("way", ["generate", "stream", "group", "group nowait"])
async def test_the_parent_is_the_span_of_the_task_that_made_the_request(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, collected: Collected, way: str
) -> None:
    parents: dict[str, int] = {}

    async def ask(client: InferenceClient, name: str) -> None:
        with collected.tracer.start_as_current_span(name) as parent:
            parents[name] = parent.get_span_context().span_id
            if way == "generate":
                await client.generate(name, LONG)
            elif way == "stream":
                async with client.stream(name, LONG) as receiving:
                    await receiving.result()
            else:
                async with client.open_group() as group:
                    request = GenerateRequest(name, LONG)
                    if way == "group":
                        await group.submit(request)
                    else:
                        group.submit_nowait(request)
                    await group.outcomes.receive()

    async with open_client(coordinator.address, instruments=[collected.instrument()]) as client:
        async with trio.open_nursery() as nursery:
            for name in ("one", "two"):
                nursery.start_soon(ask, client, name)
            for _ in range(2):
                submission = await coordinator.submission()
                coordinator.reply(submission, [65])
    spans = collected.finished()
    assert sorted(span.parent.span_id for span in spans if span.parent) == sorted(parents.values())
    assert len({span.context.trace_id for span in spans if span.context}) == 2


async def test_each_way_to_end_is_a_finished_span_and_only_faults_are_errors(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, collected: Collected
) -> None:
    instrument = collected.instrument()
    async with open_client(
        coordinator.address, max_in_flight=1, instruments=[instrument]
    ) as client:
        await end_in_each_way(coordinator, client)
    for outcome, error in (
        *(("finished", None), ("aborted", None), ("withdrawn", None)),
        *(("failed", "RequestFailed"), ("lost", "ConnectionLost")),
    ):
        (span,) = collected.finished(outcome)
        assert said(span).get("error.type") == error
        assert (span.status.status_code is StatusCode.ERROR) == (error is not None)
        assert not span.events
        if outcome in ("aborted", "withdrawn"):
            assert seconds(span) == pytest.approx(1, abs=0.1)
    assert len(collected.finished()) == 5
    (lost,) = collected.finished("lost")
    assert "the peer is gone" in (lost.status.description or "")
    (withdrawn,) = collected.finished("withdrawn")
    assert "trio_infer.request_id" not in said(withdrawn)
    assert not instrument._running, "something is kept"


async def test_the_metrics_are_those_of_the_conventions(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, collected: Collected
) -> None:
    async with open_client(
        coordinator.address, instruments=[collected.instrument(model="m", provider="p")]
    ) as client:
        await stream(coordinator, client, "hi")
    labels = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "p",
        "gen_ai.request.model": "m",
        "server.address": coordinator.address,
    }
    points = collected.points()
    assert sorted(points) == sorted([DURATION, FIRST_CHUNK, NEXT_CHUNK, USAGE])
    (duration,) = points[DURATION]
    assert dict(duration.attributes or {}) == labels | {"trio_infer.outcome": "finished"}
    assert (duration.count, round(duration.sum)) == (1, 4)
    assert duration.explicit_bounds[:3] == (0.01, 0.02, 0.04)
    assert duration.explicit_bounds[-1] == 81.92
    (first,), (following,) = points[FIRST_CHUNK], points[NEXT_CHUNK]
    assert dict(first.attributes or {}) == dict(following.attributes or {}) == labels
    assert (first.count, round(first.sum)) == (1, 1)
    assert (following.count, round(following.sum)) == (2, 2)
    used = {dict(each.attributes or {})["gen_ai.token.type"]: each for each in points[USAGE]}
    assert {kind: each.sum for kind, each in used.items()} == {"input": 2, "output": 3}
    assert used["input"].explicit_bounds[:3] == (1, 4, 16)
    assert used["input"].explicit_bounds[-1] == 67_108_864
    assert dict(used["input"].attributes or {}) == labels | {"gen_ai.token.type": "input"}


async def test_cancelled_requests_are_measured_like_others(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, collected: Collected
) -> None:
    async with open_client(
        coordinator.address, max_in_flight=1, instruments=[collected.instrument()]
    ) as client:
        await end_in_each_way(coordinator, client)
    points = collected.points()
    durations = {
        (
            dict(each.attributes or {})["trio_infer.outcome"],
            dict(each.attributes or {}).get("error.type"),
        ): each.count
        for each in points[DURATION]
    }
    assert durations == {
        ("finished", None): 1,
        ("aborted", None): 1,
        ("withdrawn", None): 1,
        ("failed", "RequestFailed"): 1,
        ("lost", "ConnectionLost"): 1,
    }
    assert FIRST_CHUNK not in points, "of streams only"
    used = {dict(each.attributes or {})["gen_ai.token.type"]: each for each in points[USAGE]}
    assert (used["input"].count, used["output"].count) == (4, 1)


def test_a_request_that_took_long_to_pack_ends_when_it_ends(collected: Collected) -> None:
    """Handed over at once, it is told of when it is packed, which is after it was made."""
    request = ObservedRequest(
        address="tcp://host:5555",
        dialect="framed",
        prompt_length=None,
        sampling_params={},
        streaming=False,
        made_at=100.0,
    )
    instrument = collected.instrument()
    instrument.request_submitted(RequestMoment(request=request, request_id=0, at=105.0))
    instrument.request_withdrawn(RequestMoment(request=request, request_id=0, at=105.0))
    (span,) = collected.finished()
    assert seconds(span) == pytest.approx(5)
    assert (span.end_time or math.inf) <= time.time_ns()


async def test_an_instrument_of_two_clients_keeps_their_requests_apart(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, collected: Collected
) -> None:
    instruments = [collected.instrument()]
    async with open_client(coordinator.address, instruments=instruments) as one:
        async with open_client(coordinator.address, instruments=instruments) as other:
            async with one.stream("hi", LONG), other.stream("hi", LONG):
                pass
    assert len(collected.finished("aborted")) == 2


@pytest.mark.parametrize(
    ("address", "server"),
    [
        ("tcp://host:5555", {"server.address": "host", "server.port": 5555}),
        ("tcp://[::1]:5555", {"server.address": "::1", "server.port": 5555}),
        ("tcp://eth0:0;host:5555", {"server.address": "host", "server.port": 5555}),
        ("ipc:///run/x", {"server.address": "/run/x"}),
        ("memory://here", {"server.address": "memory://here"}),
    ],
)
def test_a_server_is_named_as_the_conventions_have_it(
    address: str, server: dict[str, object]
) -> None:
    assert _server(address) == server


def test_who_lacks_the_extra_is_told_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ModuleNotFoundError) as raised:
        OpenTelemetryInstrument()
    assert raised.value.__notes__ == ["install trio-infer[opentelemetry]"]


def test_nothing_of_the_extras_is_imported_before_it_is_used() -> None:
    program = (
        "import sys, trio_infer, trio_infer.telemetry\n"
        "assert not {'opentelemetry', 'prometheus_client'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
