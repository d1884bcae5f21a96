"""The graph: nodes and their shapes, orders, what depends on what, and rewriting."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tvm_rnn import cells
from tvm_rnn.graph.graph import (
    Node,
    constant,
    depends,
    make,
    makes_levels,
    reduced_axes,
    rewrite,
    runs_along,
    topological,
)

X, H = Node("input", shape=(3,), name="x"), Node("state", shape=(3,), name="h")


def test_make_takes_the_shape_from_the_table() -> None:
    node = make("einsum", Node("param", shape=(4, 3)), X, spec="ij,j->i", source="cell.py:3")
    assert node.shape == (4,) and node.attrs == {"spec": "ij,j->i"} and node.source == "cell.py:3"
    with pytest.raises(ValueError, match="axis 0 has sizes 3 and 2"):
        make("add", X, Node("input", shape=(2,)))


def test_identity_is_object_identity() -> None:
    assert make("neg", X) != make("neg", X) and len({X, X, H}) == 2


def test_constants_are_copied_and_take_a_rank() -> None:
    table = np.arange(3, dtype=np.float32)
    node = constant(table, 2)
    table[0] = 9
    assert node.shape == (1, 3) and node.value is not None and node.value.tolist() == [[0, 1, 2]]
    assert node.value.dtype == np.float64 and node.scalar is None
    assert constant(2).shape == () and constant(2, 3).shape == (1, 1, 1) and constant(2, 3).scalar == 2.0
    assert X.scalar is None


def test_kinds_of_nodes() -> None:
    truth = make("greater", X, H)
    moved = make("reshape", truth, rank=1, to=(1, 3))
    assert X.leaf and not X.pointwise and not X.boolean
    assert truth.pointwise and truth.boolean and not truth.leaf
    assert moved.boolean and not moved.pointwise
    assert not make("where", truth, X, H).boolean


def test_arguments_come_before_users_and_each_node_once() -> None:
    a = make("add", X, H)
    b = make("mul", a, a)
    c = make("sub", b, X)
    order = list(topological([c, b, c]))
    assert order == [X, H, a, b, c]


def test_a_long_chain_needs_no_recursion() -> None:
    node = X
    for _ in range(20_000):
        node = make("neg", node)
    assert len(list(topological([node]))) == 20_001


def test_depends() -> None:
    weight = Node("param", shape=(3,))
    a, b = make("add", X, weight), make("mul", H, weight)
    c, d = make("add", a, b), make("neg", weight)
    found = depends([X, H, weight, a, b, c, d])
    assert [set(found[n]) for n in (a, b, c, d)] == [{"input"}, {"state"}, {"input", "state"}, set()]
    summed = make("sum_rows", c, rank=1)
    scaled = make("mul", summed, d)
    found = depends([X, H, weight, a, b, c, d, summed, scaled])
    assert found[summed] == found[scaled] == {"sum_rows"}


def test_a_cell_s_graph() -> None:
    graph = cells.lstm.trace({"I": 3, "H": 4})
    nodes, users = graph.nodes(), graph.users()
    assert set(graph.roots) <= set(nodes) and graph.roots[-1] is graph.output is graph.results[0]
    assert all(nodes.index(arg) < nodes.index(n) for n in nodes for arg in n.args)
    assert all(n in users[arg] for n in nodes for arg in n.args)
    assert graph.region_of(graph.output) == "step"
    assert all(n.source.split(":")[0].endswith("lstm.py") for n in nodes if not n.leaf)


def test_rewrite_maps_the_roots() -> None:
    graph = cells.lstm.trace({"I": 3, "H": 4})
    new = make("neg", graph.output)
    changed = rewrite(graph, {graph.output: new}, applied=("mine",))
    assert changed.output is new and changed.results == (new, graph.results[1]) and changed.applied == ("mine",)
    assert graph.output is not new and graph.applied == ()
    more = replace(graph, emitted=(graph.output, graph.results[1]), weight_gradients=(graph.output,))
    assert more.roots == (*graph.roots, *more.emitted, *more.weight_gradients)
    changed = rewrite(more, {graph.output: new})
    assert changed.emitted == (new, graph.results[1]) and changed.weight_gradients == (new,)


LEFT, RIGHT = Node("input", shape=(4, 6), name="x"), Node("input", shape=(6, 2), name="y")


def test_reduced_axes() -> None:
    assert reduced_axes(make("sum", LEFT, axis=-2, keepdims=False)) == [("k", 4)]
    assert reduced_axes(make("einsum", LEFT, RIGHT, spec="ab,bc->ac")) == [("b", 6)]


@pytest.mark.parametrize(("axis", "along"), [(-1, True), (-2, False)])
def test_vectors_run_along_the_last_axis(axis: int, along: bool) -> None:
    assert runs_along(make("sum", LEFT, axis=axis, keepdims=False)) is along


def test_vectors_of_a_product_run_along_the_axis_that_lies_dense() -> None:
    assert runs_along(make("einsum", LEFT, Node("input", shape=(6,)), spec="ab,b->a"))
    assert not runs_along(make("einsum", LEFT, RIGHT, spec="ab,bc->ac"))


@pytest.mark.parametrize(("kind", "expected"), [("to_int8", True), ("to_uint8", True), ("tanh", False)])
def test_levels_are_found(kind: str, expected: bool) -> None:
    assert makes_levels([X, make(kind, X)]) == expected
