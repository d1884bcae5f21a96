"""The op table: one row per primitive, with its shape rule, NumPy meaning, scalar expression and gradient.

In: the names that `language/functions.py` and `language/trace.py` use. Out: everything else reads this table: the
oracle runs the NumPy column, `cpu/lower_network.py` builds tensor expressions from the expression column, BPTT uses the
gradient column. To add an op, add one row (and, if users should write it, its name in `language/functions.py`).

Shapes never contain T or B: those axes are implicit and leading. All `axis` attributes are negative for that reason.
Pointwise operands have equal rank (tracing inserts reshapes), so NumPy's broadcasting does the rest. Rows of kind
`sum_rows` sum over T and B: they make what weights' gradients begin with, and cells cannot write them. Rows of kind
`random` are made of counters (`runtime_random.py`): masks, which `network/regularise.py` writes, and numbers of cells.
Rows of kind `scan` are recurrences that may run over all steps at once (`recurrences.py`); `passes/parallelise_time.py`
writes them.

Gradients are those of torch, also at ties, at NaN and at infinity: a value that is not chosen gets 0, whatever comes
from above; equal operands of maximum share, but a constant leaves all to the other, as in clamp.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tvm_rnn.runtime import runtime_random

from . import gradients, recurrences, scalar

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
    kind: str = "pointwise"  # pointwise | move | reduce | contract | sum_rows | random | scan
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


def alike(shape: Shape, other: Shape) -> Shape:
    """The one shape of both."""
    if shape != other:
        raise ValueError(f"the value has {list(shape)}, what has its gradient {list(other)}")
    return shape


def flipped(shape: Shape, *, axis: int) -> Shape:
    """The same shape: one negative axis is read backwards."""
    if not -len(shape) <= axis < 0:
        raise ValueError(f"axis {axis} is none of {len(shape)}")
    return shape


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


def windowed(shape: Shape, *, taps: Shape, dilation: Shape) -> Shape:
    """The shape of what a convolution's taps see at each place: [C, *S] to [C, *taps, *places]."""
    sizes = shape[1:]
    if not len(sizes) == len(taps) == len(dilation):
        raise ValueError(f"{len(taps)} axes of taps, the operand has a channel axis and {len(shape) - 1} more")
    places = tuple(size - step * (count - 1) for size, count, step in zip(sizes, taps, dilation, strict=True))
    if min((*places, *taps, *dilation)) < 1:
        raise ValueError(f"taps {list(taps)} do not fit into {list(sizes)}")
    return (*shape[:1], *taps, *places)


def convolved(kernel: Shape, x: Shape, *, spec: str, taps: Shape, dilation: Shape) -> Shape:
    """The shape of an einsum of a kernel with what its taps see."""
    return contracted(kernel, windowed(x, taps=taps, dilation=dilation), spec=spec)


def _windows(x: Array, *, taps: Shape, dilation: Shape) -> Array:
    rank = len(taps)
    spans = [step * (count - 1) + 1 for count, step in zip(taps, dilation, strict=True)]
    seen = np.lib.stride_tricks.sliding_window_view(x, spans, axis=tuple(range(-rank, 0)))
    for axis, step in enumerate(dilation):  # [.., C, *places, *taps]
        seen = np.moveaxis(np.moveaxis(seen, axis - rank, -1)[..., ::step], -1, axis - rank)
    return np.moveaxis(seen, range(-rank, 0), range(-2 * rank, -rank))


def neighboured(shape: Shape, *, taps: Shape, dilation: Shape, before: Shape, image: Shape, wide: int) -> Shape:
    """The shape of what the taps of a kernel see around a pixel, whose channels are [C]: [taps * wide]."""
    if len(shape) != 1 or shape[0] > wide or not len(taps) == len(dilation) == len(before) == len(image) == 2:
        raise ValueError(f"channels {list(shape)} of pixels of {list(image)}, {wide} for each of {list(taps)} taps")
    return (prod(taps) * wide,)


def _neighbours(x: Array, *, taps: Shape, dilation: Shape, before: Shape, image: Shape, wide: int) -> Array:
    """Rows are pixels, image after image."""
    whole = x.reshape(*x.shape[:-2], -1, *image, x.shape[-1])
    spans = [step * (count - 1) for step, count in zip(dilation, taps, strict=True)]
    pads = [(zeros, span - min(zeros, span)) for zeros, span in zip(before, spans, strict=True)]
    around = np.pad(whole, [(0, 0)] * (whole.ndim - 3) + pads + [(0, wide - x.shape[-1])])
    seen = []
    for tap in np.ndindex(*taps):
        y, z = (at * step for at, step in zip(tap, dilation, strict=True))
        seen.append(around[..., y : y + image[0], z : z + image[1], :])
    return np.concatenate(seen, -1).reshape(*x.shape[:-1], -1)


