"""A coordinator and its engine that do nothing but answer, in a process of their own, on TCP.

It costs as little as it can, so that it is the client that is measured: nothing is unpacked but
what a workload asks for, all bodies are packed beforehand, and running streams get a token each in
turn, as an engine steps a batch.

What a request asks for stands in its ``offload_params``, which a coordinator passes on untouched:

============== ====================================================================
None           a reply at once, or `STREAM_TOKENS` tokens if it streams
``hold``       nothing, until it is aborted
``pause``      seconds between two steps of all that streams
``log_probs``  a reply at once, with so many tokens and their log probs
============== ====================================================================
"""

from __future__ import annotations

import multiprocessing
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgpack
import zmq

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

STREAM_TOKENS = 200
TAKEN_AT_ONCE = 512  # messages between two steps

WHEN = b"\x91\x7f"  # a question of the benchmark's own: how many aborts came, and when the last did

NOTHING = msgpack.packb(None)

FINISHED: dict[str, Any] = {
    "request_id": 1,
    "prompt": None,
    "sampling_params": {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 0.0,
        "return_log_probs": False,
        "skip_prompt_log_probs": False,
        "return_segments": False,
        "num_tokens_to_generate": None,
        "num_tokens_total": None,
        "termination_id": None,
        "top_n_logprobs": 0,
        "return_prompt_top_n_logprobs": False,
        "add_BOS": False,
        "stop_words": None,
        "detokenize_stop_sequence": False,
        "return_prompt_tokens": False,
        "streaming": False,
        "streaming_interval": 1,
        "do_kv_handoff": False,
    },
    "inference_parameters": None,
    "prompt_tokens": None,
    "prompt_length": 3,
    "arrival_time": None,
    "status": "COMPLETED",
    "encoder_prompt": None,
    "generated_text": "abc",
    "segments": None,
    "generated_segments": None,
    "generated_sequence_lengths": None,
    "generated_tokens": [97, 98, 99],
    "prompt_log_probs": None,
    "generated_log_probs": None,
    "prompt_top_n_logprobs": None,
    "generated_top_n_logprobs": None,
    "generated_length": 3,
    "tpot": [0.01, 0.01],
    "ttft": 0.05,
    "uid": "chatcmpl-00000000000000000000000000000000",
    "remaining_prompt_tokens": ["tensor", [1, 2, 3]],
    "policy_epoch": None,
    "kv_cache_epoch": None,
    "latency": None,
    "routing_indices": None,
    "finished_chunk_token_count": 0,
    "stop_word_ids": None,
    "cg_wait_iters": 0,
    "block_size_tokens": None,
    "enable_prefix_caching": False,
    "num_cached_tokens": 0,
    "precomputed_block_hashes": [],
    "disaggregated_params": None,
    "events": [
        {"timestamp": 1.0, "type": "ADD_ENGINE", "payload": None},
        {"timestamp": 2.0, "type": "FINISH", "payload": None},
    ],
}


def packed_reply(tokens: list[int], **fields: Any) -> bytes:
    """A finished request with such tokens."""
    of_tokens = {"generated_tokens": tokens, "generated_length": len(tokens)}
    packed: bytes = msgpack.packb(FINISHED | of_tokens | fields)
    return packed


def packed_with_log_probs(count: int) -> bytes:
    """A finished request with so many tokens and the log probs of each."""
    return packed_reply(
        [token % 50_000 for token in range(count)],
        generated_log_probs=[-token / 7 for token in range(count)],
    )


def id_length(frame: bytes) -> int:
    """How many bytes the request's number takes, behind the list's head and the header number."""
    return {0xCC: 2, 0xCD: 3, 0xCE: 5}.get(frame[2], 1)


