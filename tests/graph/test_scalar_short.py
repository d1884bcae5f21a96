"""Forms with a shorter way through them: as right as those of scalar.py, and on vectors from end to end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tvm_rnn.graph import scalar
from tvm_rnn.graph.scalar_short import FORMS, in_pairs
from tvm_rnn.target import host

# The largest error in units of the last place; of tanh and sigmoid also at most so far from the exact result.
ULP = {"exp": 4, "expm1": 4, "tanh": 7, "sigmoid": 4, "softplus": 6}
N, LANES = 4096, 8


def exact(name: str, x: np.ndarray) -> np.ndarray:
    if name == "sigmoid":
        return 1 / (1 + np.exp(-x))
    found: np.ndarray = np.logaddexp(0, x) if name == "softplus" else getattr(np, name)(x)
    return found


def function(name: str) -> Any:
    import tvm

    te: Any = tvm.te
    x = te.placeholder((N,), "float32", name="x")
    with scalar.using(FORMS):
        out = te.compute((N,), lambda i: getattr(scalar, name)(x(i)), name="out")
    sch: Any = tvm.s_tir.Schedule(te.create_prim_func([x, out]))
    (loop,) = sch.get_loops(sch.get_sblock("out"))
    sch.vectorize(sch.split(loop, [None, LANES])[1])
    return sch.mod["main"].with_attr("global_symbol", name)


@pytest.fixture(scope="module")
def functions() -> Any:
    import tvm

    return tvm.compile(tvm.IRModule({name: function(name) for name in ULP}), host().tvm_target)


@pytest.mark.parametrize("name", ULP)
def test_they_are_right(name: str, functions: Any) -> None:
    import tvm

    rng = np.random.default_rng(0)
    ends = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 87.0, 88.7, 89.0, -87.0, -103.0, -104.0, 9.0, -9.0]
    x = np.concatenate([ends, rng.normal(size=N - 1000 - len(ends)), rng.uniform(-100, 100, 1000)]).astype("f4")
    out = tvm.runtime.tensor(np.zeros(N, "f4"))
    functions[name](tvm.runtime.tensor(x), out)
    found = out.numpy()
    with np.errstate(all="ignore"):
        wanted = exact(name, x.astype("f8"))
        rounded = wanted.astype("f4")
        np.testing.assert_array_equal(np.isnan(found), np.isnan(rounded))
        np.testing.assert_array_equal(np.isinf(found), np.isinf(rounded))
        finite = np.isfinite(rounded)
        unit = np.spacing(np.maximum(np.abs(rounded[finite]), np.float32(1e-30)))
        error = np.abs(found[finite].astype("f8") - wanted[finite]) / unit
    assert error.max() <= ULP[name], x[finite][np.argmax(error)]


def test_they_are_vectors() -> None:
    """TVM makes a loop of single lanes of what it cannot vectorise, such as nearbyint."""
    import tvm

    mod = tvm.IRModule({name: function(name) for name in ULP})
    lowered = tvm.tirx.transform.VectorizeLoop(True)(
        tvm.ir.transform.Sequential([tvm.s_tir.transform.LowerOpaqueBlock(), tvm.tirx.transform.FlattenBuffer()])(
            tvm.s_tir.transform.ConvertBlocksToOpaque()(tvm.s_tir.transform.LowerInitBlock()(mod))
        )
    )
    assert "v_s" not in str(lowered) and "_s in range" not in str(lowered)


def test_a_polynomial_in_pairs() -> None:
    x = 0.7
    for count in (1, 2, 3, 4, 7, 8):
        terms = [float(i + 1) for i in range(count)]
        powers = [x, x**2, x**4]
        value = np.polyval(terms, x)
        assert in_numbers(powers, terms) == pytest.approx(value)


def in_numbers(powers: list[float], terms: list[float]) -> float:
    """in_pairs on constants, which TVM folds."""
    from tvm import tirx

    made = in_pairs([tirx.const(p, "float64") for p in powers], terms)
    return float(made.value)
