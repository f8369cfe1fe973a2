from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from trio_infer.embedded import routing
from trio_infer.embedded.engine import Engine
from trio_infer.embedded.fleet import Fleet as EngineFleet
from trio_infer.embedded.routing import Router
from trio_infer.protocol.hashing import PrefixHashing, hash_blocks

if TYPE_CHECKING:
    from trio_infer.embedded import LanguageModel

BLOCK = 2
A, B, C = [1, 2], [3, 4], [5, 6]
"""Blocks of prompts."""


class Fleet:
    """Engines behind a router, and what was given to them."""

    def __init__(self, model: LanguageModel, policy: str, *, engines: int = 3) -> None:
        self.engines = [
            Engine(model, max_requests=4, block_size_tokens=BLOCK) for _ in range(engines)
        ]
        all_of_them = EngineFleet(tuple(self.engines))
        self.router = Router(all_of_them, PrefixHashing(BLOCK, policy), model.tokenize)
        self.count = 0

    def give(self, *blocks: list[int], sent: list[int] | None = None) -> int:
        """Routes a prompt of such blocks, and lets its engine have it."""
        prompt = [token for block in blocks for token in block]
        index = self.router.route(prompt, sent)
        self.load(index)
        return index

    def load(self, index: int) -> None:
        self.count += 1
        self.engines[index].submit(self.count, [1], {}, 0.0)

    def unload(self) -> None:
        """Lets every engine forget its requests, and the router nothing."""
        for engine in self.engines:
            engine._batch.clear()


@pytest.fixture(params=["longest_prefix", "first_prefix_block"])
def fleet(alphabet: LanguageModel, request: Any) -> Fleet:
    return Fleet(alphabet, request.param)


