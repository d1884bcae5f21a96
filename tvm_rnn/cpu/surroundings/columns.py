"""Which axis of a sum vectors run along: where operands lie side by side, or constants can be laid out so.

In: a nest that adds up, how many elements a vector has. Out: the loop that becomes vectors; the nest with constants
that are laid out for it: in panels, each of which has all that one tile of columns reads, in the order in which it does
so; or, where something else is read along that loop too, with its axis last. The last axis of the result is taken where
it is long and dense; a convolution of few positions, or with strides, takes its filters, as a product with a transposed
matrix takes the matrix's rows.

Rewrite: w[k, f] along f  -->  w'[f // 32, k, f % 32]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

from tvm_rnn.surroundings.nest import Nest, mentions, replaced
from tvm_rnn.tir.expr import Buffer, Expr
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import variable

WIDE = 4  # vectors along the last axis that are enough: fewer leave part of the registers empty


@dataclass(frozen=True)
class Laid:
    """How constants can be laid out; each gives None for what is no constant. along: with this axis as the last one.
    panels: the same in pieces of so many elements, each of which has all other axes: [pieces, ..., elements]. paired:
    whole numbers in pieces along one axis, in pairs along another: [pieces, ..., pairs, elements of both]. array: what
    it is. known: whether it is one."""

    along: Callable[[Buffer, int], Buffer | None] = lambda buffer, axis: None
    panels: Callable[[Buffer, int, int], Buffer | None] = lambda buffer, axis, width: None
    paired: Callable[[Buffer, int, int, int], Buffer | None] = lambda buffer, axis, pair, width: None
    array: Callable[[Buffer], np.ndarray | None] = lambda buffer: None
    known: Callable[[Buffer], bool] = lambda buffer: False


@dataclass(frozen=True)
class Panels:
    """What constants in panels are read with. width: elements of a panel; panel, column: which one, and where in it."""

    width: int
    panel: tirx.Var
    column: tirx.Var


def columns_of(nest: Nest, lanes: int, laid: Laid) -> tirx.For:
    """The loop of the result's axes that vectors run along."""
    last = nest.own[-1]
    short = isinstance(last.extent, tirx.IntImm) and int(last.extent) < WIDE * lanes
    if short or not _is_dense(nest, last):
        able = [own for own in nest.own if isinstance(own.extent, tirx.IntImm) and int(own.extent) >= lanes // 2]
        for own in sorted(able, key=lambda own: -int(own.extent)):
            if turned(nest, own, laid) is not None:
                return own
    return last


def _loads(nest: Nest, own: tirx.For) -> list[tvm.ir.TensorLoad]:
    """What the sum reads at places that the loop moves."""
    found = list[tvm.ir.TensorLoad]()
    tvm_ffi.structural_walk(nest.store.value, (tvm.ir.TensorLoad, found.append))
    apart = [load for load in found if not load.source.same_as(nest.store.buffer)]
    return [load for load in apart if any(mentions(i, own.loop_var) for i in load.indices)]


def _is_dense(nest: Nest, own: tirx.For) -> bool:
    """Whether the loop's steps read neighbours in memory."""
    return all(step_of(load, own.loop_var) == 1 for load in _loads(nest, own))


def step_of(load: tvm.ir.TensorLoad, var: tirx.Var) -> int | None:
    """How many elements further the next step reads; None: that is not the same everywhere, or not known."""
    moved = moved_by(load, var)
    return int(moved) if isinstance(moved, tirx.IntImm) else None


def moved_by(load: tvm.ir.TensorLoad, var: tirx.Var) -> Expr:
    """How many elements further the next step reads, which may depend on sizes."""
    flat = flat_index(load)
    return Analyzer().simplify(replaced(flat, {var: var + int64(1)}) - flat)


def flat_index(load: tvm.ir.TensorLoad) -> Expr:
    """Where it reads, of all elements in a row."""
    flat: Expr = int64(0)
    for size, index in zip(load.source.shape, load.indices, strict=True):
        flat = flat * size + index
    return flat


def axis_of(load: tvm.ir.TensorLoad, own: tirx.For) -> int | None:
    """The one axis along which the loop alone moves; None: there is none."""
    axes = [axis for axis, i in enumerate(load.indices) if mentions(i, own.loop_var)]
    return axes[0] if len(axes) == 1 and load.indices[axes[0]].same_as(own.loop_var) else None


def turned(nest: Nest, own: tirx.For, laid: Laid) -> Nest | None:
    """The nest with neighbours in memory along a loop; None: it reads what cannot be laid out again."""
    places = dict[tuple[Buffer, int], Buffer]()
    loads = _loads(nest, own)
    for load in loads:
        if step_of(load, own.loop_var) == 1:
            continue
        axis = axis_of(load, own)
        buffer = None if axis is None else laid.along(load.source, axis)
        if axis is None or buffer is None:
            return None
        places[load.source, axis] = buffer
    if not places:
        return nest if loads else None
    return _reading(nest, own, places, lambda load, axis: [*_others(load, axis), load.indices[axis]])


def in_panels(nest: Nest, own: tirx.For, laid: Laid, width: int) -> tuple[Nest, Panels] | None:
    """The nest on constants in panels; None: something else is read along that loop too."""
    places = dict[tuple[Buffer, int], Buffer]()
    loads = _loads(nest, own)
    for load in loads:
        axis = axis_of(load, own)
        buffer = None if axis is None else laid.panels(load.source, axis, width)
        if axis is None or buffer is None:
            return None
        places[load.source, axis] = buffer
    if not places or not isinstance(own.extent, tirx.IntImm):
        return None
    panels = Panels(width, variable("panel"), variable("column"))
    moved = _reading(nest, own, places, lambda load, axis: [panels.panel, *_others(load, axis), panels.column])
    return moved, panels


def _others(load: tvm.ir.TensorLoad, axis: int) -> list[Expr]:
    indices = list(load.indices)
    return [*indices[:axis], *indices[axis + 1 :]]


def _reading(
    nest: Nest,
    own: tirx.For,
    places: dict[tuple[Buffer, int], Buffer],
    at: Callable[[tvm.ir.TensorLoad, int], list[Expr]],
) -> Nest:
    """The nest with loads along a loop from other arrays. at: where there."""

    def moved(load: tvm.ir.TensorLoad) -> tvm.ir.TensorLoad:
        for (buffer, axis), into in places.items():
            if load.source.same_as(buffer) and load.indices[axis].same_as(own.loop_var):
                return tirx.BufferLoad(into, at(load, axis))
        return load

    value = tvm_ffi.structural_map(nest.store.value, (tvm.ir.TensorLoad, moved))
    return replace(nest, store=tirx.BufferStore(nest.store.buffer, value, nest.store.indices))
