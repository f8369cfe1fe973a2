"""``trio-infer coordinator``: it serves others, shows what it does, and ends when told to."""

from __future__ import annotations

import os
import re
import shlex
import signal
from typing import TYPE_CHECKING

import msgpack
import pytest
import trio
import zmq

from tests.peers import has_ipv6
from tests.programs import Program, in_terminal, run, started
from trio_infer import InferenceClient, RequestFailed, SamplingParams, open_client
from trio_infer.embedded import Faults, open_coordinator

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.here import Here

pytestmark = pytest.mark.slow

LONG = SamplingParams(num_tokens_to_generate=100_000, top_k=1)  # the likeliest tokens never end
SHORT = SamplingParams(num_tokens_to_generate=20, top_k=1)
RANDOM = SamplingParams(num_tokens_to_generate=20)


async def address_of(program: Program) -> str:
    return (await program.stdout.until("\n")).removesuffix("\n")


def send_nonsense(address: str) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(address)
        socket.send(b"nonsense")


async def hold(client: InferenceClient, task_status: trio.TaskStatus[None]) -> None:
    async with client.stream("hi", LONG):
        task_status.started()
        await trio.sleep_forever()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_serves_until_it_is_told_to_stop(number: signal.Signals) -> None:
    async with started("coordinator") as program:
        address = await address_of(program)
        assert re.fullmatch(r"tcp://127\.0\.0\.1:\d+", address)
        assert f"--address {address}" in await program.stderr.until("\n")
        async with open_client(address) as client:
            completion = await client.generate("A generator", SHORT)
            assert completion.generated_length == 20
        program.send(number)
        assert await program.ended() == 0
        assert await program.stdout.rest() == f"{address}\n"
        assert "Traceback" not in await program.stderr.rest()


@pytest.mark.parametrize(
    ("options", "tokenizer"),
    [((), "bytes"), (("--model", "tests.cli.endless:Endless"), "tests.cli.endless:Endless")],
)
async def test_how_to_ask_it_names_the_tokenizer_that_fits(
    options: tuple[str, ...], tokenizer: str
) -> None:
    async with started("coordinator", *options) as program:
        hint = await program.stderr.until("\n")
        assert f"generate --stream --tokenizer {tokenizer} --address " in hint


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
async def test_where_addresses_are_of_ipv6_it_can_be_asked_as_it_says() -> None:
    async with started("coordinator", "--bind", "tcp://[::1]:*") as program:
        hint = await program.stderr.until("PROMPT\n")
        _, *arguments, _ = shlex.split(hint.partition("trio-infer ")[2])
        assert await address_of(program) in arguments
        result = await run("generate", *arguments, "-n", "3", "hi")
        assert (result.code, result.stderr) == (0, "")


async def test_stops_with_requests_running() -> None:
    async with started("coordinator", "--step-time", "0.01") as program:
        async with (
            open_client(await address_of(program), close_timeout=0) as client,
            trio.open_nursery() as nursery,
        ):
            await nursery.start(hold, client)
            await program.stderr.until("1 running")
            program.send(signal.SIGINT)
            assert await program.ended() == 0
            assert "0 running" not in await program.stderr.rest()  # it did not wait for its end
            nursery.cancel_scope.cancel()


async def test_stops_when_a_client_shuts_it_down() -> None:
    async with started("coordinator") as program:
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.connect(await address_of(program))
            socket.send(msgpack.packb([0]))
            assert await trio.to_thread.run_sync(socket.poll, 10_000)
            socket.send(msgpack.packb([61]))
            assert await program.ended() == 0


async def test_says_in_lines_what_changes() -> None:
    async with started("coordinator", "--max-requests", "1", "--step-time", "0.01") as program:
        address = await address_of(program)
        async with open_client(address) as client, trio.open_nursery() as nursery:
            await nursery.start(hold, client)
            await nursery.start(hold, client)
            await program.stderr.until("1 running, 1 waiting, 0 completed (0 aborted), 0 failed")
            nursery.cancel_scope.cancel()
        await program.stderr.until("0 running, 0 waiting, 2 completed (2 aborted), 0 failed")
        program.send(signal.SIGINT)
        assert await program.ended() == 0
        lines = (await program.stderr.rest()).splitlines()
        assert all(line.startswith("trio-infer: ") for line in lines)


