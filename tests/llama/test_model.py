"""LlamaModel over a real client: a real model in the place of the small one."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import trio

from tests.waiting import until
from trio_infer import (
    GenerateRequest,
    InferenceClient,
    RequestFailed,
    SamplingParams,
    gather,
    open_client,
)
from trio_infer.embedded import (
    CachingModel,
    EmbeddedCoordinator,
    Interruption,
    LlamaModel,
    Question,
    open_coordinator,
)
from trio_infer.embedded.llama.vocabulary import open_vocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PROMPT = "Structured concurrency is"
STORY = (
    "Once upon a time there was a small village at the foot of a mountain. The people who lived"
    " there had never seen the sea, but every evening an old sailor told the children of it."
)


def greedy(count: int, **others: Any) -> SamplingParams:
    return SamplingParams(num_tokens_to_generate=count, temperature=0.0, **others)


def own_words(reference: Any, prompt: str, count: int) -> str:
    """What llama.cpp says by itself."""
    reference.reset()
    made = reference.create_completion(prompt, max_tokens=count, temperature=0)
    text: str = made["choices"][0]["text"]
    return text


def own_log_probs(reference: Any, tokens: Sequence[int]) -> Any:
    """What llama.cpp makes of each beginning, the prompt computed at once."""
    rows = []
    for length in range(2, len(tokens) + 1):
        reference.reset()
        reference.eval(tokens[:length])
        pointer = importlib.import_module("llama_cpp").llama_get_logits_ith(reference.ctx, -1)
        rows.append(np.ctypeslib.as_array(pointer, (reference.n_vocab(),)).astype(np.float64))
    return [row - row.max() - np.log(np.exp(row - row.max()).sum()) for row in rows]


def test_is_a_caching_model(model: LlamaModel) -> None:
    assert isinstance(model, CachingModel)


# What it says


async def test_greedy_text_is_that_of_llama_cpp_itself(
    client: InferenceClient, reference: Any
) -> None:
    for prompt in (PROMPT, STORY, "def fibonacci(n):\n", "2 + 2"):
        completion = await client.generate(prompt, greedy(60))
        assert completion.generated_text == own_words(reference, prompt, 60)


async def test_greedy_text_is_the_same_each_time_and_beside_others(
    client: InferenceClient, coordinator: EmbeddedCoordinator, fresh: LlamaModel
) -> None:
    prompts = [PROMPT, STORY, STORY + " One day", "The sea", "Trio", STORY + " The", "def f(x):"]
    async with open_coordinator(model=fresh) as other, open_client(other.address) as asking:
        alone = [(await asking.generate(each, greedy(40))).generated_tokens for each in prompts]
    for _ in range(2):
        together = await gather(client, [GenerateRequest(each, greedy(40)) for each in prompts])
        assert [each.generated_tokens for each in together] == alone


async def test_a_prompt_for_which_a_step_has_little_room_says_what_it_says_alone(
    client: InferenceClient, model: LlamaModel
) -> None:
    params = greedy(3, return_log_probs=True, skip_prompt_log_probs=True)
    shared = model.tokenize(STORY)[:40]
    alone = None
    for length in (0, 509, 510, 511):
        await client.generate([*shared, 900, 901], params)
        beside = [GenerateRequest([length, *[7, 8] * 300][:length], params)] if length else []
        prompt = [*shared, 500, 600, 700]
        *_, made = await gather(client, [*beside, GenerateRequest(prompt, params)])
        alone = alone or made.generated_log_probs
        assert made.generated_log_probs == alone
        for number in range(model.max_sequences):
            await client.generate([number + 1000, 2], params)  # what was computed is gone


def test_a_place_that_is_asked_for_by_itself_is_answered_as_if_with_others(
    fresh: LlamaModel,
) -> None:
    tokens = [*fresh.tokenize(STORY)[:40], 500, 600, 700]
    rows = []
    for asked in ([range(40, 43)], [range(place, place + 1) for place in (40, 41, 42)]):
        sequence = fresh.open_sequence()
        assert sequence is not None
        for places in asked:
            (found,) = fresh.answer([Question(sequence, tokens, places)], Interruption())
            assert len(found) == len(places)
            rows += [row[:] for row in found]
        sequence.close()
        fresh.next_token_log_probs([[5, 6, 7]])
    assert rows[:3] == rows[3:]


async def test_the_deltas_add_up_to_the_completion(client: InferenceClient) -> None:
    text, tokens = "", []
    params = SamplingParams(
        num_tokens_to_generate=80, temperature=0.0, detokenize_stop_sequence=True
    )
    async with client.stream("A list of emojis: 🦀 🐍 ü é 漢字", params) as stream:
        async for delta in stream:
            text += delta.text or ""
            tokens += delta.tokens
        completion = await stream.result()
    assert tokens == completion.generated_tokens
    assert len(tokens) == 80
    assert text == completion.generated_text


async def test_log_probs_are_those_of_llama_cpp_itself(
    client: InferenceClient, reference: Any, model: LlamaModel
) -> None:
    params = greedy(1, return_log_probs=True, top_n_logprobs=3)
    completion = await client.generate(STORY, params)
    tokens = model.tokenize(STORY)
    rows = own_log_probs(reference, tokens)
    expected = [row[token] for row, token in zip(rows, tokens[2:], strict=False)]
    assert completion.prompt_log_probs is not None
    assert completion.prompt_log_probs[1:] == pytest.approx(expected, abs=1e-4)
    assert completion.generated_log_probs == pytest.approx(
        [rows[-1][completion.generated_tokens[0]]], abs=1e-4
    )
    assert completion.generated_top_n_logprobs is not None
    (likeliest,) = completion.generated_top_n_logprobs
    order = np.argsort(-rows[-1])[:3]
    assert likeliest == pytest.approx(
        {model.detokenize([int(token)]): rows[-1][token] for token in order}, abs=1e-4
    )


async def test_log_probs_of_generated_tokens_are_those_of_the_model(
    client: InferenceClient, model: LlamaModel
) -> None:
    params = greedy(5, return_log_probs=True, skip_prompt_log_probs=True)
    completion = await client.generate(STORY, params)
    prompt = model.tokenize(STORY)
    (row,) = model.next_token_log_probs([prompt])
    assert completion.generated_log_probs is not None
    assert completion.generated_log_probs[0] == row[completion.generated_tokens[0]]
    assert np.exp(row[:]).sum() == pytest.approx(1.0)


async def test_its_end_token_ends_a_text_and_is_not_shown(client: InferenceClient) -> None:
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    completion = await client.generate(prompt, greedy(50))
    assert completion.finish_reason == "stop"
    assert completion.generated_tokens[-1] == 2
    assert completion.generated_text == "The capital of France is Paris."


async def test_stop_words_end_a_text(client: InferenceClient) -> None:
    whole = await client.generate(PROMPT, greedy(60))
    completion = await client.generate(PROMPT, greedy(60, stop_words=[" allows"]))
    assert whole.generated_text is not None
    assert completion.generated_text == whole.generated_text.partition(" allows")[0]


async def test_a_seed_gives_the_same_draws(model: LlamaModel) -> None:
    params = SamplingParams(num_tokens_to_generate=30, top_p=0.95, temperature=0.8)
    texts = []
    for _ in range(2):
        async with open_coordinator(model=model, seed=7) as coordinator:
            async with open_client(coordinator.address) as client:
                made = await gather(client, [GenerateRequest(PROMPT, params) for _ in range(4)])
                texts.append([each.generated_text for each in made])
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 4


async def test_the_begin_token_begins_where_it_is_asked_for(client: InferenceClient) -> None:
    params = greedy(1, add_BOS=True, return_prompt_tokens=True)
    completion = await client.generate("Trio", params)
    assert completion.prompt_tokens is not None
    assert completion.prompt_tokens[0] == 1


# What it keeps


async def test_a_shared_beginning_is_computed_once(
    client: InferenceClient, fresh: LlamaModel
) -> None:
    shared = len(fresh.tokenize(STORY))
    ends = (" One day a stranger came.", " But nobody believed him at all.")
    await client.generate(STORY + ends[0], greedy(10))
    completion = await client.generate(STORY + ends[1], greedy(40))
    assert completion.num_cached_tokens == shared
    async with open_coordinator(model=fresh) as other, open_client(other.address) as asking:
        await asking.generate("Something else", greedy(5))
        anew = await asking.generate(STORY + ends[1], greedy(40))
    assert anew.num_cached_tokens == 0
    assert anew.generated_tokens == completion.generated_tokens


async def test_of_the_same_prompt_all_but_two_tokens_are_found(
    client: InferenceClient, model: LlamaModel
) -> None:
    prompt = "The same prompt twice, by one who asks again."
    first, second = [await client.generate(prompt, greedy(20)) for _ in range(2)]
    assert second.num_cached_tokens == len(model.tokenize(prompt)) - 2
    assert second.generated_tokens == first.generated_tokens


async def test_what_goes_on_from_a_completion_finds_all_of_it(
    client: InferenceClient, model: LlamaModel
) -> None:
    prompt = model.tokenize("A conversation between two people who never met:")
    first = await client.generate(prompt, greedy(20))
    more = [*prompt, *first.generated_tokens, *model.tokenize("\nAnd so on")]
    second = await client.generate(more, greedy(1))
    assert second.num_cached_tokens == len(prompt) + 19  # the last was never computed


async def test_idle_kv_outlives_as_many_other_prompts_as_there_are_slots(
    client: InferenceClient, model: LlamaModel
) -> None:
    prompt = "This very prompt is the one that is to be found again later"
    length = len(model.tokenize(prompt))
    for number in range(model.max_sequences):
        other = prompt if number == 0 else f"{number} is another"
        await client.generate(other, greedy(1))
    again = await client.generate(prompt + " on", greedy(1))
    assert again.num_cached_tokens in (length - 1, length)
    for number in range(model.max_sequences):
        await client.generate(f"Number {number} throws it away", greedy(1))
    gone = await client.generate(prompt, greedy(1))
    assert gone.num_cached_tokens == 0


async def test_prompt_log_probs_are_computed_and_not_found(
    client: InferenceClient, model: LlamaModel
) -> None:
    for _ in range(2):
        completion = await client.generate(STORY, greedy(1, return_log_probs=True))
        assert completion.num_cached_tokens == 0
        assert len(completion.prompt_log_probs or ()) == len(model.tokenize(STORY)) - 1


# When it ends


async def test_an_abort_frees_its_slot_within_a_step(
    client: InferenceClient, coordinator: EmbeddedCoordinator, model: LlamaModel
) -> None:
    async with client.stream(STORY, endless()) as stream:
        await stream.receive()
        steps = coordinator.statistics().steps
    aborted = client.statistics().aborted
    await until(lambda: coordinator.statistics().aborts == 1)
    taken = coordinator.statistics().steps
    await coordinator.wait_until(lambda: not coordinator.running)
    assert aborted == 1
    assert coordinator.statistics().steps <= taken + 1
    assert steps > 0
    sequences = [model.open_sequence() for _ in range(model.max_sequences)]
    assert None not in sequences
    for sequence in sequences:
        if sequence is not None:
            sequence.close()


def endless() -> SamplingParams:
    return SamplingParams(num_tokens_to_generate=1500, temperature=0.0, termination_id=-1)


async def test_a_long_prompt_is_given_up_when_nobody_waits_for_it(
    client: InferenceClient, coordinator: EmbeddedCoordinator, model: LlamaModel
) -> None:
    prompt = model.tokenize("and another word " * 300)[:800]
    async with client.stream(prompt, greedy(1)):
        await until(lambda: coordinator.running)
    await coordinator.wait_until(lambda: not coordinator.running)
    assert coordinator.statistics().steps <= 3
    completion = await client.generate(prompt, greedy(5))  # whatever was half computed
    again = await client.generate([1, *prompt], greedy(5))
    assert completion.generated_length == again.generated_length == 5


async def test_a_request_for_more_than_its_context_fails_as_any_that_is_too_long() -> None:
    model = LlamaModel("smollm2", threads=1, max_sequences=1, context_length=100)
    async with open_coordinator(model=model) as coordinator:
        async with open_client(coordinator.address) as client:
            with pytest.raises(RequestFailed, match="MaxSequenceLength"):
                await client.generate([5] * 101)
            completion = await client.generate([5] * 97, endless())
            assert completion.generated_length == 3


async def test_more_requests_than_slots_all_get_their_answer(
    client: InferenceClient, model: LlamaModel
) -> None:
    count = 2 * model.max_sequences + 1
    made = await gather(client, [GenerateRequest(f"{n} is", greedy(5)) for n in range(count)])
    assert [each.generated_length for each in made] == [5] * count


class Watched(LlamaModel):
    """Computes when it is let."""

    def __init__(self) -> None:
        super().__init__("smollm2", threads=1, max_sequences=2)
        self.started = threading.Event()
        self.go = threading.Event()

    def answer(self, questions: Sequence[Question], interruption: Interruption) -> Any:
        self.started.set()
        self.go.wait()
        return super().answer(questions, interruption)


async def test_the_coordinator_answers_while_a_prompt_is_computed() -> None:
    model = Watched()
    async with open_coordinator(model=model) as coordinator:
        async with open_client(coordinator.address) as client:
            async with client.stream("word " * 500, greedy(5)):
                await until(model.started.is_set)
                async with open_client(coordinator.address) as other:  # which shakes hands
                    async with other.stream("Another", greedy(3)) as stream:
                        await until(lambda: coordinator.statistics().waiting == 1)
                        model.go.set()
                        assert (await stream.result()).generated_length == 3
            await until(lambda: not coordinator.running)
    model.close()


async def test_left_while_it_computes_it_can_be_used_and_freed_at_once() -> None:
    model = LlamaModel("smollm2", threads=1, max_sequences=1)
    prompt = "and another word " * 400
    for _ in range(3):
        with trio.CancelScope() as scope:
            async with open_coordinator(model=model) as coordinator:
                async with open_client(coordinator.address, close_timeout=0) as client:
                    async with client.stream(prompt, greedy(5)):
                        await until(lambda: coordinator.running)
                        scope.cancel()
                        await trio.sleep_forever()
        assert scope.cancelled_caught
    async with open_coordinator(model=model) as coordinator:
        async with open_client(coordinator.address) as client:
            assert (await client.generate(PROMPT, greedy(5))).generated_length == 5
    model.close()
    with pytest.raises(RuntimeError, match="has been closed"):
        model.tokenize("a")


# What cannot be


def test_nothing_is_left_of_a_model_that_nobody_refers_to() -> None:
    model = LlamaModel("smollm2", threads=1, max_sequences=1, context_length=256)
    finalizer = model._finalizer
    del model
    gc.collect()
    assert not finalizer.alive


def test_a_file_that_is_cut_off_is_refused_with_llama_cpps_reason(
    tmp_path: Path, model: LlamaModel, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "half.gguf"
    with model.path.open("rb") as whole:
        path.write_bytes(whole.read(10_000_000))
    with pytest.raises(ValueError, match=r"llama\.cpp cannot load .*half\.gguf: \S"):
        LlamaModel(path)
    assert capfd.readouterr() == ("", "")


def test_a_model_that_keeps_nothing_is_refused(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model._context.library, "llama_get_memory", lambda _: None)
    with pytest.raises(ValueError, match="is no model that continues texts"):
        LlamaModel("smollm2", threads=1, max_sequences=1, context_length=64)


def test_a_file_may_have_a_name_that_is_no_utf_8(tmp_path: Path, model: LlamaModel) -> None:
    path = tmp_path / os.fsdecode(b"bad\xff.gguf")
    path.symlink_to(model.path)
    assert open_vocabulary(path).vocab_size == model.vocab_size
    other = LlamaModel(path, threads=1, max_sequences=1, context_length=64)
    assert other.vocab_size == model.vocab_size
    other.close()


def test_it_loads_and_computes_without_noise(capfd: pytest.CaptureFixture[str]) -> None:
    model = LlamaModel("smollm2", threads=1, max_sequences=1, context_length=256)
    model.next_token_log_probs([model.tokenize("hello"), []])
    model.close()
    assert capfd.readouterr() == ("", "")


def test_ctrl_c_while_it_loads_is_heard() -> None:
    class Impatient(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logger.removeHandler(self)
            os.kill(os.getpid(), signal.SIGINT)

    logger = logging.getLogger("trio_infer.embedded.llama.library")
    level = logger.level
    logger.addHandler(Impatient())
    logger.setLevel(logging.DEBUG)
    try:
        with pytest.raises(KeyboardInterrupt):
            LlamaModel("smollm2", threads=1, max_sequences=1, context_length=64)
    finally:
        logger.setLevel(level)


def test_sequences_beyond_all_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot make room for 100000 sequences"):
        LlamaModel("smollm2", threads=1, max_sequences=100_000, context_length=1)


def test_text_comes_back_from_its_tokens(model: LlamaModel) -> None:
    for text in ("hello", " ü 漢字 🦀\n\n", "<|im_start|>user\nhi<|im_end|>", ""):
        assert model.detokenize(model.tokenize(text)) == text
    for foreign in (-1, model.vocab_size, 2**40):  # of another model's, say
        assert model.detokenize([foreign, *model.tokenize("a")]) == "\N{REPLACEMENT CHARACTER}a"
    crab = model.tokenize("🦀")
    assert "\N{REPLACEMENT CHARACTER}" in model.detokenize(crab[:1])
