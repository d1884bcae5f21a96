"""One head of a layer: which steps come apart, and that a head's graph computes its part of the layer's."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from headed_cells import APART, TOGETHER, gru, inputs_of, lstm, shared

import tvm_rnn as rnn
from tvm_rnn.cuda.layer.one_head import Coupled, HeadLayout, one_head
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.cuda.layer.weight_packing import Weights
from tvm_rnn.cuda.model.choose_regime import planned
from tvm_rnn.cuda.training.add_entry_points import plan
from tvm_rnn.graph.graph import Node, topological
from tvm_rnn.options import Options
from tvm_rnn.oracle.reference import evaluate
from tvm_rnn.passes import pipeline
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.target import resolve

GPU = resolve("nvidia-h200")
N, D = 3, 8


def layout_of(cell: rnn.Cell, dtype: str = "float32", **sizes: int) -> tuple[rnn.RNN, Layout]:
    sizes = sizes or {"N": N, "D": D}
    net = rnn.RNN(cell, inputs_of(cell, 5, sizes), dtype=dtype, **sizes).init(2)
    (graph,) = pipeline.run(net, GPU)[-1][1].graphs
    return net, Layout(graph, dtype, Weights(graph, 0, dtype), dtype)


def made(cell: rnn.Cell, **sizes: int) -> tuple[rnn.RNN, Layout, HeadLayout]:
    net, layout = layout_of(cell, **sizes)
    head = one_head(layout)
    assert head is not None
    return net, layout, head


def part(layout: HeadLayout, node: Node, value: np.ndarray, head: int) -> np.ndarray:
    """Of a value of all heads, as a kernel finds it: from the offsets of elements."""
    rows = value.reshape(value.shape[0], -1) if node.op == "input" else value.reshape(1, -1)
    at = [layout.offset(node, i) + head * layout.side_by_side(node) for i in range(int(np.prod(node.shape)))]
    found = rows[:, at]
    return found.reshape(len(rows), *node.shape) if node.op == "input" else found.reshape(node.shape)


@pytest.mark.parametrize("cell", APART, ids=lambda c: c.name)
def test_a_head_computes_its_part(cell: rnn.Cell) -> None:
    """With weights and hoisted values at the offsets that kernels read them at."""
    net, layout, head = made(cell)
    check_parts(net, layout, head)


def check_parts(net: rnn.RNN, layout: Layout, head: HeadLayout) -> None:
    """Results, the output, and what is kept, of every head, with all else where kernels find it."""
    rng, graph = np.random.default_rng(0), layout.graph
    values: dict[Node, np.ndarray] = {p: net.weights[f"{p.name}_l0"].astype(float) for p in graph.params}
    values |= {n: rng.uniform(0.1, 0.9, size=(2, *n.shape)) for n in (*graph.inputs, *graph.states)}
    kept = list(zip(head.taped, layout.taped, strict=True))
    wanted = (*graph.results, *([graph.output] if layout.emits else []), *(whole.node for _, whole in kept))
    evaluate(list(topological([*wanted, *(head.of_layer(n) for n in head.origin)])), values)
    for number in range(N):
        own = {n: part(head, n, values[head.of_layer(n)], number) for n in head.origin}
        pairs = list(zip(head.graph.states, graph.states, strict=True))
        own |= {s: values[w].reshape(2, N, -1)[:, number] for s, w in pairs}
        evaluate(list(topological(head.graph.roots)), own)
        pairs = list(zip(head.graph.results, graph.results, strict=True))
        pairs += [(head.graph.output, graph.output)] if layout.emits else []
        for mine, whole in pairs:
            np.testing.assert_allclose(own[mine], values[whole].reshape(2, N, -1)[:, number], rtol=1e-12)
        for mine, whole in kept:
            at = [head.spread(mine.apart, i) + number * mine.apart for i in range(prod(mine.node.shape))]
            expected = values[whole.node].reshape(2, -1)[:, at]
            np.testing.assert_allclose(own[mine.node].reshape(2, -1), expected, rtol=1e-12)


@pytest.mark.parametrize("cell", [pytest.param(lstm), pytest.param(gru, marks=pytest.mark.broad)])
def test_a_head_is_trained_by_itself(cell: rnn.Cell) -> None:
    """Both passes of training, with what they keep where those find it who read it after all steps."""
    net = rnn.RNN(cell, 5, N=N, D=D).init(2)
    plans = plan(passed(net, Options(GPU, (3,), precision="float32", training="values")), GPU)
    for layout in (plans.forward.code[0].layout, plans.backward.code[0].layout):
        head = one_head(layout)
        assert head is not None and head.taped
        check_parts(net, layout, head)
    assert all(regime.layout.heads == N for way in (plans.forward, plans.backward) for regime in way.code[0].regimes)


@pytest.mark.parametrize("cell", APART, ids=lambda c: c.name)
def test_a_product_s_parameter_of_all_heads(cell: rnn.Cell) -> None:
    net, layout, head = made(cell)
    values: dict[Node, np.ndarray] = {p: net.weights[f"{p.name}_l0"].astype(float) for p in layout.graph.params}
    for node, whole in head.lifted.items():
        evaluate(list(topological([whole, *(head.of_layer(n) for n in head.origin if n.op == "param")])), values)
        for number in range(N):
            own = {n: part(head, n, values[head.of_layer(n)], number) for n in head.origin if n.op == "param"}
            evaluate(list(topological([node])), own)
            np.testing.assert_array_equal(values[whole][number], own[node])
    assert head.lifted


def test_the_step_is_that_of_a_layer_without_heads() -> None:
    """Phases, gates and operands of the zoo's cell of the same equations."""

    def kinds(layout: Layout) -> list[Any]:
        own, step = planned(layout)
        assert step.heads == own.heads
        return [(p.kind, p.width, p.gates, len(p.operands), len(p.published)) for p in step.phases]

    plain, heads = (layout_of(rnn.cells.slstm, "bfloat16", H=D, **more)[1] for more in ({}, {"N": N}))
    assert kinds(plain) == kinds(heads) and planned(heads)[1].heads == N
    assert planned(plain)[0] is plain


@pytest.mark.parametrize("cell", TOGETHER, ids=lambda c: c.name)
def test_what_couples_heads_is_named(cell: rnn.Cell) -> None:
    with pytest.raises(Coupled, match=r"reads all heads|a view of|reads h of all"):
        one_head(layout_of(cell)[1])


def test_without_a_product_of_heads() -> None:
    assert one_head(layout_of(rnn.cells.lstm, H=D)[1]) is None


def test_one_matrix_of_all_heads() -> None:
    _, _, head = made(shared)
    (node,) = (n for n in head.origin if n.op == "param")
    assert head.heads == N and head.side_by_side(node) == 0
