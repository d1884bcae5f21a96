"""tile_reductions: which axis vectors run along, and sums and maxima as IEEE has them."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn import target
from tvm_rnn.graph.graph import runs_along
from tvm_rnn.passes import pipeline

V4 = target.TABLE["x86-64-v4"]


@pytest.mark.parametrize(
    ("name", "spec", "along"),
    [("mlstm", "ak,k->a", True), ("mlstm", "k,k->", True), ("delta_net", None, None)],
)
def test_vectors_run_along_the_contiguous_axis(name: str, spec: str | None, along: bool | None) -> None:
    net = rnn.RNN(rnn.cells.get(name), 8, 32)
    graph = pipeline.run(net, V4)[-1][1].graphs[0]
    roots = [g.root for g in graph.groups if g.kind == "reduce" and g.root is not None]
    assert roots
    for root in roots:
        if spec is None:
            last = root.attrs["spec"].split("->")[1][-1:] if root.op == "einsum" else ""
            assert runs_along(root) in (True, False) and (last or runs_along(root))
        elif root.op == "einsum" and root.attrs["spec"] == spec:
            assert runs_along(root) is along


@rnn.cell
def centred(x: "H", h: "H"):
    """A sum and a maximum over a vector of any length, used more than once."""
    total = rnn.sum(x * x, keepdims=True)
    return 0.5 * h + x / (1.0 + total) - rnn.max(x * 2.0, keepdims=True)


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("width", [1, 7, 16, 33])
def test_what_is_left_over_and_what_is_not_a_number(width: int) -> None:
    net = rnn.RNN(centred, width, width).init(0)
    x = np.random.default_rng(width).normal(size=(4, 3, width)).astype("float32")
    x[2, 1, -1], x[1, 2, 0] = np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        expected = rnn.reference(net)(x)[0]
    np.testing.assert_allclose(rnn.compile(net)(x)[0], expected, rtol=1e-5, atol=1e-6)
