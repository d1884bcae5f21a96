"""product_tables: rows of tables of products in place of products of rows, where a state says which; nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.graph.graph import Graph
from tvm_rnn.network.closed_loop import closed
from tvm_rnn.oracle.reference import Reference
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.passes import pipeline
from tvm_rnn.passes.normalise import normalise
from tvm_rnn.passes.product_tables import with_product_tables
from tvm_rnn.target import resolve

GPU = resolve("nvidia-h200")


@rnn.cell(states="h k")
def walk(x: "I", h: "H", k: "1", *, W: "H I", E: "V H", F: "M H", R: "H H", S: "H H", T: "H H"):
    """A state that says which rows of two tables are read, and an input that does."""
    z = W @ x + R @ E[k[0]] + S @ F[k[0]] + T @ E[x[0]]
    return rnn.tanh(z + h), rnn.floor(rnn.mod(k + 1.0, 5.0))


def products(graph: Graph) -> list[tuple[int, ...]]:
    return sorted(n.args[0].shape for n in graph.nodes() if n.op == "gemm")


def test_rows_of_products_are_the_products_of_rows() -> None:
    net = rnn.RNN(walk, 6, 6, V=5, M=9).init(1)
    before = normalise(net.layers[0].graph)
    after = with_product_tables(before, GPU)
    assert len(products(before)) == 4 and len(products(after)) == 3
    assert len(products(with_product_tables(before, resolve("llvm")))) == 2
    tables = [n.args[0] for n in after.nodes() if n.op == "take"]
    assert [t.shape for t in tables if t.op == "einsum"] == [(5, 6)]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(7, 3, 6))
    x[..., 0] = rng.integers(0, 5, (7, 3))
    state = {"h": rng.normal(size=(1, 3, 6)), "k": np.array([[[0.0], [4.0], [7.0]]])}  # 7: no row of E, at first
    expected, last = rnn.reference(net)(x, state)
    found, end = Reference(net, [after])(x, state)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(end["h"], last["h"], rtol=1e-12, atol=1e-12)
    assert np.isnan(expected[0, 2]).all()


@pytest.mark.parametrize(("tokens", "left"), [(6, 2), (7, 3)])
def test_a_table_is_no_larger_than_the_matrix(tokens: int, left: int) -> None:
    @rnn.cell(states="h", output="token")
    def pen(x: "1", h: "H", *, E: "V H", W: "H H", R: "H H", Q: "V H"):
        h = rnn.tanh(W @ E[x[0]] + R @ h)
        return h, rnn.argmax(Q @ h, keepdims=True)

    graph = normalise(closed(rnn.RNN(pen, 1, 6, V=tokens)).net.layers[0].graph)
    assert len(products(with_product_tables(graph, GPU))) == left


@pytest.mark.broad
def test_weights_that_come_later_make_the_table() -> None:
    @rnn.cell(states="h")
    def reading(x: "1", h: "H", *, E: "V H", W: "H H", R: "H H"):
        return rnn.tanh(W @ E[x[0]] + R @ h)

    net = rnn.RNN(reading, 1, 6, V=5)
    module, x = rnn.compile(net), np.random.default_rng(0).integers(0, 5, (9, 3, 1)).astype("f4")
    for seed in (1, 2):
        weights = net.init(seed).weights
        module.load_weights(weights)
        assert_close(module(x), rnn.reference(net.load(weights))(x), "float32", 9)


def test_training_keeps_the_rows() -> None:
    stages = dict(pipeline.run(rnn.RNN(walk, 6, 6, V=5, M=9), GPU, training=True))
    (graph,) = stages["differentiate"].graphs
    assert graph.backward is not None
    for own in (graph, graph.backward):
        assert with_product_tables(own, GPU) is own