def at_pixel(table: Shape, x: Shape, *, image: Shape) -> Shape:
    """The shape of what a table of an image's pixels has for each of them. x: a row, one of as many as there are."""
    if table[: len(image)] != image or len(x) != 1:
        raise ValueError(f"a table {list(table)} for pixels of {list(image)}")
    return table[len(image) :]


def _at_pixel(table: Array, x: Array, *, image: Shape) -> Array:
    """Rows are pixels, image after image: as many as x has."""
    pixels = table.reshape(-1, *table.shape[len(image) :])
    return pixels[np.arange(x.shape[-2]) % len(pixels)]


def _conv(kernel: Array, x: Array, *, spec: str, taps: Shape, dilation: Shape) -> Array:
    return _einsum(kernel, _windows(x, taps=taps, dilation=dilation), spec=spec)


def _concatenate(*args: Array, axis: int) -> Array:
    own = min(a.ndim for a in args)
    lead = np.broadcast_shapes(*(a.shape[: a.ndim - own] for a in args))
    return np.concatenate([np.broadcast_to(a, lead + a.shape[a.ndim - own :]) for a in args], axis=axis)


def _einsum(a: Array, b: Array, *, spec: str) -> Array:
    inputs, out = spec.split("->")
    left, right = inputs.split(",")
    return np.einsum(f"...{left},...{right}->...{out}", a, b, optimize=True)


GEMMS = ("gemm", "batched_gemm")  # pairs of a parameter and a vector, or of as many as there are members


def multiplied(*shapes: Shape) -> Shape:
    """The shape of a sum of weight x operand products: weights [.., K] with operands [K], all with the same rows."""
    for weight, operand in zip(shapes[::2], shapes[1::2], strict=True):
        if operand != weight[-1:] or weight[:-1] != shapes[0][:-1]:
            raise ValueError(f"weight {weight} does not take operand {operand}")
    return shapes[0][:-1]


def multiplied_in_batch(*shapes: Shape) -> Shape:
    """The same of weights [N, .., K] with operands [N, K]: member n's weight takes member n's operand."""
    for weight, operand in zip(shapes[::2], shapes[1::2], strict=True):
        if operand != (weight[0], weight[-1]) or weight[:-1] != shapes[0][:-1]:
            raise ValueError(f"weight {weight} does not take operand {operand}")
    return shapes[0][:-1]


def _batched_gemm(*args: Array) -> Array:
    total: Array = 0
    for weight, operand in zip(args[::2], args[1::2], strict=True):
        flat = weight.reshape(weight.shape[0], -1, weight.shape[-1])
        made = np.einsum("nrk,...nk->...nr", flat, operand)
        total = total + made.reshape(operand.shape[:-2] + weight.shape[:-1])
    return total


def _gemm(*args: Array) -> Array:
    total: Array = 0
    for weight, operand in zip(args[::2], args[1::2], strict=True):
        flat = operand @ weight.reshape(-1, weight.shape[-1]).T
        total = total + flat.reshape(operand.shape[:-1] + weight.shape[:-1])
    return total


def _einsum_rows(a: Array, b: Array, *, spec: str) -> Array:
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


def _uniform(words: tuple[int, int], rows: int, step: int, *, stream: str, every: str, to: Shape) -> Array:
    """Of one step, as `_mask`."""
    return runtime_random.uniform(words, rows, int(np.prod(to, dtype=int)), step).reshape(rows, *to)


def taken(table: Shape, places: Shape, *, rank: int) -> Shape:
    """The shape of rows of a table of `rank` axes. Places have `rank` - 1 axes of size 1 behind their own: the ranks of
    rows and of places are equal then."""
    lead = len(places) - rank + 1
    if rank != len(table) or rank < 1 or lead < 0 or any(size != 1 for size in places[lead:]):
        raise ValueError(f"places {list(places)} of a table {list(table)}")
    return (*places[:lead], *table[1:])


def _take(table: Array, places: Array, *, rank: int) -> Array:
    """NaN for what is no place: below 0, above the last, or no whole number."""
    own = np.asarray(places).reshape(np.shape(places)[: np.ndim(places) - rank + 1])
    there = (own >= 0) & (own <= len(table) - 1) & (own == np.floor(own))
    rows = np.asarray(table)[np.where(there, own, 0).astype(int)]
    return np.where(there.reshape(there.shape + (1,) * (rank - 1)), rows, np.nan)


def _in_a_byte(x: Array, low: int, high: int) -> Array:
    return np.where(np.isnan(x), 0, np.clip(np.rint(x), low, high)).astype(x.dtype)


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _transpose(x: Array, *, axes: Sequence[int]) -> Array:
    lead = x.ndim - len(axes)
    return np.transpose(x, (*range(lead), *(lead + a for a in axes)))


