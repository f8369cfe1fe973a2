"""The fixtures in the runs of users: with pytest-trio, with anyio's plugin, both and neither."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.testing.conftest import Project

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

BY_TRIO = """
import pytest, trio
from trio.testing import MockClock
pytestmark = pytest.mark.trio

@pytest.fixture
def clock():
    return MockClock(autojump_threshold=0)
"""

BY_ANYIO = """
import pytest, trio
from trio.testing import MockClock
pytestmark = pytest.mark.anyio

@pytest.fixture
def clock():
    return None

@pytest.fixture
def anyio_backend(request):
    jumps = "clock" in request.fixturenames
    return "trio", {"clock": MockClock(autojump_threshold=0) if jumps else None}
"""

RUNNERS = {"pytest-trio": BY_TRIO, "anyio": BY_ANYIO}

NO_TRIO = ("-p", "no:trio")
NO_ANYIO = ("-p", "no:anyio")

each_runner = pytest.mark.parametrize("runner", RUNNERS.values(), ids=RUNNERS)


@pytest.mark.parametrize(
    ("runner", "installed"),
    [(BY_TRIO, ()), (BY_TRIO, NO_ANYIO), (BY_ANYIO, ()), (BY_ANYIO, NO_TRIO)],
    ids=["pytest-trio of both", "pytest-trio alone", "anyio of both", "anyio alone"],
)
async def test_a_test_has_a_coordinator_and_a_client_of_it(
    project: Project, runner: str, installed: tuple[str, ...]
) -> None:
    result = await project.run_tests(
        runner
        + """
from trio_infer.testing import assert_all_aborted

async def test_generating(inference_client):
    assert (await inference_client.generate("A class is")).generated_text

async def test_streaming(embedded_coordinator, inference_client):
    async with inference_client.stream("A class is") as stream:
        async for delta in stream:
            assert delta.text is not None
            break
    await assert_all_aborted(embedded_coordinator, completed=0)
    (request,) = embedded_coordinator.requests
    assert (request.prompt, request.state) == ("A class is", "aborted")

async def test_that_each_begins_anew(embedded_coordinator):
    assert embedded_coordinator.requests == ()
    assert embedded_coordinator.statistics().clients == 0
""",
        *installed,
    )
    assert "3 passed" in result.stdout, result.stdout
    assert result.code == 0


@each_runner
async def test_an_hour_takes_no_time_under_a_clock_that_jumps(
    project: Project, runner: str
) -> None:
    result = await project.run_tests(
        runner
        + """
from trio_infer import SamplingParams

@pytest.mark.embedded_coordinator(step_time=60)
async def test_patience(inference_client, clock):
    began = trio.current_time()
    params = SamplingParams(num_tokens_to_generate=60, termination_id=-1)
    await inference_client.generate([1], params)
    assert trio.current_time() - began == pytest.approx(3600)
"""
    )
    assert "1 passed" in result.stdout, result.stdout


@each_runner
async def test_markers_take_every_option_and_the_nearest_wins(
    project: Project, runner: str
) -> None:
    result = await project.run_tests(
        runner
        + """
from trio_infer import RequestFailed
from trio_infer.testing import Faults

@pytest.mark.embedded_coordinator(engines=2, dialect="0.19")
class TestTwo:
    async def test_two(self, embedded_coordinator, inference_client):
        assert len(embedded_coordinator.engine_states) == 2
        assert inference_client.dialect.name == "0.19"

    @pytest.mark.embedded_coordinator(engines=3)
    @pytest.mark.inference_client(deserialize=False)
    async def test_three(self, embedded_coordinator, inference_client):
        assert len(embedded_coordinator.engine_states) == 3
        assert isinstance(await inference_client.generate("A class is"), dict)
        assert inference_client.dialect.name == "0.19"

@pytest.mark.embedded_coordinator(faults=Faults(fail=1.0), bind="tcp://127.0.0.1:*")
async def test_faults(embedded_coordinator, inference_client):
    assert embedded_coordinator.address.startswith("tcp://")
    with pytest.raises(RequestFailed):
        await inference_client.generate("A class is")
    assert [each.state for each in embedded_coordinator.requests] == ["failed"]
