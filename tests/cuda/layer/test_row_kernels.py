"""Row kernels: their grids, arguments and text for pointwise groups and reductions of every kind."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from compiled_kernels import graph_of, text_of
from emulated import run

from tvm_rnn.cuda.layer import row_kernels
from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.layer.row_kernels import EACH, FEW_TERMS, THREADS, Rows, rows_kernel, sources
from tvm_rnn.graph.graph import Graph, Group, Node, make


def kernel_of(group: Group, precision: str = "float32", elsewhere: frozenset[Node] = frozenset()) -> Rows:
    dtype = "float64" if precision == "float64" else "float32"

    def reads(node: Node) -> Place | None:
        return Place(dtype, prod(node.shape)) if node.leaf and node.scalar is None else None

    return rows_kernel(
        "kernel",
        group,
        precision=precision,
        reads=reads,
        writes=lambda n: [Place(dtype, prod(n.shape))],
        elsewhere=elsewhere,
    )


def alone(node: Node, kind: str = "pointwise") -> Group:
    return Group(kind, "step", 1, node if kind == "reduce" else None, (node,), (node,))


@pytest.mark.parametrize("size", [1, 7, 128, 300])
def test_every_element_of_a_row_has_a_thread(size: int) -> None:
    h = Node("state", shape=(size,), name="h")
    text = text_of(kernel_of(alone(make("tanh", h))).kernel)
    assert "__launch_bounds__(128)" in text
    # 300: three blocks for a row; 7: 18 rows in a block; 128: one row in a block.
    expected = {300: ["/ 3", "% 3"], 7: ["(int64_t)18", "% 7"], 128: [], 1: ["(int64_t)128"]}[size]
    assert [part for part in expected if part not in text] == [], text


@pytest.mark.broad
@pytest.mark.parametrize("size", [2 * EACH * THREADS, EACH * THREADS + 5])
def test_a_thread_has_several_elements_of_a_long_row(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_kernels, "LONG", 1000)
    h = Node("state", shape=(size,), name="h")
    kernel = kernel_of(alone(make("tanh", h))).kernel
    x, y = np.random.default_rng(size).uniform(-2, 2, (3, size)).astype("f4"), np.full((3, size), np.nan, "f4")
    run(kernel, {"r0": x, "w0": y}, {"rows": 3}, 3 * 2)
    np.testing.assert_allclose(y, np.tanh(x), rtol=1e-6, atol=1e-6)


def test_a_matrix_is_one_index_space() -> None:
    a, b = Node("state", shape=(5, 1), name="a"), Node("state", shape=(1, 6), name="b")
    made = kernel_of(alone(make("mul", a, b)))
    assert len(made.arguments) == 3 and made.kernel.scalars == (("rows", "int64"),)
    text_of(made.kernel)


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "warp"),
    [
        ("sum", [(40,)], {"axis": -1, "keepdims": False}, True),
        ("max", [(40,)], {"axis": -1, "keepdims": True}, True),
        ("sum", [(3, 40)], {"axis": -2, "keepdims": False}, False),
        ("einsum", [(9, 40), (40,)], {"spec": "ij,j->i"}, True),
        ("einsum", [(40, 9), (40,)], {"spec": "ji,j->i"}, False),
        ("einsum", [(40,), (40,)], {"spec": "i,i->"}, True),
        ("sum", [(40, FEW_TERMS)], {"axis": -1, "keepdims": False}, False),
        ("einsum", [(3, 8, 9), (3, 8)], {"spec": "hij,hi->hj"}, False),
    ],
)
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_reductions(op: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any], warp: bool, precision: str) -> None:
    """Along the last axis a warp shares the work, so that neighbouring lanes read neighbouring numbers; not of few."""
    leaves = [Node("state", shape=s, name=f"s{i}") for i, s in enumerate(shapes)]
    made = kernel_of(alone(make(op, *leaves, **attrs), "reduce"), precision)
    text = text_of(made.kernel)
    assert text.count("__shfl_xor_sync(4294967295") + text.count("__shfl_xor_sync((uint)4294967295") == 5 * warp


def test_values_inside_a_reduction_are_not_stored() -> None:
    h = Node("state", shape=(40,), name="h")
    square = make("mul", h, h)
    total = make("sum", square, axis=-1, keepdims=True)
    group = Group("reduce", "step", 1, total, (square, total), (total,))
    made = kernel_of(group)
    assert [a.node for a in made.arguments] == [h, total]


def test_a_result_that_is_a_leaf_is_copied() -> None:
    h = Node("state", shape=(7,), name="h")
    made = kernel_of(alone(h), elsewhere=frozenset([h]))
    assert [a.role for a in made.arguments] == ["read", "write"] and all(a.node is h for a in made.arguments)


@pytest.mark.parametrize("name", ["mlstm", "lstm_layer_norm", "gated_delta_net", "indrnn"])
def test_groups_of_the_zoo(name: str) -> None:
    graph: Graph = graph_of(name)
    stored = {n for g in graph.groups for n in g.stored}
    free = {n for n in graph.nodes() if n.op in ("param", "const") and n.scalar is None}

    def reads(node: Node) -> Place | None:
        known = node in stored or node in free or node.op in ("input", "state")
        return Place("float32", prod(node.shape)) if known else None

    kernels = [
        rows_kernel(
            f"k{i}", g, precision="float32", reads=reads, writes=lambda n: [Place("float32", prod(n.shape))]
        ).kernel
        for i, g in enumerate(graph.groups)
        if g.kind not in ("gemm", "scan")
    ]
    assert kernels and text_of(*kernels).count("__global__") >= len(kernels)


def leaf(name: str, *shape: int) -> Node:
    return Node("state", shape=shape, name=name)


def test_sources_stop_at_stored_nodes() -> None:
    a, b = leaf("a", 4), leaf("b", 4)
    product = make("mul", a, b)
    total = make("add", product, make("index", leaf("c", 2, 4), axis=-2, at=1))
    names = [n.name for n in sources([total], lambda n: n.leaf)]
    assert names == ["a", "b", "c"]
    assert sources([total], lambda n: n in (product, a) or n.leaf)[0] is product


def test_an_expression_of_many_uses_is_computed_once() -> None:
    a = leaf("a", 40)
    nodes = [make("sigmoid", a)]
    for _ in range(30):  # written out as a tree this has 2**30 leaves
        nodes.append(make("mul", nodes[-1], nodes[-1]))
    group = Group("pointwise", "step", 1, None, (nodes[-1],), (nodes[-1],))
    place = Place("float32", 40)
    made = rows_kernel(
        "many", group, precision="float32", reads=lambda n: place if n is a else None, writes=lambda n: [place]
    )
    text = text_of(made.kernel)
    assert text.count("__expf(") == 1 and len(text) < 5000


def test_a_16_bit_value_is_loaded_once_and_converted() -> None:
    graph: Graph = graph_of("lstm")
    assert graph.dtype == "float32"
    h = leaf("h", 7)
    total = make("add", make("mul", h, h), h)
    group = Group("pointwise", "step", 1, None, (total,), (total,))
    made = rows_kernel(
        "half",
        group,
        precision="bfloat16",
        reads=lambda n: Place("bfloat16", 8) if n is h else None,
        writes=lambda n: [Place("float32", 7), Place("bfloat16", 8)],
    )
    text = text_of(made.kernel)
    assert text.count("(float)_ptr[") == 1
    assert [a.role for a in made.arguments] == ["read", "write", "write"]
    assert [d for _, d in made.kernel.pointers] == ["bfloat16", "float32", "bfloat16"]
