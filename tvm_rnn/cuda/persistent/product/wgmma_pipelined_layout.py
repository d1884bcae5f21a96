"""The geometry of a persistent kernel whose products run by wgmma, out of a pipeline of stages in shared memory.

In: a `Step` and knobs. Out: `WgmmaPipelinedLayout`: in which order a step's blocks of K go through the pipeline, where
everything lies in shared memory, how weights are packed, how long a product takes; `WgmmaTiles`, which staged operands
share.

A warpgroup multiplies all gates of the block's units (M: 64 rows each) with all rows (N) in its part of K. Its weights
are fragments in registers (A of wgmma), tiles in shared memory, or tiles that come through the pipeline beside the
operand of the same block of K. A tile is 64 rows of 64 bytes, in the 64-byte swizzle: 16-byte pieces ^= row / 2 % 4;
operands lie in global memory in that order already, so that copies need not know of it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass, field
from math import ceil
from typing import ClassVar

from tvm import tirx

from tvm_rnn.cuda.layer.packed_layout import Digits
from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.exchange import COUNTER
from tvm_rnn.cuda.persistent.geometry import LANES, Exchange, Geometry, Share
from tvm_rnn.cuda.persistent.rates import CLOCK_MHZ, Rates
from tvm_rnn.tir.expr import Expr

TILE_ROWS, TILE_BYTES, TILE_WORDS = 64, 4096, 8  # of M; of a block of K; per thread
STAGE_BYTES = 16384  # of operands, at least: a copy and a barrier cost as much for less
ROW_BYTES = 64
MANY_ROWS = 64
FEW_STAGES = 3
# What a pipeline costs beside the exchange, bytes per cycle that bulk copies bring into a multiprocessor, cycles of a
# product of 64 rows and 8 columns (at least as for RING_COLUMNS), more where its weights are in shared memory; how much
# of them copies do not hide, and what filling stages again costs.
RING_US, RING_COPY, RING_CYCLES, RING_COLUMNS, RING_NEAR, RING_SHOWN = 1.1, 50.0, 4.0, 36, 1.35, 0.3
RING_REFILL = 1.1, 1.4  # of large stages, of small ones


@dataclass(frozen=True)
class Chunk:
    """What goes through one stage at a time: `count` blocks of K, from a part's `first`; with their weights or without.
    slot: which stage of the part's pipeline; turn: how often that was used in this step before."""

    share: Share
    first: int
    count: int
    streamed: bool
    slot: int
    turn: int


@dataclass(frozen=True)
class MemoryMap:
    """Where regions of shared memory begin, in bytes."""

    pipeline: int
    partial: int
    weights: int
    stage: int
    barriers: int
    end: int
    apart: bool  # whether sums have a place of their own, beside the pipeline


@dataclass(frozen=True)
class WgmmaTiles(Geometry):
    """What geometries share whose warpgroups multiply tiles of 64 gates by all rows, with weights as fragments in
    registers, then as tiles in shared memory."""

    alignment: ClassVar[int] = 1024  # swizzled tiles want it

    @property
    def staged_tiles(self) -> int:
        return self.phase_tiles

    def block_words(self, phase: Phase) -> int:
        return m_tiles(self, phase) * TILE_WORDS

    @abstractmethod
    def gate_row(self, phase: Phase, tile: Expr, line: Expr) -> tuple[Expr, Expr, Expr]:
        """Of a line of a tile: (warp_u, half, a number whose remainder by 8 is the unit's)."""

    def weight_index(self, phase: Phase, share: Share, at: Expr) -> tuple[tuple[Expr, ...], Expr]:
        return weight_index(self, phase, share, at)


