"""Elements that are made one by one, where TVM's importer of ONNX has no form for their types.

In: a node. Out: its value, or None where TVM's own form does.
"""

from __future__ import annotations

import tvm
from tvm import relax, te, tirx

from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import int64, wide

from .graph_node import Item, Node
from .nodes import DTYPES


def power(node: Node) -> Item:
    """Of two types, or of whole numbers: in float64 then, as ONNX Runtime does."""
    op, normal = relax.op, node.bb.normalize
    given = [node.asked.array(value) for value in node.inputs]
    kind, other = (str(value.ty.dtype) for value in given)
    if kind == other and kind.startswith("float"):
        return None
    work = kind if kind.startswith("float") else "float64"
    x, y = (normal(op.astype(value, work)) for value in node.aligned(given))
    return op.astype(normal(op.power(x, y)), kind)


def one_hot(node: Node) -> Item:
    """The second of two values where the index is, the first elsewhere; an index may be counted from the end."""
    indices, values = (node.asked.array(node.inputs[i]) for i in (0, 2))
    given, shape = node.inputs[1], node.shape(indices)
    known = given.value.numpy() if isinstance(given, tvm.ir.GenericConst) else node.sizes(1)
    assert known is not None
    (size,) = known.reshape(-1).tolist()
    depth = wide(int(size) if isinstance(size, float) else size)
    axis = int(node.attributes.get("axis", -1)) % (len(shape) + 1)

    def at(places: te.Tensor, both: te.Tensor) -> te.Tensor:
        def element(*index: Expr) -> Expr:
            place = tirx.Cast("int64", places(*index[:axis], *index[axis + 1 :]))
            mine = wide(index[axis])
            return tirx.Select(tirx.any(place.equal(mine), place.equal(mine - depth)), both(int64(1)), both(int64(0)))

        return te.compute([*map(wide, shape[:axis]), depth, *map(wide, shape[axis:])], element, name="one_hot")

    return node.bb.emit_te(at, indices, values)


def same_bits(node: Node) -> Item:
    """Elements of another type whose bits are the same."""
    kind, x = DTYPES.get(int(node.attributes["to"]), ""), node.asked.array(node.inputs[0])
    own = str(x.ty.dtype)
    if own == "bool" and kind == "uint8":
        return relax.op.astype(x, kind)
    if "bool" in (kind, own) or not kind or tvm.DataType(kind).bits != tvm.DataType(own).bits:
        raise ValueError(f"bits of {own} as {kind or 'a type that is not supported'}")

    def at(source: te.Tensor) -> te.Tensor:
        return te.compute(source.shape, lambda *i: tirx.reinterpret(kind, source(*i)), name="same_bits")

    return node.bb.emit_te(at, x)


def diagonal(node: Node) -> Item:
    """Ones on a diagonal, in the dtype that is asked for."""
    x, kind = node.asked.array(node.inputs[0]), DTYPES.get(int(node.attributes.get("dtype", 0)))
    above, kind = int64(int(node.attributes.get("k", 0))), kind or str(x.ty.dtype)

    def at(source: te.Tensor) -> te.Tensor:
        def element(i: Expr, j: Expr) -> Expr:
            return tirx.Cast(kind, tirx.EQ(wide(j) - wide(i), above))

        return te.compute(source.shape, element, name="diagonal")

    return node.bb.emit_te(at, x)
