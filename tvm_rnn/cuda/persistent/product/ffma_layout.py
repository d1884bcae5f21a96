"""The geometry of a persistent kernel whose products run in float32 arithmetic, out of pipelines in shared memory.

In: a `Step` and knobs. Out: `FfmaLayout`: in which order a step's operands are multiplied, sizes, places, how weights
are packed, how long a product takes.

Every warp multiplies all gates of the block's units (columns) with all batch rows, in its own part of K, and has a
pipeline of its own: no warp waits for another before sums meet. A stage is a block of K: [row][swizzled piece], as
operands lie in the exchange, then [k][column] of its weights. Lane (y, x) has rows y, y + 8, ... and four neighbours of
every 16 columns, from 4 x on: rows of 64 bytes are read without conflicts of banks, and weights by all y at once. With
64 rows and 64 columns that is 128 sums per lane, and 24 loads of 16 bytes for 512 multiply-adds.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from math import ceil
from typing import ClassVar

from tvm import tirx

from tvm_rnn.cuda.layer.packed_layout import Digits
from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.exchange_by_polling import POLLING
from tvm_rnn.cuda.persistent.geometry import LANES, Exchange, Geometry, Share
from tvm_rnn.cuda.persistent.rates import CLOCK_MHZ, SHARED_BYTES_PER_CYCLE, Rates
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Expr

ACROSS, DOWN = 4, 8  # lanes of a warp along columns, along rows
GROUP = 4 * ACROSS  # columns of a warp's load
ROW_BYTES = 64  # of a row in a stage
MOST_SUMS = 128  # of a lane
TURNED = 1  # columns lie in pairs the other way round: see `FfmaProduct._store_sums`
LIMIT = 232448  # bytes of shared memory
# Cycles of a multiply-add of a warp on one quarter, and of a load of 16 bytes per lane from shared memory; bytes per us
# that every multiprocessor has of L2 when all read; of a turn in which sums meet, us.
# Layers in a wave, blocks x rows, T = 100, measured and as this predicts: four LSTM 512, B = 64, 32 x 64 33.2, 31.9 us;
# 16 x 32 33.4, 32.2; B = 16, 32 x 16 10.3, 10.4; four GRU 512 26.6, 25.2; three LSTM 256, B = 64, 16 x 32 9.4, 8.5.
FMA_CYCLES, FMA_LOAD_CYCLES, FMA_L2_BYTES_PER_US, FMA_TURN_US = 1.75, 4.0, 55e3, 0.15


@dataclass(frozen=True)
class FfmaLayout(Geometry):
    """stages: of every warp's own pipeline, out of which it multiplies. warps_u and warps_k say how warps share cells;
    each has a part of K."""

    exchange: Exchange = field(default=POLLING, init=False)
    stages: int = 2

    streams: ClassVar[bool] = True
    zeroes_padding: ClassVar[bool] = False  # copies do not reach what nobody writes
    wants: ClassVar[str] = "FFMA is for float32, and for products alone whose sums lanes have room for"

    @property
    def possible(self) -> bool:
        plain = not self.stored and self.passes == self.warps_n == 1 and self.register_words == 0
        if not (self.precision == "float32" and plain and self.products_alone):
            return False
        if any(high(self) * columns(self, p) // ACROSS > MOST_SUMS for p in self.step.phases):
            return False
        return bool(2 <= self.stages <= 1 + min(share.kblocks for _, share in order(self)))

    def follows(self, whole: bool) -> bool:
        return self.possible

    @property
    def k_parts(self) -> int:
        return self.warps

    @property
    def part_lanes(self) -> int:
        return LANES

    @property
    def staged_tiles(self) -> int:
        return self.phase_tiles

    def block_words(self, phase: Phase) -> int:
        return weight_bytes(self, phase) // (4 * LANES)

    @property
    def partial_words(self) -> int:
        """Of all parts of a turn."""
        return part_words(self) * self.warps // turns(self)

    @property
    def partial_at(self) -> int:
        return pipeline_words(self) + self.weight_words

    @property
    def stage_at(self) -> int:
        return self.partial_at + self.partial_words

    @property
    def prefetch_at(self) -> int:
        return self.stage_at + self.stage_words

    @property
    def shared_bytes(self) -> int:
        return 4 * (self.prefetch_at + self.prefetch_words) + max(256, 16 * (len(self.published) + 1))

    def product_registers(self) -> int:
        """Sums, four k of a lane's rows, two k of its columns."""
        return max(
            high(self) * columns(self, p) // ACROSS + 4 * high(self) + 2 * columns(self, p) // ACROSS
            for p in self.step.phases
            if p.kind == "gemm"
        )

    def packing(self, phase: Phase, share: Share) -> tuple[Hashable, ...]:
        return (*super().packing(phase, share), "FFMA", self.k_parts, share.registers)

    @property
    def rates(self) -> Rates:
        return Rates(2.1, 0.0, 0.0, 0.0, 0.15, 0.03)

    def product_us(self, phase: Phase) -> float:
        """Of all warps, two on each quarter; the exchange hides behind the product with the layer's input."""
        rows, slots = high(self), columns(self, phase) // ACROSS
        # Of one k: sums of a lane, and a quarter of the loads of four k.
        sums = ceil(self.warps / 4) * rows * slots * FMA_CYCLES
        loads = self.warps * (rows + slots) / 4 * FMA_LOAD_CYCLES
        total = given = 0.0
        for share in self.shares[phase]:
            math = share.kblocks * self.block_k * max(sums, loads) / CLOCK_MHZ
            brought = self.rows * ROW_BYTES * share.kblocks + share.streamed * weight_bytes(self, phase)
            us = max(math, brought * self.warps / FMA_L2_BYTES_PER_US)
            total, given = total + us, given + us * share.operand.given
        met = 2 * self.warps * part_words(self) * 4 / SHARED_BYTES_PER_CYCLE / CLOCK_MHZ
        return total - min(given, self.rates.exchange) + met + FMA_TURN_US * turns(self)

    def weight_index(self, phase: Phase, share: Share, at: Expr) -> tuple[tuple[Expr, ...], Expr]:
        return weight_index(self, phase, share, at)


