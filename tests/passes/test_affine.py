"""Forms: a value as a sum of products, by indices; evaluated again they are the value."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_rnn.graph.graph import Node, constant, downstream, make, topological
from tvm_rnn.oracle.reference import evaluate
from tvm_rnn.passes.affine import Factor, Form, Term, forms, known_form, product, spread, total


def leaf(op: str, name: str, *shape: int) -> Node:
    return Node(op, shape=shape, name=name)


S, T = leaf("state", "S", 3, 4), leaf("state", "T", 3, 4)
k, v, q = leaf("input", "k", 4), leaf("input", "v", 3), leaf("input", "q", 4)
M = leaf("input", "M", 4, 4)
c = leaf("input", "c", 1, 4)


def outer(a: Node, b: Node) -> Node:
    rows = make("reshape", a, rank=1, to=(*a.shape, 1))
    return make("mul", rows, make("reshape", b, rank=1, to=(1, *b.shape)))


def read(matrix: Node, vector: Node) -> Node:
    return make("einsum", matrix, vector, spec="vk,k->v")


def form_of(node: Node) -> Form:
    nodes = list(topological([node]))
    dependent = downstream(nodes, lambda n: n.op == "state")
    found, blocked = forms(nodes, {S, T}, dependent)
    assert not blocked, blocked
    return found[node]


def again(form: Form) -> Node:
    """The value of a form: each state is a factor as others are."""
    terms = []
    for term in form.terms:
        state = (Factor(term.state, term.axes),) if term.state is not None else ()
        own = Term((*term.factors, *state), scale=term.scale, chosen=term.chosen)
        terms.append(product(own, form.axes))
    return total(terms, len(form.axes))


SPELLINGS = {
    "a sum": make("add", S, make("neg", T)),
    "a difference of products": make("sub", make("mul", c, S), make("mul", T, c)),
    "a quotient": make("div", S, c),
    "a product of rank one": make("sub", S, outer(read(S, k), k)),
    "a value written": outer(make("sub", v, read(S, k)), k),
    "a sum along an axis": make("sum", make("mul", S, c), axis=-1, keepdims=True),
    "a sum over what is repeated": make(
        "sum", make("broadcast", make("sum", S, axis=-2, keepdims=True), to=(3, 4)), axis=-2, keepdims=False
    ),
    "a transposed matrix": make("transpose", S, axes=(1, 0)),
    "one column": make("index", S, axis=-1, at=2),
    "a choice": make("where", make("greater", c, constant(0.0, 2)), S, make("mul", T, c)),
    "twice the same axes": make("add", outer(read(S, q), k), S),
    "a product with a matrix": make("einsum", S, M, spec="vk,kj->vj"),
    "a diagonal matrix": make("einsum", S, constant(np.diag([0.5, -1.0, 2.0, 0.0])), spec="vk,kj->vj"),
    "a matrix less a product": make(
        "einsum", S, make("sub", constant(np.eye(4)), make("mul", c, outer(k, q))), spec="vk,kj->vj"
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("written_out", [False, True])
def test_a_form_is_its_value(name: str, written_out: bool) -> None:
    node = SPELLINGS[name]
    form = form_of(node)
    back = again(spread(form) if written_out else form)
    rng = np.random.default_rng(0)
    values = {n: rng.standard_normal((2, *n.shape)) for n in (S, T, k, v, q, M, c)}
    evaluate(list(topological([node, back])), values)
    np.testing.assert_allclose(np.broadcast_to(values[back], values[node].shape), values[node], rtol=1e-12, atol=1e-12)


def test_a_diagonal_matrix_is_a_vector() -> None:
    (term,) = spread(form_of(SPELLINGS["a diagonal matrix"])).linear
    assert [f.node.shape for f in term.factors] == [(4,)]


def test_a_unit_matrix_leaves_no_factor() -> None:
    terms = spread(form_of(SPELLINGS["a matrix less a product"])).linear
    assert sorted(len(t.factors) for t in terms) == [0, 2] or sorted(len(t.factors) for t in terms)[0] == 0


@pytest.mark.parametrize(
    "node",
    [
        make("mul", S, T),
        make("tanh", S),
        make("div", c, S),
        make("reshape", S, rank=2, to=(12,)),
        make("max", S, axis=-1, keepdims=False),
    ],
    ids=lambda node: node.op,
)
def test_what_is_no_sum_of_products_is_named(node: Node) -> None:
    more = make("add", node, node)
    nodes = list(topological([more]))
    found, blocked = forms(nodes, {S, T}, downstream(nodes, lambda n: n.op == "state"))
    assert more not in found and blocked[more] is node


def test_known_values_stay_whole() -> None:
    (term,) = known_form(make("add", k, q)).terms
    assert len(term.factors) == 1 and term.state is None
