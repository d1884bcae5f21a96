"""einsum of traced values against NumPy's: two and three operands, transposed, outer, full sums, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn import CellError
from tvm_rnn.graph.graph import Node, topological
from tvm_rnn.language.contraction import einsum
from tvm_rnn.language.trace import Value
from tvm_rnn.oracle.reference import evaluate

ROWS = 3


@pytest.mark.parametrize(
    ("spec", "shapes"),
    [
        ("ij,j->i", ((3, 4), (4,))),
        ("ij, jk -> ik", ((3, 4), (4, 2))),
        ("ij,jk->ki", ((3, 4), (4, 2))),
        ("ij,kj->ki", ((3, 4), (2, 4))),
        ("i,j->ij", ((3,), (4,))),
        ("i,j->ji", ((3,), (4,))),
        ("ij,k->kji", ((2, 3), (4,))),
        ("ij,ij->ij", ((2, 3), (2, 3))),
        ("ij,ji->ij", ((2, 3), (3, 2))),
        ("i,i->", ((4,), (4,))),
        ("ij,ij->", ((2, 3), (2, 3))),
        ("ij,kl->", ((2, 3), (4, 2))),
        ("ij,k->j", ((2, 3), (4,))),
        ("ij->ji", ((2, 3),)),
        ("ij->", ((2, 3),)),
        ("ijk->ki", ((2, 3, 4),)),
        ("gij,j->gi", ((4, 2, 3), (3,))),
        ("bij,bjk->bik", ((2, 3, 4), (2, 4, 5))),
        ("i,ij,j->", ((3,), (3, 4), (4,))),
        ("i,ij,j->ji", ((3,), (3, 4), (4,))),
        ("ij,jk,kl->il", ((2, 3), (3, 4), (4, 2))),
        ("ij,k,jk->ki", ((2, 3), (4,), (3, 4))),
        ("i,j,k->kij", ((2,), (3,), (4,))),
        (",i->i", ((), (3,))),
    ],
)
def test_einsum(spec: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(ROWS, *shape)) for shape in shapes]
    leaves = [Node("input", shape=shape) for shape in shapes]
    node = einsum(spec, *map(Value, leaves)).node
    values: dict[Node, np.ndarray] = dict(zip(leaves, arrays, strict=True))
    evaluate(list(topological([node])), values)
    expected = np.stack([np.einsum(spec, *(a[row] for a in arrays)) for row in range(ROWS)])
    assert node.shape == expected.shape[1:] and values[node].shape == expected.shape
    np.testing.assert_allclose(values[node], expected, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(rnn.einsum(spec, *(a[0] for a in arrays)), expected[0], rtol=1e-13, atol=1e-13)


def test_arrays_known_now_are_operands_too() -> None:
    leaf, table = Node("input", shape=(4,)), np.arange(12.0).reshape(3, 4)
    node = rnn.einsum("ij,j->i", table, Value(leaf)).node
    values = {leaf: np.arange(8.0).reshape(2, 4)}
    evaluate(list(topological([node])), values)
    np.testing.assert_allclose(values[node], values[leaf] @ table.T)


def test_nothing_summed_is_a_multiplication() -> None:
    """An outer product is pointwise, so that it can be fused; a product of matrices stays one einsum."""
    a, b = Value(Node("state", shape=(3,))), Value(Node("state", shape=(4,)))
    assert einsum("i,j->ij", a, b).node.op == "mul"
    assert einsum("i,i->", a, a).node.op == "einsum"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: rnn.einsum("ij", x), "not supported"),
        (lambda x: rnn.einsum("...j->j", x), "not supported"),
        (lambda x: rnn.einsum("ii->i", x), "not supported"),
        (lambda x: rnn.einsum("ij->jj", x), "not supported"),
        (lambda x: rnn.einsum("ij,j->i", x), "not supported"),
        (lambda x: rnn.einsum("ij->k", x), "the result names an axis"),
        (lambda x: rnn.einsum("i->i", x), "letters do not match"),
        (lambda x: rnn.einsum("ij,j->i", x, x[:, 0]), "axis 'j' has sizes 3 and 2"),
    ],
)
def test_refused(call: Any, text: str) -> None:
    with pytest.raises(CellError, match=text):
        call(Value(Node("input", shape=(2, 3), name="x")))
