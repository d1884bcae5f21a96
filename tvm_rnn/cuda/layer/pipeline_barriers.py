"""Pipeline stages in shared memory, which some warps fill and others read, with the barriers between them.

In: a kernel's writer. Out: base classes of a tile, which says how many stages there are, of how many bytes, and in
clusters of how many blocks, and of the kernel's body: barriers made, waited for, told; stages that are filled by
cp.async, whose copies tell a barrier when they are done.

Source: Hopper's barriers: PTX ISA 8.5, "mbarrier", "barrier.cluster", "mapa".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import DEPENDENT, Kernel, Writer, write
from tvm_rnn.graph.scalar_cuda import flavour
from tvm_rnn.tir.expr import Buffer, Expr, TirExpr
from tvm_rnn.tir.index import uint32

LEAST_STAGES = 4  # of a pipeline that products do not wait for
COPIERS = 128  # threads that copy
Pairs = Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class BlockTile(ABC):
    """What a block of a kernel has of a product. stages: of its pipeline; cluster: blocks, which may fill each other's
    stages; overlap: what can be fetched is, while the kernel before this one still runs; blocks: that registers must
    allow on a multiprocessor. apart: warps of their own copy, and tell the others by two barriers for each stage."""

    apart: ClassVar[bool] = True
    shares: ClassVar[bool] = False  # see `Kernel`
    stages: int = 4
    cluster: int = 1
    overlap: bool = False
    blocks: int = 1

    @property
    @abstractmethod
    def members(self) -> int:
        """Threads that multiply."""

    @property
    def threads(self) -> int:
        return self.members + (COPIERS if self.apart else 0)

    @property
    def copiers(self) -> int:
        """Threads that copy."""
        return COPIERS if self.apart else self.members

    @property
    @abstractmethod
    def stage_bytes(self) -> int: ...

    @property
    def shared_bytes(self) -> int:
        return self.stages * (self.stage_bytes + (16 if self.apart else 0))

    @property
    def readers(self) -> int:
        """Blocks of the cluster that read what one of them copies."""
        return self.cluster

    @property
    def in_cluster(self) -> int:
        """Blocks that are launched as a cluster."""
        return self.cluster

    def write(
        self,
        name: str,
        precision: str,
        pointers: Pairs,
        scalars: Pairs,
        body: Callable[[Writer], Stages],
        *,
        early: bool = False,
    ) -> Kernel:
        """A kernel of such blocks. It has a register cap in any case: without one the compiler ignores setmaxnreg.
        early: it is launched while the kernel before it still runs, in any case."""

        def run(w: Writer) -> None:
            with flavour(precision), I.attr({"tirx.launch_bounds_min_blocks_per_sm": self.blocks}):
                body(w).run()

        attributes = {"tirx.kernel_launch_params": [DEPENDENT]} if self.overlap or early else None
        return write(
            *(name, pointers, scalars, run),
            threads=self.threads,
            attributes=attributes,
            shared_bytes=self.shared_bytes,
            cluster=self.in_cluster,
            shares=self.shares,
        )


class Stages(ABC):
    """A kernel's body: run() emits all of it. Stages from `base` on, and behind them two barriers each, of 8 bytes:
    full and empty. tx: the thread's number. by_wgmma: whether wgmma reads what cp.async wrote."""

    w: Writer
    tile: BlockTile
    by_wgmma = True
    stores = False  # whether who copies also stores what no copy brings
    div, mod = staticmethod(tirx.floordiv), staticmethod(tirx.floormod)  # of the numbers of turns

    @abstractmethod
    def run(self) -> None: ...

    def _allocate(self) -> None:
        """A block's threads and shared memory."""
        self.tx: TirExpr = I.thread_id([self.tile.threads])
        self.arena: Buffer = I.alloc_buffer((self.tile.shared_bytes,), "uint8", scope="shared.dyn", align=1024)
        self.base = self.w.bind(I.cuda.cvta_generic_to_shared(self.arena.ptr_to([0])))

    def _make_barriers(self, full: int, empty: int) -> None:
        """Make them. full, empty: how many arrivals complete one of either kind."""
        w = self.w
        with w.when(tirx.EQ(self.tx, 0)):
            for slot in range(self.tile.stages):
                at = tirx.const(slot, "int32")
                w.do(I.ptx.mbarrier.init.shared.b64(self._full(at), uint32(full)))
                w.do(I.ptx.mbarrier.init.shared.b64(self._empty(at), uint32(empty)))
            w.do(I.ptx.fence.mbarrier_init.release.cluster())
            if self.by_wgmma:
                w.do(I.ptx.fence.proxy.async_.shared__cta())
        w.do(I.cuda.cta_sync())

    def _meet(self, alone: bool = False) -> None:
        """All blocks of the cluster: none may leave while others copy into it. alone: a block that is no cluster's,
        too."""
        if self.tile.cluster > 1:
            self._meet_cluster()
        elif alone:
            self.w.do(I.cuda.cta_sync())

    def _meet_cluster(self) -> None:
        """All threads of all blocks."""
        self.w.do(I.ptx["barrier.cluster.arrive.release.aligned"]())
        self.w.do(I.ptx["barrier.cluster.wait.acquire.aligned"]())

    def _slot(self, turn: Expr) -> TirExpr:
        """Which stage a turn has."""
        return self.mod(turn, self.tile.stages)

    def _round(self, turn: Expr) -> TirExpr:
        """How often the stage of a turn was used before."""
        return self.div(turn, self.tile.stages)

    # --- filling ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _filling(self, turn: TirExpr) -> Iterator[TirExpr]:
        """Statements that start the copies of a stage, into the slot that this yields, when nobody reads it any more.
        Each thread's tell its barrier when they are done: nobody waits for them before the next ones start, since what
        is under way is what a block reads in the time that memory takes."""
        slot = self.w.bind(self._slot(turn))
        self._wait(self._empty(slot), (self._round(turn) + 1) % 2)
        yield slot
        self.w.do(I.ptx["cp.async.mbarrier.arrive.noinc.shared.b64"](self._full(slot)))
        if self.stores:
            self._arrive(self._full(slot))

    @property
    def arrivals(self) -> int:
        """How many by copying threads fill a stage."""
        return COPIERS + (COPIERS // 32 if self.stores else 0)

    def _filled(self) -> None:
        """Behind the last stage: no copies are under way when threads end."""
        self.w.do(I.ptx["cp.async.commit_group"]())
        self.w.do(I.ptx["cp.async.wait_group"](0))

    def _arrive(self, barrier: TirExpr) -> None:
        """By one thread of each warp, after all of it."""
        self.w.do(I.cuda.warp_sync())
        with self.w.when(tirx.EQ(self.tx % 32, 0)):
            self.w.do(I.ptx["mbarrier.arrive.shared.b64"](barrier))

    # --- reading ---------------------------------------------------------------------------------------------------

    def _wait_for_stage(self, slot: TirExpr, turn: Expr) -> None:
        """Until the stage of a turn is filled."""
        self._wait(self._full(slot), self._round(turn) % 2)
        if self.by_wgmma:
            self.w.do(I.ptx.fence.proxy.async_.shared__cta())

    def _remote(self, lane: TirExpr) -> TirExpr:
        """The first "empty" barrier of the block of the cluster that this lane tells."""
        barrier = self._empty(tirx.const(0, "int32"))
        if self.tile.readers == 1:
            return barrier
        found = self.w.local(1, "uint32")
        rank = tirx.Cast("uint32", lane % self.tile.readers)
        self.w.do(I.ptx["mapa.shared::cluster.u32"](found[0], barrier, rank))
        return found[0]

    def _release(self, barrier: TirExpr, turn: Expr) -> None:
        """Tell that this warp reads the stage of that turn no more. barrier: from `_remote`."""
        at = barrier + tirx.Cast("uint32", self._slot(turn) * 8)
        if self.tile.readers > 1:
            self.w.do(I.ptx.mbarrier.arrive.shared__cluster.b64(at))
        else:
            self.w.do(I.ptx["mbarrier.arrive.shared.b64"](at))

    # --- barriers --------------------------------------------------------------------------------------------------

    def _full(self, slot: TirExpr) -> TirExpr:
        """Address of the barrier that says that a stage holds data."""
        return self.base + uint32(self.tile.stages * self.tile.stage_bytes) + tirx.Cast("uint32", slot * 8)

    def _empty(self, slot: TirExpr) -> TirExpr:
        """Address of the barrier that says that nobody reads a stage any more, in the whole cluster."""
        return self._full(slot + self.tile.stages)

    def _wait(self, barrier: TirExpr, parity: Expr) -> None:
        """Until the phase with that parity is over."""
        w = self.w
        done = w.local(1, "uint32")
        w.store(done, uint32(0), 0)
        with I.While(tirx.EQ(done[0], uint32(0))):
            w.do(I.ptx["mbarrier.try_wait.parity.shared::cta.b64"](done[0], barrier, tirx.Cast("uint32", parity)))