async def test_shows_on_a_terminal_what_runs() -> None:
    reading, writing = os.pipe()
    async with trio.lowlevel.FdStream(reading) as stdout:
        options = ("--engines", "2", "--max-requests", "5", "--step-time", "0.01")
        async with in_terminal("coordinator", *options, stdout=writing) as terminal:
            os.close(writing)
            address = (await stdout.receive_some()).decode().strip()
            async with open_client(address) as client, trio.open_nursery() as nursery:
                for _ in range(11):
                    await nursery.start(hold, client)
                await terminal.screen.until("10 running, 1 waiting, 0 completed")
                await terminal.screen.until("request  engine  prompt  generated")
                await terminal.screen.until("and 2 more")
                nursery.cancel_scope.cancel()
            await terminal.screen.until("0 running, 0 waiting, 11 completed (11 aborted), 0 failed")
            await terminal.type("\x03")
            assert await terminal.ended() == 0
            assert "Traceback" not in await terminal.screen.rest()


async def test_a_terminal_that_moves_no_cursor_gets_lines() -> None:
    async with in_terminal("coordinator", env={"TERM": "dumb"}) as terminal:
        address = (await terminal.screen.until("\n")).split()[0]
        async with open_client(address) as client:
            await client.generate("hi", SHORT)
        await terminal.screen.until("trio-infer: 0 running, 0 waiting, 1 completed (0 aborted)")


async def test_says_in_a_pipe_what_it_drops() -> None:
    async with started("coordinator") as program:
        send_nonsense(await address_of(program))
        await program.stderr.until("trio-infer: message of ")
        program.send(signal.SIGINT)
        assert await program.ended() == 0


async def test_says_on_a_terminal_what_it_drops() -> None:
    async with in_terminal("coordinator") as terminal:
        screen = await terminal.screen.until("\n")
        send_nonsense(screen.splitlines()[0])
        await terminal.screen.until("trio-infer: message of ")
        await terminal.type("\x03")
        assert await terminal.ended() == 0


async def test_gives_the_same_text_by_seed() -> None:
    async with open_coordinator(seed=3) as embedded, open_client(embedded.address) as client:
        expected = (await client.generate("A generator", RANDOM)).generated_tokens
    async with started("coordinator", "--seed", "3") as program:
        async with open_client(await address_of(program)) as client:
            assert (await client.generate("A generator", RANDOM)).generated_tokens == expected


async def test_plays_faults_by_seed() -> None:
    options = ("--seed", "1", "--fault", "fail=0.5")
    async with started("coordinator", *options) as program:
        async with open_client(await address_of(program)) as client:
            failed = [await fails(client) for _ in range(12)]
        program.send(signal.SIGINT)
        assert await program.ended() == 0
        assert f", {sum(failed)} failed on purpose" in await program.stderr.rest()
    async with open_coordinator(seed=1, faults=Faults(fail=0.5)) as embedded:
        async with open_client(embedded.address) as client:
            assert [await fails(client) for _ in range(12)] == failed
    assert True in failed
    assert False in failed


async def fails(client: InferenceClient) -> bool:
    try:
        await client.generate("hi", SHORT)
    except RequestFailed:
        return True
    return False


async def test_speaks_by_a_model_of_ones_own(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, " * 20)
    async with started("coordinator", "--model", str(text)) as program:
        async with open_client(await address_of(program)) as client:
            completion = await client.generate("to be or", SHORT)
            assert completion.generated_text == " not to be, to be or"


@pytest.mark.parametrize(
    ("arguments", "complaint", "code"),
    [
        ("--fault nothing=1", "'nothing=1' is not NAME=PROBABILITY with one of drop, ", 2),
        ("--fault drop", "'drop' is not NAME=PROBABILITY", 2),
        ("--fault drop=2", "drop must lie between 0 and 1", 2),
        ("--delay-seconds 2 1", "--delay-seconds must be a span of seconds", 2),
        ("--model no-file", "'no-file': No such file", 1),
        ("--model /dev/null", "/dev/null is empty", 1),
        ("--model no_such_module:model", "ModuleNotFoundError: No module named", 1),
        ("--model tests.cli.ending:Ending", "cannot be had: SystemExit: 0", 1),
        ("--model trio_infer.embedded:Faults", "Faults is no LanguageModel", 1),
        ("--model tests.cli.endless:Endless --bind x", "'x' is no address", 2),
    ],
)
def test_what_cannot_be_done_is_one_line(
    here: Here, arguments: str, complaint: str, code: int
) -> None:
    result = here.run("coordinator", *arguments.split())
    assert complaint in result.stderr
    assert (result.code, result.stdout, result.stderr.count("\n")) == (code, "", 1)
