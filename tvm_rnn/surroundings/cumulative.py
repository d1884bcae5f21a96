"""ONNX's CumSum and CumProd: sums and products of all elements so far along an axis; TVM's own sums are of arrays whose
sizes are known.

In: a node. Out: its value.

Rewrite: CumSum(x)   -->  y[0] = x[0];  y[t] = y[t - 1] + x[t]
Rewrite: CumProd(x)  -->  y[0] = x[0];  y[t] = y[t - 1] * x[t]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import add, mul

from tvm import te, tirx

from tvm_rnn.tir.expr import Buffer, Expr, Stmt
from tvm_rnn.tir.index import int64, wide
from tvm_rnn.tir.statements import loops

from .graph_node import Item, Node


def summed(node: Node) -> Item:
    """Sums of all so far."""
    return _cumulative(node, add, 0)


def multiplied(node: Node) -> Item:
    """Products of all so far."""
    return _cumulative(node, mul, 1)


def _cumulative(node: Node, combined: Callable[[Expr, Expr], Expr], nothing: int) -> Item:
    """From the first element on or from the last one, with its own element or without."""
    data, known = node.asked.array(node.inputs[0]), node.known(node.inputs[1])
    if known is None or known.size != 1:
        raise ValueError("an axis that only a run shows")
    axis = int(known.reshape(())) % len(node.shape(data))
    back, without = (bool(node.attributes.get(name, 0)) for name in ("reverse", "exclusive"))

    def body(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        (source,), (found,) = ins, outs
        size, start = wide(source.shape[axis]), tirx.const(nothing, str(source.dtype))
        others = [extent for i, extent in enumerate(source.shape) if i != axis]

        def one(index: Sequence[Expr]) -> Stmt:
            (*row, step) = index

            def of(number: Expr) -> tuple[Expr, ...]:
                return (*row[:axis], size - int64(1) - number if back else number, *row[axis:])

            before, at = of(step - int64(1)), of(step)
            more = source[before if without else at]
            first = start if without else more
            return tirx.BufferStore(found, tirx.if_then_else(step > int64(0), combined(found[before], more), first), at)

        return loops([*others, source.shape[axis]], one)

    def made(source: te.Tensor) -> te.Tensor:
        return te.extern([source.shape], [source], body, dtype=str(source.dtype), name="cumulative")

    return node.bb.emit_te(made, data)
