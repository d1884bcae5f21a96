"""Products that warps of states and of read-outs have in common."""

from __future__ import annotations

import pytest
from linear_steps import SMALL, Steps, chunk_error, recurrence, scan

from tvm_rnn.cuda.linear.chunk_products import OLD, WRITTEN
from tvm_rnn.cuda.linear.recurrence import AFTER


def test_what_is_handed_on_lies_apart() -> None:
    found = scan(recurrence(1, 32), SMALL)
    assert (OLD, WRITTEN) == (0, 1) and found.written_at(0) == 32 * 32 and found.handed_bytes == 32 * (32 + 32)


@pytest.mark.broad
def test_results_of_rows_that_begin_anywhere() -> None:
    assert chunk_error(Steps(recurrence(1, 16, 10, spare=6, reads=(AFTER,)), 33, 1)) < 1
