"""node_text: values by what they are made of."""

from __future__ import annotations

import pytest

import tvm_rnn as rnn
from tvm_rnn.graph.graph import Graph, Node, topological
from tvm_rnn.graph.node_text import expression, in_words, joined, leaf_text, states_of
from tvm_rnn.passes.normalise import normalise


def graph(name: str) -> Graph:
    return normalise(rnn.RNN(rnn.cells.get(name), 5, 7).layers[0].graph)


def products(name: str) -> list[Node]:
    return [n for n in graph(name).nodes() if n.op == "gemm"]


def test_products_name_their_parameters_and_operands() -> None:
    assert {in_words(n) for n in products("lstm")} == {"W @ x", "R @ h"}
    assert "R_n @ (... * h)" in {in_words(n) for n in products("gru_reset_before")}


def test_what_lies_deep_is_left_out() -> None:
    result = graph("lstm").results[0]
    assert in_words(result) == "sigmoid(...) * tanh(...)"
    assert in_words(result, 1) == "... * ..."
    assert in_words(result, 9).count("(") > 4


@pytest.mark.parametrize(("name", "states"), [("lstm", ["h", "c"]), ("gru", ["h"])])
def test_the_states_that_a_value_reads(name: str, states: list[str]) -> None:
    whole, product = graph(name), products(name)[0]
    assert sorted(states_of(whole.nodes())[whole.results[0]]) == sorted(states)
    assert states_of(topological([product]))[product] in ([], ["h"])


def test_expressions_use_the_names_that_are_given() -> None:
    x = Node("input", shape=(4,), name="x")
    part = Node("slice", (x,), {"axis": -1, "start": 1, "stop": 3}, (2,))
    assert expression(part, {x: "v7"}) == "v7[1:3]"
    assert in_words(part) == leaf_text(x) == "x"


def test_equal_texts_are_counted() -> None:
    assert joined(["a", "b", "a"]) == "2 x a, b"
