"""Gradients of a parameter that are accumulated beside the steps, run by the emulator beside NumPy."""

from __future__ import annotations

import pytest
from matrix_steps import gradient_error

import tvm_rnn as rnn


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("ended", [False, True])
def test_parts_are_sums_over_steps(ended: bool) -> None:
    """Where a row has ended, what is there counts nothing, NaN included."""
    assert gradient_error(rnn.cells.m2rnn, {"N": 2, "K": 6, "H": 24}, ended) < 1e-2
