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

from .kernel import Writer
from .phases import Phase
from .pooled_layout import Pooled, chunks, places, stage_bytes, uses
from .ring import BULK, Ringed, uint32
from .team import BLOCK_WORDS, Share
from .wide_layout import Chunk

Expr = Any
EVICT_LAST = 0x14F0000000000000  # a policy of copies, as createpolicy makes it: weights come again in the next step


class PooledRing:
    """Of one kernel. `names`: the pointers of packed weights."""

    def __init__(
        self, k: Writer, team: Pooled, ids: Any, arena: Any, exchange: Ringed, names: dict[Share, str]
    ) -> None:
        self.k, self.team, self.ids, self.exchange, self.names = k, team, ids, exchange, names
        self.places, self.chunks, self.uses, self.bytes = places(team), chunks(team), uses(team), stage_bytes(team)
        self.par = 0
        self.base = self.start_base = k.keep(I.cuda.cvta_generic_to_shared(arena.ptr_to([tirx.const(0, "int32")])))
        self.number = k.keep(tirx.floormod(ids.rank, team.together))  # of this block in its cluster: its part of K

    def refresh(self) -> None:
        """At the start of a product."""
        self.base = self.k.fresh(self.start_base)

    # --- barriers ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        k, team = self.k, self.team
        with k.when(self.ids.thread == 0):
            for number in range(2 * team.ring):  # "full" of every stage, then "empty"
                count = team.warps if number >= team.ring else 1
                k.do(I.ptx.mbarrier.init.shared.b64(self.barrier(number), uint32(count)))
            k.do(I.ptx.fence.mbarrier_init.release.cluster())
        k.do(I.ptx.fence.proxy.async_.shared__cta())  # also of the weights that every thread has laid down
        k.do(I.cuda.cta_sync())
        self.meet()

    def meet(self) -> None:
        """All blocks of the cluster: what each has stored in shared memory, the others see."""
        self.k.do(I.ptx["barrier.cluster.arrive.release.aligned"]())
        self.k.do(I.ptx["barrier.cluster.wait.acquire.aligned"]())

    def barrier(self, number: int) -> Expr:
        return self.base + uint32(self.places.barriers + number * 8)

    def _parity(self, chunk: Chunk) -> int:
        """Of the uses of its stage before this one, since the kernel's start; a step's number is even or odd as par."""
        return (self.par * self.uses[chunk.slot] + chunk.turn) % 2

    def _wait(self, number: int, parity: int) -> None:
        k = self.k
        done = k.local(1, "uint32")
        k.store(done, uint32(0), 0)
        with I.While(done[0] == uint32(0)):
            k.do(I.ptx["mbarrier.try_wait.parity.shared::cta.b64"](done[0], self.barrier(number), uint32(parity)))

    def wait(self, chunk: Chunk) -> None:
        """Until it is there."""
        self._wait(chunk.slot, self._parity(chunk))

    def release(self, chunk: Chunk) -> None:
        """This warp reads it no more."""
        with self.k.when(self.ids.lane == 0):
            self.k.do(I.ptx["mbarrier.arrive.shared.b64"](self.barrier(chunk.slot + self.team.ring)))

    # --- copies ------------------------------------------------------------------------------------------------------

    def begin(self, phase: Phase, source: Any) -> None:
        """Fill the ring: weights at once, operands when they are published. source(share): their first word."""
        k, first = self.k, self.chunks[phase][: self.team.ring]
        with k.when(self.ids.thread == 0):
            for chunk in first:
                self._expect(phase, chunk)
            if self.exchange.due is not None:
                self.exchange.poll(self.exchange.due)
            k.do(I.ptx["fence.proxy.async.global"]())
            for chunk in first:
                self._operand(chunk, source)
        k.do(I.cuda.warp_sync())
        self.exchange.due = None

    def refill(self, phase: Phase, number: int, source: Any) -> None:
        """The stage of a phase's number-th chunk, with the next one that belongs there."""
        k, after = self.k, number + self.team.ring
        if after >= len(self.chunks[phase]):
            return
        with k.when(self.ids.thread == 0):
            self._expect(phase, self.chunks[phase][after])
            self._operand(self.chunks[phase][after], source)
        k.do(I.cuda.warp_sync())

    def _expect(self, phase: Phase, chunk: Chunk) -> None:
        """When the stage is free: announce its bytes, and copy weights."""
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
