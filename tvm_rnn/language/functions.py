"""The functions that equations are written with: NumPy's names where NumPy has them.

In: traced values (inside a cell), or NumPy arrays (in tests and gradients). Out: traced values or arrays. Primitive
ones are rows of `graph/ops.py`; the rest are composed of them and need no row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from tvm_rnn.graph.ops import TABLE, Shape

from .dims import parse_dims
from .trace import FUNCTIONS, Value, apply, drawn, fail, getitem, inserted, lift, made, removed, rows_of
from .trace import contract as _contract_traced
from .trace import einsum as _einsum_traced
from .trace import power as _power_traced

Array = Any
INTERNAL = {
    "contract",
    "correlate",
    "fixed",
    "pad",
    "padded",
    "repeat",
    "shape",
    "share_max",
    "windows",
}  # gradients alone are written with these
_builtin_sum, _builtin_max = sum, max
_HEADS = "pqrstuvw"  # letters of leading axes in products by head


def _pointwise(op: str, *operands: Array) -> Array:
    return apply(op, *operands) if _traced(*operands) else TABLE[op].numpy(*operands)


def _traced(*operands: Array) -> bool:
    return any(isinstance(v, Value) for v in operands)


def shape(x: Array) -> Shape:
    return tuple(x.shape)


class Unary(Protocol):
    """A function of one array, element by element."""

    def __call__(self, x: Array) -> Array: ...


class Binary(Protocol):
    """A function of two arrays, element by element."""

    def __call__(self, a: Array, b: Array) -> Array: ...


def _unary(name: str, meaning: str, op: str = "") -> Unary:
    def function(x: Array) -> Array:
        return _pointwise(op or name, x)

    return _known_as(name, meaning, function)


def _binary(name: str, meaning: str) -> Binary:
    def function(a: Array, b: Array) -> Array:
        return _pointwise(name, a, b)

    return _known_as(name, meaning, function)


def _known_as(name: str, meaning: str, function: Any) -> Any:
    """A function that help() shows, and that pickle finds, under its own name."""
    for key, value in (("__name__", name), ("__qualname__", name), ("__doc__", meaning)):
        setattr(function, key, value)
    return function


exp = _unary("exp", "The exponential, e to the power of x.")
expm1 = _unary("expm1", "exp(x) - 1, exact for small x.")
log = _unary("log", "The natural logarithm; NaN below 0.")
log1p = _unary("log1p", "log(1 + x), exact for small x.")
sqrt = _unary("sqrt", "The square root; NaN below 0.")
tanh = _unary("tanh", "The hyperbolic tangent.")
sigmoid = _unary("sigmoid", "1 / (1 + exp(-x)).")
relu = _unary("relu", "max(x, 0).")
softplus = _unary("softplus", "log(1 + exp(x)), without overflow.")
erf = _unary("erf", "The error function.")
sin = _unary("sin", "The sine of x in radians.")
cos = _unary("cos", "The cosine of x in radians.")
absolute = _unary("absolute", "|x|, as Python's abs().", "abs")
sign = _unary("sign", "-1, 0 or 1.")
negative = _unary("negative", "-x.", "neg")
floor = _unary("floor", "The largest whole number that is not above x; its gradient is 0.")
to_int8 = _unary("to_int8", "The nearest whole number from -128 to 127; 0 of NaN; its gradient is 0.")
to_uint8 = _unary("to_uint8", "The nearest whole number from 0 to 255; 0 of NaN; its gradient is 0.")
stop_gradient = _unary("stop_gradient", "x as a constant: its gradient is 0.")
maximum = _binary("maximum", "The larger of two arrays, element by element; NaN where either is.")
minimum = _binary("minimum", "The smaller of two arrays, element by element; NaN where either is.")
mod = _binary("mod", "The rest of a / b with the sign of b, also written a % b; NaN where b is 0.")
logical_and = _binary("logical_and", "Both of two comparisons, also written a & b.")
logical_or = _binary("logical_or", "Either of two comparisons, also written a | b.")


def where(condition: Array, a: Array, b: Array) -> Array:
    """a where the condition (a comparison) holds, else b. Both are computed."""
    return _pointwise("where", condition, a, b)


def logical_not(a: Array) -> Array:
    """Not a comparison, also written ~a."""
    return _pointwise("logical_not", a)


def power(a: Array, b: Array) -> Array:
    """a ** b. Whole exponents up to 16 become multiplications, 0.5 a square root."""
    return _power_traced(a, b) if _traced(a, b) else TABLE["power"].numpy(a, b)


def round(x: Array) -> Array:
    """The nearest whole number, the even one of two that are equally near; its gradient is 0."""
    if not _traced(x):
        return np.round(x)
    below = floor(x)
    rest = x - below  # exact; NaN of what is infinite, which stays as it is
    return below + where(rest == 0.5, mod(below, 2.0), where(rest > 0.5, 1.0, 0.0))


def square(x: Array) -> Array:
    """x x."""
    return x * x


def clip(x: Array, low: float, high: float) -> Array:
    """x held between low and high."""
    return minimum(maximum(x, low), high)


def silu(x: Array) -> Array:
    """x sigmoid(x), also called swish."""
    return x * sigmoid(x)


def gelu(x: Array) -> Array:
    """x Phi(x), the exact form with erf."""
    return 0.5 * x * (1.0 + erf(x * (0.5**0.5)))


def elu(x: Array, alpha: float = 1.0) -> Array:
    """x above 0, alpha (exp(x) - 1) below."""
    return where(x > 0.0, x, alpha * expm1(where(x > 0.0, 0.0, x)))


def leaky_relu(x: Array, slope: float = 0.01) -> Array:
    """x above 0, slope x below."""
    return where(x > 0.0, x, slope * x)


def hard_sigmoid(x: Array) -> Array:
    """clip(0.2 x + 0.5, 0, 1), as ONNX and Keras 2 have it."""
    return clip(0.2 * x + 0.5, 0.0, 1.0)


def hard_tanh(x: Array) -> Array:
    """clip(x, -1, 1)."""
    return clip(x, -1.0, 1.0)


def log_sigmoid(x: Array) -> Array:
    """log(sigmoid(x)), without overflow."""
    return -softplus(-x)


def softsign(x: Array) -> Array:
    """x / (1 + |x|)."""
    return x / (1.0 + absolute(x))


def surrogate(forward: Array, backward: Array) -> Array:
    """The value of one array with the gradient of another of its shape: surrogate(floor(x + 0.5), x) rounds straight
    through."""
    if _traced(forward, backward):
        forward, backward = lift(forward), lift(backward)
        if forward.shape != backward.shape:
            got, expected = f"{forward!r} and {backward!r}", "one shape"
            fail("surrogate: the shapes differ", got=got, expected=expected, do="repeat one by adding zeros")
    return _pointwise("surrogate", forward, backward)


def _spike(name: str, v: Array, scale: Array, slope: Callable[[], Array]) -> Array:
    """1 above 0, else 0, NaN where v is; the gradient is what `slope` makes. scale: of that, above 0."""
    number = isinstance(scale, (int, float)) and not isinstance(scale, bool)
    if number and not 0.0 < scale < np.inf:
        fail(f"{name}: the size of the gradient", got=repr(scale), expected="a number above 0")
    return surrogate(where(v > 0.0, 1.0, where(v <= 0.0, 0.0, v)), v * stop_gradient(slope()))


def fast_sigmoid_spike(v: Array, slope: float = 25.0) -> Array:
    """1 where v is above 0, else 0; the gradient is 1 / (1 + slope |v|)**2 (Zenke & Ganguli 2018)."""
    return _spike("fast_sigmoid_spike", v, slope, lambda: 1.0 / square(1.0 + slope * absolute(v)))


def atan_spike(v: Array, slope: float = 2.0) -> Array:
    """1 where v is above 0, else 0; the gradient is slope / 2 / (1 + (pi / 2 slope v)**2) (Fang et al. 2021)."""
    return _spike("atan_spike", v, slope, lambda: 0.5 * slope / (1.0 + square(0.5 * np.pi * slope * v)))


def triangle_spike(v: Array, scale: float = 0.3) -> Array:
    """1 where v is above 0, else 0; the gradient is scale max(0, 1 - |v|) (Bellec et al. 2018)."""
    return _spike("triangle_spike", v, scale, lambda: scale * relu(1.0 - absolute(v)))


def _axes(x: Array, axis: int | Sequence[int] | None) -> list[int]:
    """Normalised negative axes. For traced values None means every written axis."""
    if axis is None:
        return list(range(-len(x.shape), 0))
    rank, chosen = len(x.shape), []
    for a in [axis] if isinstance(axis, int) else axis:
        if not -rank <= a < rank:
            fail("this axis does not exist", got=f"axis={a} of {x!r}", expected=f"-{rank} to {rank - 1}")
        chosen.append(a if a < 0 else a - rank)
    return sorted(set(chosen))


def _reduce(op: str, x: Array, axis: int | Sequence[int] | None, keepdims: bool) -> Array:
    if not _traced(x):
        axes = axis if axis is None or isinstance(axis, int) else tuple(axis)
        return getattr(np, op)(x, axis=axes, keepdims=keepdims)
    chosen = _axes(x, axis)
    if op == "max" and len(chosen) > 1:
        return _max_of_several(x, chosen, keepdims)
    for a in chosen:  # from the front: removing an axis moves none of the later negative ones
        x = made(op, x, axis=a, keepdims=keepdims)
    return x


def _max_of_several(x: Array, axes: list[int], keepdims: bool) -> Array:
    """As one axis: then all places that tie share the gradient equally, wherever they lie."""
    rank, gone = len(x.shape), [a + len(x.shape) for a in axes]
    rest = [a for a in range(rank) if a not in gone]
    order = [*rest, *gone]
    joined = (x if order == sorted(order) else transpose(x, order)).reshape((*(x.shape[a] for a in rest), -1))
    top = _reduce("max", joined, -1, False)
    return reshape(top, [1 if a in gone else x.shape[a] for a in range(rank)]) if keepdims else top


def sum(x: Array, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Array:
    """Sum over written axes (default all); T and B are never summed."""
    return _reduce("sum", x, axis, keepdims)


def max(x: Array, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Array:
    """Largest element over written axes (default all); NaN where there is one."""
    return _reduce("max", x, axis, keepdims)


def min(x: Array, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Array:
    """Smallest element over written axes (default all); NaN where there is one."""
    return -max(-x, axis, keepdims)


def mean(x: Array, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Array:
    """Mean over written axes (default all)."""
    if not _traced(x):
        return np.mean(x, axis=axis if not isinstance(axis, list) else tuple(axis), keepdims=keepdims)
    count = 1
    for a in _axes(x, axis):
        count *= x.shape[a]
    return sum(x, axis, keepdims) * (1.0 / _builtin_max(count, 1))


def var(x: Array, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Array:
    """The biased variance: mean((x - mean(x))**2)."""
    centred = x - mean(x, axis, keepdims=True)
    return mean(centred * centred, axis, keepdims)


def softmax(x: Array, axis: int = -1) -> Array:
    """exp(x) divided by its sum along one axis, without overflow."""
    e = exp(x - max(x, axis, keepdims=True))
    return e / sum(e, axis, keepdims=True)


def logsumexp(x: Array, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Array:
    """log(sum(exp(x))) over written axes (default all), without overflow."""
    top = stop_gradient(max(x, axis, keepdims=True))
    top = where(absolute(top) == np.inf, 0.0, top)
    total = log(sum(exp(x - top), axis, keepdims=True)) + top
    for a in () if keepdims else _axes(x, axis):  # from the front, as in a reduction
        total = squeeze(total, a)
    return total


# What stands at other places of an axis is a sum over all places of what is chosen by comparison, so that NaN and
# infinity stay where they are: for axes of up to some hundred places.


def _one_axis(name: str, x: Array, axis: int) -> int:
    """The axis, counted from the end."""
    if not isinstance(axis, (int, np.integer)) or isinstance(axis, bool) or not len(x.shape):
        got = f"axis={axis!r} of {list(x.shape)}"
        fail(f"{name} works along one axis", got=got, expected="an axis of the array", do="reshape it to one axis")
    return _axes(x, int(axis))[0]


def _places(count: int, axis: int, x: Array) -> Array:
    """0, 1, ... along the last axis but those after `axis`."""
    found = np.arange(float(count)).reshape(-1, *[1] * (-axis - 1))
    return lift(found) if _traced(x) else found


def _pairs(x: Array, axis: int) -> tuple[Array, Array, Array, Array]:
    """For all pairs of places along an axis: the one that is summed in axis - 1, the other in `axis`; and x at both."""
    count = x.shape[axis]
    return _places(count, axis - 1, x), _places(count, axis, x), expand(x, axis), expand(x, axis - 1)


def _along(x: Array, result: Array) -> Array:
    """The result with the names of x's axes."""
    return Value(result.node, x.axes) if _traced(result) else result


