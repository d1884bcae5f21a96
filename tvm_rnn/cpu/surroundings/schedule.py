"""How the loops of what is around networks run: what is pointwise goes into what reads it, sums into registers.

In: functions of blocks, as `calls.py` has them of Relax. Out: statements, one loop nest after the other, with arrays
that they need meanwhile. A product of matrices or a convolution becomes tiles of rows and vectors; a row is a row of
the left matrix, a filter, or, where vectors run along filters, a position. What no rule knows stays as it is: plain
loops.

Rewrite: for s: for r: y[s] += f(s, r); for s: z[s] = g(y[s])  -->  parallel for tiles: registers = sum of f; z = g
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from tvm_rnn.tir.expr import Buffer, Expr, Stmt, TirExpr
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import loop, sequence, variable, when

from .columns import Laid, columns_of, in_panels, step_of, turned
from .lane_sums import LaneSum
from .nest import Nest, mentions, nest_of, reads, reads_nothing, replaced
from .panel_sum import PanelSum
from .sum_tiles import Sum, around, is_multiple, vector

LOWER = (
    s_tir.transform.LowerInitBlock,
    s_tir.transform.PlanAndUpdateBufferAllocationLocation,
    s_tir.transform.ConvertBlocksToOpaque,
    s_tir.transform.CompactBufferAllocation,
    s_tir.transform.LowerMatchBuffer,
    s_tir.transform.StmtSimplify,
    s_tir.transform.LowerOpaqueBlock,
    s_tir.transform.ConvertSSA,
)
SQUARE = 16  # elements on each side: float32 of a cache line
REDUCED = 2  # the kind of a block's axis that is summed over


def loops_of(functions: Sequence[tirx.PrimFunc]) -> list[tirx.PrimFunc]:
    """The functions without blocks, pointwise values computed where they are read."""
    names = [f"f{i}" for i in range(len(functions))]
    module = tvm.IRModule({n: inlined(f).with_attr("global_symbol", n) for n, f in zip(names, functions, strict=True)})
    module = tvm.transform.Sequential([make() for make in LOWER])(module)
    return [module[name] for name in names]


def inlined(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with each pointwise value in what reads it, but where that would compute it many times: in sums, and
    what takes long in loops over more axes than its own."""
    schedule = s_tir.Schedule(function)
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        readers = schedule.get_consumers(block)
        if readers and not any(_many_times(schedule, block, own) for own in readers):
            try:
                schedule.compute_inline(block)
            except Exception:  # it is not pointwise after all
                continue
    (made,) = schedule.mod.functions.values()
    return made


def _many_times(schedule: s_tir.Schedule, block: object, reader: object) -> bool:
    """Whether a block in its reader would be more work than it is by itself."""
    own, other = schedule.get(block), schedule.get(reader)
    if _sums(own) or not isinstance(own.body, tirx.BufferStore):
        return True
    if isinstance(own.body.value, tvm.ir.TensorLoad) and _is_copy(own.body):
        return False
    return _sums(other) or (_axes(own) < _axes(other) and _takes_long(own.body.value))


def _is_copy(store: tirx.BufferStore) -> bool:
    """Whether it stores what it reads at the same place of another array."""
    places = store.value.indices
    return len(places) == len(store.indices) and all(map(tvm_ffi.structural_equal, places, store.indices))


def _sums(block: s_tir.SBlock) -> bool:
    return any(int(axis.iter_type) == REDUCED for axis in block.iter_vars)


def _axes(block: s_tir.SBlock) -> int:
    """Over how many axes it has more than one element."""
    return sum(not (isinstance(n, tirx.IntImm) and int(n) == 1) for n in (axis.dom.extent for axis in block.iter_vars))


def _takes_long(value: Expr) -> bool:
    """Whether it divides, or has a function such as an exponential."""
    found = list[Expr]()
    tvm_ffi.structural_walk(value, [(tirx.Div, found.append), (tvm.ir.Call, found.append)])
    return bool(found)


