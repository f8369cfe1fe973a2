"""``trio-infer bench``: the load that it makes, and the figures that it prints."""

from __future__ import annotations

import json
import signal
import sys
from array import array
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING

import pytest
import trio
from rich.console import Console

from tests.cli.endless import far
from tests.programs import in_terminal, run, started
from trio_infer.cli.figures import figures, percentile, report
from trio_infer.cli.load import METRICS, Load, Plan
from trio_infer.cli.load_view import LoadView
from trio_infer.embedded import Faults, open_coordinator

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.here import Here

pytestmark = pytest.mark.slow

PLAN = Plan(
    requests=4,
    rate=2.5,
    concurrency=None,
    prompt_tokens=10,
    output_tokens=5,
    cancel_fraction=0.0,
    seed=0,
)
SMALL = ("--requests", "10", "--output-tokens", "5", "--prompt-tokens", "7")


def test_the_figures_are_those_of_vllm() -> None:
    load = Load(PLAN, began=10.0, ended=12.0, completed=3, failed=1, input_tokens=30)
    load.output_tokens = 15
    load.measured["ttft"] = array("d", [0.3, 0.1, 0.2])
    load.measured["itl"] = array("d", [0.05])
    numbers = figures(load, (90, 99.9))
    assert (numbers["duration"], numbers["completed"], numbers["failed"]) == (2.0, 3, 1)
    assert numbers["request_throughput"] == 1.5
    assert numbers["output_throughput"] == 7.5
    assert numbers["total_token_throughput"] == 22.5
    assert (numbers["mean_ttft_ms"], numbers["median_ttft_ms"]) == pytest.approx((200, 200))
    assert (numbers["p90_ttft_ms"], numbers["p99.9_ttft_ms"]) == pytest.approx((280, 299.8))
    assert numbers["std_ttft_ms"] == pytest.approx(81.65, abs=0.01)
    assert numbers["p90_itl_ms"] == 50
    assert numbers["mean_tpot_ms"] is numbers["p90_e2el_ms"] is None
    told = report(numbers, (90, 99.9))
    assert "Request rate configured (req/s)   2.50" in told
    assert "concurrency" not in told
    assert "interruption" not in told
    assert "Time to first token (TTFT)    200.00  200.00  81.65  280.00  299.80" in told
    assert "End-to-end latency (E2EL)          -" in told


@pytest.mark.parametrize("width", [200, 80, 60, 50, 20])
def test_no_figure_is_cut_off_however_narrow_the_terminal(width: int) -> None:
    percentiles = tuple(map(float, range(1, 100, 7)))
    load = Load(PLAN, ended=1.0, output_tokens=10**9)
    for place, metric in enumerate(METRICS):
        load.measured[metric] = array("d", [12.345 * 4**place])
    numbers = figures(load, percentiles)
    told = report(numbers, percentiles, width)
    words = told.split()
    assert "…" not in told
    for place in range(len(METRICS)):
        assert words.count(f"{12345 * 4**place}.00") == 2 + len(percentiles)
    assert "1000000000" in words
    assert max(map(len, told.splitlines())) <= max(width, 50)


@pytest.mark.parametrize("width", [100, 60, 40, 24])
def test_no_figure_of_a_load_that_runs_is_cut_off_either(width: int) -> None:
    load = Load(PLAN, ended=1.0, completed=4)
    for metric in METRICS:
        load.measured[metric] = array("d", [12.345])
    written = StringIO()
    console = Console(file=written, width=width)
    console.print(LoadView(load, (50, 90, 99, 99.9), console).render())
    shown = written.getvalue()
    assert shown.split().count("12345.00") == 4 * 6
    assert "4/4" in shown
    assert "4 completed," in " ".join(shown.split())
    assert "…" not in shown


def test_percentiles_close_to_another_have_figures_of_their_own() -> None:
    load = Load(PLAN, ended=1.0)
    load.measured["itl"] = array("d", [0.0, 1.0])
    numbers = figures(load, (99.99999, 100))
    assert (numbers["p99.99999_itl_ms"], numbers["p100_itl_ms"]) == pytest.approx((999.9999, 1000))


