"""Operands of a part in shared memory: rows of any width, of several heads, and zeros where there is nothing."""

from __future__ import annotations

import pytest
from again_pairs import Case, pair

from tvm_rnn.cuda.linear.blocks_again import BlocksAgain
from tvm_rnn.cuda.linear.pair import EVERY
from tvm_rnn.cuda.linear.parts_again import PartsAgain


@pytest.mark.broad
@pytest.mark.parametrize("kind", [BlocksAgain, PartsAgain])
@pytest.mark.parametrize("sizes", [(17, 24), (48, 6)])
def test_any_width(kind: type, sizes: tuple[int, int]) -> None:
    """Some whose pieces of 16 bytes are no multiple of a block's threads."""
    own = pair(*sizes, "bfloat16", writes=(1, 1), reads="sg", group=2, chained=True)
    assert Case(own, EVERY + 5).error(kind) < 1


def test_operands_come_by_asynchronous_copies() -> None:
    """Those of few bytes, which these do not take, come by registers."""
    own = pair(16, 16, "bfloat16", writes=(1, -1), reads="s", chained=True)
    assert "ptx.cp" in PartsAgain("k", own).kernels[0].func.script()
