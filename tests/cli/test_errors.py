"""What goes wrong is one line on standard error and an exit code, never a traceback."""

from __future__ import annotations

import importlib.metadata
import re
import socket
import sys
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio

from tests.cli.endless import Endless, far
from tests.cli.options import BYTES, to
from tests.programs import Result, run, started
from trio_infer import ConnectionLost, open_client
from trio_infer.embedded import open_coordinator

if TYPE_CHECKING:
    from tests.cli.here import Here
    from tests.peers import ScriptedCoordinator

pytestmark = pytest.mark.slow


def said(result: Result) -> str:
    """The one line that an error is, if it was foreseen."""
    assert "internal error" not in result.stderr
    assert result.stderr.startswith("trio-infer: ")
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith("\n")
    return result.stderr.removeprefix("trio-infer: ").strip()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("nothing", "No such command 'nothing'"),
        ("generate --nothing hi", "No such option"),
        ("generate one two", "unexpected extra argument (two)"),
        ("generate --num-tokens -1 hi", "'--num-tokens': -1 is not in the range"),
        ("generate --temperature nan hi", "--temperature must be finite"),
        ("generate --top-p 2 hi", "'--top-p': 2.0 is not in the range"),
        ("generate --top-k 3 --top-p 0.5 hi", "--top-k and --top-p exclude each other"),
        ("generate -n 1 --num-tokens-total 1 hi", "--num-tokens and --num-tokens-total exclude"),
        (f"generate -n {2**70} hi", "--num-tokens must fit signed 64 bits"),
        (f"generate --seed {2**70} hi", "--seed must fit signed 64 bits"),
        ("generate --connect-timeout nan hi", "--connect-timeout must be finite"),
        ("generate --stop= hi", "--stop must not contain an empty string"),
        ("generate --address tcp://host:99999 hi", "'tcp://host:99999'"),
        ("engines epoch -1", "'NUMBER': -1 is not in the range 0<=x<="),
        ("engines epoch x", "'NUMBER': 'x' is not a valid integer"),
        (f"bench --output-tokens {2**70}", "'--output-tokens': "),
        ("generate --dialect 0.17 hi", "'0.17' is not one of 'framed', '0.20', '0.19', '0.18'"),
        ("generate --address tcp://host:1 --tokenizer words hi", "'--tokenizer': 'words' is not"),
        ("generate --tokenizer bytes hi", "--tokenizer is for a coordinator at an --address"),
        ("generate --address nowhere hi", "'nowhere' is no address"),
        ("generate --address tcp://nowhere hi", "'tcp://nowhere' ends in no port"),
        ("generate --address tcp://host:1 --seed 1 hi", "--seed and --step-time are for"),
        ("generate --address tcp://host:1 --step-time 1 hi", "--seed and --step-time are for"),
        ("coordinator --engines 0", "'--engines': 0 is not in the range"),
        ("coordinator --step-time nan", "--step-time must be"),
        ("coordinator --bind nowhere", "'nowhere' is no address"),
    ],
)
def test_a_command_line_that_makes_no_sense(here: Here, arguments: str, complaint: str) -> None:
    result = here.run(*arguments.split())
    assert complaint in said(result)
    assert re.search(r" \(see trio-infer [a-z ]*--help\)$", said(result))
    assert (result.code, result.stdout) == (2, "")


def test_a_complaint_is_one_line_whatever_it_quotes(here: Here) -> None:
    complaint = said(here.run("generate", "one", "two\nlines"))
    assert "extra argument (two lines)" in complaint


async def test_a_prompt_that_is_empty() -> None:
    result = await run("generate")
    assert "prompt is empty" in said(result)
    assert (result.code, result.stdout) == (2, "")


async def test_a_prompt_that_is_no_text() -> None:
    result = await run("generate", "-", stdin=b"good \xff bad")
    assert "the prompt on standard input is not UTF-8: invalid start byte at byte 5" in said(result)
    assert result.code == 2


async def test_no_standard_input_at_all() -> None:
    shell = ("sh", "-c", '"$@" <&-', "sh", sys.executable, "-m", "trio_infer")
    result = await run("generate", command=shell)
    assert "prompt is empty" in said(result)
    assert result.code == 2


def test_nobody_listens(here: Here) -> None:
    options = ("--address", "tcp://127.0.0.1:1", "--connect-timeout", "0.2")
    result = here.run("generate", *options, "hi")
    assert "no handshake with tcp://127.0.0.1:1 within 0.2 s" in said(result)
    assert (result.code, result.stdout) == (1, "")


def test_the_address_is_taken(here: Here) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        result = here.run("coordinator", "--bind", address)
    assert f"cannot use {address}: Address already in use" in said(result)
    assert (result.code, result.stdout) == (1, "")


@pytest.mark.parametrize("stream", [("--stream",), ()])
async def test_the_connection_is_lost(stream: tuple[str, ...]) -> None:
    options = ("--tokenizer", "bytes", "-n", "100000", *stream)
    async with AsyncExitStack() as stack:
        serving = open_coordinator(model=Endless(), step_time=0.002)
        coordinator = await stack.enter_async_context(serving)
        async with started("generate", "--address", coordinator.address, *options, "hi") as program:
            await coordinator.wait_until(partial(far, coordinator))
            await stack.aclose()
            assert re.fullmatch("x+\n", await program.stdout.rest())
            result = Result(await program.ended(), "", await program.stderr.rest())
            assert "connection was lost" in said(result)
            assert result.code == 1


async def test_the_engine_gives_up() -> None:
    async with open_coordinator(max_sequence_length=10) as coordinator:
        result = await run("generate", "--address", coordinator.address, "x" * 20)
        assert "failed" in said(result)
        assert (result.code, result.stdout) == (1, "")


