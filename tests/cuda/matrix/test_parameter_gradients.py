"""Which gradients of parameters steps of matrix states accumulate, and what that takes."""

from __future__ import annotations

import functools

import pytest
from headed_cells import both_ways
from matrix_cells import fast_tanh, keys_multiplied
from matrix_steps import backward_layer

import tvm_rnn as rnn
from tvm_rnn.cuda.matrix.block import SharedPlan
from tvm_rnn.cuda.matrix.matrix_tile import MatrixTile
from tvm_rnn.cuda.matrix.parameter_gradients import Accumulated, GradientPlan, part_bytes
from tvm_rnn.graph.graph import Node


@functools.cache
def plan_of(cell: rnn.Cell, dtype: str = "bfloat16", **sizes: int) -> SharedPlan:
    regime = backward_layer(cell, dtype, **sizes).on_chip
    assert regime is not None
    return regime.plan


@pytest.mark.broad
def test_the_parameter_that_multiplies_the_state() -> None:
    """Lines are those of R, whichever operand of the sum comes first; nobody else reads the gradient of the product."""
    step = plan_of(rnn.cells.m2rnn, N=2, K=20, H=24).step
    (own,) = step.accumulated
    assert own.node.shape == (2, 24, 24) and own.left.op == "input" and own.right in step.phases
    assert part_bytes(own.node) == 4 * 2 * 24 * 24
    gone = [part.number for part, node in zip(step.layout.taped, step.graph.kept, strict=True) if node is own.right]
    assert step.unstored == {*gone} and own.right not in [left.node for left in step.left]


@pytest.mark.broad
def test_columns_that_are_multiplied() -> None:
    (own,) = plan_of(keys_multiplied, N=2, K=20, V=9).step.accumulated
    assert own.node.shape == (2, 20, 20) and own.right.op == "input" and own.left.op != "input"


@pytest.mark.broad
@pytest.mark.parametrize(
    ("cell", "dtype", "sizes"),
    [(both_ways, "bfloat16", {"K": 9, "V": 20, "H": 20}), (fast_tanh, "bfloat16", {"N": 2, "K": 8, "V": 8})],
    ids=["of vectors", "no product"],
)
def test_what_is_not_accumulated(cell: rnn.Cell, dtype: str, sizes: dict[str, int]) -> None:
    plan = plan_of(cell, dtype, **sizes)
    assert not plan.step.accumulated and not plan.step.unstored
    assert not plan.gradients.words and plan.threads == plan.step.tile.threads


@pytest.mark.broad
def test_float32_has_no_tensor_cores_for_them() -> None:
    assert not plan_of(rnn.cells.m2rnn, "float32", N=2, K=20, H=24).step.accumulated


@pytest.mark.parametrize(("columns", "warps"), [(16, 1), (40, 3), (64, 2), (96, 6)])
def test_warps_share_tiles_of_16_lines(columns: int, warps: int) -> None:
    """As few warps as have registers for their sums."""
    a, b = Node("input", shape=(64, columns)), Node("input", shape=(64, columns))
    plan = GradientPlan(MatrixTile(64, columns), (Accumulated(Node("input", shape=(columns, columns)), a, b),))
    assert plan.warps == warps and plan.possible
    assert plan.pitch % 8 == 4  # 16 bytes from a multiple of 32: eight rows begin in banks of their own
    assert not GradientPlan(MatrixTile(64, 288), plan.sums).possible


@pytest.mark.broad
def test_operands_lie_behind_all_else() -> None:
    plan = plan_of(rnn.cells.m2rnn, N=2, K=20, H=24)
    end = plan.first_weight + plan.product_words
    assert end <= plan.first_operand < end + 4 and plan.first_operand % 4 == 0
    assert plan.words == plan.first_operand + 2 * 2 * 32 * 20  # steps, operands, rows, words of a row
