from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_infer.embedded.ngram import default_model
from trio_infer.embedded.tokenizer import ModelTokenizer
from trio_infer.protocol.detokenizing import Detokenizer, check_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trio_infer import Tokenizer

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
SPECIAL: Final = 999


# Tokenizers, each with a habit of real ones


class Bytes:
    """Byte-level: ids are bytes of UTF-8. Others are special and have no text."""

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(token for token in ids if token < 256).decode(errors="replace")

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


class SilentBytes(Bytes):
    """Leaves out what is no whole character."""

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(token for token in ids if token < 256).decode(errors="ignore")


PIECES: Final = ("▁", "▁the", "▁a", "the", "a", "e", "▁▁", "é", "日", ".", "\n", REPLACEMENT)


class Pieces:
    """Like sentencepiece: pieces with their leading spaces, of which the very first goes.

    Bytes stand in for what there is no piece for. A run of them that is no UTF-8 as a whole is
    one U+FFFD for each, as ``tokenizers`` has it: so text that was whole may become none.
    """

    def decode(self, ids: Sequence[int]) -> str:
        text, run = "", b""
        for token in [*(token for token in ids if token != SPECIAL), SPECIAL]:
            if token < 256:
                run += bytes([token])
                continue
            try:
                text += run.decode()
            except UnicodeDecodeError:
                text += REPLACEMENT * len(run)
            run = b""
            if token != SPECIAL:
                text += PIECES[token - 256].replace("▁", " ")
        return text.removeprefix(" ")

    def encode(self, text: str) -> list[int]:
        pattern = "|".join(map(re.escape, sorted(PIECES, key=len, reverse=True)))
        ids: list[int] = []
        for found in re.finditer(f"({pattern})|(.)", "▁" + text.replace(" ", "▁"), re.DOTALL):
            piece, rest = found.groups()
            ids += list(rest.encode()) if piece is None else [256 + PIECES.index(piece)]
        return ids


class Words:
    """A space before each word but the first; then some of them cleaned away again."""

    def decode(self, ids: Sequence[int]) -> str:
        words = ("a", ".", "'", "do", "n't", "")
        text = " ".join(words[token % len(words)] for token in ids)
        return text.replace(" .", ".").replace(" n't", "n't").replace(" ' ", "'")


TOKENIZERS: Final = {
    "bytes": Bytes(),
    "silent bytes": SilentBytes(),
    "pieces": Pieces(),
    "embedded": ModelTokenizer(default_model()),
}

texts = st.text(
    st.one_of(st.characters(codec="utf-8"), st.sampled_from(" athe.é日\n€😀\ufffd")), max_size=80
)
cuts = st.lists(st.integers(1, 9), max_size=80)
any_ids = st.lists(
    st.one_of(
        st.integers(0, 267), st.just(SPECIAL), st.sampled_from(list("aé日€😀\ufffd".encode()))
    ),
    max_size=120,
)


def parts(ids: Sequence[int], sizes: Iterable[int]) -> list[list[int]]:
    """The ids so far, at each of the moments that these sizes of deltas make."""
    moments, end = [], 0
    for size in sizes:
        end += size
        moments.append(list(ids[:end]))
        if end >= len(ids):
            break
    return moments


def told(tokenizer: Tokenizer, ids: list[int], sizes: list[int]) -> list[str]:
    """The text of each delta, the last of which has all that is left."""
    detokenizer = Detokenizer(tokenizer)
    deltas = [detokenizer.take(sofar, ended=False) for sofar in parts(ids, sizes)]
    deltas.append(detokenizer.take(ids, ended=True))
    detokenizer.check()
    return deltas


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=texts, sizes=cuts, specials=st.sets(st.integers(0, 80)))
def test_no_delta_has_half_a_character_and_all_add_up_to_the_text(
    name: str, text: str, sizes: list[int], specials: set[int]
) -> None:
    tokenizer: Any = TOKENIZERS[name]
    ids = tokenizer.encode(text)
    if name != "embedded":  # its vocabulary is closed
        for place in sorted(specials):
            ids.insert(place, SPECIAL)
    deltas = told(tokenizer, ids, sizes)
    assert "".join(deltas) == tokenizer.decode(ids) == text
    sofar = ""
    for delta in deltas[:-1]:
        sofar += delta
        assert text.startswith(sofar)