def cumsum(x: Array, axis: int = -1) -> Array:
    """The sums of an axis up to each place. The work grows with the square of its size."""
    axis = _one_axis("cumsum", x, axis)
    first, second, own, _ = _pairs(x, axis)
    return _along(x, sum(where(first <= second, own, 0.0), axis - 1))


def cumprod(x: Array, axis: int = -1) -> Array:
    """The products of an axis up to each place. The work grows with the square of its size."""
    axis, distance, result = _one_axis("cumprod", x, axis), 1, x
    while distance < x.shape[axis]:  # products of 2, 4, 8 and more
        first, second, own, _ = _pairs(result, axis)
        before = sum(where(first == second - float(distance), own, 0.0), axis - 1)
        result = result * where(_places(x.shape[axis], axis, x) >= float(distance), before, 1.0)
        distance *= 2
    return _along(x, result)


def _ranks(x: Array, axis: int, descending: bool) -> Array:
    """The place of each element in order: equal ones as they stand, NaN as the largest."""
    first, second, own, other = _pairs(x, axis)

    def after(a: Array, b: Array) -> Array:
        low, high = (b, a) if not descending else (a, b)
        return logical_or(high > low, logical_and(high != high, low == low))

    earlier = where(first < second, where(after(own, other), 0.0, 1.0), where(after(other, own), 1.0, 0.0))
    return sum(earlier, axis - 1)


