"""A pipeline in shared memory, which bulk copies fill with operands (and weights) while warpgroups multiply.

In: a geometry with `ring` stages and the exchange that values lie in. Out: statements: barriers, copies, waits. A step
begins with stage 0, so which stage a chunk has, and the parity of its barriers, are known when the kernel is written.

Every warpgroup has a pipeline of its own, for its part of K; its first thread copies. Values were written by other
multiprocessors with ordinary stores: a proxy fence after the acquire orders the copies behind them. Blocks of a cluster
fetch a slice of every run of operands each, for all of them; then a stage is free when no block of the cluster reads it
any more.

Source: Hopper's asynchronous copies and barriers: PTX ISA 8.5, "cp.async.bulk", "mbarrier".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.exchange import SideBySide
from tvm_rnn.cuda.persistent.geometry import BLOCK_WORDS, LANES, Body, Share, ThreadIds
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import uint32

from .wgmma_pipelined_layout import (
    TILE_BYTES,
    Chunk,
    WgmmaPipelinedLayout,
    chunks,
    m_tiles,
    memory_map,
    part_bytes,
    swizzled,
    uses,
)

Source = Callable[[Share], Expr]  # the first word of an operand in the exchange
BULK = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"


class BulkCopyExchange(SideBySide):
    """A grid's exchange whose operands lie as wgmma reads them, and are waited for by the thread that copies them."""

    due: Expr | None = None  # events that the next product's operands wait for

    def await_operand(self, events: Expr) -> None:
        self.due = events

    def poll(self, events: Expr) -> None:
        """Until every block of the group has published `events` times."""
        self._spin("counter", events)

    def turned(self, row: Expr, piece: Expr) -> Expr:
        return swizzled(row, piece)

    def word(self, node: Node, slot: Expr, kblock: Expr, row: Expr, piece: Expr) -> Expr:
        return super().word(node, slot, kblock, row, swizzled(row, piece))

    def arrive(self) -> None:
        words = self.publish_tiles()
        super().arrive()
        self.write_y(words)


