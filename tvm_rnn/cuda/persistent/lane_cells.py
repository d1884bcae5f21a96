"""Which cells of a layer a lane of a persistent kernel has: units and batch rows, as expressions of its thread's place.

In: a geometry and who the thread is. Out: `LaneCells`: for block b of a warp's blocks of 8 units, own tile j of its
tiles of 8 batch rows and row e of two: the unit, the row in the arrays, whether they are the layer's at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tvm import tirx

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.tir.expr import Expr

from .geometry import Geometry, ThreadIds


class LaneCells:
    """The cells of this thread. Construct once, at the kernel's start: rows are kept in registers."""

    def __init__(self, k: Writer, geometry: Geometry, ids: ThreadIds) -> None:
        self.k, self.geometry, self.ids = k, geometry, ids
        self.rows = k.local(geometry.own_tiles, "int32")
        for j in range(geometry.own_tiles):
            row = k["row0"] + ids.group * geometry.rows + self.tile(j) * 8 + ids.q * 2
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
        """The batch row, in the arrays."""
        return self.rows[j] + e

    @contextmanager
    def own_tile(self, j: int) -> Iterator[None]:
        """Statements for warps that have a j-th tile."""
        owned = self.geometry.owned(j, self.ids.warp_k)
        if owned is None:
            yield
        else:
            with self.k.when(owned):
                yield

    def each(self, width: int) -> Iterator[tuple[int, int, int]]:
        """(block, own tile, row of two) of every cell of a value so wide."""
        blocks = 1 if width == 1 else self.geometry.blocks(width)
        return ((b, j, e) for j in range(self.geometry.own_tiles) for b in range(blocks) for e in range(2))

    def inside(self, width: int, block: int, j: int, e: int) -> Expr:
        """Whether a cell is one of the layer's: rows and units are padded."""
        inside = self.row(j, e) < self.k["batch"]
        if width > 1 and self.geometry.ctas * self.geometry.units(width) != width:
            inside = tirx.And(inside, self.unit(width, block) < width)
        return inside
