"""Which sums lanes can share, and what they add up to: sums, maxima and minima of more terms than there are lanes."""

from __future__ import annotations

import numpy as np
import pytest
from device_graphs import compiled
from graphs import graph_of
from onnx_models import model_of, node
from test_nest_kernel import nest_of
from tvm import relax

from tvm_rnn.cuda.surroundings.warp_sum import terms_of, warp_sum
from tvm_rnn.surroundings.regions import read_graph

RNG = np.random.default_rng(0)


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("name", ["sum", "max", "min"])
def test_sums_and_extrema(name: str) -> None:
    make = getattr(relax.op, name)
    assert terms_of(nest_of(["n", "t"], lambda x: make(x, 1)).nest) is not None
    x = np.random.default_rng(0).normal(size=(9, 101)).astype("f4")
    x[3, 70] = np.nan
    (found,) = compiled(graph_of(["n", "t"], lambda x: make(x, 1)))[1](x)
    np.testing.assert_allclose(found, getattr(x, name)(1), rtol=1e-5, atol=1e-5)


@pytest.mark.broad
def test_places_of_extrema() -> None:
    """The first, or the last, of equal ones; of NaN any place that is there."""
    x = RNG.integers(-3, 4, (5, 3, 70)).astype("f4")
    every = [(name, last) for name in ("ArgMax", "ArgMin") for last in (0, 1)]
    nodes = [
        node(name, ["x"], [f"{name}_{last}"], axis=-1, keepdims=last, select_last_index=last) for name, last in every
    ]
    outputs = {f"{name}_{last}": "i8" for name, last in every}
    made, run = compiled(read_graph(model_of(nodes, {"x": ("f4", ["T", "B", 70])}, outputs, {}, 17), "x"))
    assert len(made.launches) == 2 * len(every)
    for (name, last), found in zip(every, run(x), strict=True):
        place = getattr(np, name.lower())
        expected = place(x, -1) if not last else 69 - place(x[..., ::-1], -1, keepdims=True)
        np.testing.assert_array_equal(found, expected)
    for found in run(np.full((1, 1, 70), np.nan, "f4")):
        assert 0 <= found.item() < 70


def test_other_sums_are_not_shared() -> None:
    nest = nest_of(["n", "t"], lambda x: relax.op.prod(x, 1))
    assert terms_of(nest.nest) is None and warp_sum(nest) is None
