"""Blocks of weight gradients: all of the result and all rows are somebody's, once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated import run
from row_products import operand
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.training.weight_gradient_block import (
    WeightGradientBlock,
    pointers_of,
    tiles_of,
    weight_gradient_kernel,
)
from tvm_rnn.cuda.training.weight_gradient_mma import MmaWeightGradientTile

TILE = MmaWeightGradientTile("float32", 64, 128)


def test_tiles_cover_the_result() -> None:
    assert [tiles_of(TILE, *size) for size in ((64, 128), (65, 128), (1, 129), (200, 300))] == [1, 2, 2, 12]


def test_pointers_have_the_dtypes_of_what_is_stored() -> None:
    assert pointers_of([operand("a", 8, 8, "bfloat16"), operand("b", 8, 8, "float32")]) == [
        ("a", "bfloat16"),
        ("b", "float32"),
    ]


@pytest.mark.parametrize(("rows", "parts"), [(75, 2), (16, 3), (100, 1)])
def test_every_block_has_its_own_place(rows: int, parts: int) -> None:
    """2 operands of 100 x 200: 2 x 2 tiles each; stages of 16 rows are shared out over the parts."""
    blocks, facts = 2 * tiles_of(TILE, 100, 200) * parts, 6

    def body(w: Writer) -> None:
        block = WeightGradientBlock(w, TILE, 2, 100, 200)
        block._locate()
        block._share_rows()
        cta = (block._result() * 2 + (block.line // 64).astype("int64")) * 2 + (block.column // 128).astype("int64")
        found: list[Any] = [block.part, block.left, block.line, block.column, block.first, block.count]
        with w.when(I.EQ(block.tx, 0)):
            for i, value in enumerate(found):
                w.store(w["sums"], value.astype("float32"), cta * facts + i)

    kernel = weight_gradient_kernel("f", TILE, [], body)
    sums = np.full((blocks, facts), np.nan, "f4")
    run(kernel, {"sums": sums}, {"rows": rows, "parts": parts}, blocks)
    places = {tuple(row[:4]) for row in sums.tolist()}
    assert places == {(p, n, m, k) for p in range(parts) for n in (0, 1) for m in (0, 64) for k in (0, 128)}
    for tile in np.unique(sums[:, 1:4], axis=0):
        stages = [
            int(s) for _, n, m, k, first, count in sums if (n, m, k) == tuple(tile) for s in first + np.arange(count)
        ]
        assert sorted(stages) == list(range(-(-rows // TILE.deep)))
