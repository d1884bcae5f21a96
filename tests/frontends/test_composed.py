"""Operations that come to others: NumPy's results in every dtype, for odd numbers too, of inputs and of constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tvm_rnn.frontends.composed import COMPOSED
from tvm_rnn.frontends.fields import Unreadable
from tvm_rnn.frontends.folding import Steps
from tvm_rnn.network.program import Declared
from tvm_rnn.runtime.runtime_ops import OPERATIONS

Array = np.ndarray
ODD = [0.0, -0.0, 1.5, -2.5, 0.5, 4.0, -4.0, 1e4, np.inf, -np.inf, np.nan]
RNG = np.random.default_rng(0)


def ran(op: str, *given: Array, **attributes: object) -> Array:
    """What the steps make; of constants the same."""
    declared = [Declared(f"x{i}", value.dtype.name, value.shape) for i, value in enumerate(given)]
    steps = Steps(declared)
    steps.dtypes = {own.name: own.dtype for own in declared}
    steps.add_named(op, [own.name for own in declared], "y", op, **attributes)
    values: dict[str, Any] = {own.name: value for own, value in zip(declared, given, strict=True)} | steps.constants
    with np.errstate(all="ignore"):
        for step in steps.steps:
            values[step.outputs[0]] = OPERATIONS[step.op]([values[name] for name in step.inputs], step.attributes)
    (known,) = Steps().compute(op, given, attributes)
    np.testing.assert_array_equal(values["y"], known)
    found: Array = values["y"]
    return found


POINTWISE: list[tuple[str, dict[str, Any], Callable[[Array], Array]]] = [
    ("HardSigmoid", {"alpha": 0.3}, lambda x: np.clip(0.3 * x + 0.5, 0, 1)),
    ("HardSwish", {}, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    ("Softsign", {}, lambda x: x / (1 + np.abs(x))),
    ("ThresholdedRelu", {"alpha": 0.5}, lambda x: np.where(x <= 0.5, 0, x)),
    ("Gelu", {}, lambda x: 0.5 * x * (1 + OPERATIONS["Erf"]([x * np.sqrt(0.5)], {}))),
    ("Gelu", {"approximate": "tanh"}, lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))),
    ("Selu", {}, lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0)))),
    ("PRelu", {}, lambda x: np.where(x >= 0, x, 0.25 * x)),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("op", "attributes", "expected"), POINTWISE, ids=[f"{op} {a}" for op, a, _ in POINTWISE])
def test_pointwise(op: str, attributes: Any, expected: Callable[[Array], Array], dtype: str) -> None:
    x = np.array(ODD, dtype)
    given = (x, np.full(1, 0.25, dtype)) if op == "PRelu" else (x,)
    found = ran(op, *given, **attributes)
    with np.errstate(all="ignore"):
        wanted = expected(x.astype("float64"))
    assert found.dtype == dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-5 if dtype == "float32" else 1e-12, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_sums(dtype: str) -> None:
    x = RNG.integers(-9, 9, (3, 4, 5)).astype(dtype)
    axes = np.array([0, -1])
    for op, expected in (
        ("ReduceSumSquare", (x * x).sum((0, 2), keepdims=True)),
        ("ReduceL1", np.abs(x).sum((0, 2), keepdims=True)),
        ("ReduceL2", np.sqrt((x.astype("f8") ** 2).sum((0, 2), keepdims=True)).astype(dtype)),
    ):
        for given, attributes in (([x, axes], {}), ([x], {"axes": [0, 2]})):
            found = ran(op, *given, **attributes)
            assert found.dtype == dtype
            np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_any_number_of_operands() -> None:
    a, b, c = (RNG.normal(size=shape).astype("f4") for shape in ((2, 3), (3,), (2, 1)))
    for op, expected in (
        ("Sum", a + b + c),
        ("Max", np.maximum(np.maximum(a, b), c)),
        ("Min", np.minimum(np.minimum(a, b), c)),
        ("Mean", (a + b + c) / 3),
    ):
        np.testing.assert_allclose(ran(op, a, b, c), expected, rtol=1e-6)
        np.testing.assert_array_equal(ran(op, a), a)
    np.testing.assert_array_equal(ran("Max", a, b), np.maximum(a, b))


def test_products() -> None:
    a, b, c = (RNG.normal(size=shape) for shape in ((3, 4), (4, 2), (2,)))
    np.testing.assert_allclose(ran("Gemm", a, b), a @ b)
    np.testing.assert_allclose(ran("Gemm", a, b, alpha=0.5), 0.5 * (a @ b))
    np.testing.assert_allclose(ran("Gemm", a, b, c, beta=2.0), a @ b + 2 * c)
    np.testing.assert_allclose(ran("Gemm", a.T, b.T, c, transA=1, transB=1, alpha=3.0), 3 * (a @ b) + c)


def test_a_dtype_that_is_not_known() -> None:
    with pytest.raises(Unreadable, match="the dtype of 'x' is not known"):
        Steps().emit("Softsign", ["x"], "node")


def test_what_comes_to_others_is_no_row() -> None:
    assert COMPOSED.keys() & OPERATIONS.keys() == {"Max", "Min"}
