"""Scores of a part: the product of a matrix and its gradient alone takes one more product, in tf32."""

from __future__ import annotations

import pytest
from again_pairs import pair

from tvm_rnn.cuda.linear.parts_again import PartsAgain


@pytest.mark.parametrize("reads", ["sg", "sgb"])
def test_a_product_in_tf32(reads: str) -> None:
    own = PartsAgain("k", pair(3, 5, "bfloat16", reads=reads, writes=(1, 1), chained=True))
    assert ("tf32" in own.kernels[0].func.script()) == ("b" in reads)
