"""The pipeline of a cluster that shares K: bulk copies fill its stages, all warpgroups of the block multiply each of
them.

In: a `WgmmaSplitKLayout` and the exchange that values lie in. Out: statements: barriers, copies, waits. A step begins
with stage 0, so which stage a chunk has, and the parity of its barriers, are known when the kernel is written. The
block's first thread copies; weights that are streamed do not wait for what others publish, so they come while it does.

Source: Hopper's asynchronous copies and barriers: PTX ISA 8.5, "cp.async.bulk", "mbarrier".
"""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.geometry import BLOCK_WORDS, Body
from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import uint32

from .bulk_copy_pipeline import BULK, BulkCopyExchange, BulkCopyPipeline, Source
from .wgmma_pipelined_layout import Chunk
from .wgmma_split_k_layout import WgmmaSplitKLayout, chunks, memory_map, stage_bytes, uses

EVICT_LAST = 0x14F0000000000000  # a policy of copies, as createpolicy makes it: weights come again in the next step


class ClusterPipeline(BulkCopyPipeline):
    """Of one kernel."""

    def __init__(self, body: Body, geometry: WgmmaSplitKLayout, exchange: BulkCopyExchange) -> None:
        self.memory_map = memory_map(geometry)
        shape = geometry.ring, geometry.together, self.memory_map.barriers
        super().__init__(body, exchange, shape, chunks(geometry), uses(geometry))
        self.geometry, self.names = geometry, geometry.weight_names
        self.bytes = stage_bytes(geometry)
        # Of this block in its cluster: its part of K.
        self.number = self.k.keep(tirx.floormod(body.ids.rank, geometry.together))

    def refresh(self) -> None:
        """At the start of a product."""
        self.base = self.k.fresh(self.start_base)

    def start(self) -> None:
        """Before the first product."""
        self._start(1, self.geometry.warps)

    def barrier(self, number: int) -> Expr:
        return self.base + uint32(self.memory_map.barriers + number * 8)

    def release(self, chunk: Chunk) -> None:
        """This warp reads it no more."""
        with self.k.when(self.ids.lane == 0):
            self.k.do(I.ptx["mbarrier.arrive.shared.b64"](self.barrier(chunk.slot + self.geometry.ring)))

    def _copies(self) -> Expr:
        return self.ids.thread == 0

    def _expect(self, phase: Phase, chunk: Chunk) -> None:
        k, geometry, share = self.k, self.geometry, chunk.share
        self._wait(chunk.slot + geometry.ring, 1 - self._parity(chunk))
        full = self.barrier(chunk.slot)
        operand = chunk.count * geometry.operand_bytes
        far = chunk.count * geometry.far_bytes(phase) if chunk.streamed else 0
        k.do(I.ptx["mbarrier.arrive.expect_tx.shared.b64"](full, uint32(operand + far)))
        if chunk.streamed:
            before = share.registers * geometry.near_bytes(phase) + (
                chunk.first - share.registers
            ) * geometry.far_bytes(phase)
            place = tirx.Cast("int64", self.ids.rank) * geometry.packed_bytes(phase, share) + before
            address = k[self.names[share]].ptr_to([tirx.floordiv(place, geometry.itemsize)])
            policy = tirx.const(EVICT_LAST, "uint64")
            k.do(I.ptx[BULK + ".L2::cache_hint"](self._stage(chunk, operand), address, uint32(far), full, policy))

    def _operand(self, chunk: Chunk, source: Source) -> None:
        k, geometry = self.k, self.geometry
        block = self.number * chunk.share.kblocks + chunk.first
        address = k["exchange"].ptr_to([source(chunk.share) + block * (geometry.rows * BLOCK_WORDS)])
        size = uint32(chunk.count * geometry.operand_bytes)
        k.do(I.ptx[BULK](self._stage(chunk), address, size, self.barrier(chunk.slot)))

    def _stage(self, chunk: Chunk, at: int = 0) -> Expr:
        return self.base + uint32(self.memory_map.pipeline + chunk.slot * self.bytes + at)
