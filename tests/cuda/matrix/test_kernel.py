"""Kernels of matrix states on the emulator, beside the oracle."""

from __future__ import annotations

import pytest
from emulated import Case
from matrix_cells import fast_tanh
from matrix_steps import TOLERANCE, matrix_error

import tvm_rnn as rnn
from tvm_rnn.cuda.training import add_entry_points
from tvm_rnn.options import Options
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.target import resolve


@pytest.mark.broad
@pytest.mark.parametrize(("hidden", "precision"), [(20, "bfloat16"), (24, "float16"), (9, "float32"), (40, "bfloat16")])
def test_all_steps(hidden: int, precision: str) -> None:
    """Rows and columns that fill tiles, and that do not."""
    assert matrix_error(Case("m2rnn", hidden, 2, 6, precision)) < TOLERANCE[precision]


def test_one_step() -> None:
    assert matrix_error(Case("m2rnn", 20, 2, 1, "bfloat16")) < TOLERANCE["bfloat16"]


def test_one_number_of_a_head_is_left_by_one_warp_of_those_that_share_columns() -> None:
    """Four conditions choose the lane that stores it: its row, its column, and the warp of each."""
    target = resolve("nvidia-h200")
    net = rnn.RNN(fast_tanh, 5, dtype="bfloat16", N=1, K=16, V=64).init(seed=0)
    plans = add_entry_points.plan(passed(net, Options(target, (2,), precision="bfloat16", training="values")), target)
    written = [k.func for own in plans.programs for name, k in own.kernels.items() if name.startswith("matrix")]
    assert written
