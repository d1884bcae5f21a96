"""normalise: every spelling of the same equations becomes the same graph, and none changes its meaning."""

from __future__ import annotations

import numpy as np
import pytest
from networks import constants

import tvm_rnn as rnn
from tvm_rnn import cell, concat, einsum, sigmoid, softplus, split, stack, tanh
from tvm_rnn.graph.graph import Graph, Node, constant, topological
from tvm_rnn.graph.graph_text import graph_text
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.oracle.reference import Reference
from tvm_rnn.passes.normalise import Builder, normalise


def normal(c: rnn.Cell, width: int = 5) -> Graph:
    return normalise(rnn.RNN(c, width, 7).layers[0].graph)


def skeleton(graph: Graph) -> list[tuple[str, tuple[int, ...]]]:
    """Ops and shapes in order, without the names of parameters."""
    views = ("index", "slice", "reshape")
    return [(n.op, n.shape) for n in graph.nodes() if n.op not in ("param", *views)]


@cell(states="h")
def packed(x: "I", h: "H", *, W: "2 H I", R: "2 H H", b: "2 H"):
    z, n = W @ x + R @ h + b
    return sigmoid(z) * h + tanh(n)


@cell(states="h")
def flat(x: "I", h: "H", *, W: "2*H I", R: "2*H H", b: "2*H"):
    z, n = split(W @ x + R @ h + b, 2)
    return sigmoid(z) * h + tanh(n)


@cell(states="h")
def reshaped(x: "I", h: "H", *, W: "2*H I", R: "2*H H", b: "2*H"):
    z, n = (W @ x + R @ h + b).reshape(2, -1)
    return sigmoid(z) * h + tanh(n)


@cell(states="h")
def by_gate(x: "I", h: "H", *, Wz: "H I", Wn: "H I", Rz: "H H", Rn: "H H", bz: "H", bn: "H"):
    return sigmoid(Wz @ x + Rz @ h + bz) * h + tanh(Wn @ x + Rn @ h + bn)


@cell(states="h")
def stacked(x: "I", h: "H", *, Wz: "H I", Wn: "H I", Rz: "H H", Rn: "H H", bz: "H", bn: "H"):
    z, n = stack([Wz @ x, Wn @ x]) + stack([Rz @ h, Rn @ h]) + stack([bz, bn])
    return sigmoid(z) * h + tanh(n)


@cell(states="h")
def by_einsum(x: "I", h: "H", *, W: "2 I H", R: "2 H H", b: "2 H"):
    z, n = einsum("gih,i->gh", W, x) + einsum("k,ghk->gh", h, R) + b
    return sigmoid(z) * h + tanh(n)


@cell(states="h")
def joined(x: "I", h: "H", *, W: "2 H I+H", b: "2 H"):
    z, n = W @ concat([x, h]) + b
    return sigmoid(z) * h + tanh(n)


SPELLINGS = [packed, flat, reshaped, by_gate, stacked, by_einsum, joined]


@pytest.mark.parametrize("c", SPELLINGS[1:], ids=lambda c: c.name)
def test_every_spelling_is_the_same_graph(c: rnn.Cell) -> None:
    ours = [op for op in skeleton(normal(c)) if op[0] != "transpose"]
    assert ours == skeleton(normal(packed))


@pytest.mark.few_cells
@pytest.mark.parametrize("name", rnn.cells.names())
def test_meaning_is_kept(name: str) -> None:
    c = rnn.cells.get(name)
    width = 5 if "I" in c.size_names else 7
    net = rnn.RNN(c, width, 7, **{n: 3 for n in c.size_names if n not in ("I", "H")}).init(1)
    rng = np.random.default_rng(0)
    x = tuple(rng.normal(size=(4, 3, *shape)) for shape in net.input_shapes.values())
    held = constants(net, 3)
    expected, _ = rnn.reference(net)(x if len(x) > 1 else x[0], **held)
    actual, _ = Reference(net, [normalise(net.layers[0].graph)])(x if len(x) > 1 else x[0], **held)
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


def test_it_is_idempotent() -> None:
    graph = normal(packed)
    assert graph_text(normalise(graph)) == graph_text(graph)


def test_products_with_two_state_dependent_operands_are_no_gemm() -> None:
    ops = {n.op for n in normal(rnn.cells.mlstm).nodes()}
    assert "einsum" in ops and "gemm" in ops


