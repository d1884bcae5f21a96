"""Keras's other layers as steps: embeddings, masks, dense layers, normalisation, shapes, merges, pooling over time.

In: a layer's config, arrays and the values it is called with, from `keras.py`. Out: values. What a layer does in
training alone is left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from . import keras_images
from .fields import Unreadable, integer, integers, mapping, number
from .keras_attention import attended, attended_by_heads
from .keras_cells import activate, activation_name
from .keras_recurrent import Call, Part, Value, bidirectional, recurrent

Handler = Callable[[Call], list[Value]]


def apply_layer(call: Call) -> list[Value]:
    """The values that a layer gives. Raises Unreadable for what is not supported."""
    if call.part.kind not in HANDLERS:
        raise Unreadable(f"layers of class {call.part.kind} are not supported")
    if not call.inputs:
        raise Unreadable("it is called with nothing")
    return HANDLERS[call.part.kind](call)


def _constant(call: Call, at: int, rank: int) -> str:
    arrays = call.part.arrays
    if at >= len(arrays) or arrays[at].ndim != rank or arrays[at].dtype.kind != "f":
        shapes = [list(a.shape) for a in arrays]
        raise Unreadable(f"its arrays have shapes {shapes}, expected number {at} to be numbers with {rank} axes")
    return call.numbers(arrays[at])


def _stepwise(call: Call, op: str, *more: str, **attributes: object) -> list[Value]:
    """A step that leaves axes B and T as they are, and with them the mask."""
    return [Value(call.emit(op, call.x.name, *more, **attributes), call.x.mask)]


def _activated(call: Call, value: str) -> list[Value]:
    name, model = activation_name(call.config.get("activation")), call.model
    return [Value(activate(model.steps, call.part.label, model.dtype, value, name), call.x.mask)]


def _embedding(call: Call) -> list[Value]:
    words, dtype = call.x.name, call.model.steps.dtypes.get(call.x.name, "int32")
    # An Input is of floats if nothing is said.
    whole = call.emit("Cast", words, dtype="int32") if dtype.startswith("float") else words
    found = call.emit("Gather", _constant(call, 0, 2), whole, axis=0)
    if not call.config.get("mask_zero"):
        return [Value(found)]
    zero = call.model.steps.keep(0, dtype)
    return [Value(found, call.emit("Not", call.emit("Equal", words, zero)))]


def _masking(call: Call) -> list[Value]:
    x, value = call.x.name, call.numbers(number(call.config, "mask_value", 0.0))
    counts = call.emit("Cast", call.emit("Not", call.emit("Equal", x, value)), dtype=call.model.dtype)
    kept = call.emit("ReduceMax", counts, axes=[-1], keepdims=1)
    mask = call.emit("Cast", call.emit("Squeeze", kept, call.whole(-1)), dtype="bool")
    return [Value(call.emit("Mul", x, kept), mask)]


def _dense(call: Call) -> list[Value]:
    y = call.emit("MatMul", call.x.name, _constant(call, 0, 2))
    return _activated(call, call.emit("Add", y, _constant(call, 1, 1)) if call.config.get("use_bias", True) else y)


def _relu(call: Call) -> list[Value]:
    if any(call.config.get(key) for key in ("negative_slope", "threshold", "max_value")):
        raise Unreadable("a ReLU with slope, threshold or limit is not supported")
    return _stepwise(call, "Relu")


def _time_distributed(call: Call) -> list[Value]:
    inner = mapping(call.config.get("layer"))
    kind, config = str(inner.get("class_name", "")), inner.get("config")
    known = {*WRAPPED, *FOLDED_IN}
    if kind not in known or not isinstance(config, Mapping):
        raise Unreadable(f"it wraps {kind!r}, which is none of {', '.join(sorted(known))}")
    own = replace(call, part=Part(call.part.name, kind, config, call.part.arrays))
    if kind in WRAPPED:
        return HANDLERS[kind](own)
    # All steps of all rows are rows of the layer.
    shape = call.emit("Shape", call.x.name)
    lead, rest = (call.emit("Slice", shape, starts=[a], ends=[b], axes=[0]) for a, b in ((0, 2), (2, 99)))
    rows = call.emit("Reshape", call.x.name, call.emit("Concat", call.whole(-1), rest, axis=0))
    (y,) = HANDLERS[kind](replace(own, inputs=[Value(rows)]))
    more = call.emit("Slice", call.emit("Shape", y.name), starts=[1], ends=[99], axes=[0])
    return [Value(call.emit("Reshape", y.name, call.emit("Concat", lead, more, axis=0)), call.x.mask)]


def _batch_normalization(call: Call) -> list[Value]:
    """One product and one sum, of what was learned."""
    axis, given = call.config.get("axis", -1), call.part.arrays
    if (axis[0] if isinstance(axis, list) and len(axis) == 1 else axis) != -1:
        raise Unreadable(f"axis {axis!r}: the last one alone is supported, as -1")
    names = [n for n, there in (("gamma", "scale"), ("beta", "center")) if call.config.get(there, True)]
    arrays = dict(zip([*names, "mean", "variance"], given, strict=False))
    if len(arrays) != len(given) or {a.ndim for a in arrays.values()} != {1} or "variance" not in arrays:
        raise Unreadable(f"its arrays have shapes {[list(a.shape) for a in given]}")
    wide = {name: value.astype(np.float64) for name, value in arrays.items()}
    scale = wide.get("gamma", 1.0) / np.sqrt(wide["variance"] + number(call.config, "epsilon", 1e-3))
    y = call.emit("Mul", call.x.name, call.numbers(scale))
    return [Value(call.emit("Add", y, call.numbers(wide.get("beta", 0.0) - wide["mean"] * scale)), call.x.mask)]


def _layer_normalization(call: Call) -> list[Value]:
    arrays = call.part.arrays
    if call.config.get("rms_scaling"):
        raise Unreadable("rms_scaling is not supported")
    if not arrays or arrays[0].ndim != 1:  # axis may be -1 or, once it is built, its number
        raise Unreadable("it works on other axes than the last one, or has no arrays")
    at = int(bool(call.config.get("scale", True)))
    scale = _constant(call, 0, 1) if at else call.numbers(np.ones(arrays[0].shape))
    shift = [_constant(call, at, 1)] if call.config.get("center", True) else []
    return _stepwise(call, "LayerNormalization", scale, *shift, epsilon=number(call.config, "epsilon", 1e-3))


def _repeat(call: Call) -> list[Value]:
    count = integer(call.config, "n")
    if count < 1:
        raise Unreadable(f"n is {count!r}")
    return [Value(call.emit("Expand", _moved(call, "Unsqueeze", 1)[0].name, call.whole(1, count, 1)))]


def _moved(call: Call, op: str, *numbers: int) -> list[Value]:
    """Elements in another shape, which a mask is not for."""
    return [Value(call.emit(op, call.x.name, call.whole(*numbers)))]


def _merged(op: str) -> Handler:
    """All inputs in one, with the mask that they share; Keras joins others, which no layer behind may need."""

    def apply(call: Call) -> list[Value]:
        names, masks = [value.name for value in call.inputs], {value.mask for value in call.inputs}
        if op == "Sub" and len(names) != 2:
            raise Unreadable(f"it subtracts {len(names)} values")
        if op in ("Mul", "Max", "Min") and masks != {""}:
            raise Unreadable("values with masks are merged by rules of their own there: not supported")
        if op in ("Mean", "Concat"):
            name = call.emit(op, *names, **({"axis": integer(call.config, "axis", -1)} if op == "Concat" else {}))
        else:
            name = functools.reduce(functools.partial(call.emit, op), names)
        return [Value(name, masks.pop() if len(masks) == 1 else "")]

    return apply


def _pooled(op: str) -> Handler:
    def apply(call: Call) -> list[Value]:
        if call.x.mask and op == "ReduceMean":
            raise Unreadable("an average over masked steps is not supported")
        keep = int(bool(call.config.get("keepdims", False)))
        return [Value(call.emit(op, call.x.name, axes=[1], keepdims=keep))]

    return apply


def _not_equal(call: Call) -> list[Value]:
    """An operation that functional models have for the mask of an embedding."""
    if len(call.inputs) != 2:
        raise Unreadable("it compares other than two values")
    left, right = (value.name for value in call.inputs)
    if (dtype := call.model.steps.dtypes.get(left, "")).startswith("float"):  # words, where an Input says nothing
        right = call.emit("Cast", right, dtype=dtype)
    return [Value(call.emit("Not", call.emit("Equal", left, right)))]


def _any(call: Call) -> list[Value]:
    """An operation that functional models have for the mask of a Masking layer."""
    axis, keep = call.config.get("axis"), call.config.get("keepdims", False)
    if len(call.inputs) != 1 or not isinstance(axis, int) or isinstance(axis, bool) or keep is not False:
        raise Unreadable(f"any over axis {axis!r} with keepdims {keep!r}: one axis that goes is supported")
    counts = call.emit("Cast", call.x.name, dtype=call.model.dtype)
    return [Value(call.emit("Cast", call.emit("ReduceMax", counts, axes=[axis], keepdims=0), dtype="bool"))]


def _rescaled(call: Call) -> list[Value]:
    scale, offset = (
        call.numbers(number(call.config, name, value)) for name, value in (("scale", 1.0), ("offset", 0.0))
    )
    return [Value(call.emit("Add", call.emit("Mul", call.x.name, scale), offset), call.x.mask)]


# What TimeDistributed may wrap: it does the same to each step as to all of them.
WRAPPED = {"Dense", "Activation", "Dropout", "LayerNormalization", "BatchNormalization", "Softmax", "ReLU", "LeakyReLU"}
FOLDED_IN = {*keras_images.HANDLERS, "Flatten", "GlobalAveragePooling1D", "GlobalMaxPooling1D", "Reshape", "Permute"}
# In training alone they do something.
NOTHING = ("Dropout", "SpatialDropout1D", "GaussianNoise", "GaussianDropout", "AlphaDropout", "ActivityRegularization")
HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("SimpleRNN", "LSTM", "GRU", "RNN"), recurrent),
    "Bidirectional": bidirectional,
    **dict.fromkeys((*NOTHING, "Identity"), lambda call: [call.x]),
    "Embedding": _embedding,
    "Masking": _masking,
    "Dense": _dense,
    "Activation": lambda call: _activated(call, call.x.name),
    "ReLU": _relu,
    "LeakyReLU": lambda call: _stepwise(call, "LeakyRelu", alpha=number(call.config, "negative_slope", 0.3)),
    "ELU": lambda call: _stepwise(call, "Elu", alpha=number(call.config, "alpha", 1.0)),
    "Softmax": lambda call: _stepwise(call, "Softmax", axis=integer(call.config, "axis", -1)),
    "TimeDistributed": _time_distributed,
    "BatchNormalization": _batch_normalization,
    "LayerNormalization": _layer_normalization,
    "Reshape": lambda call: _moved(call, "Reshape", 0, *integers(call.config, "target_shape")),
    "Permute": lambda call: [Value(call.emit("Transpose", call.x.name, perm=[0, *integers(call.config, "dims")]))],
    "Flatten": lambda call: [Value(call.emit("Flatten", call.x.name, axis=1))],
    "RepeatVector": _repeat,
    "Add": _merged("Add"),
    "Subtract": _merged("Sub"),
    "Multiply": _merged("Mul"),
    "Maximum": _merged("Max"),
    "Minimum": _merged("Min"),
    "Average": _merged("Mean"),
    "Concatenate": _merged("Concat"),
    "GlobalAveragePooling1D": _pooled("ReduceMean"),
    "GlobalMaxPooling1D": _pooled("ReduceMax"),
    "NotEqual": _not_equal,
    "Any": _any,
    "Rescaling": _rescaled,
    "PReLU": lambda call: _stepwise(
        call, "PRelu", _constant(call, 0, call.part.arrays[0].ndim if call.part.arrays else 1)
    ),
    **dict.fromkeys(("Attention", "AdditiveAttention"), attended),
    "MultiHeadAttention": attended_by_heads,
    **keras_images.HANDLERS,
}