def _ordered(x: Array, ranks: Array, count: int, axis: int) -> Array:
    """The first `count` in order."""
    return sum(where(expand(ranks, axis) == _places(count, axis, ranks), expand(x, axis), 0.0), axis - 1)


def sort(x: Array, axis: int = -1, descending: bool = False) -> Array:
    """The elements of an axis in order; NaN counts as the largest. The work grows with the square of its size."""
    axis = _one_axis("sort", x, axis)
    return _along(x, _ordered(x, _ranks(x, axis, descending), x.shape[axis], axis))


def topk(x: Array, k: int, axis: int = -1) -> tuple[Array, Array]:
    """The k largest of an axis and their places, the largest first; of equal ones those that stand first. NaN counts as
    the largest, and the work grows with the square of the axis's size."""
    axis = _one_axis("topk", x, axis)
    if not isinstance(k, (int, np.integer)) or isinstance(k, bool) or not 1 <= k <= x.shape[axis]:
        fail("topk: so many there are not", got=f"k={k!r}", expected=f"a whole number from 1 to {x.shape[axis]}")
    ranks = _ranks(x, axis, True)
    return _ordered(x, ranks, k, axis), _ordered(_places(x.shape[axis], axis, x), ranks, k, axis)


def argmax(x: Array, axis: int | None = None, keepdims: bool = False) -> Array:
    """The place of the largest element as a number: the first of equal ones, the first NaN. It has no gradient."""
    if axis is None and len(x.shape) != 1:
        flat = argmax(reshape(x, (-1,)), -1)
        return reshape(flat, [1] * len(x.shape)) if keepdims else flat
    axis = _one_axis("argmax", x, -1 if axis is None else axis)
    hit = logical_or(x == max(x, axis, keepdims=True), x != x)
    return min(where(hit, _places(x.shape[axis], axis, x), float(x.shape[axis])), axis, keepdims)


