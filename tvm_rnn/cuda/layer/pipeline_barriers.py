"""The barriers of a ring of stages in shared memory, which some warps fill and others read.

In: a kernel's writer, where its shared memory begins, a tile that says how many stages there are, of how many bytes,
and in clusters of how many blocks. Out: a base class for the kernel's body: barriers made, waited for, told.

Source: Hopper's barriers: PTX ISA 8.5, "mbarrier", "barrier.cluster", "mapa".
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.gemm.problem import uint32

Expr = Any


class Stages:
    """The barriers of a ring that copiers fill and others read: behind the stages, 8 bytes each. Blocks of a cluster
    (tile.cluster) may fill each other's."""

    w: Any
    base: Any
    tile: Any
    tx: Any

    def _make_barriers(self, full: int, empty: int) -> None:
        """Make them. full, empty: how many arrivals complete one of either kind."""
        w = self.w
        with w.when(self.tx == 0):
            for slot in range(self.tile.stages):
                at = tirx.const(slot, "int32")
                w.do(I.ptx.mbarrier.init.shared.b64(self._full(at), uint32(full)))
                w.do(I.ptx.mbarrier.init.shared.b64(self._empty(at), uint32(empty)))
            w.do(I.ptx.fence.mbarrier_init.release.cluster())
            w.do(I.ptx.fence.proxy.async_.shared__cta())
        w.do(I.cuda.cta_sync())

    def _meet(self) -> None:
        """All blocks of the cluster: none may leave while others copy into it."""
        if self.tile.cluster > 1:
            self.w.do(I.ptx["barrier.cluster.arrive.release.aligned"]())
            self.w.do(I.ptx["barrier.cluster.wait.acquire.aligned"]())

    def _remote(self, lane: Expr) -> Expr:
        """The first "empty" barrier of the block of the cluster that this lane tells."""
        barrier = self._empty(tirx.const(0, "int32"))
        if self.tile.cluster == 1:
            return barrier
        found = self.w.local(1, "uint32")
        rank = tirx.Cast("uint32", lane % self.tile.cluster)
        self.w.do(I.ptx["mapa.shared::cluster.u32"](found[0], barrier, rank))
        return found[0]

    def _release(self, barrier: Expr, turn: Expr) -> None:
        """Tell that this warp reads the stage of that turn no more. barrier: from `_remote`."""
        at = barrier + tirx.Cast("uint32", turn % self.tile.stages * 8)
        if self.tile.cluster > 1:
            self.w.do(I.ptx.mbarrier.arrive.shared__cluster.b64(at))
        else:
            self.w.do(I.ptx["mbarrier.arrive.shared.b64"](at))

    def _full(self, slot: Expr) -> Expr:
        """Address of the barrier that says that a stage holds data."""
        return self.base + uint32(self.tile.stages * self.tile.stage_bytes) + tirx.Cast("uint32", slot * 8)

    def _empty(self, slot: Expr) -> Expr:
        """Address of the barrier that says that nobody reads a stage any more, in the whole cluster."""
        return self._full(slot + self.tile.stages)

    def _wait(self, barrier: Expr, parity: Expr) -> None:
        """Until the phase with that parity is over."""
        w = self.w
        done = w.local(1, "uint32")
        w.store(done, uint32(0), 0)
        with I.While(done[0] == uint32(0)):
            w.do(I.ptx["mbarrier.try_wait.parity.shared::cta.b64"](done[0], barrier, tirx.Cast("uint32", parity)))
