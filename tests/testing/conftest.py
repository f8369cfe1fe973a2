"""Users' own test runs: pytest in a process of its own, in a directory of theirs."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.programs import Result, run

CHECKOUT = Path(__file__).parents[2]

PYTEST = (sys.executable, "-m", "pytest")

QUIET = ("-W", "error", "-p", "no:cacheprovider", "--strict-markers", "--strict-config")


@attrs.frozen
class Project:
    """A directory with tests in it."""

    path: Path

    def write(self, name: str, text: str) -> None:
        """Writes a file."""
        (self.path / name).write_text(text)

    async def run_tests(self, text: str, *arguments: str, **options: Any) -> Result:
        """Runs tests, which are written to a file of their own."""
        self.write("test_users.py", text)
        return await self.run(*arguments, **options)

    async def run(self, *arguments: str, command: tuple[str, ...] = PYTEST) -> Result:
        """Runs pytest there, warnings being errors."""
        env = {"PYTHONPATH": f"{self.path / 'installed'}{os.pathsep}{CHECKOUT}"}
        return await run(*QUIET, *arguments, command=command, cwd=self.path, env=env)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Has trio_infer installed as from its wheel, as far as pytest looks at that."""
    project = Project(tmp_path)
    project.write("pytest.ini", "[pytest]\n")
    entry_points = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"][
        "entry-points"
    ]
    installed = tmp_path / "installed" / "installed-0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 0\n")
    ((group, names),) = entry_points.items()
    lines = [f"[{group}]", *(f"{name} = {module}" for name, module in names.items())]
    (installed / "entry_points.txt").write_text("\n".join(lines))
    modules = [*CHECKOUT.glob("_trio_infer_*.py"), *(CHECKOUT / "trio_infer").rglob("*.py")]
    record = "".join(f"{path.relative_to(CHECKOUT)},,\n" for path in modules)
    (installed / "RECORD").write_text(record)
    return project
