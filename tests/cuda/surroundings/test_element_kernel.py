"""One thread an element: pointwise functions, sums of few terms, a single number."""

from __future__ import annotations

import numpy as np
import pytest
from device_graphs import compiled
from graphs import graph_of
from tvm import relax


@pytest.mark.broad
def test_functions_are_as_precise_as_cudas() -> None:
    functions = [relax.op.exp, relax.op.log, relax.op.tanh, relax.op.sin, relax.op.sigmoid, relax.op.erf]

    def make(x: relax.Var) -> relax.Expr:
        return relax.op.stack([own(x) for own in functions], 0)

    x = np.linspace(0.01, 9, 70, dtype="f4")
    (found,) = compiled(graph_of(["n"], make))[1](x)
    wide = x.astype("f8")
    for own, of in ((0, np.exp), (1, np.log), (2, np.tanh), (3, np.sin), (4, lambda v: 1 / (1 + np.exp(-v)))):
        np.testing.assert_allclose(found[own], of(wide), rtol=4e-7, atol=4e-7)


def test_few_terms() -> None:
    x = np.random.default_rng(0).normal(size=(300, 5)).astype("f4")
    (found,) = compiled(graph_of(["n", 5], lambda x: relax.op.sum(x, 1)))[1](x)
    np.testing.assert_allclose(found, x.sum(1), rtol=1e-5, atol=1e-6)
