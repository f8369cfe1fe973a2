from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from trio_infer.embedded.batching import EnginePartial
from trio_infer.embedded.engine import Engine
from trio_infer.embedded.ngram import default_model

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = pytest.mark.slow

PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "num_tokens_to_generate": st.integers(-1, 12),
        "stop_words": st.lists(st.sampled_from(["e", " th", "", "on", "."]), max_size=3),
        "detokenize_stop_sequence": st.booleans(),
        "streaming": st.booleans(),
        "streaming_interval": st.integers(1, 4),
        "return_log_probs": st.booleans(),
        "top_n_logprobs": st.integers(0, 2),
        "skip_prompt_log_probs": st.booleans(),
        "temperature": st.sampled_from([0, 0.5, 1, 2.5]),
        "top_k": st.integers(0, 3),
        "top_p": st.sampled_from([0.0, 0.9]),
    },
)
PROMPTS = st.one_of(st.text(max_size=9), st.lists(st.integers(0, 260), max_size=9))


@attrs.define
class Seen:
    """What came of a request so far."""

    streamed: list[int] = attrs.field(factory=list)
    log_probs: list[float] = attrs.field(factory=list)
    finals: int = 0
    aborted_at: int | None = None


class AnyOrderOfThings(RuleBasedStateMachine):
    """Whatever is submitted, aborted, paused and stepped, in whatever order."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine(default_model(), max_requests=3, max_sequence_length=30, seed=0)
        self.seen: dict[int, Seen] = {}
        self.now = 0.0

    @rule(target=requests, prompt=PROMPTS, params=PARAMS)
    def submit(self, prompt: str | list[int], params: dict[str, Any]) -> int:
        request_id = len(self.seen)
        self.seen[request_id] = Seen()
        refusal = self.engine.submit(request_id, prompt, params, self.now)
        if refusal is not None:
            assert refusal.body["status"] == "FAILED"
            self.end(request_id, refusal.body)
        return request_id

    @rule(request_id=requests)
    def abort(self, request_id: int) -> None:
        live = self.engine.abort(request_id)
        assert live == (self.seen[request_id].finals == 0)
        running = {state.request_id: state.generated_length for state in self.engine.running}
        if live and self.seen[request_id].aborted_at is None:
            self.seen[request_id].aborted_at = running.get(request_id, 0)

    @rule()
    def pause(self) -> None:
        self.engine.pause()

    @rule()
    def unpause(self) -> None:
        self.engine.unpause()

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.now += 1
            due = {
                state.request_id
                for state in self.engine.running
                if self.seen[state.request_id].aborted_at is not None
            }
            ended = self.take(self.engine.step(self.now))
            if not self.engine.paused:
                assert due <= ended
            else:
                assert not ended

    def take(self, outputs: Iterable[Any]) -> set[int]:
        ended = set()
        for output in outputs:
            if isinstance(output, EnginePartial):
                seen = self.seen[output.request_id]
                assert seen.finals == 0
                assert output.body["new_tokens"]
                seen.streamed += output.body["new_tokens"]
                seen.log_probs += output.body.get("new_log_probs", [])
            else:
                self.end(output.request_id, output.body)
                ended.add(output.request_id)
        return ended

    def end(self, request_id: int, body: Any) -> None:
        seen = self.seen[request_id]
        seen.finals += 1
        tokens = body["generated_tokens"]
        assert body["generated_length"] == len(tokens)
        assert seen.streamed == tokens[: len(seen.streamed)]
        if body["generated_log_probs"] is not None:
            assert seen.log_probs == body["generated_log_probs"][: len(seen.log_probs)]
            assert len(body["generated_log_probs"]) >= len(tokens)
        if body["status"] == "COMPLETED":
            assert len(tokens) <= body["sampling_params"]["num_tokens_to_generate"]
            assert body["prompt_length"] + len(tokens) <= 30
        if seen.aborted_at is not None:
            assert len(tokens) <= seen.aborted_at

    @invariant()
    def all_is_accounted_for(self) -> None:
        running = [state.request_id for state in self.engine.running]
        assert len(running) <= 3
        unanswered = {number for number, seen in self.seen.items() if seen.finals == 0}
        assert unanswered == {*running, *self.engine.waiting}
        assert all(seen.finals <= 1 for seen in self.seen.values())
        assert self.engine.load == len(unanswered)

    def teardown(self) -> None:
        self.engine.unpause()
        for _ in range(40 * (len(self.seen) + 1)):
            if not self.engine.wants_step:
                break
            self.step(count=1)
        assert all(seen.finals == 1 for seen in self.seen.values())


TestAnyOrderOfThings = AnyOrderOfThings.TestCase
TestAnyOrderOfThings.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
