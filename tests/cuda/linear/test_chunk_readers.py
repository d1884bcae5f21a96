"""Read-outs by warps of their own: no product of theirs is left to the warps of states."""

from __future__ import annotations

import pytest
from linear_steps import Steps, chunk_error, recurrence, scan

from tvm_rnn.cuda.linear.chunk_products import OLD, WRITTEN
from tvm_rnn.cuda.linear.chunk_tile import ChunkTile
from tvm_rnn.cuda.linear.recurrence import AFTER, BEFORE, DECAYED


def test_barriers_are_of_two_warps_each() -> None:
    """Of 16 that a block has; the first is everybody's."""
    found = scan(recurrence(1, erase=DECAYED), ChunkTile(warps=2))
    numbers = {found.barrier(warp, what) for warp in range(found.readers) for what in (OLD, WRITTEN)}
    assert numbers == {1, 2, 3, 4}


@pytest.mark.slow
@pytest.mark.parametrize("others", [(), ("vector",)])
def test_chunks_one_after_the_other(others: tuple[str, ...]) -> None:
    erase = "" if others else DECAYED
    assert chunk_error(Steps(recurrence(1, 16, 16, erase=erase, others=others, reads=(BEFORE, AFTER)), 70, 1)) < 1
