"""first_step: products with a state that is 0 are gone, and from such states nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn import cell, tanh
from tvm_rnn.graph.graph import Graph, Node
from tvm_rnn.oracle.reference import evaluate
from tvm_rnn.passes.first_step import first_step
from tvm_rnn.passes.normalise import normalise

SQUARE = sorted(name for name in rnn.cells.names() if {*rnn.cells.get(name).size_names} <= {"I", "H"})


def both(c: rnn.Cell, **sizes: int) -> tuple[Graph, Graph]:
    graph = normalise(rnn.RNN(c, 5, 7, **sizes).layers[0].graph)
    return graph, first_step(graph, c.initial)


def products(graph: Graph) -> int:
    return sum(node.op == "gemm" for node in graph.nodes())


def computed(graph: Graph, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The new states and the output, of leaves by name."""
    values: dict[Node, np.ndarray] = {}
    for node in graph.nodes():
        if node.leaf and node.value is None:
            values[node] = given[node.name]
    evaluate(graph.nodes(), values)
    return [values[node] for node in (*graph.results, graph.output)]


@pytest.mark.parametrize(("name", "left"), [("lstm", 4), ("gru", 3), ("elman", 1), ("gru_reset_before", 4)])
def test_products_with_states_are_gone(name: str, left: int) -> None:
    """Of a GRU that resets before its product, r * h is no state: what is infinite in r would be NaN there."""
    _, own = both(rnn.cells.get(name))
    assert products(own) == left


@pytest.mark.parametrize("name", SQUARE)
def test_what_is_computed_is_the_same(name: str) -> None:
    found = rnn.cells.get(name)
    graph, own = both(found)
    rng = np.random.default_rng(3)
    given = {leaf.name: rng.standard_normal((1, *leaf.shape)) for leaf in graph.inputs}
    given |= {leaf.name: rng.standard_normal(leaf.shape) for leaf in graph.params}
    given |= {state.name: np.full((1, *state.shape), found.initial.get(state.name, 0.0)) for state in graph.states}
    for before, after in zip(computed(graph, given), computed(own, given), strict=True):
        np.testing.assert_array_equal(before, after)


def test_a_state_that_begins_with_something_else_is_multiplied() -> None:
    @cell(states="h c")
    def one(x: "I", h: "H", c: "H", *, W: "H I", R: "H H", Q: "H H"):
        h = tanh(W @ x + R @ h + Q @ c)
        return h, h

    graph = normalise(rnn.RNN(one, 5, 7).layers[0].graph)
    assert [products(first_step(graph, initial)) for initial in ({}, {"h": 0.5}, {"c": -1.0, "h": 2.0})] == [1, 2, 3]
    assert first_step(graph, {"h": 1.0, "c": 1.0}) is graph
