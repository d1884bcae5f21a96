"""How the loops of what is around networks run: what is pointwise goes into what reads it, sums into registers.

In: functions of blocks, as `calls.py` has them of Relax. Out: statements, one loop nest after the other, with arrays
that they need meanwhile. A product of matrices or a convolution becomes tiles of rows and vectors; a row is a row of
the left matrix, a filter, or, where vectors run along filters, a position. What no rule knows stays as it is: plain
loops.

Rewrite: for s: for r: y[s] += f(s, r); for s: z[s] = g(y[s])  -->  parallel for tiles: registers = sum of f; z = g
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from tvm_rnn.tir.expr import Buffer, Expr, Stmt, TirExpr
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import loop, sequence, variable, when

from .columns import Along, columns_of
from .nest import Nest, mentions, nest_of, reads, replaced

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
REDUCED = 2  # the kind of a block's axis that is summed over
WORTH = 1 << 17  # products that are worth a second thread, where their number is known


def loops_of(functions: Sequence[tirx.PrimFunc]) -> list[tirx.PrimFunc]:
    """The functions without blocks, pointwise values computed where they are read."""
    names = [f"f{i}" for i in range(len(functions))]
    module = tvm.IRModule({n: inlined(f).with_attr("global_symbol", n) for n, f in zip(names, functions, strict=True)})
    module = tvm.transform.Sequential([make() for make in LOWER])(module)
    return [module[name] for name in names]


def inlined(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with each pointwise value in what reads it, but where sums do: they would compute it many times."""
    schedule = s_tir.Schedule(function)
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        readers = schedule.get_consumers(block)
        if readers and not any(_sums(schedule, own) for own in (block, *readers)):
            try:
                schedule.compute_inline(block)
            except tvm.TVMError:  # it is not pointwise after all
                continue
    (made,) = schedule.mod.functions.values()
    return made


def _sums(schedule: s_tir.Schedule, block: object) -> bool:
    return any(int(axis.iter_type) == REDUCED for axis in schedule.get(block).iter_vars)


@dataclass
class Tiles:
    """Statements for nests on a CPU with vectors of so many elements. threads: how many share the work. along: a
    constant, laid out with another axis as its last one."""

    lanes: int
    threads: TirExpr
    along: Along = lambda buffer, axis: None

    def scheduled(self, nests: Sequence[Stmt], temporary: Callable[[Buffer], bool]) -> list[Stmt]:
        """The statements in order. temporary: whether an array is read by these statements alone."""
        done, i = list[Stmt](), 0
        while i < len(nests):
            nest = nest_of(nests[i])
            if nest is None or not nest.summed or not nest.own:
                done.append(nests[i] if nest is None or nest.summed else self.pointwise(nest))
                i += 1
                continue
            after = nest_of(nests[i + 1]) if i + 1 < len(nests) else None
            behind = nests[i + 2 :]
            if after is not None and self._follows(nest, after, behind) and temporary(nest.store.buffer):
                done.append(self.sum(nest, after))
                i += 2
            else:
                done.append(self.sum(nest, None))
                i += 1
        return done

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
        """Vectors along the last axis, and what is left one by one. What looks at conditions has no vectors."""
        inner = nest.loops[-1]
        var, extent = inner.loop_var, inner.extent
        short = isinstance(extent, tirx.IntImm) and int(extent) < self.lanes
        own = self.lanes if not short and self._vectors(nest.store, var) else 1

        def at(place: Expr) -> Stmt:
            return replaced(nest.store, {var: place})

        if own == 1:
            body: Stmt = loop("i", extent, at)
        else:
            whole = extent // int64(own)
            body = sequence(
                loop("i", whole, lambda i: _vector(own, lambda v: at(i * int64(own) + v))),
                loop("i", extent - whole * int64(own), lambda i: at(whole * int64(own) + i)),
            )
        return _around(nest.loops[:-1], body)

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
        laid, columns = columns_of(nest, self.lanes, self.along)
        return _Sum(laid, store, columns, self.lanes, self.threads).statement()


def _vector(lanes: int, body: Callable[[tirx.Var], Stmt]) -> Stmt:
    var = variable("v")
    kind = tirx.ForKind.VECTORIZED if lanes > 1 else tirx.ForKind.SERIAL
    return tirx.For(var, int64(0), int64(lanes), kind, body(var))


