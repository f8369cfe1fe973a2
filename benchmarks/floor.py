"""The floor: a blocking loop over a bare socket that packs, sends, receives, unpacks the same.

It packs with msgpack, and unpacks with msgspec, to no type: with msgpack alone it would be slower.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgpack
import msgspec
import zmq
from measuring import Figures, median
from server import NOTHING, WHEN

from trio_infer import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "floor"

unpack = msgspec.msgpack.Decoder().decode

PROMPT = [1, 2, 3]
PAUSE = 0.002  # before and after a cancellation: time for the server to fall asleep


@contextmanager
def dealer(address: str) -> Iterator[zmq.Socket[bytes]]:
    """A connected socket, and the handshake done."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.RCVHWM, 0)
        socket.set(zmq.LINGER, 0)
        socket.connect(address)
        socket.send(msgpack.packb([0]))
        socket.recv()
        yield socket


class Stamps:
    """Asks the server when an abort arrived: it has the same clock."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._aborts, _ = self._ask()

    def _ask(self) -> tuple[int, float]:
        self._socket.send(WHEN)
        aborts, at = unpack(self._socket.recv())
        return aborts, at

    def next(self) -> float:
        """When the next one came, waited for."""
        while True:
            aborts, at = self._ask()
            if aborts > self._aborts:
                self._aborts = aborts
                return at


@contextmanager
def stamps(address: str) -> Iterator[Stamps]:
    with dealer(address) as socket:
        yield Stamps(socket)


def request(number: int, params: dict[str, Any], asked: bytes = NOTHING) -> list[bytes]:
    """The frames of a request."""
    pack = msgpack.packb
    return [pack([20, number, params, None]), pack(PROMPT), NOTHING, NOTHING, asked]


def receive(socket: zmq.Socket[bytes]) -> int:
    metadata, body = socket.recv_multipart()
    header: int = unpack(metadata)[0]
    unpack(body)
    return header


def request_in_one(number: int, params: dict[str, Any], _: bytes = NOTHING) -> list[bytes]:
    """The same in the dialects of one frame."""
    return [msgpack.packb([20, number, PROMPT, params, None])]


def receive_in_one(socket: zmq.Socket[bytes]) -> int:
    header: int = unpack(socket.recv())[0]
    return header


WIRES = {
    "framed": (request, receive),
    "0.20": (request_in_one, receive_in_one),
    "0.19": (request_in_one, receive_in_one),
}


def round_trip(address: str, count: int, dialect: str = "framed") -> Figures:
    """One request at a time."""
    params = SamplingParams().serialize()
    make, take = WIRES[dialect]
    figures, times = Figures(), []
    with dealer(address) as socket, figures.taken():
        for number in range(count):
            start = time.perf_counter()
            socket.send_multipart(make(number, params))
            take(socket)
            times.append(time.perf_counter() - start)
    figures.seconds = median(times)
    return figures


def group(address: str, count: int, in_flight: int, dialect: str = "framed") -> Figures:
    """So many in flight all the time."""
    params = SamplingParams().serialize()
    make, take = WIRES[dialect]
    figures = Figures()
    with dealer(address) as socket, figures.taken():
        for number in range(in_flight):
            socket.send_multipart(make(number, params))
        for number in range(in_flight, count + in_flight):
            take(socket)
            if number < count:
                socket.send_multipart(make(number, params))
    return figures


def tasks(address: str, at_once: int, times: int) -> Figures:
    """So many at once, and again when all are done."""
    params = SamplingParams().serialize()
    figures = Figures()
    with dealer(address) as socket, figures.taken():
        for time_ in range(times):
            for number in range(at_once):
                socket.send_multipart(request(time_ * at_once + number, params))
            for _ in range(at_once):
                receive(socket)
    return figures


def streams(
    address: str, at_once: int, times: int, pause: float = 0.0, dialect: str = "framed"
) -> Figures:
    """So many streams at once, and again when all are done."""
    params = SamplingParams(streaming=True).serialize()
    asked = msgpack.packb({"pause": pause}) if pause else NOTHING
    make, take = WIRES[dialect]
    figures = Figures()
    with dealer(address) as socket, figures.taken():
        for time_ in range(times):
            for number in range(at_once):
                socket.send_multipart(make(time_ * at_once + number, params, asked))
            left = at_once
            while left:
                left -= take(socket) == 21
    return figures


def cancel(address: str, count: int) -> Figures:
    """A bare ABORT, from its sending to its arrival."""
    params = SamplingParams().serialize()
    held = msgpack.packb({"hold": True})
    figures, times = Figures(), []
    with dealer(address) as socket, stamps(address) as arrivals, figures.taken():
        for number in range(count):
            socket.send_multipart(request(number, params, held))
            time.sleep(PAUSE)
            start = time.perf_counter()
            socket.send(msgpack.packb([23, number]))
            time.sleep(PAUSE)
            times.append(arrivals.next() - start)
            receive(socket)
    figures.seconds = median(times)
    return figures
