"""ONNX's ScatterElements and ScatterND: an array with other elements at places that a second array has; and GatherND,
what lies at such places.

In: a node. Out: its value. One after the other, in the order of the updates: of two for one place the later one counts,
or both, where they are added, multiplied or compared. TVM's own form takes one place for another where the updates are
smaller than the array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import relax, te, tirx

from tvm_rnn.tir.expr import Buffer, Expr, Stmt
from tvm_rnn.tir.index import int64, wide
from tvm_rnn.tir.statements import loops

from .demands import text_of
from .graph_node import Item, Node, places_fit

Combined = Callable[[Expr, Expr], Expr]
COMBINED: dict[bytes, Combined] = {
    b"none": lambda _, new: new,
    b"add": lambda old, new: old + new,
    b"mul": lambda old, new: old * new,
    b"max": tirx.Max,
    b"min": tirx.Min,
}
Places = Callable[[Buffer, Sequence[Expr], Sequence[Expr]], list[Expr]]


def scattered_elements(node: Node) -> Item:
    """Of places along one axis."""
    data, places, updates = (node.asked.array(value) for value in node.inputs)
    shape, own = node.shape(data), node.shape(places)
    axis = int(node.attributes.get("axis", 0)) % len(shape)
    for i, (size, count) in enumerate(zip(shape, own, strict=True)):
        if i != axis:
            _at_most(node, count, size)
    _equal(node, node.shape(updates), own)
    places_fit(node, places, shape[axis])

    def at(indices: Buffer, update: Sequence[Expr], sizes: Sequence[Expr]) -> list[Expr]:
        place = _from_begin(indices[tuple(update)], sizes[axis])
        return [*update[:axis], place, *update[axis + 1 :]]

    return _scattered(node, data, places, updates, at)


def scattered_slices(node: Node) -> Item:
    """Of places along the first axes, which the last axis of the indices has; what is there is replaced as a whole."""
    data, places, updates = (node.asked.array(value) for value in node.inputs)
    shape, own = node.shape(data), node.shape(places)
    depth, lead = own[-1], len(own) - 1
    if not isinstance(depth, int) or depth > len(shape):
        raise ValueError(f"places along {text_of(wide(depth))} of {len(shape)} axes")
    _equal(node, node.shape(updates), [*own[:-1], *shape[depth:]])
    for i, size in enumerate(shape[:depth]):
        column = node.bb.normalize(relax.op.take(places, relax.const(i, "int64"), axis=lead))
        places_fit(node, column, size)

    def at(indices: Buffer, update: Sequence[Expr], sizes: Sequence[Expr]) -> list[Expr]:
        read = [(*update[:lead], int64(i)) for i in range(depth)]
        found = [_from_begin(indices[place], sizes[i]) for i, place in enumerate(read)]
        return [*found, *update[lead:]]

    return _scattered(node, data, places, updates, at)


def gathered_slices(node: Node) -> Item:
    """What lies at places along the first axes behind those that both arrays have."""
    data, places = (node.asked.array(value) for value in node.inputs)
    shape, own, batch = node.shape(data), node.shape(places), int(node.attributes.get("batch_dims", 0))
    depth, lead = own[-1], len(own) - 1
    if not isinstance(depth, int) or batch > lead or batch + depth > len(shape):
        raise ValueError(f"places along {text_of(wide(depth))} of {len(shape)} axes")
    _equal(node, own[:batch], shape[:batch])
    for i, size in enumerate(shape[batch : batch + depth]):
        column = node.bb.normalize(relax.op.take(places, relax.const(i, "int64"), axis=lead))
        places_fit(node, column, size)

    def at(source: te.Tensor, indices: te.Tensor) -> te.Tensor:
        def element(*index: Expr) -> Expr:
            found = [indices(*index[:lead], int64(i)) for i in range(depth)]
            inner = [_there(i, size) for i, size in zip(found, source.shape[batch:], strict=False)]
            return source(*index[:batch], *inner, *index[lead:])

        return te.compute([wide(n) for n in (*own[:-1], *shape[batch + depth :])], element, name="gather_slices")

    return node.bb.emit_te(at, data, places)


def _scattered(node: Node, data: relax.Expr, places: relax.Expr, updates: relax.Expr, at: Places) -> Item:
    """at: where in an array of these sizes an update belongs."""
    combined = COMBINED[node.attributes.get("reduction", b"none")]

    def body(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        (old, indices, new), (found,) = ins, outs

        def update(index: Sequence[Expr]) -> Stmt:
            own = at(indices, index, old.shape)
            # Whether all places are there is looked at elsewhere, perhaps later: nothing else is written until then.
            there = [tirx.And(p >= int64(0), wide(p) < wide(n)) for p, n in zip(own, old.shape, strict=True)]
            store = tirx.BufferStore(found, combined(found[tuple(own)], new[tuple(index)]), own)
            return tirx.IfThenElse(tirx.all(*there), store, None)

        copy = loops(old.shape, lambda index: tirx.BufferStore(found, old[tuple(index)], index))
        return tirx.SeqStmt([copy, loops(new.shape, update)])

    def made(*tensors: te.Tensor) -> te.Tensor:
        return te.extern([tensors[0].shape], [*tensors], body, dtype=str(tensors[0].dtype), name="scatter")

    return node.bb.emit_te(made, data, places, updates)


def _from_begin(place: Expr, size: Expr) -> Expr:
    """A place that may be counted from the end."""
    return tirx.Select(tirx.LT(wide(place), int64(0)), wide(place) + wide(size), wide(place))


def _there(place: Expr, size: Expr) -> Expr:
    """A place in the array: whether it was there is looked at elsewhere, perhaps later."""
    return tirx.Max(int64(0), tirx.Min(_from_begin(place, size), wide(size) - int64(1)))


def _equal(node: Node, shape: Sequence[Expr], asked: Sequence[Expr]) -> None:
    """Demand that updates have the shape that is asked for."""
    if len(shape) != len(asked):
        raise ValueError(f"updates of {len(shape)} axes, where {len(asked)} are needed")
    for size, other in zip(shape, asked, strict=True):
        if str(size) != str(other):
            known = isinstance(size, int) and isinstance(other, int)
            fits = size == other if known else tirx.EQ(wide(size), wide(other))
            node.asked.demand(fits, f"{text_of(wide(size))} = {text_of(wide(other))}")


def _at_most(node: Node, count: Expr, size: Expr) -> None:
    """Demand that there are no more places along an axis than it has."""
    if str(count) != str(size):
        known = isinstance(size, int) and isinstance(count, int)
        fits = count <= size if known else tirx.LE(wide(count), wide(size))
        node.asked.demand(fits, f"{text_of(wide(count))} <= {text_of(wide(size))}")
