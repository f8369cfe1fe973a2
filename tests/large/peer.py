"""A coordinator that answers everybody at once, for a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgpack
import zmq

from tests.large.bodies import large_reply
from tests.peers import finished
from trio_infer.protocol.dialect import Kind
from trio_infer.protocol.dialects import FRAMED
from trio_infer.protocol.packing import unpack_head

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["LARGE_REPLY", "serve"]

LARGE_REPLY = "give me a large one"
"""The prompt that gets one."""


def serve(ready: Connection) -> None:
    """Tells its address and the size of the large reply, and serves until it is killed."""
    large, small = large_reply(150_000, 72), msgpack.packb(finished([1]))
    number = {kind: FRAMED.number(kind) for kind in Kind if kind in FRAMED.layouts}
    socket = zmq.Context().socket(zmq.ROUTER)
    socket.bind("tcp://127.0.0.1:*")
    ready.send((socket.get_string(zmq.LAST_ENDPOINT), len(large)))
    while True:
        client, head, *bodies = socket.recv_multipart()
        _, (kind, *rest), _ = unpack_head(head[:32], 2)
        if kind == number[Kind.CONNECT]:
            socket.send_multipart([client, msgpack.packb([number[Kind.CONNECT_ACK]])])
        elif kind == number[Kind.SUBMIT_REQUEST]:
            body = large if msgpack.packb(LARGE_REPLY) in bodies else small
            answer = msgpack.packb([number[Kind.ENGINE_REPLY], *rest])
            socket.send_multipart([client, answer, body])
