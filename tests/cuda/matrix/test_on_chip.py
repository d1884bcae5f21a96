"""Which layers of matrix states run in one launch, and why others do not."""

from __future__ import annotations

import pytest
from matrix_cells import fast_tanh, gated, keys_multiplied, shown
from matrix_steps import layout_of

import tvm_rnn as rnn
from tvm_rnn.cuda.matrix.on_chip import WHAT, on_chip
from tvm_rnn.cuda.model.choose_regime import choose
from tvm_rnn.decisions import recording
from tvm_rnn.target import resolve

GPU = resolve("nvidia-h200")
M2RNN = rnn.cells.m2rnn


@pytest.mark.parametrize(
    ("cell", "sizes"),
    [
        (M2RNN, {"N": 8, "H": 64, "K": 64}),
        (M2RNN, {"H": 20}),
        (fast_tanh, {"N": 2, "K": 24, "V": 40}),
        (gated, {"K": 9, "V": 30}),
        (keys_multiplied, {"N": 2, "K": 16, "V": 8}),
        (shown, {"K": 5, "V": 8}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_launch(cell: rnn.Cell, sizes: dict[str, int], dtype: str) -> None:
    layout = layout_of(cell, dtype, **sizes)
    (found,) = choose(layout, GPU, dtype, (16,), {})
    assert found.fact["template"] == "matrix_on_chip" and found.most is None


def test_products_of_the_target_s_size_take_parameters_from_registers() -> None:
    (found,) = on_chip(layout_of(M2RNN, "bfloat16", N=8, H=64, K=64), GPU, {})
    assert found.plan.in_registers and found.plan.threads == 160


@pytest.mark.parametrize(
    ("sizes", "dtype", "says"),
    [
        ({"N": 2, "H": 256, "K": 256}, "bfloat16", "too large a matrix"),
        ({"N": 2, "H": 8}, "float64", "no such kernel in float64"),
    ],
)
def test_why_not(sizes: dict[str, int], dtype: str, says: str) -> None:
    layout = layout_of(M2RNN, dtype, **sizes)
    with recording() as told:
        assert not on_chip(layout, GPU, {})
    (row,) = [row for row in told if row.what == WHAT]
    assert not row.done and says in row.why
