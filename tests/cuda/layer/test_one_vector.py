"""Heads as one vector: the same numbers as the layer with heads, and what cannot be written so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from headed_cells import mixed, normed_together, turned

import tvm_rnn as rnn
from tvm_rnn.cuda.layer.one_vector import NoVector, VectorLayout, block_diagonal, one_vector
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.cuda.layer.weight_packing import Weights
from tvm_rnn.cuda.model.choose_regime import planned
from tvm_rnn.cuda.training.add_entry_points import plan
from tvm_rnn.graph.graph import Node, topological
from tvm_rnn.options import Options
from tvm_rnn.oracle.reference import evaluate
from tvm_rnn.passes import pipeline
from tvm_rnn.target import resolve

GPU = resolve("nvidia-h200")
SIZES = {"N": 3, "D": 8}


def network(cell: rnn.Cell, **sizes: int) -> rnn.RNN:
    return rnn.RNN(cell, 5, dtype="float32", **(sizes or SIZES)).init(2)


def layout_of(net: rnn.RNN) -> Layout:
    (graph,) = pipeline.run(net, GPU)[-1][1].graphs
    return Layout(graph, "float32", Weights(graph, 0, "float32"), "float32")


def check(net: rnn.RNN, layout: Layout) -> VectorLayout:
    """Results, the output and what is kept, with parameters and inputs as they lie."""
    vectors, graph, rng = one_vector(layout), layout.graph, np.random.default_rng(0)
    values: dict[Node, np.ndarray] = {p: net.weights[f"{p.name}_l0"].astype(float) for p in graph.params}
    values |= {n: rng.uniform(0.1, 0.9, size=(2, *n.shape)) for n in (*graph.inputs, *graph.states)}
    made = {**vectors.origin, **vectors.dense}
    evaluate(list(topological([*graph.results, graph.output, *layout.kept, *made.values()])), values)
    pairs = [*made.items(), *zip(vectors.graph.states, graph.states, strict=True)]
    own = {n: values[w].reshape(*values[w].shape[: n.op != "param"], *n.shape) for n, w in pairs}
    evaluate(list(topological(vectors.graph.roots)), own)
    pairs = [*zip(vectors.graph.results, graph.results, strict=True)]
    pairs += [(vectors.graph.output, graph.output)] if layout.emits else []
    pairs += [(mine.node, whole.node) for mine, whole in zip(vectors.taped, layout.taped, strict=True)]
    for mine, whole in pairs:
        np.testing.assert_allclose(own[mine].reshape(2, -1), values[whole].reshape(2, -1), rtol=1e-11)
    return vectors


def test_a_norm_of_all_heads() -> None:
    vectors = check(net := network(normed_together), layout := layout_of(network(normed_together)))
    assert [s.shape for s in vectors.graph.states] == [(24,)]
    own, step = planned(layout)
    assert isinstance(own, VectorLayout) and [p.kind for p in step.phases][:2] == ["gemm", "reduce"]
    (operand,) = step.phases[0].operands
    weight, elements, index = own.packed(operand.weight, 24 * 24, lambda i: ((i // 24, i % 24), i >= 0))
    values: dict[Node, np.ndarray] = {p: net.weights[f"{p.name}_l0"] for p in layout.graph.params}
    evaluate(list(topological([weight])), values)
    assert elements == 24 * 24 and index(25) == ((1, 1), True)
    for n in range(3):  # R of each head, and nothing between heads
        rows = values[weight][8 * n : 8 * n + 8]
        assert np.abs(rows[:, 8 * n : 8 * n + 8]).min() > 0 and np.count_nonzero(rows) == 64


@pytest.mark.broad
@pytest.mark.parametrize("sizes", [{"N": 2, "H": 8, "P": 12, "A": 3}])
def test_training_of_dreamer_s_gru(sizes: dict[str, Any]) -> None:
    """Both passes are one kernel's."""
    net = network(rnn.cells.block_gru, **sizes)
    plans = plan(pipeline.passed(net, Options(GPU, (3,), precision="float32", training="values")), GPU)
    for code in (plans.forward.code[0], plans.backward.code[0]):
        assert check(net, code.layout).taped and code.regimes


@pytest.mark.parametrize(("cell", "why"), [(mixed, "is broadcast along heads"), (turned, "of each head or of each")])
def test_what_is_no_work_on_vectors_is_named(cell: rnn.Cell, why: str) -> None:
    with pytest.raises(NoVector, match=why):
        one_vector(layout_of(network(cell)))


@pytest.mark.parametrize("sizes", [(3, 2, 5), (1, 4, 4), (4, 1, 1)])
def test_block_diagonal(sizes: tuple[int, int, int]) -> None:
    heads, rows, depth = sizes
    blocks = Node("param", shape=sizes, name="R")
    values: dict[Node, np.ndarray] = {blocks: np.random.default_rng(0).normal(size=sizes)}
    evaluate(list(topological([found := block_diagonal(blocks)])), values)
    expected = np.zeros((heads, rows, heads, depth))
    for n in range(heads):
        expected[n, :, n] = values[blocks][n]
    np.testing.assert_array_equal(values[found], expected.reshape(heads, rows, heads * depth))
