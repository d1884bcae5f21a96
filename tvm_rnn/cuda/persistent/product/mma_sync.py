"""Products by mma.sync of stationary weights and what other units published, which lanes load as fragments.

In: a `Step`, knobs, an exchange; the kernel's body. Out: `MmaSync`, the geometry, in clusters and in grids: the map of
shared memory, how weights are packed, registers, and how long a product takes, predicted; statements that leave all
gates of a lane's cells in registers. In strict float32 lanes multiply without tensor cores, in the same layout.

K is permuted so that one 16-byte load per lane is the operand of two MMA steps. Operands lie as [K block][batch row]
[64 bytes], so such a load of a warp reads 512 bytes in a row. Weights come from registers, shared memory or L2, block
of K by block of K; operands are asked for `ahead` blocks before they are used, because the compiler keeps the order of
PTX instructions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, gcd, prod
from typing import ClassVar

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.codegen.tile_layout import Layout
from tvm_rnn.cuda.layer.packed_layout import ceil_div
from tvm_rnn.cuda.layer.phases import Operand, Phase
from tvm_rnn.cuda.persistent.geometry import (
    BLOCK_BYTES,
    LANES,
    MMA,
    MOST_COPY_WARPS,
    Body,
    Emitters,
    Geometry,
    InputEmitter,
    LaneExchange,
    LaneInputs,
    Share,
    StagedRows,
    ThreadIds,
    begins,
)
from tvm_rnn.cuda.persistent.layer_input_rows import Copies, Inputs, round_inputs
from tvm_rnn.cuda.persistent.rates import CLOCK_MHZ, SHARED_BYTES_PER_CYCLE, Rates
from tvm_rnn.tir.expr import Buffer, Expr
from tvm_rnn.tir.index import uint32

from . import coded_weights
from .operands_staged import largest, until_written

Fragment = Callable[[int, int], Sequence[Expr]]  # (M tile, MMA step) -> the registers of A

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
# In clusters, more for each warp that has a part of K and no cells, and where one warp of a block has all cells. H200,
# us a step, blocks x warps of units x parts of K: Elman 264 fp16, B 1, 16x1x4 1.10, 16x2x4 0.93, 16x2x2 0.66, 16x2x1
# 0.64, 8x2x4 0.80, 8x2x2 0.59; Elman 210 tf32, B 3, 8x1x4 1.16, 8x1x2 0.99, 8x2x4 0.93, 8x2x2 0.82, 8x2x1 0.67.
IDLE_US, ALONE_US = 0.07, 0.25
# Of a warp's part of K, where a counter is waited for: blocks from which on each takes so much longer. Elman 2683 tf32,
# eight rows, 21 blocks, H200: 4.76 us a step, 3.30 by all else here.
DEEP, DEEP_US = 16, 0.29
COPYING = 14  # the barrier of the warps that copy
MOST_POLLED = 64  # registers of a thread for pieces that it polls for


@dataclass(frozen=True)
class MmaSync(Geometry):
    """ahead: K blocks whose operands are asked for before they are used. copied: 1 where a grid's operands come to
    shared memory by asynchronous copies (`cuda/persistent/layer_input_rows.py`) in place of registers `ahead`.
    inputs_apart: 1 where the warps of a cluster's blocks that copy multiply the inputs."""

    ahead: int = 1
    copied: int = 0
    inputs_apart: int = 0

    wants: ClassVar[str] = "values that are polled for come of products alone, in one pass, for each part of K"

    def emitters(self, body: Body) -> Emitters:
        at = self.memory_map
        exchange = self.exchange.exchanger(body, at["stage"], at["end"])
        if self.copied:
            copies = Copies(body, at["copies"], self.copy_words // self.warps, exchange)
            inputs = self.exchange.inputs(body, exchange, copies, at["inputs"])
            return Emitters(exchange, inputs, copies, CpAsyncProduct(body, self, exchange, inputs, copies))
        pieces = self.exchange.pieces(body)
        inputs = self.exchange.inputs(body, exchange, pieces, at["inputs"])
        if self.input_product is not None:
            return Emitters(exchange, Inputs(body), pieces, ProductBesideInputs(body, self, exchange, inputs))
        if self.precision == "float32":
            return Emitters(exchange, inputs, pieces, Float32Product(body, self, exchange, inputs))
        return Emitters(exchange, inputs, pieces, MmaSyncProduct(body, self, exchange, inputs))

    def input_emitter(self, k: Writer, rows: StagedRows) -> InputEmitter | None:
        return None if self.input_product is None else InputProduct(k, self, self.input_product, rows)

    @property
    def hopper(self) -> bool:
        return not self.exchange.in_memory

    @property
    def possible(self) -> bool:
        """Where values are polled for: all of an operand is asked for at once. Where a part came later, it was
        missing again, and a counter was quicker: LSTM 1024 bf16, B = 64, in two passes 5.2 us polled against 4.5; GRU
        2048, B = 16, 5.0 against 3.9 (H200)."""
        if not self.exchange.polls:
            return True
        plain = self.products_alone and not self.copied and self.passes == 1 and not self.step.given
        at_once = self.polled_pieces * 4 <= MOST_POLLED
        barriers = self.warps_k == 1 or 2 * self.warps_u * self.warps_n < 16  # two for each group of warps that sums
        waits = all(self._waits(share) for _, share in self.weights)
        return bool(self.precision != "float32" and plain and at_once and barriers and waits)

    @property
    def deepest(self) -> int:
        """Blocks of K of a warp's part of an operand, at most."""
        return max((share.kblocks for _, share in self.weights), default=0)

    @property
    def polled_pieces(self) -> int:
        """Of 16 bytes, that a lane polls for at once."""
        return self.deepest * self.tiles

    @property
    def blocks_asked(self) -> int:
        """Blocks of K whose operands are in registers at once."""
        return self.deepest if self.exchange.polls else self.ahead + 1

    def _waits(self, share: Share) -> bool:
        """Whether each part of K has something that a unit writes: a warp with padding alone would wait for nobody, and
        run ahead of the others."""
        written = self.ctas * self.units(share.operand.source.shape[0]) / self.block_k
        if share.operand.diagonal is not None:
            return written == self.depth_blocks(share.operand.source)
        return (self.k_parts - 1) * share.kblocks < written

    @cached_property
    def input_product(self) -> MmaSync | None:
        """Four warps, of which each has the units of as many others as every other one."""
        if not self.inputs_apart:
            return None
        (phase,) = (phase for phase in self.step.phases if any(o.given for o in phase.operands))
        products = replace(phase, operands=tuple(o for o in phase.operands if o.given), nodes=(), published=())
        step = replace(self.step, phases=(products,), reads=((),))
        own = replace(self, step=step, exchange=self.exchange.of_inputs, inputs_apart=0, ahead=3)
        return replace(own, warps_u=MOST_COPY_WARPS, register_words=1 << 20, shared_words=0)

    @property
    def can_multiply_apart(self) -> bool:
        """Whether inputs can be multiplied so, which are operands of one phase. Where lines of the tape are copied too,
        eight warps that compute and four that copy took longer with it than without on an H200; four took less."""
        widths = [phase.width for phase in self.step.phases if any(o.given for o in phase.operands)]
        shape = self.rows == 8 and self.warps == self.warps_u and not self.stored and self.itemsize == 2
        shape = shape and (self.warps <= MOST_COPY_WARPS or not self.lines)
        even = len(widths) == 1 and self.warps_u * self.blocks(widths[0]) % MOST_COPY_WARPS == 0
        return even and shape and self.exchange.of_inputs is not self.exchange

    def fits(self, registers: int = 255, shared_bytes: int = BLOCK_BYTES) -> bool:
        """The next step's input would take the place of this one's too early, if it was multiplied in passes."""
        if self.inputs_apart and not self.can_multiply_apart:
            return False
        if self.step.given and self.copied and self.passes > 1:
            return False
        return super().fits(registers, shared_bytes)

    # --- sizes -------------------------------------------------------------------------------------------------------

    def operand_blocks(self, operand: Operand) -> int:
        """Of heads side by side: blocks of K of all heads that a warp's units are of."""
        whole, own = self.depth_blocks(operand.source), operand.diagonal
        if own is None or operand.given:
            return whole
        units = 8 * self.blocks(operand.width)
        if own.units % units == 0 or units % own.units == 0:
            heads = max(1, units // own.units)
        else:
            heads = (units - 2) // own.units + 2
        before = self.block_k - gcd(own.depth, self.block_k)  # of the first block, elements of another head at most
        blocks = ceil_div(before + heads * own.depth, self.block_k)
        return min(whole, ceil_div(blocks, self.k_parts) * self.k_parts)

    def first_block(self, operand: Operand, cta: Expr, warp_u: Expr) -> Expr:
        """The first block of K that a warp multiplies."""
        own, all_but_own = operand.diagonal, self.depth_blocks(operand.source) - self.operand_blocks(operand)
        if own is None or not all_but_own:
            return 0
        width = operand.width
        unit = cta * self.units(width) + warp_u * (8 * self.blocks(width))
        return tirx.Min(unit // own.units * own.depth // self.block_k, all_but_own)

    def block_of(self, share: Share, kblock: int, ids: ThreadIds) -> Expr:
        return super().block_of(share, kblock, ids) + self.first_block(share.operand, ids.rank, ids.warp_u)

    def block_words(self, phase: Phase) -> int:
        """A tile of which one half has no gates has words of the other alone; codes have those of both."""
        return self.m_tiles(phase) * 4 if self.stored else len(self.halves(phase)) * 4

    @property
    def partial_words(self) -> int:
        """Where blocks poll, no barrier of the block lies between two steps: they take turns with two places."""
        if self.warps_k == 1:
            return 0
        return self.warps * self.most_m_tiles * self.pass_tiles * LANES * 4 * (2 if self.exchange.polls else 1)

    @property
    def copy_words(self) -> int:
        """Copies of operands: each input's, and a place for the others."""
        if not self.copied:
            return 0
        inputs = sum(s.kblocks for _, s in self.weights if s.operand.given)
        others = max((s.kblocks for _, s in self.weights if not s.operand.given), default=0)
        return self.warps * (inputs + others) * self.tiles * LANES * 4

    @property
    def sum_words(self) -> int:
        """Sums of products of inputs, of even and odd steps."""
        if self.input_product is None:
            return 0
        return 2 * self.warps * len(self.halves(self.input_product.step.phases[0])) * LANES * 2

    @cached_property
    def memory_map(self) -> dict[str, int]:
        exchanged = {"operands": self.exchange.operand_words(self), "partial": self.partial_words}
        inputs = {"inputs": self.exchange.input_words(self), "copies": self.copy_words, "sums": self.sum_words}
        own = {"prefetch": self.prefetch_words, "weights": self.weight_words}
        return begins(**exchanged, stage=self.stage_words, **inputs, **own)

    @cached_property
    def chains(self) -> dict[Phase, int]:
        """Independent accumulators per MMA tile: an MMA takes 34 cycles and can start every 6.5, so 8 must be in flight
        in each quarter of a multiprocessor."""
        found = {}
        for phase in self.step.phases:
            under_way = self.m_tiles(phase) * self.pass_tiles * max(1, self.warps // 4)
            alone = all(self.multiplier(operand) is not self for operand in phase.operands)
            one = under_way >= 8 or self.precision == "float32" or alone
            found[phase] = 1 if one else 2 if under_way >= 3 else 4
        return found

    def product_registers(self) -> int:
        total = self.kept_registers + self.exchange.input_registers(self)
        total += coded_weights.registers(self) if self.stored else 0
        if self.precision == "float32":  # sums of 8 rows per half tile, and some operands
            most = max(self.m_tiles(p) for p in self.step.phases)
            total += self.pass_tiles * (most * 16 + 24)
        else:
            asked = self.blocks_asked
            sums = max((self.m_tiles(p) * self.chains[p] for p in self.products), default=-asked)
            total += (sums + asked) * self.pass_tiles * 4
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
        crowded = max(0, self.registers - CROWDED) if self.exchange.in_memory else 0
        return 1 + CROWDED_PART * crowded

    def own_shares(self, phase: Phase) -> list[Share]:
        """Those that the warps that compute multiply."""
        return [share for share in self.shares[phase] if self.multiplier(share.operand) is self]

    def product_us(self, phase: Phase) -> float:
        us = sum((self._operand_us(phase, share) for share in self.own_shares(phase)), 0.0)
        if self.warps_k > 1:
            traffic = 2 * self.warps * self.m_tiles(phase) * self.tiles * 512
            us += PARTIAL_US * (self.warps_k - 1) * self.passes + traffic / SHARED_BYTES_PER_CYCLE / CLOCK_MHZ
        if self.exchange.in_memory and not self.exchange.polls and self.precision != "float32":
            us += DEEP_US * max(0, self.deepest - DEEP)
        return us + (self._few_cells_us if self.hopper and self.ctas > 1 and self.precision != "float32" else 0.0)

    @property
    def _few_cells_us(self) -> float:
        """What it costs a cluster that few of a block's warps have cells."""
        parts = min(self.warps_k, self.pass_tiles)  # that have some
        alone = self.warps_u * self.warps_n * parts == 1
        return IDLE_US * (self.warps_k - parts) * self.passes + (ALONE_US if alone else 0.0)

    def math_cycles(self, phase: Phase, share: Share) -> float:
        """Of instructions that multiply, on one quarter of a multiprocessor, or of those that wait for each other."""
        m_tiles, steps = self.m_tiles(phase), share.kblocks * 2
        issue = ceil(self.warps / 4) * steps * m_tiles * self.tiles * MMA_CYCLES
        chain = steps / self.chains[phase] * self.rates.latency
        if self.precision == "float32":  # 32 multiply-adds per cycle in each quarter
            issue = ceil(self.warps / 4) * share.kblocks * m_tiles * 2 * 4 * 8 * self.tiles * FFMA_CYCLES
            chain = 0.0
        if self.stored:
            issue += ceil(self.warps / 4) * self.passes * steps * m_tiles * DECODE_CYCLES[self.precision]
        return max(issue, chain)

    def _operand_us(self, phase: Phase, share: Share) -> float:
        rates = self.rates
        operand = self.rows * share.kblocks * self.k_parts * 64 * self.warps_u
        piece = self.block_words(phase) * 4 * 32 * self.warps_u * self.warps_k * self.warps_n
        math = self.math_cycles(phase, share) / CLOCK_MHZ
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
        """Order: [cta][warp_u][warp_k][K block][M tile][MMA step][lane][a0 a1 a2 a3], each a of one word. a0 and a2 are
        the first half of a tile's rows, a1 and a3 the second; a2 and a3 lie half an MMA step further along K. Of a last
        tile with one half: [lane][MMA step][a0 a2]. In 8 bits: [M tile][lane][MMA step][a0 a1 a2 a3], each a of two
        codes, so that a lane's 16 bytes are both steps'.
        """
        if (other := self.multiplier(share.operand)) is not self:
            return other.weight_index(phase, share, at)
        at, per_word = tirx.Cast("int32", at) if prod(share.operand.weight.shape) < 1 << 28 else at, 4 // self.itemsize
        warps = {"warp_u": self.warps_u, "warp_k": self.warps_k, "kblock": share.kblocks}
        halves = len(self.halves(phase))
        lanes = {"tile": self.m_tiles(phase), "lane": LANES, "mma": 2} if self.stored else {"n": halves, "lane": LANES}
        place = Layout(cta=self.ctas, **warps, **lanes, word=4, element=per_word).coordinates(at)
        word, further = place["word"] % 2, place["word"] // 2
        if not self.stored:
            alone = place["n"] >= halves // 2 * 2
            place |= {"tile": place["n"] // 2, "mma": tirx.Select(alone, further, place["n"] % 2)}
            word, further = tirx.Select(alone, 0, word), tirx.Select(alone, word, further)
        half, g, q = place["tile"] * 2 + word, place["lane"] // 4, place["lane"] % 4
        first = self.first_block(share.operand, place["cta"], place["warp_u"])
        k = (first + place["warp_k"] * share.kblocks + place["kblock"]) * self.block_k + q * (4 * per_word)
        k = k + place["mma"] * (2 * per_word) + further * per_word + place["element"]
        block, gate = half // phase.gates, half % phase.gates
        unit = self.first_unit(phase, place["cta"], place["warp_u"], block) + g
        return self.weight_at(phase, share, gate, unit, k, valid=block < self.blocks(phase.width))


class LaneProduct(ABC):
    """The products of a block's warps, of which `ids` is a thread. Construct once, at the kernel's start: it loads the
    resident weights. names: of their pointers."""

    def __init__(self, k: Writer, geometry: MmaSync, ids: ThreadIds, arena: Buffer, names: Mapping[Share, str]) -> None:
        self.k, self.geometry, self.ids, self.arena, self.names = k, geometry, ids, arena, names
        self.partial_at, self.par = geometry.memory_map["partial"], 0
        self.registers: dict[Share, Buffer] = {}
        self.shared: dict[Share, int] = {}
        at = geometry.memory_map["weights"]
        for phase, share in ((p, share) for p in geometry.step.phases for share in geometry.own_shares(p)):
            words = geometry.block_words(phase)
            if share.registers:
                self.registers[share] = k.local(share.registers * words, "uint32")
                for piece in range(share.registers * words // 4):
                    self._load_global(phase, share, self.registers[share], piece * 4, piece)
            if share.shared:
                self.shared[share] = at
                self._fill_shared(phase, share, at)
                at += share.shared * words * geometry.warps_u * geometry.warps_k * LANES
        # Two sets: while one is multiplied, the weights of the next block of K are in flight.
        self.fragment = [
            k.local(max((geometry.block_words(p) for p in geometry.step.phases), default=8), "uint32") for _ in "ab"
        ]
        self.coded = coded_weights.Coded(k, geometry, self.ids, geometry.scale_names) if geometry.stored else None

    # --- weights -----------------------------------------------------------------------------------------------------

    def _piece_address(self, phase: Phase, share: Share, piece: Expr) -> Expr:
        """A 16-byte piece of this lane's weights in global memory; pieces are [K block][M tile][MMA step], of a tile
        with one half, and in 8 bits, [K block][M tile]."""
        geometry, ids = self.geometry, self.ids
        warp = (ids.rank * geometry.warps_u + ids.warp_u) * geometry.warps_k + ids.warp_k
        pieces = share.kblocks * self._pieces(phase)
        word = ((tirx.Cast("int64", warp) * pieces + piece) * LANES + ids.lane) * 4
        return self.k[self.names[share]].ptr_to([word * (1 if geometry.stored else 4 // geometry.itemsize)])

    def _pieces(self, phase: Phase) -> int:
        """Of one K block."""
        return self.geometry.block_words(phase) // 4

    def _load_global(self, phase: Phase, share: Share, into: Buffer, at: int, piece: Expr) -> None:
        regs = [into[at + z] for z in range(4)]
        self.k.do(I.ptx["ld.global.nc.v4.b32"](*regs, self._piece_address(phase, share, piece)))

    def _shared_word(self, phase: Phase, share: Share, at: int, piece: Expr) -> Expr:
        geometry, ids = self.geometry, self.ids
        pieces = share.shared * self._pieces(phase)
        return at + (((ids.warp_u * geometry.warps_k + ids.warp_k) * pieces + piece) * LANES + ids.lane) * 4

    def _fill_shared(self, phase: Phase, share: Share, at: int) -> None:
        k, each = self.k, self._pieces(phase)
        passing = k.local(4, "uint32")
        with k.when(self.ids.warp_n == 0), k.loop(share.shared * each) as piece:
            self._load_global(phase, share, passing, 0, piece + share.registers * each)
            target = self.arena.ptr_to([self._shared_word(phase, share, at, piece)])
            k.do(I.ptx["st.shared.v4.b32"](target, *[passing[z] for z in range(4)]))

    def _ask_weights(self, phase: Phase, share: Share, kblock: int) -> None:
        """Load the weights of a K block that are not resident in registers."""
        if kblock < share.registers or kblock >= share.kblocks:
            return
        each, source = self._pieces(phase), self.fragment[kblock % 2]
        for piece in range(each):
            if kblock >= share.registers + share.shared:
                self._load_global(phase, share, source, piece * 4, kblock * each + piece)
                continue
            own = (kblock - share.registers) * each + piece
            word = self._shared_word(phase, share, self.shared[share], own)
            regs = [source[piece * 4 + z] for z in range(4)]
            self.k.do(I.ptx["ld.shared.v4.b32"](*regs, self.arena.ptr_to([word])))

    def _weights(self, phase: Phase, share: Share, kblock: int) -> Fragment:
        """Weights of one K block: (M tile, MMA step) -> four words, in registers that the next call may take."""
        resident = kblock < share.registers
        source = self.registers[share] if resident else self.fragment[kblock % 2]
        base = kblock * self.geometry.block_words(phase) if resident else 0
        coded = self.coded
        if coded is not None:
            return lambda m, s: coded.fragment(m, [source[base + m * 4 + s * 2 + z] for z in range(2)], resident)
        halves = len(self.geometry.halves(phase))

        def fragment(m: int, s: int) -> Sequence[Expr]:
            if 2 * m + 1 < halves:
                return [source[base + (m * 2 + s) * 4 + z] for z in range(4)]
            first = base + m * 8 + s * 2
            return [source[first], uint32(0), source[first + 1], uint32(0)]

        return fragment

    # --- the product -------------------------------------------------------------------------------------------------

    @abstractmethod
    def ready(self, share: Share) -> None:
        """Wait for an operand."""

    @abstractmethod
    def load(self, share: Share, kblock: int, tile: int, pieces: Buffer, at: int, within: int | None = None) -> None:
        """Ask for this lane's piece of one K block and batch tile, in the tile's row g, or in the row given."""

    @abstractmethod
    def sync(self) -> None:
        """A barrier of all these warps."""

    def waiting(self) -> AbstractContextManager[None]:
        """Statements that wait."""
        return nullcontext()

    def emit(self, phase: Phase) -> list[Expr]:
        """Operands are waited for and multiplied one after the other."""
        own: list[list[Expr]] = [self._pass(phase, number) for number in range(self.geometry.passes)]
        # From [pass][M tile][own tile of the pass][4] to [M tile][own tile][4].
        each = self.geometry.pass_own * 4
        m_tiles = self.geometry.m_tiles(phase)
        found = [(m, z, part[m * each + z]) for m in range(m_tiles) for part in own for z in range(each)]
        if self.coded is None or len(self.geometry.shares[phase]) > 1:
            return [value for _, _, value in found]
        return [self.coded.scaled(self.geometry.shares[phase][0], m, z % 4, value) for m, z, value in found]

    def end(self) -> None:
        """Nothing is in flight."""
        return None

    def _pass(self, phase: Phase, number: int) -> list[Expr]:
        """The product with the batch tiles of one pass."""
        geometry, k = self.geometry, self.k
        tiles, m_tiles, chains = geometry.pass_tiles, geometry.m_tiles(phase), geometry.chains[phase]
        acc = k.local(m_tiles * tiles * 4 * chains)
        for z in range(m_tiles * tiles * 4 * chains):
            k.store(acc, tirx.const(0.0, "float32"), z)
        self.begin_sums(phase, acc)
        if (
            self.coded is not None and len(geometry.shares[phase]) > 1
        ):  # each operand's weights have scales of their own
            total = k.local(m_tiles * tiles * 4)
            for place, share in enumerate(geometry.shares[phase]):
                self._begin(share, number)
                self.operand(phase, share, number, acc)
                self.coded.fold(phase, share, acc, chains, total, place == 0)
            return self._sum(phase, m_tiles, 1, total, number)
        for share in geometry.own_shares(phase):
            self._begin(share, number)
            self.operand(phase, share, number, acc)
        return self._sum(phase, m_tiles, chains, acc, number)

    def begin_sums(self, phase: Phase, acc: Buffer) -> None:
        """What sums begin with, where that is not 0: of each MMA tile and chain four."""
        return None

    def _begin(self, share: Share, number: int) -> None:
        """Wait for an operand, in the first pass."""
        if number == 0:
            self.ready(share)
        if self.coded is not None:
            self.coded.begin()

    def operand(self, phase: Phase, share: Share, number: int, acc: Buffer) -> None:
        """Add the product of one operand with the batch tiles of one pass."""
        geometry, k, tiles = self.geometry, self.k, self.geometry.pass_tiles
        first, polls = number * tiles, geometry.exchange.polls
        pipeline = share.kblocks if polls else min(geometry.ahead + 1, share.kblocks)
        pieces = k.local(pipeline * tiles * 4, "uint32")

        def ask(kblock: int, tile: int) -> None:
            self.load(share, kblock, first + tile, pieces, (kblock % pipeline * tiles + tile) * 4)

        whole = pipeline if polls else pipeline - 1
        early = [(kblock, tile) for kblock in range(whole) for tile in range(tiles)]
        for which in early:
            ask(*which)
        if polls:
            every = [[pieces[(kblock * tiles + tile) * 4 + z] for z in range(4)] for kblock, tile in early]
            with self.waiting():
                until_written(k, len(early), lambda n: largest(every[n]), lambda n: ask(*early[n]))
            k.do(I.cuda.warp_sync())  # MMA wants the whole warp at one place
        self._ask_weights(phase, share, 0)
        for kblock in range(share.kblocks):
            self._ask_weights(phase, share, kblock + 1)
            for tile in range(tiles) if whole <= kblock + pipeline - 1 < share.kblocks else ():
                ask(kblock + pipeline - 1, tile)
            if share.operand.given and geometry.exchange.in_memory:
                first_word = kblock % pipeline * tiles * 4
                round_inputs(self.k, geometry, [pieces[first_word + z] for z in range(tiles * 4)])
            a = self._weights(phase, share, kblock)
            self._multiply(phase, kblock, a, pieces, kblock % pipeline * tiles, acc)

    # --- on tensor cores -----------------------------------------------------------------------------------------

    def _multiply(self, phase: Phase, kblock: int, a: Fragment, pieces: Buffer, first: int, acc: Buffer) -> None:
        geometry, m_tiles, chains = self.geometry, self.geometry.m_tiles(phase), self.geometry.chains[phase]
        for s in range(2):
            weights = [a(m, s) for m in range(m_tiles)]
            for tile in range(geometry.pass_tiles):
                b = (first + tile) * 4 + 2 * s
                for m in range(m_tiles):
                    at = ((m * geometry.pass_tiles + tile) * chains + (2 * kblock + s) % chains) * 4
                    d = [acc[at + z] for z in range(4)]
                    self.k.do(I.ptx[MMA[geometry.precision]](*d, *weights[m], pieces[b], pieces[b + 1], *d))

    def _turn(self, phase: Phase) -> int:
        """Without a counter no barrier of the block lies between two products: one warp may be at the next while
        another is at this one. They take turns with two places for sums, and with two barriers."""
        return self.geometry.turn(phase, self.par) if self.geometry.exchange.polls else 0

    def _sum(self, phase: Phase, m_tiles: int, chains: int, acc: Buffer, number: int) -> list[Expr]:
        """Chains, then the K parts of the warps, which meet in shared memory."""
        geometry, k, ids = self.geometry, self.k, self.ids
        count = m_tiles * geometry.pass_tiles
        for tile in range(count if chains > 1 else 0):
            for z in range(4):
                first = tile * chains * 4 + z
                total = acc[first]
                for chain in range(1, chains):
                    total = total + acc[first + chain * 4]
                k.store(acc, total, first)
        if geometry.warps_k == 1:
            return [acc[tile * 4 * chains + z] for tile in range(count) for z in range(4)]
        group = ids.warp_u * geometry.warps_n + ids.warp_n

        def partial(warp_k: Expr, m: int, tile: Expr) -> Expr:
            row = ((group * geometry.warps_k + warp_k) * m_tiles + m) * geometry.pass_tiles + tile
            place = self._turn(phase) * geometry.partial_words // 2
            return self.arena.ptr_to([self.partial_at + place + (row * LANES + ids.lane) * 4])

        if number or not geometry.separated(phase):
            self.sync()
        own, part = k.local(m_tiles * geometry.pass_own * 4), k.local(4 * geometry.warps_k)
        number_of = tirx.Cast("uint32", group + 1 + self._turn(phase) * geometry.warps_u * geometry.warps_n)
        threads = tirx.const(LANES * geometry.warps_k, "uint32")

        def store_partial(warp_k: int) -> None:
            for tile in (t for t in range(geometry.pass_tiles) if t % geometry.warps_k != warp_k):
                for m in range(m_tiles):
                    at = (m * geometry.pass_tiles + tile) * 4 * chains
                    k.do(I.ptx["st.shared.v4.f32"](partial(warp_k, m, tile), *[acc[at + z] for z in range(4)]))

        def take(warp_k: int) -> None:
            for j, tile in enumerate(range(warp_k, geometry.pass_tiles, geometry.warps_k)):
                for m in range(m_tiles):
                    for other in (w for w in range(geometry.warps_k) if w != warp_k):
                        words = [part[other * 4 + z] for z in range(4)]
                        k.do(I.ptx["ld.shared.v4.f32"](*words, partial(other, m, tile)))
                    for z in range(4):
                        total = acc[(m * geometry.pass_tiles + tile) * 4 * chains + z]
                        for other in (w for w in range(geometry.warps_k) if w != warp_k):
                            total = total + part[other * 4 + z]
                        k.store(own, total, (m * geometry.pass_own + j) * 4 + z)

        # One branch per warp of the K parts, so that its own tiles are registers known now: only the others' travel.
        everyone = geometry.pass_tiles >= geometry.warps_k
        for warp_k in range(geometry.warps_k):
            with k.when(ids.warp_k == warp_k):
                store_partial(warp_k)
                if not everyone:  # a warp that has stored its sums and adds none up need not wait
                    meet = I.ptx.bar.arrive if warp_k >= geometry.pass_tiles else I.ptx.bar.sync
                    k.do(meet(number_of, threads))
                    take(warp_k)
        if everyone:
            k.do(I.ptx.bar.sync(number_of, threads))
            for warp_k in range(geometry.warps_k):
                with k.when(ids.warp_k == warp_k):
                    take(warp_k)
        return [own[z] for z in range(m_tiles * geometry.pass_own * 4)]


class MmaSyncProduct(LaneProduct):
    """Those of the warps that compute."""

    def __init__(self, body: Body, geometry: MmaSync, exchange: LaneExchange, inputs: LaneInputs) -> None:
        super().__init__(body.k, geometry, body.ids, body.arena, geometry.weight_names)
        self.body, self.exchange, self.inputs = body, exchange, inputs

    def ready(self, share: Share) -> None:
        self.body.ready(share)

    def sync(self) -> None:
        self.exchange.sync()

    def waiting(self) -> AbstractContextManager[None]:
        return self.body.clock.waiting()

    def load(self, share: Share, kblock: int, tile: int, pieces: Buffer, at: int, within: int | None = None) -> None:
        if share.operand.given:
            self.inputs.load(share, kblock, tile, pieces, at, within)
            return
        ids, geometry, source = self.ids, self.geometry, share.operand.source
        block = geometry.block_of(share, kblock, ids)
        row = (ids.warp_n * geometry.tiles + tile) * 8 + (ids.g if within is None else within)
        node, slot = self.body.value(source), self.body.copy_of(source)
        self.exchange.load(node, slot, block, row, [pieces[at + z] for z in range(4)])


class ProductBesideInputs(MmaSyncProduct):
    """The same where the warps that copy multiply the inputs."""

    def begin_sums(self, phase: Phase, acc: Buffer) -> None:
        """With those of inputs' products, which have been there since a barrier of the step before."""
        geometry, k = self.geometry, self.k
        if len(geometry.own_shares(phase)) == len(geometry.shares[phase]):
            return
        count = len(geometry.halves(phase))
        for half in range(count):
            at = sum_word(geometry, self.par, self.ids.warp * count + half, self.ids.lane)
            own = [acc[half // 2 * geometry.chains[phase] * 4 + half % 2 * 2 + e] for e in range(2)]
            k.do(I.ptx["ld.shared.v2.f32"](*own, self.arena.ptr_to([at])))


class InputProduct(LaneProduct):
    """Products of inputs, by the warps that copy (`cuda/persistent/input_row_copies.py`). whole: the geometry of the
    kernel, own: of these warps."""

    def __init__(self, k: Writer, whole: MmaSync, own: MmaSync, rows: StagedRows) -> None:
        super().__init__(k, own, rows.ids, rows.arena, whole.weight_names)
        self.whole, self.rows = whole, rows
        (self.phase,) = own.step.phases

    def begin(self) -> None:
        """The sums of the first step, of whose rows this thread's pieces are there."""
        self.sync()
        self.multiply(tirx.const(0, "int32"))

    def multiply(self, t: Expr) -> None:
        """The sums of step t, whose rows are there."""
        k, count = self.k, len(self.geometry.halves(self.phase))
        self.stage = k.keep(self.rows.stage(t))
        sums, par = self.emit(self.phase), k.keep(tirx.floormod(t, 2))
        for half in range(count):
            at = sum_word(self.whole, par, self.ids.warp * count + half, self.ids.lane)
            own = [sums[2 * half + e] for e in range(2)]
            k.do(I.ptx["st.shared.v2.f32"](self.arena.ptr_to([at]), *own))

    def sync(self) -> None:
        self.k.do(I.ptx.bar.sync(uint32(COPYING), uint32(self.geometry.threads)))

    def ready(self, share: Share) -> None:
        """It is: since a barrier of the step before."""

    def load(self, share: Share, kblock: int, tile: int, pieces: Buffer, at: int, within: int | None = None) -> None:
        word = self.rows.word(share.operand.source, kblock, self.ids.g) + self.stage + self.ids.q * 4
        self.k.do(I.ptx["ld.shared.v4.b32"](*[pieces[at + z] for z in range(4)], self.arena.ptr_to([word])))


def sum_word(geometry: MmaSync, par: Expr | int, half: Expr, lane: Expr) -> Expr:
    """Where a lane's two sums of inputs' products lie. half: of the halves of all warps' MMA tiles, in order."""
    return geometry.memory_map["sums"] + par * (geometry.sum_words // 2) + (half * LANES + lane) * 2


class CpAsyncProduct(MmaSyncProduct):
    """The same with operands that this lane has copied to shared memory, or copies now."""

    def __init__(
        self, body: Body, geometry: MmaSync, exchange: LaneExchange, inputs: LaneInputs, copies: Copies
    ) -> None:
        super().__init__(body, geometry, exchange, inputs)
        self.copies = copies

    def operand(self, phase: Phase, share: Share, number: int, acc: Buffer) -> None:
        """The next block of K is read while one is multiplied."""
        tiles = self.geometry.pass_tiles
        pieces = self.k.local(2 * tiles * 4, "uint32")
        if number == 0:
            self.copies.ask(phase, share)

        def take(kblock: int) -> None:
            if number == 0:
                self.copies.wait(share, kblock)
            for tile in range(tiles):
                self.copies.take(share, kblock, number * tiles + tile, pieces, (kblock % 2 * tiles + tile) * 4)

        self._ask_weights(phase, share, 0)
        take(0)
        for kblock in range(share.kblocks):
            self._ask_weights(phase, share, kblock + 1)
            if kblock + 1 < share.kblocks:
                take(kblock + 1)
            a = self._weights(phase, share, kblock)
            self._multiply(phase, kblock, a, pieces, kblock % 2 * tiles, acc)


class Float32Product(MmaSyncProduct):
    """The same in float32 arithmetic, without tensor cores."""

    def _pass(self, phase: Phase, number: int) -> list[Expr]:
        """Lane (g, q) multiplies its weights (unit g, every fourth piece of K) with all
        8 rows of a tile, and the four lanes of a unit add up what they have."""
        geometry, k = self.geometry, self.k
        tiles, halves, first = geometry.pass_tiles, 2 * geometry.m_tiles(phase), number * geometry.pass_tiles
        sums = k.local(halves * tiles * 8)
        for z in range(halves * tiles * 8):
            k.store(sums, tirx.const(0.0, "float32"), z)
        for share in geometry.shares[phase]:
            self._begin(share, number)
            pieces = [k.local(tiles * 8 * 4, "uint32") for _ in range(2)]
            self._ask_weights(phase, share, 0)
            for kblock in range(share.kblocks + 1):
                if kblock < share.kblocks:
                    for tile in range(tiles):
                        for row in range(8):
                            self.load(share, kblock, first + tile, pieces[kblock % 2], (tile * 8 + row) * 4, row)
                if kblock:
                    self._ask_weights(phase, share, kblock)
                    a, count = self._weights(phase, share, kblock - 1), len(geometry.halves(phase))
                    self._multiply_lanes(a, count, pieces[1 - kblock % 2], sums)
        return self._sum(phase, halves // 2, 1, self._gather(halves, tiles, sums), number)

    def _multiply_lanes(self, a: Fragment, halves: int, pieces: Buffer, sums: Buffer) -> None:
        def real(word: Expr) -> Expr:
            return I.reinterpret("float32", word)

        for z in range(4):  # k = 4q + z
            for tile in range(self.geometry.pass_tiles):
                for row in range(8):
                    x = real(pieces[(tile * 8 + row) * 4 + z])
                    for half in range(halves):
                        weight = real(a(half // 2, z // 2)[half % 2 + 2 * (z % 2)])
                        at = (half * self.geometry.pass_tiles + tile) * 8 + row
                        self.k.store(sums, sums[at] + weight * x, at)

    def _gather(self, halves: int, tiles: int, sums: Buffer) -> Buffer:
        """Sums of the lanes of a unit, two rows to each of them, in the order of MMA accumulators."""
        k, q = self.k, self.ids.q
        acc, half_sums = k.local(halves // 2 * tiles * 4), k.local(4)
        every = tirx.const(0xFFFFFFFF, "uint32")
        for half in range(halves):
            for tile in range(tiles):
                at = (half * tiles + tile) * 8
                for pair in range(4):  # rows pair and pair + 4 of this tile; lanes q and q ^ 2 share
                    own = tirx.Select(q >= 2, sums[at + 4 + pair], sums[at + pair])
                    other = tirx.Select(q >= 2, sums[at + pair], sums[at + 4 + pair])
                    k.store(half_sums, own + I.tvm_warp_shuffle_xor(every, other, 2, 32, 32), pair)
                for e in range(2):
                    odd = tirx.floormod(q, 2) == 1
                    own = tirx.Select(odd, half_sums[2 + e], half_sums[e])
                    other = tirx.Select(odd, half_sums[e], half_sums[2 + e])
                    total = own + I.tvm_warp_shuffle_xor(every, other, 1, 32, 32)
                    k.store(acc, total, (half // 2 * tiles + tile) * 4 + half % 2 * 2 + e)
        return acc
