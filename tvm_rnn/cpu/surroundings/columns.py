"""Which axis of a sum vectors run along: where operands lie side by side, or constants can be laid out so.

In: a nest that adds up, how many elements a vector has. Out: the loop that becomes vectors, and the nest with constants
that are laid out for it. The last axis of the result is taken where it is long and dense; a convolution of few
positions, or with strides, takes its filters, as a product with a transposed matrix takes the matrix's rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

from tvm_rnn.tir.expr import Buffer, Expr
from tvm_rnn.tir.index import int64

from .nest import Nest, mentions, replaced

WIDE = 4  # vectors along the last axis that are enough: fewer leave part of the registers empty
Along = Callable[[Buffer, int], "Buffer | None"]  # a constant with another last axis; None: it is no constant


def columns_of(nest: Nest, lanes: int, along: Along) -> tuple[Nest, tirx.For]:
    """The nest, and the loop of its result's axes that vectors run along."""
    last = nest.own[-1]
    short = isinstance(last.extent, tirx.IntImm) and int(last.extent) < WIDE * lanes
    if short or not _is_dense(nest, last):
        able = [own for own in nest.own if isinstance(own.extent, tirx.IntImm) and int(own.extent) >= lanes // 2]
        for own in sorted(able, key=lambda own: -int(own.extent)):
            laid = _laid(nest, own, along)
            if laid is not None:
                return laid, own
    return nest, last


def _loads(nest: Nest, own: tirx.For) -> list[tvm.ir.TensorLoad]:
    """What the sum reads at places that the loop moves."""
    found = list[tvm.ir.TensorLoad]()
    tvm_ffi.structural_walk(nest.store.value, (tvm.ir.TensorLoad, found.append))
    apart = [load for load in found if not load.source.same_as(nest.store.buffer)]
    return [load for load in apart if any(mentions(i, own.loop_var) for i in load.indices)]


def _is_dense(nest: Nest, own: tirx.For) -> bool:
    """Whether the loop's steps read neighbours in memory."""
    return all(_step(load, own.loop_var) == 1 for load in _loads(nest, own))


def _step(load: tvm.ir.TensorLoad, var: tirx.Var) -> int | None:
    """How many elements further the next step reads; None: that is not the same everywhere, or not known."""
    flat: Expr = int64(0)
    for size, index in zip(load.source.shape, load.indices, strict=True):
        flat = flat * size + index
    moved = Analyzer().simplify(replaced(flat, {var: var + int64(1)}) - flat)
    return int(moved) if isinstance(moved, tirx.IntImm) else None


def _laid(nest: Nest, own: tirx.For, along: Along) -> Nest | None:
    """The nest with neighbours in memory along a loop; None: it reads what cannot be laid out again."""
    places = dict[tuple[Buffer, int], Buffer]()
    loads = _loads(nest, own)
    for load in loads:
        if _step(load, own.loop_var) == 1:
            continue
        axes = [axis for axis, i in enumerate(load.indices) if mentions(i, own.loop_var)]
        if len(axes) != 1 or not load.indices[axes[0]].same_as(own.loop_var):
            return None
        buffer = along(load.source, axes[0])
        if buffer is None:
            return None
        places[load.source, axes[0]] = buffer

    def moved(load: tvm.ir.TensorLoad) -> tvm.ir.TensorLoad:
        for (buffer, axis), laid in places.items():
            if load.source.same_as(buffer) and load.indices[axis].same_as(own.loop_var):
                indices = list(load.indices)
                return tirx.BufferLoad(laid, [*indices[:axis], *indices[axis + 1 :], indices[axis]])
        return load

    if not places:
        return nest if loads else None
    value = tvm_ffi.structural_map(nest.store.value, (tvm.ir.TensorLoad, moved))
    return replace(nest, store=tirx.BufferStore(nest.store.buffer, value, nest.store.indices))
