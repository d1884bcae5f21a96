"""ONNX's Slice where its ends follow from sizes: the first T rows of a table, the last step of a sequence.

In: a node. Out: its value, or None where TVM's own form does.
"""

from __future__ import annotations

import numpy as np
from tvm import te, tirx

from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import int64, wide

from .graph_node import Item, Node
from .sizes import simplified


def sliced(node: Node) -> Item:
    """Forwards along each axis: from places and to places that the sizes of inputs tell."""
    given = [None if value is None else node.known(value) for value in [*node.inputs[1:], None, None][:4]]
    starts, ends, axes, steps = given
    if not any(isinstance(value, np.ndarray) for value in node.inputs[1:]) or starts is None or ends is None:
        return None
    x = node.asked.array(node.inputs[0])
    shape = node.shape(x)
    along = range(len(starts)) if axes is None else [int(axis) % len(shape) for axis in axes]
    every = [1] * len(starts) if steps is None else [int(step) for step in steps]
    if min(every, default=1) < 1:
        return None
    begins, extents, strides = [int64(0) for _ in shape], [wide(size) for size in shape], [int64(1) for _ in shape]
    for axis, start, end, step in zip(along, starts.tolist(), ends.tolist(), every, strict=True):
        begins[axis], strides[axis] = _place(start, shape[axis]), int64(step)
        distance = _place(end, shape[axis]) - begins[axis] + int64(step - 1)
        extents[axis] = simplified(tirx.Max(tirx.floordiv(distance, int64(step)), int64(0)))

    def at(source: te.Tensor) -> te.Tensor:
        def element(*index: Expr) -> Expr:
            return source(*(a + wide(i) * b for a, i, b in zip(begins, index, strides, strict=True)))

        return te.compute(extents, element, name="slice")

    return node.bb.emit_te(at, x)


def _place(number: Expr, size: Expr) -> Expr:
    """From 0 to the size; below 0 it is counted from the end."""
    at, last = wide(number), wide(size)
    return simplified(tirx.Max(tirx.Min(tirx.Select(at < int64(0), at + last, at), last), int64(0)))
