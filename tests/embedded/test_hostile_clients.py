"""A client that sends nonsense to the embedded coordinator: the others are served all the same."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgpack
import pytest
import zmq

from tests.fuzz.choices import Choices
from tests.fuzz.nonsense import STRANGE, mangled
from tests.messages import laid_out
from trio_infer import SamplingParams, open_client
from trio_infer.embedded import EmbeddedCoordinator, open_coordinator
from trio_infer.protocol import packing
from trio_infer.protocol.client_codec import ClientCodec
from trio_infer.protocol.dialect import Dialect, Kind
from trio_infer.protocol.dialects import DIALECTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trio_infer.embedded import LanguageModel

pytestmark = pytest.mark.slow

THREE = SamplingParams(num_tokens_to_generate=3, top_k=1)
EVERY = pytest.mark.parametrize("dialect", list(DIALECTS))


@contextmanager
def raw_client(address: str) -> Iterator[zmq.Socket[bytes]]:
    """A DEALER that sends whatever it is told to."""
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.SNDHWM, 0)
    dealer.connect(address)
    try:
        yield dealer
    finally:
        dealer.close(0)
        context.term()


def nonsense(dialect: Dialect) -> list[list[bytes]]:
    """Messages none of which makes sense."""
    codec = ClientCodec(dialect)
    submit = list(map(bytes, laid_out(codec, "ab", {}).frames(7)))
    number = dialect.headers[Kind.SUBMIT_REQUEST]
    return [
        *([value] for value in STRANGE),
        *([msgpack.packb([number]), value] for value in STRANGE),
        *([b"\x91" + value] for value in STRANGE if len(value) > 1),
        *([b"\x93" + msgpack.packb(number) + value + b"\x80"] for value in STRANGE),
        [*submit, b"\x80"],
        submit * 1000,
        *([*submit[:-1], submit[-1][:cut]] for cut in range(len(submit[-1]))),
        [b"\xdd" + (10**6).to_bytes(4, "big") + b"\x90" * 10**6],
    ]


@EVERY
async def test_whatever_a_client_sends_it_is_counted_and_the_others_are_served(
    dialect: str,
    alphabet: LanguageModel,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packing, "MAX_CONTAINERS", 2**16)
    row = DIALECTS[dialect]
    messages = nonsense(row)
    async with open_coordinator(dialect=dialect, model=alphabet) as coordinator:
        with raw_client(coordinator.address) as hostile:
            hostile.send_multipart(ClientCodec(row).connect())
            await coordinator.wait_until(lambda: coordinator.statistics().clients == 1)
            async with open_client(coordinator.address, dialect=dialect) as client:
                for message in messages:
                    hostile.send_multipart(message)
                assert (await client.generate("abc", THREE)).generated_text == "def"
                await coordinator.wait_until(
                    lambda: coordinator.statistics().malformed == len(messages)
                )
                assert (await client.generate("abc", THREE)).generated_text == "def"
        assert coordinator.engine_states == ("running",)
        assert coordinator.statistics().completed == 2
    assert len(caplog.records) < 20


@EVERY
async def test_a_flood_before_any_handshake_is_ignored(
    dialect: str, alphabet: LanguageModel, caplog: pytest.LogCaptureFixture
) -> None:
    row = DIALECTS[dialect]
    codec = ClientCodec(row)
    submit = laid_out(codec, "ab", {}).frames(7)
    async with open_coordinator(dialect=dialect, model=alphabet) as coordinator:
        with raw_client(coordinator.address) as hostile:
            for _ in range(2000):
                hostile.send_multipart(submit)
            async with open_client(coordinator.address, dialect=dialect) as client:
                assert (await client.generate("abc", THREE)).generated_text == "def"
            await coordinator.wait_until(lambda: coordinator.statistics().ignored == 2000)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


async def served(coordinator: EmbeddedCoordinator) -> None:
    async with open_client(coordinator.address) as client:
        assert (await client.generate("abc", THREE)).generated_text == "def"


@pytest.mark.parametrize("seed", range(3))
async def test_a_client_that_garbles_its_requests_takes_only_those_with_it(
    seed: int, alphabet: LanguageModel, caplog: pytest.LogCaptureFixture
) -> None:
    codec = ClientCodec(DIALECTS["framed"])
    choices = Choices(random.Random(seed).randbytes(100_000))
    async with open_coordinator(model=alphabet) as coordinator:
        with raw_client(coordinator.address) as hostile:
            hostile.send_multipart(codec.connect())
            for number in range(1000):
                submission = laid_out(codec, "ab", {"num_tokens_to_generate": -1})
                submit = list(map(bytes, submission.frames(number)))
                hostile.send_multipart(mangled(choices, submit))
            await served(coordinator)
            await coordinator.wait_until(lambda: coordinator.statistics().malformed > 100)
            await served(coordinator)
    assert len(caplog.records) < 100
