"""Megatron-core's own coordinator, in a process of its own; it prints its address first."""

from __future__ import annotations

import multiprocessing

from megatron.core.inference.data_parallel_inference_coordinator import (
    DataParallelInferenceCoordinator,
)


class Bytes:
    """A tokenizer whose ids are the bytes of UTF-8, and one more, the end."""

    eod = 256

    def tokenize(self, text: str) -> list[int]:
        return list(text.encode())

    def detokenize(self, tokens: list[int]) -> str:
        return bytes(token for token in tokens if token < self.eod).decode(errors="replace")


class Announcement:
    """The pipe that the coordinator tells its address by."""

    def send(self, address: str) -> None:
        print(address, flush=True)  # noqa: T201 - that is what it is for

    def close(self) -> None:
        """Nobody waits for more."""


if __name__ == "__main__":
    DataParallelInferenceCoordinator.entrypoint(
        Announcement(),
        multiprocessing.Event(),
        data_parallel_size=0,
        tokenizer=Bytes(),
        max_requests=64,
        hostname="127.0.0.1",
    )
