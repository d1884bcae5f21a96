"""Which sums lanes can share, and what they add up to: sums, maxima and minima of more terms than there are lanes."""

from __future__ import annotations

import numpy as np
import pytest
from device_graphs import compiled
from graphs import graph_of
from test_nest_kernel import nest_of
from tvm import relax

from tvm_rnn.cuda.surroundings.warp_sum import terms_of, warp_sum


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("name", ["sum", "max", "min"])
def test_sums_and_extrema(name: str) -> None:
    make = getattr(relax.op, name)
    assert terms_of(nest_of(["n", "t"], lambda x: make(x, 1)).nest) is not None
    x = np.random.default_rng(0).normal(size=(9, 101)).astype("f4")
    x[3, 70] = np.nan
    (found,) = compiled(graph_of(["n", "t"], lambda x: make(x, 1)))[1](x)
    np.testing.assert_allclose(found, getattr(x, name)(1), rtol=1e-5, atol=1e-5)


def test_other_sums_are_not_shared() -> None:
    nest = nest_of(["n", "t"], lambda x: relax.op.prod(x, 1))
    assert terms_of(nest.nest) is None and warp_sum(nest) is None
