"""Products in strict float32 (FFMA), of operands and weights that come through pipelines in shared memory.

In: a `Step` and knobs; the kernel's body. Out: `Ffma`, the geometry: in which order a step's operands are multiplied,
sizes, places, how weights are packed, how long a product takes; statements that leave all gates of a lane's cells in
registers.

Every warp multiplies all gates of the block's units (columns) with all batch rows, in its own part of K: the layer's
input while other blocks still work on the step before, then the values that they publish. It has a pipeline of its own,
which its own asynchronous copies fill: no warp waits for another before sums meet, and a `__syncwarp` is enough between
the copies of its lanes and their loads. A stage is a block of K: [row][swizzled piece], as operands lie in the
exchange, then [k][column] of its weights. Lane (y, x) has rows y, y + 8, ... and four neighbours of every 16 columns,
from 4 x on: rows of 64 bytes are read without conflicts of banks, and weights by all y at once. With 64 rows and 64
columns that is 128 sums per lane, and 24 loads of 16 bytes for 512 multiply-adds. The sums of all warps meet in shared
memory, where lanes find the gates of their cells; they are added up in the order of K's parts.

Operands are polled for: a lane looks at the pieces that it has copied, and copies those again that were not written
yet (`cuda/persistent/exchange_by_polling.py`). Inputs of the first layer are the user's, and are not looked at.

Rewrite: for k: tile += rows[:, k] x columns[k, :]  -->  K over warps; each lane a tile of registers
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from typing import ClassVar

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.poison import POISON
from tvm_rnn.cuda.codegen.tile_layout import Layout
from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.exchange import joined
from tvm_rnn.cuda.persistent.exchange_by_polling import POLLING
from tvm_rnn.cuda.persistent.geometry import (
    BLOCK_WORDS,
    LANES,
    Body,
    Emitters,
    Exchange,
    Geometry,
    Share,
    begins,
)
from tvm_rnn.cuda.persistent.layer_input_rows import InputPieces, Inputs, input_stride
from tvm_rnn.cuda.persistent.rates import CLOCK_MHZ, SHARED_BYTES_PER_CYCLE, Rates
from tvm_rnn.tir.expr import Buffer, Expr
from tvm_rnn.tir.index import uint32

from .operands_staged import Staged, copy_to_shared, largest

PIECES, DEPTH = 4, 4  # of 16 bytes, of a row of a stage; k in each
COPY = "cp.async.cg.shared.global"
SWEEP = LANES * 16  # bytes that a warp copies at a time
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
class Ffma(Geometry):
    """stages: of every warp's own pipeline, out of which it multiplies. warps_u and warps_k say how warps share cells;
    each has a part of K."""

    exchange: Exchange = field(default=POLLING, init=False)
    stages: int = 2

    streams: ClassVar[bool] = True
    zeroes_padding: ClassVar[bool] = False  # copies do not reach what nobody writes
    registers_apart: ClassVar[bool] = True
    wants: ClassVar[str] = "FFMA is for float32, and for products alone whose sums lanes have room for"
    rates: ClassVar[Rates] = Rates(2.1, 0.0, 0.0, 0.0, 0.15, 0.03)

    def emitters(self, body: Body) -> Emitters:
        exchange, inputs = Staged(body, self.memory_map["stage"]), FfmaInputs(body)
        product = FfmaProduct(body, self, exchange)
        inputs.pipeline = product.pipeline
        return Emitters(exchange, inputs, InputPieces(body), product)

    @property
    def possible(self) -> bool:
        plain = not self.stored and self.passes == self.warps_n == 1 and self.register_words == 0
        if not (self.precision == "float32" and plain and self.products_alone):
            return False
        if any(self.high * self.columns(p) // ACROSS > MOST_SUMS for p in self.step.phases):
            return False
        return bool(2 <= self.stages <= 1 + min(share.kblocks for _, share in self.order))

    @property
    def follows(self) -> bool:
        return self.possible

    @cached_property
    def order(self) -> list[tuple[Phase, Share]]:
        """As they are multiplied: in a phase, inputs first, which wait for nobody of the same layer."""
        return [(p, s) for p, parts in self.shares.items() for s in sorted(parts, key=lambda s: not s.operand.given)]

    # --- sizes -------------------------------------------------------------------------------------------------------

    @property
    def k_parts(self) -> int:
        return self.warps

    @property
    def part_lanes(self) -> int:
        return LANES

    @property
    def staged_tiles(self) -> int:
        return self.phase_tiles

    def columns(self, phase: Phase) -> int:
        """Gates of the block's units, padded: column = unit * gates + gate."""
        return ceil(self.units(phase.width) * phase.gates / GROUP) * GROUP

    @property
    def high(self) -> int:
        """Batch rows of a lane."""
        return self.rows // DOWN

    def weight_bytes(self, phase: Phase) -> int:
        """Of a block of K of one part."""
        return self.block_k * self.columns(phase) * 4

    def block_words(self, phase: Phase) -> int:
        return self.weight_bytes(phase) // (4 * LANES)

    @cached_property
    def stage_bytes(self) -> int:
        """A block of K: the operand, and weights that are not resident."""
        return self.rows * ROW_BYTES + max((self.weight_bytes(p) for p, s in self.order if s.streamed), default=0)

    @property
    def pipeline_words(self) -> int:
        """Of all warps."""
        return self.warps * self.stages * self.stage_bytes // 4

    def stride(self, phase: Phase) -> int:
        """Words between rows of sums: an odd number of 16 bytes, so that eight rows meet no bank twice."""
        return self.columns(phase) + 4

    @property
    def part_words(self) -> int:
        """Of the sums of one part."""
        return self.rows * max(map(self.stride, self.products), default=0)

    @property
    def turns(self) -> int:
        """In which parts write their sums: as few as there is room for."""
        rest = 4 * (self.pipeline_words + self.weight_words + self.stage_words + self.prefetch_words) + 256
        sums = 4 * self.part_words * self.warps
        able_to = (n for n in (1, 2, 4) if self.warps % n == 0 and rest + sums // n <= LIMIT)
        return next(able_to, 8)

    @property
    def partial_words(self) -> int:
        """Of all parts of a turn."""
        return self.part_words * self.warps // self.turns

    @cached_property
    def memory_map(self) -> dict[str, int]:
        sizes = {"pipeline": self.pipeline_words, "weights": self.weight_words, "partial": self.partial_words}
        return begins(**sizes, stage=self.stage_words, prefetch=self.prefetch_words)

    def product_registers(self) -> int:
        """Sums, four k of a lane's rows, two k of its columns."""
        slots = [self.columns(p) for p in self.products]
        return max(self.high * n // ACROSS + 4 * self.high + 2 * n // ACROSS for n in slots)

    def product_us(self, phase: Phase) -> float:
        """Of all warps, two on each quarter; the exchange hides behind the product with the layer's input."""
        slots = self.columns(phase) // ACROSS
        # Of one k: sums of a lane, and a quarter of the loads of four k.
        sums = ceil(self.warps / 4) * self.high * slots * FMA_CYCLES
        loads = self.warps * (self.high + slots) / 4 * FMA_LOAD_CYCLES
        total = given = 0.0
        for share in self.shares[phase]:
            math = share.kblocks * self.block_k * max(sums, loads) / CLOCK_MHZ
            brought = self.rows * ROW_BYTES * share.kblocks + share.streamed * self.weight_bytes(phase)
            us = max(math, brought * self.warps / FMA_L2_BYTES_PER_US)
            total, given = total + us, given + us * share.operand.given
        met = 2 * self.warps * self.part_words * 4 / SHARED_BYTES_PER_CYCLE / CLOCK_MHZ
        return total - min(given, self.rates.exchange) + met + FMA_TURN_US * self.turns

    def weight_index(self, phase: Phase, share: Share, at: Expr) -> tuple[tuple[Expr, ...], Expr]:
        """Order: [cta][part][K block][k][column]."""
        order = {"part": self.k_parts, "kblock": share.kblocks, "k": self.block_k, "column": self.columns(phase)}
        place = Layout(cta=self.ctas, **order).coordinates(tirx.Cast("int32", at))
        k = (place["part"] * share.kblocks + place["kblock"]) * self.block_k + place["k"]
        column = tirx.bitwise_xor(place["column"], TURNED)
        local, gate = column // phase.gates, column % phase.gates
        unit = place["cta"] * self.units(phase.width) + local
        return self.weight_at(phase, share, gate, unit, k, valid=local < self.units(phase.width))


class FfmaInputs(Inputs):
    """The layer's inputs, which products copy themselves."""

    pipeline: FfmaPipeline

    def prepare(self) -> None:
        self.pipeline.start()

    def stash(self, t: Expr, par: int) -> None:
        """Nothing: copies run ahead by themselves."""


class FfmaPipeline:
    """The pipeline of this thread's warp. base: the arena's address."""

    def __init__(self, body: Body, geometry: Ffma, base: Expr, exchange: Staged) -> None:
        self.body, self.k, self.geometry, self.ids = body, body.k, geometry, body.ids
        self.names, self.exchange, self.order = geometry.weight_names, exchange, geometry.order
        self.ahead, self.bytes = geometry.stages - 1, geometry.stage_bytes
        own = self.ids.warp * (geometry.stages * self.bytes)
        self.first = self.start_first = self.k.keep(base + tirx.Cast("uint32", own))
        self.slot = self.k.local(1, "uint32")  # bytes from the first stage to the one that is multiplied
        self.k.store(self.slot, uint32(0), 0)

    def start(self) -> None:
        """The copies of the first blocks of the first step."""
        for n in range(self.ahead):
            stage = self.k.keep(self.first + uint32(n * self.bytes))
            self._bring(0, tirx.const(n, "int32"), tirx.const(0, "int32"), stage)
            self.k.do(I.ptx["cp.async.commit_group"]())

    def refresh(self) -> None:
        """At the start of a product: addresses are not to be kept in registers from step to step."""
        self.first = self.k.fresh(self.start_first)

    def next(self, number: int, c: Expr) -> Expr:
        """The stage of the c-th block of the number-th operand, as soon as it is there; a later one's copies begin."""
        k, (_, share) = self.k, self.order[number]
        stage = k.keep(self.first + self.slot[0])
        k.do(I.ptx["cp.async.wait_group"](self.ahead - 1))
        if share.operand.given:
            with k.when(tirx.NE(k["follows"], tirx.const(0, "int32"))):
                self._poll(number, c, stage)
        else:
            with self.body.clock.waiting():
                self._poll(number, c, stage)
        k.do(I.cuda.warp_sync())  # all lanes' pieces are there, and nobody reads the stage before this one
        last = uint32(self.ahead * self.bytes)
        free = k.keep(self.first + tirx.Select(self.slot[0] == uint32(0), last, self.slot[0] - uint32(self.bytes)))
        self._ahead(number, c, free)
        k.do(I.ptx["cp.async.commit_group"]())
        k.store(self.slot, tirx.Select(self.slot[0] == last, uint32(0), self.slot[0] + uint32(self.bytes)), 0)
        return stage

    # --- copies ------------------------------------------------------------------------------------------------------

    def _ahead(self, number: int, c: Expr, stage: Expr) -> None:
        """Begin to copy the block that is `ahead` blocks later: of this operand, of the next one, of the next step."""
        k, kblocks, t = self.k, self.order[number][1].kblocks, self.body.t
        following = (number + 1) % len(self.order)
        wraps = following == 0
        later = k.keep(c + self.ahead)
        with I.If(later < kblocks):
            with I.Then():
                self._bring(number, later, t, stage)
            with I.Else(), k.when(t + 1 < k["steps"] if wraps else tirx.const(True, "bool")):
                self._bring(following, later - kblocks, t + 1 if wraps else t, stage)

    def _bring(self, number: int, kblock: Expr, t: Expr, stage: Expr) -> None:
        phase, share = self.order[number]
        self._operand(number, kblock, t, stage, None)
        if not share.streamed:
            return
        k, ids, size = self.k, self.ids, self.geometry.weight_bytes(phase)
        with k.when(kblock >= share.shared):
            block = (ids.rank * self.geometry.k_parts + ids.warp) * share.kblocks + kblock
            first = k.keep(tirx.Cast("int64", block) * (size // 4) + ids.lane * 4)
            target = k.keep(stage + tirx.Cast("uint32", ids.lane * 16 + self.geometry.rows * ROW_BYTES))
            for n in range(size // SWEEP):
                source = k[self.names[share]].ptr_to([first + n * (SWEEP // 4)])
                k.do(I.ptx[COPY](target + uint32(n * SWEEP), source, 16))

    def _operand(self, number: int, kblock: Expr, t: Expr, stage: Expr, missing: list[Expr] | None) -> None:
        """Copy a lane's pieces: its n-th one is of row 8 n + lane / 4. missing: for each, whether it is poison; None:
        all are copied. Rows past the batch and what nobody writes become 0."""
        k, geometry, ids, share = self.k, self.geometry, self.ids, self.order[number][1]
        node, given = share.operand.source, share.operand.given
        block = k.keep(ids.warp * share.kblocks + kblock)
        turned = tirx.bitwise_xor(tirx.floormod(ids.lane, 4), tirx.floordiv(ids.lane, 8))
        conditions: list[Expr] = []
        # What somebody writes of a row; what lies behind it in a block of K is 0.
        written = node.shape[0] if given else geometry.ctas * geometry.units(node.shape[0])
        # Pieces lie swizzled in the exchange as they do in a stage; rows of an input do not.
        piece, place = (tirx.floormod(ids.lane, 4), turned) if given else (turned, tirx.floormod(ids.lane, 4))
        if geometry.depth_blocks(node) * geometry.block_k != written:
            within = k.keep(tirx.Cast("int32", block * geometry.block_k + piece * 4 < written))
            conditions.append(tirx.NE(within, tirx.const(0, "int32")))
        target = k.keep(stage + tirx.Cast("uint32", tirx.floordiv(ids.lane, 4) * ROW_BYTES + place * 16))
        if given:
            row = k.keep(k["row0"] + ids.group * geometry.rows + tirx.floordiv(ids.lane, 4))
            width = input_stride(self.body.layout, node)
            first = (self.body.time(t) + row) * width + (block * geometry.block_k + piece * 4)
            source, each, step = k[f"x_{geometry.step.given.index(node)}"], 8 * width, 8
        else:
            first = self._place(share, t) + (block * (geometry.rows * BLOCK_WORDS) + ids.lane * 4)
            source, each, step, row = k["exchange"], SWEEP // 4, 0, tirx.const(0, "int32")
        first = k.keep(first)
        for n in range(geometry.high):
            inside = [*conditions, *([row + n * step < k["batch"]] if given else [])]
            size = [tirx.Select(joined(*inside), uint32(16), uint32(0))] if inside else []  # zeros outside
            copy = I.ptx[COPY](target + uint32(n * SWEEP), source.ptr_to([first + n * each]), 16, *size)
            with k.when(tirx.EQ(missing[n], uint32(POISON))) if missing else nullcontext():
                k.do(copy)

    def _place(self, share: Share, t: Expr) -> Expr:
        """The first word of an operand of step t in the exchange: a state's is what the step before left."""
        body, source = self.body, share.operand.source
        node = body.value(source)
        later = 1 if source.op != "state" and node in body.carried else 0
        return self.exchange.place(t + later) + self.geometry.value_at[node] // 2

    # --- polling -----------------------------------------------------------------------------------------------------

    def _poll(self, number: int, kblock: Expr, stage: Expr) -> None:
        """Until no piece of this lane is poison."""
        k, poison = self.k, uint32(POISON)
        own = k.keep(stage + self._own(number))
        missing = k.local(1, "uint32")
        k.store(missing, poison, 0)
        with I.While(tirx.EQ(missing[0], poison)):
            found = [self._worst(own + uint32(n * SWEEP)) for n in range(self.geometry.high)]
            k.store(missing, largest(list(found)), 0)
            with k.when(tirx.EQ(missing[0], poison)):
                self._operand(number, kblock, self.body.t, stage, found)
                k.do(I.ptx["cp.async.commit_group"]())
                k.do(I.ptx["cp.async.wait_group"](0))

    def _own(self, number: int) -> Expr:
        """From a stage to this lane's first piece of the number-th operand."""
        lane = self.ids.lane
        if not self.order[number][1].operand.given:
            return tirx.Cast("uint32", lane * 16)
        turned = tirx.bitwise_xor(tirx.floormod(lane, 4), tirx.floordiv(lane, 8))
        return tirx.Cast("uint32", tirx.floordiv(lane, 4) * ROW_BYTES + turned * 16)

    def _worst(self, place: Expr) -> Expr:
        four = self.k.local(4, "uint32")
        words = [four[z] for z in range(4)]
        self.k.do(I.ptx["ld.shared.v4.b32"](*words, place))
        return self.k.keep(largest(words))


class FfmaProduct:
    """The products of one kernel. Construct once, at the kernel's start: it loads the resident weights."""

    par = 0

    def __init__(self, body: Body, geometry: Ffma, exchange: Staged) -> None:
        self.body, self.k, self.geometry, self.ids = body, body.k, geometry, body.ids
        k, ids = self.k, self.ids
        self.partial_at = geometry.memory_map["partial"]
        self.start_base = k.keep(I.cuda.cvta_generic_to_shared(body.arena.ptr_to([tirx.const(0, "int32")])))
        self.pipeline = FfmaPipeline(body, geometry, self.start_base, exchange)
        self.x, self.y = tirx.floordiv(ids.lane, DOWN), tirx.floormod(ids.lane, DOWN)
        self.near: dict[Share, int] = {}
        at = geometry.memory_map["weights"] * 4
        for phase, share in geometry.weights:
            if share.shared:  # the first blocks of every part, to stay: [part][K block][k][column]
                self.near[share] = at
                block, four = geometry.weight_bytes(phase), k.tile(4, dtype="uint32").flat
                size = share.shared * block
                for part in range(geometry.k_parts):
                    first = tirx.Cast("int64", (ids.rank * geometry.k_parts + part) * share.kblocks) * (block // 4)
                    copy_to_shared(body, share, k.keep(first), four, base=self.start_base, at=at, size=size)
                    at += size
        k.do(I.cuda.cta_sync())

    def end(self) -> None:
        """Nobody reads what is in flight."""

    def emit(self, phase: Phase) -> list[Expr]:
        k, geometry, pipeline = self.k, self.geometry, self.pipeline
        high, slots = geometry.high, geometry.columns(phase) // ACROSS
        acc, a, b = k.local(high * slots), k.local(high * DEPTH), k.local(2 * slots)
        for z in range(high * slots):
            k.store(acc, tirx.const(0.0, "float32"), z)
        pipeline.refresh()
        self.base = k.fresh(self.start_base)
        for number, (own, share) in enumerate(pipeline.order):
            if own is phase:
                with k.loop(share.kblocks) as c:
                    stage = pipeline.next(number, c)
                    self._multiply(stage, self._columns(phase, share, c, stage), (high, slots), acc, a, b)
        return self._meet(phase, acc)

    def _columns(self, phase: Phase, share: Share, c: Expr, stage: Expr) -> Expr:
        """Where this lane's columns of a block of K are: in its stage, or among the resident ones."""
        k, own = self.k, tirx.Cast("uint32", self.x * 16)
        streamed = stage + uint32(self.geometry.rows * ROW_BYTES) + own
        if not share.shared:
            return k.keep(streamed)
        block = (self.ids.warp * share.shared + c) * self.geometry.weight_bytes(phase)
        resident = self.base + tirx.Cast("uint32", block) + uint32(self.near[share]) + own
        return k.keep(tirx.Select(c < share.shared, resident, streamed) if share.streamed else resident)

    def _multiply(self, stage: Expr, columns: Expr, tile: tuple[int, int], acc: Buffer, a: Buffer, b: Buffer) -> None:
        """One block of K. Columns are read one k ahead, a row's next 16 bytes as soon as the last product of these is
        made: the loads hide behind the other rows' products."""
        k, (high, slots) = self.k, tile
        line = slots * ACROSS * 4
        rows = k.keep(stage + tirx.Cast("uint32", self.y * ROW_BYTES))
        turn = tirx.floordiv(self.y, 2)

        def start(piece: Expr) -> Expr:
            return k.keep(rows + tirx.Cast("uint32", tirx.bitwise_xor(piece, turn) * 16))

        def load_row(place: Expr, m: int) -> None:
            four = [a[m * DEPTH + z] for z in range(DEPTH)]
            k.do(I.ptx["ld.shared.v4.f32"](*four, place + uint32(m * DOWN * ROW_BYTES)))

        def load_columns(place: Expr, e: int, half: int) -> None:
            for s in range(slots // 4):
                four = [b[half * slots + s * 4 + z] for z in range(4)]
                k.do(I.ptx["ld.shared.v4.f32"](*four, place + uint32(e * line + s * GROUP * 4)))

        load_columns(columns, 0, 0)
        first = start(tirx.const(0, "int32"))
        for m in range(high):
            load_row(first, m)
        with k.loop(PIECES) as piece:
            following = k.keep(tirx.Min(piece + 1, PIECES - 1))  # once too often, which does no harm
            place, later = k.keep(columns + tirx.Cast("uint32", piece * (DEPTH * line))), start(following)
            for e in range(DEPTH):
                if e + 1 < DEPTH:
                    load_columns(place, e + 1, (e + 1) % 2)
                else:
                    load_columns(k.keep(columns + tirx.Cast("uint32", following * (DEPTH * line))), 0, 0)
                for m in range(high):
                    for s in range(slots):
                        at = m * slots + s
                        k.store(acc, acc[at] + a[m * DEPTH + e] * b[e % 2 * slots + s], at)
                    if e + 1 == DEPTH:
                        load_row(later, m)

    # --- the parts of K ----------------------------------------------------------------------------------------------

    def _meet(self, phase: Phase, acc: Buffer) -> list[Expr]:
        """Some parts after the others write their sums, where there is no room for all."""
        k, geometry, turns = self.k, self.geometry, self.geometry.turns
        each = geometry.warps // turns
        count = geometry.m_tiles(phase) * geometry.own_tiles * 4
        found = k.local(count)
        for z in range(count):
            k.store(found, tirx.const(0.0, "float32"), z)
        for turn in range(turns):
            k.do(I.cuda.cta_sync())  # the sums before these were read
            if turns == 1:
                self._store_sums(phase, acc, self.ids.warp)
            else:
                with k.when(tirx.floordiv(self.ids.warp, each) == turn):
                    self._store_sums(phase, acc, tirx.floormod(self.ids.warp, each))
            k.do(I.cuda.cta_sync())
            for j in range(geometry.own_tiles):
                self._take(phase, found, j, each)
        return [found[z] for z in range(count)]

    def _store_sums(self, phase: Phase, acc: Buffer, part: Expr) -> None:
        """Lay down a warp's sums. 16 bytes come from four registers in a row, and so do four columns' weights: packed
        with neighbours the other way round, a sum and its weight lie in different banks of registers. Of 512 FFMA
        150 then read two registers of one bank, and not 290, which would take longer (nvcc 13.0's choice)."""
        k, geometry, row = self.k, self.geometry, self.geometry.stride(phase) * 4
        slots = geometry.columns(phase) // ACROSS
        own = part * (geometry.part_words * 4) + self.y * row + self.x * 16 + self.partial_at * 4
        place = k.keep(self.base + tirx.Cast("uint32", own))
        for m in range(geometry.high):
            for s in range(slots // 4):
                four = [acc[m * slots + s * 4 + (z ^ TURNED)] for z in range(4)]
                k.do(I.ptx["st.shared.v4.f32"](place + uint32(m * DOWN * row + s * GROUP * 4), *four))

    def _take(self, phase: Phase, found: Buffer, j: int, parts: int) -> None:
        """Add the parts' sums of this lane's gates in its j-th tile."""
        k, geometry, ids, gates = self.k, self.geometry, self.ids, phase.gates
        row = geometry.stride(phase) * 4
        width = next(n for n in (4, 2, 1) if gates % n == 0)
        kind = f"v{width}.f32" if width > 1 else "f32"
        words = k.local(width)
        owned = geometry.owned(j, ids.warp_k)
        with k.when(tirx.const(True, "bool") if owned is None else owned):
            unit = ids.warp_u * (geometry.blocks(phase.width) * 8) + ids.g
            at = (self.body.cells.tile(j) * 8 + ids.q * 2) * row + unit * (gates * 4) + self.partial_at * 4
            place = k.keep(self.base + tirx.Cast("uint32", at))
            for part in range(parts):
                for block in range(geometry.blocks(phase.width)):
                    for e in range(2):
                        for gate in range(0, gates, width):
                            offset = part * geometry.part_words * 4 + e * row + (block * 8 * gates + gate) * 4
                            k.do(I.ptx[f"ld.shared.{kind}"](*[words[z] for z in range(width)], place + uint32(offset)))
                            for z in range(width):
                                half = block * gates + gate + z
                                to = (half // 2 * geometry.own_tiles + j) * 4 + half % 2 * 2 + e
                                k.store(found, found[to] + words[z], to)
