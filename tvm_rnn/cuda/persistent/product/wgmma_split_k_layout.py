"""The geometry of a persistent kernel whose clusters share K: for weights that do not all stay on the chip.

In: a `Step` and knobs. Out: `Pooled`, a team from which `wgmma_split_k.py` writes the product: in which order a step's
blocks of K go through a ring of stages, where everything lies in shared memory, and how weights are packed.

    block n of a cluster     all gates of the cluster's units  x  all rows  x  part n of K
    its warpgroups           64 gates each (`tiles` times), all rows, the block's part of K
    its weights              of the first blocks of K fragments in registers, then tiles in shared memory for all steps,
                             the rest through the ring in every step, beside the operand of the same blocks of K
    sums                     to the block that has the units, in the order of K, through distributed shared memory

So a block reads only its part of what the others publish; what it reads instead, weights, nobody else reads. Bytes of
shared memory and of L2 are saved by leaving out what pads gates to 64: products read what lies behind, for rows that
nobody wants.

LSTM, H = 2560, B = 64, bf16, 108 blocks of 24 units in clusters of 2: a block multiplies 192 gates by 41 blocks of K
(of 32) by 64 rows. Per step it reads 41 x 4 KB of h and 12 KB for every block of K that is streamed, 20 or so: 400 KB,
all blocks 44 MB, at 7.7 TB/s 5.7 us; its tensor cores take 3 x 82 x 55 cycles (32 from registers) = 6.3 us meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Any

from tvm import tirx

from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.geometry import BLOCK_WORDS, LANES, Share, Team

from .wgmma_pipelined_layout import ROW_BYTES, TILE_BYTES, TILE_ROWS, TILE_WORDS, Chunk, swizzled

Expr = Any
WARPGROUP = 4  # warps
NEAR_BYTES = 16384  # of a stage, at least, where all weights stay on the chip
FRAGMENT_BYTES = 8  # of a lane: two rows of its unit


@dataclass(frozen=True)
class Places:
    """Where regions of shared memory begin, in bytes."""

    weights: int
    sums: int
    stage: int
    barriers: int
    end: int
    ring: int


@dataclass(frozen=True)
class Pooled(Team):
    """A grid's team of which `together` blocks share K. register_words, shared_words: words of weights that a thread,
    and the block for each thread, may keep. ring: stages; pace: blocks of K that come through one with their weights.
    apart: 1 where sums have a place of their own in shared memory, 0: in the ring. warps_u, warps_n, warps_k say how
    warps share cells."""

    pace: int = 1
    apart: int = 1

    @property
    def k_parts(self) -> int:
        return self.together

    @property
    def part_lanes(self) -> int:
        """With k_parts, the lanes of a block."""
        return self.threads // self.together

    @property
    def warpgroups(self) -> int:
        return self.warps // WARPGROUP

    def own_groups(self, phase: Phase) -> int:
        """Of 8 gates, each of 8 units, that a block finishes."""
        return self.warps_u * len(self.halves(phase))

    def gate_rows(self, phase: Phase) -> int:
        """Rows of the product: those of all blocks of the cluster."""
        return self.together * self.own_groups(phase) * 8

    def group_tiles(self, phase: Phase) -> int:
        """Of 64 rows, of a warpgroup."""
        return ceil(ceil(self.gate_rows(phase) / TILE_ROWS) / self.warpgroups)

    def block_words(self, phase: Phase) -> int:
        return self.group_tiles(phase) * TILE_WORDS

    @property
    def operand_bytes(self) -> int:
        """Of a block of K."""
        return self.rows * ROW_BYTES

    def far_bytes(self, phase: Phase) -> int:
        """Of a block of K's weights, outside of registers."""
        return self.gate_rows(phase) * ROW_BYTES

    def near_bytes(self, phase: Phase) -> int:
        """The same in registers, of all threads."""
        return self.warpgroups * self.group_tiles(phase) * TILE_BYTES

    def packed_bytes(self, phase: Phase, share: Share) -> int:
        """Of a block's weights."""
        return share.registers * self.near_bytes(phase) + (share.kblocks - share.registers) * self.far_bytes(phase)

    def weight_elements(self, phase: Phase, share: Share) -> int:
        return self.ctas * self.packed_bytes(phase, share) // self.itemsize

    @property
    def weight_words(self) -> int:
        return sum(s.shared * self.far_bytes(p) // 4 for p, parts in self.shares.items() for s in parts)

    def weight_index(self, phase: Phase, share: Share, at: Expr) -> tuple[tuple[Expr, ...], Expr]:
        return weight_index(self, phase, share, at)

    @property
    def shared_bytes(self) -> int:
        return places(self).end

    def registers(self) -> int:
        """An estimate per thread: weights, sums, what cells read, states, addresses. Kernels that know lengths and
        resets, too, then hardly spill."""
        total = sum(s.registers * self.block_words(p) for p, parts in self.shares.items() for s in parts)
        total += max(self.group_tiles(p) for p in self.shares) * self.rows // 2
        for number, phase in enumerate(self.step.phases):
            total += len(self.step.reads[number]) * self.blocks(phase.width) * self.own_tiles * 2
        for state in self.step.graph.states:
            total += self.blocks(state.shape[0]) * self.own_tiles * 2
        return total + 48


def able(team: Pooled) -> bool:
    """Whether such a kernel can be written."""
    grid = team.exchange == "grid" and not (team.polled or team.copied or team.staged or team.stored)
    grid = grid and team.precision != "float32" and not team.step.given and team.together > 1
    whole = team.warps % WARPGROUP == 0 and team.warps_n == 1 and team.passes == 1 and team.ctas % team.together == 0
    return bool(grid and whole and team.ring > 1 and team.pace > 0 and team.tiles % team.warps_k == 0)


def stage_bytes(team: Pooled) -> int:
    """Of a stage of the ring: as many blocks of K as the pace says, with the weights of the widest phase."""
    far = max((team.far_bytes(p) for p, parts in team.shares.items() for s in parts if s.streamed), default=0)
    pace = team.pace if far else max(team.pace, NEAR_BYTES // team.operand_bytes)
    return pace * (team.operand_bytes + far)


def chunks(team: Pooled) -> dict[Phase, list[Chunk]]:
    """Every phase's, in order. Streamed weights are spread over the blocks of K, so that copies keep an even pace, and
    come first, because they need not wait for what others publish."""
    found: dict[Phase, list[Chunk]] = {}
    number, most = 0, stage_bytes(team) // team.operand_bytes
    for phase, shares in team.shares.items():
        found[phase] = []
        for share in shares:
            near = share.registers + share.shared
            both = ((0.75, even(0, near, most, False)), (0.25, even(near, share.kblocks, team.pace, True)))
            keys = [((i + offset) / len(runs), run) for offset, runs in both for i, run in enumerate(runs)]
            for _, (first, count, streamed) in sorted(keys):
                found[phase].append(Chunk(share, first, count, streamed, number % team.ring, number // team.ring))
                number += 1
    return found


def even(first: int, last: int, most: int, streamed: bool) -> list[tuple[int, int, bool]]:
    """(first, count, streamed) of runs of blocks of K, as few as there can be, none much longer than another."""
    runs = ceil((last - first) / most)
    edges = [first + (last - first) * n // runs for n in range(runs + 1)] if runs else [first]
    return [(a, b - a, streamed) for a, b in pairwise(edges)]


def uses(team: Pooled) -> list[int]:
    """How often a step uses each stage."""
    total = sum(len(c) for c in chunks(team).values())
    return [len(range(slot, total, team.ring)) for slot in range(team.ring)]


def sum_bytes(team: Pooled, phase: Phase) -> int:
    """What a block receives of a product: of every block of its cluster, itself too, all gates of its own units."""
    return team.together * team.own_groups(phase) * team.tiles * LANES * FRAGMENT_BYTES


def places(team: Pooled) -> Places:
    """The last tile of weights may be read past its end."""
    ring, sums = team.ring * stage_bytes(team), max((sum_bytes(team, p) for p in team.shares), default=0)
    sums += -sums % 1024
    over = max((team.near_bytes(p) - team.far_bytes(p) for p in team.shares), default=0)
    weights = sums + ring if team.apart else max(ring, sums)
    weights += -weights % 512
    stage = weights + team.weight_words * 4
    barriers = stage + team.stage_words * 4
    barriers += -barriers % 8
    return Places(weights, 0, stage, barriers, max(barriers + 16 * team.ring, stage + over), sums * team.apart)


def weight_index(team: Pooled, phase: Phase, share: Share, at: Expr) -> tuple[tuple[Expr, ...], Expr]:
    """Position in the packed weights -> (index into the weight node, valid).

    Order: [block][K block]; a block of K in registers is [tile][MMA step][warp][lane][a0 a1 a2 a3], any other one
    [gate row][swizzled piece]. Gate rows: [block of the cluster][warp_u][half][unit of 8].
    """
    per_word, words = 4 // team.itemsize, team.packed_bytes(phase, share) // 4
    near, far = team.near_bytes(phase) // 4, team.far_bytes(phase) // 4
    at = tirx.Cast("int32", at)
    element, word = tirx.floormod(at, per_word), tirx.floordiv(at, per_word)
    cta, word = tirx.floordiv(word, words), tirx.floormod(word, words)
    kept = word < share.registers * near
    # A fragment in registers.
    tile, rest = tirx.floordiv(tirx.floormod(word, near), TILE_BYTES // 4), tirx.floormod(word, TILE_BYTES // 4)
    z, lane, warp, step = rest % 4, rest // 4 % 32, rest // 128 % 4, rest // 512
    line = tile * TILE_ROWS + warp * 16 + z % 2 * 8 + lane // 4
    k = step * (team.block_k // 2) + z // 2 * (team.block_k // 4) + lane % 4 * per_word + element
    kblock = tirx.floordiv(word, near)
    # A tile in memory.
    other = word - share.registers * near
    row = tirx.floordiv(tirx.floormod(other, far), BLOCK_WORDS)
    flat = (swizzled(row, tirx.floormod(tirx.floordiv(other, 4), 4)) * 4 + tirx.floormod(other, 4)) * per_word + element
    line, k = tirx.Select(kept, line, row), tirx.Select(kept, k, flat)
    kblock = tirx.Select(kept, kblock, share.registers + tirx.floordiv(other, far))
    part = tirx.floormod(cta, team.together)
    k = (part * share.kblocks + kblock) * team.block_k + k
    group, each, halves = tirx.floordiv(line, 8), team.own_groups(phase), len(team.halves(phase))
    owner = tirx.floordiv(cta, team.together) * team.together + tirx.floordiv(group, each)
    warp_u, half = tirx.floordiv(tirx.floormod(group, each), halves), tirx.floormod(tirx.floormod(group, each), halves)
    block, gate = tirx.floordiv(half, phase.gates), tirx.floormod(half, phase.gates)
    unit = owner * team.units(phase.width) + (warp_u * team.blocks(phase.width) + block) * 8 + tirx.floormod(line, 8)
    inside = tirx.And(line < team.gate_rows(phase), tirx.And(unit < phase.width, k < share.operand.depth))
    if len(share.operand.weight.shape) == 3:
        return (gate, unit, k), inside
    return (gate * phase.width + unit, k), inside