"""
    )
    assert "3 passed" in result.stdout, result.stdout


WRONG = {
    "embedded_coordinator(engins=2)": "got an unexpected keyword argument 'engins'",
    "embedded_coordinator(engines=0)": "engines must be at least 1, not 0",
    "embedded_coordinator(2)": "takes keyword arguments, not (2,)",
    "inference_client(close_timeout='soon')": "close_timeout must be a number",
    "inference_client(address='tcp://here:1')": "got multiple values for argument 'address'",
}


@each_runner
@pytest.mark.parametrize(("marker", "complaint"), WRONG.items())
async def test_a_wrong_marker_is_named(
    project: Project, runner: str, marker: str, complaint: str
) -> None:
    result = await project.run_tests(
        f"{runner}\n@pytest.mark.{marker}\nasync def test_it(inference_client): pass\n"
    )
    assert complaint in result.stdout, result.stdout
    assert f"@pytest.mark.{marker.partition('(')[0]}" in result.stdout


AS_ANYIO = "@pytest.mark.anyio\n@pytest.mark.parametrize('anyio_backend', ['{}'])"
WANTS = "async def test_it(inference_client): pass"

ELSEWHERE = {
    "no plugin": (
        f"@pytest.mark.trio\n{WANTS}",
        (*NO_TRIO, *NO_ANYIO, "-o", "markers=trio"),
        "by neither plugin",
    ),
    "a sync test": ("def test_it(embedded_coordinator): pass", (), "by neither plugin"),
    "an unmarked test": (WANTS, (), "by neither plugin"),
    "asyncio": (f"{AS_ANYIO.format('asyncio')}\n{WANTS}", (), "on asyncio"),
    "both": (
        f"{AS_ANYIO.format('trio')}\n{WANTS}",
        ("-o", "trio_mode=true"),
        "both by pytest-trio and by anyio's plugin",
    ),
}


@pytest.mark.parametrize(("test", "arguments", "found"), ELSEWHERE.values(), ids=ELSEWHERE)
async def test_who_does_not_run_on_trio_is_told_what_to_install(
    project: Project, test: str, arguments: tuple[str, ...], found: str
) -> None:
    result = await project.run_tests(f"import pytest\n{test}\n", *arguments)
    assert "Install either\n- pytest-trio, " in result.stdout, result.stdout
    assert f"This test is run {found}." in result.stdout
    assert "1 error" in result.stdout


ASYNCIO = """
from types import SimpleNamespace

def pytest_addoption(parser, pluginmanager):
    pluginmanager.register(SimpleNamespace(), "asyncio")
    parser.addoption("--asyncio-mode")
    parser.addini("asyncio_mode", "as pytest-asyncio has it", default="strict")
"""


@each_runner
@pytest.mark.parametrize("auto", ["--asyncio-mode=auto", "--override-ini=asyncio_mode=auto"])
async def test_who_has_pytest_asyncio_take_every_fixture_is_told_so(
    project: Project, runner: str, auto: str
) -> None:
    project.write("conftest.py", ASYNCIO)
    project.write("test_users.py", f"{runner}\n{WANTS}\n")
    result = await project.run()
    assert "1 passed" in result.stdout, result.stdout
    result = await project.run(auto)
    assert "This test is run with pytest-asyncio in auto mode, " in result.stdout, result.stdout


@each_runner
async def test_what_a_failed_test_left_is_aborted_and_the_next_one_has_its_own(
    project: Project, runner: str
) -> None:
    result = await project.run_tests(
        runner
        + """
from trio_infer import SamplingParams

kept = []
ENDLESS = SamplingParams(num_tokens_to_generate=100_000, termination_id=-1)

@pytest.mark.embedded_coordinator(step_time=0.001)
async def test_failing(embedded_coordinator, inference_client):
    kept.append(embedded_coordinator)
    kept.append(inference_client.stream("A class is", ENDLESS))
    await kept[1].__aenter__()
    await embedded_coordinator.wait_until(lambda: embedded_coordinator.running)
    raise LookupError

async def test_the_next(inference_client):
    assert await inference_client.generate("A class is")
    assert [each.state for each in kept[0].requests] == ["aborted"]
""",
    )
    assert "1 failed, 1 passed" in result.stdout, result.stdout
    assert "LookupError" in result.stdout


@each_runner
async def test_ctrl_c_ends_a_test_in_its_midst(project: Project, runner: str) -> None:
    result = await project.run_tests(
        runner
        + """
import os, signal
from trio_infer import SamplingParams

@pytest.mark.embedded_coordinator(step_time=0.001)
async def test_interrupted(inference_client):
    endless = SamplingParams(num_tokens_to_generate=100_000, termination_id=-1)
    async with inference_client.stream("A class is", endless) as stream:
        async for _ in stream:
            os.kill(os.getpid(), signal.SIGINT)
            await trio.sleep_forever()
"""
    )
    assert "KeyboardInterrupt" in result.stdout, result.stdout
    assert result.code in (1, 2)
    assert "never awaited" not in result.stdout + result.stderr
    assert "Unraisable" not in result.stdout + result.stderr


async def test_the_fixtures_and_markers_tell_what_they_are(project: Project) -> None:
    fixtures = (await project.run("--fixtures")).stdout
    assert "A coordinator of trio_infer, open during the test." in fixtures
    assert "A client of the fixture embedded_coordinator, open during the test." in fixtures
    markers = (await project.run("--markers")).stdout
    assert "@pytest.mark.embedded_coordinator(**options): " in markers
    assert "@pytest.mark.inference_client(**options): " in markers
