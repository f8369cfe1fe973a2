"""Two hosts and the link between them: this process's, and another, which coordinators run on.

Hosts are network namespaces. They have no names, so that nothing is left of them once no process
runs in them any more, however the tests end.
"""

from __future__ import annotations

import enum
import json
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import trio

from trio_infer.embedded import CoordinatorStatistics

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

__all__ = ["ADDRESS", "Coordinator", "Cut", "FarHost", "Report", "coordinating", "far_host"]

NEAR = "10.111.0.1/24"
FAR = "10.111.0.2/24"
ADDRESS = "tcp://10.111.0.2:5555"

SERVE = Path(__file__).with_name("serve.py")


class Cut(enum.Enum):
    """What cuts the link: who does what, and what undoes it."""

    HERE = "near", "link set near down", "link set near up"
    THERE = "far", "link set far down", "link set far up"  # no carrier here
    SILENT = "far", f"address delete {FAR} dev far", f"address add {FAR} dev far"


@attrs.frozen
class FarHost:
    """The other host: a process that holds its namespace."""

    _holder: subprocess.Popen[bytes]

    def command(self, *command: str) -> list[str]:
        """The command, to be run there."""
        return ["nsenter", f"--target={self._holder.pid}", "--net", "--", *command]

    def cut(self, cut: Cut = Cut.THERE) -> None:
        """Cuts the link."""
        where, done, _ = cut.value
        (_ip if where == "near" else self.ip)(done)

    def restore(self, cut: Cut = Cut.THERE) -> None:
        """Restores it."""
        where, _, undone = cut.value
        (_ip if where == "near" else self.ip)(undone)

    def ip(self, arguments: str) -> None:
        """Sets up its end of the link."""
        subprocess.run(self.command("ip", *arguments.split()), check=True)


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True)


@contextmanager
def far_host() -> Iterator[FarHost]:
    """Another host, linked to this one."""
    hold = ["unshare", "--net", "--", "cat"]  # which ends with this process, even if that is killed
    with subprocess.Popen(hold, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdin.write(b"\n")
        assert holder.stdout.readline() == b"\n"  # so the namespace is there
        host = FarHost(holder)
        _ip(f"link add near type veth peer name far netns {holder.pid}")
        try:
            _ip(f"address add {NEAR} dev near")
            _ip("link set near up")
            host.ip(f"address add {FAR} dev far")
            host.ip("link set far up")
            yield host
        finally:
            _ip("link delete near")


@attrs.frozen
class Report:
    """What a coordinator saw.

    Attributes:
        statistics: its counters.
        seen: the kinds and request ids of what came, for each connection.
    """

    statistics: CoordinatorStatistics
    seen: list[list[tuple[str, int | None]]]

    def submitted(self, connection: int) -> list[int | None]:
        """The ids of the requests that came over a connection."""
        return [number for kind, number in self.seen[connection] if kind == "SUBMIT_REQUEST"]


@attrs.define
class Coordinator:
    """A coordinator on the other host, spoken to by pipes, which no cut concerns."""

    process: trio.Process
    _questions: trio.abc.SendStream
    _answers: trio.abc.ReceiveStream
    _read: bytes = b""

    async def answer(self) -> Any:
        """The next line that it says."""
        while b"\n" not in self._read:
            piece = await self._answers.receive_some()
            assert piece, "the coordinator has ended"
            self._read += piece
        line, _, self._read = self._read.partition(b"\n")
        return json.loads(line)

    async def report(self) -> Report:
        """What it has seen so far."""
        await self._questions.send_all(b"\n")
        answer = await self.answer()
        seen = [[(kind, number) for kind, number in messages] for messages in answer["seen"]]
        return Report(CoordinatorStatistics(**answer["statistics"]), seen)

    async def until(self, condition: Callable[[Report], object]) -> Report:
        """Returns once a condition holds, however long that takes: pytest-timeout is the limit."""
        while not condition(report := await self.report()):  # noqa: ASYNC110 - it is elsewhere
            await trio.sleep(0.005)
        return report

    async def kill(self) -> None:
        """Ends it, without a word."""
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def coordinating(
    host: FarHost, *, heartbeat_timeout: float = 30.0
) -> AsyncGenerator[Coordinator]:
    """A coordinator at `ADDRESS`."""
    process = await trio.lowlevel.open_process(
        host.command(sys.executable, str(SERVE), ADDRESS, str(heartbeat_timeout)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    coordinator = Coordinator(process, process.stdin, process.stdout)
    async with process.stdin, process.stdout:
        try:
            assert await coordinator.answer() == ADDRESS
            yield coordinator
        finally:
            with trio.CancelScope(shield=True):
                await coordinator.kill()
