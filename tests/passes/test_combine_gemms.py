"""combine_gemms: one product per level and operand, with a gate axis."""

from __future__ import annotations

import pytest

import tvm_rnn as rnn
from tvm_rnn import PassError, cell, sigmoid, tanh, target
from tvm_rnn.graph.graph import Graph
from tvm_rnn.passes import pipeline
from tvm_rnn.passes.combine_gemms import CombineGemms

V4 = target.TABLE["x86-64-v4"]


def gemms(c: rnn.Cell, region: str, without: tuple[str, ...] = ()) -> list[tuple[tuple[int, ...], int]]:
    """(shape, number of operands) of every product of a region."""
    graph = graph_of(c, without)
    return [(n.shape, len(n.args) // 2) for n in graph.nodes() if n.op == "gemm" and graph.region_of(n) == region]


def graph_of(c: rnn.Cell, without: tuple[str, ...] = ()) -> Graph:
    return dict(pipeline.run(rnn.RNN(c, 5, 7), V4, without))["combine_gemms"].graphs[0]


@cell(states="h c")
def lstm_by_gate(
    x: "I", h: "H", c: "H", *, Wi: "H I", Wf: "H I", Wg: "H I", Wo: "H I", Ri: "H H", Rf: "H H", Rg: "H H", Ro: "H H"
):
    c = sigmoid(Wf @ x + Rf @ h) * c + sigmoid(Wi @ x + Ri @ h) * tanh(Wg @ x + Rg @ h)
    return sigmoid(Wo @ x + Ro @ h) * tanh(c), c


@pytest.mark.parametrize("c", [rnn.cells.lstm, lstm_by_gate], ids=lambda c: c.name)
def test_four_gates_become_one_product_in_each_region(c: rnn.Cell) -> None:
    assert gemms(c, "before") == [((4, 7), 1)]
    assert gemms(c, "step") == [((4, 7), 1)]


def test_gates_that_feed_gates_are_a_second_level() -> None:
    assert gemms(rnn.cells.gru_reset_before, "before") == [((3, 7), 1)]
    assert sorted(gemms(rnn.cells.gru_reset_before, "step")) == [((2, 7), 1), ((7,), 1)]


def test_products_of_input_and_state_become_one_where_both_are_in_the_loop() -> None:
    assert gemms(rnn.cells.lstm, "step", ("hoist_gemms",)) == [((4, 7), 2)]


def test_products_of_different_widths_stay_apart() -> None:
    shapes = gemms(rnn.cells.mlstm, "before")
    assert len(shapes) == 2 and {shape[-1] for shape, _ in shapes} == {1, 7}


def test_a_single_product_is_left_alone() -> None:
    assert gemms(rnn.cells.elman, "step") == [((7,), 1)]


def test_a_product_used_elsewhere_is_not_merged_into_a_sum() -> None:
    @cell(states="h")
    def shared(x: "I", h: "H", *, W: "H I", R: "H H"):
        a, b = W @ x, R @ h
        return tanh(a + b) * a

    assert gemms(shared, "step", ("hoist_gemms",)) == [((7,), 1), ((7,), 1)]


def test_ensures_refuses_what_was_not_combined() -> None:
    graph = dict(pipeline.run(rnn.RNN(rnn.cells.lstm, 5, 7), V4))["hoist_gemms"].graphs[0]
    with pytest.raises(PassError, match="still read the same operand"):
        CombineGemms().ensures(graph)
