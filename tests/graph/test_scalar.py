"""The compiled expression of every pointwise row against its NumPy column: accuracy, special values, no libm calls.

In: one function per row and dtype, compiled together for this machine. Out: errors in units of the last place.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tvm_rnn.graph import scalar
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.target import host

N = 4096
DTYPES = ("float32", "float64")
POINTWISE = [op for op in TABLE.values() if op.kind == "pointwise" and op.expression is not None]
TRUTHS = {"logical_and": {0, 1}, "logical_or": {0, 1}, "logical_not": {0}, "where": {0}}
POLYNOMIALS = ("exp", "expm1", "log", "log1p", "tanh", "sigmoid", "softplus", "erf")

# Largest error in units of the last place of the result, and the magnitude below which the error is absolute. sigmoid
# and exp end at 1e-38, tanh loses relative accuracy only among denormals; libm's float64 functions are within 2.
ULP = {
    "exp": 3,
    "expm1": 3,
    "log": 2,
    "log1p": 4,
    "tanh": 6,
    "sigmoid": 3,
    "softplus": 5,
    "erf": 2,
    "sin": 2,
    "cos": 2,
    "power": 2,
}
SMALLEST = {"float32": 1e-30, "float64": 1e-300}

SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, 2.5, 20.0, -20.0, 1e-7, 1e-4, 2**-0.5, 2**0.5]
LIMITS = [1e-45, -1e-45, 1e-40, 1.17549435e-38, 1e-30, 1e30, 3e38, -3e38, 87.0, 88.7, 89.0, -87.0, -103.0, -104.0, 9.0]


def draw(arity: int, dtype: str) -> list[np.ndarray]:
    """All pairs of special values (with arity 1: each of them), then random numbers of every size."""
    rng, edges = np.random.default_rng(0), SPECIAL + LIMITS
    if arity == 1:
        rest = N - len(edges)
        mixed = [rng.normal(size=rest // 3), rng.uniform(-100, 100, rest // 3), 10.0 ** rng.uniform(-38, 38, rest)]
        return [np.concatenate([edges, *mixed])[:N].astype(dtype)]
    pairs = np.array(np.meshgrid(edges, edges)).reshape(2, -1)
    first, second = (np.concatenate([p, rng.normal(size=N - p.size)]).astype(dtype) for p in pairs)
    return [first, second] if arity == 2 else [rng.permutation(first), first, second]


def primfunc(name: str, dtype: str, body: Callable[..., Any], arity: int) -> Any:
    import tvm

    te: Any = tvm.te

    args = [te.placeholder((N,), dtype, name=f"a{i}") for i in range(arity)]
    out = te.compute((N,), lambda i: body(*(a(i) for a in args)), name="out")
    sch: Any = tvm.s_tir.Schedule(te.create_prim_func([*args, out]))
    (loop,) = sch.get_loops(sch.get_sblock("out"))
    sch.vectorize(sch.split(loop, [None, 8])[1])
    return sch.mod["main"].with_attr("global_symbol", name)


def expression(op: Any, dtype: str) -> Callable[..., Any]:
    """The row's expression between numbers: truth values are made of x > 0 and become 1 or 0."""
    from tvm import tirx

    truths = TRUTHS.get(op.name, set())

    def number(value: int) -> Any:
        return tirx.const(value, dtype)

    def body(*values: Any) -> Any:
        given = [v > number(0) if k in truths else v for k, v in enumerate(values)]
        result = op.expression(*given)
        return tirx.Select(result, number(1), number(0)) if op.boolean else result

    return body


def compiled(functions: dict[str, Any]) -> Any:
    import tvm

    return tvm.compile(tvm.IRModule(functions), host().tvm_target)


def call(module: Any, name: str, *arrays: np.ndarray) -> np.ndarray:
    import tvm

    out = tvm.runtime.tensor(np.zeros(N, arrays[0].dtype))
    module[name](*map(tvm.runtime.tensor, arrays), out)
    return np.asarray(out.numpy())


@pytest.fixture(scope="module")
def rows() -> Any:
    names = {f"{op.name}_{dtype}": (op, dtype) for op in POINTWISE for dtype in DTYPES}
    return compiled({n: primfunc(n, dtype, expression(op, dtype), op.arity or 1) for n, (op, dtype) in names.items()})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", POINTWISE, ids=lambda op: op.name)