def one_hot(places: Array, size: int) -> Array:
    """1 at each place on a new last axis of that size, else 0; a number that is no place there gives zeros."""
    if not isinstance(size, (int, np.integer)) or isinstance(size, bool) or size < 1:
        fail("one_hot: the size of the new axis", got=repr(size), expected="a whole number of at least 1")
    found = expand(places if _traced(places) else np.asarray(places), -1) == np.arange(float(size))
    return where(found, 1.0, 0.0)


def take(table: Array, places: Array) -> Array:
    """The rows of a table at computed places, also written table[places]: E[token] is an embedding. A number that is no
    place gives NaN. Of a table of parameters one row is read; of one that differs between steps or sequences the work
    grows with its size."""
    if not _traced(table, places):
        return TABLE["take"].numpy(
            np.asarray(table, float),
            np.reshape(places, (*np.shape(places), *[1] * (np.ndim(table) - 1))),
            rank=np.ndim(table),
        )
    return rows_of(lift(table), lift(places))


def random_uniform(shape: Sequence[int] | int) -> Array:
    """Random numbers of that shape (without T and B), even between 0 and 1 and neither of them: another one for each
    step, row and unit, made of the seed of the call."""
    return drawn("random_uniform", shape)


def random_normal(shape: Sequence[int] | int) -> Array:
    """Random numbers of the standard normal distribution, as `random_uniform` has those between 0 and 1 (Box & Muller
    1958)."""
    radius, angle = (drawn("random_normal", shape) for _ in range(2))
    return sqrt(-2.0 * log(radius)) * cos(2.0 * np.pi * angle)


