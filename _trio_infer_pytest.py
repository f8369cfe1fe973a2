"""The fixtures of trio_infer, for pytest with pytest-trio or with anyio's plugin on trio.

pytest imports its plugins in every run, those who use none as well, and before any measuring of
coverage that a plugin begins. So this stands beside the package, whose import would take a while,
and a fixture imports it once a test wants it.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from trio_infer import InferenceClient
    from trio_infer.embedded import EmbeddedCoordinator

__all__ = ["embedded_coordinator", "inference_client", "pytest_configure"]

_MARKERS = (
    "embedded_coordinator(**options): of trio_infer.embedded.open_coordinator, for that fixture",
    "inference_client(**options): of trio_infer.open_client, for that fixture",
)

_NEEDS_TRIO = """\
The fixtures of trio_infer are for `async def` tests that run on trio. Install either
- pytest-trio, and mark the test with pytest.mark.trio, or configure trio_mode = true; or
- anyio, mark it with pytest.mark.anyio, and have a fixture anyio_backend that returns "trio".
If pytest-asyncio is installed as well, leave it in its strict mode.
"""


def pytest_configure(config: pytest.Config) -> None:
    """Registers the markers."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)


@pytest.fixture
def _trio_infer_needs_trio(request: pytest.FixtureRequest) -> None:
    """Fails what would otherwise get an async generator, or run on asyncio."""
    plugins, test = request.config.pluginmanager, request.node
    by_trio = plugins.has_plugin("trio") and test.get_closest_marker("trio") is not None
    by_anyio = plugins.has_plugin("anyio") and "anyio_backend" in request.fixturenames
    if plugins.has_plugin("asyncio") and _asyncio_mode(request.config) == "auto":
        found = "with pytest-asyncio in auto mode, which takes every async fixture"
    elif by_anyio and by_trio:
        found = "both by pytest-trio and by anyio's plugin"
    elif by_anyio:
        found = f"on {request.getfixturevalue('anyio_backend_name')}"
    else:
        found = "on trio" if by_trio else "by neither plugin"
    if found != "on trio":
        pytest.fail(f"{_NEEDS_TRIO}This test is run {found}.", pytrace=False)


def _asyncio_mode(config: pytest.Config) -> object:
    return config.getoption("asyncio_mode", None) or config.getini("asyncio_mode")


@pytest.fixture
async def embedded_coordinator(
    request: pytest.FixtureRequest, _trio_infer_needs_trio: None
) -> AsyncIterator[EmbeddedCoordinator]:
    """A coordinator of trio_infer, open during the test.

    It is in memory, so that mocked clocks work, has the seed 0, and keeps its requests.
    ``@pytest.mark.embedded_coordinator(…)`` takes these and all other options of
    ``trio_infer.embedded.open_coordinator``.
    """
    from trio_infer.embedded import open_coordinator  # noqa: PLC0415 - see above
    from trio_infer.testing import IN_MEMORY  # noqa: PLC0415

    defaults = {"bind": IN_MEMORY, "seed": 0, "keep_requests": True}
    async with AsyncExitStack() as stack:
        with _options(request, "embedded_coordinator", defaults) as options:
            coordinator = await stack.enter_async_context(open_coordinator(**options))
        yield coordinator


@pytest.fixture
async def inference_client(
    request: pytest.FixtureRequest, embedded_coordinator: EmbeddedCoordinator
) -> AsyncIterator[InferenceClient[Any]]:
    """A client of the fixture embedded_coordinator, open during the test.

    It speaks the coordinator's dialect, and has its tokenizer. ``@pytest.mark.inference_client(…)``
    takes all options of ``trio_infer.open_client``.
    """
    from trio_infer import open_client  # noqa: PLC0415 - see above

    coordinator = embedded_coordinator
    defaults = {"dialect": coordinator.dialect, "tokenizer": coordinator.tokenizer}
    async with AsyncExitStack() as stack:
        with _options(request, "inference_client", defaults) as options:
            opening = open_client(coordinator.address, **options)
            client = await stack.enter_async_context(opening)
        yield client


@contextmanager
def _options(
    request: pytest.FixtureRequest, name: str, defaults: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """What the markers of that name say, the nearest first. An error tells where they came from."""
    given: dict[str, Any] = {}
    for marker in request.node.iter_markers(name):
        if marker.args:
            msg = f"@pytest.mark.{name} takes keyword arguments, not {marker.args!r}"
            raise TypeError(msg)
        given = marker.kwargs | given
    try:
        yield defaults | given
    except Exception as error:
        if given:
            error.add_note(f"The options are of @pytest.mark.{name}: {given}")
        raise