class Peer:
    """Answers one message after another."""

    def __init__(self, router: zmq.Socket[bytes]) -> None:
        # What stands below pyzmq's own classes takes the same arguments and checks less.
        self._recv: Callable[..., bytes] = super(zmq.Socket, router).recv
        self._send: Callable[..., None] = super(zmq.Socket, router).send
        self._router = router
        self._whole = packed_reply([97, 98, 99])
        self._token = msgpack.packb({"request_id": 1, "new_tokens": [97]})
        self._streamed = packed_reply([97] * STREAM_TOKENS)
        self._nothing = packed_reply([])
        self._with_log_probs: dict[int, bytes] = {}
        self._streams: dict[tuple[bytes, bytes], list[Any]] = {}  # what goes before a token, and
        self._held: set[tuple[bytes, bytes]] = set()  # how many are left
        self._pause = 0.0
        self._aborts = 0
        self._aborted_at = 0.0

    def reply(self, client: bytes, number: bytes, body: bytes) -> None:
        self._send(client, zmq.SNDMORE)
        self._send(b"\x92\x15" + number, zmq.SNDMORE)
        self._send(body)

    def take(self, flags: int = 0) -> None:
        """Receives a message, and does what it says but for streaming."""
        client = self._recv(flags)
        frame = self._recv()
        kind = frame[1]
        if kind == 20:
            number = frame[2 : 2 + id_length(frame)]
            self._recv()  # the prompt
            self._recv()  # its hashes
            self._recv()  # the media
            asked = self._recv()
            if asked != NOTHING:
                self._take_special(client, number, msgpack.unpackb(asked), frame)
            elif b"\xa9streaming\xc3" in frame:
                self._streams[client, number] = [b"\x92\x16" + number, STREAM_TOKENS]
            else:
                self.reply(client, number, self._whole)
        elif kind == 23:
            self._aborted_at = time.perf_counter()
            self._aborts += 1
            key = client, frame[2:]
            if self._streams.pop(key, None) is not None or key in self._held:
                self._held.discard(key)
                self.reply(client, key[1], self._nothing)
        elif kind == 0:
            self._router.send_multipart([client, msgpack.packb([1])])
        elif frame == WHEN:
            answer = msgpack.packb([self._aborts, self._aborted_at])
            self._router.send_multipart([client, answer])

    def _take_special(
        self, client: bytes, number: bytes, asked: dict[str, Any], frame: bytes
    ) -> None:
        if "hold" in asked:
            self._held.add((client, number))
        elif "log_probs" in asked:
            count = asked["log_probs"]
            if count not in self._with_log_probs:
                self._with_log_probs[count] = packed_with_log_probs(count)
            self.reply(client, number, self._with_log_probs[count])
        elif b"\xa9streaming\xc3" in frame:
            self._pause = asked["pause"]
            self._streams[client, number] = [b"\x92\x16" + number, STREAM_TOKENS]

    def send_token(self, client: bytes, metadata: bytes) -> None:
        self._send(client, zmq.SNDMORE)
        self._send(metadata, zmq.SNDMORE)
        self._send(self._token)

    def step(self) -> None:
        """Sends a token of each stream: the last one with the whole."""
        send_token = self.send_token
        ended = []
        for key, stream in self._streams.items():
            stream[1] -= 1
            if stream[1]:
                send_token(key[0], stream[0])
            else:
                ended.append(key)
        for key in ended:
            del self._streams[key]
            self.reply(*key, self._streamed)

    def run(self) -> None:
        next_step = 0.0
        while True:
            if not self._streams:
                self._pause = next_step = 0.0
                self.take()
            if self._pause:
                next_step = max(next_step, time.perf_counter())
                while (left := next_step - time.perf_counter()) > 0 and self._router.poll(
                    left * 1000
                ):
                    self.take()
                next_step += self._pause
            try:
                for _ in range(TAKEN_AT_ONCE):
                    self.take(zmq.NOBLOCK)
            except zmq.Again:
                pass
            self.step()


class SingleFramePeer(Peer):
    """Speaks the dialects of 0.20 and 0.19, as far as requests go: one frame for each message."""

    def reply(self, client: bytes, number: bytes, body: bytes) -> None:
        self._send(client, zmq.SNDMORE)
        self._send(b"\x93\x15" + number + body)

    def take(self, flags: int = 0) -> None:
        client = self._recv(flags)
        frame = self._recv()
        if frame[1] == 20:
            number = frame[2 : 2 + id_length(frame)]
            if b"\xa9streaming\xc3" in frame:
                partial = b"\x93\x16" + number + self._token
                self._streams[client, number] = [partial, STREAM_TOKENS]
            else:
                self.reply(client, number, self._whole)
        elif frame[1] == 0:
            self._router.send_multipart([client, msgpack.packb([1])])

    def send_token(self, client: bytes, partial: bytes) -> None:
        self._send(client, zmq.SNDMORE)
        self._send(partial)


def serve(ready: Connection, make_peer: Callable[[zmq.Socket[bytes]], Peer]) -> None:
    router = zmq.Context().socket(zmq.ROUTER)
    router.set(zmq.SNDHWM, 0)
    router.set(zmq.RCVHWM, 0)
    ready.send(router.bind_to_random_port("tcp://127.0.0.1"))
    make_peer(router).run()


@contextmanager
def server(make_peer: Callable[[zmq.Socket[bytes]], Peer] = Peer) -> Iterator[str]:
    """The address of a server that lives as long as the block."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there, make_peer), daemon=True)
    process.start()
    try:
        yield f"tcp://127.0.0.1:{here.recv()}"
    finally:
        process.kill()
        process.join()
