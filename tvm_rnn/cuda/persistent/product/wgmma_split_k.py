"""The split-K product of a phase: each block of a cluster multiplies all gates of the cluster's units in its part of K,
then finishes its own units.

In: the kernel's body, a `WgmmaSplitKLayout`. Out: statements that leave all gates of a lane's cells in registers. A
warpgroup multiplies its tiles of 64 gates by all rows. Sums lie in its registers as cells do: lane (g, q) has unit g
and rows 2q, 2q + 1 of every 8; so it stores its own for that lane of a warp of the block that has the units, 16 bytes
at a time, and that lane adds up what came from every part of K, in their order. Plain stores and a barrier of the
cluster: asynchronous stores that an mbarrier counts took 60 ns per 1000 bytes.

Source: Hopper's warpgroup products and distributed shared memory: PTX ISA 8.5, "wgmma.mma_async", "mapa".
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.geometry import LANES, Body, Emitters, Share
from tvm_rnn.cuda.persistent.layer_input_rows import InputPieces, Inputs
from tvm_rnn.tir.expr import Buffer, Expr
from tvm_rnn.tir.index import uint32

from .bulk_copy_pipeline import BulkCopyExchange
from .wgmma_pipelined import STEPS, BulkCopyProduct
from .wgmma_pipelined_layout import ROW_BYTES, TILE_BYTES, TILE_WORDS, Chunk
from .wgmma_split_k_layout import FRAGMENT_BYTES, WARPGROUP, WgmmaSplitKLayout, memory_map
from .wgmma_split_k_pipeline import ClusterPipeline

LAG = 2  # chunks in flight, where the pipeline is deep enough


@dataclass(frozen=True)
class WgmmaSplitK(WgmmaSplitKLayout):
    """The geometry, and who emits its statements."""

    def emitters(self, body: Body) -> Emitters:
        exchange = BulkCopyExchange(body, memory_map(self).stage // 4)
        return Emitters(exchange, Inputs(body), InputPieces(body), SplitKProduct(body, self, exchange))


class SplitKProduct(BulkCopyProduct):
    """The products of one kernel. Construct once, at the kernel's start: it loads the resident weights."""

    def __init__(self, body: Body, geometry: WgmmaSplitKLayout, exchange: BulkCopyExchange) -> None:
        self.geometry = geometry
        self.pipeline = ClusterPipeline(body, geometry, exchange)
        super().__init__(body, geometry, exchange, self.pipeline)
        k, ids = self.k, self.ids
        self.memory_map = self.pipeline.memory_map
        self.warpgroup = k.keep(tirx.floordiv(ids.warp, WARPGROUP))
        self.matrices = k.keep(self.pipeline.base // uint32(16) + uint32(1 << 16))
        self.registers: dict[Share, Buffer] = {}
        self.shared: dict[Share, int] = {}
        at = self.memory_map.weights
        for phase, share in geometry.weights:
            if share.registers:
                self.registers[share] = self._load(phase, share)
            if share.shared:
                self._fill(phase, share, at)
                self.shared[share] = at
                at += share.shared * geometry.far_bytes(phase)
        self.pipeline.start()

    # --- weights -----------------------------------------------------------------------------------------------------

    def _first(self, phase: Phase, share: Share) -> Expr:
        """The first word of the block's packed weights."""
        return tirx.Cast("int64", self.ids.rank) * (self.geometry.packed_bytes(phase, share) // 4)

    def _load(self, phase: Phase, share: Share) -> Buffer:
        """This lane's fragments: [K block][tile][step][4]."""
        k, geometry, tiles = self.k, self.geometry, self.geometry.group_tiles(phase)
        kept = k.local(share.registers * tiles * TILE_WORDS, "uint32")
        lane = tirx.floormod(self.ids.thread, LANES * WARPGROUP) * 4 + self.warpgroup * (tiles * TILE_BYTES // 4)
        first = k.keep(self._first(phase, share) + lane)
        for piece in range(share.registers * tiles * STEPS):
            kblock, within = divmod(piece, tiles * STEPS)
            at = first + (kblock * geometry.near_bytes(phase) // 4 + within * (TILE_BYTES // 4 // STEPS))
            k.do(I.ptx["ld.global.nc.v4.b32"](*(kept[piece * 4 + z] for z in range(4)), self._word(share, at)))
        return kept

    def _fill(self, phase: Phase, share: Share, at: int) -> None:
        """Tiles in shared memory, from byte `at` on."""
        k, geometry = self.k, self.geometry
        passing, pieces = k.local(4, "uint32"), share.shared * geometry.far_bytes(phase) // 16
        four = [passing[z] for z in range(4)]
        first = k.keep(self._first(phase, share) + share.registers * geometry.near_bytes(phase) // 4)
        with k.loop(-(-pieces // geometry.threads)) as i:
            piece = i * geometry.threads + self.ids.thread
            with k.when(piece < pieces):
                k.do(I.ptx["ld.global.nc.v4.b32"](*four, self._word(share, first + piece * 4)))
                target = self.pipeline.base + tirx.Cast("uint32", piece * 16) + uint32(at)
                k.do(I.ptx["st.shared.v4.b32"](target, *four))

    # --- the product -------------------------------------------------------------------------------------------------

    def emit(self, phase: Phase) -> list[Expr]:
        """What cells read comes while the cluster's blocks wait for each other: until then products need the registers;
        the prefetch of later ones into L2 while all blocks do."""
        for share in self.geometry.shares[phase]:
            self.body.ready(share)
        loads, prefetches = self._reads(phase)
        source = self._source
        k, pipeline, geometry = self.k, self.pipeline, self.geometry
        lag = LAG if geometry.ring > LAG + 1 else 1
        if not geometry.separated(phase):
            pipeline.meet()  # sums of the product before this one may still be read
        acc = k.local(geometry.group_tiles(phase) * geometry.rows // 2)
        pipeline.refresh()
        pipeline.begin(phase, source)
        for prefetch in prefetches:
            prefetch()
        every = pipeline.chunks[phase]
        for number, chunk in enumerate(every):
            pipeline.wait(chunk)
            self._descriptors(phase)
            k.do(I.ptx.wgmma.fence.sync.aligned())
            self._multiply(phase, chunk, acc, number == 0)
            k.do(I.ptx.wgmma.commit_group.sync.aligned())
            if number >= lag:
                k.do(I.ptx.wgmma.wait_group.sync.aligned(lag))
                pipeline.release(every[number - lag])
                pipeline.refill(phase, number - lag, source)
        k.do(I.ptx.wgmma.wait_group.sync.aligned(0))
        for chunk in every[-lag:]:
            pipeline.release(chunk)
        if not geometry.apart:
            pipeline.meet()  # nobody in the cluster reads the pipeline any more
        self._store_sums(phase, acc)
        for load in loads:
            load()
        pipeline.meet()
        found = self._take(phase)
        if not geometry.apart:
            k.do(I.ptx.fence.proxy.async_.shared__cta())  # copies into the pipeline follow, after a barrier
        return found

    def _descriptors(self, phase: Phase) -> None:
        """The low words of matrix descriptors, of shared memory's start and of this warpgroup's first tile of weights
        there. Anew for each chunk: else all that a step needs are computed before it, and kept in registers."""
        k = self.k
        self.operands = k.fresh(self.matrices)
        mine = tirx.Cast("uint32", self.warpgroup * (self.geometry.group_tiles(phase) * TILE_BYTES // 16))
        self.tiles = k.keep(self.operands + mine)

    def _multiply(self, phase: Phase, chunk: Chunk, acc: Buffer, first: bool) -> None:
        geometry = self.geometry
        stage = self.memory_map.pipeline + chunk.slot * self.pipeline.bytes
        for i in range(chunk.count):
            for step in range(STEPS):
                b = self._descriptor(self.operands, stage + i * geometry.operand_bytes + step * 32)
                add = not (first and not i and not step)
                for tile in range(geometry.group_tiles(phase)):
                    self._instruction(acc, tile, self._weights(phase, chunk, i, tile, step), b, add)

    def _weights(self, phase: Phase, chunk: Chunk, i: int, tile: int, step: int) -> list[Expr]:
        """The A operand of one instruction: four registers, or a descriptor."""
        geometry, share, kblock, far = self.geometry, chunk.share, chunk.first + i, self.geometry.far_bytes(phase)
        if kblock < share.registers:
            first = ((kblock * geometry.group_tiles(phase) + tile) * STEPS + step) * 4
            return [self.registers[share][first + z] for z in range(4)]
        within = tile * TILE_BYTES + step * (ROW_BYTES // STEPS)
        if not chunk.streamed:
            return [self._descriptor(self.tiles, self.shared[share] + (kblock - share.registers) * far + within)]
        stage = self.memory_map.pipeline + chunk.slot * self.pipeline.bytes + chunk.count * geometry.operand_bytes
        return [self._descriptor(self.tiles, stage + i * far + within)]

    # --- sums --------------------------------------------------------------------------------------------------------

    @property
    def _wide(self) -> int:
        """Tiles of 8 rows that are sent together."""
        return 2 - self.geometry.own_tiles % 2

    def _group_bytes(self) -> int:
        return self.geometry.tiles * LANES * FRAGMENT_BYTES

    def _piece(self, warp_k: Expr, number: Expr) -> Expr:
        """Where a lane's number-th piece for a warp lies in its group, in bytes."""
        each = self.geometry.own_tiles // self._wide
        return ((warp_k * each + number) * LANES + self.ids.lane) * (FRAGMENT_BYTES * self._wide)

    def _store_sums(self, phase: Phase, acc: Buffer) -> None:
        """To every block of the cluster, the sums of its units."""
        k, geometry, pipeline = self.k, self.geometry, self.pipeline
        own, groups = geometry.own_groups(phase), geometry.gate_rows(phase) // 8
        line = k.fresh(self.warpgroup) * (geometry.group_tiles(phase) * 8) + tirx.floormod(self.ids.warp, WARPGROUP) * 2
        for tile in range(geometry.group_tiles(phase)):
            for high in range(2):
                group = k.keep(line + (tile * 8 + high))
                with k.when(group < groups):
                    owner = k.keep(tirx.floordiv(group, own))
                    place = (pipeline.number * own + tirx.floormod(group, own)) * self._group_bytes()
                    place = place + self._piece(tirx.const(0, "int32"), tirx.const(0, "int32"))
                    target = k.keep(pipeline.base + tirx.Cast("uint32", place) + uint32(self.memory_map.sums))
                    first = tile * geometry.rows // 2 + high * 2
                    with k.when(tirx.EQ(owner, pipeline.number)):
                        self._send("st.shared", acc, first, target)
                    with k.when(tirx.NE(owner, pipeline.number)):
                        remote = k.local(1, "uint32")
                        k.do(I.ptx["mapa.shared::cluster.u32"](remote[0], target, tirx.Cast("uint32", owner)))
                        self._send("st.shared::cluster", acc, first, remote[0])

    def _send(self, store: str, acc: Buffer, first: int, target: Expr) -> None:
        """A group's: this lane's two numbers of every tile of 8 rows, for the warps that have them."""
        geometry, wide = self.geometry, self._wide
        size = LANES * FRAGMENT_BYTES * wide
        for warp_k in range(geometry.warps_k):
            for number in range(geometry.own_tiles // wide):
                tiles = [
                    own for i in range(wide) if isinstance(own := geometry.own_tile(number * wide + i, warp_k), int)
                ]
                words = [acc[first + tile * 4 + e] for tile in tiles for e in range(2)]
                at = uint32((warp_k * (geometry.own_tiles // wide) + number) * size)
                self.k.do(I.ptx[f"{store}.v{len(words)}.f32"](target + at, *words))

    def _take(self, phase: Phase) -> list[Expr]:
        """The sums of all parts of K, of this lane's cells."""
        k, geometry, pipeline, wide = self.k, self.geometry, self.pipeline, self._wide
        found = k.local(geometry.m_tiles(phase) * geometry.own_tiles * 4)
        halves, own = len(geometry.halves(phase)), geometry.own_groups(phase)
        place = self.ids.warp_u * (halves * self._group_bytes()) + self._piece(self.ids.warp_k, tirx.const(0, "int32"))
        first = k.keep(pipeline.base + tirx.Cast("uint32", place) + uint32(self.memory_map.sums))
        part = k.local(2 * wide)
        for half in range(halves):
            for number in range(geometry.own_tiles // wide):
                for source in range(geometry.together):
                    at = (source * own + half) * self._group_bytes() + number * LANES * FRAGMENT_BYTES * wide
                    k.do(I.ptx[f"ld.shared.v{2 * wide}.f32"](*(part[z] for z in range(2 * wide)), first + uint32(at)))
                    for z in range(2 * wide):
                        place = (half // 2 * geometry.own_tiles + number * wide + z // 2) * 4 + half % 2 * 2 + z % 2
                        k.store(found, found[place] + part[z] if source else part[z], place)
        return [found[z] for z in range(geometry.m_tiles(phase) * geometry.own_tiles * 4)]
