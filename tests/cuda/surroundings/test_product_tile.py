"""Which nests are products, which factor is rows, and how terms lie in memory."""

from __future__ import annotations

import numpy as np
from test_nest_kernel import nest_of
from tvm import relax

from tvm_rnn.cuda.surroundings.product_tile import TILES, product_of


def test_rows_are_positions_and_columns_filters() -> None:
    w = np.ones((6, 3, 5), "f4")
    nest = nest_of(["b", "t", 3], lambda x: relax.op.nn.conv1d(x, relax.const(w), data_layout="NWC"))
    found = product_of(nest)
    assert found is not None and found.each == []
    assert [str(own) for own in found.rows.loops] == [str(own) for own in nest.own[:2]]
    assert found.rows.run and found.columns.run, "channels are the last axis of both"


def test_products_apart_and_what_is_none() -> None:
    nest = nest_of(["b", 5, 40], lambda x: relax.op.matmul(x, relax.op.permute_dims(x, [0, 2, 1])))
    found = product_of(nest)
    assert found is not None and len(found.each) == 1
    assert product_of(nest_of(["n", "t"], lambda x: relax.op.sum(x, 1))) is None


def test_tiles_have_whole_warps() -> None:
    assert all(tile.threads % 32 == 0 and tile.threads <= 1024 for tile in TILES)
    assert all(tile.rows % tile.high == 0 and tile.columns % tile.broad == 0 for tile in TILES)
