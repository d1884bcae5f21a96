"""A maximum of sums as a recurrence."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_rnn.graph.graph import Node, constant, make, topological
from tvm_rnn.oracle.reference import evaluate
from tvm_rnn.passes.max_plus import max_plus

m, f, i = (Node(op, shape=(3,), name=name) for op, name in (("state", "m"), ("input", "f"), ("input", "i")))


@pytest.mark.parametrize(
    "new",
    [
        make("maximum", make("add", m, f), i),
        make("maximum", i, make("sub", make("add", f, m), i)),
        make("maximum", make("maximum", m, i), make("add", f, make("add", m, constant(1.0, 1)))),
        make("sub", make("maximum", make("add", m, f), i), f),
    ],
)
def test_the_row_is_the_value(new: Node) -> None:
    row = max_plus(list(topological([new])), [m], [new])
    assert row is not None and row.op == "scan_max"
    values = {n: np.random.default_rng(0).standard_normal((5, 3)) for n in (f, i)} | {m: np.array([[0.0, 9.0, -9.0]])}
    evaluate(list(topological([new, row])), values)
    np.testing.assert_allclose(values[row], values[new], rtol=1e-14)


@pytest.mark.parametrize(
    "new",
    [
        make("maximum", make("mul", m, f), i),
        make("minimum", make("add", m, f), i),
        make("add", m, f),
        make("maximum", make("add", m, m), i),
        make("sub", i, m),
    ],
    ids=lambda node: node.op,
)
def test_other_values_have_none(new: Node) -> None:
    assert max_plus(list(topological([new])), [m], [new]) is None
