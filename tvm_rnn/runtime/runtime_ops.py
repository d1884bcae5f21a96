"""The operations around a model's recurrent networks, in NumPy: a fixed table, most of it named as in ONNX.

In: arrays and attributes, from `runtime_model.py` while a model runs and from `frontends/` where something can be known
before. Out: new arrays or views of old ones, in the dtype of their first operand. Works alone beside a .so: NumPy only.

A model's file names rows of this table and gives them attributes: numbers, words, lists. It can bring no code.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray
Inputs = Sequence[Any]  # arrays; None where an optional one is not given
Attributes = Mapping[str, Any]
Number = float | str  # infinities and NaN are text in JSON
Values = Array | Sequence[int] | None  # integers, of an input or an attribute
Bound = Array | Number | None
Operation = Callable[[Inputs, Attributes], Any]


def _integers(values: Values) -> list[int]:
    """Of a list, or of an array: what is an input in new versions of an operation was an attribute in old ones."""
    return [] if values is None else [int(i) for i in np.asarray(values).reshape(-1)]


# --- shapes ----------------------------------------------------------------------------------------------------------


def reshaped(shape: Sequence[int], to: Sequence[int], allow_zero: bool) -> tuple[int, ...]:
    """The shape that `to` asks for: 0 takes the operand's size of that axis, one -1 is whatever is left."""
    sizes = [shape[i] if n == 0 and not allow_zero else n for i, n in enumerate(to)]
    if sizes.count(-1) > 1 or min(sizes, default=0) < -1:
        raise ValueError(f"{list(to)} is no shape")
    if -1 in sizes:
        known = math.prod(n for n in sizes if n != -1)
        # Of an empty array every size is right; the one that it would have if nothing were empty is meant.
        total = math.prod(shape) if known else math.prod(n for n in shape if n)
        known = known or math.prod(n for n in sizes if n > 0)
        sizes[sizes.index(-1)] = total // known
    return tuple(sizes)


def _reshape(x: Array, shape: Array, *, allowzero: int = 0) -> Array:
    return np.reshape(x, reshaped(x.shape, _integers(shape), bool(allowzero)))


def _flatten(x: Array, *, axis: int = 1) -> Array:
    axis = axis + x.ndim if axis < 0 else axis
    return np.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def _slice(x: Array, starts: Values = None, ends: Values = None, axes: Values = None, steps: Values = None) -> Array:
    if starts is None or ends is None:
        raise ValueError("starts or ends are missing")
    first = _integers(starts)
    own, strides = _integers(axes) or list(range(len(first))), _integers(steps) or [1] * len(first)
    keys = [slice(None)] * x.ndim
    for axis, start, end, step in zip(own, first, _integers(ends), strides, strict=True):
        keys[axis] = slice(start, end, step)
    return x[tuple(keys)]


