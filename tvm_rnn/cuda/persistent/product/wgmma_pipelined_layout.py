"""The geometry of a persistent kernel whose products run by wgmma, out of a ring of stages in shared memory.

In: a `Team` with `ring` stages. Out: in which order a step's blocks of K go through the ring, where everything lies in
shared memory, and how weights are packed.

A warpgroup multiplies all gates of the block's units (M: 64 rows each) with all rows (N) in its part of K. Its weights
are fragments in registers (A of wgmma), tiles in shared memory, or tiles that come through the ring beside the operand
of the same block of K. A tile is 64 rows of 64 bytes, in the 64-byte swizzle: 16-byte pieces ^= row / 2 % 4; operands
lie in global memory in that order already, so that copies need not know of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from tvm import tirx

from tvm_rnn.cuda.layer.packed_layout import Digits

Expr = Any
TILE_ROWS, TILE_BYTES, TILE_WORDS = 64, 4096, 8  # of M; of a block of K; per thread
STAGE_BYTES = 16384  # of operands, at least: a copy and a barrier cost as much for less
ROW_BYTES = 64
MANY_ROWS = 64
FEW_STAGES = 3


@dataclass(frozen=True)
class Chunk:
    """What goes through one stage at a time: `count` blocks of K, from a part's `first`; with their weights or without.
    slot: which stage of the part's ring; turn: how often that was used in this step before."""

    share: Any
    first: int
    count: int
    streamed: bool
    slot: int
    turn: int


@dataclass(frozen=True)
class Places:
    """Where regions of shared memory begin, in bytes."""

    ring: int
    partial: int
    weights: int
    stage: int
    barriers: int
    end: int
    apart: bool  # whether sums have a place of their own, beside the ring


def able(team: Any) -> bool:
    """Whether a team's operands may come through a ring."""
    grid = team.exchange == "grid" and not team.polled and not team.copied and team.precision != "float32"
    grid = grid and not team.stored  # wgmma would read codes
    return bool(grid and team.ring > 1 and team.warps % 4 == 0 and not team.step.given)


def stage_tiles(team: Any) -> int:
    """Tiles of a warp that are handed over together."""
    tiles: list[int] = [sum(team.blocks(n.shape[0]) for n in p.published) for p in team.step.phases]
    tiles.append(sum(team.blocks(s.shape[0]) for s in team.step.carried))
    own: int = team.own_tiles
    return max(1, *tiles) * own


def swizzled(row: Expr, piece: Expr) -> Expr:
    """Where a row's 16-byte piece lies."""
    return tirx.bitwise_xor(piece, tirx.floormod(tirx.floordiv(row, 2), 4))


def m_tiles(team: Any, phase: Any) -> int:
    """Of 64 rows."""
    rows: int = team.warps_u * len(team.halves(phase)) * 8
    return ceil(rows / TILE_ROWS)


def _largest_tiles(team: Any) -> int:
    return max((m_tiles(team, p) for p in team.shares), default=0)


