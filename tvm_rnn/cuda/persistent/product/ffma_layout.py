"""The geometry of a persistent kernel whose products run in float32 arithmetic, out of rings in shared memory.

In: a `Team` with `fma` stages. Out: in which order a step's operands are multiplied, sizes, places, and how weights are
packed.

Every warp multiplies all gates of the block's units (columns) with all batch rows, in its own part of K, and has a ring
of its own: no warp waits for another before sums meet. A stage is a block of K: [row][swizzled piece], as operands
lie in the exchange, then [k][column] of its weights. Lane (y, x) has rows y, y + 8, ... and four neighbours of every 16
columns, from 4 x on: rows of 64 bytes are read without conflicts of banks, and weights by all y at once. With 64 rows
and 64 columns that is 128 sums per lane, and 24 loads of 16 bytes for 512 multiply-adds.
"""

from __future__ import annotations

from math import ceil
from typing import Any

from tvm import tirx

from tvm_rnn.cuda.layer.packed_layout import Digits

Expr = Any
ACROSS, DOWN = 4, 8  # lanes of a warp along columns, along rows
GROUP = 4 * ACROSS  # columns of a warp's load
ROW_BYTES = 64  # of a row in a stage
MOST_SUMS = 128  # of a lane
TURNED = 1  # columns lie in pairs the other way round: see `FmaProduct._give`
LIMIT = 232448  # bytes of shared memory


def able(team: Any) -> bool:
    """Whether a team's products can run like this: a polled grid of products alone, in float32."""
    products = all(p.kind == "gemm" for p in team.step.phases)
    plain = not (team.staged or team.ring or team.copied or team.stored) and team.together == team.passes == 1
    possible = team.exchange == "grid" and team.polled == 1 and team.precision == "float32" and team.warps_n == 1
    if not (products and plain and possible and team.register_words == 0):
        return False
    if any(high(team) * columns(team, p) // ACROSS > MOST_SUMS for p in team.step.phases):
        return False
    return bool(2 <= team.fma <= 1 + min(share.kblocks for _, share in order(team)))


def order(team: Any) -> list[tuple[Any, Any]]:
    """(phase, share) as they are multiplied: in a phase, inputs first, which wait for nobody of the same layer."""
    found = []
    for phase, shares in team.shares.items():
        found += [(phase, share) for share in sorted(shares, key=lambda share: not share.operand.given)]
    return found


def columns(team: Any, phase: Any) -> int:
    """Gates of the block's units, padded: column = unit * gates + gate."""
    return int(ceil(team.units(phase.width) * phase.gates / GROUP) * GROUP)


def high(team: Any) -> int:
    """Batch rows of a lane."""
    return int(team.rows // DOWN)


def limit(team: Any, source: Any) -> int:
    """Elements of a row of an operand that somebody writes; what lies behind them in a block of K is 0."""
    return int(source.shape[0] if source.op == "input" else team.ctas * team.units(source.shape[0]))


def weight_bytes(team: Any, phase: Any) -> int:
    """Of a block of K of one part."""
    return int(team.block_k * columns(team, phase) * 4)


def stage_bytes(team: Any) -> int:
    """A block of K: the operand, and weights that are not resident."""
    streamed = [weight_bytes(team, p) for p, share in order(team) if share.streamed]
    return int(team.rows * ROW_BYTES + max(streamed, default=0))


def ring_words(team: Any) -> int:
    """Of all warps."""
    return int(team.warps * team.fma * stage_bytes(team) // 4) if team.fma else 0


def stride(team: Any, phase: Any) -> int:
    """Words between rows of sums: an odd number of 16 bytes, so that eight rows meet no bank twice."""
    return columns(team, phase) + 4


def part_words(team: Any) -> int:
    """Of the sums of one part."""
    return int(team.rows * max((stride(team, p) for p in team.step.phases if p.kind == "gemm"), default=0))


def turns(team: Any) -> int:
    """In which parts hand over their sums: as few as there is room for."""
    rest = 4 * (ring_words(team) + team.weight_words + team.stage_words + team.fetch_words) + 256
    able_to = (n for n in (1, 2, 4) if team.warps % n == 0 and rest + 4 * part_words(team) * team.warps // n <= LIMIT)
    return next(able_to, 8)


def partial_words(team: Any) -> int:
    """Of all parts of a turn."""
    return int(part_words(team) * team.warps // turns(team))


def registers(team: Any) -> int:
    """Of a product, per lane: sums, four k of its rows, two k of its columns."""
    return max(
        high(team) * columns(team, p) // ACROSS + 4 * high(team) + 2 * columns(team, p) // ACROSS
        for p in team.step.phases
        if p.kind == "gemm"
    )


def weight_index(team: Any, phase: Any, share: Any, at: Expr) -> tuple[tuple[Expr, ...], Expr]:
    """Position in the packed weights -> (index into the weight node, valid). Order: [cta][part][K block][k][column]."""
    digits = Digits(tirx.Cast("int32", at))
    column, k = digits.take(columns(team, phase)), digits.take(team.block_k)
    kblock, part, cta = digits.take(share.kblocks), digits.take(team.k_parts), digits.rest
    k = (part * share.kblocks + kblock) * team.block_k + k
    column = tirx.bitwise_xor(column, TURNED) if TURNED else column
    local, gate = tirx.floordiv(column, phase.gates), tirx.floormod(column, phase.gates)
    unit = cta * team.units(phase.width) + local
    inside = tirx.And(local < team.units(phase.width), tirx.And(unit < phase.width, k < share.operand.depth))
    if len(share.operand.weight.shape) == 3:
        return (gate, unit, k), inside
    return (gate * phase.width + unit, k), inside
