"""A client that sends nonsense to the embedded coordinator, beside one that does not."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgpack

from tests.fuzz.choices import Choices
from tests.fuzz.nonsense import STRANGE, mangled
from tests.messages import laid_out
from tests.vector_files import read_vectors
from trio_infer.embedded import CoordinatorStatistics
from trio_infer.embedded.core import CoordinatorCore
from trio_infer.embedded.engine import Engine
from trio_infer.embedded.lifecycle import CONTROL
from trio_infer.protocol.client_codec import ClientCodec
from trio_infer.protocol.coordinator_codec import CoordinatorCodec
from trio_infer.protocol.dialect import Dialect, Kind
from trio_infer.protocol.dialects import DIALECTS
from trio_infer.protocol.hashing import PrefixHashing
from trio_infer.protocol.packing import Frames, MalformedMessage, pack, unpack_map

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Requests", "play_requests"]

HOSTILE: Final = b"A"
BYSTANDER: Final = b"B"

_RECORDED: Final = {
    name: [
        [bytes.fromhex(frame) for frame in (frames if name == "framed" else frames[0])]
        for frames in (vector["frames_hex"] for vector in read_vectors(f"{name}-wire"))
    ]
    for name in DIALECTS
}


class Steps:
    """After a byte comes the next one."""

    vocab_size = 256
    end_token = 0

    def tokenize(self, text: str) -> list[int]:
        return list(text.encode())

    def detokenize(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")

    def next_token_log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        return [self._after(sequence[-1]) for sequence in sequences]

    def _after(self, token: int) -> list[float]:
        probs = [0.1 / 255] * 256
        probs[(token + 1) % 256] = 0.9
        return [math.log(prob) for prob in probs]


@attrs.define
class Requests:
    """What a run was like.

    Attributes:
        messages: how many messages came.
        statistics: of the coordinator, in the end.
    """

    messages: int
    statistics: CoordinatorStatistics


def play_requests(data: bytes) -> Requests:
    """Plays one run.

    Raises:
        AssertionError, or whatever came out: something did not hold that has to.
    """
    return _Play(Choices(data)).run()


class _Play:
    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self._dialect: Dialect = choices.of(list(DIALECTS.values()))
        self._client = ClientCodec(self._dialect)
        self._hears = CoordinatorCodec(self._dialect)
        model = Steps()
        engine = Engine(
            model,
            max_requests=8,
            max_sequence_length=40,
            seed=0,
            block_size_tokens=2,
            sampling_fields=self._dialect.sampling_fields,
        )
        self._core = CoordinatorCore(
            self._dialect, [engine], prefix_hashing=PrefixHashing(2, "longest_prefix")
        )
        self._now = 0.0
        self._messages = 0
        self._told: list[dict[str, Any]] = []

    def run(self) -> Requests:
        core = self._core
        for identity in (BYSTANDER, HOSTILE):
            core.receive(identity, self._client.connect(), self._now)
        params = {"top_k": 1, "num_tokens_to_generate": 3}
        for request_id in range(3):
            request = laid_out(self._client, "abc", params).frames(request_id)
            core.receive(BYSTANDER, request, self._now)
        while self._choices.are_left:
            frames = self._nonsense()
            if self._is_serious(frames):
                continue
            self._messages += 1
            core.receive(HOSTILE, frames, self._now)
            if self._choices.one_in(3):
                self._step()
        while core.wants_step:
            self._step()
        self._step()
        self._check()
        return Requests(self._messages, core.statistics())

    def _nonsense(self) -> Frames:
        choices = self._choices
        if choices.one_in(2):
            return list(mangled(choices, list(map(bytes, self._plausible()))))
        frames = list(choices.of(_RECORDED[self._dialect.name]))
        place = choices.below(len(frames))
        frames[place] = self._changed(msgpack.unpackb(frames[place]))
        return list(mangled(choices, frames))

    def _plausible(self) -> Frames:
        """What makes sense, or nearly: so it leads further."""
        choices, client = self._choices, self._client
        request_id = choices.below(8)
        if self._dialect.can_abort and choices.one_in(4):
            return client.abort(request_id)
        params: dict[str, Any] = {"num_tokens_to_generate": choices.below(9)}
        for _ in range(choices.below(4)):
            name = choices.of(self._dialect.sampling_fields)
            params[name] = choices.of([True, 1, 2, 0.5, -1, 2**64 - 1, 1e308, 5e-324, None, ["a"]])
        prompts: list[Any] = ["a", "abcdef", [1, 2, 3], [255] * 30, [2**63], [True], [[]], "é" * 9]
        prompt = choices.of(prompts)
        kind = Kind.SUBMIT_REQUEST
        others: dict[str, Any] = {}
        if self._dialect.can_hand_off and choices.one_in(4):
            kind = Kind.SUBMIT_REQUEST_WITH_KV
            others = {
                "kv_meta": choices.of([{}, {"transfer_backend": "embedded", "engine": []}]),
                "src_block_ids": choices.of([[], [0], [2**64 - 1]]),
            }
        elif self._dialect.can_hash_blocks and choices.one_in(2):
            others["block_hashes"] = choices.of([[], [1, 2], [-1] * 9, [2**64 - 1]])
        return laid_out(client, prompt, params, kind, **others).frames(request_id)

    def _changed(self, value: Any) -> bytes:
        """A value, packed, with something in it that is another."""
        choices = self._choices
        if choices.one_in(5):
            return choices.of(STRANGE)
        if type(value) is list and 0 < len(value) < 16:
            items = list(map(pack, value))
            place = choices.below(len(items))
            items[place] = self._changed(value[place])
            return bytes([0x90 + len(items)]) + b"".join(items)
        if type(value) is dict and value:
            names = list(value)
            changed = choices.of(names)
            items = [
                pack(name) + (self._changed(value[name]) if name == changed else pack(value[name]))
                for name in names
            ]
            return b"\xde" + len(items).to_bytes(2, "big") + b"".join(items)
        return pack(choices.of([0, 1, 2, 3, 9, 2**64 - 1, value, "ab"]))

    def _is_serious(self, frames: Frames) -> bool:
        """Whether it is what stops a real coordinator, or kills its engines, by intent."""
        try:
            message = self._hears.decode(frames)
        except MalformedMessage:
            return False
        gives_text = isinstance(message.prompt, str)
        asks = message.sampling_params or {}
        return (
            message.kind is Kind.SHUTDOWN
            or (message.kind in CONTROL and message.kind is not Kind.SET_GENERATION_EPOCH)
            or (
                message.kind is Kind.SUBMIT_REQUEST_WITH_KV
                and (gives_text or bool(asks.get("return_log_probs")))
            )
        )

    def _step(self) -> None:
        self._now += 1.0
        self._core.step(self._now)
        for outgoing in self._core.take_outgoing():
            message = self._client.decode(outgoing.frames)
            if message.kind is Kind.ENGINE_REPLY and outgoing.identity == BYSTANDER:
                self._told.append(unpack_map(message.body))

    def _check(self) -> None:
        core, books = self._core, self._core.statistics()
        assert core.idle
        assert not core._table._numbers
        assert core.fleet.left
        assert not core.stopped
        ended = books.completed + books.failed + books.lost
        assert books.submitted == books.running + books.waiting + ended
        assert (books.running, books.waiting, books.lost) == (0, 0, 0)
        assert books.clients == 2
        assert [body["generated_text"] for body in self._told] == ["def"] * 3
