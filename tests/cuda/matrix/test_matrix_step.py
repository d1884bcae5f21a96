"""What a step of matrix states reads, and who stores what it emits."""

from __future__ import annotations

import pytest
from matrix_cells import fast_tanh, gated, keys_multiplied, shown
from matrix_steps import layout_of, step_of

import tvm_rnn as rnn
from tvm_rnn.cuda.layer.one_head import of_heads
from tvm_rnn.cuda.matrix.element_index import COLUMN, ROW, NotOnChip


def test_vectors_of_a_step() -> None:
    """Of m2rnn: a key and a query along rows, a value along columns, the number that forgets."""
    step = step_of(of_heads(layout_of(rnn.cells.m2rnn, N=3, K=6, H=8), 3))
    assert sorted(str(s.role) for s in step.streamed) == sorted(["None", COLUMN, ROW, ROW])
    assert len(step.products) == 1 and step.row_sums == [step.output.node] and step.by_warp == [step.output]
    assert not step.lanes.waited and not step.lanes.constant and not step.lanes.whole


def test_what_the_state_reads_is_waited_for() -> None:
    step = step_of(of_heads(layout_of(fast_tanh, N=3, K=6, V=8), 3))
    assert len(step.row_sums) == 2 and step.lanes.waited == {step.row_sums[0]} and step.by_warp


def test_parameters_of_elements_stay_in_registers() -> None:
    step = step_of(layout_of(gated, K=6, V=8))
    assert len(step.lanes.constant) == step.tile.elements and not step.products


def test_who_has_a_matrix_emits_it() -> None:
    step = step_of(layout_of(shown, K=6, V=8))
    assert (
        step.by_lanes == [step.output] and len({node for node, _ in step.lanes.whole}) == 1 and not step.stores.streamed
    )


def test_keys_that_are_multiplied_are_columns() -> None:
    step = step_of(of_heads(layout_of(keys_multiplied, N=2, K=6, V=8), 2))
    assert step.axes.turned and step.tile.rows == 8 and len(step.products) == 1


@rnn.cell(states="S", output="y")
def of_inputs(x: "I", S: "K V", *, W: "V V I", U: "K I"):
    S = rnn.tanh(rnn.einsum("kv,vw->kw", S, W @ x) + (U @ x)[:, None])
    return S, rnn.sum(S, 0)


def test_a_matrix_of_every_step_is_no_parameter() -> None:
    with pytest.raises(NotOnChip, match="none of the parameters"):
        _ = step_of(layout_of(of_inputs, K=6, V=8)).lanes
