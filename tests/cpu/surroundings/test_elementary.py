"""Exponentials as polynomials: of float32, NaN and infinities too."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from graphs import compiled, graph_of
from tvm import relax, tirx

from tvm_rnn.cpu.surroundings.elementary import FORMS, with_polynomials
from tvm_rnn.tir.index import int64

EXACT = {
    "exp": np.exp,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "log": np.log,
    "erf": np.vectorize(math.erf),
}


def test_other_dtypes_keep_the_library() -> None:
    for dtype, stays in (("float32", False), ("float64", True)):
        buffer = tirx.decl_buffer((4,), dtype)
        value = tirx.exp(tirx.BufferLoad(buffer, [int64(0)]))
        store = tirx.BufferStore(buffer, value, [int64(0)])
        assert (with_polynomials(store).value.same_as(value)) == stays


@pytest.mark.broad
@pytest.mark.parametrize("name", EXACT)
def test_values(name: str, tmp_path: Path) -> None:
    assert {f"tirx.{own}" for own in EXACT} == {*FORMS}
    x = np.concatenate([np.linspace(-95, 95, 999), [np.inf, -np.inf, np.nan, 0.0, 1e-30]]).astype("f4")
    found = compiled(graph_of([len(x)], getattr(relax.op, name)), tmp_path)(x)[0]
    with np.errstate(all="ignore"):
        expected = EXACT[name](x.astype("f8")).astype("f4")
    np.testing.assert_allclose(found, expected, rtol=3e-6, atol=2e-37)
