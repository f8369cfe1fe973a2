"""Ctrl-C and its like: the request is aborted, what there is gets printed, the exit code tells."""

from __future__ import annotations

import signal
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio

from tests.cli.endless import Endless, far, idle
from tests.cli.options import BYTES, LONG, to
from tests.peers import ScriptedCoordinator, scripted_coordinator
from tests.programs import Result, in_terminal, run, started
from trio_infer.cli.interruption import Interruption
from trio_infer.embedded import open_coordinator
from trio_infer.protocol.dialect import Kind

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("options", "number", "code"),
    [
        (BYTES, signal.SIGINT, 130),
        (("--stream",), signal.SIGTERM, 143),
        ((), signal.SIGHUP, 129),
    ],
)
async def test_ends_the_request_and_prints_what_there_is(
    options: tuple[str, ...], number: signal.Signals, code: int
) -> None:
    async with (
        open_coordinator(model=Endless(), step_time=0.002) as coordinator,
        started("generate", "--address", coordinator.address, *LONG, *options, "hi") as program,
    ):
        await coordinator.wait_until(partial(far, coordinator))
        program.send(number)
        await coordinator.wait_until(partial(idle, coordinator))
        text = await program.stdout.rest()
        assert await program.ended() == code
        statistics = coordinator.statistics()
        assert (statistics.aborts, statistics.unroutable) == (1, 0)
        assert text == "x" * statistics.tokens + "\n"
        errors = (await program.stderr.rest()).splitlines()
        assert errors[-1] == f"trio-infer: interrupted after {statistics.tokens} tokens"
        assert len(errors) == (2 if options == ("--stream",) else 1)


@pytest.mark.parametrize(("dialect", "options"), [("0.19", BYTES), ("0.18", ())])
async def test_waits_for_the_late_reply_where_the_dialect_has_no_abort(
    dialect: str, options: tuple[str, ...]
) -> None:
    async with (
        scripted_coordinator(dialect=dialect) as coordinator,
        started("generate", *to(coordinator), "--dialect", dialect, *options, "hi") as program,
    ):
        request = await coordinator.submission()
        program.send(signal.SIGINT)
        await program.stderr.until("waiting for the coordinator's last reply")
        coordinator.reply(request, list(b"late"))
        assert await program.ended() == 130
        assert await program.stdout.rest() == ""
        assert [received.kind for received in coordinator.log] == [Kind.SUBMIT_REQUEST]
        assert coordinator.unroutable == 0


async def test_ends_a_request_to_the_embedded_coordinator() -> None:
    options = ("--stream", "--step-time", "0.01", *LONG)
    async with started("generate", *options, "--seed", "1", "A generator") as program:
        before = await program.stdout.until(" ")
        program.send(signal.SIGINT)
        assert (await program.stdout.rest()).startswith(before)
        assert await program.ended() == 130
        assert "interrupted after" in await program.stderr.rest()


async def test_the_coordinator_of_another_shell_has_nothing_running_then() -> None:
    async with started("coordinator", "--step-time", "0.005") as serving:
        address = (await serving.stdout.until("\n")).strip()
        async with started("generate", "--address", address, *LONG, *BYTES, "hi") as program:
            await serving.stderr.until("1 running, 0 waiting, 0 completed (0 aborted)")
            program.send(signal.SIGINT)
            assert await program.ended() == 130
            await serving.stderr.until("0 running, 0 waiting, 1 completed (1 aborted)")


async def test_is_typed_as_ctrl_c_at_a_terminal(coordinator: ScriptedCoordinator) -> None:
    async with in_terminal("generate", *to(coordinator), *BYTES, "hi") as terminal:
        request = await coordinator.submission()
        coordinator.partial(request, list(b"Hello"))
        await terminal.screen.until("Hello")
        await terminal.type("\x03")
        await coordinator.abort()
        assert await terminal.ended() == 130
        screen = await terminal.screen.rest()
        assert screen == "Hello^C\r\ntrio-infer: interrupted after 5 tokens\r\n"