def _slice(x: Array, *, axis: int, start: int, stop: int) -> Array:
    return np.take(x, np.arange(start, stop), axis=axis)


def _repeat(x: Array, *, to: Shape) -> Array:
    return np.broadcast_to(x, x.shape[: x.ndim - len(to)] + tuple(to))


def _first(value: Array, other: Array) -> Array:
    return np.broadcast_arrays(value, other)[0]


def _sum_images(x: Array, *, rank: int, image: Shape) -> Array:
    lead = x.shape[x.ndim - rank :]
    return x.reshape(-1, *image, *lead).sum(0)


def _sum_rows(x: Array, *, rank: int) -> Array:
    return x.sum(axis=tuple(range(x.ndim - rank)))


def _pointwise(name: str, arity: int, numpy: Any, gradient: Gradient, cost: int = 1, *, boolean: bool = False) -> Op:
    return Op(name, arity, broadcast, numpy, gradient, getattr(scalar, name), boolean=boolean, cost=cost)


def _truth(name: str, arity: int = 2) -> Op:
    """A comparison, or what is made of them: no gradient."""
    return _pointwise(name, arity, getattr(np, name), lambda f, g, y, a: (None,) * arity, boolean=True)


def _view(name: str, shape: Callable[..., Shape], numpy: Any, gradient: Gradient) -> Op:
    return Op(name, 1, shape, numpy, gradient, kind="move")


