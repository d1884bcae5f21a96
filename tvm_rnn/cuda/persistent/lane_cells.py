"""Which cells of a layer a thread of a persistent kernel computes, and where its steps are in time.

In: a `Geometry`, who the thread is. Out: the units and batch rows of its cells, and conditions; the rows of a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from tvm import tirx

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.tir.expr import Buffer, Expr

from .geometry import LANES, Geometry, ThreadIds


@dataclass(frozen=True)
class Block:
    """Who a thread of a kernel is: its group of blocks, its block's rank in there, its number in the block; and the
    block's shared memory."""

    group: Expr
    rank: Expr
    thread: Expr
    arena: Buffer


def identify(geometry: Geometry, group: Expr, rank: Expr, thread: Expr) -> ThreadIds:
    """Who a thread is that computes."""
    warp, lane = tirx.floordiv(thread, LANES), tirx.floormod(thread, LANES)
    g, q = tirx.floordiv(tirx.floormod(thread, LANES), 4), tirx.floormod(thread, 4)
    return ThreadIds(group, rank, thread, warp, lane, g, q, *geometry.warp_place(warp))


class StepOrder:
    """Where the steps of a launch are in order of time. Construct once, at the kernel's start."""

    def __init__(self, k: Writer) -> None:
        self.k, self.first = k, k.keep(tirx.Select(k["direction"] < 0, k["steps"] - 1, tirx.const(0, "int32")))

    def order(self, t: Expr) -> Expr:
        """Where step t is."""
        return self.first + self.k["direction"] * t

    def time(self, t: Expr) -> Expr:
        """Row 0 of step t in arrays [T, B, ...]."""
        return tirx.Cast("int64", self.order(t)) * self.k["batch"]


class LaneCells:
    """The cells of a thread. Construct once, at the kernel's start: rows are kept in registers."""

    def __init__(self, k: Writer, geometry: Geometry, ids: ThreadIds) -> None:
        self.k, self.geometry, self.ids = k, geometry, ids
        self.rows = k.local(geometry.own_tiles, "int32")
        for j in range(geometry.own_tiles):
            row = k["row0"] + ids.group * geometry.rows + self.tile(j) * 8 + ids.q * 2
            if geometry.rows < 8:  # the other lanes have none
                row = tirx.Select(ids.q * 2 < geometry.rows, row, k["batch"])
            k.store(self.rows, row, j)

    def unit(self, width: int, block: int) -> Expr:
        """This lane's unit: of the `block`-th of its blocks of 8."""
        return self.first_unit(width, block) + self.ids.g

    def first_unit(self, width: int, block: int) -> Expr:
        """The first unit of a block of 8."""
        geometry, ids = self.geometry, self.ids
        return ids.rank * geometry.units(width) + (ids.warp_u * geometry.blocks(width) + block) * 8

    def tile(self, j: int) -> Expr:
        """The batch tile of this warp's j-th own one, among the group's."""
        return self.ids.warp_n * self.geometry.tiles + self.geometry.own_tile(j, self.ids.warp_k)

    def row(self, j: int, e: Expr) -> Expr:
        """The batch row, in the arrays; none of the batch where the lane has no such cell."""
        if self.geometry.rows > 1:
            return self.rows[j] + e
        return tirx.Select(tirx.EQ(tirx.convert(e), 0), self.rows[j], self.k["batch"])

    def own_tile(self, j: int) -> AbstractContextManager[None]:
        """Statements for warps that have a j-th tile."""
        owned = self.geometry.owned(j, self.ids.warp_k)
        return nullcontext() if owned is None else self.k.when(owned)

    def each(self, width: int) -> Iterator[tuple[int, int, int]]:
        """(block, own tile, row of two) of every cell of a value so wide."""
        blocks = 1 if width == 1 else self.geometry.blocks(width)
        return ((b, j, e) for j in range(self.geometry.own_tiles) for b in range(blocks) for e in range(2))

    def alone(self, width: int, block: int, j: int, e: int) -> Expr:
        """The same for one lane of those that know a cell: all do where it is one number per row."""
        inside, ids = self.inside(width, block, j, e), self.ids
        if width > 1:
            return inside
        first = tirx.And(tirx.EQ(ids.g, 0), tirx.And(tirx.EQ(ids.rank, 0), tirx.EQ(ids.warp_u, 0)))
        return tirx.And(first, inside)

    def inside(self, width: int, block: int, j: int, e: int) -> Expr:
        """Whether a cell is one of the layer's: rows and units are padded."""
        inside = self.row(j, e) < self.k["batch"]
        if width > 1 and self.geometry.ctas * self.geometry.units(width) != width:
            inside = tirx.And(inside, self.unit(width, block) < width)
        return inside
