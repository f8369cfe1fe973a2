"""``trio-infer engines``, ``shutdown`` and ``ping``: what reaches the coordinator."""

from __future__ import annotations

import json
import re
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cli.options import to
from tests.programs import in_terminal, run
from trio_infer.protocol.dialect import Kind

if TYPE_CHECKING:
    from tests.cli.here import Here
    from tests.peers import ScriptedCoordinator

SIGNALS = {
    "pause": Kind.PAUSE,
    "unpause": Kind.UNPAUSE,
    "suspend": Kind.SUSPEND,
    "resume": Kind.RESUME,
    "stop": Kind.STOP,
    "epoch 7": Kind.SET_GENERATION_EPOCH,
    "profile start": Kind.START_CUDA_PROFILER,
    "profile stop": Kind.STOP_CUDA_PROFILER,
}


# One after the other, since most of what a command takes is the start.
SEND_ALL = """
import sys
from trio_infer.cli.program import run
*commands, option, address = sys.argv[1:]
for command in commands:
    sys.argv = ["trio-infer", "engines", *command.split(), option, address]
    if code := run():
        sys.exit(code)
"""


async def test_each_signal_reaches_the_coordinator_and_warns(
    coordinator: ScriptedCoordinator,
) -> None:
    result = await run(*to(coordinator), command=(sys.executable, "-c", SEND_ALL, *SIGNALS))
    assert (result.code, result.stdout) == (0, "")
    lines = result.stderr.splitlines()
    told = [line for line in lines if "; nothing acknowledges it" in line]
    for (command, kind), line in zip(SIGNALS.items(), told, strict=True):
        assert line.startswith(f"trio-infer: {command} was sent to {coordinator.address}; ")
        received = await coordinator.next(kind)
        assert received.message.epoch == (7 if "epoch" in command else None)
    assert coordinator.kinds == [*SIGNALS.values()]
    of_haste, of_stop = (line for line in lines if line not in told)
    assert lines.index(of_haste) == 1, "it is said of pause"
    assert "kills them" in of_haste
    assert "waits for new engines" in of_stop


def test_signals_without_an_address_say_whom_they_met(here: Here) -> None:
    result = here.run("engines", "pause")
    assert result.code == 0
    assert "an embedded coordinator, which ends with this command" in result.stderr


def test_a_signal_that_the_dialect_lacks_is_refused(here: Here) -> None:
    result = here.run("engines", "profile", "start", "--dialect", "0.18")
    assert result.code == 1
    assert "0.18" in result.stderr
    assert result.stderr.count("\n") == 1


async def test_shuts_a_coordinator_down(coordinator: ScriptedCoordinator) -> None:
    result = await run("shutdown", "--yes", *to(coordinator))
    await coordinator.next(Kind.SHUTDOWN)
    told = f"trio-infer: {coordinator.address} was asked to end; nothing acknowledges it\n"
    assert (result.code, result.stderr) == (0, told)


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("\n", 1), ("\x04", 1)])
async def test_asks_before_it_shuts_a_coordinator_down(
    coordinator: ScriptedCoordinator, answer: str, code: int
) -> None:
    async with in_terminal("shutdown", *to(coordinator)) as terminal:
        await terminal.screen.until("End tcp://")
        await terminal.screen.until("[y/N]: ")
        assert not coordinator.connects
        await terminal.type(answer)
        assert await terminal.ended() == code
        assert "Traceback" not in await terminal.screen.rest()
    if code == 0:
        await coordinator.next(Kind.SHUTDOWN)
    assert coordinator.kinds == ([] if code else [Kind.SHUTDOWN])


async def test_ctrl_c_is_an_answer_as_well(coordinator: ScriptedCoordinator) -> None:
    async with in_terminal("shutdown", *to(coordinator)) as terminal:
        await terminal.screen.until("[y/N]: ")
        await terminal.type("\x03")
        assert await terminal.ended() == -signal.SIGINT
        assert "Traceback" not in await terminal.screen.rest()
    assert not coordinator.connects


def test_does_not_shut_down_where_nobody_can_be_asked(here: Here) -> None:
    result = here.run("shutdown")
    assert result.code == 2
    assert "say --yes" in result.stderr


def test_tells_how_soon_a_coordinator_answers(here: Here) -> None:
    result = here.run("ping", "--count", "3", "--interval", "0")
    assert (result.code, result.stderr) == (0, "")
    *each, sum_ = result.stdout.splitlines()
    assert len(each) == 3
    assert all(re.fullmatch(r"tcp://\S+ shook hands in \d+\.\d\d ms", line) for line in each)
    assert re.fullmatch(r"3 times: \S+ ms at least, \S+ mean, \S+ at most", sum_)


def test_tells_it_as_json(here: Here) -> None:
    result = here.run("ping", "--count", "2", "--interval", "0", "--json")
    for line in result.stdout.splitlines():
        assert json.loads(line)["handshake_ms"] > 0
    assert result.stdout.count("\n") == 2


def test_tells_that_nobody_answers(here: Here) -> None:
    result = here.run("ping", "--address", "tcp://127.0.0.1:1", "--connect-timeout", "0.1")
    assert (result.code, result.stdout) == (1, "")
    assert "no handshake with tcp://127.0.0.1:1 within 0.1 s" in result.stderr
    assert result.stderr.count("\n") == 1


def test_refuses_to_wait_for_ever_in_between(here: Here) -> None:
    result = here.run("ping", "--interval", "inf")
    assert "'--interval': inf is not finite" in result.stderr
    assert result.code == 2
