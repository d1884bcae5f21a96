"""How the lanes of a block share a matrix: as tensor cores leave sums, so that products read what products left.

In: sizes. Out: `MatrixTile`: a warp has 16 rows, or several times 16, and all columns; a lane has two rows of 16 and
two columns of 8. Where no product reads whole rows, several warps may share the columns of their rows: lanes have fewer
elements, and sums over columns meet in shared memory. One more warp loads what steps read, and stores what they emit.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from tvm_rnn.cuda.layer.packed_layout import ceil_div
from tvm_rnn.tir.expr import Expr, TirExpr

from .element_index import COLUMN, ROW, UNIT, Along

LANES = 32
WARPS = 16  # that have rows, at most
DEEP = 16  # columns that a product reads at a time


@dataclass(frozen=True)
class MatrixTile:
    """rows, columns: of a matrix. units: elements of vectors that run along neither, if there are some. across: warps
    that share the columns of the same rows."""

    rows: int
    columns: int
    units: int = 0
    across: int = 1

    @property
    def high(self) -> int:
        """Tiles of 16 rows of a warp."""
        return ceil_div(self.rows, 16 * (WARPS // self.across))

    @property
    def down(self) -> int:
        """Warps that share the rows of the same columns."""
        return ceil_div(self.rows, 16 * self.high)

    @property
    def warps(self) -> int:
        return self.down * self.across

    @property
    def broad(self) -> int:
        """Tiles of 8 columns of a warp: two to a step of a product."""
        return ceil_div(self.columns, DEEP) * 2 if self.across == 1 else ceil_div(self.columns, 8 * self.across)

    @property
    def threads(self) -> int:
        return LANES * (self.warps + 1)

    @property
    def lane_rows(self) -> int:
        return 2 * self.high

    @property
    def lane_columns(self) -> int:
        return 2 * self.broad

    @property
    def elements(self) -> int:
        """Of a lane."""
        return self.lane_rows * self.lane_columns

    @property
    def padded_columns(self) -> int:
        return 8 * self.broad * self.across

    @property
    def padded_rows(self) -> int:
        return 16 * self.high * self.down

    def padded(self, role: str) -> bool:
        """Whether some lanes have rows, or columns, that no matrix has."""
        return self.extent(role) != self.padded_extent(role)

    def extent(self, role: str) -> int:
        return {ROW: self.rows, COLUMN: self.columns, UNIT: self.units}[role]

    def padded_extent(self, role: str) -> int:
        units = ceil_div(self.units, self.members) * self.members
        return {ROW: self.padded_rows, COLUMN: self.padded_columns, UNIT: units}[role]

    @property
    def members(self) -> int:
        """Threads that have elements."""
        return LANES * self.warps

    def shared_extent(self, role: str) -> int:
        """Elements that a vector along it has in shared memory: what a warp reads that spreads it over its lanes."""
        return ceil_div(self.padded_extent(role), LANES) * LANES

    def place(self, warp: Expr) -> tuple[Expr, Expr]:
        """Of a warp: which it is of those that share rows, and of those that share columns."""
        return (warp, tirx.const(0, "int32")) if self.across == 1 else (warp // self.across, warp % self.across)

    def row(self, warp: Expr, lane: TirExpr, number: int) -> Along:
        value = self.place(warp)[0] * (16 * self.high) + lane // 4 + (number // 2 * 16 + number % 2 * 8)
        return Along(ROW, number, self.padded_rows, value=value)

    def column(self, warp: Expr, lane: TirExpr, number: int) -> Along:
        first = lane % 4 * 2 + (number // 2 * 8 + number % 2)
        value = first if self.across == 1 else self.place(warp)[1] * (8 * self.broad) + first
        return Along(COLUMN, number, self.padded_columns, value=value)

    def lanes(self, warp: Expr, lane: TirExpr) -> dict[str, tuple[Along, ...]]:
        """What a lane has, by role."""
        first, units = warp * LANES + lane, ceil_div(self.units, self.members)
        own = (first + n * self.members for n in range(units))
        return {
            ROW: tuple(self.row(warp, lane, i) for i in range(self.lane_rows)),
            COLUMN: tuple(self.column(warp, lane, j) for j in range(self.lane_columns)),
            UNIT: tuple(Along(UNIT, n, self.padded_extent(UNIT), value=at) for n, at in enumerate(own)),
        }

    def spread_lanes(self, lane: Expr) -> dict[str, tuple[Along, ...]]:
        """What a lane of the warp that loads and stores has."""
        return {
            role: tuple(self.spread(role, lane, i) for i in range(self.spread_count(role)))
            for role in (ROW, COLUMN, UNIT)
        }

    def spread(self, role: str, lane: Expr, number: int) -> Along:
        """The same over 32 lanes one after the other."""
        return Along(role, number, self.padded_extent(role), True, lane + number * LANES)

    def spread_count(self, role: str) -> int:
        return ceil_div(self.extent(role), LANES)
