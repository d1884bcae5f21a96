"""The geometry of a persistent kernel whose clusters share K: for weights that do not all stay on the chip.

In: a `Step` and knobs. Out: `WgmmaSplitKLayout`, from which `wgmma_split_k.py` writes the product: in which order a
step's blocks of K go through a pipeline of stages, where everything lies in shared memory, and how weights are packed.

    block n of a cluster     all gates of the cluster's units  x  all rows  x  part n of K
    its warpgroups           64 gates each (`tiles` times), all rows, the block's part of K
    its weights              of the first blocks of K fragments in registers, then tiles in shared memory for all steps,
                             the rest through the pipeline in every step, beside the operand of the same blocks of K
    sums                     to the block that has the units, in the order of K, through distributed shared memory

So a block reads only its part of what the others publish, and weights that no other block reads. Bytes of
shared memory and of L2 are saved by leaving out what pads gates to 64: products read what lies behind, for rows that
nobody wants.

LSTM, H = 2560, B = 64, bf16, 108 blocks of 24 units in clusters of 2: a block multiplies 192 gates by 41 blocks of K
(of 32) by 64 rows. Per step it reads 41 x 4 KB of h and 12 KB for every block of K that is streamed, 20 or so: 400 KB,
all blocks 44 MB, at 7.7 TB/s 5.7 us; its tensor cores take 3 x 82 x 55 cycles (32 from registers) = 6.3 us meanwhile.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil
from typing import ClassVar

from tvm import tirx

from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.exchange import COUNTER
from tvm_rnn.cuda.persistent.geometry import BLOCK_WORDS, LANES, Exchange, Geometry, Share
from tvm_rnn.cuda.persistent.rates import CLOCK_MHZ, Rates
from tvm_rnn.tir.expr import Expr

from .wgmma_pipelined_layout import ROW_BYTES, TILE_BYTES, TILE_ROWS, TILE_WORDS, Chunk, swizzled

WARPGROUP = 4  # warps
CHUNK_US = 0.04  # from a chunk to the next
# Cycles of a product of 64 gates: of 8 rows, where its weights are in registers; where they are in shared memory.
REGISTER_CYCLES, SHARED_CYCLES, SHARED_LEAST = 4.0, 4.8, 16.0
MULTIPROCESSORS = 132
L2_BYTES, MEMORY_BYTES = 7.7e6, 4.2e6  # that all multiprocessors together read in a microsecond
L2_HELD = 32e6  # weights that stay in L2
SHOWN = 0.3  # of the shorter of copies and products
MEET_US = 0.5  # of a cluster's blocks, before sums take the pipeline's place
SUM_BYTES = 50.0  # per cycle, given and taken
LATE_US = 0.8  # what cells read, waited for
NEAR_BYTES = 16384  # of a stage, at least, where all weights stay on the chip
FRAGMENT_BYTES = 8  # of a lane: two rows of its unit


@dataclass(frozen=True)
class MemoryMap:
    """Where regions of shared memory begin, in bytes."""

    weights: int
    sums: int
    stage: int
    barriers: int
    end: int
    pipeline: int


@dataclass(frozen=True)
class WgmmaSplitKLayout(Geometry):
    """A grid's geometry of which `together` blocks, a cluster, share K. register_words, shared_words: words of weights
    that a thread, and the block for each thread, may keep. ring: stages of the pipeline; pace: blocks of K that come
    through one with their weights. apart: 1 where sums have a place of their own in shared memory, 0: in the pipeline.
    warps_u, warps_n, warps_k say how warps share cells."""

    exchange: Exchange = field(default=COUNTER, init=False)
    ring: int = 2
    together: int = 1
    pace: int = 1
    apart: int = 1

    alignment: ClassVar[int] = 1024  # swizzled tiles want it
    streams: ClassVar[bool] = True
    reads_in_step: ClassVar[bool] = True
    wants: ClassVar[str] = "clusters share K by a pipeline, whole warpgroups and equal rows, without inputs and codes"

    @property
    def possible(self) -> bool:
        plain = self.precision != "float32" and not self.stored and not self.step.given and self.together > 1
        whole = self.warps % WARPGROUP == 0 and self.warps_n == self.passes == 1 and self.ctas % self.together == 0
        return bool(plain and whole and self.ring > 1 and self.pace > 0 and self.tiles % self.warps_k == 0)

    @property
    def cluster(self) -> int:
        return self.together

    @property
    def staged_tiles(self) -> int:
        return self.phase_tiles

    @property
    def partial_words(self) -> int:
        return max((sum_bytes(self, p) for p in self.shares), default=0) // 4

    @property
    def prefetch_at(self) -> int:
        """Nothing is copied there."""
        return 0

    def packing(self, phase: Phase, share: Share) -> tuple[Hashable, ...]:
        return (*super().packing(phase, share), "wgmma split-K", self.k_parts, share.registers, self.warpgroups)

    @property
    def rates(self) -> Rates:
        return Rates(1.0, 0.0, 34.0, 0.8, 0.15, 0.03)

    def product_us(self, phase: Phase) -> float:
        return split_k_us(self, phase)

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
        return memory_map(self).end

    def registers(self) -> int:
        """Kernels that know lengths and resets, too, then hardly spill."""
        total = self.product_registers()
        for number, phase in enumerate(self.step.phases):
            total += len(self.step.reads[number]) * self.blocks(phase.width) * self.own_tiles * 2
        for state in self.step.graph.states:
            total += self.blocks(state.shape[0]) * self.own_tiles * 2
        return total + 48

    def product_registers(self) -> int:
        return self.kept_registers + max(self.group_tiles(p) for p in self.shares) * self.rows // 2


def stage_bytes(geometry: WgmmaSplitKLayout) -> int:
    """Of a stage of the pipeline: as many blocks of K as the pace says, with the weights of the widest phase."""
    far = max((geometry.far_bytes(p) for p, parts in geometry.shares.items() for s in parts if s.streamed), default=0)
    pace = geometry.pace if far else max(geometry.pace, NEAR_BYTES // geometry.operand_bytes)
    return pace * (geometry.operand_bytes + far)


def chunks(geometry: WgmmaSplitKLayout) -> dict[Phase, list[Chunk]]:
    """Every phase's, in order. Streamed weights are spread over the blocks of K, so that copies keep an even pace, and
    come first, because they need not wait for what others publish."""
    found: dict[Phase, list[Chunk]] = {}
    number, most = 0, stage_bytes(geometry) // geometry.operand_bytes
    for phase, shares in geometry.shares.items():
        found[phase] = []
        for share in shares:
            near = share.registers + share.shared
            both = ((0.75, even(0, near, most, False)), (0.25, even(near, share.kblocks, geometry.pace, True)))
            keys = [((i + offset) / len(runs), run) for offset, runs in both for i, run in enumerate(runs)]
            for _, (first, count, streamed) in sorted(keys):
                found[phase].append(
                    Chunk(share, first, count, streamed, number % geometry.ring, number // geometry.ring)
                )
                number += 1
    return found


def even(first: int, last: int, most: int, streamed: bool) -> list[tuple[int, int, bool]]:
    """(first, count, streamed) of runs of blocks of K, as few as there can be, none much longer than another."""
    runs = ceil((last - first) / most)
    edges = [first + (last - first) * n // runs for n in range(runs + 1)] if runs else [first]
    return [(a, b - a, streamed) for a, b in pairwise(edges)]


def uses(geometry: WgmmaSplitKLayout) -> list[int]:
    """How often a step uses each stage."""
    total = sum(len(c) for c in chunks(geometry).values())
    return [len(range(slot, total, geometry.ring)) for slot in range(geometry.ring)]


def sum_bytes(geometry: WgmmaSplitKLayout, phase: Phase) -> int:
    """What a block receives of a product: of every block of its cluster, itself too, all gates of its own units."""
    return geometry.together * geometry.own_groups(phase) * geometry.tiles * LANES * FRAGMENT_BYTES


def memory_map(geometry: WgmmaSplitKLayout) -> MemoryMap:
    """The last tile of weights may be read past its end."""
    pipeline, sums = (
        geometry.ring * stage_bytes(geometry),
        max((sum_bytes(geometry, p) for p in geometry.shares), default=0),
    )
    sums += -sums % 1024
    over = max((geometry.near_bytes(p) - geometry.far_bytes(p) for p in geometry.shares), default=0)
    weights = sums + pipeline if geometry.apart else max(pipeline, sums)
    weights += -weights % 512
    stage = weights + geometry.weight_words * 4
    barriers = stage + geometry.stage_words * 4
    barriers += -barriers % 8
    return MemoryMap(
        weights, 0, stage, barriers, max(barriers + 16 * geometry.ring, stage + over), sums * geometry.apart
    )


def weight_index(geometry: WgmmaSplitKLayout, phase: Phase, share: Share, at: Expr) -> tuple[tuple[Expr, ...], Expr]:
    """Position in the packed weights -> (index into the weight node, valid).

    Order: [block][K block]; a block of K in registers is [tile][MMA step][warp][lane][a0 a1 a2 a3], any other one
    [gate row][swizzled piece]. Gate rows: [block of the cluster][warp_u][half][unit of 8].
    """
    per_word, words = 4 // geometry.itemsize, geometry.packed_bytes(phase, share) // 4
    near, far = geometry.near_bytes(phase) // 4, geometry.far_bytes(phase) // 4
    at = tirx.Cast("int32", at)
    element, word = tirx.floormod(at, per_word), tirx.floordiv(at, per_word)
    cta, word = tirx.floordiv(word, words), tirx.floormod(word, words)
    kept = word < share.registers * near
    # A fragment in registers.
    tile, rest = tirx.floordiv(tirx.floormod(word, near), TILE_BYTES // 4), tirx.floormod(word, TILE_BYTES // 4)
    z, lane, warp, step = rest % 4, rest // 4 % 32, rest // 128 % 4, rest // 512
    line = tile * TILE_ROWS + warp * 16 + z % 2 * 8 + lane // 4
    k = step * (geometry.block_k // 2) + z // 2 * (geometry.block_k // 4) + lane % 4 * per_word + element
    kblock = tirx.floordiv(word, near)
    # A tile in memory.
    other = word - share.registers * near
    row = tirx.floordiv(tirx.floormod(other, far), BLOCK_WORDS)
    flat = (swizzled(row, tirx.floormod(tirx.floordiv(other, 4), 4)) * 4 + tirx.floormod(other, 4)) * per_word + element
    line, k = tirx.Select(kept, line, row), tirx.Select(kept, k, flat)
    kblock = tirx.Select(kept, kblock, share.registers + tirx.floordiv(other, far))
    part = tirx.floormod(cta, geometry.together)
    k = (part * share.kblocks + kblock) * geometry.block_k + k
    group, each, halves = tirx.floordiv(line, 8), geometry.own_groups(phase), len(geometry.halves(phase))
    owner = tirx.floordiv(cta, geometry.together) * geometry.together + tirx.floordiv(group, each)
    warp_u, half = tirx.floordiv(tirx.floormod(group, each), halves), tirx.floormod(tirx.floormod(group, each), halves)
    block, gate = tirx.floordiv(half, phase.gates), tirx.floormod(half, phase.gates)
    unit = (
        owner * geometry.units(phase.width)
        + (warp_u * geometry.blocks(phase.width) + block) * 8
        + tirx.floormod(line, 8)
    )
    inside = tirx.And(line < geometry.gate_rows(phase), tirx.And(unit < phase.width, k < share.operand.depth))
    if len(share.operand.weight.shape) == 3:
        return (gate, unit, k), inside
    return (gate * phase.width + unit, k), inside


def split_k_us(geometry: WgmmaSplitKLayout, phase: Phase, clock_mhz: float = CLOCK_MHZ) -> float:
    """How long one phase's product takes at that clock, predicted, us.

    Copies and products go on side by side, and each hides the other in part; what does not stay in L2 from step to step
    comes from memory.

    Measured on an H200 (driver 580, CUDA 13.0), without the hoisted product, us per step, and as this predicts; MB
    that all blocks read per step:

        LSTM 2560 bf16   B = 64 11.4 (54 MB; 10.0 with half of the products, 9.5 with next to no bytes),
                         B = 16 8.25 (40 MB)
        GRU 2816 bf16    B = 32 7.1 (30 MB)
        LSTM 2048        bf16 B = 128 10.4 (43 MB), B = 64 5.8 (17 MB); tf32 B = 64 12.5 (70 MB)
        GRU 2048 bf16    B = 128 9.0 (34 MB)
        LSTM 3072 bf16   B = 64 17.6 (79 MB, 53 of them weights); 15.8 (72, 47) where sums take the pipeline's place
        GRU 2560 bf16    B = 64 10.4

    In CUDA graphs at T = 128, after loads of what cells read had moved behind the product: LSTM 2048 bf16 B = 64 6.5,
    LSTM 1024 tf32 B = 64 4.4, B = 128 6.4, LSTM 2560 bf16 B = 64 12.0, GRU 2816 bf16 B = 32 7.4.
    """
    cycles = copied = weights = 0.0
    blocks = geometry.ctas * max(1, MULTIPROCESSORS // geometry.ctas)  # other groups read at the same time
    for share in geometry.shares[phase]:
        instructions = 2 * geometry.warpgroups * geometry.group_tiles(phase)
        near = REGISTER_CYCLES * geometry.rows / 8
        far = SHARED_LEAST + SHARED_CYCLES * geometry.rows / 8
        cycles += instructions * (near * share.registers + far * (share.kblocks - share.registers))
        copied += blocks * share.kblocks * geometry.operand_bytes
        weights += blocks * share.streamed * geometry.far_bytes(phase)
    copies = (copied + weights) / L2_BYTES + max(0.0, weights - L2_HELD) * (1 / MEMORY_BYTES - 1 / L2_BYTES)
    products = cycles / clock_mhz
    us = max(copies, products) + SHOWN * min(copies, products)
    us += 0.0 if geometry.apart else MEET_US
    us += LATE_US
    return us + CHUNK_US * len(chunks(geometry)[phase]) + sum_bytes(geometry, phase) / SUM_BYTES / clock_mhz