def sample(logits: Array, temperature: Array = 1.0, axis: int = -1, keepdims: bool = False) -> Array:
    """A place of an axis, drawn with the probabilities softmax(logits / temperature); at temperature 0 the largest, as
    `argmax`. It has no gradient (the Gumbel-max trick: Maddison, Tarlow & Minka 2014)."""
    number = isinstance(temperature, (int, float)) and not isinstance(temperature, bool)
    if number and not 0.0 <= temperature < np.inf:
        fail("sample: the temperature", got=repr(temperature), expected="a number of at least 0")
    noise = -log(-log(drawn("sample", list(lift(logits).shape))))
    return argmax(logits + temperature * noise, axis, keepdims)


def layer_norm(x: Array, gain: Array = None, bias: Array = None, eps: float = 1e-5) -> Array:
    """(x - mean) / sqrt(var + eps) over the last axis, then gain and bias (Ba, Kiros, Hinton 2016, eq. 4)."""
    y = (x - mean(x, -1, keepdims=True)) / sqrt(var(x, -1, keepdims=True) + eps)
    y = y if gain is None else y * gain
    return y if bias is None else y + bias


def rms_norm(x: Array, gain: Array = None, eps: float = 1e-6) -> Array:
    """x / sqrt(mean(x**2) + eps) over the last axis, then gain (Zhang & Sennrich 2019, eq. 4)."""
    y = x / sqrt(mean(x * x, -1, keepdims=True) + eps)
    return y if gain is None else y * gain


def reshape(x: Array, to: Sequence[int]) -> Array:
    """The same elements in another shape; one size may be -1: whatever is left."""
    return x.reshape(tuple(to))


def transpose(x: Array, axes: Sequence[int] | None = None) -> Array:
    """The axes in another order; in reverse order by default."""
    return x.transpose(*(axes or ()))


