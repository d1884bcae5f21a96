"""The operations around a model's recurrent networks, in NumPy: a fixed table, most of it named as in ONNX.

In: arrays and attributes, from `runtime_model.py` while a model runs and from `frontends/` where something can be known
before. Out: new arrays or views of old ones, in the dtype of their first operand. Works alone beside a .so: NumPy only.

A model's file names rows of this table and gives them attributes: numbers, words, lists. It can bring no code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = Any  # np.ndarray
Inputs = Sequence[Any]  # arrays; None where an optional one is not given
Attributes = Mapping[str, Any]
Operation = Callable[[Inputs, Attributes], Any]


def _number(value: Any) -> float:
    """A float attribute; infinities and NaN are text in JSON."""
    return float(value)


def _integers(inputs: Inputs, at: int, attributes: Attributes, name: str) -> list[int] | None:
    """A list that is an input in new versions of an operation and was an attribute in old ones."""
    if len(inputs) > at and inputs[at] is not None:
        return [int(i) for i in np.asarray(inputs[at]).reshape(-1)]
    value = attributes.get(name)
    return None if value is None else [int(i) for i in value]


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


def _reshape(inputs: Inputs, a: Attributes) -> Array:
    x = inputs[0]
    return np.reshape(x, reshaped(x.shape, [int(n) for n in inputs[1]], bool(a.get("allowzero", 0))))


def _flatten(inputs: Inputs, a: Attributes) -> Array:
    x, axis = inputs[0], int(a.get("axis", 1))
    axis = axis + x.ndim if axis < 0 else axis
    return np.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def _squeeze(inputs: Inputs, a: Attributes) -> Array:
    axes = _integers(inputs, 1, a, "axes")
    return np.squeeze(inputs[0], None if axes is None else tuple(axes))


def _expand(inputs: Inputs, a: Attributes) -> Array:
    x, shape = inputs[0], tuple(int(n) for n in inputs[1])
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, shape))


def _slice(inputs: Inputs, a: Attributes) -> Array:
    x = inputs[0]
    starts, ends = _integers(inputs, 1, a, "starts"), _integers(inputs, 2, a, "ends")
    if starts is None or ends is None:
        raise ValueError("starts or ends are missing")
    axes = _integers(inputs, 3, a, "axes") or list(range(len(starts)))
    steps = _integers(inputs, 4, a, "steps") or [1] * len(starts)
    keys = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        keys[axis] = slice(start, end, step)
    return x[tuple(keys)]


def _split(inputs: Inputs, a: Attributes) -> list[Array]:
    x, axis = inputs[0], int(a.get("axis", 0))
    sizes = _integers(inputs, 1, a, "split")
    if sizes is None:  # equal parts, the last one smaller
        count = int(a["num_outputs"])
        part = -(-x.shape[axis] // count)
        sizes = [max(0, min(part, x.shape[axis] - i * part)) for i in range(count)]
    if sum(sizes) != x.shape[axis] or min(sizes, default=0) < 0:
        raise ValueError(f"parts {sizes} of an axis of {x.shape[axis]}")
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def _shape(inputs: Inputs, a: Attributes) -> Array:
    end = a.get("end")
    return np.array(inputs[0].shape, np.int64)[int(a.get("start", 0)) : None if end is None else int(end)]


def _constant_of_shape(inputs: Inputs, a: Attributes) -> Array:
    return np.full(tuple(int(n) for n in inputs[0]), _number(a.get("value", 0)), a.get("dtype", "float32"))


def _range(inputs: Inputs, a: Attributes) -> Array:
    start, limit, delta = (np.asarray(v).reshape(()) for v in inputs)
    count = max(0, math.ceil((limit - start) / delta))
    return (start + np.arange(count) * delta).astype(start.dtype)


def _pad(inputs: Inputs, a: Attributes) -> Array:
    x, pads = inputs[0], _integers(inputs, 1, a, "pads") or []
    axes = _integers(inputs, 3, {}, "") or list(range(x.ndim))
    widths = [(0, 0)] * x.ndim
    for i, axis in enumerate(axes):
        widths[axis] = (pads[i], pads[i + len(axes)])
    value = inputs[2] if len(inputs) > 2 and inputs[2] is not None else _number(a.get("value", 0.0))
    mode = str(a.get("mode", "constant"))
    if mode not in ("constant", "edge", "reflect"):
        raise ValueError(f"mode {mode}")
    how: Any = mode
    more: dict[str, Any] = {"constant_values": np.asarray(value, x.dtype)} if mode == "constant" else {}
    return np.pad(x, widths, how, **more)


def _reverse_sequence(inputs: Inputs, a: Attributes) -> Array:
    """The first `lengths[b]` steps of each row in the opposite order, the rest as they are."""
    x, lengths = inputs
    time, batch = int(a.get("time_axis", 0)), int(a.get("batch_axis", 1))
    moved = np.moveaxis(x, (time, batch), (0, 1))
    t, n = np.arange(len(moved))[:, None], np.asarray(lengths)[None, :]
    index = np.where(t < n, n - 1 - t, t)
    return np.moveaxis(moved[index, np.arange(moved.shape[1])[None, :]], (0, 1), (time, batch))


def _lengths_of_mask(inputs: Inputs, a: Attributes) -> Array:
    """How many steps each row has, of a mask [B, T] that says which steps count: the first ones."""
    mask = np.asarray(inputs[0], bool)
    lengths = mask.sum(axis=1).astype(np.int32)
    if not np.array_equal(mask, np.arange(mask.shape[1]) < lengths[:, None]):
        raise ValueError("a mask may leave out steps at the end of a row, not before steps that count")
    return lengths


def _hold_last(inputs: Inputs, a: Attributes) -> Array:
    """[B, T, ...] with each row's last step that counts in place of those behind it."""
    x, lengths = inputs
    steps = np.minimum(np.arange(x.shape[1]), np.maximum(np.asarray(lengths)[:, None] - 1, 0))
    return x[np.arange(len(x))[:, None], steps]


