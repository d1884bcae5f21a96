"""Special values and accuracy of compiled functions, through whole cells: as NumPy has them, in x, states and weights.

`test_scalar.py` holds each expression to its units in the last place on its own; here the same expressions have gone
through passes, fusion and vectors with padding, and through the scalar code that packs weights.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from networks import arguments, compiled

import tvm_rnn as rnn
from tvm_rnn import cell
from tvm_rnn.language import functions
from tvm_rnn.oracle.tolerance import assert_close, relative_error

DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])
# Largest error in units of the last place of float32, where the result is larger than SMALLEST; below, of SMALLEST.
# sigmoid and exp end at 1e-38; log_sigmoid and the others are made of these.
ULP = {"tanh": 6, "sigmoid": 3, "exp": 3, "log": 2, "log1p": 4, "softplus": 5, "log_sigmoid": 5, "sqrt": 0.5, "silu": 4}
ULP |= {
    "expm1": 3,
    "elu": 3,
    "erf": 2,
    "sin": 2,
    "cos": 2,
    "relu": 0,
    "absolute": 0,
    "negative": 0,
    "sign": 0,
    "floor": 0,
    "stop_gradient": 0,
    "softsign": 2,
    "square": 0.5,
}
SMALLEST = 1e-30
# Largest absolute error of functions in whose formula digits cancel.
ABSOLUTE = {"gelu": 2e-6, "leaky_relu": 1e-6, "hard_sigmoid": 1e-7, "hard_tanh": 0.0}
UNARY = [*ULP, *ABSOLUTE]
BINARY = ["add", "sub", "mul", "div", "maximum", "minimum", "less", "equal", "not_equal", "greater_equal", "power"]
BINARY += ["mod"]
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, 1e-45, -1e-45, 1e-40, 1.2e-38, 3e38, -3e38]
LIMITS = [87.0, 88.7, 89.0, -87.0, -88.7, -103.0, -104.0, 9.0, -9.0, 20.0, -20.0, 1e-7, -1e-7, 1e-4, 0.70710678, -0.5]


def apply(name: str, a: Any, b: Any = None) -> Any:
    """A function of one operand, an operator or a comparison (1 where it holds) of two; traced or NumPy's."""
    operators: dict[str, Callable[[Any, Any], Any]] = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "div": lambda a, b: a / b,
        "less": lambda a, b: functions.where(a < b, 1.0, 0.0),
        "equal": lambda a, b: functions.where(a == b, 1.0, 0.0),
        "not_equal": lambda a, b: functions.where(a != b, 1.0, 0.0),
        "greater_equal": lambda a, b: functions.where(a >= b, 1.0, 0.0),
    }
    if b is None:
        return getattr(functions, name)(a)
    return operators[name](a, b) if name in operators else getattr(functions, name)(a, b)


@functools.cache
def unary_module(dtype: str, size: int) -> rnn.Module:
    """y = every function of x, of h and of p: [T, B, 3 * len(UNARY) * size]."""

    @cell(output="y")
    def every(x: "I", h: "I", *, p: "I"):
        return x, functions.concat([apply(name, v) for v in (x, h, p) for name in UNARY])

    return rnn.compile(rnn.RNN(every, size, dtype=dtype))


def run_unary(dtype: str, values: np.ndarray) -> np.ndarray:
    """[x, h or p][function][value]: results where the values come as an input, as a state and as a weight."""
    module = unary_module(dtype, values.size)
    module.load_weights({"p_l0": values})
    row = values[None, None]
    y, _ = module(row, {"h": row})
    return y.reshape(3, len(UNARY), values.size)