_ROWS = [
    # name, arguments, NumPy, gradient, FLOPs
    _pointwise("neg", 1, np.negative, lambda f, g, y, a: (-g,)),
    _pointwise("abs", 1, np.abs, lambda f, g, y, a: (g * f.where(a[0] > 0.0, 1.0, f.where(a[0] < 0.0, -1.0, 0.0)),)),
    _pointwise("sign", 1, np.sign, lambda f, g, y, a: (None,)),
    _pointwise("exp", 1, np.exp, lambda f, g, y, a: (g * y,), 10),
    _pointwise("expm1", 1, np.expm1, lambda f, g, y, a: (g * f.exp(a[0]),), 12),
    _pointwise("log", 1, np.log, lambda f, g, y, a: (g / a[0],), 12),
    _pointwise("log1p", 1, np.log1p, lambda f, g, y, a: (g / (1.0 + a[0]),), 20),
    _pointwise("sqrt", 1, np.sqrt, lambda f, g, y, a: (g / (2.0 * y),)),
    _pointwise("tanh", 1, np.tanh, lambda f, g, y, a: (g * (1.0 - y * y),), 14),
    _pointwise("sigmoid", 1, _sigmoid, lambda f, g, y, a: (g * y * (1.0 - y),), 14),
    _pointwise("relu", 1, lambda x: np.maximum(x, 0), lambda f, g, y, a: (f.where(a[0] <= 0.0, 0.0, g),)),
    _pointwise("softplus", 1, lambda x: np.logaddexp(x, 0), lambda f, g, y, a: (g * f.sigmoid(a[0]),), 24),
    _pointwise("erf", 1, scalar.numpy_erf, gradients.erf, 20),
    _pointwise("sin", 1, np.sin, lambda f, g, y, a: (g * f.cos(a[0]),), 20),
    _pointwise("cos", 1, np.cos, lambda f, g, y, a: (-(g * f.sin(a[0])),), 20),
    _pointwise("add", 2, np.add, lambda f, g, y, a: (g, g)),
    _pointwise("sub", 2, np.subtract, lambda f, g, y, a: (g, -g)),
    _pointwise("mul", 2, np.multiply, lambda f, g, y, a: (g * a[1], g * a[0])),
    _pointwise("div", 2, np.divide, lambda f, g, y, a: (g / a[1], -g * (y / a[1]))),
    _pointwise("power", 2, np.power, gradients.power, 30),
    _pointwise("maximum", 2, np.maximum, lambda f, g, y, a: gradients.choice(f, g, a, operator.ge, operator.lt)),
    _pointwise("minimum", 2, np.minimum, lambda f, g, y, a: gradients.choice(f, g, a, operator.le, operator.gt)),
    _pointwise("floor", 1, np.floor, lambda f, g, y, a: (None,)),
    # Bytes: whole numbers that products may read as such (cpu/byte_products.py).
    _pointwise("to_int8", 1, lambda x: _in_a_byte(x, -128, 127), lambda f, g, y, a: (None,), 3),
    _pointwise("to_uint8", 1, lambda x: _in_a_byte(x, 0, 255), lambda f, g, y, a: (None,), 3),
    _pointwise("mod", 2, np.mod, gradients.mod, 30),
    # Values with gradients of the user's own; once gradients are derived, nothing is left of both rows.
    _pointwise("stop_gradient", 1, np.positive, lambda f, g, y, a: (None,)),
    Op("surrogate", 2, alike, _first, lambda f, g, y, a: (None, g), scalar.surrogate),
    *map(_truth, ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal", "logical_and", "logical_or")),
    _truth("logical_not", 1),
    _pointwise("where", 3, np.where, lambda f, g, y, a: (None, f.where(a[0], g, 0.0), f.where(a[0], 0.0, g))),
    _view("reshape", reshaped, lambda x, *, rank, to: x.reshape(x.shape[: x.ndim - rank] + to), gradients.reshape),
    _view("transpose", transposed, _transpose, gradients.transpose),
    _view("slice", sliced, _slice, gradients.slice),
    _view("index", indexed, lambda x, *, axis, at: np.take(x, at, axis=axis), gradients.index),
    _view("flip", flipped, lambda x, *, axis: np.flip(x, axis), lambda f, g, y, a, *, axis: (f.flip(g, axis),)),
    # Rows of a table, which is made of parameters or constants. Of the kind pointwise: each element reads one of each.
    Op("take", 2, taken, _take, gradients.take),
    Op("concat", None, concatenated, _concatenate, gradients.concat, kind="move"),
    Op("sum", 1, reduced, np.sum, gradients.sum, kind="reduce"),
    Op("max", 1, reduced, np.max, gradients.max, kind="reduce"),
    _view("broadcast", broadcasted, _repeat, lambda f, g, y, a, *, to: (g,)),
    Op("einsum", 2, contracted, _einsum, gradients.contract, kind="contract", cost=2),
    # A kernel over an operand [C, *S]: the einsum `spec` of the kernel and of `windows`, which is what is left of it
    # once gradients are derived (passes/normalise.py).
    Op("conv", 2, convolved, _conv, gradients.conv, kind="contract", cost=2),
    _view("windows", windowed, _windows, gradients.windows),
    # Where each pixel is a row of its own: what the taps see around it, in other rows (passes/rows_of_pixels.py).
    Op("neighbours", 1, neighboured, _neighbours, None, kind="move"),
    # There too: what a value made of parameters, of the size of an image, has for the pixel of a row.
    Op("at_pixel", 2, at_pixel, _at_pixel, None, kind="move"),
    # gemm(W1, x1, W2, x2, ...) = sum of W x: parameters [(G,) N, K] times vectors [K]; passes/normalise.py makes it of
    # einsum.
    Op("gemm", None, multiplied, _gemm, gradients.gemm, kind="contract", cost=2),
    # The same for each of N members: parameters [N, (G,) M, K] times vectors [N, K]; passes/batched_gemms.py makes it.
    Op("batched_gemm", None, multiplied_in_batch, _batched_gemm, gradients.batched_gemm, kind="contract", cost=2),
    # Over all T and B: the sum of a value, and of products of two. `spec` is that of einsum, without T and B: with
    # "ij,k->ijk" it is the GEMM of a weight's gradient.
    Op("sum_rows", 1, lambda shape, *, rank: shape, _sum_rows, lambda f, g, y, a, *, rank: (g,), kind="sum_rows"),
    # Of pixels: for each of an image's the sum over all images.
    Op("sum_images", 1, lambda shape, *, rank, image: (*image, *shape), _sum_images, None, kind="sum_rows"),
    Op("einsum_rows", 2, contracted, _einsum_rows, gradients.contract, kind="sum_rows", cost=2),
    # 1.0 with the probability `keep`, else 0.0, for each row and unit; no argument, so no gradient.
    Op("mask", 0, masked, _mask, None, kind="random"),
    # Even between 0 and 1, another number for each step, row and unit.
    Op("uniform", 0, lambda *, stream, every, to: to, _uniform, None, kind="random"),
    # A state's new value of its old one and of operands that are known for all steps; the old one; and a matrix read.
    Op("scan", None, recurrences.scanned_shape(broadcast), recurrences.scan, None, kind="scan", cost=2),
    Op("scan_max", 3, recurrences.scanned_shape(broadcast), recurrences.scan_max, None, kind="scan", cost=2),
    Op("scan_matrix", None, recurrences.matrix_shape(broadcast), recurrences.scan_matrix, None, kind="scan", cost=2),
    # The same matrix beside what makes it: made again, for what is read of it along its other axis.
    Op("rescan", None, recurrences.matrix_shape(broadcast), recurrences.scan_matrix, None, kind="scan", cost=2),
    Op("delay", 2, recurrences.scanned_shape(broadcast), lambda old, new: new, None, kind="scan"),
    Op("carried", 2, lambda new, old: old, lambda new, old: old, None, kind="scan"),
    Op("read_out", 2, recurrences.read_shape(broadcast), recurrences.read_out, None, kind="scan", cost=2),
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