@dataclass(frozen=True)
class WgmmaPipelinedLayout(WgmmaTiles):
    """ring: stages of a pipeline in shared memory that operands come through. together: blocks, launched as a cluster,
    that fetch operands for each other. warps_u, warps_n and warps_k say how warps share cells; warpgroups share K."""

    exchange: Exchange = field(default=COUNTER, init=False)
    ring: int = 2
    together: int = 1

    reads_in_step: ClassVar[bool] = True
    wants: ClassVar[str] = (
        "a pipeline has two stages at least, whole warpgroups, no inputs, and weights of 16 or 32 bits"
    )

    @property
    def possible(self) -> bool:
        plain = self.precision != "float32" and not self.stored  # wgmma would read codes
        return bool(plain and self.ring > 1 and self.warps % 4 == 0 and not self.step.given and self.passes == 1)

    @property
    def cluster(self) -> int:
        return self.together

    @property
    def k_parts(self) -> int:
        return self.warps // 4

    @property
    def part_lanes(self) -> int:
        return LANES * 4

    @property
    def partial_words(self) -> int:
        return partial_bytes(self) // 4

    @property
    def shared_bytes(self) -> int:
        return memory_map(self).end

    @property
    def prefetch_at(self) -> int:
        """Nothing is copied there."""
        return 0

    def product_registers(self) -> int:
        return self.kept_registers + max(m_tiles(self, p) for p in self.shares) * self.rows // 2 + 16

    def packing(self, phase: Phase, share: Share) -> tuple[Hashable, ...]:
        return (*super().packing(phase, share), "wgmma ring", self.k_parts, share.registers)

    @property
    def rates(self) -> Rates:
        return Rates(1.0, 0.0, 34.0, 0.8, 0.15, 0.03)

    def product_us(self, phase: Phase) -> float:
        products = copied = 0.0
        for share in self.shares[phase]:
            blocks = share.kblocks * self.k_parts
            each = max(RING_COLUMNS, self.rows) / 8 * RING_CYCLES * 2 * m_tiles(self, phase)
            products += each * self.k_parts * (share.registers + RING_NEAR * (share.kblocks - share.registers))
            copied += blocks * self.rows * 64 + share.streamed * self.k_parts * m_tiles(self, phase) * 4096
        again = 1.0
        if sum(len(c) for c in chunks(self).values()) > self.ring:
            again = RING_REFILL[self.ring > FEW_STAGES]
        return RING_US + (copied / RING_COPY + RING_SHOWN * products) * again / CLOCK_MHZ

    def gate_row(self, phase: Phase, tile: Expr, line: Expr) -> tuple[Expr, Expr, Expr]:
        row, halves = tile * TILE_ROWS + line, len(self.halves(phase))
        return row // 8 // halves, row // 8 % halves, row


def swizzled(row: Expr, piece: Expr) -> Expr:
    """Where a row's 16-byte piece lies."""
    return tirx.bitwise_xor(piece, tirx.floormod(tirx.floordiv(row, 2), 4))


def m_tiles(geometry: Geometry, phase: Phase) -> int:
    """Of 64 rows."""
    return ceil(geometry.warps_u * len(geometry.halves(phase)) * 8 / TILE_ROWS)


def _largest_tiles(geometry: Geometry) -> int:
    return max((m_tiles(geometry, p) for p in geometry.shares), default=0)