def order(geometry: FfmaLayout) -> list[tuple[Phase, Share]]:
    """(phase, share) as they are multiplied: in a phase, inputs first, which wait for nobody of the same layer."""
    found = []
    for phase, shares in geometry.shares.items():
        found += [(phase, share) for share in sorted(shares, key=lambda share: not share.operand.given)]
    return found


def columns(geometry: FfmaLayout, phase: Phase) -> int:
    """Gates of the block's units, padded: column = unit * gates + gate."""
    return ceil(geometry.units(phase.width) * phase.gates / GROUP) * GROUP


def high(geometry: FfmaLayout) -> int:
    """Batch rows of a lane."""
    return geometry.rows // DOWN


def limit(geometry: FfmaLayout, source: Node) -> int:
    """Elements of a row of an operand that somebody writes; what lies behind them in a block of K is 0."""
    return source.shape[0] if source.op == "input" else geometry.ctas * geometry.units(source.shape[0])


def weight_bytes(geometry: FfmaLayout, phase: Phase) -> int:
    """Of a block of K of one part."""
    return geometry.block_k * columns(geometry, phase) * 4


def stage_bytes(geometry: FfmaLayout) -> int:
    """A block of K: the operand, and weights that are not resident."""
    streamed = [weight_bytes(geometry, p) for p, share in order(geometry) if share.streamed]
    return geometry.rows * ROW_BYTES + max(streamed, default=0)


def pipeline_words(geometry: FfmaLayout) -> int:
    """Of all warps."""
    return geometry.warps * geometry.stages * stage_bytes(geometry) // 4


def stride(geometry: FfmaLayout, phase: Phase) -> int:
    """Words between rows of sums: an odd number of 16 bytes, so that eight rows meet no bank twice."""
    return columns(geometry, phase) + 4


def part_words(geometry: FfmaLayout) -> int:
    """Of the sums of one part."""
    return geometry.rows * max((stride(geometry, p) for p in geometry.step.phases if p.kind == "gemm"), default=0)


def turns(geometry: FfmaLayout) -> int:
    """In which parts write their sums: as few as there is room for."""
    rest = 4 * (pipeline_words(geometry) + geometry.weight_words + geometry.stage_words + geometry.prefetch_words) + 256
    able_to = (
        n
        for n in (1, 2, 4)
        if geometry.warps % n == 0 and rest + 4 * part_words(geometry) * geometry.warps // n <= LIMIT
    )
    return next(able_to, 8)


def weight_index(geometry: FfmaLayout, phase: Phase, share: Share, at: Expr) -> tuple[tuple[Expr, ...], Expr]:
    """Position in the packed weights -> (index into the weight node, valid). Order: [cta][part][K block][k][column]."""
    digits = Digits(tirx.Cast("int32", at))
    column, k = digits.take(columns(geometry, phase)), digits.take(geometry.block_k)
    kblock, part, cta = digits.take(share.kblocks), digits.take(geometry.k_parts), digits.rest
    k = (part * share.kblocks + kblock) * geometry.block_k + k
    column = tirx.bitwise_xor(column, TURNED) if TURNED else column
    local, gate = tirx.floordiv(column, phase.gates), tirx.floormod(column, phase.gates)
    unit = cta * geometry.units(phase.width) + local
    inside = tirx.And(local < geometry.units(phase.width), tirx.And(unit < phase.width, k < share.operand.depth))
    if len(share.operand.weight.shape) == 3:
        return (gate, unit, k), inside
    return (gate * phase.width + unit, k), inside
