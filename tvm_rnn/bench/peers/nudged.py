"""An ONNX file whose floats are all rounded once more: what its results move by then is no fault of who computes them.

In: a file. Out: the bytes of a model in which every float is the next larger one: constants, weights, scales, in the
bodies of nodes too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from onnx import GraphProto, TensorProto


def nudged(path: Path) -> bytes:
    """The bytes of the changed model."""
    import onnx

    model = onnx.load(path)
    for tensor in _tensors(model.graph):
        value = onnx.numpy_helper.to_array(tensor)
        if value.dtype.kind == "f":
            more = np.nextafter(value, value.dtype.type(np.inf))
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.where(np.isfinite(more), more, value), tensor.name))
    return bytes(model.SerializeToString())


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("g"):
                yield from _tensors(attribute.g)