def numbers(dtype: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    size = 200
    spread = 10.0 ** rng.uniform(-38, 38, size) * rng.choice([-1, 1], size)
    drawn = np.concatenate([SPECIAL, LIMITS, rng.normal(size=size), rng.uniform(-100, 100, size), spread])
    return drawn.astype(dtype)


@pytest.mark.broad
@DTYPES
def test_functions_of_inputs_states_and_weights(dtype: str) -> None:
    values = numbers(dtype)
    found = run_unary(dtype, values)
    for number, name in enumerate(UNARY):
        with np.errstate(all="ignore"):
            exact = np.asarray(apply(name, values.astype(np.float64)), np.float64)
            expected = exact.astype(dtype)
        finite = np.isfinite(expected)
        for source, got in zip(("input", "state", "weight"), found[:, number], strict=True):
            odd, wanted = (np.where(finite, 0, v) for v in (got, expected))
            assert np.array_equal(odd, wanted, equal_nan=True), (name, source)
            error = np.abs(got[finite].astype(np.float64) - exact[finite])
            if name in ABSOLUTE:
                assert (error / np.maximum(1, np.abs(exact[finite]))).max() <= ABSOLUTE[name], (name, source)
            else:
                unit = np.spacing(np.maximum(np.abs(expected[finite]), SMALLEST).astype(dtype))
                worst = int(np.argmax(error / unit))
                assert (error / unit)[worst] <= max(ULP[name], 0.5), (name, source, values[finite][worst])


@pytest.mark.broad_after(1)
@DTYPES
def test_functions_of_two(dtype: str) -> None:
    """All pairs of special values: between an input and a state, and between an input and a weight."""
    pairs = np.array(np.meshgrid(SPECIAL, SPECIAL)).reshape(2, -1).astype(dtype)

    @cell(output="y")
    def every(x: "I", h: "I", *, p: "I"):
        return x, functions.concat([apply(name, x, v) for v in (h, p) for name in BINARY])

    net = rnn.RNN(every, pairs.shape[1], dtype=dtype).load({"p_l0": pairs[1]})
    y, _ = rnn.compile(net)(pairs[:1, None], {"h": pairs[1:, None]})
    found = y.reshape(2, len(BINARY), -1)
    for number, name in enumerate(BINARY):
        with np.errstate(all="ignore"):
            expected = np.asarray(apply(name, *pairs), dtype)
            for got in found[:, number]:
                same = (got == expected) | (np.isnan(got) & np.isnan(expected))
                near = np.isfinite(expected) & (np.abs(got - expected) <= 4 * np.spacing(np.abs(expected)))
                assert (same | near).all(), (name, pairs[:, ~(same | near)])


@cell(states="h m", output="y")
def reductions(x: "I", h: "H", m: "H I", *, W: "H I", E: "2 H I"):
    """Every kind of reduction, of inputs, states and weights."""
    both = functions.outer(h, x) + m
    parts = [
        W @ x,
        functions.max(both, axis=0),
        functions.max(both, axis=1),
        functions.sum(both, axis=0),
        functions.max(W, axis=0),
        functions.min(x, keepdims=True),
        functions.max(h + 1.0, keepdims=True),
        functions.einsum("ghi,hi->gh", E, m).reshape(-1),
        m.T @ h,
        functions.where(x > functions.max(x), 1.0, 0.0),
    ]
    return h, m, functions.concat(parts)


@functools.cache
def reduced(dtype: str) -> tuple[rnn.RNN, rnn.Module]:
    net = rnn.RNN(reductions, 19, 5, dtype=dtype).init(0)
    return net, rnn.compile(net)


@pytest.mark.broad_after(1)
@DTYPES
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [(0,), (18,), (3, 18)], ids=str)
def test_products_and_reductions(dtype: str, value: float, place: tuple[int, ...]) -> None:
    """The first, the last and several elements; in one row only: its neighbours and the padding stay out of it."""
    net, module = reduced(dtype)
    for where in ("x", "h", "m", "W_l0", "E_l0"):
        x, state = arguments(net, 1, 3)
        weights = {n: v.copy() for n, v in net.weights.items()}
        target = {"x": x["x"], "h": state["h"], "m": state["m"], **weights}[where]
        flat = target[0, 1].reshape(-1) if where in ("x", "h", "m") else target.reshape(-1)
        flat[list(place) if where != "h" else [p % 5 for p in place]] = value
        changed = rnn.RNN(reductions, 19, 5, dtype=dtype).load(weights)
        module.load_weights(weights)
        y, _ = module(x, state)
        expected, _ = rnn.reference(changed)(x, state)
        assert_close(y, expected, dtype, 1, where)
        assert np.isfinite(y[0, [0, 2]]).all() or where.endswith("_l0")


@pytest.mark.broad
@pytest.mark.parametrize("name", ["lstm", "gru", "gru_reset_before", "slstm", "lstm_layer_norm"])
def test_special_values_in_a_cell(name: str) -> None:
    """In x, in a state and in a weight, at a step in the middle: the same elements as the oracle's become NaN."""
    net, module = compiled(name, 5, 7, num_layers=2)
    places = ("x", *(s.name for s in net.cell.states), *net.weights)
    for value, where in itertools.product((np.nan, np.inf, -np.inf, 1e-42), places):
        x, state = arguments(net, 6, 3)
        weights = {n: v.copy() for n, v in net.weights.items()}
        if where == "x":
            x["x"][2, 1, 0] = value
        elif where in state:
            state[where][1, 1].flat[0] = value
        else:
            weights[where].flat[1] = value
        other = rnn.RNN(net.cell, 5, 7, num_layers=2).load(weights)
        module.load_weights(weights)
        try:
            y, end = module(x, state)
        finally:
            module.load_weights(net.weights)
        expected, last = rnn.reference(other)(x, state)
        assert same_kinds(y, expected), where
        assert all(same_kinds(end[n], last[n]) for n in end), where


def same_kinds(found: np.ndarray, expected: np.ndarray) -> bool:
    """NaN at the same places, and equal or close elsewhere where float32 reaches."""
    with np.errstate(over="ignore"):
        cast = expected.astype(np.float32)
    return relative_error(found, cast) < 1e-5


@pytest.mark.broad
@pytest.mark.parametrize("name", ["lstm", "gru", "elman"])
def test_tiny_and_huge_inputs(name: str) -> None:
    net, module = compiled(name, 5, 7)
    drawn, _ = arguments(net, 4, 3)
    for scale in (1e-42, 1e-20, 1e10, 1e38):
        with np.errstate(over="ignore"):
            x = {"x": (drawn["x"] * np.float32(scale)).astype("float32")}
        assert same_kinds(module(x)[0], rnn.reference(net)(x)[0]), scale


def test_division_by_the_constant_zero() -> None:
    @cell(output="y")
    def divided(x: "I", h: "I"):
        return h, functions.concat([x / 0, x / -0.0])

    values = np.array([[[1.0, -2.0, 0.0, np.nan, np.inf]]], np.float32)
    y, _ = rnn.compile(rnn.RNN(divided, 5))(values)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(y[0, 0], np.concatenate([values[0, 0] / 0.0, values[0, 0] / -0.0]))


@pytest.mark.broad
def test_a_row_that_is_not_finite_does_not_reach_the_others() -> None:
    net, module = compiled("lstm", 5, 7, num_layers=2)
    x, state = arguments(net, 6, 9)
    clean, _ = module(x, state)
    for row in range(9):
        dirty = {"x": x["x"].copy()}
        dirty["x"][0, row] = np.nan
        y, _ = module(dirty, state)
        others = [b for b in range(9) if b != row]
        np.testing.assert_array_equal(y[:, others], clean[:, others])
        assert np.isnan(y[:, row]).all()
