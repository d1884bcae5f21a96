"""In which order steps of matrix states compute what, forward and backward."""

from __future__ import annotations

import functools

import pytest
from matrix_cells import fast_tanh, gated
from matrix_steps import backward_of, layout_of

import tvm_rnn as rnn
from tvm_rnn.cuda.layer.one_head import of_heads
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.cuda.matrix.element_index import COLUMN, ROW
from tvm_rnn.cuda.matrix.matrix_axes import is_product
from tvm_rnn.cuda.matrix.phases import StepGraph, step_graph

M2RNN = {"N": 2, "K": 6, "H": 8}


@functools.cache
def forward() -> StepGraph:
    return step_graph(of_heads(layout_of(rnn.cells.m2rnn, **M2RNN), 2), (6, 8))


@functools.cache
def backward() -> StepGraph:
    return step_graph(of_heads(backward_of(rnn.cells.m2rnn, **M2RNN), 2), (6, 8))


def test_forward_multiplies_and_reads() -> None:
    assert [n.op for n in forward().phases] == ["einsum", "add", "einsum"] and not forward().kept


def test_backward_multiplies_what_the_tape_has_and_what_is_carried() -> None:
    own = backward()
    products = [n for n in own.phases if is_product(n, own.axes.roles)]
    (tape,) = (a for a in products[0].args if a.op == "input")
    assert len(products) == 2 and own.axes.roles[tape] == (ROW, COLUMN)


def test_a_sum_of_all_of_a_matrix_is_one_over_rows_of_sums_of_columns() -> None:
    """Of the forget gate's two gradients: as the graph has them, columns of a sum over rows."""
    own = backward()
    wholes = [n for n in own.phases if n.op == "sum" and n.shape == (1, 1)]
    assert len(wholes) == 2
    for node in wholes:
        assert own.axes.summed[node] == {"k": ROW} and own.axes.summed[node.args[0]] == {"k": COLUMN}


def test_sums_come_as_soon_as_they_can() -> None:
    """What tanh made is read for the last time before the product that has no other need of it."""
    own = backward()
    order = {n: at for at, n in enumerate(own.phases)}
    for node, at in order.items():
        if node in own.axes.summed and not is_product(node, own.axes.roles):
            last = max([order[a] for a in own.reads[node] if a in order], default=-1)
            assert all(n in own.axes.summed for n in own.phases[last + 1 : at])
    assert own.matrices_at_once < sum(a.shape == (6, 8) for a in own.phases) + 2


def test_arithmetic_of_one_reader_is_no_phase() -> None:
    """(1 - f) times the gradient: where tanh's derivative is multiplied with it."""
    assert [n.op for n in backward().phases if n.shape == (6, 8)] == ["add", "einsum", "tanh", "mul", "einsum", "add"]


@pytest.mark.parametrize("cell", [fast_tanh, gated], ids=lambda cell: cell.name)
def test_backward_of_other_cells(cell: rnn.Cell) -> None:
    """Sums of vectors that no state is in; and a gradient that a recurrence has made for all steps."""
    layout: Layout = backward_of(cell, K=6, V=8, **({"N": 2} if cell is fast_tanh else {}))
    own = step_graph(of_heads(layout, 2) if cell is fast_tanh else layout, (6, 8))
    assert own.kept and any(n.shape == (6, 8) for n in own.phases)
    assert bool(own.axes.graph.states) == (cell is fast_tanh)