def rename(x: Array, dims: str) -> Array:
    """The same array with other names for its axes, written as in an annotation: rename(x, "H"), rename(M, "N H").

    Axes of different names cannot be added or multiplied, even where their sizes agree. A number ("4"), or an
    expression ("2*H"), is an axis without a name, which goes with every axis of its size. "N? H" is "H" for a vector.
    """
    if not _traced(x):
        return x
    try:
        axes = parse_dims(dims)
    except ValueError as reason:
        fail(f"rename: {reason}", got=repr(dims), expected='dims as in an annotation, such as "H" or "N H"')
    axes = axes if len(axes.axes) == x.ndim else axes.present({})
    sizes = axes.numbers
    if len(sizes) != x.ndim or any(n not in (None, size) for n, size in zip(sizes, x.shape, strict=True)):
        fail("rename: the dims do not fit", got=f"{dims!r} for {x!r}", expected=f"{x.ndim} axes of these sizes")
    return Value(x.node, axes.labels)


def expand(x: Array, axis: int) -> Array:
    """A new axis of size 1 at position `axis` of the result."""
    rank = len(x.shape)
    if not -rank - 1 <= axis <= rank:
        fail("no new axis can be there", got=f"axis={axis} of {x!r}", expected=f"{-rank - 1} to {rank}")
    at = axis if axis >= 0 else rank + axis + 1
    if _traced(x):
        return inserted(x, at)
    return reshape(x, (*x.shape[:at], 1, *x.shape[at:]))


def squeeze(x: Array, axis: int) -> Array:
    """The array without an axis of size 1."""
    at = _one_axis("squeeze", x, axis) + len(x.shape)
    if x.shape[at] != 1:
        got = f"axis={axis} of {list(x.shape)}"
        what = "squeeze: the number of elements differs without this axis"
        fail(what, got=got, expected="an axis of size 1", do="take one place of it by an index, or its sum")
    if _traced(x):
        return removed(x, at)
    return reshape(x, (*x.shape[:at], *x.shape[at + 1 :]))


def flip(x: Array, axis: int = -1) -> Array:
    """An axis backwards, also written x[::-1]."""
    return made("flip", x, axis=_one_axis("flip", x, axis)) if _traced(x) else np.flip(x, axis)


def concat(arrays: Sequence[Array], axis: int = -1) -> Array:
    """Join along an existing axis."""
    if not _traced(*arrays):
        return np.concatenate(arrays, axis=axis)
    values = [lift(v) for v in arrays]
    if not values[0].shape:
        fail("concat needs arrays with at least one axis", got=f"{values!r}", do="use stack to join scalars")
    return made("concat", *values, axis=_axes(values[0], axis)[0])


def stack(arrays: Sequence[Array], axis: int = 0) -> Array:
    """Join along a new axis. Numbers among traced scalars are lifted."""
    values = [lift(v) for v in arrays] if _traced(*arrays) else [np.asarray(v) for v in arrays]
    rank = len(values[0].shape) + 1
    at = axis if axis < 0 else axis - rank
    return concat([expand(v, at) for v in values], at)