def _split(x: Array, split: Values = None, *, axis: int = 0, num_outputs: int = 0) -> list[Array]:
    sizes = _integers(split)
    if split is None:  # equal parts, the last one smaller
        part = -(-x.shape[axis] // num_outputs)
        sizes = [max(0, min(part, x.shape[axis] - i * part)) for i in range(num_outputs)]
    if sum(sizes) != x.shape[axis] or min(sizes, default=0) < 0:
        raise ValueError(f"parts {sizes} of an axis of {x.shape[axis]}")
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def _range(start: Array, limit: Array, delta: Array) -> Array:
    start, limit, delta = (np.asarray(v).reshape(()) for v in (start, limit, delta))
    count = max(0, math.ceil((limit - start) / delta))
    return (start + np.arange(count) * delta).astype(start.dtype)


def _pad(x: Array, pads: Values = None, value: Bound = 0.0, axes: Values = None, *, mode: str = "constant") -> Array:
    sizes, own = _integers(pads), _integers(axes) or list(range(x.ndim))
    widths = [(0, 0)] * x.ndim
    for i, axis in enumerate(own):
        widths[axis] = (sizes[i], sizes[i + len(own)])
    if mode not in ("constant", "edge", "reflect"):
        raise ValueError(f"mode {mode}")
    how: Any = mode
    filled = np.asarray(float(value) if isinstance(value, str) else 0.0 if value is None else value, x.dtype)
    more: dict[str, Any] = {"constant_values": filled} if mode == "constant" else {}
    return np.pad(x, widths, how, **more)


def _reverse_sequence(x: Array, lengths: Array, *, time_axis: int = 0, batch_axis: int = 1) -> Array:
    """The first `lengths[b]` steps of each row in the opposite order, the rest as they are."""
    moved = np.moveaxis(x, (time_axis, batch_axis), (0, 1))
    t, n = np.arange(len(moved))[:, None], np.asarray(lengths)[None, :]
    index = np.where(t < n, n - 1 - t, t)
    return np.moveaxis(moved[index, np.arange(moved.shape[1])[None, :]], (0, 1), (time_axis, batch_axis))


def _lengths_of_mask(mask: Array) -> Array:
    """How many steps each row has, of a mask [B, T] that says which steps count: the first ones."""
    mask = np.asarray(mask, bool)
    lengths = mask.sum(axis=1).astype(np.int32)
    if not np.array_equal(mask, np.arange(mask.shape[1]) < lengths[:, None]):
        raise ValueError("a mask may leave out steps at the end of a row, not before steps that count")
    return lengths


def _hold_last(x: Array, lengths: Array) -> Array:
    """[B, T, ...] with each row's last step that counts in place of those behind it."""
    steps = np.minimum(np.arange(x.shape[1]), np.maximum(np.asarray(lengths)[:, None] - 1, 0))
    return x[np.arange(len(x))[:, None], steps]


# --- numbers ---------------------------------------------------------------------------------------------------------


def _divide(a: Array, b: Array) -> Array:
    if np.issubdtype(np.asarray(a).dtype, np.floating):
        return np.divide(a, b)
    whole = np.abs(a) // np.abs(b)  # towards zero, where NumPy's // goes down
    return np.where((a < 0) ^ (b < 0), -whole, whole).astype(np.asarray(a).dtype)


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(x.dtype)


def _erf(x: Array) -> Array:
    return np.array([math.erf(v) for v in np.asarray(x, np.float64).flat], np.asarray(x).dtype).reshape(np.shape(x))


def _elu(x: Array, *, alpha: Number = 1.0) -> Array:
    return np.where(x > 0, x, float(alpha) * np.expm1(np.minimum(x, 0)))


def _clip(x: Array, min: Bound = None, max: Bound = None) -> Array:
    low, high = (float(v) if isinstance(v, str) else v for v in (min, max))
    found = x if low is None else np.maximum(x, low)
    return np.asarray(found if high is None else np.minimum(found, high), x.dtype)


def _two_dimensional(x: Array, axis: int | None, flatten: int) -> tuple[Array, int]:
    """What softmax works on: up to opset 12 the axes from `axis` on are one."""
    if not flatten:
        return x, -1 if axis is None else axis
    return _flatten(x, axis=1 if axis is None else axis), 1


def _softmax(x: Array, *, axis: int | None = None, flatten: int = 0) -> Array:
    own, axis = _two_dimensional(x, axis, flatten)
    e = np.exp(own - np.max(own, axis, keepdims=True, initial=-np.inf))
    return (e / np.sum(e, axis, keepdims=True)).reshape(x.shape)


def _log_softmax(x: Array, *, axis: int | None = None, flatten: int = 0) -> Array:
    own, axis = _two_dimensional(x, axis, flatten)
    shifted = own - np.max(own, axis, keepdims=True, initial=-np.inf)
    return (shifted - np.log(np.sum(np.exp(shifted), axis, keepdims=True))).reshape(x.shape)


def _reduction(function: Callable[..., Array]) -> Callable[..., Array]:
    def reduce(x: Array, axes: Values = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Array:
        own = tuple(_integers(axes)) or None
        if own is None and noop_with_empty_axes:
            return np.asarray(x)
        return np.asarray(function(x, axis=own, keepdims=bool(keepdims)), x.dtype)

    return reduce


def _largest(x: Array, axis: int | tuple[int, ...] | None, keepdims: bool) -> Array:
    """Of nothing: -inf, or the least number that there is."""
    lowest = False if x.dtype == bool else np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
    return np.max(x, axis=axis, keepdims=keepdims, initial=lowest)


def _smallest(x: Array, axis: int | tuple[int, ...] | None, keepdims: bool) -> Array:
    highest = True if x.dtype == bool else np.iinfo(x.dtype).max if x.dtype.kind in "iu" else np.inf
    return np.min(x, axis=axis, keepdims=keepdims, initial=highest)


def _log_sum_exp(x: Array, axis: int | tuple[int, ...] | None, keepdims: bool) -> Array:
    top = _largest(x, axis, True)
    top = np.where(np.isfinite(top), top, 0)
    result = top + np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True))
    return result if keepdims else np.squeeze(result, axis)


