"""The product of a phase in strict float32 (FFMA), its operands and weights in shared memory.

In: the kernel's state (`persistent.Body`). Out: statements that leave all gates of a lane's cells in registers. Each
warp multiplies the whole tile in its own part of K, block after block out of its pipeline (`ffma_pipeline.py`): the
layer's input while other blocks still work on the step before, then the values that they publish. The sums of all
warps meet in shared memory, where lanes find the gates of their cells; they are added up in the order of K's parts.

Rewrite: for k: tile += rows[:, k] x columns[k, :]  -->  K over warps; each lane a tile of registers
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.geometry import Body, Emitters, Share
from tvm_rnn.cuda.persistent.layer_input_rows import InputPieces
from tvm_rnn.tir.expr import Buffer, Expr
from tvm_rnn.tir.index import uint32

from . import ffma_layout
from .ffma_layout import ACROSS, DOWN, GROUP, ROW_BYTES, FfmaLayout
from .ffma_pipeline import FfmaInputs, FfmaPipeline
from .operands_staged import Staged

PIECES, DEPTH = 4, 4  # of 16 bytes, of a row of a stage; k in each


@dataclass(frozen=True)
class Ffma(FfmaLayout):
    """The geometry, and who emits its statements."""

    def emitters(self, body: Body) -> Emitters:
        exchange, inputs = Staged(body, self.stage_at), FfmaInputs(body)
        inputs.announce()
        product = FfmaProduct(body, self, exchange)
        inputs.pipeline = product.pipeline
        return Emitters(exchange, inputs, InputPieces(body), product)


class FfmaProduct:
    """The products of one kernel. Construct once, at the kernel's start: it loads the resident weights."""

    par = 0

    def __init__(self, body: Body, geometry: FfmaLayout, exchange: Staged) -> None:
        self.body, self.k, self.geometry, self.ids = body, body.k, geometry, body.ids
        k, ids = self.k, self.ids
        self.partial_at = geometry.partial_at
        self.names = geometry.weight_names
        self.start_base = k.keep(I.cuda.cvta_generic_to_shared(body.arena.ptr_to([tirx.const(0, "int32")])))
        self.pipeline = FfmaPipeline(body, geometry, self.start_base, 0, self.names, exchange)
        self.x, self.y = tirx.floordiv(ids.lane, DOWN), tirx.floormod(ids.lane, DOWN)
        self.near: dict[Share, int] = {}
        at = ffma_layout.pipeline_words(geometry) * 4
        for phase, share in geometry.weights:
            if share.shared:
                self.near[share] = at
                self._fill(phase, share, at)
                at += geometry.k_parts * share.shared * ffma_layout.weight_bytes(geometry, phase)
        k.do(I.cuda.cta_sync())

    def _fill(self, phase: Phase, share: Share, at: int) -> None:
        """The first blocks of every part, to stay: [part][K block][k][column]."""
        k, geometry, ids = self.k, self.geometry, self.ids
        block = ffma_layout.weight_bytes(geometry, phase)
        passing, pieces = k.local(4, "uint32"), share.shared * block // 16
        four = [passing[z] for z in range(4)]
        for part in range(geometry.k_parts):
            first = k.keep(tirx.Cast("int64", (ids.rank * geometry.k_parts + part) * share.kblocks) * (block // 4))
            with k.loop(-(-pieces // geometry.threads)) as i:
                piece = i * geometry.threads + ids.thread
                with k.when(piece < pieces):
                    source = k[self.names[share]].ptr_to([first + piece * 4])
                    k.do(I.ptx["ld.global.nc.v4.b32"](*four, source))
                    target = self.start_base + tirx.Cast("uint32", piece * 16) + uint32(at + part * pieces * 16)
                    k.do(I.ptx["st.shared.v4.b32"](target, *four))

    # --- the product -------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Nobody reads what is in flight."""

    def emit(self, phase: Phase) -> list[Expr]:
        k, geometry, pipeline = self.k, self.geometry, self.pipeline
        high, slots = ffma_layout.high(geometry), ffma_layout.columns(geometry, phase) // ACROSS
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
        block = (self.ids.warp * share.shared + c) * ffma_layout.weight_bytes(self.geometry, phase)
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
        k, geometry, turns = self.k, self.geometry, ffma_layout.turns(self.geometry)
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
        k, geometry, row = self.k, self.geometry, ffma_layout.stride(self.geometry, phase) * 4
        slots = ffma_layout.columns(geometry, phase) // ACROSS
        own = part * (ffma_layout.part_words(geometry) * 4) + self.y * row + self.x * 16 + self.partial_at * 4
        place = k.keep(self.base + tirx.Cast("uint32", own))
        for m in range(ffma_layout.high(geometry)):
            for s in range(slots // 4):
                four = [acc[m * slots + s * 4 + (z ^ ffma_layout.TURNED)] for z in range(4)]
                k.do(I.ptx["st.shared.v4.f32"](place + uint32(m * DOWN * row + s * GROUP * 4), *four))

    def _take(self, phase: Phase, found: Buffer, j: int, parts: int) -> None:
        """Add the parts' sums of this lane's gates in its j-th tile."""
        k, geometry, ids, gates = self.k, self.geometry, self.ids, phase.gates
        row = ffma_layout.stride(geometry, phase) * 4
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
                            offset = (
                                part * ffma_layout.part_words(geometry) * 4 + e * row + (block * 8 * gates + gate) * 4
                            )
                            k.do(I.ptx[f"ld.shared.{kind}"](*[words[z] for z in range(width)], place + uint32(offset)))
                            for z in range(width):
                                half = block * gates + gate + z
                                to = (half // 2 * geometry.own_tiles + j) * 4 + half % 2 * 2 + e
                                k.store(found, found[to] + words[z], to)
