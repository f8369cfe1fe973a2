"""Prometheus: what its text says."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.telemetry.using import LONG, end_in_each_way, stream
from tests.waiting import until
from trio_infer import GenerateRequest, open_client
from trio_infer.telemetry import PrometheusInstrument

if TYPE_CHECKING:
    from tests.peers import ScriptedCoordinator

Clock = trio.testing.MockClock


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def read(registry: CollectorRegistry, address: str) -> dict[str, float]:
    """What the text says of a coordinator, but for buckets and times of creation.

    By names without the package's, with the labels but for the address.
    """
    said = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            if sample.labels.get("address") == address and not sample.name.endswith(
                ("_bucket", "_created")
            ):
                labels = [value for name, value in sample.labels.items() if name != "address"]
                said[" ".join([sample.name.removeprefix("trio_infer_"), *labels])] = sample.value
    return said


async def test_each_way_to_end_is_counted_cancelled_ones_like_others(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, registry: CollectorRegistry
) -> None:
    instrument = PrometheusInstrument(registry)
    async with open_client(
        coordinator.address, max_in_flight=1, instruments=[instrument]
    ) as client:
        client.engines.pause()
        await end_in_each_way(coordinator, client)
    said = read(registry, coordinator.address)
    durations = {
        outcome: said.pop(f"request_duration_seconds_sum {outcome}")
        for outcome in ("finished", "aborted", "failed", "lost")
    }
    assert {outcome: round(took) for outcome, took in durations.items()} == {
        "finished": 1,
        "aborted": 1,
        "failed": 0,
        "lost": 0,
    }
    assert said.pop("request_waiting_seconds_sum") == pytest.approx(0, abs=0.1)
    assert said == {
        "requests_waiting": 0,
        "requests_in_flight": 0,
        "requests_submitted_total": 4,
        "requests_ended_total finished": 1,
        "requests_ended_total aborted": 1,
        "requests_ended_total failed": 1,
        "requests_ended_total lost": 1,
        "requests_ended_total withdrawn": 1,
        "request_waiting_seconds_count": 4,
        "request_duration_seconds_count finished": 1,
        "request_duration_seconds_count aborted": 1,
        "request_duration_seconds_count failed": 1,
        "request_duration_seconds_count lost": 1,
        "tokens_total prompt": 8,
        "tokens_total generated": 3,
        "connections_up": 0,
        "connections_lost_total": 1,
        "signals_sent_total PAUSE": 1,
    }
    assert not instrument._in_queue, "something is kept"


async def test_a_stream_is_measured_by_its_deltas(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, registry: CollectorRegistry
) -> None:
    instrument = PrometheusInstrument(registry)
    async with open_client(coordinator.address, instruments=[instrument]) as client:
        await stream(coordinator, client, "hi")
    said = read(registry, coordinator.address)
    assert said["time_to_first_token_seconds_count"] == 1
    assert said["time_to_first_token_seconds_sum"] == pytest.approx(1, abs=0.1)
    assert said["time_per_delta_seconds_count"] == 2
    assert said["time_per_delta_seconds_sum"] == pytest.approx(2, abs=0.1)
    assert said["tokens_total prompt"] == 2
    assert said["tokens_total cached"] == 1
    assert said["tokens_total generated"] == 3
    assert "connections_lost_total" not in said, "it was closed"
    assert not instrument._last_at, "something is kept"


async def test_an_engine_that_counts_below_zero_does_not_end_the_metrics(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, registry: CollectorRegistry
) -> None:
    instrument = PrometheusInstrument(registry)
    async with open_client(coordinator.address, instruments=[instrument]) as client:
        async with client.open_group() as group:
            for counts in ({"prompt_length": -1}, {"num_cached_tokens": -1}, {}):
                group.submit_nowait(GenerateRequest([1, 2], LONG))
                coordinator.reply(await coordinator.submission(), [65], **counts)
                await group.outcomes.receive()
    said = read(registry, coordinator.address)
    assert said["requests_ended_total finished"] == 3
    assert said["requests_in_flight"] == 0
    assert said["tokens_total generated"] == 3
    assert said["tokens_total prompt"] == 4


async def test_what_runs_and_what_waits_shows_while_it_does(
    autojump_clock: Clock, coordinator: ScriptedCoordinator, registry: CollectorRegistry
) -> None:
    def gauges() -> tuple[float, ...]:
        said = read(registry, coordinator.address)
        return said["requests_in_flight"], said["requests_waiting"], said["connections_up"]

    async with open_client(
        coordinator.address, max_in_flight=1, instruments=[PrometheusInstrument(registry)]
    ) as client:
        async with client.stream("hi", LONG), trio.open_nursery() as nursery:
            nursery.start_soon(client.generate, "hi", LONG)
            await until(lambda: client.statistics().waiting)
            assert gauges() == (1, 1, 1)
            nursery.cancel_scope.cancel()
        assert gauges() == (0, 0, 1)
    assert gauges() == (0, 0, 0)


def test_a_registry_has_room_for_one(registry: CollectorRegistry) -> None:
    PrometheusInstrument(registry)
    with pytest.raises(ValueError, match="trio_infer"):
        PrometheusInstrument(registry)


def test_without_a_registry_it_is_that_of_the_process() -> None:
    instrument = PrometheusInstrument()
    try:
        assert b"trio_infer_requests_waiting" in generate_latest()
    finally:
        for collector in vars(instrument).values():
            if hasattr(collector, "collect"):
                REGISTRY.unregister(collector)


def test_who_lacks_the_extra_is_told_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ModuleNotFoundError) as raised:
        PrometheusInstrument()
    assert raised.value.__notes__ == ["install trio-infer[prometheus]"]
