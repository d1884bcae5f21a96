"""Products of members: which einsums are a GEMM for each, where their operands lie, and what becomes of a layer's."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.graph.graph import Graph, Node, make
from tvm_rnn.oracle.reference import evaluate
from tvm_rnn.passes import pipeline
from tvm_rnn.passes.batched_gemms import BatchedProduct, batched_product, distance, with_batched_gemms
from tvm_rnn.target import resolve


def leaves(spec: str, *shapes: tuple[int, ...]) -> tuple[Node, Node, Node]:
    w, x = Node("param", shape=shapes[0], name="W"), Node("input", shape=shapes[1], name="x")
    return w, x, make("einsum", w, x, spec=spec)


@pytest.mark.parametrize(
    ("spec", "shapes", "expected"),
    [
        ("nki,ni->nk", ((3, 8, 9), (3, 9)), BatchedProduct(0, "n", "i", "k")),
        ("kni,in->kn", ((8, 3, 9), (9, 3)), BatchedProduct(0, "n", "i", "k")),
        ("mnki,mni->mnk", ((2, 3, 8, 9), (2, 3, 9)), BatchedProduct(0, "mn", "i", "k")),
        ("nkli,ni->nkl", ((3, 8, 2, 9), (3, 9)), BatchedProduct(0, "n", "i", "kl")),
        ("nki,nti->ntk", ((3, 8, 9), (3, 5, 9)), None),  # several vectors of a row
        ("ki,i->k", ((8, 9), (9,)), None),
        ("nk,nk->nk", ((3, 8), (3, 8)), None),
    ],
)
def test_which_einsums_are(
    spec: str, shapes: tuple[tuple[int, ...], tuple[int, ...]], expected: BatchedProduct | None
) -> None:
    w, _, product = leaves(spec, *shapes)
    assert batched_product(product, {w}) == expected


@pytest.mark.parametrize(
    ("spec", "shapes"),
    [
        ("nki,ni->nk", ((3, 8, 9), (3, 9))),
        ("kni,in->kn", ((8, 3, 9), (9, 3))),
        ("nkli,ni->lnk", ((3, 8, 2, 9), (3, 9))),
        ("mnki,mni->mnk", ((2, 3, 8, 9), (2, 3, 9))),
    ],
)
def test_the_same_numbers(spec: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    w, x, product = leaves(spec, *shapes)
    graph = Graph("c", "float64", (x,), (), (w,), (), product, "y", region={product: "before"})
    found = with_batched_gemms(graph)
    assert [n.op for n in found.nodes() if "gemm" in n.op or n.op == "einsum"] == ["batched_gemm"]
    rng = np.random.default_rng(0)
    values: dict[Node, np.ndarray] = {w: rng.normal(size=w.shape), x: rng.normal(size=(5, *x.shape))}
    expected = np.stack([np.einsum(spec, values[w], row) for row in values[x]])
    evaluate(found.nodes(), values)
    np.testing.assert_allclose(values[found.output], expected, rtol=1e-12)


def test_products_stay_that_are_small_or_of_the_step() -> None:
    w, x, product = leaves("nki,ni->nk", (3, 8, 9), (3, 9))
    graph = Graph("c", "float64", (x,), (), (w,), (), product, "y", region={product: "before"})
    assert with_batched_gemms(Graph("c", "float64", (x,), (), (w,), (), product, "y")).output is product
    tiny = leaves("nki,ni->nk", (3, 4, 9), (3, 9))
    own = Graph("c", "float64", tiny[1:2], (), tiny[:1], (), tiny[2], "y", region={tiny[2]: "before"})
    assert with_batched_gemms(own).output is tiny[2] and with_batched_gemms(graph).output is not product


def test_distances_between_members() -> None:
    x = Node("input", shape=(24,), name="x")
    apart = make("reshape", x, rank=1, to=(3, 8))
    turned = make("transpose", make("reshape", x, rank=1, to=(8, 3)), axes=(1, 0))
    two = make(
        "reshape", make("transpose", make("reshape", x, rank=1, to=(2, 3, 4)), axes=(1, 0, 2)), rank=3, to=(3, 8)
    )
    backwards = make("flip", apart, axis=-2)
    joined = make(
        "concat",
        make("slice", apart, axis=-2, start=1, stop=3),
        make("slice", apart, axis=-2, start=0, stop=1),
        axis=-2,
    )
    assert [distance(node) for node in (apart, turned, two, backwards, joined)] == [8, 1, 4, None, 8]


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("cell", [rnn.cells.gru, rnn.cells.lstm], ids=lambda cell: cell.name)
def test_layers_of_members_have_the_products_of_one(cell: rnn.Cell) -> None:
    """One product before the steps and one behind them, as a network of one member has; none in a row kernel."""
    found = []
    for members in (None, 3):
        net = rnn.RNN(cell, 12, 16, members=members, dtype="bfloat16")
        stages = pipeline.run(net, resolve("nvidia-h200"), training=True, precision="bfloat16", batches=(32,))
        (graph,) = stages[-1][1].graphs
        assert graph.backward is not None
        own = [[(g.region, g.kind) for g in one.groups if g.region != "step"] for one in (graph, graph.backward)]
        assert all(kind != "reduce" for groups in own for _, kind in groups)
        found.append([[where for where, kind in groups if kind == "gemm"] for groups in own])
    assert found[0] == found[1]
