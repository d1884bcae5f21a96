"""Which persistent kernels may stage their operands: bring them to shared memory once, for warpgroups to multiply.

In: a `Team` with `staged`. Out: whether it can, and how many registers that takes. Operands lie in shared memory as
tiles of wgmma, weights as `wide_layout` packs them; each source of a product has one place, which is written again when
no product of its step is under way any more.
"""

from __future__ import annotations

from math import ceil
from typing import Any

WARPGROUP = 4  # warps
HELD = 8  # pieces of 16 bytes that a thread holds at a time between memory and shared memory


def able(team: Any) -> bool:
    """Whether a team's geometry is one of whole warpgroups, each with all the block's units and a part of K."""
    plain = not (team.stored or team.copied or team.ring) and team.together == 1 and team.passes == 1
    shape = team.warps_u == WARPGROUP and team.warps_n == 1 and team.rows <= 256
    products = all(p.kind == "gemm" for p in team.step.phases)
    kind = team.exchange == "grid" and team.polled == 1 and team.precision != "float32"
    return bool(plain and shape and products and kind)


def part_pieces(team: Any, kblocks: int) -> int:
    """Of 16 bytes, of a part of K of an operand: a warpgroup brings its own."""
    pieces: int = kblocks * team.rows * 4
    return pieces


def held(total: int) -> int:
    """How many of so many pieces a thread holds at a time: the turns are equal."""
    each = ceil(total / (32 * WARPGROUP))
    return ceil(each / ceil(each / HELD))


def registers(team: Any) -> int:
    """Of a product, per thread: sums of all rows, and the pieces of an operand."""
    most = max((team.m_tiles(p) for p in team.step.phases if p.kind == "gemm"), default=0)
    every = [s.kblocks for parts in team.shares.values() for s in parts if not s.operand.given]
    return int(most * team.rows // 2 + 4 * max((held(part_pieces(team, n)) for n in every), default=0))
