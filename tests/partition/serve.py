"""A coordinator for another host, which tells what it saw whenever it reads a line.

It ends with its standard input, and so with the tests, however those end.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import attrs
import trio

from trio_infer.embedded import open_coordinator, server
from trio_infer.protocol.coordinator_codec import CoordinatorCodec
from trio_infer.protocol.dialects import FRAMED
from trio_infer.sockets import Link

if TYPE_CHECKING:
    from trio_infer.protocol.packing import Frames


async def serve(address: str, heartbeat_timeout: float) -> None:
    seen: defaultdict[str, list[tuple[str, int | None]]] = defaultdict(list)
    codec = CoordinatorCodec(FRAMED)
    link = partial(Link, heartbeat_timeout=heartbeat_timeout)
    with mock.patch.object(server, "Link", link):
        async with open_coordinator(bind=address, step_time=0.005, seed=1) as coordinator:
            core = coordinator._core
            receive = core.receive

            def note(identity: bytes, frames: Frames, now: float) -> None:
                message = codec.decode(frames)
                seen[identity.hex()].append((message.kind.name, message.request_id))
                receive(identity, frames, now)

            with mock.patch.object(core, "receive", note):
                say(coordinator.address)
                async with trio.lowlevel.FdStream(sys.stdin.fileno()) as questions:
                    while await questions.receive_some():
                        statistics = attrs.asdict(coordinator.statistics())
                        say({"statistics": statistics, "seen": list(seen.values())})


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201 - that is what it is for


if __name__ == "__main__":
    trio.run(serve, sys.argv[1], float(sys.argv[2]))
