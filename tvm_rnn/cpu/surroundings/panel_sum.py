"""A sum whose vectors are constants in panels: a convolution with its filters, a product with a matrix of weights.

In: a nest on constants in panels (`columns.py`). Out: statements. A panel stays in the cache while all rows go by it,
and is read in order; its last one is computed whole, and what there is of it stored.

Rewrite: for f: for r: y[r, f] = sum of k: x[r, k] w[k, f]
     --> parallel for panel: for tile of rows: registers = sum of k: x[r, k] w'[panel, k, :]; y = registers
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import tirx

from tvm_rnn.cpu.second_thread import with_weights
from tvm_rnn.surroundings.nest import mentions, replaced
from tvm_rnn.tir.expr import Buffer, Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import loop, sequence, variable, when

from .columns import Panels
from .shared_loops import Loops, product
from .sum_tiles import Sum, around, unrolled, vector

FEW = 4  # rows of a tile where there are not enough for a whole one
ENOUGH = 8  # pieces of work that threads share well
SERIAL = tirx.ForKind.SERIAL
Tile = Callable[[int, Mapping[tirx.Var, Expr], "tirx.For | None"], Stmt]  # so many rows, from where on
Cell = Callable[[Buffer, Mapping[tirx.Var, Expr], Expr], Stmt]


@dataclass(frozen=True)
class Rows:
    """The rows of a tile. wide: their elements. starts: where the tile begins; row: the loop whose steps are rows."""

    count: int
    wide: int
    starts: Mapping[tirx.Var, Expr]
    row: tirx.For | None

    def at(self, r: Expr) -> dict[tirx.Var, Expr]:
        """Where row r is."""
        own = {} if self.row is None else {self.row.loop_var: self.starts[self.row.loop_var] + r}
        return {**self.starts, **own}


@dataclass
class PanelSum(Sum):
    """panels: what the nest's constants are read with."""

    panels: Panels

    @staticmethod
    def width(plain: Sum) -> int:
        """The elements of a panel: as many vectors as registers hold beside rows, or one that is as short as can be."""
        extent, lanes = plain.columns.extent, plain.lanes
        if not isinstance(extent, tirx.IntImm):
            return lanes
        while lanes > 4 and int(extent) <= lanes // 2:
            lanes //= 2
        return int(min(plain.widths()[0] * lanes, -(-int(extent) // lanes) * lanes))

    def statement(self) -> Stmt:
        """Panels outside, rows inside; threads share both, and what is around them."""
        extent, width = int(self.columns.extent), self.panels.width
        outer = [own for own in self.nest.own if own is not self.columns]
        row = next((own for own in reversed(outer) if not self.moves_panels(own.loop_var)), None)
        outer = [own for own in outer if own is not row]
        around_rows = [(own.loop_var, own.extent) for own in outer]
        whole, rest, panel = extent // width, extent % width, variable("p")
        parts = list[Stmt]()
        if whole:
            parts.append(self.in_rows(row, [(panel, int64(whole)), *around_rows], self._at(panel, width)))
        if rest:
            parts.append(self.in_rows(row, around_rows, self._at(int64(whole), rest)))
        return sequence(parts)

    @property
    def work(self) -> Expr:
        sizes = [product(own.shape) * int64(int(tvm.DataType(own.dtype).bits) // 8) for own in self.constants]
        return with_weights(super().work, sum(sizes, start=int64(0)))

    @property
    def constants(self) -> list[Buffer]:
        """The arrays that panels are in."""
        return [own.source for own in self._loads()]

    def _loads(self) -> list[tvm.ir.TensorLoad]:
        """Where the sum reads panels."""
        loads = list[tvm.ir.TensorLoad]()
        tvm_ffi.structural_walk(self.nest.store.value, (tvm.ir.TensorLoad, loads.append))
        return [own for own in loads if any(mentions(i, self.panels.column) for i in own.indices)]

    def moves_panels(self, var: tirx.Var) -> bool:
        """Whether a loop reads other elements of panels."""
        return any(mentions(i, var) for own in self._loads() for i in own.indices)

    def _at(self, panel: Expr, count: int) -> Tile:
        """What makes a tile of some rows of a panel, of which there are so many columns."""
        starts = {self.columns.loop_var: panel * int64(self.panels.width), self.panels.panel: panel}
        return lambda rows, at, row: self.panel_tile(rows, count, {**starts, **at}, row)

    def in_rows(self, row: tirx.For | None, shared: Loops, tile: Tile) -> Stmt:
        """All rows. They are by themselves what threads share where there is little else."""
        if row is None:
            return self.apart(shared, tile(1, {}, None))
        counts = [int(extent) for _, extent in shared if isinstance(extent, tirx.IntImm)]
        if math.prod(counts) >= ENOUGH or len(counts) < len(shared):
            rows = self.tiles_of(row, lambda start, number, body: tirx.For(start, int64(0), number, SERIAL, body), tile)
            return self.apart(shared, rows)
        return self.tiles_of(row, lambda start, number, body: self.apart([*shared, (start, number)], body), tile)

    def apart(self, loops: Loops, body: Stmt) -> Stmt:
        """What threads share, on variables of its own: each is bound once."""
        fresh = {var: variable(var.name) for var, _ in loops}
        return self.share([(fresh[var], extent) for var, extent in loops], replaced(body, fresh))

    def tiles_of(self, row: tirx.For, walk: Callable[[tirx.Var, Expr, Stmt], Stmt], tile: Tile) -> Stmt:
        """As many whole tiles as there are, then smaller ones, of which the last may compute some rows again."""

        def tiles(count: int, begin: Expr, number: Expr, last: Expr | None = None) -> Stmt:
            start = variable("r")
            first = begin + start * int64(count)
            first = first if last is None else tirx.Min(first, last)
            return walk(start, number, tile(count, {row.loop_var: first}, row))

        most = self.rows_of(row)
        if isinstance(row.extent, tirx.IntImm):
            whole, rest = divmod(int(row.extent), most)
            parts = [tiles(most, int64(0), int64(whole))]
            return sequence(parts + ([tiles(rest, int64(whole * most), int64(1))] if rest else []))
        done = row.extent // int64(most) * int64(most)
        few = (row.extent - done + int64(FEW - 1)) // int64(FEW)
        return sequence(
            when(tirx.GE(row.extent, int64(most)), tiles(most, int64(0), row.extent // int64(most))),
            when(
                tirx.GE(row.extent, int64(FEW)),
                when(tirx.GT(few, int64(0)), tiles(FEW, done, few, row.extent - int64(FEW))),
                tiles(1, int64(0), row.extent),
            ),
        )

    def rows_of(self, row: tirx.For | None) -> int:
        """As many as registers hold, and where it can be so that none are left over."""
        most = 12 if self.lanes >= 16 else 6
        if row is None or not isinstance(row.extent, tirx.IntImm):
            return most
        extent = int(row.extent)
        even = [n for n in range(most // 2 + 1, most + 1) if extent % n == 0]
        return max(even, default=min(extent, most))

    def panel_tile(self, rows: int, count: int, starts: Mapping[tirx.Var, Expr], row: tirx.For | None) -> Stmt:
        """A tile of so many columns, computed in whole vectors. What stores the sums reads them from memory, in a loop:
        unrolled it would be as much code as rows and vectors."""
        wide = -(-count // self.lanes) * self.lanes
        rows_at = Rows(rows, wide, starts, row)
        sums = tirx.decl_buffer((rows * wide,), self.kind, name="sums", scope="local")
        tile = sums if self.after is None else tirx.decl_buffer((rows * wide,), self.kind, name="tile", scope="local")

        def kept(source: Buffer, at: Mapping[tirx.Var, Expr], place: Expr) -> Stmt:
            return tirx.BufferStore(tile, tirx.BufferLoad(source, [place]), [place])

        begin = unrolled(rows, lambda r: self.in_vectors(self.begin, sums, rows_at, r, wide))
        add = self.adding(sums, rows_at)
        if self.after is None:
            end = unrolled(rows, lambda r: self.in_vectors(self.end, sums, rows_at, r, count))
            return sequence(tirx.AllocBuffer(sums), begin, add, end)
        keep = unrolled(rows, lambda r: self.in_vectors(kept, sums, rows_at, r, wide))
        end = loop("r", int64(rows), lambda r: self.in_vectors(self.end, tile, rows_at, r, count))
        allocated = tirx.AllocBuffer(sums), tirx.AllocBuffer(tile)
        return sequence(*allocated, begin, add, keep, end)

    def adding(self, sums: Buffer, rows: Rows) -> Stmt:
        """All that is summed, added to the sums of a tile."""
        add = unrolled(rows.count, lambda r: self.in_vectors(self.add, sums, rows, r, rows.wide))
        return around(self.nest.summed, add)

    def in_vectors(self, part: Cell, source: Buffer, rows: Rows, r: Expr, upto: int) -> Stmt:
        """A statement for each of the first columns of a row."""
        lanes, parts, last = self.lanes, list[Stmt](), self.columns.loop_var

        def one(offset: Expr) -> Stmt:
            at = {**rows.at(r), last: rows.starts[last] + offset, self.panels.column: offset}
            return part(source, at, r * int64(rows.wide) + offset)

        if upto // lanes:
            parts.append(unrolled(upto // lanes, lambda j: vector(lanes, lambda v: one(j * int64(lanes) + v))))
        if upto % lanes:
            parts.append(vector(upto % lanes, lambda v: one(int64(upto // lanes * lanes) + v)))
        return sequence(parts)
