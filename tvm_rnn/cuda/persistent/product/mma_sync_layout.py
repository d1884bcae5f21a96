"""The geometry of a persistent kernel whose lanes load their own fragments of mma.sync: in clusters and in grids.

In: a `Step`, knobs, an exchange. Out: `MmaSyncLayout`: the map of shared memory, how weights are packed, registers, and
how long a product takes, predicted. `mma_sync.py` adds who emits the statements. In strict float32 lanes multiply
without tensor cores, in the same layout.

K is permuted so that one 16-byte load per lane is the operand of two MMA steps. Operands lie as [K block][batch row]
[64 bytes], so such a load of a warp reads 512 bytes in a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import ClassVar

from tvm import tirx

from tvm_rnn.cuda.layer import fp8_weights
from tvm_rnn.cuda.layer.packed_layout import Digits
from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.geometry import LANES, Geometry, Share
from tvm_rnn.cuda.persistent.rates import CLOCK_MHZ, SHARED_BYTES_PER_CYCLE, Rates
from tvm_rnn.tir.expr import Expr

MMA_CYCLES = 6.5  # m16n8k16 on one quarter of a multiprocessor; m16n8k8 of tf32 the same
# Of 8-bit codes to a fragment of mma.sync, on one quarter: an estimate from the instructions that it takes (14 and 8,
# many of which start every other cycle), not measured. Nothing of it is taken to hide behind MMA.
DECODE_CYCLES = {"bfloat16": 16.0, "float16": 14.0}
FFMA_CYCLES = 1.7  # one instruction of a warp, with the loads between
L2_BYTES_PER_US = 170e3  # of one multiprocessor, reading what all read
L2_TRIP_US = 0.15  # one load after the other
OVERLAP_LOST = 0.5  # of the shorter of loads and MMA, which mostly hides behind the longer
PASS_US = 0.4  # each further pass of a grid: four layers of LSTM 512, B = 64: 6.1 us in two passes, 5.2 in one
POLLING_US = 0.12  # each further group that polls at the same time: LSTM 512 bf16, B = 128, eight groups, 3.66 us
CROWDED, CROWDED_PART = 226, 0.003  # registers of a grid's thread; lost time for each one more: some spill
INPUT_HIDDEN_US = 0.25  # of an input's product, behind a cluster's exchange
INPUT_FAR = 3.0  # times an operand's way, where registers hold few pieces of an input's rows at a time
INPUT_SHARED_PART = 0.5  # of its weights' way from shared memory, which is in the way of the exchange
PARTIAL_US = 0.03  # per warp that sums are collected from
MOST_POLLED = 64  # registers of a thread for pieces that it polls for


@dataclass(frozen=True)
class MemoryMap:
    """Where regions of shared memory begin, in words."""

    partial: int
    stage: int
    inputs: int
    copies: int
    prefetch: int
    weights: int
    barriers: int


@dataclass(frozen=True)
class MmaSyncLayout(Geometry):
    """ahead: K blocks whose operands are asked for before they are used. copied: 1 where a grid's operands come to
    shared memory by asynchronous copies (`cuda/persistent/layer_input_rows.py`) in place of registers `ahead`."""

    ahead: int = 1
    copied: int = 0

    wants: ClassVar[str] = "values that are polled for come of products alone, in one pass, of whole K blocks"

    @property
    def possible(self) -> bool:
        """Where values are polled for: every word of an operand is written in every step, and all of it is asked for at
        once. Where a part came later, it was missing again, and a counter was quicker: LSTM 1024 bf16, B = 64, in two
        passes 5.2 us polled against 4.5; GRU 2048, B = 16, 5.0 against 3.9 (H200)."""
        if not self.exchange.polls:
            return True
        plain = self.products_alone and not self.copied and self.passes == 1 and not self.step.given
        most = max((s.kblocks for _, s in self.weights), default=0)
        at_once = most * self.tiles * 4 <= MOST_POLLED
        barriers = self.warps_k == 1 or 2 * self.warps_u * self.warps_n < 16  # two for each group of warps that sums
        whole = self.publishes_whole_blocks
        return bool(self.precision != "float32" and whole and plain and at_once and barriers)

    def fits(self, registers: int = 255, shared_bytes: int = 232448) -> bool:
        """The next step's input would take the place of this one's too early, if it was multiplied in passes."""
        if self.step.given and self.copied and self.passes > 1:
            return False
        return super().fits(registers, shared_bytes)

    # --- sizes -------------------------------------------------------------------------------------------------------

    def block_words(self, phase: Phase) -> int:
        return self.m_tiles(phase) * (4 if self.stored else 8)

    @property
    def partial_words(self) -> int:
        """Where blocks poll, no barrier of the block lies between two steps: they take turns with two places."""
        if self.warps_k == 1:
            return 0
        most = max((self.m_tiles(p) for p in self.step.phases if p.kind == "gemm"), default=0)
        return self.warps * most * self.pass_tiles * LANES * 4 * (2 if self.exchange.polls else 1)

    @property
    def copy_words(self) -> int:
        """Copies of operands: each input's, and a place for the others."""
        if not self.copied:
            return 0
        inputs = sum(s.kblocks for _, s in self.weights if s.operand.given)
        others = max((s.kblocks for _, s in self.weights if not s.operand.given), default=0)
        return self.warps * (inputs + others) * self.tiles * LANES * 4

    @property
    def memory_map(self) -> MemoryMap:
        partial = self.exchange.operand_words(self)
        stage = partial + self.partial_words
        inputs = stage + self.stage_words
        copies = inputs + self.exchange.input_words(self)
        prefetch = copies + self.copy_words
        weights = prefetch + self.prefetch_words
        return MemoryMap(partial, stage, inputs, copies, prefetch, weights, weights + self.weight_words)

    @property
    def prefetch_at(self) -> int:
        return self.memory_map.prefetch

    @property
    def shared_bytes(self) -> int:
        """Two mbarriers per value, and for reductions."""
        return 4 * self.memory_map.barriers + max(256, 16 * (len(self.published) + 1))

    @property
    def chains(self) -> dict[Phase, int]:
        """Independent accumulators per MMA tile: an MMA takes 34 cycles and can start every 6.5, so 8 must be in flight
        in each quarter of a multiprocessor."""
        found = {}
        for phase in self.step.phases:
            under_way = self.m_tiles(phase) * self.pass_tiles * max(1, self.warps // 4)
            found[phase] = 1 if under_way >= 8 or self.precision == "float32" else 2 if under_way >= 3 else 4
        return found

    def product_registers(self) -> int:
        total = (
            self.kept_registers
            + self.exchange.input_registers(self)
            + (fp8_weights.registers(self) if self.stored else 0)
        )
        if self.precision == "float32":  # sums of 8 rows per half tile, and some operands
            most = max(self.m_tiles(p) for p in self.step.phases)
            total += self.pass_tiles * (most * 16 + 24)
        else:
            deepest = max((s.kblocks for _, s in self.weights), default=0)
            asked = deepest if self.exchange.polls else self.ahead + 1
            work = [
                self.m_tiles(p) * self.pass_tiles * 4 * self.chains[p] + asked * self.pass_tiles * 4
                for p in self.step.phases
                if p.kind == "gemm"
            ]
            total += max(work, default=0)
        if any(s.registers < s.kblocks for _, s in self.weights):
            total += max(self.block_words(p) for p in self.step.phases)  # fragments in flight
        return total

    # --- predicted time ----------------------------------------------------------------------------------------------

    @property
    def rates(self) -> Rates:
        return self.exchange.rates

    def extra_us(self, groups: int) -> float:
        us = PASS_US * (self.passes - 1) if self.exchange.in_memory else 0.0
        return us + (POLLING_US * (groups - 1) if self.exchange.polls else 0.0)

    @property
    def slowdown(self) -> float:
        crowded = max(0, self.registers() - CROWDED) if self.exchange.in_memory else 0
        return 1 + CROWDED_PART * crowded

    def product_us(self, phase: Phase) -> float:
        us = 0.0
        for share in self.shares[phase]:
            us += self._operand_us(phase, share)
        if self.warps_k > 1:
            traffic = 2 * self.warps * self.m_tiles(phase) * self.tiles * 512
            us += PARTIAL_US * (self.warps_k - 1) * self.passes + traffic / SHARED_BYTES_PER_CYCLE / CLOCK_MHZ
        return us

    def _operand_us(self, phase: Phase, share: Share) -> float:
        m_tiles, rates, steps = self.m_tiles(phase), self.rates, share.kblocks * 2
        issue = ceil(self.warps / 4) * steps * m_tiles * self.tiles * MMA_CYCLES
        chain = steps / self.chains[phase] * rates.latency
        if self.precision == "float32":  # 32 multiply-adds per cycle in each quarter
            issue = ceil(self.warps / 4) * share.kblocks * m_tiles * 2 * 4 * 8 * self.tiles * FFMA_CYCLES
            chain = 0.0
        if self.stored:
            issue += ceil(self.warps / 4) * self.passes * steps * m_tiles * DECODE_CYCLES[self.precision]
        operand = self.rows * self.depth_blocks(share.operand.source) * 64 * self.warps_u
        piece = self.block_words(phase) * 4 * 32 * self.warps_u * self.warps_k * self.warps_n
        math = max(issue, chain) / CLOCK_MHZ
        near = rates.shared * self.passes * share.shared * piece / SHARED_BYTES_PER_CYCLE / CLOCK_MHZ
        together = self.exchange.polls or bool(self.copied)  # all of an operand is asked for at once
        trips = 1 if together else self.passes * ceil(share.kblocks / (self.ahead + 1))
        far = max(operand / L2_BYTES_PER_US, trips * L2_TRIP_US)
        if share.operand.given:  # while the blocks wait for each other
            rows = operand / SHARED_BYTES_PER_CYCLE / CLOCK_MHZ
            if self.exchange.in_memory and not self.copied:
                rows = far * INPUT_FAR
            hidden = rates.exchange if self.exchange.in_memory else INPUT_HIDDEN_US
            return max(0.0, math + near + rows - hidden) + INPUT_SHARED_PART * near
        if not self.exchange.in_memory:
            return math + near + rates.shared * operand / SHARED_BYTES_PER_CYCLE / CLOCK_MHZ
        return near + max(far, math) + OVERLAP_LOST * min(far, math)

    # --- weights -----------------------------------------------------------------------------------------------------

    def weight_index(self, phase: Phase, share: Share, at: Expr) -> tuple[tuple[Expr, ...], Expr]:
        return weight_index(self, phase, share, at)


def weight_index(geometry: Geometry, phase: Phase, share: Share, at: Expr) -> tuple[tuple[Expr, ...], Expr]:
    """Position in the packed weights -> (index into the weight node, valid).

    Order: [cta][warp_u][warp_k][K block][M tile][MMA step][lane][a0 a1 a2 a3], each a of one word. a0 and a2 are
    the first half of a tile's rows, a1 and a3 the second; a2 and a3 lie half an MMA step further along K. In 8 bits:
    [M tile][lane][MMA step][a0 a1 a2 a3], each a of two codes, so that a lane's 16 bytes are both steps'.
    """
    digits = Digits(tirx.Cast("int32", at) if prod(share.operand.weight.shape) < 1 << 28 else at)
    per_word = 4 // geometry.itemsize

    element, word = digits.take(per_word), digits.take(4)
    if geometry.stored:
        mma_step, lane = digits.take(2), digits.take(LANES)
    else:
        lane, mma_step = digits.take(LANES), digits.take(2)
    tile, kblock = digits.take(geometry.m_tiles(phase)), digits.take(share.kblocks)
    warp_k, warp_u, cta = digits.take(geometry.warps_k), digits.take(geometry.warps_u), digits.rest
    g, q = tirx.floordiv(lane, 4), tirx.floormod(lane, 4)
    half = tile * 2 + tirx.floormod(word, 2)
    k = (warp_k * share.kblocks + kblock) * geometry.block_k + q * (4 * per_word) + mma_step * (2 * per_word)
    k = k + tirx.floordiv(word, 2) * per_word + element
    block, gate = tirx.floordiv(half, phase.gates), tirx.floormod(half, phase.gates)
    unit = cta * geometry.units(phase.width) + (warp_u * geometry.blocks(phase.width) + block) * 8 + g
    inside = tirx.And(block < geometry.blocks(phase.width), tirx.And(unit < phase.width, k < share.operand.depth))
    if len(share.operand.weight.shape) == 3:
        return (gate, unit, k), inside
    return (gate * phase.width + unit, k), inside