def split(x: Array, sections: int | Sequence[int], axis: int = -1) -> list[Array]:
    """Equal parts (an int), or parts of the given sizes."""
    size = x.shape[axis]
    if isinstance(sections, int):
        if sections <= 0 or size % sections:
            fail("split: the axis does not divide", got=f"size {size} into {sections} parts", expected="a divisor")
        sections = [size // sections] * sections
    if _builtin_sum(sections) != size or any(length < 1 for length in sections):
        got, expected = f"{list(sections)} of an axis of size {size}", f"positive sizes that sum to {size}"
        fail("split: the parts do not make up the axis", got=got, expected=expected)
    at, parts = 0, []
    for length in sections:
        key = [slice(None)] * len(x.shape)
        key[axis] = slice(at, at + length)
        parts.append(getitem(x, tuple(key)) if _traced(x) else x[tuple(key)])
        at += length
    return parts


def fixed(x: Array) -> bool:
    """A constant of the equations: nothing asks for its gradient."""
    return isinstance(x, Value) and x.node.op == "const"


def repeat(x: Array, to: Sequence[int]) -> Array:
    """The array repeated along its axes of size 1, as an operand of `to`'s shape would repeat it."""
    return made("broadcast", x, to=tuple(to)) if _traced(x) else np.broadcast_to(x, tuple(to))


def pad(x: Array, axis: int, before: int, after: int) -> Array:
    """Zeros before and after along a negative axis."""
    shape, zero = list(x.shape), np.zeros((1,) * len(x.shape))
    parts = []
    for count in (before, None, after):
        if count is None:
            parts.append(x)
        elif count:
            shape[axis] = count
            parts.append(repeat(lift(zero) if _traced(x) else zero, shape))
    return concat(parts, axis) if len(parts) > 1 else x


def padded(x: Array, amounts: Sequence[tuple[int, int]]) -> Array:
    """Zeros before and after along each of the last axes."""
    for axis, (before, after) in zip(range(-len(amounts), 0), amounts, strict=True):
        x = pad(x, axis, before, after)
    return x


def share_max(x: Array, top: Array, grad: Array, axis: int) -> Array:
    """The gradient of max: shared equally among the places that reach it."""
    hit = where(x == top, 1.0, 0.0)
    return hit * grad / sum(hit, axis, keepdims=True)


def contract(spec: str, a: Array, b: Array) -> Array:
    """einsum of two operands with no axis summed alone: what gradients of products are made of."""
    return _contract_traced(spec, a, b) if _traced(a, b) else TABLE["einsum"].numpy(a, b, spec=spec)


def windows(x: Array, taps: Shape, dilation: Shape) -> Array:
    """[C, *S] -> [C, *taps, *places]: what each tap of a kernel sees at each place."""
    how = {"taps": tuple(taps), "dilation": tuple(dilation)}
    return made("windows", x, **how) if _traced(x) else TABLE["windows"].numpy(x, **how)


def correlate(kernel: Array, x: Array, spec: str, taps: Shape, dilation: Shape) -> Array:
    """The einsum `spec` of a kernel with the windows of x."""
    how = {"spec": spec, "taps": tuple(taps), "dilation": tuple(dilation)}
    return made("conv", lift(kernel), lift(x), **how) if _traced(kernel, x) else TABLE["conv"].numpy(kernel, x, **how)


def conv(x: Array, kernel: Array, padding: str | int | Sequence[int] = "same", dilation: int = 1) -> Array:
    """The convolution of neural networks, with stride 1: x[C, L] with kernel[.., C, k], or x[C, Y, X] with
    kernel[.., C, ky, kx]. The kernel's leading axes come out: kernel[4, H, C, 3, 3] gives [4, H, Y, X].

    padding: zeros on both sides of each axis: a number, one for each axis, "same" (as many places as before) or "valid"
    (none). dilation: the distance between two taps.
    """
    if _traced(x, kernel):
        x, kernel = lift(x), lift(kernel)
    rank = len(x.shape) - 1
    if rank not in (1, 2):
        fail("conv: x has channels and one or two more axes", got=f"{x!r:.80}", expected="[C, L] or [C, Y, X]")
    if len(kernel.shape) < rank + 2:
        expected = f"an axis of results, one of channels and {rank} of taps"
        fail("conv: the kernel has too few axes", got=f"{kernel!r:.80}", expected=expected)
    if kernel.shape[-rank - 1] != x.shape[0]:
        got = f"{kernel.shape[-rank - 1]} in {kernel!r:.80}, {x.shape[0]} in {x!r:.80}"
        fail(
            "conv: the kernel and x differ in channels", got=got, do="the axis before the taps is that of x's channels"
        )
    if not isinstance(dilation, int) or isinstance(dilation, bool) or dilation < 1:
        fail("conv: the distance between two taps", got=f"dilation={dilation!r}", expected="a whole number from 1")
    taps = tuple(kernel.shape[-rank:])
    amounts = _amounts(padding, [dilation * (n - 1) for n in taps])
    padded_x = padded(x, amounts)
    if any(size <= dilation * (n - 1) for size, n in zip(padded_x.shape[1:], taps, strict=True)):
        fail("conv: the kernel is larger than the padded x", got=f"{kernel!r:.80} on {x!r:.80}", do="pad more")
    lead = "efghij"[: len(kernel.shape) - rank - 1]
    own, places = "uv"[:rank], "yx"[-rank:]
    spec = f"{lead}c{own},c{own}{places}->{lead}{places}"
    result = correlate(kernel, padded_x, spec, taps, (dilation,) * rank)
    if not _traced(result):
        return result
    kept = (n if a == b else None for n, a, b in zip(lift(x).axes[1:], x.shape[1:], result.shape[-rank:], strict=True))
    return Value(result.node, (*result.axes[: len(lead)], *kept))


def _amounts(padding: str | int | Sequence[int], spans: Sequence[int]) -> list[tuple[int, int]]:
    """Zeros before and after each axis, along which the taps span so many places."""
    if padding == "same":
        return [(span // 2, span - span // 2) for span in spans]
    if padding == "valid":
        padding = 0
    given = [padding] * len(spans) if isinstance(padding, int) else padding
    whole = not isinstance(given, str) and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in given)
    if not whole or len(given) != len(spans):
        fail("conv: padding", got=repr(padding), expected=f'"same", "valid", a number or {len(spans)} of them')
    return [(int(n), int(n)) for n in given]


def outer(a: Array, b: Array) -> Array:
    """[.., M], [.., N] -> [.., M, N]: for each head where there are leading axes."""
    return _by_head("i,j->ij", a, b)


def vecdot(a: Array, b: Array) -> Array:
    """[.., K], [.., K] -> [..]: the product of two vectors of each head."""
    return _by_head("k,k->", a, b)


def matvec(a: Array, b: Array) -> Array:
    """[.., M, K], [.., K] -> [.., M]: each head's matrix times its vector."""
    return _by_head("ak,k->a", a, b)


def vecmat(a: Array, b: Array) -> Array:
    """[.., K], [.., K, N] -> [.., N]: each head's vector times its matrix."""
    return _by_head("k,kn->n", a, b)


def _by_head(spec: str, a: Array, b: Array) -> Array:
    """einsum of the last axes, as `spec` has it; leading axes are those of operands that broadcast."""
    inputs, out = spec.split("->")
    own = inputs.split(",")
    if not _traced(a, b):
        return np.einsum(f"...{own[0]},...{own[1]}->...{out}", a, b)
    values = [lift(a), lift(b)]
    for v, letters in zip(values, own, strict=True):
        if v.ndim < len(letters):
            fail("this product needs more axes", got=repr(v), expected=f"at least {len(letters)}", do="see .shape")
    heads = [_HEADS[len(_HEADS) - v.ndim + len(letters) :] for v, letters in zip(values, own, strict=True)]
    wide = {
        c for v, lead in zip(values, heads, strict=True) for c, size in zip(lead, v.shape, strict=False) if size > 1
    }
    for place, lead in enumerate(heads):  # where the other operand has several heads, one that all share is no axis
        for axis in [i for i, c in enumerate(lead) if c in wide and values[place].shape[i] == 1][::-1]:
            values[place] = removed(values[place], axis)
            heads[place] = heads[place].replace(lead[axis], "")
    inputs = ",".join(lead + letters for lead, letters in zip(heads, own, strict=True))
    return _einsum_traced(f"{inputs}->{''.join(sorted({*heads[0], *heads[1]}))}{out}", *values)


def dot(a: Array, b: Array) -> Array:
    """[K], [K] -> a scalar."""
    return einsum("k,k->", a, b)


def matmul(a: Array, b: Array) -> Array:
    """a @ b: [.., M, K] with [K] or [K, N], [K] with [K] or [K, N]."""
    return lift(a) @ lift(b) if _traced(a, b) else np.matmul(a, b)


def einsum(spec: str, *operands: Array) -> Array:
    """NumPy's einsum over written axes, without '...' and without repeated letters in one operand."""
    return _einsum_traced(spec, *map(lift, operands)) if _traced(*operands) else np.einsum(spec, *operands)


_OWN = {name for name, f in globals().items() if getattr(f, "__module__", "") == __name__ and name.islower()}
FUNCTIONS |= {name for name in _OWN if not name.startswith("_")} - INTERNAL
