"""A run that uses nothing of the plugin does not notice that it is there."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.programs import run
from tests.testing.conftest import CHECKOUT, PYTEST

if TYPE_CHECKING:
    from tests.testing.conftest import Project

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

ALONE = ("-p", "no:trio", "-p", "no:anyio")

# Measures as a plugin for pytest would, which starts behind the loading of all plugins.
COVERING = f"""
from pathlib import Path
import coverage

PACKAGE = Path({str(CHECKOUT / "trio_infer")!r})
measuring = coverage.Coverage(source=["trio_infer", "app"], config_file=False, data_file=None)

def pytest_load_initial_conftests():
    measuring.start()

def pytest_unconfigure():
    measuring.stop()
    for path in ["app.py", PACKAGE / "__init__.py", PACKAGE / "models" / "events.py"]:
        assert not measuring.analysis2(str(path))[3], path
"""

# Where these tests are measured themselves, that ends here.
UNMEASURED = ("env", "-u", "COVERAGE_PROCESS_CONFIG", "-u", "COVERAGE_PROCESS_START")


async def test_a_run_that_uses_nothing_imports_nothing(project: Project) -> None:
    result = await project.run_tests(
        """
import sys

def test_it(pytestconfig):
    assert pytestconfig.pluginmanager.has_plugin("trio_infer")
    assert {"trio", "zmq", "msgpack", "trio_infer"}.isdisjoint(sys.modules)
""",
        *ALONE,
    )
    assert "1 passed" in result.stdout, result.stdout


async def test_pytest_starts_as_fast_as_without() -> None:
    program = (
        "import contextlib, sys, pytest; before = set(sys.modules); import _trio_infer_pytest; "
        "print(set(sys.modules) - before)"
    )
    result = await run("-c", program, command=(sys.executable,), env={"PYTHONPATH": str(CHECKOUT)})
    assert result.stdout == "{'_trio_infer_pytest'}\n", result.stderr


async def test_coverage_that_pytest_starts_misses_nothing(project: Project) -> None:
    project.write("app.py", "import trio_infer\n\ndef answer():\n    return 42\n")
    project.write("covering.py", COVERING)
    result = await project.run_tests(
        """
import pytest

@pytest.mark.trio
async def test_it(inference_client):
    import app
    assert app.answer() == 42
    assert await inference_client.generate("A class is")
""",
        "-p",
        "covering",
        command=(*UNMEASURED, *PYTEST),
    )
    assert result.code == 0, result.stdout + result.stderr


async def test_a_program_that_has_imported_the_package_may_start_pytest(project: Project) -> None:
    project.write("test_users.py", "def test_it(): pass\n")
    start = "import sys, trio_infer, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    result = await project.run(command=(sys.executable, "-c", start))
    assert result.code == 0, result.stdout + result.stderr


async def test_the_plugin_can_be_left_out(project: Project) -> None:
    text = "def test_it(embedded_coordinator): pass\n"
    result = await project.run_tests(text, "-p", "no:trio_infer")
    assert "fixture 'embedded_coordinator' not found" in result.stdout
