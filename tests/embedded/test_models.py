"""What models may say of themselves, and those that keep what they have computed."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio

from tests.embedded.conftest import Alphabet
from tests.waiting import until
from trio_infer import RequestFailed, SamplingParams, open_client
from trio_infer.embedded import CachingModel, open_coordinator
from trio_infer.embedded.batching import EngineReply
from trio_infer.embedded.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trio_infer.embedded import Interruption, Question

GREEDY = {"top_k": 1}


@attrs.define(eq=False)
class Kept:
    """A sequence of the model below."""

    num_cached_tokens: int = 0
    closed: bool = False

    def close(self) -> None:
        self.closed = True


class Keeping(Alphabet):
    """Knows the first two tokens of each prompt, and computes at most four tokens at a time."""

    def __init__(self, *, room: int = 2, piece: int = 4) -> None:
        self.room = room
        self.piece = piece
        self.sequences: list[Kept] = []
        self.known: dict[int, int] = {}
        self.asked: list[list[tuple[int, range]]] = []

    @property
    def open(self) -> list[Kept]:
        return [sequence for sequence in self.sequences if not sequence.closed]

    def open_sequence(self) -> Kept | None:
        if len(self.open) == self.room:
            return None
        self.sequences.append(Kept())
        return self.sequences[-1]

    def answer(
        self, questions: Sequence[Question], interruption: Interruption
    ) -> list[list[list[float]]]:
        self.asked.append([(len(each.tokens), each.places) for each in questions])
        return [self._answer(question) for question in questions]

    def _answer(self, question: Question) -> list[list[float]]:
        sequence: Any = question.sequence
        assert not sequence.closed
        if id(sequence) not in self.known:
            sequence.num_cached_tokens = min(2, question.places.start - 1)
            self.known[id(sequence)] = sequence.num_cached_tokens
        self.known[id(sequence)] += self.piece
        reached = self.known[id(sequence)] = min(self.known[id(sequence)], len(question.tokens))
        return [
            self._after(question.tokens[place - 1]) for place in question.places if place <= reached
        ]


def run(engine: Engine) -> dict[int, dict[str, Any]]:
    bodies = {}
    for now in range(1, 100):
        for output in engine.step(float(now)):
            if isinstance(output, EngineReply):
                bodies[output.request_id] = dict(output.body)
    return bodies


def submit(engine: Engine, number: int, prompt: str, count: int = 2, **params: Any) -> None:
    wanted = GREEDY | {"num_tokens_to_generate": count} | params
    assert engine.submit(number, prompt, wanted, 0.0) is None


def test_what_keeps_sequences_is_a_caching_model(alphabet: Alphabet) -> None:
    assert isinstance(Keeping(), CachingModel)
    assert not isinstance(alphabet, CachingModel)


def test_a_request_that_finds_no_room_waits_for_it() -> None:
    engine = Engine(Keeping(room=1))
    submit(engine, 1, "a")
    submit(engine, 2, "x")
    engine.step(1.0)
    assert (len(engine.running), engine.waiting) == (1, (2,))
    bodies = run(engine)
    assert [bodies[number]["generated_text"] for number in (1, 2)] == ["bc", "yz"]


def test_every_sequence_is_closed_however_its_request_ends() -> None:
    model = Keeping(room=4)
    engine = Engine(model)
    for number in range(4):
        submit(engine, number, "a", 1 + number)
    engine.step(1.0)
    engine.abort(2)
    engine.step(2.0)
    assert len(model.open) == 1
    engine.end(engine.life.state.DEAD)
    assert model.open == []


def test_an_aborted_request_that_never_ran_takes_no_room() -> None:
    model = Keeping(room=1)
    engine = Engine(model)
    submit(engine, 1, "a", 50)
    submit(engine, 2, "x")
    engine.step(1.0)
    engine.abort(2)
    (reply,) = engine.step(2.0)
    assert reply.request_id == 2
    assert len(model.sequences) == 1


def test_the_model_says_how_many_tokens_were_cached() -> None:
    engine = Engine(Keeping(), block_size_tokens=1)
    submit(engine, 1, "abcdef")
    assert run(engine)[1]["num_cached_tokens"] == 2


def test_a_long_prompt_takes_several_steps_in_which_others_go_on() -> None:
    model = Keeping()
    engine = Engine(model)
    submit(engine, 1, "a" * 15, 1)
    submit(engine, 2, "x", 3)
    lengths = []
    for now in range(1, 5):
        engine.step(float(now))
        lengths.append(tuple(state.generated_length for state in engine.running))
    assert lengths == [(0, 1), (0, 2), (0,), ()]
    assert model.asked[0] == [(15, range(15, 16)), (1, range(1, 2))]


def test_a_prompt_is_scored_as_far_as_the_model_goes_each_time(alphabet: Alphabet) -> None:
    wanted = {"return_log_probs": True, "top_n_logprobs": 2}
    bodies = []
    for model in (Keeping(), alphabet):
        engine = Engine(model)
        submit(engine, 1, "abcdefghijklm", 3, **wanted)
        bodies.append(run(engine)[1])
    names = ("prompt_log_probs", "generated_log_probs", "prompt_top_n_logprobs", "generated_tokens")
    assert [bodies[0][name] for name in names] == [bodies[1][name] for name in names]
    assert len(bodies[0]["prompt_log_probs"]) == 12


async def test_leaving_the_coordinator_closes_what_still_runs() -> None:
    model = Keeping()
    async with open_coordinator(model=model, step_time=0.001) as coordinator:
        async with open_client(coordinator.address, close_timeout=0) as client:
            async with client.stream("a", SamplingParams(num_tokens_to_generate=10_000)) as stream:
                await stream.receive()
                assert len(model.open) == 1
                coordinator.die()
    assert model.open == []


class Hurried(Keeping):
    """Computes in a thread until somebody does not want that any more."""

    runs_in_thread = True

    def __init__(self) -> None:
        super().__init__()
        self.computing = threading.Event()
        self.interrupted = 0

    def answer(
        self, questions: Sequence[Question], interruption: Interruption
    ) -> list[list[list[float]]]:
        self.computing.set()
        while not interruption:
            threading.Event().wait(0.001)
        self.interrupted += 1
        return [[] for _ in questions]


async def test_a_computation_that_nobody_waits_for_any_more_is_interrupted() -> None:
    model = Hurried()
    async with open_coordinator(model=model) as coordinator:
        async with open_client(coordinator.address) as client:
            async with client.stream("a"):
                await until(model.computing.is_set)
            await until(lambda: model.interrupted == 1)
            await until(lambda: not coordinator.running)
            assert coordinator.statistics().completed == 1
            assert coordinator.statistics().steps == 1


@pytest.mark.parametrize("way", ["leave", "cancel", "die", "kill_engine", "shut down"])
async def test_a_computation_is_interrupted_when_the_coordinator_is_left(way: str) -> None:
    model = Hurried()
    with trio.CancelScope() as scope:
        async with open_coordinator(model=model) as coordinator:
            async with open_client(coordinator.address, close_timeout=0) as client:
                async with client.stream("a"):
                    await until(model.computing.is_set)
                    if way == "die":
                        coordinator.die()
                    elif way == "kill_engine":
                        coordinator.kill_engine(0)
                    elif way == "shut down":
                        client.shutdown_coordinator()
                    elif way == "cancel":
                        scope.cancel()
                    if way not in ("leave", "cancel"):
                        await until(lambda: model.interrupted)
    assert model.interrupted == 1
    assert model.open == []


class Marked(Alphabet):
    """Ends texts by either of two tokens, begins all prompts by a third, and takes few."""

    max_sequence_length = 8
    end_tokens = (0, ord("f"))
    begin_token = ord("^")
    begins_prompts = True


def test_all_end_tokens_of_a_model_end_a_text() -> None:
    engine = Engine(Marked())
    submit(engine, 1, "c", 5)
    body = run(engine)[1]
    assert body["generated_tokens"] == list(b"def")
    assert body["generated_text"] == "de"


def test_a_termination_id_takes_their_place() -> None:
    engine = Engine(Marked())
    submit(engine, 1, "c", 6, termination_id=ord("g"))
    assert run(engine)[1]["generated_tokens"] == list(b"defg")


@pytest.mark.parametrize(("prompt", "tokens"), [("c", "^c"), ("^c", "^c")])
def test_a_prompt_begins_with_the_begin_token_of_a_model_that_wants_it(
    prompt: str, tokens: str
) -> None:
    engine = Engine(Marked())
    submit(engine, 1, prompt, 1, return_prompt_tokens=True)
    assert run(engine)[1]["prompt_tokens"] == ["tensor", list(tokens.encode())]


def test_a_prompt_without_any_token_fails_rather_than_waits_for_ever() -> None:
    class Deaf(Keeping):
        def tokenize(self, text: str) -> list[int]:
            return [] if text == " " else super().tokenize(text)

    engine = Engine(Deaf(), max_requests=1)
    refusal = engine.submit(0, " ", GREEDY, 0.0)
    assert refusal is not None
    assert refusal.body["status"] == "FAILED"


async def test_what_is_longer_than_the_model_can_hold_fails() -> None:
    async with open_coordinator(model=Marked()) as coordinator:
        async with open_client(coordinator.address) as client:
            with pytest.raises(RequestFailed, match="MaxSequenceLength"):
                await client.generate("abcdefghi")
            params = SamplingParams(num_tokens_to_generate=100, termination_id=1, top_k=1)
            completion = await client.generate("aaaaa", params)
            assert completion.generated_length == 2  # of eight tokens


def test_a_model_that_answers_for_too_few_is_found_out() -> None:
    class Short(Alphabet):
        def next_token_log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
            return []

    engine = Engine(Short())
    submit(engine, 1, "a")
    with pytest.raises(ValueError, match="0 answers to 1 sequences"):
        engine.step(1.0)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [([0.0], "1 log probabilities for 128"), ([math.nan, *[-9.0] * 127], "one is no number")],
)
def test_a_model_whose_answers_make_no_sense_is_found_out(row: list[float], complaint: str) -> None:
    class Odd(Alphabet):
        def next_token_log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
            return [row for _ in sequences]

    engine = Engine(Odd())
    submit(engine, 1, "a", 3, temperature=0.0)
    with pytest.raises(ValueError, match=complaint):
        engine.step(1.0)


def test_log_probs_are_those_of_the_model(alphabet: Alphabet) -> None:
    engine = Engine(Keeping())
    submit(engine, 1, "a", 1, return_log_probs=True)
    assert run(engine)[1]["generated_log_probs"] == [math.log(0.9)]
