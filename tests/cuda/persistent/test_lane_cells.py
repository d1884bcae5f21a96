"""lane_cells: which thread has which cell."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from persistent_layers import geometry_of, step

from tvm_rnn.cuda.persistent.geometry import LANES, ThreadIds
from tvm_rnn.cuda.persistent.lane_cells import LaneCells


class Numbers(dict[str, int]):
    """A writer of a kernel that computes with numbers."""

    def local(self, count: int, dtype: str = "float32") -> dict[int, int]:
        return {}

    def store(self, registers: dict[int, int], value: int, at: int) -> None:
        registers[at] = value


@pytest.mark.parametrize("knobs", [{}, {"warps_u": 2, "warps_n": 2}, {"warps_k": 2}, {"warps_u": 2, "warps_k": 2}])
def test_each_cell_of_a_layer_is_one_lanes(knobs: dict[str, int]) -> None:
    made = geometry_of(step("lstm", 64), "bfloat16", "cluster", 2, 16, **knobs)
    writer: Any = Numbers(row0=0, batch=13)
    found = []
    for rank, warp, lane in product(range(made.ctas), range(made.warps), range(LANES)):
        part, n, u = warp % made.warps_k, warp // made.warps_k % made.warps_n, warp // (made.warps_k * made.warps_n)
        thread = warp * LANES + lane
        cells = LaneCells(writer, made, ThreadIds(0, rank, thread, warp, lane, lane // 4, lane % 4, part, n, u))
        for block, j, e in cells.each(64):
            if cells.inside(64, block, j, e):
                found.append((cells.row(j, e), cells.unit(64, block)))
    assert sorted(found) == list(product(range(13), range(64)))


def test_one_number_per_row_is_one_block_of_units() -> None:
    made = geometry_of(step("lstm", 64), "bfloat16", "cluster", 2, 16)
    writer: Any = Numbers(row0=0, batch=16)
    cells = LaneCells(writer, made, ThreadIds(*(0 for _ in range(10))))
    assert {block for block, _, _ in cells.each(1)} == {0}
    assert len(list(cells.each(64))) == made.blocks(64) * len(list(cells.each(1)))