def test_load_balancing_takes_the_least_loaded_and_of_equals_the_first(
    alphabet: LanguageModel,
) -> None:
    fleet = Fleet(alphabet, "load_balanced")
    assert [fleet.give(A) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_load_balancing_is_not_led_astray_by_the_hashes_of_a_client(
    alphabet: LanguageModel,
) -> None:
    fleet = Fleet(alphabet, "load_balanced")
    assert [fleet.give(A, sent=[12345]) for _ in range(4)] == [0, 1, 2, 0]


def test_without_a_block_size_no_policy_reads_prompts(alphabet: LanguageModel) -> None:
    fleet = Fleet(alphabet, "longest_prefix")
    fleet.router.hashing = PrefixHashing(None, "longest_prefix")
    assert [fleet.give(A) for _ in range(4)] == [0, 1, 2, 0]


def test_a_known_beginning_leads_back_to_its_engine(fleet: Fleet) -> None:
    assert [fleet.give(A), fleet.give(B), fleet.give(C)] == [0, 1, 2]
    fleet.unload()
    assert fleet.give(B, C) == 1
    assert fleet.give(C, A) == 2
    assert fleet.give(A, A) == 0


def test_a_prompt_that_nobody_knows_goes_to_the_least_loaded(fleet: Fleet) -> None:
    fleet.load(0)
    assert fleet.give(A) == 1
    assert fleet.give([9]) == 2  # no complete block


def test_load_outweighs_a_beginning_only_where_it_is_full(fleet: Fleet) -> None:
    assert fleet.give(A) == 0
    given = [fleet.give(A) for _ in range(3)]
    assert given == [0, 0, 0]  # 1 for the beginning and a quarter less for each request
    # The engine is full now: 0.5 * 1 + 0.5 * 0 against 0.5 * 0 + 0.5 * 1, and the match was last.
    assert fleet.give(A) == 0
    fleet.router._seen.clear()
    assert fleet.give(A) == 1


def test_a_prompt_that_nobody_knows_is_spread_even_where_all_engines_are_full(
    fleet: Fleet,
) -> None:
    for index in (0, 1, 2):
        for _ in range(5):
            fleet.load(index)
    fleet.load(0)
    assert [fleet.give([n, n]) for n in (7, 8)] == [1, 2]


def test_of_full_engines_the_one_that_knows_the_beginning(fleet: Fleet) -> None:
    assert fleet.give(A) == 0
    for index in (0, 1, 2):
        for _ in range(9 - 2 * index):
            fleet.load(index)
    assert fleet.give(A) == 0


def test_of_engines_equally_good_the_one_that_got_the_beginning_last(
    alphabet: LanguageModel,
) -> None:
    fleet = Fleet(alphabet, "longest_prefix")
    assert fleet.give(A) == 0
    for _ in range(3):
        fleet.load(0)
    assert fleet.give(A, B) == 1  # half of it is known to 0, which is full: 0.25 against 0.5
    fleet.unload()
    assert fleet.give(A) == 1
    for _ in range(3):
        fleet.load(1)
    assert fleet.give(A, C) == 0  # 0.25 for the beginning, which 1 knows as well but is full
    fleet.unload()
    assert fleet.give(A) == 0


def test_the_engine_that_knows_more_of_a_prompt_comes_before_one_that_got_its_beginning_later(
    alphabet: LanguageModel,
) -> None:
    fleet = Fleet(alphabet, "longest_prefix")
    assert fleet.give(A, B) == 0
    for _ in range(3):
        fleet.load(0)
    assert fleet.give(A, C) == 1
    fleet.unload()
    assert fleet.give(A, B, C) == 0


def test_the_longest_prefix_counts_by_its_depth(alphabet: LanguageModel) -> None:
    fleet = Fleet(alphabet, "longest_prefix")
    assert fleet.give(A, B, C) == 0
    for _ in range(3):
        fleet.load(0)
    # Three of four blocks are known to 0, which is full: 0.375 against 0.5 for an idle engine.
    assert fleet.give(A, B, C, [7, 8]) == 1


def test_only_the_first_block_counts_where_the_policy_says_so(alphabet: LanguageModel) -> None:
    fleet = Fleet(alphabet, "first_prefix_block")
    assert fleet.give(A, B, C) == 0
    for _ in range(2):
        fleet.load(0)
    assert fleet.give(A, [7, 8], [7, 8], [7, 8]) == 0
    assert list(fleet.router._seen) == hash_blocks(A, BLOCK)


def test_a_block_in_the_middle_counts_where_it_is_known(alphabet: LanguageModel) -> None:
    fleet = Fleet(alphabet, "longest_prefix")
    hashes = hash_blocks(A + B, BLOCK)
    fleet.router._seen[hashes[1]] = {2: 1}
    assert fleet.give(A, B) == 2


def test_hashes_of_the_client_are_believed(fleet: Fleet) -> None:
    assert fleet.give(A) == 0
    assert fleet.give(A, sent=[12345]) == 1
    fleet.unload()
    assert fleet.give(B, sent=[12345]) == 1


def test_a_client_that_sends_no_hashes_where_it_should_gets_load_balancing(fleet: Fleet) -> None:
    assert [fleet.give(A, sent=[]) for _ in range(4)] == [0, 1, 2, 0]


def test_text_is_tokenized_and_hashed_by_the_coordinator(fleet: Fleet) -> None:
    assert fleet.router.route("abab", None) == 0
    fleet.load(0)
    assert fleet.router.route(list(b"abab"), None) == 0
    assert fleet.router.route("xyz", None) == 1


def test_text_finds_the_engine_that_knows_its_tokens_whatever_its_bytes(fleet: Fleet) -> None:
    words = ["a", "is", "rose"]
    fleet.router.tokenize = lambda text: [words.index(word) for word in text.split()]
    assert fleet.router.route("a rose is a rose", None) == 0
    fleet.load(0)
    assert fleet.router.route([0, 2], None) == 0
    assert fleet.router.route("is rose", None) == 1


def test_what_is_remembered_is_bounded(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "MAX_KNOWN_BLOCKS", 2)
    for block in (A, B, C):
        fleet.give(block)
    assert list(fleet.router._seen) == [hash_blocks(block, BLOCK)[0] for block in (B, C)]


def test_the_end_of_a_prompt_is_forgotten_before_its_beginning(
    alphabet: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "MAX_KNOWN_BLOCKS", 3)
    fleet = Fleet(alphabet, "longest_prefix")
    assert fleet.give(A, B, C) == 0
    assert fleet.give([7, 8]) == 1
    assert fleet.give(A) == 0


def test_a_beginning_that_comes_again_and_again_is_not_forgotten(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "MAX_KNOWN_BLOCKS", 2)
    assert [fleet.give(block) for block in (A, B, A, C)] == [0, 1, 0, 2]
    assert fleet.give(A) == 0


def test_the_beginnings_of_ten_thousand_prompts_are_remembered(fleet: Fleet) -> None:
    for number in range(10_000):
        assert fleet.router.route([number, number], None) == 0
    fleet.load(0)
    assert [fleet.router.route([n, n], None) for n in (0, 5_000, 9_999)] == [0, 0, 0]
    assert fleet.router.route([10_000, 10_000], None) == 1
