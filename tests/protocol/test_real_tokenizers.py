"""Text by tokenizers of the package ``tokenizers``, trained here; for where that is installed."""

from __future__ import annotations

import json
import pydoc_data.topics
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_infer.protocol.detokenizing import Detokenizer

tokenizers = pytest.importorskip("tokenizers")

SPECIAL = "<|special|>"


def byte_level() -> Any:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    train(tokenizer, [SPECIAL])
    return tokenizer


def sentencepiece() -> Any:
    """One with leading spaces, and bytes for what is not in the vocabulary."""
    decoders = tokenizers.decoders
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    train(tokenizer, [SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))])
    state = json.loads(tokenizer.to_str())
    # Bytes have to be special to get into the vocabulary, but then they would have no text.
    state["added_tokens"] = [each for each in state["added_tokens"] if each["content"] == SPECIAL]
    return tokenizers.Tokenizer.from_str(json.dumps(state))


def train(tokenizer: Any, special_tokens: list[str]) -> None:
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=1500,
        special_tokens=special_tokens,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(pydoc_data.topics.topics.values(), trainer)


KINDS = (byte_level, sentencepiece)
trained = cache(lambda kind: kind())


texts = st.lists(
    st.one_of(
        st.characters(codec="utf-8"), st.sampled_from(["the ", " value", "  ", "é", "日", "😀"])
    ),
    max_size=60,
).map("".join)


@pytest.mark.parametrize("kind", KINDS)
@given(text=texts, sizes=st.lists(st.integers(1, 6), max_size=60), special=st.integers(0, 60))
def test_the_deltas_of_a_real_tokenizer_add_up(
    kind: Any, text: str, sizes: list[int], special: int
) -> None:
    tokenizer = trained(kind)
    ids = tokenizer.encode(text).ids
    ids.insert(special, tokenizer.token_to_id(SPECIAL))
    whole, sofar, end = tokenizer.decode(ids), "", 0
    detokenizer = Detokenizer(tokenizer)
    for size in sizes:
        end += size
        sofar += detokenizer.take(ids[:end], ended=False)
        assert whole.startswith(sofar)
        assert not sofar.endswith("\N{REPLACEMENT CHARACTER}")
    sofar += detokenizer.take(ids, ended=True)
    detokenizer.check()
    assert sofar == whole


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_text_of_a_real_tokenizer_adds_up_token_by_token(kind: Any) -> None:
    tokenizer = trained(kind)
    text = pydoc_data.topics.topics["assignment"] + "日本語のテキスト😀 " * 50
    ids = tokenizer.encode(text).ids
    detokenizer = Detokenizer(tokenizer)
    deltas = [detokenizer.take(ids[:end], ended=False) for end in range(1, len(ids) + 1)]
    deltas.append(detokenizer.take(ids, ended=True))
    detokenizer.check()
    assert "".join(deltas) == tokenizer.decode(ids)
    assert max(map(len, deltas)) < 50