class BulkCopyPipeline(ABC):
    """What pipelines share: barriers, in which order stages are filled, and who waits. stages: how many there are;
    cluster: blocks of one; barriers_at: the byte of shared memory where mbarriers begin; chunks: what goes through
    stages, in order; uses: how often a step uses each stage."""

    def __init__(
        self,
        body: Body,
        exchange: BulkCopyExchange,
        shape: tuple[int, int, int],
        chunks: dict[Phase, list[Chunk]],
        uses: list[int],
    ) -> None:
        self.k: Writer = body.k
        self.ids: ThreadIds = body.ids
        self.exchange = exchange
        self.stages_count, self.cluster, self.barriers_at = shape
        self.chunks, self.uses = chunks, uses
        self.par = 0
        start = body.arena.ptr_to([tirx.const(0, "int32")])
        self.base = self.start_base = body.k.keep(I.cuda.cvta_generic_to_shared(start))

    # --- barriers ----------------------------------------------------------------------------------------------------

    def _start(self, pipelines: int, readers: int) -> None:
        """Make the barriers of so many pipelines, of whose stages so many warps read each."""
        k, stages = self.k, self.stages_count
        with k.when(self.ids.thread == 0):
            for number in range(2 * stages * pipelines):  # of each: "full" of every stage, then "empty"
                barrier = self.base + uint32(self.barriers_at + number * 8)
                k.do(I.ptx.mbarrier.init.shared.b64(barrier, uint32(readers if number // stages % 2 else 1)))
            k.do(I.ptx.fence.mbarrier_init.release.cluster())
        k.do(I.ptx.fence.proxy.async_.shared__cta())  # also of the weights that every thread has stored
        k.do(I.cuda.cta_sync())
        self.meet()

    def meet(self) -> None:
        """All blocks of the cluster: none copies into another one too early, none leaves too early; what each has
        stored in shared memory, the others see."""
        if self.cluster > 1:
            self.k.do(I.ptx["barrier.cluster.arrive.release.aligned"]())
            self.k.do(I.ptx["barrier.cluster.wait.acquire.aligned"]())

    @abstractmethod
    def barrier(self, number: int) -> Expr:
        """The address of one of this thread's pipeline."""

    def _parity(self, chunk: Chunk) -> int:
        """Of the uses of its stage before this one, since the kernel's start; a step's number is even or odd as par."""
        return int((self.par * self.uses[chunk.slot] + chunk.turn) % 2)

    def _wait(self, number: int, parity: int) -> None:
        k = self.k
        done = k.local(1, "uint32")
        k.store(done, uint32(0), 0)
        with I.While(done[0] == uint32(0)):
            k.do(I.ptx["mbarrier.try_wait.parity.shared::cta.b64"](done[0], self.barrier(number), uint32(parity)))

    def wait(self, chunk: Chunk) -> None:
        """Until it is there."""
        self._wait(chunk.slot, self._parity(chunk))

    # --- copies ------------------------------------------------------------------------------------------------------

    def begin(self, phase: Phase, source: Source) -> None:
        """Fill the pipeline: weights at once, operands when they are published. source(share): their first word."""
        k, first = self.k, self.chunks[phase][: self.stages_count]
        with k.when(self._copies()):
            for chunk in first:
                self._expect(phase, chunk)
            if self.exchange.due is not None:
                self.exchange.poll(self.exchange.due)
            k.do(I.ptx["fence.proxy.async.global"]())
            for chunk in first:
                self._operand(chunk, source)
        k.do(I.cuda.warp_sync())
        self.exchange.due = None

    def refill(self, phase: Phase, number: int, source: Source) -> None:
        """The stage of a phase's number-th chunk, with the next one that belongs there."""
        k, after = self.k, number + self.stages_count
        if after >= len(self.chunks[phase]):
            return
        with k.when(self._copies()):
            self._expect(phase, self.chunks[phase][after])
            self._operand(self.chunks[phase][after], source)
        k.do(I.cuda.warp_sync())

    @abstractmethod
    def _copies(self) -> Expr:
        """Whether this thread does."""

    @abstractmethod
    def _expect(self, phase: Phase, chunk: Chunk) -> None:
        """When the stage is free: announce its bytes, and copy weights."""

    @abstractmethod
    def _operand(self, chunk: Chunk, source: Source) -> None:
        """Copy what is multiplied by them."""


class WarpgroupPipeline(BulkCopyPipeline):
    """Of one kernel whose warpgroups have a part of K each."""

    def __init__(self, body: Body, geometry: WgmmaPipelinedLayout, exchange: BulkCopyExchange) -> None:
        self.memory_map = memory_map(geometry)
        shape = geometry.ring, geometry.together, self.memory_map.barriers
        super().__init__(body, exchange, shape, chunks(geometry), uses(geometry))
        self.geometry, self.names = geometry, geometry.weight_names
        k, ids = self.k, self.ids
        self.number = tirx.floormod(ids.rank, geometry.together)  # of this block in its cluster
        self.peer = self.start_peer = self.base
        self.part = self.start_part = k.keep(tirx.floordiv(ids.warp, 4))
        if geometry.together > 1:
            found = k.local(1, "uint32")
            to = tirx.Cast("uint32", tirx.floormod(ids.lane, geometry.together))
            k.do(I.ptx["mapa.shared::cluster.u32"](found[0], self.base, to))
            self.peer = self.start_peer = found[0]

    def refresh(self) -> None:
        """At the start of a product."""
        k, base = self.k, self.k.fresh(self.start_base)
        self.base, self.part = base, self.k.fresh(self.start_part)
        barriers = tirx.Cast("uint32", self.part * (16 * self.geometry.ring)) + uint32(self.memory_map.barriers)
        self.barriers = k.keep(base + barriers)
        self.peer = k.keep(self.k.fresh(self.start_peer) + barriers) if self.geometry.together > 1 else self.barriers
        stages = self.part * (self.geometry.ring * part_bytes(self.geometry)) + self.memory_map.pipeline
        self.stages = k.keep(base + tirx.Cast("uint32", stages))

    def start(self) -> None:
        """Before the first product."""
        self._start(self.geometry.k_parts, 4 * self.geometry.together)

    def barrier(self, number: int) -> Expr:
        return self.barriers + uint32(number * 8)

    def release(self, chunk: Chunk) -> None:
        """This warp reads it no more."""
        k, at = self.k, uint32((chunk.slot + self.geometry.ring) * 8)
        with k.when(self.ids.lane < self.geometry.together):
            if self.geometry.together > 1:
                k.do(I.ptx.mbarrier.arrive.shared__cluster.b64(self.peer + at))
            else:
                k.do(I.ptx["mbarrier.arrive.shared.b64"](self.barriers + at))

    def _copies(self) -> Expr:
        return tirx.floormod(self.ids.thread, LANES * 4) == 0

    def _stage(self, chunk: Chunk) -> Expr:
        return self.stages + uint32(chunk.slot * part_bytes(self.geometry))

    def _expect(self, phase: Phase, chunk: Chunk) -> None:
        k, geometry = self.k, self.geometry
        self._wait(chunk.slot + geometry.ring, 1 - self._parity(chunk))
        full = self.barriers + uint32(chunk.slot * 8)
        operand, weights = (
            geometry.rows * BLOCK_WORDS * 4,
            m_tiles(geometry, phase) * TILE_BYTES if chunk.streamed else 0,
        )
        k.do(I.ptx["mbarrier.arrive.expect_tx.shared.b64"](full, uint32(chunk.count * operand + weights)))
        if chunk.streamed:
            place = (self.ids.rank * geometry.k_parts + self.part) * chunk.share.kblocks + chunk.first
            element = tirx.Cast("int64", place) * (weights // geometry.itemsize)
            address = self.k[self.names[chunk.share]].ptr_to([element])
            k.do(I.ptx[BULK](self._stage(chunk) + uint32(operand), address, uint32(weights), full))

    def _operand(self, chunk: Chunk, source: Source) -> None:
        k, geometry = self.k, self.geometry
        full = self.barriers + uint32(chunk.slot * 8)
        block = self.part * chunk.share.kblocks + chunk.first
        size = chunk.count * geometry.rows * BLOCK_WORDS * 4 // geometry.together
        target, word = self._stage(chunk), source(chunk.share) + block * (geometry.rows * BLOCK_WORDS)
        if geometry.together == 1:
            k.do(I.ptx[BULK](target, k["exchange"].ptr_to([word]), uint32(size), full))
            return
        target = target + tirx.Cast("uint32", self.number * size)
        address = k["exchange"].ptr_to([word + self.number * (size // 4)])
        mask = tirx.const((1 << geometry.together) - 1, "uint16")
        k.do(I.ptx[BULK + ".multicast::cluster"](target, address, uint32(size), full, mask))
