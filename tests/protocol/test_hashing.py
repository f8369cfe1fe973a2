"""Block hashes are the coordinator's, bit for bit, and are sent where somebody reads them."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vector_files import read_json
from trio_infer.protocol.hashing import (
    PrefixCachingCoordinatorPolicy,
    PrefixHashing,
    hash_blocks,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

HASHES = read_json("block_hashes")
TOKEN = st.integers(-(2**63), 2**63 - 1)


def test_the_one_call_that_megatron_core_dies_of_is_refused_here() -> None:
    (vector,) = (v for v in HASHES["vectors"] if "hashes" not in v)
    assert (vector["block_size"], vector["raises"]) == (0, "ZeroDivisionError")
    with pytest.raises(ValueError, match="block_size_tokens must be at least 1"):
        PrefixHashing(vector["block_size"], "longest_prefix")


@pytest.mark.parametrize("vector", [v for v in HASHES["vectors"] if "hashes" in v])
def test_hashes_are_those_of_megatron_core(vector: dict[str, Any]) -> None:
    assert hash_blocks(vector["tokens"], vector["block_size"]) == vector["hashes"]


@pytest.mark.parametrize("vector", HASHES["salted"])
def test_salted_hashes_are_those_of_the_formula(vector: dict[str, Any]) -> None:
    assert (
        hash_blocks(vector["tokens"], vector["block_size"], salt=vector["salt"])
        == (vector["hashes"])
    )


@given(st.lists(TOKEN), st.lists(TOKEN), st.integers(1, 9))
def test_prompts_share_the_hashes_of_the_blocks_that_they_share(
    prefix: list[int], rest: list[int], block_size: int
) -> None:
    shared = len(prefix) // block_size
    hashes = hash_blocks(prefix + rest, block_size)
    assert hashes[:shared] == hash_blocks(prefix, block_size)
    assert len(hashes) == (len(prefix) + len(rest)) // block_size
    assert all(0 < number < 2**63 for number in hashes)


class TheirPolicy(enum.Enum):
    LONGEST = "longest_prefix"


@pytest.mark.parametrize(
    ("block_size", "policy", "prompt", "sent"),
    [
        (None, None, [1, 2], None),
        (2, None, [1, 2], None),
        (None, "longest_prefix", [1, 2], None),
        (2, "longest_prefix", "text", None),
        (2, "load_balanced", "text", None),
        (2, "load_balanced", [1, 2], []),
        (4, "longest_prefix", [1, 2], []),
        (2, "longest_prefix", [1, 2], hash_blocks([1, 2], 2)),
        (2, "first_prefix_block", [1, 2, 3, 4], hash_blocks([1, 2, 3, 4], 2)),
        (2, TheirPolicy.LONGEST, [1, 2], hash_blocks([1, 2], 2)),
        (2, PrefixCachingCoordinatorPolicy.LOAD_BALANCED, [1, 2], []),
    ],
)
def test_no_hashes_and_empty_hashes_are_told_apart(
    block_size: int | None, policy: object, prompt: str | list[int], sent: Sequence[int] | None
) -> None:
    assert PrefixHashing(block_size, policy).of(prompt) == sent


@pytest.mark.parametrize(
    ("block_size", "policy", "error"),
    [
        (0, None, ValueError),
        (-4, None, ValueError),
        (True, None, TypeError),
        ("16", None, TypeError),
        (16, "longest", ValueError),
        (16, 3, ValueError),
        (16, TheirPolicy, ValueError),
    ],
)
def test_a_wrong_setting_is_refused_by_name(
    block_size: Any, policy: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"block_size_tokens|prefix_caching_coordinator_policy"):
        PrefixHashing(block_size, policy)
