"""The functions of equations: each traced and on NumPy arrays, against a formula in NumPy alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn import CellError
from tvm_rnn.graph.graph import Node, topological
from tvm_rnn.language import functions, trace
from tvm_rnn.language.trace import Value
from tvm_rnn.oracle.reference import evaluate
from tvm_rnn.runtime import runtime_random

ROWS = 3
Function = Callable[..., Any]


def draw(*shapes: tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(ROWS, *shape)) for shape in shapes]


def traced(function: Function, *arrays: np.ndarray) -> Any:
    """The function on traced inputs of a batch of ROWS rows, evaluated."""
    leaves = [Node("input", shape=a.shape[1:], name=f"x{i}") for i, a in enumerate(arrays)]
    result = function(*map(Value, leaves))
    many = isinstance(result, list)
    nodes = [value.node for value in (result if many else [result])]
    values: dict[Node, np.ndarray] = dict(zip(leaves, arrays, strict=True))
    evaluate(list(topological(nodes)), values)
    for node in nodes:
        assert values[node].shape[values[node].ndim - len(node.shape) :] == node.shape
    found = [np.broadcast_to(values[node], (ROWS, *node.shape)) for node in nodes]
    return found if many else found[0]


def check(function: Function, formula: Function, *shapes: tuple[int, ...]) -> None:
    """Traced over a batch, and on the arrays of each row: both are the formula."""
    arrays = draw(*shapes)
    whole = traced(function, *arrays)
    for row in range(ROWS):
        own = [a[row] for a in arrays]
        expected = formula(*own)
        plain = function(*own)
        if isinstance(expected, list):
            assert len(whole) == len(expected) == len(plain)
            for part, other, want in zip(whole, plain, expected, strict=True):
                np.testing.assert_allclose(part[row], want, rtol=1e-13, atol=1e-14)
                np.testing.assert_allclose(other, want, rtol=1e-13, atol=1e-14)
        else:
            assert whole[row].shape == np.shape(expected)
            np.testing.assert_allclose(whole[row], expected, rtol=1e-13, atol=1e-14)
            np.testing.assert_allclose(plain, expected, rtol=1e-13, atol=1e-14)


def logistic(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


UNARY: dict[str, Function] = {
    "absolute": np.fabs,
    "cos": np.cos,
    "atan_spike": lambda x: np.heaviside(x, 0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "erf": np.vectorize(math.erf),
    "exp": np.exp,
    "expm1": np.expm1,
    "fast_sigmoid_spike": lambda x: np.heaviside(x, 0),
    "floor": lambda x: np.trunc(x) - (x < 0),
    "round": np.rint,
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))) / 2,
    "hard_sigmoid": lambda x: np.clip(x / 5 + 0.5, 0, 1),
    "hard_tanh": lambda x: np.clip(x, -1, 1),
    "leaky_relu": lambda x: np.where(x > 0, x, x / 100),
    "log_sigmoid": lambda x: np.log(logistic(x)),
    "negative": lambda x: -x,
    "relu": lambda x: x * (x > 0),
    "sigmoid": logistic,
    "sign": np.sign,
    "silu": lambda x: x * logistic(x),
    "sin": np.sin,
    "softplus": lambda x: np.log1p(np.exp(x)),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "square": np.square,
    "stop_gradient": lambda x: x,
    "tanh": np.tanh,
    "to_int8": lambda x: np.rint(x).clip(-128, 127),
    "to_uint8": lambda x: np.rint(x).clip(0, 255),
    "triangle_spike": lambda x: np.heaviside(x, 0),
}
OTHERS = {
    *("clip", "concat", "dot", "einsum", "expand", "layer_norm", "log", "log1p", "logical_and", "logical_not"),
    *("logical_or", "matmul", "matvec", "max", "maximum", "mean", "min", "minimum", "outer", "power", "rename"),
    *("reshape", "rms_norm", "softmax", "split", "sqrt", "squeeze", "stack", "sum", "transpose", "var", "vecdot"),
    *("argmax", "cumprod", "cumsum", "flip", "logsumexp", "mod", "one_hot", "sort", "surrogate", "topk"),
    *("conv", "random_normal", "random_uniform", "sample", "take", "vecmat", "where"),
}


def test_every_public_function_is_tested_here() -> None:
    public = {name for name in rnn.__all__ if getattr(functions, name, None) is getattr(rnn, name)}
    assert public == set(UNARY) | OTHERS


def test_advice_names_public_functions_alone() -> None:
    assert set(UNARY) | OTHERS == trace.FUNCTIONS


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("shape", [(), (7,), (2, 3)])
def test_unary(name: str, shape: tuple[int, ...]) -> None:
    check(getattr(rnn, name), UNARY[name], shape)


def test_pointwise_of_positive_numbers() -> None:
    check(lambda x: rnn.log(rnn.square(x) + 0.1), lambda x: np.log(x**2 + 0.1), (5,))
    check(lambda x: rnn.log1p(rnn.square(x)), lambda x: np.log1p(x**2), (5,))
    check(lambda x: rnn.sqrt(rnn.square(x)), np.abs, (5,))
    check(lambda x, y: rnn.power(rnn.absolute(x), y), lambda x, y: np.abs(x) ** y, (5,), (5,))


@pytest.mark.parametrize("exponent", [0.5, 1, 2, 3, 16, -1, -2, 0, 17, 2.5, np.int64(3), np.float64(2.0)])
def test_power(exponent: Any) -> None:
    check(lambda x: (rnn.absolute(x) + 0.5) ** exponent, lambda x: (np.abs(x) + 0.5) ** exponent, (4,))
    check(lambda x: rnn.power(1.5, x) + 2.0**x, lambda x: 1.5**x + 2.0**x, (4,))


def test_whole_powers_need_no_pow() -> None:
    """They stay defined for negative bases, and the compiled code calls no libm."""
    value = Value(Node("input", shape=(3,))) ** 3
    assert {n.op for n in topological([value.node])} == {"input", "mul"}
    check(lambda x: x**3, lambda x: x * x * x, (4,))


@pytest.mark.parametrize("shapes", [((4,), (4,)), ((), (4,)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((3, 1, 2), (4, 2))])
def test_binary_broadcasts_as_numpy(shapes: tuple[tuple[int, ...], ...]) -> None:
    check(rnn.maximum, np.maximum, *shapes)
    check(rnn.minimum, np.minimum, *shapes)
    check(lambda a, b: a + b - a * b / (b * b + 1.0), lambda a, b: a + b - a * b / (b * b + 1.0), *shapes)
    check(lambda a, b: rnn.where(a > b, a, 2.0), lambda a, b: np.where(a > b, a, 2.0), *shapes)

    def both(f: Any, a: Any, b: Any) -> Any:
        return f.where(f.logical_and(a >= 0.0, f.logical_not(b <= 0.0)), a, b)

    check(partial(both, rnn), partial(both, np), *shapes)


def test_operators_with_numbers_and_arrays_on_both_sides() -> None:
    table = np.arange(6.0).reshape(2, 3)
    formulas: list[Function] = [
        lambda x: 2 + x - 1,
        lambda x: 2 - x,
        lambda x: 3.0 * x / 4,
        lambda x: 1.0 / (x * x + 1.0),
        lambda x: -x + +x * np.float32(0.5),
        lambda x: abs(x),
        lambda x: table + x,
        lambda x: x - table,
        lambda x: table * x,
        lambda x: (table + 1.0) / (x * x + 1.0),
        lambda x: table @ x,
        lambda x: x @ table.T,
        lambda x: np.float64(2.0) - x,
    ]
    for formula in formulas:
        check(formula, formula, (3,))


@pytest.mark.parametrize(
    "condition",
    [
        *(f"{left} {symbol} b" for left in ("a", "1.0") for symbol in ("<", "<=", ">", ">=", "==", "!=")),
        "(a > 0.0) & ~(b > 0.0)",
        "(a > 0.0) | (b > 0.0)",
    ],
)
def test_conditions(condition: str) -> None:
    formula: Function = eval(f"lambda where, a, b: where({condition}, a, b * 2.0)")
    check(partial(formula, rnn.where), partial(formula, np.where), (5,), (5,))
    check(partial(formula, rnn.where), partial(formula, np.where), (), (5,))


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, -1, 0, 1, (0, 1), (-1, -3), [0, 2]])
def test_reductions(axis: Any, keepdims: bool) -> None:
    axes = tuple(axis) if isinstance(axis, list) else axis
    for name in ("sum", "max", "min", "mean", "var"):
        mine, numpys = getattr(rnn, name), getattr(np, name)
        check(
            lambda x, mine=mine: mine(x, axis, keepdims),
            lambda x, numpys=numpys: numpys(x, axis=axes, keepdims=keepdims),
            (2, 3, 4),
        )


def test_reduction_of_a_scalar_is_itself() -> None:
    check(rnn.sum, lambda x: x, ())
    check(rnn.mean, lambda x: x, ())


@pytest.mark.parametrize("axis", [-1, 0])
def test_softmax(axis: int) -> None:
    def formula(x: np.ndarray) -> np.ndarray:
        weights = np.exp(1000 * (x - x.max(axis, keepdims=True)))
        return np.asarray(weights / weights.sum(axis, keepdims=True))

    check(lambda x: rnn.softmax(1000.0 * x, axis), formula, (3, 4))


def test_layer_norm_and_clip() -> None:
    def formula(x: np.ndarray, gain: np.ndarray, bias: np.ndarray, eps: float = 1e-5) -> np.ndarray:
        return np.asarray((x - x.mean(-1)[..., None]) / np.sqrt(x.std(-1)[..., None] ** 2 + eps) * gain + bias)

    check(rnn.layer_norm, formula, (7,), (7,), (7,))
    check(lambda x: rnn.layer_norm(x, eps=0.1), lambda x: formula(x, np.ones(4), np.zeros(4), 0.1), (2, 4))
    check(lambda x: rnn.clip(x, -0.1, 0.3), lambda x: np.clip(x, -0.1, 0.3), (9,))
    check(lambda x: rnn.elu(x, 0.3), lambda x: np.where(x > 0, x, 0.3 * np.expm1(x)), (9,))
    check(lambda x: rnn.leaky_relu(x, 0.3), lambda x: np.where(x > 0, x, 0.3 * x), (9,))


def test_products() -> None:
    check(rnn.outer, np.outer, (3,), (4,))
    check(rnn.dot, np.dot, (3,), (3,))
    left: tuple[int, ...]
    right: tuple[int, ...]
    for left, right in (((3, 4), (4,)), ((3, 4), (4, 2)), ((4,), (4, 2)), ((4,), (4,)), ((2, 3, 4), (4, 5))):
        check(rnn.matmul, np.matmul, left, right)
        check(lambda a, b: a @ b, np.matmul, left, right)
    check(rnn.matmul, np.matmul, (2, 3, 4), (2, 4, 5))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((), ()),
        ((5,), (5,)),
        ((5, 2), (5, 2)),
        ((5, 1), (5, 2)),
        ((2,), (5, 1)),
        ((5, 1), (1, 2)),
        ((1,), (1,)),
        ((), (5,)),
    ],
)
def test_products_by_head(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    """Leading axes are heads, which broadcast as NumPy's do."""
    check(rnn.vecdot, lambda a, b: np.asarray((a * b).sum(-1)), (*left, 3), (*right, 3))
    check(rnn.matvec, lambda a, b: (a * b[..., None, :]).sum(-1), (*left, 4, 3), (*right, 3))
    check(rnn.vecmat, lambda a, b: (a[..., None] * b).sum(-2), (*left, 3), (*right, 3, 4))
    check(rnn.outer, lambda a, b: a[..., :, None] * b[..., None, :], (*left, 3), (*right, 4))


