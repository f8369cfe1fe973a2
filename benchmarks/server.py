"""A coordinator that does nothing but answer, in a process of its own, on TCP."""

from __future__ import annotations

import multiprocessing
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgpack
import zmq

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

STREAM_TOKENS = 200

FINISHED: dict[str, Any] = {
    "request_id": 1,
    "prompt": None,
    "sampling_params": {"temperature": 1.0, "top_k": 0, "top_p": 0.0, "streaming": False},
    "prompt_tokens": None,
    "prompt_length": 3,
    "status": "COMPLETED",
    "generated_text": "abc",
    "generated_tokens": [97, 98, 99],
    "generated_log_probs": None,
    "generated_length": 3,
    "tpot": [0.01, 0.01],
    "ttft": 0.05,
    "uid": "chatcmpl-00000000000000000000000000000000",
    "remaining_prompt_tokens": ["tensor", [1, 2, 3]],
    "policy_epoch": None,
    "num_cached_tokens": 0,
    "events": [
        {"timestamp": 1.0, "type": "ADD_ENGINE", "payload": None},
        {"timestamp": 2.0, "type": "FINISH", "payload": None},
    ],
}


def serve(ready: Connection) -> None:
    """Acks, replies at once, streams `STREAM_TOKENS` tokens one by one, reports aborts."""
    pack = msgpack.packb
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.set(zmq.SNDHWM, 0)
    router.set(zmq.RCVHWM, 0)
    ready.send(router.bind_to_random_port("tcp://127.0.0.1"))
    whole = pack(FINISHED)
    partial = pack({"request_id": 1, "new_tokens": [97]})
    tokens = {"generated_tokens": [97] * STREAM_TOKENS, "generated_length": STREAM_TOKENS}
    streamed = pack(FINISHED | tokens)
    while True:
        client, metadata, *_ = router.recv_multipart()
        header, *fields = msgpack.unpackb(metadata)
        if header == 0:
            router.send_multipart([client, pack([1])])
        elif header == 20 and fields[1]["streaming"]:
            for _ in range(STREAM_TOKENS):
                router.send_multipart([client, pack([22, fields[0]]), partial])
            router.send_multipart([client, pack([21, fields[0]]), streamed])
        elif header == 20:
            router.send_multipart([client, pack([21, fields[0]]), whole])


@contextmanager
def server() -> Iterator[str]:
    """The address of a server that lives as long as the block."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=serve, args=(there,), daemon=True)
    process.start()
    try:
        yield f"tcp://127.0.0.1:{here.recv()}"
    finally:
        process.kill()
        process.join()
