"""What lies where in a block's shared memory."""

from __future__ import annotations

from matrix_cells import fast_tanh
from matrix_steps import REGISTERS, layout_of, step_of

from tvm_rnn.cuda.layer.one_head import of_heads
from tvm_rnn.cuda.matrix.block import SharedPlan


def plan(precision: str = "bfloat16", **sizes: int) -> SharedPlan:
    layout = of_heads(layout_of(fast_tanh, precision, N=2, **sizes), 2)
    return SharedPlan(step_of(layout), precision, REGISTERS)


def test_nothing_lies_on_anything_else() -> None:
    own = plan(K=24, V=40)
    taken = [0]  # the flag of a reset
    for vector, at in own.slots.items():
        taken += range(at, at + own.length(vector))
    assert len(set(taken)) == len(taken) and max(taken) < own.stage_words
    parts = [at + i for (n, _), at in own.part_places.items() for i in range(own.step.tile.warps * own.part_width(n))]
    assert len(set(parts)) == len(parts) == own.part_words
    assert own.words == 3 * own.stage_words + 2 * own.part_words


def test_more_rows_leave_a_lane_fewer_registers() -> None:
    assert plan(K=240, V=16).lane_registers < plan(K=24, V=16).lane_registers <= 255