async def test_prints_the_tokens_of_the_last_reply_as_well(
    coordinator: ScriptedCoordinator,
) -> None:
    coordinator.answers_aborts = False
    async with started("generate", *to(coordinator), *BYTES, "hi") as program:
        request = await coordinator.submission()
        coordinator.partial(request, list(b"Hel"))
        await program.stdout.until("Hel")
        program.send(signal.SIGINT)
        coordinator.reply(await coordinator.abort(), list(b"Hello"))
        assert await program.stdout.rest() == "Hello\n"
        assert await program.ended() == 130


@pytest.mark.parametrize("stream", [("--stream",), ()])
async def test_prints_what_has_come_where_no_reply_comes_soon(
    coordinator: ScriptedCoordinator, stream: tuple[str, ...]
) -> None:
    coordinator.answers_aborts = False
    options = ("--tokenizer", "bytes", *stream)
    async with started("generate", *to(coordinator), *options, "hi") as program:
        request = await coordinator.submission()
        coordinator.partial(request, list(b"Hello \xc3"))
        program.send(signal.SIGINT)
        abort = await coordinator.abort()
        assert await program.stdout.until("\n") == "Hello \n"
        await program.stderr.until("waiting for the coordinator's last reply")
        coordinator.reply(abort, list(b"Hello \xc3\xab"))
        assert await program.ended() == 130
        assert await program.stdout.rest() == "Hello \n"


async def test_shows_ids_then_where_the_tokenizer_does_not_fit(
    coordinator: ScriptedCoordinator,
) -> None:
    coordinator.answers_aborts = False
    async with started("generate", *to(coordinator), "--tokenizer", "bytes", "hi") as program:
        coordinator.partial(await coordinator.submission(), [15496, 995])
        program.send(signal.SIGINT)
        abort = await coordinator.abort()
        assert (await program.stderr.until("\n")).startswith("15496 995 \n")
        coordinator.reply(abort, [])
        assert await program.ended() == 130
        assert await program.stdout.rest() == ""


async def test_says_so_where_the_last_reply_never_comes(coordinator: ScriptedCoordinator) -> None:
    coordinator.answers_aborts = False
    async with started("generate", *to(coordinator), *BYTES, "hi") as program:
        coordinator.partial(await coordinator.submission(), list(b"Hello"))
        await program.stdout.until("Hello")
        program.send(signal.SIGINT)
        await program.stderr.until("waiting for the coordinator's last reply")
        coordinator.close()
        assert await program.ended() == 130
        lines = (await program.stderr.rest()).splitlines()
        assert "owed its last reply" in lines[-1]
        assert len(lines) == 2


async def test_leaves_at_once_the_second_time(coordinator: ScriptedCoordinator) -> None:
    coordinator.answers_aborts = False
    async with started("generate", *to(coordinator), *BYTES, "hi") as program:
        coordinator.partial(await coordinator.submission(), list(b"Hello"))
        await program.stdout.until("Hello")
        program.send(signal.SIGINT)
        await program.stderr.until("Ctrl-C leaves at once")
        program.send(signal.SIGINT)
        assert await program.ended() == 130
        assert "owed" not in await program.stderr.rest(), "it waited to the end"


@pytest.mark.parametrize("command", ["bench", "batch"])
async def test_says_what_it_waits_for_and_leaves_the_terminal_its_cursor(
    coordinator: ScriptedCoordinator, tmp_path: Path, command: str
) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text('{"prompt": "hi"}\n')
    files = (str(source), "-o", str(output)) if command == "batch" else ()
    coordinator.answers_aborts = False
    async with in_terminal(command, *files, *to(coordinator)) as terminal:
        await coordinator.submission()
        await terminal.type("\x03")
        await coordinator.abort()
        await terminal.screen.until("waiting for the coordinator's last replies, Ctrl-C leaves at")
        await terminal.type("\x03")
        await terminal.screen.rest()
        assert await terminal.ended() == 130
        shown = b"".join(terminal.screen.pieces)
        assert shown.rfind(b"\x1b[?25h") > shown.rfind(b"\x1b[?25l") >= 0


