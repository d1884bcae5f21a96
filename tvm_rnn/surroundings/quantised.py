"""QuantizeLinear and DequantizeLinear with a scale for each block of an axis, which TVM's importer of ONNX has not.

In: a node. Out: its value, or None where TVM's own form does.
"""

from __future__ import annotations

import numpy as np
from tvm import relax, te, tirx

from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import int64, wide

from .graph_node import Item, Node
from .nodes import DTYPES


def quantised(node: Node) -> Item:
    """To whole numbers: the nearest ones there are, ties to even."""
    if not _has_blocks(node):
        return None
    op, normal = relax.op, node.bb.normalize
    x, scale, *zeros = _spread(node)
    kind = DTYPES[int(node.attributes["output_dtype"])] if node.attributes.get("output_dtype") else "uint8"
    level = normal(op.round(normal(op.divide(x, normal(op.astype(scale, str(x.ty.dtype)))))))
    if zeros:
        kind = str(zeros[0].ty.dtype)
        level = normal(op.add(level, normal(op.astype(zeros[0], str(x.ty.dtype)))))
    ends = np.iinfo(kind)
    return op.astype(normal(op.clip(level, int(ends.min), int(ends.max))), kind)


def dequantised(node: Node) -> Item:
    """Whole numbers less their zero points, times their scales."""
    if not _has_blocks(node):
        return None
    op, normal = relax.op, node.bb.normalize
    x, scale, *zeros = _spread(node)
    work = "int32" if zeros else str(x.ty.dtype)
    whole = normal(op.astype(x, work))
    if zeros:
        whole = normal(op.subtract(whole, normal(op.astype(zeros[0], work))))
    return op.multiply(normal(op.astype(whole, str(scale.ty.dtype))), scale)


def _has_blocks(node: Node) -> bool:
    """TVM scales in float16 what the standard scales in float32."""
    if str(node.inputs[1].ty.dtype) == "float16":
        raise ValueError("scales of float16 are not supported")
    return bool(node.attributes.get("block_size", 0))


def _spread(node: Node) -> list[relax.Expr]:
    """What is scaled, and its scales and zero points for each element."""
    size, (x, *others) = int(node.attributes["block_size"]), (own for own in node.inputs if own is not None)
    shape = [wide(n) for n in node.shape(x)]
    axis = int(node.attributes.get("axis", 1)) % len(shape)

    def at(source: te.Tensor) -> te.Tensor:
        def element(*index: Expr) -> Expr:
            block = tirx.floordiv(wide(index[axis]), int64(size))
            return source(*index[:axis], block, *index[axis + 1 :])

        return te.compute(shape, element, name="blocks")

    return [x, *(node.bb.emit_te(at, own) for own in others)]
