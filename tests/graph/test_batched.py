"""batched: a graph with one more axis computes each member's values."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.graph.batched import NoMembers, batched
from tvm_rnn.graph.graph import Graph, Node
from tvm_rnn.graph.ops import TABLE

N = 3


def run(graph: Graph, leaves: dict[Node, np.ndarray]) -> list[np.ndarray]:
    """The results and the output."""
    found = dict(leaves)
    for node in graph.nodes():
        if node not in found:
            value = node.value if node.op == "const" else TABLE[node.op].numpy(*map(found.get, node.args), **node.attrs)
            found[node] = np.asarray(value)
    return [found[node] for node in (*graph.results, graph.output)]


@rnn.cell(output="y")
def moves(x: "I", h: "H", *, W: "2 H I", b: "H"):
    """Every kind of operation, and values that all members share."""
    fixed = rnn.einsum("ij,j->i", np.arange(6.0).reshape(2, 3), np.ones(3))
    two = rnn.einsum("ghi,i->gh", W, x) * fixed.reshape(2, 1)
    joined = rnn.concat([two.T.reshape(-1), np.arange(3.0), rnn.flip(h, -1)])
    new = rnn.tanh(two[0] + b) + rnn.maximum(h, 0.5) + rnn.sum(joined) + rnn.expand(rnn.max(two, -1), -1)[1]
    return new, new * 2.0


@pytest.mark.parametrize("parts", [1, 2])
def test_values(parts: int) -> None:
    graph = moves.trace({"I": 4, "H": 5})
    whole, rng = batched(graph, N, parts), np.random.default_rng(0)
    leaves = {leaf: rng.normal(size=leaf.shape) for leaf in (*whole.states, *whole.params)}
    x = rng.normal(size=(parts, N, 4 // parts))
    found = run(whole, {whole.inputs[0]: x.reshape(-1), **leaves})
    assert whole.output_shape == (N, 5)
    for m in range(N):
        pairs = zip((*graph.states, *graph.params), leaves.values(), strict=True)
        own = run(graph, {graph.inputs[0]: x[:, m].reshape(-1), **{leaf: value[m] for leaf, value in pairs}})
        for one, two in zip(own, found, strict=True):
            np.testing.assert_allclose(two.reshape(N, -1)[m], one.reshape(-1), rtol=1e-6)


def test_what_has_no_such_form() -> None:
    @rnn.cell
    def places(x: "I", h: "I", *, table: "4 I"):
        return h + rnn.take(table, x[0])

    with pytest.raises(NoMembers, match="take"):
        batched(places.trace({"I": 2}), N)
