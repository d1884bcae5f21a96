"""Products of a block of steps: sums; what tensor cores do is tested with all of a part (test_blocks_again.py)."""

from __future__ import annotations

from typing import Any

from again_pairs import pair

from tvm_rnn.cuda.linear.block_products import Products, summed
from tvm_rnn.cuda.linear.blocks_layout import BlocksLayout


def test_sums() -> None:
    terms: list[Any] = [1, 2, 4]
    assert summed(terms) == 7 and summed(terms[:1]) == 1


def test_a_block_has_places_of_its_own() -> None:
    block: Any = "block"
    made: Any = None
    products = Products(made, BlocksLayout("k", pair()), made, made, made)
    products.places["state_row_0", "left"] = block
    products.enter(block)
    assert products.block is block and not products.places
