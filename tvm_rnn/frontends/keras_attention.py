"""Keras's attention layers as steps: a query's softmax over keys, and the values it chooses.

In: a layer's config and arrays, the values it is called with (query, value, key), from `keras_layers.py`. Out: values.

Rewrite: Attention(q, v, k)  -->  softmax(q @ k^T) @ v
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .fields import Unreadable, integer
from .keras_recurrent import Call, Value

ATTENTION = ("Attention", "AdditiveAttention", "MultiHeadAttention")


def attended(call: Call) -> list[Value]:
    """By products, or by a tanh of sums."""
    query, value, key = _given(call)
    scale = [call.numbers(array) for array in call.part.arrays]
    concat = call.config.get("score_mode", "dot") == "concat"
    if len(scale) != int(bool(call.config.get("use_scale"))) + concat:
        raise Unreadable(f"it has {len(scale)} arrays")
    if concat or call.part.kind == "AdditiveAttention":
        sums = call.emit(
            "Add", call.emit("Unsqueeze", query, call.whole(2)), call.emit("Unsqueeze", key, call.whole(1))
        )
        before, behind = (scale[:-1], scale[-1:]) if concat else ([], scale)
        sums = call.emit("Tanh", call.emit("Mul", sums, before[0]) if before else sums)
        sums = call.emit("Mul", sums, behind[0]) if behind else sums
        scores = call.emit("ReduceSum", sums, axes=[-1], keepdims=0)
    else:
        scores = call.emit("MatMul", query, call.emit("Transpose", key, perm=[0, 2, 1]))
        scores = call.emit("Mul", scores, scale[0]) if scale else scores
    return [Value(call.emit("MatMul", call.emit("Softmax", scores, axis=-1), value))]


def attended_by_heads(call: Call) -> list[Value]:
    """Over the axis behind the batch, with several heads."""
    query, value, key = _given(call)
    heads, wide = integer(call.config, "num_heads"), integer(call.config, "key_dim")
    arrays, biased = call.part.arrays, int(bool(call.config.get("use_bias", True)))
    if call.config.get("attention_axes") not in (None, 1, [1]):
        raise Unreadable("attention over other axes than the one behind the batch is not supported")
    ranks = [3, *[2] * biased] * 3 + [3, *[1] * biased]
    if [array.ndim for array in arrays] != ranks or arrays[0].shape[1:] != (heads, wide):
        raise Unreadable(f"its arrays have shapes {[list(array.shape) for array in arrays]}")
    step = 1 + biased
    q, k, v = (
        _heads(call, x, arrays[i * step : (i + 1) * step], perm)
        for i, (x, perm) in enumerate(((query, [0, 2, 1, 3]), (key, [0, 2, 3, 1]), (value, [0, 2, 1, 3])))
    )
    scores = call.emit("Mul", call.emit("MatMul", q, k), call.numbers(np.asarray(1 / math.sqrt(wide))))
    chosen = call.emit("MatMul", call.emit("Softmax", scores, axis=-1), v)
    chosen = call.emit("Transpose", chosen, perm=[0, 2, 1, 3])
    last = arrays[3 * step]
    joined = call.emit("Reshape", chosen, call.whole(0, 0, last.shape[0] * last.shape[1]))
    y = call.emit("MatMul", joined, call.numbers(last.reshape(-1, last.shape[2])))
    return [Value(call.emit("Add", y, call.numbers(arrays[-1])) if biased else y)]


def _heads(call: Call, x: str, arrays: Sequence[np.ndarray], perm: list[int]) -> str:
    """A value's product with weights [D, N, K], as [B, N, ...]."""
    size, count, wide = arrays[0].shape
    y = call.emit("MatMul", x, call.numbers(arrays[0].reshape(size, count * wide)))
    y = call.emit("Add", y, call.numbers(arrays[1].reshape(-1))) if len(arrays) > 1 else y
    return call.emit("Transpose", call.emit("Reshape", y, call.whole(0, 0, count, wide)), perm=perm)


def _given(call: Call) -> tuple[str, str, str]:
    """Query, value and key, which is the value where there is none."""
    if any(value.mask for value in call.inputs):
        raise Unreadable("attention over values with masks is not supported")
    if call.part.options:
        raise Unreadable(f"it is called with {', '.join(sorted(call.part.options))}, which is not supported")
    if len(call.inputs) not in (2, 3):
        raise Unreadable(f"it is called with {len(call.inputs)} values, expected a query, a value and perhaps a key")
    names = [value.name for value in call.inputs]
    return names[0], names[1], names[-1]