@given(text=texts.filter(lambda text: REPLACEMENT not in text), sizes=cuts)
def test_what_is_whole_is_told_at_once(text: str, sizes: list[int]) -> None:
    ids, detokenizer, sofar = list(text.encode()), Detokenizer(Bytes()), ""
    for moment in parts(ids, sizes):
        sofar += detokenizer.take(moment, ended=False)
        assert sofar == bytes(moment).decode(errors="ignore")


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_long_text_is_told_at_once_from_its_beginning_to_its_end(name: str) -> None:
    tokenizer: Any = TOKENIZERS[name]
    text = "the 日本語 é\n😀a, a. " * 20
    ids = tokenizer.encode(text)
    deltas = told(tokenizer, ids, [1] * len(ids))
    assert "".join(deltas) == text
    assert max(map(len, deltas)) <= 4
    gaps = "".join("x" if delta else " " for delta in deltas).split("x")
    assert max(map(len, gaps)) < 12  # of a run of bytes, with the characters before it


@pytest.mark.parametrize("name", ["bytes", "silent bytes"])
@given(ids=any_ids, sizes=cuts)
def test_bytes_that_are_no_text_add_up_as_well(name: str, ids: list[int], sizes: list[int]) -> None:
    tokenizer: Any = TOKENIZERS[name]
    assert "".join(told(tokenizer, ids, sizes)) == tokenizer.decode(ids)


@pytest.mark.parametrize("tokenizer", [Pieces(), Words()], ids=lambda each: type(each).__name__)
@given(ids=any_ids, sizes=cuts)
def test_text_that_is_taken_back_is_never_wrong_without_a_word(
    tokenizer: Tokenizer, ids: list[int], sizes: list[int]
) -> None:
    try:
        deltas = told(tokenizer, ids, sizes)
    except ValueError as error:
        assert "takes back text" in str(error)  # noqa: PT017 - both ways out are good
    else:
        assert "".join(deltas) == tokenizer.decode(ids)


def test_half_a_character_at_the_end_is_told_as_the_tokenizer_decodes_it() -> None:
    euro = list("€".encode())
    assert told(Bytes(), [97, *euro[:2]], [1, 1, 1]) == ["a", "", "", REPLACEMENT]
    assert told(SilentBytes(), [97, *euro[:2]], [1, 1, 1]) == ["a", "", "", ""]


def test_a_genuine_replacement_character_comes_once_it_is_certain() -> None:
    ids = list(f"a{REPLACEMENT}b{REPLACEMENT}".encode())
    assert told(Bytes(), ids, [4, 1, 3]) == ["a", f"{REPLACEMENT}b", "", REPLACEMENT]


def test_the_space_of_the_very_first_piece_stays_away_and_others_come() -> None:
    the, a = 257, 258
    assert told(Pieces(), [the, a, the], [1, 1, 1]) == ["the", " a", " the", ""]
    assert told(Pieces(), [SPECIAL, the, a], [1, 1, 1]) == ["", "the", " a", ""]
    ids = [the, *[SPECIAL] * 60, a, the]
    assert "".join(told(Pieces(), ids, [1] * len(ids))) == "the a the"


def test_a_text_that_becomes_whole_again_goes_on() -> None:
    """Bytes after whole characters undo these, until they make a whole themselves."""
    ids = list("€é".encode())
    assert told(Pieces(), ids, [1] * len(ids)) == ["", "", "€", "", "é", ""]


def test_a_text_that_was_taken_back_is_told_of_at_the_end() -> None:
    detokenizer = Detokenizer(Pieces())
    ids = [*"€".encode(), 0xFF, 257]
    assert detokenizer.take(ids[:3], ended=False) == "€"
    assert detokenizer.take(ids, ended=False) == ""
    assert detokenizer.take(ids, ended=True) == ""
    for _ in range(2):
        with pytest.raises(ValueError, match="takes back text"):
            detokenizer.check()
    assert detokenizer.text(ids) == "€"
    detokenizer.take_all()
    detokenizer.check()
    assert detokenizer.text(ids) == REPLACEMENT * 4 + " the"


def test_a_run_of_bytes_that_is_no_text_as_a_whole_is_told_as_that() -> None:
    ids = [0xFF, *"€".encode() * 12, 257]
    deltas = told(Pieces(), ids, [1] * len(ids))
    assert "".join(deltas) == REPLACEMENT * 37 + " the"


