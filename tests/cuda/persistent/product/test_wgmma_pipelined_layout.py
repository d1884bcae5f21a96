"""How a pipeline's stages are used, where shared memory's regions lie, and that every weight is packed once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated import check_packed_once
from persistent_layers import geometry_of, step

from tvm_rnn.cuda.persistent.geometry import Geometry
from tvm_rnn.cuda.persistent.product.wgmma_pipelined_layout import (
    chunks,
    m_tiles,
    memory_map,
    part_bytes,
    partial_stride,
    swizzled,
    uses,
)


def team(name: str = "lstm", hidden: int = 256, precision: str = "bfloat16", **knobs: Any) -> Geometry:
    knobs = {"ctas": 16, "rows": 16, "warps_u": 2, "warps_k": 4, "ring": 3, **knobs}
    return geometry_of(step(name, hidden, precision), precision, "grid", **knobs)


def test_every_block_of_k_goes_through_the_pipeline_once() -> None:
    made = team(register_words=8, shared_words=8, rows=128)
    for phase, found in chunks(made).items():
        (share,) = made.shares[phase]
        assert (share.kblocks, share.registers, share.shared, share.streamed) == (4, 1, 1, 2)
        blocks = [c.first + i for c in found for i in range(c.count)]
        assert sorted(blocks) == list(range(share.kblocks))
        assert all(c.streamed == (c.first >= 2) and c.count == 1 for c in found if c.streamed)
    numbers = [c.turn * made.ring + c.slot for found in chunks(made).values() for c in found]
    assert numbers == list(range(len(numbers))) and sum(uses(made)) == len(numbers)


def test_streamed_weights_are_spread() -> None:
    made = team(hidden=2048, ctas=128, rows=64, register_words=64, shared_words=64)
    (found,) = chunks(made).values()
    streamed = [i for i, c in enumerate(found) if c.streamed]
    assert len(streamed) == 16 and max(np.diff(streamed)) <= 2


@pytest.mark.parametrize(("ring", "apart"), [(2, True), (5, False)])
def test_sums_share_the_pipeline_where_room_is_short(ring: int, apart: bool) -> None:
    made = team(hidden=2048, ctas=128, rows=64, register_words=128, shared_words=96 if apart else 128, ring=ring)
    found = memory_map(made)
    assert found.apart == apart and found.end == made.shared_bytes <= 232448
    assert found.pipeline == 0 and found.partial == (2 * ring * part_bytes(made) if apart else 0)
    assert found.weights % 1024 == 0 and found.weights >= 2 * ring * part_bytes(made) and found.barriers % 8 == 0
    assert found.stage == found.weights + made.weight_words * 4


def test_half_a_warp_meets_no_bank_twice() -> None:
    for rows in range(16, 136, 8):
        stride = partial_stride(team(rows=rows))
        banks = {(g * stride + 2 * q + e) % 32 for g in range(4) for q in range(4) for e in range(2)}
        assert len(banks) == 32, rows


def test_a_swizzle_is_its_own_inverse() -> None:
    for row in range(16):
        pieces = [int(swizzled(row, int(swizzled(row, piece)))) for piece in range(4)]
        assert pieces == [0, 1, 2, 3]


@pytest.mark.parametrize("precision", ["bfloat16", "tf32"])
@pytest.mark.parametrize(("name", "hidden", "tiles"), [("lstm", 128, 1), ("gru", 72, 1), ("lstm", 200, 2)])
def test_every_weight_is_packed_once(name: str, hidden: int, tiles: int, precision: str) -> None:
    made = team(name, hidden, precision, ctas=8 if tiles == 1 else 7, register_words=16 * tiles)
    if hidden == 72:
        made = team(name, hidden, precision, ctas=5, register_words=16)
    assert all(m_tiles(made, phase) == tiles for phase in made.shares)
    check_packed_once(made)