def _gather(inputs: Inputs, a: Attributes) -> Array:
    return np.asarray(np.take(inputs[0], np.asarray(inputs[1], np.int64), int(a.get("axis", 0))))


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


def _gelu(inputs: Inputs, a: Attributes) -> Array:
    x = inputs[0]
    if str(a.get("approximate", "none")) == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + _erf(x * math.sqrt(0.5)))


def _elu(inputs: Inputs, a: Attributes) -> Array:
    x = inputs[0]
    return np.where(x > 0, x, _number(a.get("alpha", 1.0)) * np.expm1(np.minimum(x, 0)))


def _selu(inputs: Inputs, a: Attributes) -> Array:
    alpha, gamma = _number(a.get("alpha", 1.6732632423543772)), _number(a.get("gamma", 1.0507009873554805))
    return gamma * _elu(inputs, {"alpha": alpha})


def _hard_sigmoid(inputs: Inputs, a: Attributes) -> Array:
    return np.clip(_number(a.get("alpha", 0.2)) * inputs[0] + _number(a.get("beta", 0.5)), 0, 1)


def _clip(inputs: Inputs, a: Attributes) -> Array:
    low, high = (inputs[i] if len(inputs) > i else None for i in (1, 2))
    low = _number(a["min"]) if low is None and a.get("min") is not None else low
    high = _number(a["max"]) if high is None and a.get("max") is not None else high
    x = inputs[0] if low is None else np.maximum(inputs[0], low)
    return np.asarray(x if high is None else np.minimum(x, high), inputs[0].dtype)


def _gemm(inputs: Inputs, a: Attributes) -> Array:
    left = inputs[0].T if a.get("transA", 0) else inputs[0]
    right = inputs[1].T if a.get("transB", 0) else inputs[1]
    result = left @ right
    result = result if _number(a.get("alpha", 1.0)) == 1 else _number(a["alpha"]) * result
    if len(inputs) < 3 or inputs[2] is None:
        return result
    return result + (inputs[2] if _number(a.get("beta", 1.0)) == 1 else _number(a["beta"]) * inputs[2])


def _two_dimensional(x: Array, a: Attributes) -> tuple[Array, int]:
    """What softmax works on: up to opset 12 the axes from `axis` on are one."""
    axis = int(a.get("axis", 1 if a.get("flatten") else -1))
    if not a.get("flatten"):
        return x, axis
    return _flatten([x], {"axis": axis}), 1


def _softmax(inputs: Inputs, a: Attributes) -> Array:
    x, axis = _two_dimensional(inputs[0], a)
    e = np.exp(x - np.max(x, axis, keepdims=True, initial=-np.inf))
    return (e / np.sum(e, axis, keepdims=True)).reshape(inputs[0].shape)