@pytest.mark.parametrize(("percent", "value"), [(0, 1), (50, 2.5), (75, 3.25), (100, 4)])
def test_percentiles_lie_between_neighbours(percent: float, value: float) -> None:
    assert percentile([1, 2, 3, 4], percent) == value


def test_prints_a_table(here: Here) -> None:
    result = here.run("bench", *SMALL, "--concurrency", "3")
    assert (result.code, result.stderr) == (0, "")
    for row in (
        "Successful requests                    10",
        "Maximum request concurrency             3",
        "Total input tokens                     70",
        "Total generated tokens                 50",
    ):
        assert row.split() in [line.split() for line in result.stdout.splitlines()]
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_prints_json(here: Here) -> None:
    result = here.run("bench", *SMALL, "--rate", "500", "--json", "--metric-percentiles", "50,95")
    numbers = json.loads(result.stdout)
    assert (numbers["completed"], numbers["request_rate"]) == (10, 500)
    assert numbers["total_output_tokens"] == 50
    assert numbers["p50_e2el_ms"] == numbers["median_e2el_ms"]
    assert 0 < numbers["mean_ttft_ms"] <= numbers["mean_e2el_ms"]
    assert numbers["mean_itl_ms"] > 0


def test_what_comes_at_once_has_no_latency_between_tokens(here: Here) -> None:
    result = here.run("bench", *SMALL, "--dialect", "0.19", "--json")
    numbers = json.loads(result.stdout)
    assert (numbers["completed"], numbers["mean_tpot_ms"], numbers["mean_itl_ms"]) == (
        10,
        *[None] * 2,
    )
    assert numbers["mean_ttft_ms"] > 0


def test_it_ends_with_its_last_request_however_rare_they_are(here: Here) -> None:
    result = here.run("bench", "--requests", "1", "--rate", "1e-9", "--output-tokens", "1")
    assert result.code == 0
    assert ["Successful", "requests", "1"] in [line.split() for line in result.stdout.splitlines()]


async def test_leaves_so_many_requests_early() -> None:
    options = ("--requests", "20", "--output-tokens", "50", "--cancel-fraction", "0.25", "--json")
    async with open_coordinator(step_time=0.002) as coordinator:
        result = await run("bench", "--address", coordinator.address, *options)
        statistics = coordinator.statistics()
    numbers = json.loads(result.stdout)
    assert numbers["aborted"] == statistics.aborts + statistics.stray_aborts
    assert 1 <= numbers["aborted"] <= 5
    assert numbers["completed"] == 20 - numbers["aborted"]
    assert (statistics.unroutable, result.code) == (0, 0)


async def test_requests_that_fail_are_counted_and_told() -> None:
    async with open_coordinator(faults=Faults(fail=1.0)) as coordinator:
        result = await run("bench", "--address", coordinator.address, "--requests", "3")
    assert result.code == 1
    assert ["Failed", "requests", "3"] in [line.split() for line in result.stdout.splitlines()]
    assert "3 requests failed, the first like this: request" in result.stderr


@pytest.mark.parametrize("rate", [(), ("--rate", "50")])
async def test_ctrl_c_aborts_all_and_prints_the_figures_so_far(rate: tuple[str, ...]) -> None:
    options = ("--requests", "100", "--output-tokens", "100000", *rate, "--json")
    async with (
        open_coordinator(step_time=0.002) as coordinator,
        started("bench", "--address", coordinator.address, *options) as program,
    ):
        await coordinator.wait_until(partial(far, coordinator))
        program.send(signal.SIGINT)
        assert await program.ended() == 130
        numbers = json.loads(await program.stdout.rest())
        assert numbers["completed"] == 0
        assert numbers["total_output_tokens"] > 20
        statistics = coordinator.statistics()
        assert statistics.aborts == statistics.submitted == numbers["interrupted"] > 0
        assert (numbers["aborted"], numbers["failed"]) == (0, 0)
        told = f"interrupted: 0 of 100 requests had ended, {statistics.aborts} aborted"
        assert await program.stderr.rest() == f"trio-infer: {told}\n"
        assert statistics.unroutable == 0