def part_bytes(team: Any) -> int:
    """Of a stage: every part of K has a ring of its own."""
    operand: int = team.rows * ROW_BYTES
    pace = max(1, STAGE_BYTES // (team.k_parts * operand))
    many = sum(-(-s.kblocks // pace) for parts in team.shares.values() for s in parts) > team.ring
    if many and team.ring <= FEW_STAGES:
        pace *= 2  # stages are filled again: half as often
    most: int = pace * operand
    for phase, parts in team.shares.items():
        if any(s.streamed for s in parts):
            most = max(most, operand + m_tiles(team, phase) * TILE_BYTES)
    return most


def chunks(team: Any) -> dict[Any, list[Chunk]]:
    """Every phase's, in order. Streamed weights are spread over the blocks of K, so that copies keep an even pace."""
    found: dict[Any, list[Chunk]] = {}
    number, pace = 0, part_bytes(team) // (team.rows * ROW_BYTES)
    for phase, shares in team.shares.items():
        found[phase] = []
        for share in shares:
            near = share.registers + share.shared
            runs = [(at, min(pace, near - at), False) for at in range(0, near, pace)]
            singles = [(at, 1, True) for at in range(near, share.kblocks)]
            keys = [((i + 0.5) / len(many), run) for many in (runs, singles) for i, run in enumerate(many)]
            for _, (first, count, streamed) in sorted(keys):
                chunk = Chunk(share, first, count, streamed, number % team.ring, number // team.ring)
                found[phase].append(chunk)
                number += 1
    return found


def uses(team: Any) -> list[int]:
    """How often a step uses each stage."""
    total = sum(len(c) for c in chunks(team).values())
    return [len(range(slot, total, team.ring)) for slot in range(team.ring)]


def partial_stride(team: Any) -> int:
    """Floats between rows of sums: lanes (g, q) of half a warp, two floats each, meet no bank twice."""
    columns: int = team.rows // turns(team)
    return columns + (0 if columns % 16 else 8)


def turns(team: Any) -> int:
    """In which sums change hands: half of many rows after the other half, because room is short."""
    halves = team.rows > MANY_ROWS and team.warps_n == 1 and team.tiles % (2 * team.warps_k) == 0
    return 2 if halves else 1


def partial_bytes(team: Any) -> int:
    return int(team.k_parts * _largest_tiles(team) * TILE_ROWS * partial_stride(team) * 4)


def places(team: Any, limit: int = 232448) -> Places:
    """Sums lie in the ring where there is no other room for them."""
    ring, barriers = team.k_parts * team.ring * part_bytes(team), team.k_parts * team.ring * 16
    more = team.weight_words * 4 + team.stage_words * 4 + barriers
    more += -more % 128
    apart = ring + partial_bytes(team) + more <= limit
    weights = ring + partial_bytes(team) if apart else max(ring, partial_bytes(team))
    weights += -weights % 1024
    stage = weights + team.weight_words * 4
    at = stage + team.stage_words * 4
    at += -at % 8
    return Places(0, ring if apart else 0, weights, stage, at, at + barriers, apart)


def weight_index(team: Any, phase: Any, share: Any, at: Expr) -> tuple[tuple[Expr, ...], Expr]:
    """Position in the packed weights -> (index into the weight node, valid).

    Order: [cta][part of K][K block][M tile][tile of 4096 bytes]. A tile that stays in registers is [MMA step][warp]
    [lane][a0 a1 a2 a3], any other one [row][swizzled piece].
    """
    per_word = 4 // team.itemsize
    digits = Digits(tirx.Cast("int32", at))
    element, word = digits.take(per_word), digits.take(TILE_BYTES // 4)
    tile, kblock = digits.take(m_tiles(team, phase)), digits.take(share.kblocks)
    part, cta = digits.take(team.k_parts), digits.rest
    z, lane, warp, step = word % 4, word // 4 % 32, word // 128 % 4, word // 512
    line = warp * 16 + z % 2 * 8 + lane // 4
    k = step * (team.block_k // 2) + z // 2 * (team.block_k // 4) + lane % 4 * per_word + element
    if share.registers < share.kblocks:
        row = word // 16
        flat = (swizzled(row, word // 4 % 4) * 4 + word % 4) * per_word + element
        kept = kblock < share.registers
        line, k = tirx.Select(kept, line, row), tirx.Select(kept, k, flat)
    k = (part * share.kblocks + kblock) * team.block_k + k
    halves = len(team.halves(phase))
    if team.staged:  # each warp's lanes have all gates of their units, as with mma.sync
        warp_u, half = line // 16, tile * 2 + line % 16 // 8
        row = line
    else:
        row = tile * TILE_ROWS + line
        warp_u, half = row // 8 // halves, row // 8 % halves
    block, gate = half // phase.gates, half % phase.gates
    unit = cta * team.units(phase.width) + (warp_u * team.blocks(phase.width) + block) * 8 + row % 8
    inside = tirx.And(warp_u < team.warps_u, block < team.blocks(phase.width))
    inside = tirx.And(inside, tirx.And(unit < phase.width, k < share.operand.depth))
    if len(share.operand.weight.shape) == 3:
        return (gate, unit, k), inside
    return (gate * phase.width + unit, k), inside