def _unrolled(count: int, body: Callable[[tirx.Var], Stmt]) -> Stmt:
    var = variable("u")
    return tirx.For(var, int64(0), int64(count), tirx.ForKind.UNROLLED, body(var))


def _around(loops: Sequence[tirx.For], body: Stmt) -> Stmt:
    for own in reversed(loops):
        body = tirx.For(own.loop_var, int64(0), own.extent, tirx.ForKind.SERIAL, body)
    return body


def _is_multiple(extent: Expr, of: int) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) % of == 0


@dataclass
class _Sum:
    """A sum in tiles. after: what stores it, where that is not the nest's own store. columns: the loop that becomes
    vectors."""

    nest: Nest
    after: tirx.BufferStore | None
    columns: tirx.For
    lanes: int
    threads: TirExpr

    def statement(self) -> Stmt:
        """Loops that threads share around tiles: those of the result's first axes, and of rows where these are a known
        number; a product without such loops shares its columns."""
        last = self.columns
        outer = [own for own in self.nest.own if own is not last]
        row = self._row(outer, last)
        outer = [own for own in outer if own is not row]
        most = self._rows(row)
        shared = [(own.loop_var, own.extent) for own in outer]
        if row is not None and _is_multiple(row.extent, most):
            start = variable("r")
            shared.append((start, row.extent // int64(most)))
            tiled = {row.loop_var: start * int64(most)}
            body = self.along(last.extent, lambda width, at: self.tile(most, width, {last.loop_var: at, **tiled}, row))
            return self.share(shared, body)
        if row is None:
            return self.share(shared, self.along(last.extent, lambda w, at: self.tile(1, w, {last.loop_var: at})))
        whole = row.extent // int64(most)

        def columns(width: int, at: Expr) -> Stmt:
            def rows(count: int, first: Callable[[tirx.Var], Expr]) -> Callable[[tirx.Var], Stmt]:
                return lambda r: self.tile(count, width, {last.loop_var: at, row.loop_var: first(r)}, row)

            return sequence(
                loop("r", whole, rows(most, lambda r: r * int64(most))),
                loop("r", row.extent - whole * int64(most), rows(1, lambda r: whole * int64(most) + r)),
            )

        if shared or not isinstance(last.extent, tirx.IntImm):
            return self.share(shared, self.along(last.extent, columns))
        return self.along(last.extent, columns, self.share)

    def _row(self, outer: Sequence[tirx.For], last: tirx.For) -> tirx.For | None:
        """The loop whose steps read the same vectors: over the rows of a product's left matrix, or over filters."""
        vectors = list[tvm.ir.TensorLoad]()

        def note(load: tvm.ir.TensorLoad) -> None:
            if not load.source.same_as(self.nest.store.buffer) and any(
                mentions(i, last.loop_var) for i in load.indices
            ):
                vectors.append(load)

        tvm_ffi.structural_walk(self.nest.store.value, (tvm.ir.TensorLoad, note))
        for own in reversed(outer):
            if vectors and not any(mentions(i, own.loop_var) for load in vectors for i in load.indices):
                return own
        return None

    def _rows(self, row: tirx.For | None) -> int:
        """The rows of a tile: as many as registers hold, and where it can be so that none are left over."""
        most = 1 if row is None else 8 if self.lanes >= 16 else 4
        if row is None or not isinstance(row.extent, tirx.IntImm):
            return most
        return max(
            [n for n in range(most // 2, most + 1) if int(row.extent) % n == 0], default=min(most, int(row.extent))
        )

    def _vectors(self) -> list[int]:
        """How many vectors a tile may be wide, most first: few rows leave registers for more of them."""
        row = self._row([own for own in self.nest.own if own is not self.columns], self.columns)
        known = 1 if row is None else int(row.extent) if isinstance(row.extent, tirx.IntImm) else self._rows(row)
        most = 8 if known < 2 else 4 if known < 3 else 2
        return [n for n in (8, 4, 2, 1) if n <= most]

    def share(self, loops: Sequence[tuple[tirx.Var, Expr]], body: Stmt) -> Stmt:
        """The loops as one, a piece of which each thread has; as they are where their work is known to be little."""
        if not loops:
            return body
        extents = [own.extent for own in self.nest.loops]
        if all(isinstance(n, tirx.IntImm) for n in extents) and math.prod(map(int, extents)) < WORTH:
            for var, extent in reversed(loops):
                body = tirx.For(var, int64(0), extent, tirx.ForKind.SERIAL, body)
            return body
        count = functools.reduce(lambda a, b: a * b, (extent for _, extent in loops))

        def piece(thread: tirx.Var) -> Stmt:
            begin, end = ((count * (thread + int64(i))) // self.threads for i in (0, 1))

            def one(i: tirx.Var) -> Stmt:
                names, left = dict[tirx.Var, Expr](), begin + i
                for number, (var, extent) in reversed(list(enumerate(loops))):
                    names[var] = left % extent if number else left
                    left = left // extent
                return sequence(*(tirx.Bind(var, names[var]) for var, _ in loops), body)

            return loop("i", end - begin, one)

        return loop("thread", self.threads, piece, parallel=True)

    def along(
        self,
        extent: Expr,
        columns: Callable[[int, Expr], Stmt],
        share: Callable[[Sequence[tuple[tirx.Var, Expr]], Stmt], Stmt] | None = None,
    ) -> Stmt:
        """All columns. Of a size that is known: as many wide tiles as there are, which threads may share, then narrower
        ones. The last tile ends at the last column, and may compute some again."""
        if isinstance(extent, tirx.IntImm):
            parts, at, least = list[Stmt](), 0, self.lanes // 2
            for width in (*(self.lanes * n for n in self._vectors()), least):
                count, tile = (int(extent) - at) // width, variable("c")
                if count:
                    body = columns(width, int64(at) + tile * int64(width))
                    plain = tirx.For(tile, int64(0), int64(count), tirx.ForKind.SERIAL, body)
                    parts.append(plain if share is None else share([(tile, int64(count))], body))
                at += count * width
            if at < int(extent) and least <= int(extent):
                parts.append(columns(least, int64(int(extent) - least)))
            elif at < int(extent):
                parts.append(loop("c", int(extent) - at, lambda c: columns(1, int64(at) + c)))
            return sequence(parts)

        def overlapping(width: int) -> Stmt:
            count = (extent + int64(width - 1)) // int64(width)
            return loop("c", count, lambda c: columns(width, tirx.Min(c * int64(width), extent - int64(width))))

        body = overlapping(1)
        for width in (self.lanes // 2, 2 * self.lanes):
            body = when(tirx.GE(extent, int64(width)), overlapping(width), body)
        return body

    def tile(self, rows: int, width: int, starts: dict[tirx.Var, Expr], row: tirx.For | None = None) -> Stmt:
        nest = self.nest
        lanes = min(self.lanes, width)
        vectors = width // lanes
        last = self.columns.loop_var
        kind = str(nest.store.buffer.dtype)
        sums = tirx.decl_buffer((rows * width,), kind, name="sums", scope="local")

        def each(body: Callable[[dict[tirx.Var, Expr], Expr], Stmt]) -> Stmt:
            def one(r: Expr, j: Expr, v: Expr) -> Stmt:
                offset = j * int64(lanes) + v
                at = {**starts, last: starts[last] + offset}
                if row is not None:
                    at[row.loop_var] = starts[row.loop_var] + r
                return body(at, r * int64(width) + offset)

            return _unrolled(rows, lambda r: _unrolled(vectors, lambda j: _vector(lanes, lambda v: one(r, j, v))))

        def begin(at: dict[tirx.Var, Expr], place: Expr) -> Stmt:
            return tirx.BufferStore(sums, replaced(nest.first, at), [place])

        def add(at: dict[tirx.Var, Expr], place: Expr) -> Stmt:
            value = _with(nest.store.value, nest.store.buffer, tirx.BufferLoad(sums, [place]))
            return tirx.BufferStore(sums, replaced(value, at), [place])

        def end(at: dict[tirx.Var, Expr], place: Expr) -> Stmt:
            found = tirx.BufferLoad(sums, [place])
            if self.after is None:
                indices = [replaced(i, at) for i in nest.store.indices]
                return tirx.BufferStore(nest.store.buffer, found, indices)
            value = _with(self.after.value, nest.store.buffer, found)
            indices = [replaced(i, at) for i in self.after.indices]
            return tirx.BufferStore(self.after.buffer, replaced(value, at), indices)

        return sequence(tirx.AllocBuffer(sums), each(begin), _around(nest.summed, each(add)), each(end))


def _with(value: Expr, buffer: Buffer, found: Expr) -> Expr:
    """The expression with `found` where it reads an array."""
    return tvm_ffi.structural_map(
        value, (tvm.ir.TensorLoad, lambda load: found if load.source.same_as(buffer) else load)
    )
