"""What the page of promises names is there."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "promises.md").read_text("utf-8")


def test_each_file_of_tests_that_a_promise_names_is_there() -> None:
    named = set(re.findall(r"`(tests/[\w./]+)`", PAGE))
    assert named
    assert not {name for name in named if not (TESTS.parent / name).exists()}


def test_each_test_that_a_promise_names_is_there() -> None:
    files = "\n".join(path.read_text("utf-8") for path in TESTS.rglob("test_*.py"))
    there = set(re.findall(r"^(?:async )?def (test_\w+)", files, re.MULTILINE))
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert named
    assert not named - there


def test_each_session_that_a_promise_names_is_there() -> None:
    noxfile = (TESTS.parent / "noxfile.py").read_text("utf-8")
    there = set(re.findall(r"^def (\w+)\(session", noxfile, re.MULTILINE))
    named = set(re.findall(r"nox -s (\w+)", PAGE))
    assert named
    assert not named - there
