"""The cheapest cut: what is kept between products and who reads their results."""

from __future__ import annotations

import tvm_rnn as rnn
from tvm_rnn import cell, cells, sigmoid, tanh
from tvm_rnn.graph.graph import Graph, Node
from tvm_rnn.passes.min_cut import cheapest_cut
from tvm_rnn.passes.normalise import normalise


def graph_of(c: rnn.Cell) -> Graph:
    return normalise(rnn.RNN(c, 5, 7).layers[0].graph, expand=False)


def named(graph: Graph, op: str) -> list[Node]:
    return [n for n in graph.nodes() if n.op == op]


@cell(states="h")
def pair(x: "I", h: "H", *, A: "H I", B: "H I"):
    a, b = sigmoid(A @ x), sigmoid(B @ x)
    return tanh(a + b) * h + a * b + (a - b)


def test_a_cut_of_nothing_is_empty() -> None:
    assert cheapest_cut(graph_of(cells.lstm), []) == []


def test_one_value_is_kept_in_place_of_two_that_it_is_made_of() -> None:
    graph = graph_of(pair)
    (both,), gates = named(graph, "tanh"), named(graph, "sigmoid")
    assert cheapest_cut(graph, [both]) == [both]
    (product,) = (n for n in named(graph, "mul") if n.args == (gates[0], gates[1]))
    (difference,) = named(graph, "sub")
    assert cheapest_cut(graph, [both, product, difference]) == gates  # all three are made of these again


def test_what_is_kept_in_any_case_costs_nothing() -> None:
    graph = graph_of(pair)
    (both,), gates = named(graph, "tanh"), named(graph, "sigmoid")
    assert cheapest_cut(graph, [both], gates) == gates
