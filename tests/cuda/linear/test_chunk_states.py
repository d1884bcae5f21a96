"""States in registers: how many products a chunk takes."""

from __future__ import annotations

import re

from compiled_kernels import text_of
from linear_steps import SMALL, recurrence, scan

from tvm_rnn.cuda.linear.recurrence import DECAYED

PRODUCT = re.compile(r"^ +tvm_builtin_ptx_mma_sync\w+\(", re.MULTILINE)


def test_products_of_a_chunk() -> None:
    """Of 32 steps, 16 keys: S read twice (4 each); 3 blocks of scores for either (2 each), S written to (4); and two
    blocks of scores with one step of K for either (2 each), which a loop makes."""
    own = recurrence(1, erase=DECAYED)
    assert len(PRODUCT.findall(text_of(scan(own, SMALL).kernels[0]))) == 2 * 4 + 2 * 3 * 2 + 4 + 2 * 2 * 2