def _log_softmax(inputs: Inputs, a: Attributes) -> Array:
    x, axis = _two_dimensional(inputs[0], a)
    shifted = x - np.max(x, axis, keepdims=True, initial=-np.inf)
    return (shifted - np.log(np.sum(np.exp(shifted), axis, keepdims=True))).reshape(inputs[0].shape)


def _reduction(function: Callable[..., Array]) -> Operation:
    def reduce(inputs: Inputs, a: Attributes) -> Array:
        axes = _integers(inputs, 1, a, "axes")
        if not axes and a.get("noop_with_empty_axes", 0):
            return np.asarray(inputs[0])
        x = inputs[0]
        result = function(x, axis=tuple(axes) if axes else None, keepdims=bool(a.get("keepdims", 1)))
        return np.asarray(result, x.dtype)

    return reduce


def _largest(x: Array, axis: Any, keepdims: bool) -> Array:
    """Of nothing: -inf, or the least number that there is."""
    lowest = False if x.dtype == bool else np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
    return np.max(x, axis=axis, keepdims=keepdims, initial=lowest)


def _smallest(x: Array, axis: Any, keepdims: bool) -> Array:
    highest = True if x.dtype == bool else np.iinfo(x.dtype).max if x.dtype.kind in "iu" else np.inf
    return np.min(x, axis=axis, keepdims=keepdims, initial=highest)


def _log_sum_exp(x: Array, axis: Any, keepdims: bool) -> Array:
    top = _largest(x, axis, True)
    top = np.where(np.isfinite(top), top, 0)
    result = top + np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True))
    return result if keepdims else np.squeeze(result, axis)


def _extremum(function: Callable[..., Array]) -> Operation:
    def find(inputs: Inputs, a: Attributes) -> Array:
        x, axis = inputs[0], int(a.get("axis", 0))
        last = bool(a.get("select_last_index", 0))
        index = function(np.flip(x, axis) if last else x, axis=axis, keepdims=bool(a.get("keepdims", 1)))
        return np.asarray(x.shape[axis] - 1 - index if last else index, np.int64)

    return find


def _batch_normalization(inputs: Inputs, a: Attributes) -> Array:
    x, *rest = inputs
    scale, bias, mean, var = (v.reshape(-1, *[1] * (x.ndim - 2)) if x.ndim > 1 else v for v in rest)
    return (x - mean) / np.sqrt(var + np.asarray(_number(a.get("epsilon", 1e-5)), x.dtype)) * scale + bias


def _layer_normalization(inputs: Inputs, a: Attributes) -> list[Array]:
    x, scale = inputs[0], inputs[1]
    axis = int(a.get("axis", -1))
    axes = tuple(range(axis + x.ndim if axis < 0 else axis, x.ndim))
    mean = np.mean(x, axes, keepdims=True)
    variance = np.mean((x - mean) * (x - mean), axes, keepdims=True)
    inverse = 1 / np.sqrt(variance + np.asarray(_number(a.get("epsilon", 1e-5)), x.dtype))
    y = (x - mean) * inverse * scale
    return [y if len(inputs) < 3 or inputs[2] is None else y + inputs[2], mean, inverse]


def _each(function: Callable[..., Any]) -> Operation:
    """An operation of arrays alone."""
    return lambda inputs, a: function(*inputs)


def _fold(function: Callable[..., Array]) -> Operation:
    """An operation of any number of arrays, two by two."""

    def fold(inputs: Inputs, a: Attributes) -> Array:
        total = np.asarray(inputs[0])
        for value in inputs[1:]:
            total = function(total, value)
        return total

    return fold


