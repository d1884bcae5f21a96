"""What runs along rows and columns of matrix states, and which steps mix them."""

from __future__ import annotations

import pytest
from matrix_cells import gated, shown
from matrix_steps import layout_of

import tvm_rnn as rnn
from tvm_rnn.cuda.matrix.element_index import COLUMN, ROW, NotOnChip
from tvm_rnn.cuda.matrix.matrix_axes import MatrixAxes, dense_of, matrix_axes, matrix_shape
from tvm_rnn.graph.graph import Graph


@rnn.cell(states="S", output="y")
def from_left(x: "I", S: "K V", *, W: "K I", V: "V I", R: "K K"):
    S = rnn.tanh(rnn.einsum("ij,jv->iv", R, S) + rnn.outer(W @ x, V @ x))
    return S, rnn.sum(S, 1)


@rnn.cell(states="S", output="y")
def from_both_sides(x: "I", S: "K V", *, W: "K I", V: "V I", R: "K K", Q: "V V"):
    S = rnn.tanh(rnn.einsum("ij,jv->iv", R, S) + rnn.einsum("iv,vw->iw", S, Q) + rnn.outer(W @ x, V @ x))
    return S, rnn.sum(S, 1)


@rnn.cell(states="S", output="y")
def turned(x: "I", S: "K K", *, W: "K I", V: "K I"):
    S = rnn.tanh(rnn.transpose(S) + rnn.outer(W @ x, V @ x))
    return S, rnn.sum(S, 1)


@rnn.cell(states="S h", output="h")
def with_norm(x: "I", S: "K V", h: "H", *, W: "K I", V: "V I", U: "H I"):
    S = rnn.tanh(S * rnn.sum(h) + rnn.outer(W @ x, V @ x))
    return S, rnn.tanh(h + U @ x + rnn.sum(S))


@rnn.cell(states="S T", output="y")
def unequal(x: "I", S: "K V", T: "V V", *, W: "K I", V: "V I"):
    S = rnn.tanh(S + rnn.outer(W @ x, V @ x))
    return S, rnn.tanh(T + rnn.outer(V @ x, V @ x)), rnn.sum(S, 1)


def axes_of(graph: Graph, turned: bool) -> MatrixAxes:
    return matrix_axes(graph, matrix_shape(state.shape for state in graph.states), turned)


def test_a_product_of_columns_turns_the_matrix() -> None:
    graph = layout_of(from_left, K=6, V=4).graph
    axes = axes_of(graph, turned=True)
    assert (axes.rows, axes.columns) == (4, 6) and axes.roles[graph.states[0]] == (COLUMN, ROW)
    assert axes.roles[dense_of(graph.output)] == (COLUMN,)
    with pytest.raises(NotOnChip, match="multiplies columns"):
        axes_of(graph, turned=False)


def test_a_view_of_all_is_only_emitted() -> None:
    graph = layout_of(shown, K=6, V=4).graph
    assert dense_of(graph.output) is graph.results[0]
    assert axes_of(graph, turned=False).roles[graph.results[0]] == (ROW, COLUMN)


def test_equal_sizes_are_told_apart() -> None:
    graph = layout_of(gated, K=6, V=6).graph
    assert axes_of(graph, turned=False).roles[dense_of(graph.output)] == (COLUMN,)


@pytest.mark.parametrize(
    ("cell", "sizes", "says"),
    [
        (from_both_sides, {"K": 6, "V": 4}, "multiplies columns"),
        (turned, {"K": 6}, "along their columns"),
        (unequal, {"K": 6, "V": 4}, "states of shapes"),
        (with_norm, {"K": 6, "V": 4, "H": 10}, "sums what runs neither"),
        (gated, {"K": 1, "V": 4}, "one row or column"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_is_refused(cell: rnn.Cell, sizes: dict[str, int], says: str) -> None:
    graph = layout_of(cell, **sizes).graph
    with pytest.raises(NotOnChip, match=says):
        axes_of(graph, turned=False)
    with pytest.raises(NotOnChip):
        axes_of(graph, turned=True)
