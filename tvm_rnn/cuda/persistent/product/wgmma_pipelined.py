"""The product of a phase by wgmma: stationary weights times operands that come through a pipeline in shared memory.

In: a `Geometry` with `ring` stages, the warp's coordinates. Out: statements that leave all gates of a lane's cells in
registers. Each warpgroup multiplies all units and rows of the block in its part of K, the chunks of the pipeline one
after the other; sums then meet in shared memory, where lanes find the gates of their cells.

Source: Hopper's warpgroup products: PTX ISA 8.5, "wgmma.mma_async", matrix fragments and shared memory layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.geometry import LANES, Body, Emitters, Geometry, Share
from tvm_rnn.cuda.persistent.layer_input_rows import InputPieces, Inputs
from tvm_rnn.tir.expr import Buffer, Expr
from tvm_rnn.tir.index import uint32

from .bulk_copy_pipeline import BulkCopyExchange, BulkCopyPipeline, WarpgroupPipeline
from .wgmma_pipelined_layout import (
    ROW_BYTES,
    TILE_BYTES,
    TILE_ROWS,
    TILE_WORDS,
    Chunk,
    WgmmaPipelinedLayout,
    WgmmaTiles,
    m_tiles,
    memory_map,
    part_bytes,
    partial_stride,
    turns,
)

STEPS = 2  # wgmma steps of 32 bytes in a block of K
LAG = 2  # chunks in flight, where the pipeline is deep enough: while a stage is filled again, products do not run out
SWIZZLE_64, STRIDE = 2, 512 // 16  # of matrix descriptors: rows of 64 bytes, 8 of them apart
INPUTS: dict[str, tuple[str, str, int]] = {  # depth, types, operands that may be transposed
    "bfloat16": ("k16", "bf16.bf16", 1),
    "float16": ("k16", "f16.f16", 1),
    "tf32": ("k8", "tf32.tf32", 0),
}


@dataclass(frozen=True)
class WgmmaPipelined(WgmmaPipelinedLayout):
    """The geometry, and who emits its statements."""

    def emitters(self, body: Body) -> Emitters:
        exchange = BulkCopyExchange(body, memory_map(self).stage // 4)
        return Emitters(exchange, Inputs(body), InputPieces(body), PipelinedProduct(body, self, exchange))


class WgmmaProduct:
    """What products by wgmma share: matrix descriptors and instructions."""

    k: Writer
    names: dict[Share, str]

    def __init__(self, body: Body, geometry: Geometry) -> None:
        self.body, self.k, self.ids, self.names = body, body.k, body.ids, geometry.weight_names
        self.rows, self.precision, self.itemsize = geometry.rows, geometry.precision, geometry.itemsize

    def _word(self, share: Share, word: Expr) -> Expr:
        """Address of a word of the block's packed weights."""
        return self.k[self.names[share]].ptr_to([word * (4 // self.itemsize)])

    def _descriptor(self, first: Expr, at: int) -> Expr:
        """Of a tile that begins `at` bytes after the first. The high word is the same for all."""
        low = tirx.Cast("uint64", first + uint32(at // 16))
        return tirx.bitwise_or(low, tirx.const((SWIZZLE_64 << 30 | STRIDE) << 32, "uint64"))

    def _instruction(self, acc: Buffer, tile: int, a: Sequence[Expr], b: Expr, add: bool) -> None:
        """One wgmma: 64 rows and all columns, a step of K."""
        each = self.rows // 2
        deep, kinds, transposed = INPUTS[self.precision]
        name = f"wgmma.mma_async.sync.aligned.m64n{self.rows}{deep}.f32.{kinds}"
        d = [acc[tile * each + z] for z in range(each)]
        # Each of A and B that comes from shared memory could be transposed.
        more = [0] * (transposed * (1 + (len(a) == 1)))
        self.k.do(I.ptx[name](*d, *a, b, I.ptx.pred(tirx.const(int(add), "int32")), 1, 1, *more))


class BulkCopyProduct(WgmmaProduct):
    """What products share whose operands come through a pipeline."""

    def __init__(self, body: Body, geometry: Geometry, exchange: BulkCopyExchange, pipeline: BulkCopyPipeline) -> None:
        super().__init__(body, geometry)
        self.exchange, self.bulk = exchange, pipeline

    @property
    def par(self) -> int:
        return self.bulk.par

    @par.setter
    def par(self, par: int) -> None:
        self.bulk.par = par

    def end(self) -> None:
        """No block of a cluster leaves too early."""
        self.bulk.meet()

    def _source(self, share: Share) -> Expr:
        return self.exchange.first_word(share.operand.source)

    def _reads(self, phase: Phase) -> tuple[list[Callable[[], None]], list[Callable[[], None]]]:
        """What cells read in this step, and the prefetch of later ones into L2: statements to be written while the
        step's first product is under way."""
        body = self.body
        if phase is not body.step.phases[0]:
            return [], []
        return body.reads.now(body.t, prefetch=False), body.reads.now(body.t, prefetch=True)


class ResidentTiles(WgmmaProduct):
    """Products whose weights are packed as `wgmma_pipelined_layout.py` says: fragments in registers, then tiles in
    shared memory. part, base: the thread's part of K, and the address of shared memory."""

    part: Expr
    base: Expr
    tiles_of: WgmmaTiles

    def _place_weights(self, at: int) -> None:
        """Fragments to registers; tiles to shared memory, from byte `at` on."""
        self.registers: dict[Share, Buffer] = {}
        self.shared: dict[Share, int] = {}
        for phase, share in self.tiles_of.weights:
            if share.registers:
                self.registers[share] = self._load(phase, share)
            if share.shared:
                each = share.shared * m_tiles(self.tiles_of, phase) * TILE_BYTES
                self._fill(phase, share, at, each)
                self.shared[share] = at
                at += each * self.tiles_of.k_parts

    def _load(self, phase: Phase, share: Share) -> Buffer:
        """This lane's fragments: [K block][M tile][step][4]."""
        k, geometry, ids, tiles = self.k, self.tiles_of, self.ids, m_tiles(self.tiles_of, phase)
        kept = k.local(share.registers * tiles * TILE_WORDS, "uint32")
        part = (ids.rank * geometry.k_parts + self.part) * share.kblocks
        lane = tirx.floormod(ids.warp, 4) * (LANES * 4) + ids.lane * 4
        first = k.keep(tirx.Cast("int64", part) * (tiles * TILE_BYTES // 4) + lane)
        for piece in range(share.registers * tiles * STEPS):
            four = [kept[piece * 4 + z] for z in range(4)]
            at = first + piece * (TILE_BYTES // 4 // STEPS)
            k.do(I.ptx["ld.global.nc.v4.b32"](*four, self._word(share, at)))
        return kept

    def _fill(self, phase: Phase, share: Share, at: int, each: int) -> None:
        """Tiles in shared memory, `each` bytes for each part of K."""
        k, geometry, ids = self.k, self.tiles_of, self.ids
        passing, pieces = k.local(4, "uint32"), each // 16
        four = [passing[z] for z in range(4)]
        for part in range(geometry.k_parts):
            block = (ids.rank * geometry.k_parts + part) * share.kblocks + share.registers
            first = k.keep(tirx.Cast("int64", block) * (m_tiles(geometry, phase) * TILE_BYTES // 4))
            with k.loop(-(-pieces // geometry.threads)) as i:
                piece = i * geometry.threads + ids.thread
                with k.when(piece < pieces):
                    k.do(I.ptx["ld.global.nc.v4.b32"](*four, self._word(share, first + piece * 4)))
                    target = self.base + tirx.Cast("uint32", piece * 16) + uint32(at + part * each)
                    k.do(I.ptx["st.shared.v4.b32"](target, *four))

    def _near(self, phase: Phase, base: Expr, part: Expr) -> None:
        geometry, low = self.tiles_of, self.k.keep(base // uint32(16) + uint32(1 << 16))
        self.near: dict[Share, Expr] = {}
        for share in geometry.shares[phase]:
            if share.shared:
                each = share.shared * m_tiles(geometry, phase) * TILE_BYTES
                self.near[share] = self.k.keep(low + tirx.Cast("uint32", (part * each + self.shared[share]) // 16))

    def _resident(self, share: Share, kblock: int, tile: int, tiles: int, step: int) -> list[Expr]:
        if kblock < share.registers:
            first = ((kblock * tiles + tile) * STEPS + step) * 4
            return [self.registers[share][first + z] for z in range(4)]
        at = ((kblock - share.registers) * tiles + tile) * TILE_BYTES + step * 32
        return [self._descriptor(self.near[share], at)]


class PipelinedProduct(BulkCopyProduct, ResidentTiles):
    """The products of one kernel. Construct once, at the kernel's start: it loads the resident weights."""

    def __init__(self, body: Body, geometry: WgmmaPipelinedLayout, exchange: BulkCopyExchange) -> None:
        self.geometry = self.tiles_of = geometry
        self.pipeline = WarpgroupPipeline(body, geometry, exchange)
        super().__init__(body, geometry, exchange, self.pipeline)
        self.memory_map = self.pipeline.memory_map
        self.part, self.base = self.pipeline.part, self.pipeline.base
        self._place_weights(self.memory_map.weights)
        self.pipeline.start()

    def _descriptors(self, phase: Phase) -> None:
        """The low words of matrix descriptors: of this part of stage 0, and of each share's weights near."""
        self._near(phase, self.pipeline.base, self.pipeline.part)
        self.operands = self.k.keep(self.pipeline.stages // uint32(16) + uint32(1 << 16))

    def _weights(self, chunk: Chunk, kblock: int, tile: int, tiles: int, step: int) -> list[Expr]:
        """The A operand of one instruction: four registers, or a descriptor."""
        if chunk.streamed:
            at = self._stage(chunk) + self.geometry.rows * ROW_BYTES + tile * TILE_BYTES + step * 32
            return [self._descriptor(self.operands, at)]
        return self._resident(chunk.share, kblock, tile, tiles, step)

    def _stage(self, chunk: Chunk) -> int:
        return chunk.slot * part_bytes(self.geometry)

    # --- the product -------------------------------------------------------------------------------------------------

    def emit(self, phase: Phase) -> list[Expr]:
        for share in self.geometry.shares[phase]:
            self.body.ready(share)
        loads, prefetches = self._reads(phase)
        between, source = [*loads, *prefetches], self._source
        k, pipeline, tiles = self.k, self.pipeline, m_tiles(self.geometry, phase)
        apart, before = self.memory_map.apart, self.geometry.separated(phase)
        lag = 2 if self.geometry.ring > LAG + 1 else 1
        if not before:
            k.do(I.cuda.cta_sync())  # the product before this one may still be summed
        acc = k.local(tiles * self.geometry.rows // 2)
        pipeline.refresh()
        self._descriptors(phase)
        pipeline.begin(phase, source)
        for number, chunk in enumerate(pipeline.chunks[phase]):
            pipeline.wait(chunk)
            k.do(I.ptx.wgmma.fence.sync.aligned())
            self._multiply(chunk, tiles, acc, number == 0)
            k.do(I.ptx.wgmma.commit_group.sync.aligned())
            if number >= lag:
                k.do(I.ptx.wgmma.wait_group.sync.aligned(lag))
                pipeline.release(pipeline.chunks[phase][number - lag])
                pipeline.refill(phase, number - lag, source)
            count = len(pipeline.chunks[phase])
            for piece in between[len(between) * number // count : len(between) * (number + 1) // count]:
                piece()
        k.do(I.ptx.wgmma.wait_group.sync.aligned(0))
        for chunk in pipeline.chunks[phase][-lag:]:
            pipeline.release(chunk)
        if not apart:
            k.do(I.cuda.cta_sync())  # the other warpgroups read the pipeline
        return self._sum(phase, tiles, acc)

    def _multiply(self, chunk: Chunk, tiles: int, acc: Buffer, first: bool) -> None:
        for kblock in range(chunk.first, chunk.first + chunk.count):
            for step in range(STEPS):
                at = self._stage(chunk) + (kblock - chunk.first) * self.geometry.rows * ROW_BYTES + step * 32
                b = self._descriptor(self.operands, at)
                add = not (first and kblock == chunk.first and not step)
                for tile in range(tiles):
                    self._instruction(acc, tile, self._weights(chunk, kblock, tile, tiles, step), b, add)

    def _sum(self, phase: Phase, tiles: int, acc: Buffer) -> list[Expr]:
        """Sums of the parts of K, by the lanes that have the cells."""
        k, geometry = self.k, self.geometry
        found = k.local(geometry.m_tiles(phase) * geometry.own_tiles * 4)
        for turn in range(turns(geometry)):
            if turn:
                k.do(I.cuda.cta_sync())
            self._store_sums(tiles, acc, turn)
            k.do(I.cuda.cta_sync())
            each = geometry.own_tiles // turns(geometry)
            for j in range(turn * each, (turn + 1) * each):
                self._take(phase, tiles, found, j, turn)
        if not self.memory_map.apart:
            k.do(I.ptx.fence.proxy.async_.shared__cta())  # copies into the pipeline follow, after a barrier
        return [found[z] for z in range(geometry.m_tiles(phase) * geometry.own_tiles * 4)]

    def _store_sums(self, tiles: int, acc: Buffer, turn: int) -> None:
        """This warp's sums of a turn's columns."""
        k, geometry, ids, row = self.k, self.geometry, self.ids, partial_stride(self.geometry) * 4
        columns = geometry.rows // 8 // turns(geometry)
        line = (self.pipeline.part * tiles * TILE_ROWS + tirx.floormod(ids.warp, 4) * 16 + ids.g) * row + ids.q * 8
        own = k.keep(self.pipeline.base + tirx.Cast("uint32", line + self.memory_map.partial))
        for tile in range(tiles):
            for i in range(columns):
                for high in range(2):
                    first = tile * geometry.rows // 2 + (turn * columns + i) * 4 + high * 2
                    at = tile * TILE_ROWS * row + high * 8 * row + i * 32
                    k.do(I.ptx["st.shared.v2.f32"](own + uint32(at), acc[first], acc[first + 1]))

    def _take(self, phase: Phase, tiles: int, found: Buffer, j: int, turn: int) -> None:
        """All parts of this lane's gates in its j-th tile."""
        k, geometry, ids, row = self.k, self.geometry, self.ids, partial_stride(self.geometry) * 4
        halves, part, two = len(geometry.halves(phase)), tiles * TILE_ROWS * row, k.local(2)
        line = (ids.warp_u * (halves * 8) + ids.g) * row + (ids.warp_n * geometry.tiles) * 32 + ids.q * 8
        tile = geometry.own_tile(j, ids.warp_k) - turn * (geometry.tiles // turns(geometry))
        owned = geometry.owned(j, ids.warp_k)
        with k.when(tirx.const(True, "bool") if owned is None else owned):
            cells = k.keep(self.pipeline.base + tirx.Cast("uint32", line + tile * 32 + self.memory_map.partial))
            for half in range(halves):
                at = (half // 2 * geometry.own_tiles + j) * 4 + half % 2 * 2
                for number in range(geometry.k_parts):
                    place = cells + uint32(half * 8 * row + number * part)
                    k.do(I.ptx["ld.shared.v2.f32"](two[0], two[1], place))
                    for e in range(2):
                        k.store(found, found[at + e] + two[e] if number else two[e], at + e)
