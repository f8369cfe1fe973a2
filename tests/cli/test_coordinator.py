"""``trio-infer coordinator``: it serves others, shows what it does, and ends when told to."""

from __future__ import annotations

import os
import re
import signal

import msgpack
import pytest
import trio
import zmq

from tests.programs import Program, in_terminal, started
from trio_infer import InferenceClient, SamplingParams, open_client
from trio_infer.embedded import open_coordinator

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
