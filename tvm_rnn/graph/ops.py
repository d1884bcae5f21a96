"""The op table: one row per primitive, with its shape rule, NumPy meaning, scalar expression and gradient.

In: the names that `language/functions.py` and `language/trace.py` use. Out: everything else reads this table: the
oracle runs the NumPy column, `cpu/lower_network.py` builds tensor expressions from the expression column, BPTT uses the
gradient column. To add an op, add one row (and, if users should write it, its name in `language/functions.py`).

Shapes never contain T or B: those axes are implicit and leading. All `axis` attributes are negative for that reason.
Pointwise operands have equal rank (tracing inserts reshapes), so NumPy's broadcasting does the rest. Rows of kind
`total` sum over T and B: they make what weights' gradients begin with, and cells cannot write them. The row of kind
`random` is a mask, made of counters (`runtime_random.py`); `network/regularise.py` writes it.

Gradients are those of torch, also at ties, at NaN and at infinity: a value that is not chosen gets 0, whatever comes
from above; equal operands of maximum share, but a constant leaves all to the other, as in clamp.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_rnn.runtime import runtime_random

from . import gradients, scalar

Shape = tuple[int, ...]
Array = Any  # a NumPy array in the oracle, a traced Value in a gradient
Gradient = Callable[..., Sequence[Array | None]]


@dataclass(frozen=True)
class Op:
    """One primitive.

    shape(*arg_shapes, **attrs): the result's shape; raises ValueError(reason) where the operands do not fit.
    numpy(*args, **attrs): the meaning, on arrays whose trailing axes are the op's axes; leading axes are batch.
    gradient(f, grad, out, args, **attrs): the gradient for each argument before un-broadcasting (None: no gradient);
        `f` is the namespace of op functions, so that a gradient is itself made of rows of this table.
    expression(*scalars): pointwise ops only: TVM scalar expressions in, one out; their dtype decides the algorithm.
    cost: FLOPs per element, for reports.
    """

    name: str
    arity: int | None
    shape: Callable[..., Shape]
    numpy: Callable[..., Array]
    gradient: Gradient | None
    expression: Callable[..., Any] | None = None
    kind: str = "pointwise"  # pointwise | move | reduce | contract | total | random
    boolean: bool = False  # the result is a truth value
    cost: int = 1


def broadcast(*shapes: Shape) -> Shape:
    """The common shape of operands of equal rank, or ValueError with the axis that does not fit."""
    for axis in range(len(shapes[0])):
        sizes = {shape[axis] for shape in shapes} - {1}
        if len(sizes) > 1:
            raise ValueError(f"axis {axis} has sizes {' and '.join(str(s[axis]) for s in shapes)}")
    return tuple(next((s[a] for s in shapes if s[a] != 1), 1) for a in range(len(shapes[0])))


def reduced(shape: Shape, *, axis: int, keepdims: bool) -> Shape:
    """The shape after a sum or max over one negative axis, which must not be empty."""
    if shape[axis] == 0:
        raise ValueError("the axis is empty")
    kept = list(shape)
    kept[axis] = 1
    if not keepdims:
        del kept[axis]
    return tuple(kept)


def sliced(shape: Shape, *, axis: int, start: int, stop: int) -> Shape:
    """The shape with start:stop of one negative axis; at least one element, inside the axis."""
    if not 0 <= start < stop <= shape[axis]:
        raise ValueError(f"{start}:{stop} is not inside an axis of size {shape[axis]}")
    return (*shape[:axis], stop - start, *shape[len(shape) + axis + 1 :])


def indexed(shape: Shape, *, axis: int, at: int) -> Shape:
    """The shape without one negative axis, of which place `at` (not negative) is taken."""
    if not 0 <= at < shape[axis]:
        raise ValueError(f"index {at} is not inside an axis of size {shape[axis]}")
    return tuple(size for i, size in enumerate(shape) if i != len(shape) + axis)


def concatenated(*shapes: Shape, axis: int) -> Shape:
    """The shape of operands joined along a negative axis; their other axes are equal."""
    rest = {tuple(s for i, s in enumerate(shape) if i != len(shape) + axis) for shape in shapes}
    if len(rest) > 1 or len({len(s) for s in shapes}) > 1:
        raise ValueError("the operands differ outside the joined axis")
    first = shapes[0]
    return (*first[:axis], sum(s[axis] for s in shapes), *first[len(first) + axis + 1 :])


def reshaped(shape: Shape, *, rank: int, to: Shape) -> Shape:
    """The shape `to`, of as many elements; `rank` is that of the operand, so that NumPy finds its batch axes."""
    if np.prod(shape, dtype=int) != np.prod(to, dtype=int) or rank != len(shape) or any(size < 0 for size in to):
        raise ValueError(f"{np.prod(shape, dtype=int)} elements cannot become {to}")
    return to


def broadcasted(shape: Shape, *, to: Shape) -> Shape:
    """The shape `to`, of equal rank, that an operand is repeated to along its axes of size 1."""
    if len(shape) != len(to) or any(own not in (1, size) for own, size in zip(shape, to, strict=True)):
        raise ValueError(f"{shape} cannot be repeated to {to}")
    return to


def transposed(shape: Shape, *, axes: Sequence[int]) -> Shape:
    """The shape in another order of axes, counted from 0 without T and B."""
    if sorted(axes) != list(range(len(shape))):
        raise ValueError(f"axes {tuple(axes)} are not each of the {len(shape)} axes once")
    return tuple(shape[a] for a in axes)


def contracted(a: Shape, b: Shape, *, spec: str) -> Shape:
    """The shape of a two-operand einsum: "ij,j->i"."""
    inputs, out = spec.split("->")
    sizes: dict[str, int] = {}
    for letters, shape in zip(inputs.split(","), (a, b), strict=True):
        if len(letters) != len(shape):
            raise ValueError(f"'{letters}' names {len(letters)} axes, the operand has {len(shape)}")
        for letter, size in zip(letters, shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise ValueError(f"axis '{letter}' has sizes {sizes[letter]} and {size}")
    return tuple(sizes[letter] for letter in out)


def _concatenate(*args: Array, axis: int) -> Array:
    own = min(a.ndim for a in args)
    lead = np.broadcast_shapes(*(a.shape[: a.ndim - own] for a in args))
    return np.concatenate([np.broadcast_to(a, lead + a.shape[a.ndim - own :]) for a in args], axis=axis)


def _einsum(a: Array, b: Array, *, spec: str) -> Array:
    inputs, out = spec.split("->")
    left, right = inputs.split(",")
    return np.einsum(f"...{left},...{right}->...{out}", a, b, optimize=True)


def multiplied(*shapes: Shape) -> Shape:
    """The shape of a sum of weight x operand products: weights [.., K] with operands [K], all with the same rows."""
    for weight, operand in zip(shapes[::2], shapes[1::2], strict=True):
        if operand != weight[-1:] or weight[:-1] != shapes[0][:-1]:
            raise ValueError(f"weight {weight} does not take operand {operand}")
    return shapes[0][:-1]


def _gemm(*args: Array) -> Array:
    total: Array = 0
    for weight, operand in zip(args[::2], args[1::2], strict=True):
        flat = operand @ weight.reshape(-1, weight.shape[-1]).T
        total = total + flat.reshape(operand.shape[:-1] + weight.shape[:-1])
    return total


def _total_product(a: Array, b: Array, *, spec: str) -> Array:
    """einsum with all leading axes summed as well; an operand that lacks leading axes counts at every one."""
    inputs, out = spec.split("->")
    left, right = inputs.split(",")
    ranks = (a.ndim - len(left), b.ndim - len(right))
    lead = np.broadcast_shapes(a.shape[: ranks[0]], b.shape[: ranks[1]])
    rows = [
        np.broadcast_to(v, lead + v.shape[rank:]).reshape(-1, *v.shape[rank:])
        for v, rank in zip((a, b), ranks, strict=True)
    ]
    return np.einsum(f"Z{left},Z{right}->{out}", *rows, optimize=True)


def masked(*, stream: str, keep: float, every: str, to: Shape) -> Shape:
    """The shape of a mask. every: "step", or "sequence": the same at all steps."""
    if not 0.0 < keep < 1.0 or every not in ("step", "sequence"):
        raise ValueError(f"a mask of {keep} for each {every}")
    return to


def _mask(words: tuple[int, int], rows: int, step: int, *, stream: str, keep: float, every: str, to: Shape) -> Array:
    """Of one step; words: the key of the stream (`runtime_random.key`)."""
    size = int(np.prod(to, dtype=int))
    own = runtime_random.mask(words, keep, rows, size, step if every == "step" else 0)
    return own.reshape(rows, *to)


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _move(x: Array, rank: int, axes: Sequence[int]) -> Array:
    lead = x.ndim - rank
    return np.transpose(x, (*range(lead), *(lead + a for a in axes)))


def _slice(x: Array, *, axis: int, start: int, stop: int) -> Array:
    return np.take(x, np.arange(start, stop), axis=axis)


def _inverse(axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argsort(axes))


def _same(*shapes: Shape) -> Shape:
    return broadcast(*shapes)


def _unary(name: str, numpy: Any, gradient: Gradient, cost: int = 1) -> Op:
    return Op(name, 1, _same, numpy, gradient, getattr(scalar, name), cost=cost)


def _compare(name: str) -> Op:
    return Op(name, 2, _same, getattr(np, name), lambda f, g, y, a: (None, None), getattr(scalar, name), boolean=True)


def _logical(name: str, arity: int) -> Op:
    expression = getattr(scalar, name)
    return Op(name, arity, _same, getattr(np, name), lambda f, g, y, a: (None,) * arity, expression, boolean=True)


_SQRT_PI = float(np.sqrt(np.pi))

_ROWS = [
    # name, NumPy, gradient, FLOPs
    _unary("neg", np.negative, lambda f, g, y, a: (-g,)),
    _unary(
        "abs",
        np.abs,
        lambda f, g, y, a: (g * f.where(a[0] > 0.0, 1.0, f.where(a[0] < 0.0, -1.0, 0.0)),),
    ),
    _unary("sign", np.sign, lambda f, g, y, a: (None,)),
    _unary("exp", np.exp, lambda f, g, y, a: (g * y,), 10),
    _unary("log", np.log, lambda f, g, y, a: (g / a[0],), 12),
    _unary("log1p", np.log1p, lambda f, g, y, a: (g / (1.0 + a[0]),), 20),
    _unary("sqrt", np.sqrt, lambda f, g, y, a: (g / (2.0 * y),)),
    _unary("tanh", np.tanh, lambda f, g, y, a: (g * (1.0 - y * y),), 14),
    _unary("sigmoid", _sigmoid, lambda f, g, y, a: (g * y * (1.0 - y),), 14),
    _unary("relu", lambda x: np.maximum(x, 0), lambda f, g, y, a: (f.where(a[0] <= 0.0, 0.0, g),)),
    _unary("softplus", lambda x: np.logaddexp(x, 0), lambda f, g, y, a: (g * f.sigmoid(a[0]),), 24),
    _unary("erf", scalar.numpy_erf, lambda f, g, y, a: (g * f.exp(-(a[0] * a[0])) * (2.0 / _SQRT_PI),), 20),
    _unary("sin", np.sin, lambda f, g, y, a: (g * f.cos(a[0]),), 20),
    _unary("cos", np.cos, lambda f, g, y, a: (-(g * f.sin(a[0])),), 20),
    Op("add", 2, _same, np.add, lambda f, g, y, a: (g, g), scalar.add),
    Op("sub", 2, _same, np.subtract, lambda f, g, y, a: (g, -g), scalar.sub),
    Op("mul", 2, _same, np.multiply, lambda f, g, y, a: (g * a[1], g * a[0]), scalar.mul),
    Op("div", 2, _same, np.divide, lambda f, g, y, a: (g / a[1], -g * (y / a[1])), scalar.div),
    Op(
        "power",
        2,
        _same,
        np.power,
        gradients.power,
        scalar.power,
        cost=30,
    ),
    Op(
        "maximum",
        2,
        _same,
        np.maximum,
        lambda f, g, y, a: gradients.choice(f, g, a, operator.ge, operator.lt),
        scalar.maximum,
    ),
    Op(
        "minimum",
        2,
        _same,
        np.minimum,
        lambda f, g, y, a: gradients.choice(f, g, a, operator.le, operator.gt),
        scalar.minimum,
    ),
    *(_compare(name) for name in ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")),
    _logical("logical_and", 2),
    _logical("logical_or", 2),
    _logical("logical_not", 1),
    Op(
        "where",
        3,
        _same,
        np.where,
        lambda f, g, y, a: (None, f.where(a[0], g, 0.0), f.where(a[0], 0.0, g)),
        scalar.where,
    ),
    Op(
        "reshape",
        1,
        reshaped,
        lambda x, *, rank, to: x.reshape(x.shape[: x.ndim - rank] + to),
        lambda f, g, y, a, *, rank, to: (f.reshape(g, f.shape(a[0])),),
        kind="move",
    ),
    Op(
        "transpose",
        1,
        transposed,
        lambda x, *, axes: _move(x, len(axes), axes),
        lambda f, g, y, a, *, axes: (f.transpose(g, _inverse(axes)),),
        kind="move",
    ),
    Op(
        "slice",
        1,
        sliced,
        _slice,
        lambda f, g, y, a, *, axis, start, stop: (f.pad(g, axis, start, f.shape(a[0])[axis] - stop),),
        kind="move",
    ),
    Op(
        "index",
        1,
        indexed,
        lambda x, *, axis, at: np.take(x, at, axis=axis),
        lambda f, g, y, a, *, axis, at: (f.pad(f.expand(g, axis), axis, at, f.shape(a[0])[axis] - at - 1),),
        kind="move",
    ),
    Op(
        "concat",
        None,
        concatenated,
        _concatenate,
        lambda f, g, y, a, *, axis: f.split(g, [f.shape(v)[axis] for v in a], axis),
        kind="move",
    ),
    Op(
        "sum",
        1,
        reduced,
        lambda x, *, axis, keepdims: np.sum(x, axis=axis, keepdims=keepdims),
        lambda f, g, y, a, *, axis, keepdims: (f.repeat(g if keepdims else f.expand(g, axis), f.shape(a[0])),),
        kind="reduce",
    ),
    Op(
        "max",
        1,
        reduced,
        lambda x, *, axis, keepdims: np.max(x, axis=axis, keepdims=keepdims),
        lambda f, g, y, a, *, axis, keepdims: (
            f.share_max(a[0], y if keepdims else f.expand(y, axis), g if keepdims else f.expand(g, axis), axis),
        ),
        kind="reduce",
    ),
    Op(
        "broadcast",
        1,
        broadcasted,
        lambda x, *, to: np.broadcast_to(x, x.shape[: x.ndim - len(to)] + tuple(to)),
        lambda f, g, y, a, *, to: (g,),
        kind="move",
    ),
    Op("einsum", 2, contracted, _einsum, gradients.contract, kind="contract", cost=2),
    # gemm(W1, x1, W2, x2, ...) = sum of W x: parameters [(G,) N, K] times vectors [K]; passes/normalise.py makes it of
    # einsum.
    Op("gemm", None, multiplied, _gemm, gradients.gemm, kind="contract", cost=2),
    # Over all T and B: the sum of a value, and of products of two. `spec` is that of einsum, without T and B: with
    # "ij,k->ijk" it is the GEMM of a weight's gradient.
    Op(
        "total",
        1,
        lambda shape, *, rank: shape,
        lambda x, *, rank: x.sum(axis=tuple(range(x.ndim - rank))),
        lambda f, g, y, a, *, rank: (g,),
        kind="total",
    ),
    Op("total_product", 2, contracted, _total_product, gradients.contract, kind="total", cost=2),
    # 1.0 with the probability `keep`, else 0.0, for each row and unit; no argument, so no gradient.
    Op("mask", 0, masked, _mask, None, kind="random"),
]

TABLE: dict[str, Op] = {op.name: op for op in _ROWS}


def markdown() -> str:
    """The table as Markdown, for the documentation."""
    rows = ["| op | kind | arguments | gradient |", "|---|---|---|---|"]
    rows += [
        f"| {op.name} | {op.kind} | {'any' if op.arity is None else op.arity} | {'yes' if op.gradient else 'no'} |"
        for op in TABLE.values()
    ]
    return "\n".join(rows)