def part_bytes(geometry: WgmmaPipelinedLayout) -> int:
    """Of a stage: every part of K has a pipeline of its own."""
    operand = geometry.rows * ROW_BYTES
    pace = max(1, STAGE_BYTES // (geometry.k_parts * operand))
    many = sum(-(-s.kblocks // pace) for parts in geometry.shares.values() for s in parts) > geometry.ring
    if many and geometry.ring <= FEW_STAGES:
        pace *= 2  # stages are filled again: half as often
    most = pace * operand
    for phase, parts in geometry.shares.items():
        if any(s.streamed for s in parts):
            most = max(most, operand + m_tiles(geometry, phase) * TILE_BYTES)
    return most


def chunks(geometry: WgmmaPipelinedLayout) -> dict[Phase, list[Chunk]]:
    """Every phase's, in order. Streamed weights are spread over the blocks of K, so that copies keep an even pace."""
    found: dict[Phase, list[Chunk]] = {}
    number, pace = 0, part_bytes(geometry) // (geometry.rows * ROW_BYTES)
    for phase, shares in geometry.shares.items():
        found[phase] = []
        for share in shares:
            near = share.registers + share.shared
            runs = [(at, min(pace, near - at), False) for at in range(0, near, pace)]
            singles = [(at, 1, True) for at in range(near, share.kblocks)]
            keys = [((i + 0.5) / len(many), run) for many in (runs, singles) for i, run in enumerate(many)]
            for _, (first, count, streamed) in sorted(keys):
                chunk = Chunk(share, first, count, streamed, number % geometry.ring, number // geometry.ring)
                found[phase].append(chunk)
                number += 1
    return found


def uses(geometry: WgmmaPipelinedLayout) -> list[int]:
    """How often a step uses each stage."""
    total = sum(len(c) for c in chunks(geometry).values())
    return [len(range(slot, total, geometry.ring)) for slot in range(geometry.ring)]


def partial_stride(geometry: WgmmaPipelinedLayout) -> int:
    """Floats between rows of sums: lanes (g, q) of half a warp, two floats each, meet no bank twice."""
    columns = geometry.rows // turns(geometry)
    return columns + (0 if columns % 16 else 8)


def turns(geometry: WgmmaPipelinedLayout) -> int:
    """In which sums change hands: half of many rows after the other half, because room is short."""
    halves = geometry.rows > MANY_ROWS and geometry.warps_n == 1 and geometry.tiles % (2 * geometry.warps_k) == 0
    return 2 if halves else 1


def partial_bytes(geometry: WgmmaPipelinedLayout) -> int:
    return geometry.k_parts * _largest_tiles(geometry) * TILE_ROWS * partial_stride(geometry) * 4


def memory_map(geometry: WgmmaPipelinedLayout, limit: int = 232448) -> MemoryMap:
    """Sums lie in the pipeline where there is no other room for them."""
    pipeline, barriers = geometry.k_parts * geometry.ring * part_bytes(geometry), geometry.k_parts * geometry.ring * 16
    more = geometry.weight_words * 4 + geometry.stage_words * 4 + barriers
    more += -more % 128
    apart = pipeline + partial_bytes(geometry) + more <= limit
    weights = pipeline + partial_bytes(geometry) if apart else max(pipeline, partial_bytes(geometry))
    weights += -weights % 1024
    stage = weights + geometry.weight_words * 4
    at = stage + geometry.stage_words * 4
    at += -at % 8
    return MemoryMap(0, pipeline if apart else 0, weights, stage, at, at + barriers, apart)


def weight_index(geometry: WgmmaTiles, phase: Phase, share: Share, at: Expr) -> tuple[tuple[Expr, ...], Expr]:
    """Position in the packed weights -> (index into the weight node, valid).

    Order: [cta][part of K][K block][M tile][tile of 4096 bytes]. A tile that stays in registers is [MMA step][warp]
    [lane][a0 a1 a2 a3], any other one [row][swizzled piece].
    """
    per_word = 4 // geometry.itemsize
    digits = Digits(tirx.Cast("int32", at))
    element, word = digits.take(per_word), digits.take(TILE_BYTES // 4)
    tile, kblock = digits.take(m_tiles(geometry, phase)), digits.take(share.kblocks)
    part, cta = digits.take(geometry.k_parts), digits.rest
    z, lane, warp, step = word % 4, word // 4 % 32, word // 128 % 4, word // 512
    line = warp * 16 + z % 2 * 8 + lane // 4
    k = step * (geometry.block_k // 2) + z // 2 * (geometry.block_k // 4) + lane % 4 * per_word + element
    if share.registers < share.kblocks:
        row = word // 16
        flat = (swizzled(row, word // 4 % 4) * 4 + word % 4) * per_word + element
        kept = kblock < share.registers
        line, k = tirx.Select(kept, line, row), tirx.Select(kept, k, flat)
    k = (part * share.kblocks + kblock) * geometry.block_k + k
    warp_u, half, row = geometry.gate_row(phase, tile, line)
    block, gate = half // phase.gates, half % phase.gates
    unit = cta * geometry.units(phase.width) + (warp_u * geometry.blocks(phase.width) + block) * 8 + row % 8
    inside = tirx.And(warp_u < geometry.warps_u, block < geometry.blocks(phase.width))
    inside = tirx.And(inside, tirx.And(unit < phase.width, k < share.operand.depth))
    if len(share.operand.weight.shape) == 3:
        return (gate, unit, k), inside
    return (gate * phase.width + unit, k), inside
