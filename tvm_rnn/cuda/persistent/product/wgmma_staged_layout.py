"""Which grids may do without a counter, and where those that stage their operands have them in shared memory.

In: a `Team`. Out: whether it can poll, sizes and places. Staged operands come to shared memory once, for warpgroups to
multiply: they lie there as tiles of wgmma, behind the weights, which `wide_layout` packs; each source of a product has
one place, which is written again when no product of its step is under way any more.
"""

from __future__ import annotations

from math import ceil
from typing import Any

from tvm import tirx

WARPGROUP = 4  # warps
HELD = 8  # pieces of 16 bytes that a thread holds at a time between memory and shared memory


def pollable(team: Any) -> bool:
    """Whether values may be handed over without a counter: every word of an operand is written in every step, and
    all of it is asked for at once. Where a part came later, it was missing again, and a counter was quicker: LSTM
    1024 bf16, B = 64, in two passes 5.2 us polled against 4.5; GRU 2048, B = 16, 5.0 against 3.9 (H200)."""
    published = team.published
    whole = all(team.ctas * team.units(n.shape[0]) == team.depth_blocks(n) * team.block_k for n in published)
    products = all(p.kind == "gemm" for p in team.step.phases) and not team.copied and team.passes == 1
    possible = team.exchange == "grid" and team.precision != "float32"
    if team.staged:
        return bool(whole and products and possible and _whole_warpgroups(team))
    most = max((s.kblocks for parts in team.shares.values() for s in parts), default=0)
    at_once = most * team.tiles * 4 <= 64
    barriers = team.warps_k == 1 or 2 * team.warps_u * team.warps_n < 16  # two for each group of warps that sums
    return bool(possible and whole and products and not team.step.given and at_once and barriers)


def _whole_warpgroups(team: Any) -> bool:
    """Each with all the block's units and a part of K."""
    plain = not (team.stored or team.ring) and team.together == 1 and team.polled == 1
    return bool(plain and team.warps_u == WARPGROUP and team.warps_n == 1 and team.rows <= 256)


def warp_place(team: Any, warp: Any) -> dict[str, Any]:
    """Which part of K, rows and units a warp has."""
    if team.staged:  # a warpgroup has all units, and a part of K
        k, n, u = tirx.floordiv(warp, team.warps_u), tirx.const(0, "int32"), tirx.floormod(warp, team.warps_u)
    else:
        n = tirx.floormod(tirx.floordiv(warp, team.warps_k), team.warps_n)
        k, u = tirx.floormod(warp, team.warps_k), tirx.floordiv(warp, team.warps_k * team.warps_n)
    return {"warp_k": k, "warp_n": n, "warp_u": u}


def sources(team: Any) -> tuple[Any, ...]:
    """What products read, each with a place of its own."""
    every = [s.operand.source for parts in team.shares.values() for s in parts] if team.staged else []
    return tuple(dict.fromkeys(every))


def place(team: Any, source: Any) -> int:
    """Where an operand lies, in words: behind the weights, which want to be aligned."""
    every = sources(team)
    before: int = sum(team.input_words(n) for n in every[: every.index(source)])
    return int(team.weight_words) + before


def words(team: Any) -> int:
    """Of all operands."""
    return sum(team.input_words(n) for n in sources(team))


def partial_words(team: Any, most: int) -> int:
    """Of sums, of all parts but the one that adds a tile up: steps take turns with two places. most: M tiles."""
    return int(2 * team.warps_u * (team.warps_k - 1) * most * team.tiles * 32 * 4)


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
