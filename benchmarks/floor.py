"""The floor: a blocking loop over a bare socket that packs, sends, receives, unpacks the same."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgpack
import zmq
from server import STREAM_TOKENS

from trio_infer import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator

PROMPT = [1, 2, 3]


@contextmanager
def dealer(address: str) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.RCVHWM, 0)
        socket.set(zmq.LINGER, 0)
        socket.connect(address)
        socket.send(msgpack.packb([0]))
        socket.recv()
        yield socket


def submit(socket: zmq.Socket[bytes], number: int, params: dict[str, Any]) -> None:
    pack = msgpack.packb
    none = pack(None)
    socket.send_multipart([pack([20, number, params, None]), pack(PROMPT), none, none, none])


def receive(socket: zmq.Socket[bytes]) -> int:
    metadata, body = socket.recv_multipart()
    header: int = msgpack.unpackb(metadata)[0]
    msgpack.unpackb(body)
    return header


def round_trip(address: str, count: int) -> float:
    """Median seconds from a request to its reply, one at a time."""
    params = SamplingParams().serialize()
    times = []
    with dealer(address) as socket:
        for number in range(count):
            start = time.perf_counter()
            submit(socket, number, params)
            receive(socket)
            times.append(time.perf_counter() - start)
    return sorted(times)[count // 2]


def requests(address: str, count: int, in_flight: int) -> float:
    """Requests per second, with so many in flight."""
    params = SamplingParams().serialize()
    with dealer(address) as socket:
        start = time.perf_counter()
        for number in range(in_flight):
            submit(socket, number, params)
        for number in range(in_flight, count + in_flight):
            receive(socket)
            if number < count:
                submit(socket, number, params)
        return count / (time.perf_counter() - start)


def streams(address: str, count: int) -> float:
    """Tokens per second over so many streams at once."""
    params = SamplingParams(streaming=True).serialize()
    with dealer(address) as socket:
        start = time.perf_counter()
        for number in range(count):
            submit(socket, number, params)
        left = count
        while left:
            left -= receive(socket) == 21
        return count * STREAM_TOKENS / (time.perf_counter() - start)
