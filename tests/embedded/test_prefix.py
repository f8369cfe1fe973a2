from __future__ import annotations

import pytest

from trio_infer.embedded.prefix import Prefix


def test_a_prefix_is_the_beginning_of_a_list() -> None:
    tokens = list(range(10))
    prefix = Prefix(tokens, 4)
    assert list(prefix) == tokens[:4]
    assert len(prefix) == 4
    assert prefix[-1] == 3
    assert prefix[-3:] == [1, 2, 3]
    assert prefix[-99:] == [0, 1, 2, 3]
    assert prefix[2:99] == [2, 3]
    with pytest.raises(IndexError):
        prefix[4]