class Counting:
    """Counts the tokens that it decodes, and keeps none."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.decoded = 0

    def decode(self, ids: list[int]) -> str:
        self.decoded += len(ids)
        text = self._tokenizer.decode(ids)
        ids.clear()
        return text


def test_nothing_comes_after_the_rest() -> None:
    counting = Counting(Bytes())
    detokenizer = Detokenizer(counting)
    assert detokenizer.take([97], ended=True) == "a"
    assert detokenizer.take([97], ended=True) == ""
    assert counting.decoded == 1


def test_what_was_taken_as_a_whole_does_not_come_as_a_delta() -> None:
    detokenizer = Detokenizer(Bytes())
    assert detokenizer.take([97], ended=False) == "a"
    detokenizer.take_all()
    assert detokenizer.take([97, 98], ended=True) == ""
    assert detokenizer.text([97, 98]) == "ab"


def test_a_tokenizer_that_spoils_its_argument_spoils_no_tokens() -> None:
    ids, detokenizer = [97, 98], Detokenizer(Counting(Bytes()))
    detokenizer.take(ids, ended=False)
    detokenizer.take(ids, ended=True)
    detokenizer.take_all()
    other = Detokenizer(Counting(Bytes()))
    other.take_all()
    assert detokenizer.text(ids) == other.text(ids) == "ab"
    assert ids == [97, 98]


COUNT: Final = 6_000
HARD: Final[dict[str, tuple[Tokenizer, list[int], int]]] = {
    "English": (Bytes(), [97] * COUNT, 1),
    "Chinese, no delta of which begins a character": (
        Bytes(),
        [97, *"日".encode() * (COUNT // 3)],
        3,
    ),
    "emoji": (Bytes(), list("😀".encode()) * (COUNT // 4), 1),
    "bytes that are no text": (Bytes(), [0xFF] * COUNT, 1),
    "tokens without text": (Bytes(), [97] + [SPECIAL] * COUNT, 1),
    "bytes for pieces": (Pieces(), list("日本€".encode()) * (COUNT // 9), 1),
    "bytes for pieces that are no text": (Pieces(), [0xFF] * COUNT, 1),
    "text that is taken back": (Pieces(), [97] + [0xFF] * COUNT, 1),
    "large deltas": (Bytes(), [97] * COUNT, 500),
}


@pytest.mark.parametrize("case", HARD)
def test_the_cost_is_linear_in_the_number_of_tokens(case: str) -> None:
    tokenizer, ids, size = HARD[case]
    counting = Counting(tokenizer)
    detokenizer = Detokenizer(counting)
    for end in range(1, len(ids) + 1, size):
        detokenizer.take(ids[:end], ended=False)
    detokenizer.take(ids, ended=True)
    assert counting.decoded < 40 * len(ids)


class Broken:
    """Raises, as often as it is told to."""

    def __init__(self, times: int) -> None:
        self.times = times

    def decode(self, ids: list[int]) -> str:
        self.times -= 1
        if self.times >= 0:
            msg = "out of order"
            raise RuntimeError(msg)
        return bytes(ids).decode(errors="replace")


@given(text=texts, sizes=cuts, moments=st.sets(st.integers(0, 80)))
def test_a_decoding_that_fails_is_tried_again_and_loses_nothing(
    text: str, sizes: list[int], moments: set[int]
) -> None:
    ids, broken = list(text.encode()), Broken(0)
    detokenizer, sofar = Detokenizer(broken), ""
    for number, moment in enumerate([*parts(ids, sizes), ids]):
        broken.times = number in moments
        try:
            sofar += detokenizer.take(moment, ended=False)
        except RuntimeError:
            sofar += detokenizer.take(moment, ended=False)
        broken.times = 0
    sofar += detokenizer.take(ids, ended=True)
    detokenizer.check()
    assert sofar == text


@pytest.mark.parametrize(
    "tokenizer", ["gpt2", b"gpt2", bytearray(), 7, object(), Bytes, lambda ids: "", print]
)
def test_what_cannot_decode_is_no_tokenizer(tokenizer: object) -> None:
    with pytest.raises(TypeError, match="tokenizer must be an object with decode"):
        check_tokenizer(tokenizer)


@pytest.mark.parametrize("text", [b"a", None, ["a"]])
def test_a_tokenizer_that_makes_no_str_is_found_out(text: object) -> None:
    class Wrong:
        def decode(self, ids: list[int]) -> Any:
            return text

    with pytest.raises(TypeError, match="must decode to a str, not"):
        Detokenizer(Wrong()).take([97], ended=False)