@pytest.mark.parametrize("padding", ["same", "valid", 1, (2, 0)], ids=str)
@pytest.mark.parametrize("dilation", [1, 2])
def test_conv(padding: Any, dilation: int) -> None:
    """Tap by tap; the kernel's leading axes come out."""
    around = {"same": ((0, 1), (1, 1)), "valid": ((0, 0), (0, 0)), 1: ((1, 1), (1, 1))}.get(padding, ((2, 2), (0, 0)))
    if padding == "same":
        around = ((dilation // 2, dilation - dilation // 2), (dilation, dilation))

    def formula(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        wide = np.pad(x, ((0, 0), *around))
        height, width = wide.shape[1] - dilation, wide.shape[2] - 2 * dilation
        total = np.zeros((3, 4, height, width))
        for v, u in np.ndindex(2, 3):
            seen = wide[:, v * dilation : v * dilation + height, u * dilation : u * dilation + width]
            total += np.einsum("ghc,cyx->ghyx", kernel[..., v, u], seen)
        return total

    check(lambda x, kernel: rnn.conv(x, kernel, padding, dilation), formula, (2, 6, 5), (3, 4, 2, 2, 3))


def test_conv_of_a_line_is_that_of_an_image_of_one_row() -> None:
    x, kernel = np.arange(12.0).reshape(2, 6), np.arange(24.0).reshape(4, 2, 3)
    for padding in ("same", "valid"):
        image = rnn.conv(x[:, None], kernel[:, :, None], padding)
        np.testing.assert_array_equal(rnn.conv(x, kernel, padding), image[:, 0])


def test_conv_keeps_the_names_of_axes_of_unchanged_size() -> None:
    x = Value(Node("input", shape=(2, 6, 5)), ("C", "Y", "X"))
    kernel = Value(Node("param", shape=(4, 2, 3, 1)), ("H", "C", None, None))
    assert rnn.conv(x, kernel).axes == ("H", "Y", "X")
    assert rnn.conv(x, kernel, "valid").axes == ("H", None, "X")
    with pytest.raises(CellError, match="axes of different names meet"):
        rnn.conv(x, rnn.rename(kernel, "H D 3 1"))


def test_products_by_head_are_products_of_the_table() -> None:
    """Heads that share an operand do not repeat it: one einsum, which reads it as it is."""
    a, b = (Value(Node("input", shape=shape)) for shape in ((2, 1, 4, 3), (2, 5, 3)))
    node = rnn.matvec(a, b).node
    assert (node.op, node.attrs["spec"]) == ("einsum", "vak,vwk->vwa")
    assert (
        rnn.matvec(Value(Node("input", shape=(4, 3))), Value(Node("input", shape=(3,)))).node.attrs["spec"] == "ak,k->a"
    )


def test_rms_norm() -> None:
    def formula(x: np.ndarray, gain: np.ndarray, eps: float = 1e-6) -> np.ndarray:
        return np.asarray(x / np.sqrt(np.square(x).sum(-1, keepdims=True) / x.shape[-1] + eps) * gain)

    check(rnn.rms_norm, formula, (2, 7), (7,))
    check(lambda x: rnn.rms_norm(x, eps=0.1), lambda x: formula(x, np.ones(4), 0.1), (2, 4))


def test_new_axes_side_by_side_are_one_reshape() -> None:
    value = Value(Node("input", shape=(3,)), ("N",))[..., None, None]
    assert (value.shape, value.axes, value.node.args[0].op) == ((3, 1, 1), ("N", None, None), "input")


def test_a_reshape_to_the_same_shape_is_none() -> None:
    value = Value(Node("input", shape=(3,)), ("H",))
    assert value.reshape(-1).node is value.node and value.reshape(-1).axes == (None,)


@pytest.mark.parametrize(
    "key",
    [
        *("0", "-1", "np.int64(1)", "1:", ":-1", "-2:", "...", "None", "1, 2", "1:3, 1", ":, -2:"),
        *("..., :2", "..., -1", "0, ..., 1", "1, None", ":, None", "..., None, 1:3", "..., 0, None, :2"),
        *("::2", "::-1", "::3", "::4", "::9", "3::-2", ":, 1::2", ":, 4:0:-3", "-1:-4:-1, ..., ::-1", "2:1:-1"),
        *("[2, 0, 1]", "[-1]", ":, [1, 1, 4, -5]", "..., np.array([2, 1, 0])", "None, [3, 1], 1:, ::2", "[0, 1, 2, 3]"),
    ],
)
def test_indexing(key: str) -> None:
    formula = eval(f"lambda x: x[{key}]", {"np": np})
    check(formula, formula, (4, 5, 3))


def test_a_list_becomes_runs_of_neighbours() -> None:
    runs = trace._runs([4, 5, 6, 2, 1, 0, 7, 7, 9, 8])
    assert runs == [range(4, 7), range(2, -1, -1), range(7, 8), range(7, 8), range(9, 7, -1)]
    value = Value(Node("input", shape=(9,)))
    assert [n.op for n in topological([value[[0, 1, 2, 3, 4, 5, 6, 7, 8]].node])] == ["input"]
    assert [n.op for n in topological([value[::-1].node])] == ["input", "flip"]


@pytest.mark.parametrize("axis", [-1, 0, 1, 2])
def test_along_an_axis(axis: int) -> None:
    shape = (3, 5, 4)
    for name in ("cumsum", "cumprod", "sort", "flip"):
        mine, numpys = getattr(rnn, name), getattr(np, name)
        check(partial(mine, axis=axis), partial(numpys, axis=axis), shape)
        check(partial(mine, axis=0), partial(numpys, axis=0), (1,))
    check(lambda x: rnn.sort(x, axis, descending=True), lambda x: -np.sort(-x, axis), shape)

    def largest(x: np.ndarray) -> np.ndarray:
        return np.take(-np.sort(-x, axis), [0, 1], axis)

    check(lambda x: rnn.topk(x, 2, axis)[0], largest, shape)
    check(lambda x: rnn.topk(x, 2, axis)[1], lambda x: np.take(np.argsort(-x, axis), [0, 1], axis), shape)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, -1, 0])
def test_argmax_and_logsumexp(axis: Any, keepdims: bool) -> None:
    options: dict[str, Any] = {"axis": axis, "keepdims": keepdims}
    check(lambda x: rnn.argmax(x, **options), lambda x: np.argmax(x, **options), (3, 4))
    check(lambda x: rnn.logsumexp(x, **options), lambda x: np.log(np.sum(np.exp(x), **options)), (3, 4))


def test_one_hot_and_mod() -> None:
    check(lambda x: rnn.one_hot(rnn.argmax(x), 5), lambda x: np.eye(5)[np.argmax(x)], (5,))
    check(lambda x: rnn.one_hot(rnn.argmax(x, 1), 5), lambda x: np.eye(5)[np.argmax(x, 1)], (2, 5))
    check(lambda x: rnn.one_hot(x, 3), lambda x: np.zeros((2, 3)), (2,))
    assert rnn.one_hot(1, 3).tolist() == [0.0, 1.0, 0.0]
    check(rnn.mod, np.mod, (7,), (7,))
    check(lambda x: x % 0.3 + 2.0 % x, lambda x: np.mod(x, 0.3) + np.mod(2.0, x), (7,))
    check(lambda x: np.arange(7.0) % x, lambda x: np.mod(np.arange(7.0), x), (7,))
    check(lambda x, y: rnn.surrogate(x, y), lambda x, y: x, (7,), (7,))


def test_rows_of_a_table() -> None:
    table = np.arange(15.0).reshape(5, 3) ** 2
    check(lambda x: rnn.take(table, rnn.argmax(x)), lambda x: table[np.argmax(x)], (5,))
    check(lambda x: rnn.take(table, rnn.argmax(x, 1)), lambda x: table[np.argmax(x, 1)], (2, 5))
    check(lambda x: rnn.take(table[:, 0], x), lambda x: x * np.nan, (4,))
    assert rnn.take([1.0, 2.0], 1) == 2.0


def test_rows_of_a_table_that_changes() -> None:
    """Of one value at the places that another holds: the rows are NumPy's, and NaN where there is no such place."""
    for places in (np.array([4.0, 0.0, 2.0]), np.array([[0.0, 3.0], [3.0, 3.0], [1.0, 4.0]])):
        for shape in ((5,), (5, 3), (5, 2, 3)):
            (table,) = draw(shape)
            found = traced(lambda t, p: t[p], table, places)
            for own, at, rows in zip(table, places.astype(int), found, strict=True):
                assert (rows == own[at]).all()
    wild = np.array([[np.nan, 1.0, np.inf, -np.inf]] * ROWS)
    found = traced(rnn.take, wild, np.array([np.arange(-1.0, 5.0)] * ROWS))
    assert np.array_equal(found[0], [np.nan, *wild[0], np.nan], equal_nan=True)
    assert np.isnan(traced(rnn.take, wild, np.array([[0.5, np.nan, np.inf, -np.inf]] * ROWS))).all()


def test_random_numbers_are_those_of_their_streams() -> None:
    """Numbers of the counters; a normal distribution of two streams, a sample by the largest of noisy logits."""

    @rnn.cell(output="y")
    def drawing(x: "I", h: "H") -> Any:
        u, n = rnn.random_uniform(h.shape), rnn.random_normal((2,))
        s = [rnn.sample(x, t, keepdims=True) for t in (0, 1.0, x[0])]
        return h + 0.0 * rnn.sum(x), rnn.concat([u, n, *s])

    net = rnn.RNN(drawing, 4, 3)
    assert net.draws == [f"random.{i}" for i in range(6)]
    x = np.random.default_rng(0).normal(size=(3, 200, 4))
    y, _ = rnn.reference(net, seed=5, first_step=2)(x)
    for t in range(3):
        streams = [
            runtime_random.uniform(runtime_random.key(5, name, 0, 0), 200, units, 2 + t)
            for name, units in zip(net.draws, (3, 2, 2, 4, 4, 4), strict=True)
        ]
        normal = np.sqrt(-2 * np.log(streams[1])) * np.cos(2 * np.pi * streams[2])
        noise = [-np.log(-np.log(u)) for u in streams[3:]]
        warm = (0.0, 1.0, x[t, :, :1])
        chosen = [np.argmax(x[t] + w * n, 1)[:, None] for w, n in zip(warm, noise, strict=True)]
        np.testing.assert_allclose(y[t], np.concatenate([streams[0], normal, *chosen], 1), rtol=1e-12)
    counts = np.bincount(rnn.reference(net, seed=1)(np.zeros((99, 99, 4)))[0][..., 6].astype(int).ravel())
    assert np.abs(counts / 99**2 - 0.25).max() < 0.02


ODD = [[np.nan, 1.0, np.inf, np.nan], [1.0, -np.inf, 1.0, 1.0], [np.inf] * 4, [-np.inf] * 4, [0.0, 2.0, np.inf, 2.0]]


@pytest.mark.parametrize("values", ODD, ids=str)
def test_nan_and_infinity_along_an_axis(values: list[float]) -> None:
    """Where NumPy has them, in cells and of arrays."""
    row = np.array([values] * ROWS)
    formulas: list[tuple[Function, Function]] = [
        (rnn.cumsum, np.cumsum),
        (rnn.cumprod, np.cumprod),
        (rnn.sort, np.sort),
        (rnn.argmax, np.argmax),
        (rnn.logsumexp, np.logaddexp.reduce),
        (lambda x: rnn.topk(x, 4)[0], lambda x: np.sort(x)[::-1]),
        (lambda x: rnn.one_hot(x, 3), lambda x: np.array([np.arange(3) == v for v in x])),
        (rnn.atan_spike, lambda x: np.heaviside(x, 0)),
    ]
    with np.errstate(all="ignore"):
        for mine, numpys in formulas:
            for found in (traced(mine, row)[0], mine(row[0])):
                np.testing.assert_allclose(found, numpys(row[0]), rtol=1e-15)


def test_iteration_and_length() -> None:
    check(lambda x: list(x), lambda x: list(x), (3, 2))
    check(lambda x: [v for pair in x for v in pair], lambda x: [v for pair in x for v in pair], (2, 2))
    assert len(Value(Node("input", shape=(3, 2)))) == 3


def test_moves() -> None:
    check(lambda x: x.reshape(-1), np.ravel, (2, 3, 4))
    check(lambda x: x.reshape(4, -1), lambda x: x.reshape(4, 6), (2, 3, 4))
    check(lambda x: x.reshape((6, 4)), lambda x: x.reshape(6, 4), (2, 3, 4))
    check(lambda x: rnn.reshape(x, (4, 6)), lambda x: x.reshape(4, 6), (2, 3, 4))
    check(lambda x: x.T, lambda x: x.T, (2, 3, 4))
    check(lambda x: x.transpose(-1, 0, 1), lambda x: np.moveaxis(x, -1, 0), (2, 3, 4))
    check(lambda x: rnn.transpose(x, (1, 0)), np.transpose, (2, 3))
    check(rnn.transpose, np.transpose, (2, 3))
    for axis in (-1, -2, -3, 0, 1, 2):
        check(partial(rnn.expand, axis=axis), partial(np.expand_dims, axis=axis), (2, 3))
        check(
            lambda x, axis=axis: rnn.stack([x, x + 1.0], axis),
            lambda x, axis=axis: np.stack([x, x + 1], axis),
            (2, 3),
        )
    check(lambda x: rnn.squeeze(x, 1), lambda x: np.squeeze(x, 1), (2, 1, 3))
    check(lambda x: rnn.squeeze(x, -1), lambda x: np.squeeze(x, -1), (2, 1))


def test_concat_and_split() -> None:
    for axis in (-1, 1):
        check(lambda a, b, axis=axis: rnn.concat([a, b, a], axis), lambda a, b: np.hstack([a, b, a]), (2, 3), (2, 1))
    check(lambda a, b: rnn.concat([a, b], 0), lambda a, b: np.vstack([a, b]), (2, 3), (1, 3))
    check(lambda a: rnn.concat([a, np.ones(2)]), lambda a: np.append(a, [1, 1]), (3,))
    check(lambda a: rnn.stack([a, 0.5]), lambda a: np.stack([a, np.float64(0.5)]), ())
    check(lambda x: rnn.split(x, 3), lambda x: np.split(x, 3, -1), (2, 6))
    check(lambda x: rnn.split(x, [1, 2, 3]), lambda x: np.split(x, [1, 3], -1), (2, 6))
    check(lambda x: rnn.split(x, 2, 0), lambda x: np.split(x, 2, 0), (2, 6))


def test_concat_of_a_parameter_and_an_input() -> None:
    """A value without a batch axis beside one with it."""
    leaf, param = Node("input", shape=(2,)), Node("param", shape=(3,), name="w")
    node = rnn.concat([Value(param), Value(leaf)]).node
    values = {leaf: np.ones((5, 2)), param: np.zeros(3)}
    evaluate(list(topological([node])), values)
    assert values[node].shape == (5, 5) and values[node].sum() == 10


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: rnn.sum(x, 2), "axis does not exist"),
        (lambda x: rnn.cumsum(x, 2), "axis does not exist"),
        (lambda x: rnn.cumsum(x, None), "cumsum works along one axis"),
        (lambda x: rnn.cumprod(x, (0, 1)), "cumprod works along one axis"),
        (lambda x: rnn.sort(rnn.sum(x)), "sort works along one axis"),
        (lambda x: rnn.flip(x, True), "flip works along one axis"),
        (lambda x: rnn.argmax(x, (0, 1)), "argmax works along one axis"),
        (lambda x: rnn.argmax(x, 2), "axis does not exist"),
        (lambda x: rnn.logsumexp(x, 2), "axis does not exist"),
        (lambda x: rnn.topk(x, 4), "so many there are not"),
        (lambda x: rnn.topk(x, 1.0), "so many there are not"),
        (lambda x: rnn.one_hot(x, 0), "size of the new axis"),
        (lambda x: rnn.one_hot(x > 0.0, 3), "wrong kind"),
        (lambda x: rnn.one_hot(x, x), "size of the new axis"),
        (lambda x: rnn.take(x, x > 0.0), "index by a truth value"),
        (lambda x: rnn.take(1.0, x), "a scalar has no rows"),
        (lambda x: rnn.take(np.eye(3), x > 0.0), "index by a truth value"),
        (lambda x: x[x > 0.0], "index by a truth value"),
        (lambda x: x + rnn.random_uniform(x), "this is no shape"),
        (lambda x: x + rnn.random_uniform(0), "this is no shape"),
        (lambda x: x + rnn.random_normal((2.0,)), "whole number"),
        (lambda x: x + rnn.sample(x, -1.0), "sample: the temperature"),
        (lambda x: x + rnn.sample(x, np.inf), "sample: the temperature"),
        (lambda x: rnn.surrogate(x, x[0]), "the shapes differ"),
        (lambda x: rnn.surrogate(x > 0.0, x), "wrong kind"),
        (lambda x: rnn.stop_gradient(x > 0.0), "wrong kind"),
        (lambda x: rnn.floor(x > 0.0), "wrong kind"),
        (lambda x: rnn.mod(x, x > 0.0), "wrong kind"),
        (lambda x: rnn.atan_spike(x > 0.0), "wrong kind"),
        (lambda x: rnn.fast_sigmoid_spike(x, -1.0), "the size of the gradient"),
        (lambda x: rnn.triangle_spike(x, 0.0), "the size of the gradient"),
        (lambda x: rnn.expand(x, 5), "no new axis can be there"),
        (lambda x: rnn.cumsum(x, None), "along one axis"),
        (lambda x: rnn.cumprod(x, 2), "axis does not exist"),
        (lambda x: rnn.flip(x, 2), "axis does not exist"),
        (lambda x: x[[]], "no list of places"),
        (lambda x: x[[[0], [1]]], "no list of places"),
        (lambda x: x[[True, False]], "no list of places"),
        (lambda x: x[[0.0, 1.0]], "no list of places"),
        (lambda x: x[0, [0, 1]], "no list of places"),
        (lambda x: x[[0, 1], [0, 1]], "no list of places"),
        (lambda x: x[[0, 2]], "an index by a list"),
        (lambda x: x[[0, -3]], "an index by a list"),
        (lambda x: x[[0, 0] * 40], "a list of 80 runs"),
        (lambda x: x[1:1:-1], "is not inside an axis"),
        (lambda x: rnn.concat([x, x], 2), "axis does not exist"),
        (lambda x: rnn.concat([rnn.sum(x), 1.0]), "at least one axis"),
        (lambda x: rnn.concat([x, x[:, :2]], 0), "differ outside the joined axis"),
        (lambda x: rnn.split(x, 2), "does not divide"),
        (lambda x: rnn.split(x, 0), "does not divide"),
        (lambda x: rnn.split(x, [1, 1]), "do not make up the axis"),
        (lambda x: rnn.split(x, [4, -1]), "do not make up the axis"),
        (lambda x: rnn.reshape(x, (5, -1)), "the number of elements differs"),
        (lambda x: rnn.reshape(x, (-1, -1)), "the number of elements differs"),
        (lambda x: rnn.squeeze(x, 0), "the number of elements differs"),
        (lambda x: rnn.transpose(x, (0, 0)), "not an order of the axes"),
        (lambda x: rnn.matmul(x, x), "the inner sizes differ"),
        (lambda x: rnn.matmul(x, 2.0), "needs arrays, not scalars"),
        (lambda x: rnn.matvec(x, x.T), "axis 'k' has sizes 3 and 2"),
        (lambda x: rnn.matvec(x[0], x[0]), r"needs more axes[\s\S]*at least 2"),
        (lambda x: rnn.vecdot(x, 2.0), r"needs more axes[\s\S]*at least 1"),
        (lambda x: rnn.vecdot(x, x.T), "axis 'w' has sizes 2 and 3"),
        (lambda x: rnn.outer(x, x.T), "has sizes 2 and 3"),
        (lambda x: rnn.vecmat(x, x), "has sizes 3 and 2"),
        (lambda x: rnn.where(x, x, x), "wrong kind"),
        (lambda x: rnn.conv(x[0], np.ones((2, 2, 3))), r"one or two more axes"),
        (lambda x: rnn.conv(x[:, None, None], np.ones((2, 2, 3))), r"one or two more axes"),
        (lambda x: rnn.conv(x, np.ones((2, 2))), "the kernel has too few axes"),
        (lambda x: rnn.conv(x, np.ones((4, 3, 2))), "the kernel and x differ in channels"),
        (lambda x: rnn.conv(x, np.ones((4, 2, 5)), "valid"), "larger than the padded x"),
        (lambda x: rnn.conv(x, np.ones((4, 2, 2)), "full"), "conv: padding"),
        (lambda x: rnn.conv(x, np.ones((4, 2, 2)), -1), "conv: padding"),
        (lambda x: rnn.conv(x, np.ones((4, 2, 2)), (1, 1)), "conv: padding"),
        (lambda x: rnn.conv(x, np.ones((4, 2, 2)), dilation=0), "the distance between two taps"),
        (lambda x: rnn.conv(x > 0.0, np.ones((4, 2, 2))), "a truth value among numbers"),
        (lambda x: rnn.tanh(x > 0.0), "wrong kind"),
    ],
)
def test_refused(call: Function, text: str) -> None:
    """Every refusal is a CellError; where it points is tested in tests/errors."""
    with pytest.raises(CellError, match=text):
        call(Value(Node("input", shape=(2, 3), name="x")))
