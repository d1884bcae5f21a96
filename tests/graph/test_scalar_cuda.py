"""The forms for CUDA: their text, and their formulas evaluated in float32 as the GPU does it (with exact exp)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tvm_rnn.graph import scalar, scalar_cuda
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.graph.scalar_cuda import flavour

POINTWISE = [op for op in TABLE.values() if op.kind == "pointwise" and op.name != "take"]  # which reads arrays
VALUES = np.array(
    [
        math.nan,
        math.inf,
        -math.inf,
        0.0,
        -0.0,
        1e-30,
        -1e-7,
        1e-3,
        0.19,
        -0.2,
        0.21,
        1.0,
        -3.5,
        9.0,
        40.0,
        -88.0,
        104.0,
    ],
    np.float32,
)


def divided(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """As the GPU does it: 0 where b is very large, not only where it is infinite."""
    return np.where(np.isfinite(b) & (np.abs(b) > 2.0**126), np.float32(0) * a, np.divide(a, b))


def interpret(expression: Any, values: dict[str, np.ndarray]) -> np.ndarray:
    """A TVM expression on NumPy arrays."""
    kind = type(expression).__name__
    if kind == "Var":
        return values[expression.name]
    if kind in ("FloatImm", "IntImm"):
        return np.dtype(str(expression.ty)).type(expression.value)
    if kind == "Let":
        return interpret(expression.body, {**values, expression.var.name: interpret(expression.value, values)})
    if kind == "Select":
        parts = [interpret(e, values) for e in (expression.condition, expression.true_value, expression.false_value)]
        return np.where(*parts)
    if kind == "Call":
        name = str(expression.args[0].value)
        operands = [interpret(a, values) for a in list(expression.args)[1:]]
        known: dict[str, Any] = {
            "__expf": np.exp,
            "expf": np.exp,
            "__logf": lambda x: np.log(x) + np.float32(4e-7),  # as far off as the hardware's is near 1
            "exp": np.exp,
            "fabsf": np.abs,
            "fabs": np.abs,
            "tanh": np.tanh,
            "__fdividef": divided,
            "rsqrtf": lambda x: np.float32(1) / np.sqrt(x),
            "__int_as_float": lambda bits: np.int32(bits).view(np.float32),
            "__longlong_as_double": lambda bits: np.int64(bits).view(np.float64),
        }
        return known[name](*operands)
    pairs: dict[str, Any] = {
        "Add": np.add,
        "Sub": np.subtract,
        "Mul": np.multiply,
        "Div": np.divide,
        "LT": np.less,
        "LE": np.less_equal,
        "GT": np.greater,
        "GE": np.greater_equal,
        "And": np.logical_and,
        "Or": np.logical_or,
    }
    return pairs[kind](interpret(expression.a, values), interpret(expression.b, values))


def evaluated(name: str, precision: str, *arrays: np.ndarray) -> np.ndarray:
    from tvm import tirx

    dtype = str(arrays[0].dtype)
    operands = [tirx.Var(f"x{i}", dtype) for i in range(len(arrays))]
    expression = TABLE[name].expression
    assert expression is not None
    with flavour(precision):
        made = expression(*operands)
    with np.errstate(all="ignore"):
        return np.asarray(interpret(made, {f"x{i}": a for i, a in enumerate(arrays)}))


@pytest.mark.parametrize("precision", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("name", ["sigmoid", "tanh", "relu", "abs"])
def test_functions_of_one_operand(name: str, precision: str) -> None:
    values = VALUES.astype("float64" if precision == "float64" else "float32")
    with np.errstate(all="ignore"):
        expected = TABLE[name].numpy(values.astype(np.float64))
    np.testing.assert_allclose(evaluated(name, precision, values), expected, rtol=0, atol=2e-7)


def test_tanh_is_relatively_right_where_it_is_small() -> None:
    x = np.float32(10.0) ** np.linspace(-30, 1, 4001, dtype=np.float32)
    exact = np.tanh(x.astype(np.float64))
    assert np.max(np.abs(evaluated("tanh", "float32", x) / exact - 1)) < 1e-6
    assert np.max(np.abs(evaluated("tanh", "float16", x) - exact)) < 2e-7


def test_log1p_in_16_bits_is_relatively_right() -> None:
    x = np.concatenate([np.float32(10.0) ** np.linspace(-30, 38, 4001, dtype=np.float32), VALUES])
    x = np.concatenate([x, -x])
    with np.errstate(all="ignore"):
        exact = np.log1p(x.astype(np.float64))
    np.testing.assert_allclose(evaluated("log1p", "bfloat16", x), exact, rtol=2e-5, atol=0)


def test_division_in_16_bits_also_by_what_is_very_large() -> None:
    values = np.concatenate([VALUES, np.array([3e38, -1e38, 1e25, 2e-38], np.float32)])
    a, b = (m.ravel() for m in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        expected = a / b
    np.testing.assert_allclose(evaluated("div", "bfloat16", a, b), expected, rtol=1e-6, atol=1e-37)
    assert evaluated("div", "float32", a, b).tobytes() == expected.tobytes()


def test_roots_in_16_bits_also_at_their_ends() -> None:
    values = np.concatenate([VALUES, np.array([3e38, 1e25, 2e-38], np.float32)])
    with np.errstate(all="ignore"):
        expected = np.sqrt(values)
    np.testing.assert_allclose(evaluated("sqrt", "float16", values), expected, rtol=1e-6)
    assert np.signbit(evaluated("sqrt", "float16", np.float32([-0.0])))[0]


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_nan_wins(name: str) -> None:
    a, b = (m.ravel() for m in np.meshgrid(VALUES, VALUES))
    np.testing.assert_array_equal(evaluated(name, "float32", a, b), TABLE[name].numpy(a, b))


def test_zero_times_what_is_not_finite_is_not_folded() -> None:
    from tvm import tirx

    with flavour("float32"):
        made = scalar.mul(scalar.const(0.0, x := tirx.Var("x", "float32")), x)
    with np.errstate(all="ignore"):
        found = interpret(made, {"x": np.array([np.inf, np.nan, 2.0], np.float32)})
    assert np.isnan(found[:2]).all() and found[2] == 0 and not np.signbit(found[2])


def test_other_forms_end_with_the_context() -> None:
    from tvm import tirx

    x = tirx.Var("x", "float32")
    with flavour("float32"):
        assert "expf" in str(scalar.exp(x))
        with flavour("bfloat16"):
            assert "__expf" in str(scalar.exp(x))
        assert "__expf" not in str(scalar.exp(x))
    assert "expf" not in str(scalar.exp(x))


@pytest.mark.parametrize("precision", ["float64", "float32", "bfloat16"])
def test_every_pointwise_op_has_a_form(precision: str) -> None:
    from tvm import tirx

    dtype = "float64" if precision == "float64" else "float32"
    with flavour(precision):
        for op in POINTWISE:
            operands = [tirx.Var(f"x{i}", dtype) for i in range(op.arity or 1)]
            assert op.expression is not None
            op.expression(*operands)
    assert set(scalar_cuda.FORMS) <= set(scalar_cuda.FORMS_16_BIT)