async def test_ctrl_c_before_it_is_connected_says_so_as_well() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    options = ("--connect-timeout", "3600", "--address", f"tcp://127.0.0.1:{port}")
    async with listeners[0], started("bench", *options) as program:
        async with await listeners[0].accept():
            program.send(signal.SIGINT)
            assert await program.ended() == 130
            told = "trio-infer: interrupted: 0 of 100 requests had ended, 0 aborted\n"
            assert await program.stderr.rest() == told


def test_what_was_interrupted_stands_in_the_table() -> None:
    numbers = figures(Load(PLAN, ended=1.0, interrupted=3), ())
    assert "Aborted by the interruption" in report(numbers, ())


async def test_a_lost_connection_ends_it_with_the_figures_so_far() -> None:
    options = ("--output-tokens", "100000", "--json")
    async with open_coordinator(step_time=0.002) as coordinator:
        async with started("bench", "--address", coordinator.address, *options) as program:
            await coordinator.wait_until(partial(far, coordinator))
            coordinator.die()
            assert await program.ended() == 1
            numbers = json.loads(await program.stdout.rest())
            assert numbers["total_output_tokens"] > 20
            assert (numbers["failed"], numbers["interrupted"]) == (16, 0)
            assert (await program.stderr.rest()).count("\n") == 1
            assert "connection was lost" in program.stderr.text


async def test_a_terminal_shows_the_load_and_then_the_figures() -> None:
    options = ("--requests", "6", "--concurrency", "2", "--step-time", "0.01")
    async with in_terminal("bench", *options) as terminal:
        await terminal.screen.until("0/6")
        await terminal.screen.until("2 running, 2 completed, 0 aborted, 0 failed")
        screen = await terminal.screen.rest()
        assert await terminal.ended() == 0
        assert "Successful requests" in screen
        assert "Traceback" not in screen


@pytest.mark.parametrize(("suffix", "magic"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_draws_a_picture(here: Here, tmp_path: Path, suffix: str, magic: bytes) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"figures.{suffix}"
    result = here.run("bench", *SMALL, "--plot", str(file))
    assert (result.code, result.stderr) == (0, "")
    assert file.read_bytes().startswith(magic)


@pytest.mark.parametrize(
    ("arguments", "complaint", "code"),
    [
        ("--rate 1 --concurrency 1", "--rate and --concurrency exclude each other", 2),
        ("--rate inf", "'--rate': inf is not finite", 2),
        ("--rate 0", "'--rate': 0.0 is not in the range", 2),
        ("--requests 0", "'--requests': 0 is not in the range", 2),
        (f"--requests {10**400}", "00 is not in the range 1<=x<=100000000", 2),
        (f"--prompt-tokens {10**20}", "00 is not in the range 1<=x<=100000000", 2),
        ("--cancel-fraction 2", "'--cancel-fraction': 2.0 is not in the range", 2),
        ("--cancel-fraction 0.1 --dialect 0.19", "0.19, which has no abort", 2),
        ("--metric-percentiles 50,x", "'50,x' is no list of percentages", 2),
        ("--metric-percentiles 101", "'101' is no list of percentages", 2),
        ("--plot figures.jpg", "makes .svg or .png files", 2),
        ("--plot no/figures.svg", "'no/figures.svg': there is no such directory", 1),
        ("--address tcp://127.0.0.1:1 --connect-timeout 0.1", "no handshake with", 1),
    ],
)
def test_what_cannot_be_done_is_one_line(
    here: Here, arguments: str, complaint: str, code: int
) -> None:
    result = here.run("bench", *arguments.split())
    assert complaint in result.stderr
    assert (result.code, result.stdout, result.stderr.count("\n")) == (code, "", 1)


def test_the_extra_that_draws_is_missing(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    result = here.run("bench", "--plot", str(tmp_path / "figures.svg"))
    assert "which --plot needs: install trio-infer[plot]" in result.stderr
    assert (result.code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
