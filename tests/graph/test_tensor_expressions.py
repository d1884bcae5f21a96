"""expressions: elements of nodes, and cells as TVM tensor expressions that compute what the oracle computes."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te as tvm_te

import tvm_rnn as rnn
from tvm_rnn.graph.graph import Node, make, reduced_axes
from tvm_rnn.graph.tensor_expressions import moved, reduced_value, text

X = Node("input", shape=(4, 6), name="x")


@pytest.mark.broad_after(2)
@pytest.mark.parametrize("name", ["lstm", "gru_reset_before", "lstm_layer_norm", "mlstm", "delta_net", "rhn", "sru"])
def test_tensor_expressions_compute_one_step_of_the_cell(name: str) -> None:
    c = rnn.cells.get(name)
    sizes = {**dict.fromkeys(c.size_names, 3), "H": 5}
    net = rnn.RNN(c, sizes.get("I", 5), 5, **{k: v for k, v in sizes.items() if k not in "IH"}, dtype="float64").init()
    graph = net.layers[0].graph
    tensors = rnn.te(graph, batch=2)
    sources: dict[str, tvm_te.Tensor] = {}

    def visit(tensor: tvm_te.Tensor) -> None:
        for source in tensor.op.input_tensors:
            visit(source)
        if isinstance(tensor.op, tvm_te.PlaceholderOp):
            sources[tensor.op.name] = tensor

    for tensor in tensors:
        visit(tensor)
    func = tvm.compile(tvm_te.create_prim_func([*sources.values(), *tensors]), target="llvm")["main"]
    rng = np.random.default_rng(0)
    given = {k: rng.normal(size=[int(s) for s in t.shape]) * 0.5 for k, t in sources.items()}
    given |= {k: net.weights[f"{k}_l0"] for k in given if f"{k}_l0" in net.weights}
    outputs = [np.zeros([int(s) for s in t.shape]) for t in tensors]
    func(*[tvm.runtime.tensor(v) for v in given.values()], *(held := [tvm.runtime.tensor(o) for o in outputs]))
    state = {s.name: given[s.name][None] for s in graph.states if s.name in given}
    state = {**net.initial_state(2), **state}
    _, expected = rnn.reference(net)(given["x"][None], state)
    for node, value in zip(dict.fromkeys(graph.roots), held, strict=True):
        if node in graph.results:
            wanted = expected[graph.states[graph.results.index(node)].name][0]
            np.testing.assert_allclose(value.numpy(), wanted, rtol=1e-9, atol=1e-9)


def test_te_takes_a_cell_alone() -> None:
    tensors = rnn.te(rnn.cells.lstm)
    assert [tuple(int(s) for s in t.shape) for t in tensors] == [(1, 4), (1, 4)]
    assert "T.tanh" in text(tensors)


def test_masks_are_placeholders() -> None:
    net = rnn.RNN(rnn.cells.lstm, 3, 3, zoneout=0.1, recurrent_dropout=0.2)
    h = rnn.te(net.layers[0].training, batch=2)[0]
    names, todo = set[str](), [h.op]
    while todo:
        op = todo.pop()
        names.add(op.name)
        todo += [t.op for t in op.input_tensors]
    assert sum(name.startswith("mask_") for name in names) == 2  # of h; c has one of its own
    assert {"x", "h", "c"} <= names


@pytest.mark.parametrize(
    ("node", "index", "expected"),
    [
        (make("index", X, axis=-2, at=3), (5,), (3, 5)),
        (make("slice", X, axis=-1, start=2, stop=5), (1, 0), (1, 2)),
        (make("transpose", X, axes=(1, 0)), (5, 3), (3, 5)),
        (make("reshape", X, rank=2, to=(24,)), (13,), (2, 1)),
        (make("reshape", X, rank=2, to=(2, 2, 6)), (1, 0, 4), (2, 4)),
        (make("reshape", X, rank=2, to=(1, 4, 1, 6)), (0, 3, 0, 5), (3, 5)),
    ],
    ids=lambda v: v.op if isinstance(v, Node) else str(v),
)
def test_views_are_changes_of_index(node: Node, index: tuple[int, ...], expected: tuple[int, ...]) -> None:
    data = np.arange(24).reshape(4, 6)
    assert tuple(int(i) for i in moved(node, index)) == expected
    views = {"index": lambda: data[3], "slice": lambda: data[:, 2:5], "transpose": lambda: data.T}
    assert views.get(node.op, lambda: data.reshape(node.shape))()[index] == data[expected]


def test_reduced_axes_and_index() -> None:
    assert reduced_axes(make("sum", X, axis=-2, keepdims=False)) == [("k", 4)]
    assert reduced_value(make("sum", X, axis=-2, keepdims=False), (5,), [2], lambda n, i: i) == (2, 5)
    assert reduced_value(make("max", X, axis=-1, keepdims=True), (3, 0), [1], lambda n, i: i) == (3, 1)
    y = Node("input", shape=(6, 2))
    assert reduced_axes(make("einsum", X, y, spec="ab,bc->ac")) == [("b", 6)]