def test_softplus_becomes_its_parts() -> None:
    @cell(states="h")
    def soft(x: "H", h: "H"):
        return softplus(x + h)

    ops = [n.op for n in normal(soft, 7).nodes()]
    assert "softplus" not in ops and {"relu", "log1p", "exp"} <= set(ops)


def test_softplus_stays_whole_to_be_differentiated() -> None:
    @cell(states="h")
    def soft(x: "H", h: "H"):
        return softplus(x + h)

    graph = rnn.RNN(soft, 7, 7).layers[0].graph
    assert "softplus" in [n.op for n in normalise(graph, expand=False).nodes()]


def test_nothing_is_left_of_gradients_of_ones_own() -> None:
    @cell(states="h")
    def spiking(x: "H", h: "H"):
        return rnn.surrogate(rnn.floor(x + h), rnn.stop_gradient(sigmoid(h)))

    graph = rnn.RNN(spiking, 7, 7).layers[0].graph
    assert [n.op for n in normalise(graph).nodes()] == ["input", "state", "add", "floor"]
    assert {"surrogate", "stop_gradient"} <= {n.op for n in normalise(graph, expand=False).nodes()}


def test_a_part_of_a_repeated_value_is_a_part_of_the_value() -> None:
    builder, row = Builder(), Node("input", shape=(1, 5), name="x")
    whole = builder.make("broadcast", row, to=(3, 5))
    assert builder.make("broadcast", row, to=(1, 5)) is row
    assert builder.make("index", whole, axis=-2, at=2) is builder.make("index", row, axis=-2, at=0)
    part = builder.make("slice", whole, axis=-1, start=1, stop=4)
    assert (part.op, part.shape, part.args[0].op, part.args[0].shape) == ("broadcast", (3, 3), "slice", (1, 3))


def test_a_part_of_rows_of_a_table_is_rows_of_a_part() -> None:
    table, places = Node("param", shape=(9, 4, 5), name="E"), Node("input", shape=(3, 1, 1), name="x")
    builder = Builder()
    whole = builder.make("take", table, places, rank=3)
    parts = [
        ("index", {"axis": -2, "at": 1}),
        ("slice", {"axis": -1, "start": 1, "stop": 3}),
        ("index", {"axis": -3, "at": 2}),
    ]
    rng = np.random.default_rng(0)
    values = {table: rng.normal(size=table.shape), places: rng.integers(0, 9, places.shape)}
    for op, attrs in parts:
        part = builder.make(op, whole, **attrs)
        assert part.op == "take"
        for node in topological([part]):
            if not node.leaf:
                values[node] = TABLE[node.op].numpy(*(values[a] for a in node.args), **node.attrs)
        expected = TABLE[op].numpy(TABLE["take"].numpy(values[table], values[places], rank=3), **attrs)
        np.testing.assert_array_equal(values[part], expected)


def test_sums_over_steps_of_numbers_are_no_numbers() -> None:
    assert Builder().make("sum_rows", constant(2.0), rank=0).op == "sum_rows"


def test_constants_are_folded_and_shared() -> None:
    @cell(states="h")
    def scaled(x: "H", h: "H"):
        return x * 0.5 + h * 0.5

    assert len([n for n in normal(scaled, 7).nodes() if n.op == "const"]) == 1


def test_builder_makes_equal_nodes_once() -> None:
    builder = Builder()
    x, h = rnn.RNN(packed, 5, 7).layers[0].graph.inputs[0], rnn.RNN(packed, 5, 7).layers[0].graph.states[0]
    assert builder.make("tanh", x) is builder.make("tanh", x)
    assert builder.make("tanh", x) is not builder.make("tanh", h)


def test_a_sum_over_rows_is_made_in_the_order_that_is_asked_for() -> None:
    builder, operands = Builder(), [Node("input", shape=(2, size), name=name) for name, size in (("a", 3), ("b", 4))]
    sums = builder.make("einsum_rows", *operands, spec="nm,nk->nkm")
    turned = builder.make("transpose", sums, axes=(0, 2, 1))
    assert (turned.op, turned.attrs["spec"], turned.shape) == ("einsum_rows", "nm,nk->nmk", (2, 3, 4))
