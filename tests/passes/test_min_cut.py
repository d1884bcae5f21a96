"""The cheapest cut: what is kept between products and who reads their results."""

from __future__ import annotations

import tvm_rnn as rnn
from tvm_rnn import cell, cells, sigmoid, tanh
from tvm_rnn.graph.graph import Graph, Node
from tvm_rnn.passes.min_cut import cheapest_cut
from tvm_rnn.passes.normalise import normalise


def graph_of(c: rnn.Cell, inputs: int = 5) -> Graph:
    return normalise(rnn.RNN(c, inputs, 7).layers[0].graph, expand=False)


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


def test_leaves_count_where_nothing_is_heavy() -> None:
    """x is read and v written and read: 3; the value that both make is written and read: 2."""

    @cell(states="v")
    def summed(x: "H", v: "H"):
        u = v + x
        return tanh(u) * sigmoid(u)

    graph = graph_of(summed, 7)
    (made,), read = named(graph, "add"), [*named(graph, "tanh"), *named(graph, "sigmoid")]
    assert cheapest_cut(graph, read) == [] and cheapest_cut(graph, read, leaves_too=True) == [made]


def test_an_input_alone_is_read_again() -> None:
    @cell(states="h")
    def of_input(x: "H", h: "H"):
        return tanh(x) * h

    graph = graph_of(of_input, 7)
    assert cheapest_cut(graph, named(graph, "tanh"), leaves_too=True) == []  # 1 in place of 2