def _extremum(function: Callable[..., Array]) -> Callable[..., Array]:
    def find(x: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
        index = function(np.flip(x, axis) if select_last_index else x, axis=axis, keepdims=bool(keepdims))
        return np.asarray(x.shape[axis] - 1 - index if select_last_index else index, np.int64)

    return find


def _batch_normalization(x: Array, *rest: Array, epsilon: Number = 1e-5) -> Array:
    scale, bias, mean, var = (v.reshape(-1, *[1] * (x.ndim - 2)) if x.ndim > 1 else v for v in rest)
    return (x - mean) / np.sqrt(var + np.asarray(float(epsilon), x.dtype)) * scale + bias


def _layer_normalization(
    x: Array, scale: Array, bias: Array | None = None, *, axis: int = -1, epsilon: Number = 1e-5
) -> list[Array]:
    axes = tuple(range(axis + x.ndim if axis < 0 else axis, x.ndim))
    mean = np.mean(x, axes, keepdims=True)
    variance = np.mean((x - mean) * (x - mean), axes, keepdims=True)
    inverse = 1 / np.sqrt(variance + np.asarray(float(epsilon), x.dtype))
    y = (x - mean) * inverse * scale
    return [y if bias is None else y + bias, mean, inverse]


def _operation(function: Callable[..., Any]) -> Operation:
    """What calls a function with a step's inputs and those of its attributes that it has a parameter for, as far as
    no input is there for that. Functions of NumPy take inputs alone."""
    if getattr(function, "__module__", None) != __name__:
        return lambda inputs, attributes: function(*inputs)
    parameters = inspect.signature(function).parameters.values()
    many = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    places = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and not many]
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]

    def call(inputs: Inputs, attributes: Attributes) -> Any:
        known = {name: value for name, value in zip(places, inputs, strict=False) if value is not None}
        others = {name: attributes[name] for name in (*places, *named) if name in attributes and name not in known}
        return function(*inputs, **others) if many else function(**known, **others)

    return call


# By ONNX's names, with its inputs and attributes as parameters.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Identity": lambda x: x,
    # Of a model that runs, not of one that learns: nothing is dropped.
    "Dropout": lambda x, *more: [x, np.ones(np.shape(x), bool)],
    "Transpose": lambda x, *, perm=None: np.transpose(x, perm),
    "Concat": lambda *arrays, axis: np.concatenate([np.asarray(v) for v in arrays], axis),
    "Tile": lambda x, repeats: np.tile(x, tuple(_integers(repeats))),
    "Size": lambda x: np.array(x.size, np.int64),
    "Cast": lambda x, *, dtype: np.asarray(x).astype(dtype),
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": lambda x, axes=None: np.squeeze(x, None if axes is None else tuple(_integers(axes))),
    "Unsqueeze": lambda x, axes=None: np.expand_dims(x, tuple(_integers(axes))),
    "Expand": lambda x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(_integers(shape)))),
    "Slice": _slice,
    "Split": _split,
    "Shape": lambda x, *, start=0, end=None: np.array(x.shape, np.int64)[start:end],
    "ConstantOfShape": lambda shape, *, value=0, dtype="float32": np.full(_integers(shape), float(value), dtype),
    "Range": _range,
    "Pad": _pad,
    "Gather": lambda x, places, *, axis=0: np.asarray(np.take(x, np.asarray(places, np.int64), axis)),
    "ReverseSequence": _reverse_sequence,
    **{name: getattr(np, name.lower()) for name in ("Tanh", "Exp", "Log", "Sqrt", "Floor", "Ceil", "Sin", "Cos")},
    "Abs": np.abs,
    "Neg": np.negative,
    "Sign": np.sign,
    "Round": np.round,
    "Reciprocal": lambda x: 1 / x,
    "Relu": lambda x: np.maximum(x, 0),
    "Sigmoid": _sigmoid,
    "Softplus": lambda x: np.logaddexp(x, np.zeros((), x.dtype)),
    "Erf": _erf,
    "Elu": _elu,
    "LeakyRelu": lambda x, *, alpha=0.01: np.where(x >= 0, x, float(alpha) * x),
    "Clip": _clip,
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": _divide,
    "Mod": lambda x, y, *, fmod=0: (np.fmod if fmod else np.mod)(x, y),
    "Pow": lambda x, exponent: np.asarray(np.power(x, exponent), np.asarray(x).dtype),
    "Max": lambda x, y: np.maximum(x, y),
    "Min": lambda x, y: np.minimum(x, y),
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
    "Not": np.logical_not,
    "Where": np.where,
    "MatMul": np.matmul,
    "Softmax": _softmax,
    "LogSoftmax": _log_softmax,
    "ReduceSum": _reduction(np.sum),
    "ReduceMean": _reduction(np.mean),
    "ReduceMax": _reduction(_largest),
    "ReduceMin": _reduction(_smallest),
    "ReduceProd": _reduction(np.prod),
    "ReduceLogSumExp": _reduction(_log_sum_exp),
    "ArgMax": _extremum(np.argmax),
    "ArgMin": _extremum(np.argmin),
    "BatchNormalization": _batch_normalization,
    "LayerNormalization": _layer_normalization,
    # Not ONNX's: what Keras makes of a mask.
    "LengthsOfMask": _lengths_of_mask,
    "HoldLast": _hold_last,
}
OPERATIONS = {name: _operation(function) for name, function in FUNCTIONS.items()}
# What changes no value, only its place: a chain of these between two layers may come to nothing.
MOVES = {"Identity", "Dropout", "Transpose", "Concat", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Slice"}
MOVES |= {"Split", "Gather", "Tile"}
