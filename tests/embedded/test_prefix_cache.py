from __future__ import annotations

from trio_infer.embedded.prefix_cache import PrefixCache


def test_only_an_unbroken_beginning_counts() -> None:
    cache = PrefixCache(4)
    assert cache.take([1, 2, 3]) == 0
    assert cache.take([1, 2, 3, 4]) == 12
    assert cache.take([1, 9, 3]) == 4
    assert cache.take([9, 2]) == 8
    assert cache.take([8, 1]) == 0
    assert cache.take([]) == 0


def test_the_block_hashes_are_those_of_complete_blocks() -> None:
    cache = PrefixCache(2)
    assert len(cache.hashes([1, 2, 3])) == 1
    assert cache.hashes([1, 2, 3, 4])[:1] == cache.hashes([1, 2])


def test_what_was_not_used_for_longest_goes_first() -> None:
    cache = PrefixCache(1, max_blocks=3)
    for block in (1, 2, 3):
        cache.take([block])
    cache.take([1])
    cache.take([4])
    assert [cache.take([block]) for block in (1, 3, 4)] == [1, 1, 1]
    assert cache.take([2]) == 0


def test_of_one_prompt_the_end_goes_first() -> None:
    cache = PrefixCache(1, max_blocks=3)
    cache.take([1, 2, 3])
    cache.take([4])
    assert cache.take([1, 2]) == 2


def test_a_prompt_longer_than_the_cache_keeps_its_beginning() -> None:
    cache = PrefixCache(1, max_blocks=3)
    cache.take([1, 2, 3, 4, 5])
    assert cache.take([1, 2, 3]) == 3


def test_a_long_context_is_found_whole_beside_others() -> None:
    cache = PrefixCache(16)
    contexts = [range(start, start + 10_000) for start in (1, 20_001)]
    assert [cache.take(context) for context in contexts] == [0, 0]
    assert [cache.take(context) for context in contexts] == [160_000, 160_000]
