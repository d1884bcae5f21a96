"""Matrices at the borders of a part, in shared memory: lines of any width, keys or values side by side."""

from __future__ import annotations

import pytest
from again_pairs import Case, pair

from tvm_rnn.cuda.linear.blocks_again import BlocksAgain


@pytest.mark.broad
@pytest.mark.parametrize(("keys_last", "sizes"), [(False, (6, 12)), (True, (9, 6))])
def test_lines_of_any_width(keys_last: bool, sizes: tuple[int, int]) -> None:
    """Four elements at a time, or one."""
    own = pair(*sizes, "bfloat16", writes=(1, -1), reads="s", keys_last=keys_last)
    assert Case(own, 3).error(BlocksAgain) < 1


def test_borders_lie_where_products_come() -> None:
    own = BlocksAgain("k", pair(40, 24, "bfloat16", writes=(1, 1), reads="sgb", chained=True, summed=False))
    first = own.border_at("state")
    assert first == own.product_at("state", own.first("vector_0")) and own.border_lines == own.keys
    last = own.border_at("gradient") + own.border_lines * own.border_pitch
    assert last <= own.shared_bytes and not own.border_pitch % 16
