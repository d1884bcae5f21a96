"""A nest without sums: vectors along its last axis, pieces of its first ones for threads.

In: a nest, how many elements a vector has. Out: statements. What is read along another axis than it is stored goes in
squares of both axes, so that each cache line is read once.

Rewrite: for i: for j: y[i, j] = f(x[i, j])  -->  parallel for pieces of i: for vectors of j: y[i, v] = f(x[i, v])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import tirx

from tvm_rnn.surroundings.loops import takes_long
from tvm_rnn.surroundings.nest import Nest, is_choice, mentions, replaced
from tvm_rnn.tir.expr import Expr, Stmt, TirExpr
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import loop, sequence, variable, when

from .columns import step_of
from .shared_loops import Loops, product, serial, shared
from .sum_tiles import is_multiple, vector

SQUARE = 16  # elements on each side: float32 of a cache line
BLOCK = 4096  # elements of the last axis that one thread does, where there is no other axis to share
ENOUGH = 8  # pieces of work that threads share well
CHEAP, DEAR = 8, 32  # how many products an element is worth: what is moved and added; what takes long


@dataclass(frozen=True)
class Cut:
    """A loop in pieces of `size` elements."""

    own: tirx.For
    size: int
    piece: tirx.Var

    @property
    def begin(self) -> Expr:
        return self.piece * int64(self.size)

    @property
    def count(self) -> Expr:
        return tirx.truncdiv(self.own.extent + int64(self.size - 1), int64(self.size))

    @property
    def length(self) -> Expr:
        """Of a piece: the last one may be shorter."""
        if is_multiple(self.own.extent, self.size):
            return int64(self.size)
        return tirx.Min(self.own.extent - self.begin, int64(self.size))


@dataclass(frozen=True)
class Pointwise:
    """One nest. threads: how many share the work."""

    nest: Nest
    lanes: int
    threads: TirExpr

    def statement(self) -> Stmt:
        """Threads share as many of the first loops as give each of them enough pieces."""
        nest, last, across = self.nest, self.nest.loops[-1], self._across()
        outside = [(own.loop_var, own.extent) for own in nest.loops if own is not across and own is not last]
        sides = [own for own in (across, last) if own is not None]
        if across is None and not (_is_few(outside) and _is_long(last.extent)):
            loops, body = outside, self._along(last, nest.store)
        else:
            cuts = [Cut(own, SQUARE if across is not None else BLOCK, variable("piece")) for own in sides]
            loops, body = [*outside, *((cut.piece, cut.count) for cut in cuts)], self._piece(cuts)
        number = next((n for n in range(1, len(loops)) if _pieces(loops[:n]) >= ENOUGH), len(loops))
        work = product([own.extent for own in nest.loops]) * int64(DEAR if takes_long(nest.store.value) else CHEAP)
        return shared(loops[:number], serial(loops[number:], body), work, self.threads)

    def _across(self) -> tirx.For | None:
        """The loop whose steps read neighbours in memory, where those of the last one do not; None: there is none."""
        last, loads = self.nest.loops[-1], list[tvm.ir.TensorLoad]()
        tvm_ffi.structural_walk(self.nest.store.value, (tvm.ir.TensorLoad, loads.append))
        apart = [load for load in loads if any(mentions(i, last.loop_var) for i in list(load.indices)[:-1])]
        apart = [load for load in apart if step_of(load, last.loop_var) not in (0, 1)]
        able = (own for own in self.nest.own[:-1] if apart and all(step_of(load, own.loop_var) == 1 for load in apart))
        return next(able, None)

    def _piece(self, cuts: Sequence[Cut]) -> Stmt:
        """A square, or a block of the last axis."""
        *across, last = cuts
        inner = variable("i")
        along = tirx.For(inner, int64(0), last.length, last.own.kind, last.own.body)
        store = replaced(self.nest.store, {last.own.loop_var: last.begin + inner})
        if not across:
            return self._along(along, store)
        (cut,) = across

        def row(r: tirx.Var) -> Stmt:
            return self._along(along, replaced(store, {cut.own.loop_var: cut.begin + r}))

        return loop("r", cut.length, row)

    def _along(self, inner: tirx.For, store: tirx.BufferStore) -> Stmt:
        """Vectors, and what is left one by one. A condition that is the same along the axis is looked at once for all
        of it; what looks at other ones has no vectors."""
        chosen = store.value
        if is_choice(chosen) and not mentions(chosen.args[0], inner.loop_var):
            condition, *values = chosen.args
            both = (tirx.BufferStore(store.buffer, value, store.indices) for value in values)
            return when(condition, *(self._along(inner, own) for own in both))
        var, extent = inner.loop_var, inner.extent
        short = isinstance(extent, tirx.IntImm) and int(extent) < self.lanes
        own = self.lanes if not short and self._vectors(store, var) else 1

        def at(place: Expr) -> Stmt:
            return replaced(store, {var: place})

        if own == 1:
            return loop("i", extent, at)
        whole = tirx.truncdiv(extent, int64(own))
        return sequence(
            loop("i", whole, lambda i: vector(own, lambda v: at(i * int64(own) + v))),
            loop("i", extent - whole * int64(own), lambda i: at(whole * int64(own) + i)),
        )

    def _vectors(self, store: tirx.BufferStore, var: tirx.Var) -> bool:
        """Whether neighbours along `var` are neighbours in memory, and none has a condition of its own."""
        refused = []

        def note(call: tvm.ir.Call) -> None:
            choice = is_choice(call) and mentions(call.args[0], var)
            if choice or getattr(call.op, "name", "") in ("tirx.call_pure_extern", "tirx.call_extern"):
                refused.append(call)

        tvm_ffi.structural_walk(store.value, (tvm.ir.Call, note))
        loads = list[tvm.ir.TensorLoad]()
        tvm_ffi.structural_walk(store.value, (tvm.ir.TensorLoad, loads.append))
        places = [store.indices, *(own.indices for own in loads)]
        return not refused and all(not mentions(i, var) for place in places for i in list(place)[:-1])


def _is_few(loops: Loops) -> bool:
    """Whether they are no pieces for threads."""
    return all(isinstance(extent, tirx.IntImm) for _, extent in loops) and _pieces(loops) < ENOUGH


def _is_long(extent: Expr) -> bool:
    return not isinstance(extent, tirx.IntImm) or int(extent) > BLOCK


def _pieces(loops: Loops) -> int:
    """How many there surely are; a size that is not known may be 1."""
    found = 1
    for _, extent in loops:
        found *= int(extent) if isinstance(extent, tirx.IntImm) else 1
    return found