async def test_nobody_reads_the_text_any_more(coordinator: ScriptedCoordinator) -> None:
    async with started("generate", *to(coordinator), *BYTES, "hi") as program:
        request = await coordinator.submission()
        coordinator.partial(request, list(b"Hel"))
        await program.stdout.until("Hel")
        await program.stdout.aclose()
        coordinator.partial(request, list(b"lo"))
        await coordinator.abort()
        assert await program.ended() == 141
        assert await program.stderr.rest() == ""


async def test_nobody_reads_the_text_of_an_embedded_coordinator() -> None:
    async with started("generate", "--stream", "-n", "10000", "--top-k", "1", "hi") as program:
        await program.stdout.until(" ")
        await program.stdout.aclose()
        closed = trio.current_time()
        assert await program.ended() == 141
        assert await program.stderr.rest() == ""
        assert trio.current_time() - closed < 4  # the coordinator was there to answer the abort


@pytest.mark.parametrize("arguments", [("--help",), ("coordinator",)])
async def test_nobody_reads_at_all(arguments: tuple[str, ...]) -> None:
    async with started(*arguments) as program:
        await program.stdout.aclose()
        assert await program.ended() == 141
        assert await program.stderr.rest() == ""


@pytest.mark.parametrize("arguments", [("--help",), ("coordinator",), ("generate", "hi")])
async def test_the_disk_is_full(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:  # noqa: ASYNC230, PTH123 - a device
        result = await run(*arguments, stdout=full)
    assert said(result).endswith("No space left on device")
    assert result.code == 1


CLOSED = ("sh", "-c", '"$@" >&-', "sh", sys.executable, "-m", "trio_infer")


@pytest.mark.parametrize("arguments", ["--help", "coordinator", "completion bash"])
async def test_standard_output_is_closed(arguments: str) -> None:
    result = await run(*arguments.split(), command=CLOSED)
    assert said(result).endswith("input or output failed: standard output is closed")
    assert result.code == 1


@pytest.mark.parametrize("arguments", ["generate hi", "bench", "ping", "engines pause"])
async def test_nothing_is_asked_for_where_standard_output_is_closed(
    coordinator: ScriptedCoordinator, arguments: str
) -> None:
    result = await run(*arguments.split(), *to(coordinator), command=CLOSED)
    assert said(result) == "input or output failed: standard output is closed"
    assert result.code == 1
    assert not coordinator.log


async def test_a_fault_of_the_model_is_not_that_of_the_command_line() -> None:
    async with started("coordinator", "--model", "tests.cli.faulty:Broken") as program:
        async with open_client((await program.stdout.until("\n")).strip()) as client:
            with pytest.raises(ConnectionLost):
                await client.generate("hi")
        assert await program.ended() == 1
        last = (await program.stderr.rest()).splitlines()[-1]
    assert last == (
        "trio-infer: the model tests.cli.faulty:Broken failed:"
        " ValueError: no such shape (TRIO_INFER_DEBUG=1 shows where)"
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--model tests.cli.faulty:Broken", "the model tests.cli.faulty:Broken failed: ValueError"),
        ("--model tests.cli.faulty:broken", "the model tests.cli.faulty:broken failed: ValueError"),
        ("--model tests.cli.faulty:Curt", "the model failed: WrongAnswer: the model gave 1 log"),
        ("--model tests.cli.faulty:Absent", "the model tests.cli.faulty:Absent failed: TypeError"),
        ("--model tests.cli.faulty:Gone", "the model tests.cli.faulty:Gone failed: BrokenPipe"),
        ("--model tests.cli.faulty:Mute", "the model tests.cli.faulty:Mute failed: KeyError: 72"),
    ],
)
def test_a_fault_of_ones_own_model_is_told_as_one(
    here: Here, arguments: str, complaint: str
) -> None:
    result = here.run("generate", "--stream", *arguments.split(), "hi")
    assert complaint in said(result)
    assert result.code == 1


def test_a_fault_of_our_own(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        msg = "oh\nno"
        raise LookupError(msg)

    monkeypatch.setattr("trio_infer.cli.target.open_client", broken)
    line = "trio-infer: internal error: LookupError: oh (TRIO_INFER_DEBUG=1 shows where)\n"
    assert here.run("generate", "hi") == Result(1, "", line)
    monkeypatch.setenv("TRIO_INFER_DEBUG", "1")
    with pytest.raises(LookupError, match="no"):
        here.run("generate", "hi")


WITHOUT = """
import runpy, sys
sys.modules["{}"] = None
runpy.run_module("trio_infer")
"""


@pytest.mark.parametrize("missing", ["click", "rich"])
async def test_the_extra_is_missing(missing: str) -> None:
    command = (sys.executable, "-c", WITHOUT.format(missing))
    result = await run("generate", "hi", command=command)
    assert "install trio-infer[cli]" in said(result)
    assert (result.code, result.stdout) == (1, "")


async def test_another_module_is_missing() -> None:
    result = await run(command=(sys.executable, "-c", WITHOUT.format("trio_infer.cli.options")))
    assert "ModuleNotFoundError: import of trio_infer.cli.options" in result.stderr


async def test_the_script_is_the_same_program(here: Here) -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="trio-infer")
    program = f"import sys; from {script.module} import {script.attr}; sys.exit({script.attr}())"
    version = f"trio-infer {importlib.metadata.version('trio-infer')}\n"
    told = await run("--version", command=(sys.executable, "-c", program))
    assert told == here.run("--version") == Result(0, version, "")
