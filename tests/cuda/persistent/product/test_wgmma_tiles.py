"""Tiles of wgmma in shared memory: the order of a row's pieces, and where a word of a packed tile belongs."""

from __future__ import annotations

from emulated import check_packed_once
from persistent_layers import geometry_of, step

from tvm_rnn.cuda.codegen.tile_layout import SWIZZLE_64
from tvm_rnn.cuda.persistent.product.wgmma_tiles import TILE_BYTES


def test_a_swizzle_is_its_own_inverse() -> None:
    for row in range(16):
        pieces = [int(SWIZZLE_64.piece(row, int(SWIZZLE_64.piece(row, piece)))) for piece in range(4)]
        assert pieces == [0, 1, 2, 3]


def test_both_orders_have_every_element_of_a_tile_once() -> None:
    knobs = {"ctas": 8, "rows": 16, "warps_u": 2, "warps_k": 4, "ring": 3}
    made = geometry_of(step("lstm", 128), "bfloat16", "grid", **knobs)
    for place in (made.fragment_place, made.swizzled_place):
        found = {place(word, element) for word in range(TILE_BYTES // 4) for element in range(2)}
        assert found == {(row, k) for row in range(64) for k in range(made.block_k)}
    check_packed_once(made)
