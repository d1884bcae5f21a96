"""The recurrence of a matrix: its operands by axes, what is read, and why there may be none."""

from __future__ import annotations

import pytest

from tvm_rnn.graph.graph import Graph, Node, downstream, make
from tvm_rnn.passes.affine import Factor, Term, axes_of, forms
from tvm_rnn.passes.matrix_recurrence import MATRICES, Matrix, Solved, grows

S = Node("state", shape=(3, 4), name="S")
k, q = (Node("input", shape=(1, 4), name=name) for name in "kq")
v, u = (Node("input", shape=(3, 1), name=name) for name in "vu")


def solved(new: Node, output: Node) -> Solved | str:
    graph = Graph("cell", "float32", (k, q, v, u), (S,), (), (new,), output, "y")
    nodes = graph.nodes()
    dependent = downstream(nodes, lambda n: n is S)
    return Matrix(graph, S, new, *forms(nodes, {S}, dependent), dependent).solved()


def read(matrix: Node, vector: Node, axis: int = -1) -> Node:
    return make("sum", make("mul", matrix, vector), axis=axis, keepdims=False)


def plus(*nodes: Node) -> Node:
    first, *rest = nodes
    for node in rest:
        first = make("add", first, node)
    return first


def test_a_write_has_its_key_along_the_axis_that_is_read() -> None:
    new = plus(S, make("mul", k, v))
    found = solved(new, read(new, q))
    assert isinstance(found, Solved)
    (row,) = found.new
    assert row.attrs == {"writes": 1, "key": -1} and [a.shape for a in row.args[1:]] == [(1, 1), (1, 4), (3, 1)]
    found = solved(new, read(new, u, axis=-2))
    assert isinstance(found, Solved) and [a.shape for a in found.new[0].args[2:]] == [(3, 1), (1, 4)]


def test_what_is_read_before_the_step_is_carried() -> None:
    new = plus(S, make("mul", k, v))
    found = solved(new, read(S, q))
    assert isinstance(found, Solved)
    (place,) = found.reads.values()
    assert [n for n in (place, *place.args) if n.op == "carried"] or place.args[0].args[0].op == "carried"


def test_equal_vectors_are_one_write() -> None:
    new = plus(S, make("mul", k, v), make("mul", q, v))
    found = solved(new, read(new, q))
    assert isinstance(found, Solved) and found.new[0].attrs["writes"] == 1


@pytest.mark.parametrize(
    ("new", "output", "reason"),
    [
        (plus(make("mul", S, make("mul", k, v)), make("mul", k, v)), None, "varies along both axes"),
        (plus(S, make("mul", k, v)), "function", "something else than a product"),
        (plus(S, make("mul", k, v)), "both", "along 2 of its axes"),
        (plus(S, make("mul", k, v)), "nothing", "no product with a known vector reads it"),
    ],
    ids=["elements", "function", "both", "nothing"],
)
def test_the_reason_is_told(new: Node, output: str | None, reason: str) -> None:
    ends = {
        None: read(new, q),
        "function": read(make("tanh", new), q),
        "both": make("add", read(make("broadcast", read(new, q), to=(3,)), v, axis=-1), read(make("mul", new, u), q)),
        "nothing": make("reshape", v, rank=2, to=(3,)),
    }
    if output == "both":
        rows, columns = read(new, q), read(new, u, axis=-2)
        ends["both"] = make("concat", rows, columns, axis=-1)
    found = solved(new, ends[output])
    assert isinstance(found, str) and reason in found, found


def test_what_is_larger_than_what_it_is_made_of_grows() -> None:
    axes = axes_of((3, 4))
    assert grows(Term((Factor(make("mul", k, v), axes),)), axes)
    assert not grows(Term((Factor(Node("input", shape=(3, 4)), axes),)), axes) and "matrix" in MATRICES