OPERATIONS: dict[str, Operation] = {
    "Identity": lambda inputs, a: inputs[0],
    # Of a model that runs, not of one that learns: nothing is dropped.
    "Dropout": lambda inputs, a: [inputs[0], np.ones(np.shape(inputs[0]), bool)],
    "Transpose": lambda inputs, a: np.transpose(inputs[0], a.get("perm")),
    "Concat": lambda inputs, a: np.concatenate([np.asarray(v) for v in inputs], int(a["axis"])),
    "Tile": lambda inputs, a: np.tile(inputs[0], tuple(int(n) for n in inputs[1])),
    "Size": lambda inputs, a: np.array(inputs[0].size, np.int64),
    "Cast": lambda inputs, a: np.asarray(inputs[0]).astype(a["dtype"]),
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": lambda inputs, a: np.expand_dims(inputs[0], tuple(_integers(inputs, 1, a, "axes") or ())),
    "Expand": _expand,
    "Slice": _slice,
    "Split": _split,
    "Shape": _shape,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Pad": _pad,
    "Gather": _gather,
    "ReverseSequence": _reverse_sequence,
    **{
        name: _each(getattr(np, name.lower())) for name in ("Tanh", "Exp", "Log", "Sqrt", "Floor", "Ceil", "Sin", "Cos")
    },
    "Abs": _each(np.abs),
    "Neg": _each(np.negative),
    "Sign": _each(np.sign),
    "Round": _each(np.round),
    "Reciprocal": _each(lambda x: 1 / x),
    "Relu": _each(lambda x: np.maximum(x, 0)),
    "Sigmoid": _each(_sigmoid),
    "Softplus": _each(lambda x: np.logaddexp(x, np.zeros((), x.dtype))),
    "Softsign": _each(lambda x: x / (1 + np.abs(x))),
    "Erf": _each(_erf),
    "HardSwish": _each(lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "Gelu": _gelu,
    "Elu": _elu,
    "Selu": _selu,
    "LeakyRelu": lambda inputs, a: np.where(inputs[0] >= 0, inputs[0], _number(a.get("alpha", 0.01)) * inputs[0]),
    "PRelu": _each(lambda x, slope: np.where(x >= 0, x, slope * x)),
    "ThresholdedRelu": lambda inputs, a: np.where(inputs[0] > _number(a.get("alpha", 1.0)), inputs[0], 0 * inputs[0]),
    "HardSigmoid": _hard_sigmoid,
    "Clip": _clip,
    "Add": _each(np.add),
    "Sub": _each(np.subtract),
    "Mul": _each(np.multiply),
    "Div": _each(_divide),
    "Mod": lambda inputs, a: (np.fmod if a.get("fmod", 0) else np.mod)(*inputs),
    "Pow": _each(lambda x, exponent: np.asarray(np.power(x, exponent), np.asarray(x).dtype)),
    "Max": _fold(np.maximum),
    "Min": _fold(np.minimum),
    "Sum": _fold(np.add),
    "Mean": lambda inputs, a: _fold(np.add)(inputs, a) / len(inputs),
    "Equal": _each(np.equal),
    "Greater": _each(np.greater),
    "GreaterOrEqual": _each(np.greater_equal),
    "Less": _each(np.less),
    "LessOrEqual": _each(np.less_equal),
    "And": _each(np.logical_and),
    "Or": _each(np.logical_or),
    "Xor": _each(np.logical_xor),
    "Not": _each(np.logical_not),
    "Where": _each(lambda condition, x, y: np.where(condition, x, y)),
    "MatMul": _each(np.matmul),
    "Gemm": _gemm,
    "Softmax": _softmax,
    "LogSoftmax": _log_softmax,
    "ReduceSum": _reduction(np.sum),
    "ReduceMean": _reduction(np.mean),
    "ReduceMax": _reduction(_largest),
    "ReduceMin": _reduction(_smallest),
    "ReduceProd": _reduction(np.prod),
    "ReduceSumSquare": _reduction(lambda x, axis, keepdims: np.sum(x * x, axis=axis, keepdims=keepdims)),
    "ReduceL1": _reduction(lambda x, axis, keepdims: np.sum(np.abs(x), axis=axis, keepdims=keepdims)),
    "ReduceL2": _reduction(lambda x, axis, keepdims: np.sqrt(np.sum(x * x, axis=axis, keepdims=keepdims))),
    "ReduceLogSumExp": _reduction(_log_sum_exp),
    "ArgMax": _extremum(np.argmax),
    "ArgMin": _extremum(np.argmin),
    "BatchNormalization": _batch_normalization,
    "LayerNormalization": _layer_normalization,
    # Not ONNX's: what Keras makes of a mask.
    "LengthsOfMask": _lengths_of_mask,
    "HoldLast": _hold_last,
}
# What changes no value, only its place: a chain of these between two layers may come to nothing.
MOVES = {"Identity", "Dropout", "Transpose", "Concat", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Slice"}
MOVES |= {"Split", "Gather", "Tile"}
