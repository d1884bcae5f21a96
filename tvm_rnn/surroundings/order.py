"""ONNX's TopK: the largest or smallest elements along an axis in order, with their places; also all of them, sorted.

In: a node. Out: two values. Of equal elements the first one comes first; NaN is larger than any number, as in torch.

Each element goes into the list of the best so far, which is as long as what is asked for: few elements of many enter
it, so that most cost one comparison.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, te, tirx

from tvm_rnn.tir.expr import Buffer, Expr, Stmt, TirExpr
from tvm_rnn.tir.index import int64, wide
from tvm_rnn.tir.statements import bind, loops, sequence

from .demands import text_of
from .graph_node import Item, Node


def best(node: Node) -> Item:
    """Values and places."""
    data, count = node.asked.array(node.inputs[0]), node.sizes(1)
    if count is None or count.size != 1:
        raise ValueError("one number says how many elements are asked for")
    (k,), shape = count.reshape(-1).tolist(), node.shape(data)
    axis = int(node.attributes.get("axis", -1)) % len(shape)
    known = isinstance(k, int) and isinstance(shape[axis], int)
    fits = k <= shape[axis] if known else tirx.LE(wide(k), wide(shape[axis]))
    node.asked.demand(fits, f"{text_of(wide(k))} <= {text_of(wide(shape[axis]))}")
    node.asked.demand(k > 0 if isinstance(k, int) else tirx.GT(wide(k), int64(0)), f"{text_of(wide(k))} > 0")
    largest, kind = bool(node.attributes.get("largest", 1)), str(data.ty.dtype)

    def body(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        (source,), most = ins, outs[0].shape[axis]
        rows = [size for i, size in enumerate(source.shape) if i != axis]
        return loops([*rows, source.shape[axis]], lambda index: _entered(source, outs, index, most))

    def _entered(source: Buffer, outs: Sequence[Buffer], index: Sequence[Expr], most: Expr) -> Stmt:
        """One element, whose place along the axis is the last index."""
        (*row, at), (values, places) = index, outs

        def of(place: Expr) -> tuple[Expr, ...]:
            return (*row[:axis], place, *row[axis:])

        last = tirx.Min(at, wide(most) - int64(1))
        enters = tirx.Or(at < wide(most), _before(source[of(at)], values[of(last)], largest))

        def store(place: Expr, value: Expr, whence: Expr) -> list[Stmt]:
            return [tirx.BufferStore(values, value, of(place)), tirx.BufferStore(places, whence, of(place))]

        def up(step: Sequence[Expr]) -> Stmt:
            """The element changes places with the one before it, where it belongs there."""
            mine = last - step[0]
            other = mine - int64(1)
            value = tirx.Var("value", kind)
            whence, keep_whence = bind("whence", places[of(mine)])
            moved = [*store(mine, values[of(other)], places[of(other)]), *store(other, value, whence)]
            earlier = _before(values[of(mine)], values[of(other)], largest)
            return tirx.IfThenElse(earlier, sequence([tirx.Bind(value, values[of(mine)]), keep_whence, *moved]), None)

        return tirx.IfThenElse(enters, sequence([*store(last, source[of(at)], at), loops([last], up)]), None)

    def made(source: te.Tensor) -> list[te.Tensor]:
        sizes = [wide(k) if i == axis else size for i, size in enumerate(source.shape)]
        return te.extern([sizes, sizes], [source], body, dtype=[str(source.dtype), "int64"], name="best")

    found = node.bb.emit_te(made, data)
    return [node.bb.emit(relax.TupleGetItem(found, i)) for i in range(2)]


def _before(a: TirExpr, b: TirExpr, largest: bool) -> Expr:
    """Whether a comes before b, which has been there longer."""
    if not str(a.ty).startswith("float"):
        return a > b if largest else a < b
    one, other = (a, b) if largest else (b, a)
    return tirx.Or(one > other, tirx.And(tirx.isnan(one), tirx.Not(tirx.isnan(other))))
