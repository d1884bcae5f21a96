"""Blocks of weight gradients: all of the result and all rows are somebody's, once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from emulated import run
from row_products import operand
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.gemm.operands import Operand
from tvm_rnn.cuda.training.weight_gradient_block import WeightGradientBlock
from tvm_rnn.cuda.training.weight_gradient_mma import MmaWeightGradientTile

FACTS = 6


class Place(WeightGradientBlock):
    """Writes down where it is."""

    def _work(self) -> None:
        w = self.w
        cta = (self._result() * 2 + (self.line // 64).astype("int64")) * 2 + (self.column // 128).astype("int64")
        found: list[Any] = [self.part, self.group, self.line, self.column, self.first, self.count]
        with w.when(I.EQ(self.tx, 0)):
            for i, value in enumerate(found):
                w.store(w["sums"], value.astype("float32"), cta * FACTS + i)


class Tile(MmaWeightGradientTile):
    def body(self, w: Writer, lefts: Sequence[Operand], rights: Sequence[Operand]) -> WeightGradientBlock:
        return Place(w, self, lefts, rights)

    def pointers(self, lefts: Sequence[Operand], rights: Sequence[Operand]) -> list[tuple[str, str]]:
        return []


TILE = Tile("float32", 64, 128)


def test_tiles_cover_the_result() -> None:
    assert [TILE.tiles(1, *size) for size in ((64, 128), (65, 128), (1, 129), (200, 300))] == [1, 2, 2, 12]


def test_pointers_have_the_dtypes_of_what_is_stored() -> None:
    tile = MmaWeightGradientTile("float32", 64, 128)
    found = tile.pointers([operand("a", 8, 8, "bfloat16")], [operand("b", 8, 8, "float32")])
    assert found == [("a", "bfloat16"), ("b", "float32")]


@pytest.mark.parametrize(("rows", "parts"), [(75, 2), (16, 3), (100, 1)])
def test_every_block_has_its_own_place(rows: int, parts: int) -> None:
    """2 operands of 100 x 200: 2 x 2 tiles each; stages of 16 rows are shared out over the parts."""
    blocks = TILE.tiles(2, 100, 200) * parts
    kernel = TILE.kernel("f", [operand("a", 100, 100, "float32")] * 2, operand("b", 200, 200, "float32"))
    sums = np.full((blocks, FACTS), np.nan, "f4")
    run(kernel, {"sums": sums}, {"rows": rows, "parts": parts, "add": 0}, blocks)
    places = {tuple(row[:4]) for row in sums.tolist()}
    assert places == {(p, n, m, k) for p in range(parts) for n in (0, 1) for m in (0, 64) for k in (0, 128)}
    for tile in np.unique(sums[:, 1:4], axis=0):
        stages = [
            int(s) for _, n, m, k, first, count in sums if (n, m, k) == tuple(tile) for s in first + np.arange(count)
        ]
        assert sorted(stages) == list(range(-(-rows // TILE.deep)))
