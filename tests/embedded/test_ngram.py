from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_infer.embedded import LanguageModel, NgramModel
from trio_infer.embedded.corpus import english_texts, prose
from trio_infer.embedded.ngram import END_TOKEN, default_model
from trio_infer.embedded.sampling import sample_token

ANY_CONTEXT = st.lists(st.integers(0, 256), max_size=12)


def probs(model: NgramModel, context: list[int]) -> list[float]:
    return list(map(math.exp, model.next_token_log_probs([context])[0]))


def continuation(model: NgramModel, prompt: str, count: int, *, seed: int = 0) -> str:
    rng, tokens = random.Random(seed), model.tokenize(prompt)
    for _ in range(count):
        tokens.append(sample_token(model.next_token_log_probs([tokens])[0], rng))
    return model.detokenize(tokens)


def test_it_is_a_language_model() -> None:
    model = default_model()
    assert isinstance(model, LanguageModel)
    assert (model.vocab_size, model.end_token) == (257, 256)
    assert default_model() is model


@given(ANY_CONTEXT)
def test_after_anything_the_probabilities_add_up_to_one_and_none_is_zero(
    context: list[int],
) -> None:
    found = probs(default_model(), context)
    assert len(found) == 257
    assert math.fsum(found) == pytest.approx(1, abs=1e-12)
    assert min(found) > 0


@given(ANY_CONTEXT)
def test_text_that_occurs_is_followed_by_what_follows_there(context: list[int]) -> None:
    model = default_model()
    known = model.tokenize("The sequence of statem")
    found = probs(model, context + known)
    assert found[ord("e")] > 0.5
    assert math.fsum(found) == pytest.approx(1, abs=1e-12)


def test_a_batch_is_answered_row_by_row() -> None:
    model = default_model()
    contexts = [model.tokenize(text) for text in ("", "The ", "concurrenc", "ß")]
    rows = model.next_token_log_probs(contexts)
    assert [list(row) for row in rows] == [
        list(model.next_token_log_probs([context])[0]) for context in contexts
    ]


def test_witten_bell_by_hand() -> None:
    # "ab" and its end, over and over: each of the three was seen once, before one other.
    model = NgramModel(["ab"], order=1)
    unigram_of_b = (1 + 3 / 257) / (3 + 3)
    assert probs(model, [ord("a")])[ord("b")] == pytest.approx((1 + unigram_of_b) / 2)
    unigram_of_a = (1 + 3 / 257) / (3 + 3)
    assert probs(model, [ord("a")])[ord("a")] == pytest.approx(unigram_of_a / 2)
    assert probs(model, [ord("a")])[ord("c")] == pytest.approx(3 / 257 / 6 / 2)


def test_longer_contexts_count_more_than_shorter_ones() -> None:
    model = NgramModel(["xay", "xay", "zaw"], order=3)
    assert probs(model, list(b"xa"))[ord("y")] > probs(model, list(b"a"))[ord("y")]
    assert probs(model, list(b"za"))[ord("w")] > probs(model, list(b"za"))[ord("y")]


def test_texts_shorter_than_the_context_and_none_at_all() -> None:
    assert probs(NgramModel(["a"]), list(b"a"))[END_TOKEN] > 0.6
    assert probs(NgramModel(["", "a", ""]), list(b"a"))[END_TOKEN] > 0.6
    assert probs(NgramModel([]), list(b"a")) == pytest.approx([1 / 257] * 257)


def test_a_text_ends_where_it_ended_and_the_next_begins_behind_it() -> None:
    model = NgramModel(["one two", "one three"])
    assert probs(model, list(b"three"))[END_TOKEN] > 0.9
    assert probs(model, list(b"on"))[END_TOKEN] < 0.1
    assert probs(model, [END_TOKEN])[ord("o")] > 0.7


def test_byte_255_is_not_taken_for_the_end_of_a_text() -> None:
    model = NgramModel(["one two"] * 9)
    assert probs(model, [END_TOKEN])[ord("o")] > 2 * probs(model, [255])[ord("o")]
    assert probs(model, [255]) == pytest.approx(probs(model, [254]))
    assert probs(model, [END_TOKEN, 255]) == pytest.approx(probs(model, [END_TOKEN, 254]))


def test_ids_outside_the_vocabulary_are_refused() -> None:
    for bad in (257, -1):
        with pytest.raises(ValueError, match="range"):
            default_model().next_token_log_probs([[bad]])
        with pytest.raises(ValueError, match="range"):
            default_model().detokenize([bad])


def test_text_to_ids_and_back() -> None:
    model = default_model()
    assert model.tokenize("naïve") == list("naïve".encode())
    assert model.detokenize(model.tokenize("naïve ✓")) == "naïve ✓"
    assert model.detokenize([0xC3]) == "\ufffd"
    assert model.detokenize([104, 105, END_TOKEN]) == "hi<|endoftext|>"
    with pytest.raises(UnicodeEncodeError):
        model.tokenize("\ud800")


def test_the_seed_decides_what_it_writes_and_it_reads_like_english() -> None:
    model = default_model()
    text = continuation(model, "The ", 400, seed=1)
    assert text == continuation(model, "The ", 400, seed=1)
    assert text != continuation(model, "The ", 400, seed=2)
    words = set(" ".join(english_texts()).split())
    written = text.split()[:-1]
    assert sum(word in words for word in written) > 0.6 * len(written)


def test_texts_end_but_not_at_once() -> None:
    model = default_model()
    end = probs(model, model.tokenize("refer to the Yield expressions section."))[END_TOKEN]
    assert 0.01 < end < 1
    assert "<|endoftext|>" not in continuation(model, "Structured concurrency is", 200)


def test_prose_leaves_out_headings_code_and_tables() -> None:
    topic = """Loops
*****

   while_stmt ::= "while" assignment_expression ":" suite ["else" ":" suite] and so on and on.

The *while* statement is used for repeated
execution as long as an expression is true.

>>> while True:
...     print("this goes on and on and on and on and on and on and on.")

Another paragraph, which says nothing but is long enough to be kept here."""
    assert prose(topic) == (
        "The while statement is used for repeated execution as long as an expression is true."
        "\n\n"
        "Another paragraph, which says nothing but is long enough to be kept here."
    )
    assert prose("Short.") == ""


def test_the_corpus_is_english() -> None:
    texts = english_texts()
    assert len(texts) > 50
    assert all(texts)
    assert 150_000 < sum(map(len, texts)) < 500_000
