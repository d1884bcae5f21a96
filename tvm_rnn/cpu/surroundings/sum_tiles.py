"""A sum in tiles of rows and vectors, each summed in registers.

In: a nest that adds up, the loop that becomes vectors, what stores the sums. Out: statements. A row is a row of the
left matrix, a filter, or, where vectors run along filters, a position.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import tirx

from tvm_rnn.surroundings.nest import Nest, mentions, replaced
from tvm_rnn.tir.expr import Buffer, Expr, Stmt, TirExpr
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import loop, sequence, variable, when

from .shared_loops import Loops, product, shared


def vector(lanes: int, body: Callable[[tirx.Var], Stmt]) -> Stmt:
    """A loop over the elements of a vector."""
    var = variable("v")
    kind = tirx.ForKind.VECTORIZED if lanes > 1 else tirx.ForKind.SERIAL
    return tirx.For(var, int64(0), int64(lanes), kind, body(var))


def unrolled(count: int, body: Callable[[tirx.Var], Stmt]) -> Stmt:
    """A loop that becomes as many statements."""
    var = variable("u")
    return tirx.For(var, int64(0), int64(count), tirx.ForKind.UNROLLED, body(var))


def around(loops: Sequence[tirx.For], body: Stmt) -> Stmt:
    """The statement in loops, the first one outside."""
    for own in reversed(loops):
        body = tirx.For(own.loop_var, int64(0), own.extent, tirx.ForKind.SERIAL, body)
    return body


def is_multiple(extent: Expr, of: int) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) % of == 0


@dataclass
class Sum:
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
        row = self.row_of(outer, last)
        outer = [own for own in outer if own is not row]
        most = self.rows_of(row)
        shared = [(own.loop_var, own.extent) for own in outer]
        if row is not None and is_multiple(row.extent, most):
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

    def row_of(self, outer: Sequence[tirx.For], last: tirx.For) -> tirx.For | None:
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

    def rows_of(self, row: tirx.For | None) -> int:
        """The rows of a tile: as many as registers hold, and where it can be so that none are left over."""
        most = 1 if row is None else 8 if self.lanes >= 16 else 4
        if row is None or not isinstance(row.extent, tirx.IntImm):
            return most
        return max(
            [n for n in range(most // 2, most + 1) if int(row.extent) % n == 0], default=min(most, int(row.extent))
        )

    def widths(self) -> list[int]:
        """How many vectors a tile may be wide, most first: few rows leave registers for more of them."""
        row = self.row_of([own for own in self.nest.own if own is not self.columns], self.columns)
        known = 1 if row is None else int(row.extent) if isinstance(row.extent, tirx.IntImm) else self.rows_of(row)
        most = 8 if known < 2 else 4 if known < 3 else 2
        return [n for n in (8, 4, 2, 1) if n <= most]

    def share(self, loops: Loops, body: Stmt) -> Stmt:
        """The loops as one, a piece of which each thread has where that is worth it."""
        return shared(loops, body, self.work, self.threads)

    @property
    def work(self) -> Expr:
        """In multiply-adds."""
        return product([own.extent for own in self.nest.loops])

    def along(
        self,
        extent: Expr,
        columns: Callable[[int, Expr], Stmt],
        share: Callable[[Loops, Stmt], Stmt] | None = None,
    ) -> Stmt:
        """All columns. Of a size that is known: as many wide tiles as there are, which threads may share, then narrower
        ones. The last tile ends at the last column, and may compute some again."""
        if isinstance(extent, tirx.IntImm):
            parts, at, least = list[Stmt](), 0, self.lanes // 2
            for width in (*(self.lanes * n for n in self.widths()), least):
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
        sums = tirx.decl_buffer((rows * width,), self.kind, name="sums", scope="local")

        def each(body: Callable[[dict[tirx.Var, Expr], Expr], Stmt]) -> Stmt:
            def one(r: Expr, j: Expr, v: Expr) -> Stmt:
                offset = j * int64(lanes) + v
                at = {**starts, last: starts[last] + offset}
                if row is not None:
                    at[row.loop_var] = starts[row.loop_var] + r
                return body(at, r * int64(width) + offset)

            return unrolled(rows, lambda r: unrolled(vectors, lambda j: vector(lanes, lambda v: one(r, j, v))))

        parts = (self.begin, self.add, self.end)
        begin, add, end = (each(functools.partial(part, sums)) for part in parts)
        return sequence(tirx.AllocBuffer(sums), begin, around(nest.summed, add), end)

    @property
    def kind(self) -> str:
        """The dtype that sums have in registers."""
        return str(self.nest.store.buffer.dtype)

    def begin(self, sums: Buffer, at: Mapping[tirx.Var, Expr], place: Expr) -> Stmt:
        """What a sum begins with."""
        return tirx.BufferStore(sums, replaced(self.nest.first, at), [place])

    def add(self, sums: Buffer, at: Mapping[tirx.Var, Expr], place: Expr) -> Stmt:
        """One more of what is summed."""
        store = self.nest.store
        value = with_value(store.value, store.buffer, tirx.BufferLoad(sums, [place]))
        return tirx.BufferStore(sums, replaced(value, at), [place])

    def found(self, sums: Buffer, place: Expr) -> Expr:
        """A sum."""
        return tirx.BufferLoad(sums, [place])

    def end(self, sums: Buffer, at: Mapping[tirx.Var, Expr], place: Expr) -> Stmt:
        """The sum where it belongs."""
        found, store = self.found(sums, place), self.nest.store
        if self.after is None:
            return tirx.BufferStore(store.buffer, found, [replaced(i, at) for i in store.indices])
        value = with_value(self.after.value, store.buffer, found)
        indices = [replaced(i, at) for i in self.after.indices]
        return tirx.BufferStore(self.after.buffer, replaced(value, at), indices)


def with_value(value: Expr, buffer: Buffer, found: Expr) -> Expr:
    """The expression with `found` where it reads an array."""
    return tvm_ffi.structural_map(
        value, (tvm.ir.TensorLoad, lambda load: found if load.source.same_as(buffer) else load)
    )
