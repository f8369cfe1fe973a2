"""A coordinator that echoes prompts, also in a process of its own: to be killed and frozen."""

from __future__ import annotations

import ctypes
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from tests.peers import ScriptedCoordinator
from tests.programs import started
from trio_infer.background import running_behind
from trio_infer.sockets import DEALER, ROUTER, Link, ZmqSocket, make_context

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from tests.programs import Program

__all__ = ["HELD", "echoing", "echoing_process"]

HELD = "held"
"""How a prompt begins that is never answered in full."""


async def echo(
    coordinator: ScriptedCoordinator, tell: Callable[[bytes, str], object] = lambda *_: None
) -> None:
    """Answers each prompt by itself, and tells which client sent which."""
    while True:
        submission = await coordinator.submission()
        prompt, params = submission.message.prompt, submission.message.sampling_params
        assert isinstance(prompt, str)
        assert params is not None
        tell(submission.client, prompt)
        if coordinator.has_answered(submission):
            continue  # its abort came right behind it
        if params["streaming"]:
            coordinator.partial(submission, list(prompt.encode()))
        if not prompt.startswith(HELD):
            coordinator.reply(submission, list(prompt.encode()))


def echoing(coordinator: ScriptedCoordinator) -> AbstractAsyncContextManager[None]:
    """Lets it echo for the length of the block."""
    return running_behind(partial(echo, coordinator))


@asynccontextmanager
async def echoing_process(address: str) -> AsyncIterator[Program]:
    """A coordinator that echoes, in a process of its own, and writes which client sent what.

    Each such process knows its first client by the same name, its second by another, and so on.
    """
    command = (sys.executable, "-m", "tests.echoing")
    root = Path(__file__).parents[1]
    async with started(address, command=command, cwd=root) as program:
        await program.stdout.until("listening\n")
        yield program


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def _serve(address: str) -> None:
    context = make_context()
    ZmqSocket(DEALER, link=Link(), context=context).close()
    ctypes.CDLL(None).srand(1)  # after the context's own, which its first socket brings about
    socket = ZmqSocket(ROUTER, link=Link(), context=context)
    coordinator = ScriptedCoordinator(socket, socket.bind(address))
    _write("listening")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(coordinator.run)
        nursery.start_soon(echo, coordinator, lambda name, prompt: _write(f"{name.hex()} {prompt}"))


if __name__ == "__main__":
    trio.run(_serve, sys.argv[1])
