"""How weights are packed for lanes that load their own fragments of mma.sync.

In: a `Team`, a phase and a share of its product. Out: which element of the weight a place in the packed array holds.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import tirx

from tvm_rnn.cuda.layer.packed_layout import Digits

Expr = Any
LANES = 32


def weight_index(team: Any, phase: Any, share: Any, at: Expr) -> tuple[tuple[Expr, ...], Expr]:
    """Position in the packed weights -> (index into the weight node, valid).

    Order: [cta][warp_u][warp_k][K block][M tile][MMA step][lane][a0 a1 a2 a3], each a of one word. a0 and a2 are
    the first half of a tile's rows, a1 and a3 the second; a2 and a3 lie half an MMA step further along K. In 8 bits:
    [M tile][lane][MMA step][a0 a1 a2 a3], each a of two codes, so that a lane's 16 bytes are both steps'.
    """
    digits = Digits(tirx.Cast("int32", at) if prod(share.operand.weight.shape) < 1 << 28 else at)
    per_word = 4 // team.itemsize

    element, word = digits.take(per_word), digits.take(4)
    if team.stored:
        mma_step, lane = digits.take(2), digits.take(LANES)
    else:
        lane, mma_step = digits.take(LANES), digits.take(2)
    tile, kblock = digits.take(team.m_tiles(phase)), digits.take(share.kblocks)
    warp_k, warp_u, cta = digits.take(team.warps_k), digits.take(team.warps_u), digits.rest
    g, q = tirx.floordiv(lane, 4), tirx.floormod(lane, 4)
    half = tile * 2 + tirx.floormod(word, 2)
    k = (warp_k * share.kblocks + kblock) * team.block_k + q * (4 * per_word) + mma_step * (2 * per_word)
    k = k + tirx.floordiv(word, 2) * per_word + element
    block, gate = tirx.floordiv(half, phase.gates), tirx.floormod(half, phase.gates)
    unit = cta * team.units(phase.width) + (warp_u * team.blocks(phase.width) + block) * 8 + g
    inside = tirx.And(block < team.blocks(phase.width), tirx.And(unit < phase.width, k < share.operand.depth))
    if len(share.operand.weight.shape) == 3:
        return (gate, unit, k), inside
    return (gate * phase.width + unit, k), inside
