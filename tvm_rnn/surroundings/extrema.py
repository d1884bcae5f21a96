"""The place of the largest or smallest element along an axis, as two sums: TVM's own loop carries a pair from step to
step, which no vectors and no threads share. Of bools, of which TVM knows no least one, the extremum itself.

In: a node. Out: its value, or None where TVM's own form does.

Rewrite: ArgMax(x)  -->  the least k with not x[k] < max(x); 0 where there is NaN
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax, te, tirx

from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import int64, wide

from .graph_node import Item, Node


def place_of_largest(node: Node) -> Item:
    """ONNX's ArgMax."""
    return _place(node, relax.op.max, tirx.LT)


def place_of_smallest(node: Node) -> Item:
    """ONNX's ArgMin."""
    return _place(node, relax.op.min, tirx.GT)


def of_bools(node: Node) -> Item:
    """ReduceMax, whether any is true, and ReduceMin, whether all are: of none false and true."""
    op, normal, x = relax.op, node.bb.normalize, node.asked.array(node.inputs[0])
    if str(x.ty.dtype) != "bool":
        return None
    axes = node.sizes(1) if len(node.inputs) > 1 else node.attributes.get("axes")
    chosen = None if axes is None or not len(axes) else [int(axis) for axis in axes]
    if chosen is None and node.attributes.get("noop_with_empty_axes", 0):
        return x
    extremum = op.max if node.op == "ReduceMax" else op.min
    found = extremum(normal(op.astype(x, "int8")), chosen, bool(node.attributes.get("keepdims", 1)))
    return op.greater(normal(found), relax.const(0, "int8"))


def _place(node: Node, extremum: Callable[..., relax.Expr], before: Callable[[Expr, Expr], Expr]) -> Item:
    """before: whether an element is not yet the extremum."""
    x = node.asked.array(node.inputs[0])
    rank, last = len(node.shape(x)), bool(node.attributes.get("select_last_index", 0))
    axis = int(node.attributes.get("axis", 0)) % max(rank, 1)
    keeps, most = bool(node.attributes.get("keepdims", 1)), node.bb.normalize(extremum(x, axis, keepdims=True))

    def at(source: te.Tensor, found: te.Tensor) -> te.Tensor:
        sizes = [wide(size) for size in source.shape]
        none, reduced = (int64(-1), te.max) if last else (sizes[axis], te.min)
        kept = [*sizes[:axis], *([int64(1)] if keeps else []), *sizes[axis + 1 :]]
        k = te.reduce_axis((int64(0), sizes[axis]), name="k")

        def element(*index: Expr) -> Expr:
            behind = index[axis + 1 :] if keeps else index[axis:]
            value, best = (own(*index[:axis], place, *behind) for own, place in ((source, k.var), (found, int64(0))))
            return reduced(tirx.Select(before(value, best), none, wide(k.var)), axis=k)

        return te.compute(kept, element, name="place")

    return node.bb.emit_te(at, x, most)