async def test_takes_a_signal_sent_twice_for_one(coordinator: ScriptedCoordinator) -> None:
    coordinator.answers_aborts = False
    async with started("generate", *to(coordinator), *BYTES, "hi") as program:
        coordinator.partial(await coordinator.submission(), list(b"Hel"))
        await program.stdout.until("Hel")
        program.send(signal.SIGTERM)
        program.send(signal.SIGINT)
        abort = await coordinator.abort()
        coordinator.reply(abort, list(b"Hello"))
        assert await program.stdout.rest() == "Hello\n"
        assert await program.ended() in {130, 143}
        assert len(coordinator.of(Kind.ABORT_REQUEST)) == 1


async def test_leaves_while_it_connects() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    options = ("--connect-timeout", "3600", "--address", f"tcp://127.0.0.1:{port}")
    async with listeners[0], started("generate", *options, "hi") as program:
        async with await listeners[0].accept():
            program.send(signal.SIGINT)
            assert await program.ended() == 130
            assert await program.stdout.rest() == ""
            assert await program.stderr.rest() == ""


async def test_leaves_while_it_waits_for_a_prompt() -> None:
    async with started("generate", stdin=subprocess.PIPE) as program:
        await program.say("x" * 500_000)  # more than a pipe takes: it reads
        program.send(signal.SIGINT)
        assert await program.ended() == 130
        assert (await program.stderr.rest()).strip() == ""


EARLY = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "{}":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from _trio_infer_start import main
sys.exit(main())
"""


@pytest.mark.parametrize("module", ["trio_infer.client", "rich.console"])
async def test_leaves_without_a_word_while_it_starts(module: str) -> None:
    command = (sys.executable, "-c", EARLY.format(module))
    assert await run("generate", "hi", command=command) == Result(-signal.SIGINT, "", "")


async def test_leaves_without_a_word_while_it_reads_its_options() -> None:
    command = (sys.executable, "-c", EARLY.format("matplotlib"))
    result = await run("bench", "--plot", "figures.svg", command=command)
    assert result == Result(-signal.SIGINT, "", "")


async def test_goes_on_where_hangups_are_ignored(coordinator: ScriptedCoordinator) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    async with started("generate", *to(coordinator), *BYTES, "hi", preexec_fn=ignore) as program:
        request = await coordinator.submission()
        coordinator.partial(request, list(b"Hel"))
        await program.stdout.until("Hel")
        program.send(signal.SIGHUP)
        coordinator.partial(request, list(b"lo"))
        await program.stdout.until("Hello")
        coordinator.reply(request, list(b"Hello"))
        assert await program.ended() == 0
        assert not coordinator.of(Kind.ABORT_REQUEST)


async def test_a_reader_that_has_stopped_holds_up_nothing(coordinator: ScriptedCoordinator) -> None:
    text = b"x" * 500_000  # more than a pipe takes
    async with started("generate", *to(coordinator), *BYTES, "hi") as program:
        request = await coordinator.submission()
        coordinator.partial(request, list(text))
        await program.stdout.until("x")
        program.send(signal.SIGINT)
        await coordinator.abort()
        assert await program.ended() == 130


async def test_ctrl_c_in_the_moment_after_an_answer_ends_nothing_unless_it_comes_again(
    mock_clock: MockClock,
) -> None:
    late: list[float] = []
    interruption = Interruption()
    interruption.too_late = lambda: late.append(trio.current_time())
    async with interruption.watching():
        with interruption.cancels() as everything:
            with interruption.stops() as answer:
                pass
            mock_clock.jump(0.5)
            signal.raise_signal(signal.SIGINT)
            while not late:
                await trio.lowlevel.checkpoint()
            assert (answer.cancel_called, interruption.exit_code) == (False, 0)
            mock_clock.jump(0.5)
            signal.raise_signal(signal.SIGINT)
            await trio.sleep(1000)  # that never pass
    assert everything.cancelled_caught
    assert interruption.exit_code == 130
    assert len(late) == 1


async def test_ctrl_c_long_after_an_answer_ends_everything(mock_clock: MockClock) -> None:
    interruption = Interruption()
    async with interruption.watching():
        with interruption.cancels() as everything:
            with interruption.stops():
                pass
            mock_clock.jump(1.5)
            signal.raise_signal(signal.SIGINT)
            await trio.sleep(1000)  # that never pass
    assert everything.cancelled_caught
    assert interruption.exit_code == 130
