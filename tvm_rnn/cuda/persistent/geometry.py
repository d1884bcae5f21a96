"""The geometry of a persistent kernel: how blocks, warps and lanes share a layer's units, batch rows and products.

In: a `Step` and knobs. Out: `Team`, from which `kernel.py` writes the kernel, `cuda/model/choose_regime.py` predicts
its time, and the packing functions of weights and the sizes of everything on the chip.

A team of `ctas` blocks owns all units of a layer for `rows` batch rows. Gates = W h, so units are the M of mma.sync and
batch rows its N: a batch of 1 to 8 costs one tile. A warp owns `blocks` of 8 units and all their gates, so a lane finds
every gate of a unit in its own registers: lane (g, q) has unit g, batch rows 2q and 2q + 1 of each tile of 8 rows.

K is permuted so that one 16-byte load per lane is the operand of two MMA steps. Operands are stored as blocks of K
(64 bytes of each batch row): [K block][batch row][64 bytes], so such a load of a warp reads 512 bytes in a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any

from tvm_rnn.cuda.layer.phases import Operand, Phase, Step
from tvm_rnn.graph.graph import Node

from . import register_estimate
from .product import ffma_layout, mma_sync_layout, wgmma_pipelined_layout, wgmma_staged_layout

Expr = Any

MMA = {
    "bfloat16": "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
    "float16": "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
    "tf32": "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
}
LANES = 32
BLOCK_WORDS = 16  # 64 bytes of K
FETCH_STEPS = 4  # places for hoisted values: copies begin three steps early


@dataclass(frozen=True)
class Share:
    """One operand of a product, shared out: `kblocks` blocks of K per warp, of which `registers` stay in registers,
    `shared` in shared memory; the rest is read from L2 in every step."""

    operand: Operand
    kblocks: int
    registers: int
    shared: int

    @property
    def streamed(self) -> int:
        return self.kblocks - self.registers - self.shared


@dataclass(frozen=True)
class Team:
    """exchange: "cluster" (shared memory of the other blocks, mbarriers) or "grid" (L2, a counter).

    ctas: blocks of a team. rows: batch rows of a team. warps_u, warps_n, warps_k: how a block's warps share units,
    batch rows and K. register_words: weight words (of 4 bytes) that a thread may keep. shared_words: weight words per
    lane in shared memory. ahead: K blocks whose operands are asked for before they are used. passes: in which the
    batch rows are multiplied: more passes need fewer registers, and read weights that are not in registers again.
    polled: 1 where a grid hands values over without a counter (`exchange_by_polling.py`): all of an operand is asked
    for at once. copied: 1 where a grid's operands come to shared memory by asynchronous copies (`operand_cp_async.py`)
    in place of registers `ahead`. ring: stages of a ring in shared memory that operands of wgmma come through
    (`wide_layout`); warps_u, warps_n and warps_k then say how warps share cells, warpgroups share K; 0: lanes load for
    mma.sync. together: blocks that fetch operands for each other. staged: 1 where a polled grid lays operands, inputs
    too, down in shared memory, once for all warps, and warpgroups multiply them (`operands_staged.py`); warps_k then
    counts warpgroups. fma: stages of every warp's own ring, out of which it multiplies in float32
    (`cuda/persistent/product/ffma.py`); warps_u and warps_k then say how warps share cells, and each has a part of K;
    0: not so. stored: the dtype of weights (`cuda/layer/fp8_weights.py`) where it is not `storage`.
    """

    step: Step
    precision: str
    exchange: str
    ctas: int
    rows: int
    warps_u: int = 1
    warps_n: int = 1
    warps_k: int = 1
    register_words: int = 128
    shared_words: int = 0
    ahead: int = 1
    passes: int = 1
    polled: int = 0
    copied: int = 0
    ring: int = 0
    together: int = 1
    staged: int = 0
    fma: int = 0
    stored: str = ""

    @property
    def storage(self) -> str:
        return "float32" if self.precision in ("tf32", "float32") else self.precision

    @property
    def itemsize(self) -> int:
        return 4 if self.storage == "float32" else 2

    @property
    def block_k(self) -> int:
        """Elements of K in one block."""
        return BLOCK_WORDS * 4 // self.itemsize

    @property
    def warps(self) -> int:
        return self.warps_u * self.warps_n * self.warps_k

    @property
    def k_parts(self) -> int:
        """Parts of K, of warps or of warpgroups."""
        return self.warps // 4 if self.ring else self.warps if self.fma else self.warps_k

    @property
    def part_lanes(self) -> int:
        """Lanes that share the weights of one part of K."""
        return LANES * 4 if self.ring else LANES * (1 if self.fma else self.warps_u)

    @property
    def threads(self) -> int:
        return LANES * self.warps

    @property
    def tiles(self) -> int:
        """Tiles of 8 batch rows of one warp."""
        return self.rows // 8 // self.warps_n

    @property
    def pass_tiles(self) -> int:
        """Of these, the ones of one pass."""
        return self.tiles // self.passes

    @property
    def pass_own(self) -> int:
        """Of a pass, the tiles whose cells a warp computes after the K parts are summed."""
        return -(-self.pass_tiles // self.warps_k)

    @property
    def own_tiles(self) -> int:
        """All tiles whose cells a warp computes."""
        return self.pass_own * self.passes

    def own_tile(self, j: int, warp_k: Expr) -> Expr:
        """The j-th own tile, among the warp's `tiles`."""
        if self.warps_k == 1:
            return j
        return j // self.pass_own * self.pass_tiles + j % self.pass_own * self.warps_k + warp_k

    def owned(self, j: int, warp_k: Expr) -> Expr | None:
        """Whether this warp has a j-th tile; None: every warp has."""
        within = j % self.pass_own
        if self.warps_k == 1 or (within + 1) * self.warps_k <= self.pass_tiles:
            return None
        return within * self.warps_k + warp_k < self.pass_tiles

    def blocks(self, width: int) -> int:
        """Blocks of 8 units per warp."""
        return -(-width // (8 * self.ctas * self.warps_u))

    def units(self, width: int) -> int:
        """Units per CTA."""
        return 8 * self.warps_u * self.blocks(width)

    def halves(self, phase: Phase) -> list[tuple[int, int]]:
        """(gate, block) of each 8 rows of the product, two of which make one MMA tile."""
        return [(gate, block) for block in range(self.blocks(phase.width)) for gate in range(phase.gates)]

    def m_tiles(self, phase: Phase) -> int:
        return -(-self.blocks(phase.width) * phase.gates // 2)

    def block_words(self, phase: Phase) -> int:
        """Words of weights of one block of K, per lane."""
        if self.ring:
            return wgmma_pipelined_layout.m_tiles(self, phase) * wgmma_pipelined_layout.TILE_WORDS
        if self.fma:
            return ffma_layout.weight_bytes(self, phase) // (4 * LANES)
        return self.m_tiles(phase) * (4 if self.stored else 8)

    def depth_blocks(self, source: Node) -> int:
        """K blocks of an operand: whole blocks per warp, those of padded units included."""
        width = source.shape[0] if source.op == "input" else self.ctas * self.units(source.shape[0])
        return ceil(ceil(width / self.block_k) / self.k_parts) * self.k_parts

    @cached_property
    def shares(self) -> dict[Phase, tuple[Share, ...]]:
        """Registers are given to the products in order, those that wait for nobody's values last; then shared memory;
        what is left is streamed."""
        registers, shared, made = self.register_words, self.shared_words, {}
        every = [(phase, operand) for phase in self.step.phases for operand in phase.operands]
        for phase, operand in sorted(every, key=lambda pair: pair[1].given):
            kblocks = self.depth_blocks(operand.source) // self.k_parts
            words = self.block_words(phase)
            kept = min(kblocks, registers // words)
            registers -= kept * words
            near = min(kblocks - kept, shared // words)
            shared -= near * words
            made[phase, operand] = Share(operand, kblocks, kept, near)
        return {phase: tuple(made[phase, operand] for operand in phase.operands) for phase in self.step.phases}

    # --- hoisted values ----------------------------------------------------------------------------------------------

    def fetches(self, phase: Phase, node: Node, slot: int) -> bool:
        """Whether a hoisted value's component is copied to shared memory early, 8 units at a time
        (`hoisted_value_prefetch.py`). A ring needs that memory, masks are words."""
        # Inputs: on an H200 6.6 us in place of 7.2 in a grid (GRU 1024 backwards, B = 32), 2.15 in place of 1.84 in
        # clusters (LSTM 256).
        whole = node.op != "input" or (self.exchange == "grid" and node in self.step.whole)
        return not self.ring and whole and slot >= 0 and phase.width % 8 == 0 and not node.random

    @property
    def fetching(self) -> int:
        """Warps that copy hoisted values. Weights in 8 bits leave no room for those without cells."""
        return self.warps // self.warps_k * min(self.warps_k, self.pass_tiles) if self.stored else self.warps

    @property
    def fetch_words(self) -> int:
        pairs = zip(self.step.phases, self.step.reads, strict=True)
        tiles = [self.blocks(p.width) for p, reads in pairs for node, slot in reads if self.fetches(p, node, slot)]
        return FETCH_STEPS * self.fetching * sum(tiles) * self.own_tiles * 64 * self.itemsize // 4

    # --- inputs of products ----------------------------------------------------------------------------------------

    def input_words(self, node: Node) -> int:
        """One copy of an input's rows, in words of 4 bytes."""
        return self.depth_blocks(node) * self.rows * BLOCK_WORDS

    def input_at(self, node: Node) -> int:
        """Where the copies of an input's rows begin, in words from the first input's."""
        before = self.step.given[: self.step.given.index(node)]
        return sum(2 * self.input_words(n) for n in before)

    @property
    def inputs_words(self) -> int:
        """A cluster's: of even and odd steps."""
        return sum(2 * self.input_words(n) for n in self.step.given) if self.exchange == "cluster" else 0

    @property
    def copy_words(self) -> int:
        """A grid's copies of operands: each input's, and a place for the others."""
        every = [s for parts in self.shares.values() for s in parts]
        inputs = sum(s.kblocks for s in every if s.operand.given)
        others = max((s.kblocks for s in every if not s.operand.given), default=0)
        return self.copied * self.warps * (inputs + others) * self.tiles * LANES * 4

    @property
    def input_registers(self) -> int:
        """A thread of a cluster holds its pieces of a step for one step."""
        pieces = [ceil(self.input_words(n) // 4 / self.threads) for n in self.step.given]
        return 4 * sum(pieces) if self.exchange == "cluster" else 0

    @property
    def chains(self) -> dict[Phase, int]:
        """Independent accumulators per MMA tile: an MMA takes 34 cycles and can start every 6.5, so 8 must be under way
        in each quarter of a multiprocessor."""
        found = {}
        for phase in self.step.phases:
            if self.precision == "float32" or self.staged:
                found[phase] = 1
                continue
            under_way = self.m_tiles(phase) * self.pass_tiles * max(1, self.warps // 4)
            found[phase] = 1 if under_way >= 8 else 2 if under_way >= 3 else 4
        return found

    # --- exchange --------------------------------------------------------------------------------------------------

    @cached_property
    def published(self) -> tuple[Node, ...]:
        return tuple(n for p in self.step.phases for n in p.published)

    def value_words(self, node: Node) -> int:
        """One copy of a published value, in words of 4 bytes."""
        return self.depth_blocks(node) * self.rows * BLOCK_WORDS

    @cached_property
    def value_at(self) -> dict[Node, int]:
        """Where each published value (two copies, for even and odd steps) begins, in words."""
        found, at = {}, 0
        for node in self.published:
            found[node] = at
            at += 2 * self.value_words(node)
        return found

    @property
    def exchange_words(self) -> int:
        return self.reduce_at + 2 * self.reduce_words

    @property
    def events(self) -> tuple[Phase, ...]:
        """Phases that end with an exchange."""
        return tuple(p for p in self.step.phases if p.published or p.kind == "reduce")

    @property
    def reductions(self) -> tuple[Phase, ...]:
        return tuple(p for p in self.step.phases if p.kind == "reduce")

    @property
    def parts(self) -> int:
        """Partial results per row of a reduction over units: one per warp that shares them."""
        return self.ctas * self.warps_u

    @property
    def reduce_at(self) -> int:
        """Where partial results begin, in words: after the values."""
        return sum(2 * self.value_words(n) for n in self.published)

    @property
    def reduce_words(self) -> int:
        """One of the two buffers that reductions use in turn."""
        return max((len(p.roots) for p in self.reductions), default=0) * self.parts * self.rows

    # --- shared memory ---------------------------------------------------------------------------------------------

    @property
    def partial_words(self) -> int:
        if self.fma:
            return ffma_layout.partial_words(self)
        if self.warps_k == 1:
            return 0
        most = max((self.m_tiles(p) for p in self.step.phases if p.kind == "gemm"), default=0)
        if self.staged:
            return wgmma_staged_layout.partial_words(self, most)
        # Without a counter no barrier of the block lies between two steps: they take turns with two places.
        return self.warps * most * self.pass_tiles * LANES * 4 * (1 + self.polled)

    def stage_size(self, node: Node) -> int:
        """A cluster stages all that a block hands over of a value."""
        return self.rows * self.units(node.shape[0]) * self.itemsize // 4

    @property
    def stage_words(self) -> int:
        if self.exchange == "cluster":  # for even and odd steps: slow warps may still send what the last step staged
            return 2 * sum(self.stage_size(n) for n in self.published)
        tiles = wgmma_pipelined_layout.stage_tiles(self) if self.ring or self.staged or self.fma else 1
        return self.warps * tiles * 64 * self.itemsize // 4

    @property
    def weight_words(self) -> int:
        """Weights in shared memory, in words per block."""
        lanes = self.k_parts * self.part_lanes
        return sum(s.shared * self.block_words(p) * lanes for p, parts in self.shares.items() for s in parts)

    @property
    def shared_bytes(self) -> int:
        if self.ring:
            return wgmma_pipelined_layout.places(self).end
        operands = self.exchange_words if self.exchange == "cluster" else 0
        barriers = 16 * (len(self.published) + 1)  # two mbarriers per value, and for reductions
        own = (self.partial_words, self.stage_words, self.inputs_words, self.copy_words, self.fetch_words)
        staged = ffma_layout.ring_words(self) if self.fma else wgmma_staged_layout.words(self)
        return 4 * (operands + sum(own) + self.weight_words + staged) + max(256, barriers)

    # --- registers -------------------------------------------------------------------------------------------------

    @property
    def pollable(self) -> bool:
        """Whether values may be handed over without a counter."""
        return ffma_layout.able(self) if self.fma else wgmma_staged_layout.pollable(self)

    def registers(self) -> int:
        """An estimate per thread, used to discard what would spill."""
        return register_estimate.registers(self)

    # --- weights ---------------------------------------------------------------------------------------------------

    def weight_elements(self, phase: Phase, share: Share) -> int:
        words = self.block_words(phase) * share.kblocks
        return self.ctas * self.k_parts * self.part_lanes * words * 4 // (1 if self.stored else self.itemsize)

    def weight_index(self, phase: Phase, share: Share, at: Expr) -> tuple[tuple[Expr, ...], Expr]:
        """Position in the packed weights -> (index into the weight node, valid)."""
        wide = wgmma_pipelined_layout if self.ring or self.staged else mma_sync_layout
        layout: Any = ffma_layout if self.fma else wide
        found: tuple[tuple[Expr, ...], Expr] = layout.weight_index(self, phase, share, at)
        return found

    def fits(self, registers: int = 255, shared_bytes: int = 232448) -> bool:
        """Whether a block fits on an SM. 255 registers per thread, 64 K per SM."""
        if self.step.given and self.copied and self.passes > 1:
            return False  # the next step's input would take the place of this one's too early
        most = min(registers, (1 << 16) // self.threads // 8 * 8)
        return self.threads <= 1024 and self.registers() <= most and self.shared_bytes <= shared_bytes
