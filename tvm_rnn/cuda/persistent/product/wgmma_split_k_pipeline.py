"""The ring of a cluster that shares K: bulk copies fill its stages, all warpgroups of the block multiply each of them.

In: a `Pooled` team and the exchange that values lie in. Out: statements: barriers, copies, waits. A step begins with
stage 0, so which stage a chunk has, and the parity of its barriers, are known when the kernel is written. The block's
first thread copies; weights that are streamed do not wait for what others publish, so they come while it does.

Source: Hopper's asynchronous copies and barriers: PTX ISA 8.5, "cp.async.bulk", "mbarrier".
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.bulk_copy_pipeline import BULK, BulkRing, Ringed, uint32
from tvm_rnn.cuda.persistent.geometry import BLOCK_WORDS, Share

from . import wgmma_split_k_layout
from .wgmma_pipelined_layout import Chunk
from .wgmma_split_k_layout import Pooled

Expr = Any
EVICT_LAST = 0x14F0000000000000  # a policy of copies, as createpolicy makes it: weights come again in the next step


class PooledRing(BulkRing):
    """Of one kernel. `names`: the pointers of packed weights."""

    layout = wgmma_split_k_layout
    team: Pooled

    def __init__(
        self, k: Writer, team: Pooled, ids: Any, arena: Any, exchange: Ringed, names: dict[Share, str]
    ) -> None:
        super().__init__(k, team, ids, arena, exchange, names)
        self.bytes = wgmma_split_k_layout.stage_bytes(team)
        self.number = k.keep(tirx.floormod(ids.rank, team.together))  # of this block in its cluster: its part of K

    def refresh(self) -> None:
        """At the start of a product."""
        self.base = self.k.fresh(self.start_base)

    def start(self) -> None:
        """Before the first product."""
        self._start(1, self.team.warps)

    def barrier(self, number: int) -> Expr:
        return self.base + uint32(self.places.barriers + number * 8)

    def release(self, chunk: Chunk) -> None:
        """This warp reads it no more."""
        with self.k.when(self.ids.lane == 0):
            self.k.do(I.ptx["mbarrier.arrive.shared.b64"](self.barrier(chunk.slot + self.team.ring)))

    def _copies(self) -> Expr:
        return self.ids.thread == 0

    def _expect(self, phase: Phase, chunk: Chunk) -> None:
        k, team, share = self.k, self.team, chunk.share
        self._wait(chunk.slot + team.ring, 1 - self._parity(chunk))
        full = self.barrier(chunk.slot)
        operand = chunk.count * team.operand_bytes
        far = chunk.count * team.far_bytes(phase) if chunk.streamed else 0
        k.do(I.ptx["mbarrier.arrive.expect_tx.shared.b64"](full, uint32(operand + far)))
        if chunk.streamed:
            before = share.registers * team.near_bytes(phase) + (chunk.first - share.registers) * team.far_bytes(phase)
            place = tirx.Cast("int64", self.ids.rank) * team.packed_bytes(phase, share) + before
            address = k[self.names[share]].ptr_to([tirx.floordiv(place, team.itemsize)])
            policy = tirx.const(EVICT_LAST, "uint64")
            k.do(I.ptx[BULK + ".L2::cache_hint"](self._stage(chunk, operand), address, uint32(far), full, policy))

    def _operand(self, chunk: Chunk, source: Any) -> None:
        k, team = self.k, self.team
        block = self.number * chunk.share.kblocks + chunk.first
        address = k["exchange"].ptr_to([source(chunk.share) + block * (team.rows * BLOCK_WORDS)])
        size = uint32(chunk.count * team.operand_bytes)
        k.do(I.ptx[BULK](self._stage(chunk), address, size, self.barrier(chunk.slot)))

    def _stage(self, chunk: Chunk, at: int = 0) -> Expr:
        return self.base + uint32(self.places.ring + chunk.slot * self.bytes + at)
