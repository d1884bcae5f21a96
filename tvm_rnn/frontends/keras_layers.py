"""Keras's other layers as steps: embeddings, masks, dense layers, normalisation, shapes, merges, pooling.

In: a layer's config, arrays and the values it is called with, from `keras.py`. Out: values. What a layer does in
training alone is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from .fields import Unreadable, integer, integers, mapping, number
from .keras_activations import activate, activation_name
from .keras_recurrent import Model, Part, Value, bidirectional, recurrent

Handler = Callable[[Model, Part, Sequence[Value]], list[Value]]


def apply_layer(model: Model, part: Part, inputs: Sequence[Value]) -> list[Value]:
    """The values that a layer gives. Raises Unreadable for what is not supported."""
    if part.kind not in HANDLERS:
        raise Unreadable(f"layers of class {part.kind} are not supported")
    if not inputs:
        raise Unreadable("it is called with nothing")
    return HANDLERS[part.kind](model, part, inputs)


def _constant(model: Model, part: Part, at: int, rank: int) -> str:
    if at >= len(part.arrays) or part.arrays[at].ndim != rank or part.arrays[at].dtype.kind != "f":
        shapes = [list(a.shape) for a in part.arrays]
        raise Unreadable(f"its arrays have shapes {shapes}, expected number {at} to be numbers with {rank} axes")
    return model.steps.keep(part.arrays[at], model.dtype)


def _same(model: Model, part: Part, inputs: Sequence[Value]) -> list[Value]:
    return [inputs[0]]


def _embedding(model: Model, part: Part, inputs: Sequence[Value]) -> list[Value]:
    words = inputs[0].name
    found = model.emit(part, "Gather", _constant(model, part, 0, 2), words, axis=0)
    if not part.config.get("mask_zero"):
        return [Value(found)]
    zero = model.steps.keep(0, model.steps.dtypes.get(words, "int32"))
    return [Value(found, model.emit(part, "Not", model.emit(part, "Equal", words, zero)))]


def _masking(model: Model, part: Part, inputs: Sequence[Value]) -> list[Value]:
    x, value = inputs[0].name, model.steps.keep(number(part.config, "mask_value", 0.0), model.dtype)
    other = model.emit(part, "Not", model.emit(part, "Equal", x, value))
    counts = model.emit(part, "Cast", other, dtype=model.dtype)
    kept = model.emit(part, "ReduceMax", counts, axes=[-1], keepdims=1)
    mask = model.emit(part, "Cast", model.emit(part, "Squeeze", kept, model.whole(-1)), dtype="bool")
    return [Value(model.emit(part, "Mul", x, kept), mask)]


def _dense(model: Model, part: Part, inputs: Sequence[Value]) -> list[Value]:
    y = model.emit(part, "MatMul", inputs[0].name, _constant(model, part, 0, 2))
    if part.config.get("use_bias", True):
        y = model.emit(part, "Add", y, _constant(model, part, 1, 1))
    name = activation_name(part.config.get("activation"))
    return [Value(activate(model.steps, part.label, model.dtype, y, name), inputs[0].mask)]


def _activation(model: Model, part: Part, inputs: Sequence[Value]) -> list[Value]:
    name = activation_name(part.config.get("activation"))
    return [Value(activate(model.steps, part.label, model.dtype, inputs[0].name, name), inputs[0].mask)]


def _relu(model: Model, part: Part, inputs: Sequence[Value]) -> list[Value]:
    given = [part.config.get(key) for key in ("negative_slope", "threshold", "max_value")]
    if any(given):
        raise Unreadable("a ReLU with slope, threshold or limit is not supported")
    return [Value(model.emit(part, "Relu", inputs[0].name), inputs[0].mask)]


def _slope(op: str, key: str, default: float) -> Handler:
    def apply(model: Model, part: Part, inputs: Sequence[Value]) -> list[Value]:
        alpha = number(part.config, key, default)
        return [Value(model.emit(part, op, inputs[0].name, alpha=alpha), inputs[0].mask)]

    return apply


def _softmax(model: Model, part: Part, inputs: Sequence[Value]) -> list[Value]:
    axis = integer(part.config, "axis", -1)
    return [Value(model.emit(part, "Softmax", inputs[0].name, axis=axis), inputs[0].mask)]


def _time_distributed(model: Model, part: Part, inputs: Sequence[Value]) -> list[Value]:
    inner = mapping(part.config.get("layer"))
    kind, config = str(inner.get("class_name", "")), inner.get("config")
    if kind not in STEPWISE or not isinstance(config, Mapping):
        raise Unreadable(f"it wraps {kind!r}, which is none of {', '.join(sorted(STEPWISE))}")
    return HANDLERS[kind](model, Part(part.name, kind, config, part.arrays), inputs)


def _axis(part: Part) -> None:
    axis = part.config.get("axis", -1)
    if (axis[0] if isinstance(axis, list) and len(axis) == 1 else axis) != -1:
        raise Unreadable(f"axis {axis!r}: the last one alone is supported, as -1")


def _batch_normalization(model: Model, part: Part, inputs: Sequence[Value]) -> list[Value]:
    """One product and one sum, of what was learned."""
    _axis(part)
    names = [n for n, there in (("gamma", "scale"), ("beta", "center")) if part.config.get(there, True)]
    arrays = dict(zip([*names, "mean", "variance"], part.arrays, strict=False))
    if len(arrays) != len(part.arrays) or {a.ndim for a in arrays.values()} != {1} or "variance" not in arrays:
        raise Unreadable(f"its arrays have shapes {[list(a.shape) for a in part.arrays]}")
    wide = {name: value.astype(np.float64) for name, value in arrays.items()}
    scale = wide.get("gamma", 1.0) / np.sqrt(wide["variance"] + number(part.config, "epsilon", 1e-3))
    shift = wide.get("beta", 0.0) - wide["mean"] * scale
    y = model.emit(part, "Mul", inputs[0].name, model.steps.keep(scale, model.dtype))
    return [Value(model.emit(part, "Add", y, model.steps.keep(shift, model.dtype)), inputs[0].mask)]


def _layer_normalization(model: Model, part: Part, inputs: Sequence[Value]) -> list[Value]:
    if part.config.get("rms_scaling"):
        raise Unreadable("rms_scaling is not supported")
    if not part.arrays or part.arrays[0].ndim != 1:  # axis may be -1 or, once it is built, its number
        raise Unreadable("it works on other axes than the last one, or has no arrays")
    at = 0
    scale = model.steps.keep(np.ones(part.arrays[0].shape), model.dtype)
    if part.config.get("scale", True):
        scale, at = _constant(model, part, 0, 1), 1
    inputs_of = [inputs[0].name, scale, *([_constant(model, part, at, 1)] if part.config.get("center", True) else [])]
    epsilon = number(part.config, "epsilon", 1e-3)
    return [Value(model.emit(part, "LayerNormalization", *inputs_of, epsilon=epsilon), inputs[0].mask)]


def _reshape(model: Model, part: Part, inputs: Sequence[Value]) -> list[Value]:
    sizes = integers(part.config, "target_shape")
    return [Value(model.emit(part, "Reshape", inputs[0].name, model.whole(0, *sizes)))]


def _permute(model: Model, part: Part, inputs: Sequence[Value]) -> list[Value]:
    return [Value(model.emit(part, "Transpose", inputs[0].name, perm=[0, *integers(part.config, "dims")]))]


def _flatten(model: Model, part: Part, inputs: Sequence[Value]) -> list[Value]:
    return [Value(model.emit(part, "Flatten", inputs[0].name, axis=1))]


def _repeat(model: Model, part: Part, inputs: Sequence[Value]) -> list[Value]:
    count = integer(part.config, "n")
    if count < 1:
        raise Unreadable(f"n is {count!r}")
    spread = model.emit(part, "Unsqueeze", inputs[0].name, model.whole(1))
    return [Value(model.emit(part, "Expand", spread, model.whole(1, count, 1)))]


def _merged(op: str) -> Handler:
    def apply(model: Model, part: Part, inputs: Sequence[Value]) -> list[Value]:
        if op == "Sub" and len(inputs) != 2:
            raise Unreadable(f"it subtracts {len(inputs)} values")
        if op in ("Mul", "Max", "Min") and any(value.mask for value in inputs):
            raise Unreadable("values with masks are merged by rules of their own there: not supported")
        name = inputs[0].name
        if op == "Mean":
            return [Value(model.emit(part, op, *(value.name for value in inputs)), _one_mask(inputs))]
        for value in inputs[1:]:
            name = model.emit(part, op, name, value.name)
        return [Value(name, _one_mask(inputs))]

    return apply


def _concatenate(model: Model, part: Part, inputs: Sequence[Value]) -> list[Value]:
    axis = integer(part.config, "axis", -1)
    return [Value(model.emit(part, "Concat", *(value.name for value in inputs), axis=axis), _one_mask(inputs))]


def _one_mask(inputs: Sequence[Value]) -> str:
    """The mask that all inputs share; Keras joins others, which no layer behind may need."""
    masks = {value.mask for value in inputs}
    return masks.pop() if len(masks) == 1 else ""


def _pooled(op: str) -> Handler:
    def apply(model: Model, part: Part, inputs: Sequence[Value]) -> list[Value]:
        x = inputs[0]
        if x.mask and op == "ReduceMean":
            raise Unreadable("an average over masked steps is not supported")
        keep = int(bool(part.config.get("keepdims", False)))
        return [Value(model.emit(part, op, x.name, axes=[1], keepdims=keep))]

    return apply


def _not_equal(model: Model, part: Part, inputs: Sequence[Value]) -> list[Value]:
    """An operation that functional models have for the mask of an embedding."""
    if len(inputs) != 2:
        raise Unreadable("it compares other than two values")
    return [Value(model.emit(part, "Not", model.emit(part, "Equal", inputs[0].name, inputs[1].name)))]


def _any(model: Model, part: Part, inputs: Sequence[Value]) -> list[Value]:
    """An operation that functional models have for the mask of a Masking layer."""
    axis, keep = part.config.get("axis"), part.config.get("keepdims", False)
    if len(inputs) != 1 or not isinstance(axis, int) or isinstance(axis, bool) or keep is not False:
        raise Unreadable(f"any over axis {axis!r} with keepdims {keep!r}: one axis that goes is supported")
    counts = model.emit(part, "Cast", inputs[0].name, dtype=model.dtype)
    found = model.emit(part, "ReduceMax", counts, axes=[axis], keepdims=0)
    return [Value(model.emit(part, "Cast", found, dtype="bool"))]


STEPWISE = {
    "Dense",
    "Activation",
    "Dropout",
    "LayerNormalization",
    "BatchNormalization",
    "Softmax",
    "ReLU",
    "LeakyReLU",
}
HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("SimpleRNN", "LSTM", "GRU", "RNN"), lambda model, part, inputs: recurrent(model, part, inputs[0])),
    "Bidirectional": lambda model, part, inputs: bidirectional(model, part, inputs[0]),
    # In training alone they do something.
    **dict.fromkeys(("Dropout", "SpatialDropout1D", "GaussianNoise", "GaussianDropout", "AlphaDropout"), _same),
    **dict.fromkeys(("ActivityRegularization", "Identity"), _same),
    "Embedding": _embedding,
    "Masking": _masking,
    "Dense": _dense,
    "Activation": _activation,
    "ReLU": _relu,
    "LeakyReLU": _slope("LeakyRelu", "negative_slope", 0.3),
    "ELU": _slope("Elu", "alpha", 1.0),
    "Softmax": _softmax,
    "TimeDistributed": _time_distributed,
    "BatchNormalization": _batch_normalization,
    "LayerNormalization": _layer_normalization,
    "Reshape": _reshape,
    "Permute": _permute,
    "Flatten": _flatten,
    "RepeatVector": _repeat,
    "Add": _merged("Add"),
    "Subtract": _merged("Sub"),
    "Multiply": _merged("Mul"),
    "Maximum": _merged("Max"),
    "Minimum": _merged("Min"),
    "Average": _merged("Mean"),
    "Concatenate": _concatenate,
    "GlobalAveragePooling1D": _pooled("ReduceMean"),
    "GlobalMaxPooling1D": _pooled("ReduceMax"),
    "NotEqual": _not_equal,
    "Any": _any,
}
