"""Products of two vectors of each row, of each head: which sums are such, where operands lie, and what kernels make."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from emulated import run

from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.training.row_product import row_product
from tvm_rnn.cuda.training.weight_gradient_sums import WeightGradients
from tvm_rnn.graph.graph import Node, make


def leaf(name: str, *shape: int) -> Node:
    return Node("input", shape=shape, name=name)


def place(node: Node) -> Place | None:
    """Of padded rows."""
    return Place("float32", -(-prod(node.shape) // 4) * 4) if node.leaf else None


def product(a: Node, b: Node, spec: str) -> Node:
    return make("einsum_rows", a, b, spec=spec)


HEADS, OTHERS, DEEP = leaf("a", 3, 8), leaf("b", 3, 4), leaf("c", 3, 5, 4)
FLAT, LATE = make("reshape", leaf("d", 24), rank=1, to=(3, 8)), leaf("e", 4, 3)
# Sum, how many heads and vectors, whether lines are the right operand's, elements between heads and vectors of both.
CASES: dict[str, tuple[Node, tuple[int, int, bool], tuple[int, ...]]] = {
    "heads": (product(HEADS, OTHERS, "wa,wk->wak"), (3, 1, False), (8, 0, 4, 0)),
    "turned": (product(HEADS, OTHERS, "wa,wk->wka"), (3, 1, True), (8, 0, 4, 0)),
    "summed": (product(HEADS, OTHERS, "wa,wk->ak"), (1, 3, False), (0, 8, 0, 4)),
    "both": (product(DEEP, DEEP, "wva,wvk->wak"), (3, 5, False), (20, 4, 20, 4)),
    "flat": (product(FLAT, OTHERS, "wa,wk->wak"), (3, 1, False), (8, 0, 4, 0)),
    "plain": (product(leaf("f", 8), leaf("g", 4), "a,k->ka"), (1, 1, True), (0, 0, 0, 0)),
}


@pytest.mark.parametrize("name", CASES)
def test_where_operands_lie(name: str) -> None:
    node, facts, distances = CASES[name]
    found = row_product(node, place)
    assert found is not None and (found.heads, found.vectors, found.turned) == facts
    assert (found.left.apart, found.left.step, found.right.apart, found.right.step) == distances
    assert found.left.told and (found.left.depth == 8 or name == "both")


def test_what_is_no_such_product() -> None:
    assert row_product(make("sum_rows", HEADS, rank=2), place) is None
    assert row_product(product(DEEP, OTHERS, "wva,wk->wvak"), place) is None  # a matrix of each head
    turned = make("transpose", LATE, axes=(1, 0))  # no elements side by side
    assert row_product(product(turned, OTHERS, "wa,wk->wak"), place) is None
    with pytest.raises(ValueError, match="one must be stored"):
        row_product(product(make("concat", leaf("x", 4), leaf("y", 4), axis=-1), leaf("z", 4), "a,k->ak"), place)


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("name", ["both", pytest.param("turned", marks=pytest.mark.slow)])
def test_sums_of_every_head(name: str) -> None:
    """In two parts, out of rows with something behind them."""
    node = CASES[name][0]
    rng, rows, parts = np.random.default_rng(0), 37, 2
    found = WeightGradients("t", [node], "float32", place, place).launches[0]
    values = {a: rng.normal(size=(rows, *a.shape)).astype("f4") for a in node.args}
    arrays = {}
    for argument in found.arguments:
        own = place(argument.node)
        assert own is not None
        arrays[argument.name] = np.full((rows, own.row_stride), np.nan, "f4")
        arrays[argument.name][:, : prod(argument.node.shape)] = values[argument.node].reshape(rows, -1)
    arrays["sums"] = np.full((parts, *node.shape), np.nan, "f4")
    run(found.kernel, arrays, {"rows": rows, "parts": parts, "add": 0}, parts * found.blocks)
    inputs, out = node.attrs["spec"].split("->")
    spec = ",".join(f"r{text}" for text in inputs.split(",")) + f"->{out}"
    expected = np.einsum(spec, *(values[a] for a in node.args))
    np.testing.assert_allclose(arrays["sums"].sum(0), expected, rtol=1e-4, atol=1e-4)
