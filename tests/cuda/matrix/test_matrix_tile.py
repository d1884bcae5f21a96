"""How lanes share a matrix: every element is one lane's."""

from __future__ import annotations

from collections import Counter

import pytest

from tvm_rnn.cuda.matrix.element_index import COLUMN, ROW
from tvm_rnn.cuda.matrix.matrix_tile import LANES, WARPS, MatrixTile


@pytest.mark.parametrize(
    ("rows", "columns", "across"), [(64, 64, 1), (24, 40, 1), (7, 3, 1), (300, 8, 1), (24, 40, 2), (200, 40, 4)]
)
def test_every_element_has_one_lane(rows: int, columns: int, across: int) -> None:
    tile = MatrixTile(rows, columns, across=across)
    found = Counter(
        (int(tile.row(warp, lane, i).value), int(tile.column(warp, lane, j).value))
        for warp in range(tile.warps)
        for lane in range(LANES)
        for i in range(tile.lane_rows)
        for j in range(tile.lane_columns)
    )
    assert found == Counter((r, c) for r in range(tile.padded_rows) for c in range(tile.padded_columns))
    assert rows <= tile.padded_rows and columns <= tile.padded_columns and tile.warps <= WARPS
    assert tile.padded(ROW) == (tile.padded_rows > rows) and tile.padded(COLUMN) == (tile.padded_columns > columns)


def test_the_warp_that_stores_has_every_column() -> None:
    tile = MatrixTile(8, 70)
    found = [tile.spread(COLUMN, lane, i).value for i in range(tile.spread_count(COLUMN)) for lane in range(LANES)]
    assert found[:70] == list(range(70)) and len(found) == 96
