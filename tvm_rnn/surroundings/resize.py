"""ONNX's Resize, of axes whose sizes are known: along each axis a sum of a few elements, whose places and weights are
computed here.

In: a node. Out: its value. Every mode is linear in its input and goes axis by axis, so the standard's own evaluator,
on the rows of an identity matrix, says all that there is to know of an axis.

Rewrite: y = Resize(x, scales=[1, 2])  -->  y[i, o] = sum of k: w[o, k] * x[i, at[o, k]]
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from tvm import relax, te

from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import int64

from .graph_node import Item, Node
from .nodes import OPSET, import_onnx

Attributes = Mapping[str, object]
POLICIES = {"not_larger": min, "not_smaller": max}


def resized(node: Node) -> Item:
    """The value. Raises ValueError where an axis is resized whose size only a run shows."""
    attributes = {
        name: value.decode() if isinstance(value, bytes) else value
        for name, value in node.attributes.items()
        if name != "tvm_custom"
    }
    x = node.asked.array(node.inputs[0])
    rank = len(node.shape(x))
    axes = [int(axis) % rank for axis in attributes.pop("axes", range(rank))]
    roi, scales, sizes = (_floats(node, place) for place in (1, 2, 3))
    if policy := POLICIES.get(attributes.pop("keep_aspect_ratio_policy", "stretch")):
        parts = zip(sizes, axes, strict=True)
        scale = policy(size / _known(node.shape(x)[axis]) for size, axis in parts)
        lengths = [_known(node.shape(x)[axis]) for axis in axes]
        scales, sizes = [max(scale, math.floor(scale * n + 0.5) / n) for n in lengths], []
    for i, axis in enumerate(axes):
        own = {"scales": scales[i : i + 1], "sizes": sizes[i : i + 1], "roi": [*roi[i :: len(axes)]]}
        if own["scales"] != [1.0] or attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize":
            size = node.shape(x)[axis]
            if own["sizes"] == [size] and not own["roi"]:
                continue
            x = _along(node, x, axis, _matrix(_known(size), own, attributes))
    return x


def _floats(node: Node, place: int) -> list[float]:
    """The numbers of an input. Raises ValueError where only a run shows them."""
    value = node.inputs[place] if place < len(node.inputs) else None
    if value is None:
        return []
    if not isinstance(value, np.ndarray) and not hasattr(value, "value"):
        raise ValueError("what it is resized to is not known before the model runs")
    array = value if isinstance(value, np.ndarray) else value.value.numpy()
    return [float(number) for number in array.reshape(-1).tolist()]


def _known(size: Expr) -> int:
    if not isinstance(size, int):
        raise ValueError("an axis is resized whose size only a run shows")
    return size


def _matrix(size: int, own: Mapping[str, list[float]], attributes: Attributes) -> np.ndarray:
    """What each element of an axis adds to each element of the resized one: [resized, size]."""
    onnx = import_onnx()
    from onnx.reference import ReferenceEvaluator

    kinds = {"roi": np.float64, "scales": np.float32, "sizes": np.int64}
    given = {name: np.asarray(own[name], kind) for name, kind in kinds.items() if own[name]}
    names = ["x", *(name if name in given else "" for name in kinds)]
    node = onnx.helper.make_node("Resize", names, ["y"], axes=[1], **attributes)
    codes = {"x": 11, "roi": 11, "scales": 1, "sizes": 7}
    inputs = [onnx.helper.make_tensor_value_info(name, codes[name], None) for name in names if name]
    graph = onnx.helper.make_graph([node], "axis", inputs, [onnx.helper.make_tensor_value_info("y", 11, None)])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)])
    run = ReferenceEvaluator(model).run
    outside, found = (np.asarray(*run(None, {"x": x, **given})) for x in (np.zeros((1, size)), np.eye(size)))
    if outside.any():
        raise ValueError("extrapolation_value other than 0 is not supported")
    return found.T


def _along(node: Node, x: relax.Expr, axis: int, matrix: np.ndarray) -> relax.Expr:
    """Sums along an axis, of as many elements as a row of the matrix has that are not 0."""
    kind, most = str(x.ty.dtype), max(1, int((matrix != 0).sum(1).max(initial=0)))
    places = np.argsort(matrix == 0, axis=1, kind="stable")[:, :most]
    weights = np.take_along_axis(matrix, places, 1)
    places = np.where(
        weights == 0, places[:, :1], places
    )  # of what has weight 0 nothing is read that is not read anyway
    plain = bool((weights[:, 0] == 1).all()) and most == 1

    def element(source: te.Tensor, at: te.Tensor, by: te.Tensor) -> te.Tensor:
        def value(*index: Expr) -> Expr:
            def read(k: int) -> Expr:
                return source(*index[:axis], at(index[axis], int64(k)), *index[axis + 1 :])

            if plain:
                return read(0)
            return sum(
                (read(k) * by(index[axis], int64(k)) for k in range(1, most)), read(0) * by(index[axis], int64(0))
            )

        shape = [*source.shape]
        shape[axis] = int64(len(matrix))
        return te.compute(shape, value, name="resize")

    return node.bb.emit_te(element, x, relax.const(places.astype(np.int64)), relax.const(weights.astype(kind)))