@dataclass
class Tiles:
    """Statements for nests on a CPU with vectors of so many elements. threads: how many share the work. laid: how
    constants can be laid out."""

    lanes: int
    threads: TirExpr
    laid: Laid = field(default_factory=Laid)

    def scheduled(self, nests: Sequence[Stmt], temporary: Callable[[Buffer], bool]) -> list[Stmt]:
        """The statements in order. temporary: whether an array is read by these statements alone."""
        done, i = list[Stmt](), 0
        while i < len(nests):
            nest = nest_of(nests[i])
            i += 1
            if nest is None or not nest.summed:
                done.append(nests[i - 1] if nest is None else self.pointwise(nest))
                continue
            if not nest.own:
                lanes = LaneSum.of(nest, None, self.lanes, self.threads)
                done.append(nests[i - 1] if lanes is None else lanes.statement())
                continue
            while i < len(nests) and self._may_go_before(nests[i], nest):
                done.append(nests[i])
                i += 1
            after = nest_of(nests[i]) if i < len(nests) else None
            behind = nests[i + 1 :]
            if after is not None and self._follows(nest, after, behind) and temporary(nest.store.buffer):
                done.append(self.sum(nest, after))
                i += 1
            else:
                done.append(self.sum(nest, None))
        return done

    def _may_go_before(self, statement: Stmt, nest: Nest) -> bool:
        """Whether it is a single number, which the sum's follower may read, and that does not read the sum."""
        return isinstance(statement, tirx.BufferStore) and not reads(statement, nest.store.buffer)

    def _follows(self, nest: Nest, after: Nest, behind: Sequence[Stmt]) -> bool:
        """Whether a pointwise nest reads a sum only where it was just made, and nobody does later."""
        if after.summed or any(reads(s, nest.store.buffer) for s in behind):
            return False
        found = reads(after.store.value, nest.store.buffer)
        return bool(found) and self._renaming(nest, after) is not None

    def _renaming(self, nest: Nest, after: Nest) -> dict[tirx.Var, tirx.Var] | None:
        """after's variables as those of the nest; None: it reads other elements, or walks in another order."""
        names: dict[tirx.Var, tirx.Var] = {}
        for load in reads(after.store.value, nest.store.buffer):
            for mine, theirs in zip(nest.store.indices, load.indices, strict=True):
                if isinstance(mine, tirx.IntImm) and isinstance(theirs, tirx.IntImm):
                    continue
                if not isinstance(theirs, tirx.Var) or not isinstance(mine, tirx.Var):
                    return None
                if not names.setdefault(theirs, mine).same_as(mine):
                    return None
        extents = {own.loop_var: own.extent for own in nest.loops}
        same = all(
            own.loop_var in names and tvm_ffi.structural_equal(own.extent, extents[names[own.loop_var]])
            for own in after.loops
        )
        return names if same and len(names) == len(nest.own) else None

    def pointwise(self, nest: Nest) -> Stmt:
        """Vectors along the last axis, and what is left one by one. A condition that is the same along that axis is
        looked at once for all of it; what looks at other ones has no vectors. What is read along another axis goes in
        squares of both axes, so that each cache line is read once."""
        last, across = nest.loops[-1], _across(nest)
        if across is None:
            return around(nest.loops[:-1], self._along_last(last, nest.store))
        outside = [own for own in nest.loops if own is not across and own is not last]
        tiles = [variable("tile") for _ in range(2)]
        places = [(own, tile * int64(SQUARE)) for own, tile in zip((across, last), tiles, strict=True)]
        lengths = [_shorter(own.extent - begin, own.extent) for own, begin in places]
        counts = [(own.extent + int64(SQUARE - 1)) // int64(SQUARE) for own, _ in places]

        def row(r: tirx.Var) -> Stmt:
            first, second = (begin for _, begin in places)
            store = replaced(nest.store, {across.loop_var: first + r})
            inner = variable("i")
            store = replaced(store, {last.loop_var: second + inner})
            return self._along_last(tirx.For(inner, int64(0), lengths[1], last.kind, last.body), store)

        square = loop("r", lengths[0], row)
        for tile, count in zip(reversed(tiles), reversed(counts), strict=True):
            square = tirx.For(tile, int64(0), count, tirx.ForKind.SERIAL, square)
        return around(outside, square)

    def _along_last(self, inner: tirx.For, store: tirx.BufferStore) -> Stmt:
        chosen = store.value
        if _is_call(chosen, "tirx.if_then_else") and not mentions(chosen.args[0], inner.loop_var):
            condition, *values = chosen.args
            both = (tirx.BufferStore(store.buffer, value, store.indices) for value in values)
            return when(condition, *(self._along_last(inner, own) for own in both))
        var, extent = inner.loop_var, inner.extent
        short = isinstance(extent, tirx.IntImm) and int(extent) < self.lanes
        own = self.lanes if not short and self._vectors(store, var) else 1

        def at(place: Expr) -> Stmt:
            return replaced(store, {var: place})

        if own == 1:
            return loop("i", extent, at)
        whole = extent // int64(own)
        return sequence(
            loop("i", whole, lambda i: vector(own, lambda v: at(i * int64(own) + v))),
            loop("i", extent - whole * int64(own), lambda i: at(whole * int64(own) + i)),
        )

    def _vectors(self, store: tirx.BufferStore, var: tirx.Var) -> bool:
        """Whether neighbours along `var` are neighbours in memory, and nothing is computed under conditions."""
        refused = []

        def note(call: tvm.ir.Call) -> None:
            if getattr(call.op, "name", "") in ("tirx.if_then_else", "tirx.call_pure_extern", "tirx.call_extern"):
                refused.append(call)

        tvm_ffi.structural_walk(store.value, (tvm.ir.Call, note))
        loads = list[tvm.ir.TensorLoad]()
        tvm_ffi.structural_walk(store.value, (tvm.ir.TensorLoad, loads.append))
        places = [store.indices, *(own.indices for own in loads)]
        return not refused and all(not mentions(i, var) for place in places for i in list(place)[:-1])

    def sum(self, nest: Nest, after: Nest | None) -> Stmt:
        """Tiles of rows and vectors, each summed in registers, and stored by `after` where there is one."""
        store = None if after is None else replaced(after.store, self._renaming(nest, after) or {})
        columns = columns_of(nest, self.lanes, self.laid)
        plain = Sum(nest, store, columns, self.lanes, self.threads)
        width = PanelSum.width(plain)
        if reads_nothing(nest.first) and (found := in_panels(nest, columns, self.laid, width)) is not None:
            return PanelSum(found[0], store, columns, min(self.lanes, width), self.threads, found[1]).statement()
        dense = turned(nest, columns, self.laid)
        lanes = None if dense is not None else LaneSum.of(nest, store, self.lanes, self.threads)
        return lanes.statement() if lanes is not None else replace(plain, nest=dense or nest).statement()


def _across(nest: Nest) -> tirx.For | None:
    """The loop whose steps read neighbours in memory, where those of the last one do not; None: there is none."""
    last, loads = nest.loops[-1], list[tvm.ir.TensorLoad]()
    tvm_ffi.structural_walk(nest.store.value, (tvm.ir.TensorLoad, loads.append))
    apart = [load for load in loads if any(mentions(i, last.loop_var) for i in list(load.indices)[:-1])]
    apart = [load for load in apart if step_of(load, last.loop_var) not in (0, 1)]
    able = (own for own in nest.own[:-1] if apart and all(step_of(load, own.loop_var) == 1 for load in apart))
    return next(able, None)


def _shorter(left: Expr, extent: Expr) -> Expr:
    """Of a square's side: what is left of an axis, where that is less."""
    return int64(SQUARE) if is_multiple(extent, SQUARE) else tirx.Min(left, int64(SQUARE))


def _is_call(value: Expr, name: str) -> bool:
    return isinstance(value, tvm.ir.Call) and getattr(value.op, "name", "") == name
