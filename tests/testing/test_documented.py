"""The tests that the documentation shows, run as a user would."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.testing.conftest import CHECKOUT

if TYPE_CHECKING:
    from tests.testing.conftest import Project

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


async def test_what_the_page_on_testing_shows_works(project: Project) -> None:
    page = (CHECKOUT / "docs" / "testing.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    by_trio = [example for example in examples if "anyio" not in example]
    by_anyio = [examples[0], *(example for example in examples if "anyio" in example)]
    project.write("test_by_trio.py", "\n".join(by_trio))
    result = await project.run("-o", "trio_mode=true", "test_by_trio.py")
    assert "6 passed" in result.stdout, result.stdout
    project.write("test_by_anyio.py", "\n".join(by_anyio))
    result = await project.run("test_by_anyio.py", "-k", "anyio")
    assert "1 passed" in result.stdout, result.stdout