def test_expression_is_the_numpy_column(rows: Any, op: Any, dtype: str) -> None:
    arrays = draw(op.arity, dtype)
    found = call(rows, f"{op.name}_{dtype}", *arrays)
    truths = TRUTHS.get(op.name, set())
    with np.errstate(all="ignore"):
        exact = op.numpy(*(a > 0 if k in truths else a.astype(np.float64) for k, a in enumerate(arrays)))
        expected = exact.astype(dtype)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
        np.testing.assert_array_equal(np.isinf(found), np.isinf(expected))
        finite = np.isfinite(expected)
        unit = np.spacing(np.maximum(np.abs(expected[finite]), SMALLEST[dtype]).astype(dtype))
        error = np.abs(found[finite].astype(np.float64) - exact[finite]) / unit
    worst = int(np.argmax(error))
    assert error[worst] <= ULP.get(op.name, 0.5), [a[finite][worst] for a in arrays]
    same_sign = np.signbit(found) == np.signbit(expected)
    of_zeros = op.name == "mod"  # no other operation's sign is lost with its zero
    assert same_sign[(of_zeros | ~finite) & ~np.isnan(expected)].all()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads x86 assembly")
@pytest.mark.parametrize(
    ("dtype", "expected"), [("float32", set()), ("float64", {"exp", "log", "log1p", "tanh", "erf"})]
)
def test_libm_is_called_for_float64_only(dtype: str, expected: set[str]) -> None:
    """Its functions work on one lane at a time."""
    rows = {f"row_{name}": primfunc(f"row_{name}", dtype, expression(TABLE[name], dtype), 1) for name in POLYNOMIALS}
    assembly = compiled(rows).mod.inspect_source("asm")
    assert set(re.findall(r"\bcallq?\s+\*?(exp|log|log1p|tanh|erf)f?(?:@\w+)?\s", assembly)) == expected
    # TVM makes single lanes of nearbyint, which LLVM puts together again in halves of 512 bits.
    assert not re.search(r"\bv?(round|rndscale)[ps][sd]|nearbyint", assembly)


def test_sigmoid_near_one_rounds_once(rows: Any) -> None:
    """What a gate near 1 keeps is multiplied in every step: 0.7 of a unit, 0.5 of which any rounding takes."""
    x = np.random.default_rng(0).uniform(3.0, 20.0, N).astype(np.float32)
    error = call(rows, "sigmoid_float32", x) - 1.0 / (1.0 + np.exp(-x.astype(np.float64)))
    assert np.abs(error).max() <= 0.7 * np.spacing(np.float32(0.75))


def test_sigmoid_and_tanh_reach_their_ends_exactly(rows: Any) -> None:
    ends = np.full(N, np.inf, np.float32)
    assert (call(rows, "tanh_float32", ends) == 1).all() and (call(rows, "tanh_float32", -ends) == -1).all()
    assert (call(rows, "sigmoid_float32", ends) == 1).all() and (call(rows, "sigmoid_float32", -ends) < 2e-38).all()
    assert (call(rows, "exp_float32", -ends) == 0).all() and np.isinf(call(rows, "exp_float32", ends)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_comparison_with_itself_finds_nan(dtype: str) -> None:
    """TVM's own EQ, NE and Not are simplified as if NaN did not exist."""

    def body(kind: str) -> Callable[..., Any]:
        from tvm import tirx

        one, zero = tirx.const(1, dtype), tirx.const(0, dtype)
        condition: dict[str, Callable[[Any], Any]] = {
            "same": lambda x: scalar.equal(x, x),
            "other": lambda x: scalar.not_equal(x, x),
            "not_greater": lambda x: scalar.logical_not(scalar.greater(x, zero)),
            "not_not_greater": lambda x: scalar.logical_not(scalar.logical_not(scalar.greater(x, zero))),
        }
        return lambda x: scalar.where(condition[kind](x), one, zero)

    kinds = ("same", "other", "not_greater", "not_not_greater")
    module = compiled({kind: primfunc(kind, dtype, body(kind), 1) for kind in kinds})
    x = np.resize([np.nan, 1.0, -1.0, np.inf], N).astype(dtype)
    with np.errstate(invalid="ignore"):
        expected = [x == x, x != x, ~(x > 0), x > 0]
    for kind, wanted in zip(kinds, expected, strict=True):
        np.testing.assert_array_equal(call(module, kind, x), wanted)
