"""What an operator makes of arrays that are known: by the onnx package's own reference, which is an oracle here too.

In: an operator, its attributes as a step has them (of any version of the standard), arrays. Out: new arrays, in the
dtypes that the standard says. What the reference computes otherwise than the standard says, in less than the dtype's
precision, or has not, is in OWN.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tvm_rnn.network.program import Step

from .nodes import import_onnx, node_of, opset_of

Array = np.ndarray
Attributes = Mapping[str, object]


class Refused(Exception):
    """What cannot be computed, in words."""


class _Constants:
    """What a node has as inputs and its step as attributes."""

    def __init__(self) -> None:
        self.constants: dict[str, Array] = {}

    def keep(self, value: Array) -> str:
        name = f"constant{len(self.constants)}"
        self.constants[name] = value
        return name


def evaluated(op: str, inputs: Sequence[Array | None], attributes: Attributes, outputs: int = 1) -> list[Array]:
    """The first results of an operator, so many. Raises Refused."""
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            if op in OWN:
                made = OWN[op](*inputs, **attributes)
                return [np.asarray(value) for value in (made if isinstance(made, list) else [made])]
            return _by_the_standard(op, inputs, attributes, outputs)
    except Exception as reason:  # of many classes, of onnx and of NumPy
        raise Refused(str(reason) or type(reason).__name__) from None


def _by_the_standard(op: str, inputs: Sequence[Array | None], attributes: Attributes, outputs: int) -> list[Array]:
    kept = _Constants()
    given = {f"x{i}": np.asarray(value) for i, value in enumerate(inputs) if value is not None}
    names = tuple(f"x{i}" if f"x{i}" in given else "" for i in range(len(inputs)))
    made = [f"y{i}" for i in range(outputs)]
    node = node_of(kept, Step(op, names, tuple(made), attributes), _dtype(inputs))
    given |= kept.constants
    assert node is not None
    results = [np.asarray(value) for value in _evaluator(node.SerializeToString(), opset_of([op])).run(None, given)]
    # Of whole numbers the reference has what NumPy adds them up in, the standard the dtype of what is reduced.
    return [value.astype(given["x0"].dtype) for value in results] if op.startswith("Reduce") else results


@functools.lru_cache(512)
def _evaluator(text: bytes, opset: int) -> Any:
    """What computes a node, of its serialized form."""
    from onnx.reference import ReferenceEvaluator

    onnx = import_onnx()
    node, make = onnx.NodeProto.FromString(text), onnx.helper.make_tensor_value_info
    inputs, outputs = ([make(name, 0, None) for name in own if name] for own in (node.input, node.output))
    graph = onnx.helper.make_graph([node], "one", inputs, outputs)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    return ReferenceEvaluator(model)


def _dtype(inputs: Sequence[Array | None]) -> str:
    return next((np.asarray(value).dtype.name for value in inputs if value is not None), "float32")


# --- what the reference has not, or otherwise ------------------------------------------------------------------------


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


def _reshape(x: Array, shape: Array | Sequence[int], *, allowzero: int = 0) -> Array:
    return np.reshape(x, reshaped(np.shape(x), [int(n) for n in np.reshape(shape, -1)], bool(allowzero)))


def _split(x: Array, split: Array | Sequence[int] | None = None, *, axis: int = 0, num_outputs: int = 0) -> list[Array]:
    """The reference looks at no sizes."""
    size = x.shape[axis]
    part = -(-size // max(num_outputs, 1))  # equal parts, the last one smaller
    equal = [max(0, min(part, size - i * part)) for i in range(num_outputs)]
    sizes = equal if split is None else [int(n) for n in np.reshape(split, -1)]
    if sum(sizes) != size or min(sizes, default=0) < 0:
        raise ValueError(f"parts {sizes} of an axis of {size}")
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def _erf(x: Array) -> Array:
    """The reference's is of float32."""
    found = [math.erf(value) for value in np.asarray(x, np.float64).flat]
    return np.array(found, np.asarray(x).dtype).reshape(np.shape(x))


def _sigmoid(x: Array) -> Array:
    """Of large numbers too."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(x.dtype)


def _gather_elements(x: Array, indices: Array, *, axis: int = 0) -> Array:
    """The reference wants other axes as large as those of x."""
    where: list[Array] = [*np.indices(indices.shape, sparse=True)]
    where[axis] = indices
    return np.asarray(x[tuple(where)])


def _top_k(x: Array, k: Array, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> list[Array]:
    """Of equal elements the first one comes first; of those that ONNX's own evaluator sorts, the last one does."""
    turned = np.flip(x, axis) if largest else x
    order = np.argsort(turned, axis, kind="stable")
    order = x.shape[axis] - 1 - np.flip(order, axis) if largest else order
    places = np.take(order, np.arange(int(np.reshape(k, ()))), axis)
    return [np.take_along_axis(x, places, axis), places]


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
    return np.asarray(x[np.arange(len(x))[:, None], steps])


def _reverse_sequence(x: Array, lengths: Array, *, time_axis: int = 0, batch_axis: int = 1) -> Array:
    """The first `lengths[b]` steps of each row in the opposite order, the rest as they are; of empty arrays too."""
    moved = np.moveaxis(x, (time_axis, batch_axis), (0, 1))
    t, n = np.arange(len(moved))[:, None], np.asarray(lengths)[None, :]
    index = np.where(t < n, n - 1 - t, t)
    return np.moveaxis(moved[index, np.arange(moved.shape[1])[None, :]], (0, 1), (time_axis, batch_axis))


OWN: dict[str, Callable[..., Any]] = {
    "Reshape": _reshape,
    "Split": _split,
    "Erf": _erf,
    "Sigmoid": _sigmoid,
    "ReverseSequence": _reverse_sequence,
    "GatherElements": _gather_elements,
    "TopK": _top_k,
    # Not ONNX's: what Keras makes of a mask.
    "LengthsOfMask": _lengths_of_mask,
    "HoldLast": _hold_last,
}
