"""GEMM without tensor cores for the rows of one step, for Hopper: K is shared out over a cluster, and over warps.

In: a `Problem` and a tile. Out: a `Kernel`. A step has so few tiles that some multiprocessors would multiply two and
others one; a share of K for each block of a cluster makes as many parts as there are multiprocessors. Four warps copy,
ahead by some pipeline stages; the others multiply, each group of them every `split`-th stage, and meet only to add up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer
from tvm_rnn.cuda.layer.packed_layout import CHUNKS
from tvm_rnn.cuda.layer.pipeline_barriers import COPIERS, LAG, Stages
from tvm_rnn.tir.expr import Expr, TirExpr
from tvm_rnn.tir.index import uint32

from .cp_async_pipeline import cp_async_kernel
from .ffma import LanesTile, _Lanes
from .problem import Problem


@dataclass(frozen=True)
class SharedLanesTile(LanesTile):
    """split: groups of threads that take turns with stages. copying: as those see it that copy."""

    copying: bool = False

    @property
    def members(self) -> int:
        """Threads that multiply."""
        return self.across * self.down * self.split

    @property
    def threads(self) -> int:
        return COPIERS if self.copying else self.members

    @property
    def shared_bytes(self) -> int:
        return max(self.stages * (self.stage_bytes + 16), self.members * self.sums)


def shared_lanes_kernel(name: str, problem: Problem, tile: SharedLanesTile) -> Kernel:
    """A kernel for any number of rows and any operands."""
    group = tile.across * tile.down
    assert group % 32 == 0 and tile.high % tile.cluster == 0 and tile.parts > 1 and tile.stages > LAG + 1
    threads = tile.members + COPIERS
    return cp_async_kernel(name, problem, tile, lambda w: _SharedLanes(w, problem, tile), threads)


class _SharedLanes(_Lanes, Stages):
    tile: SharedLanesTile

    def __init__(self, w: Writer, problem: Problem, tile: SharedLanesTile) -> None:
        super().__init__(w, problem, tile)
        self.threads = tile.members + COPIERS

    def body(self) -> None:
        """Copiers and multipliers, in place of one loop for all."""
        w, tile = self.w, self.tile
        first = w.keep(tirx.truncdiv(self.rank * self.total, tile.cluster))
        count = w.keep(tirx.truncdiv((self.rank + 1) * self.total, tile.cluster) - first)
        self._barriers()
        with I.If(self.tx < tile.members):
            with I.Then():
                self._consume(count)
                self._combine()
            with I.Else():
                self.tx, self.tile = w.bind(self.tx - tile.members), replace(tile, copying=True)
                self._produce(first, count)
                self._meet()
                self._meet()

    # --- barriers --------------------------------------------------------------------------------------------------

    def _barriers(self) -> None:
        w, tile = self.w, self.tile
        with w.when(tirx.EQ(self.tx, 0)):
            for slot in range(tile.stages):
                at = tirx.const(slot, "int32")
                w.do(I.ptx.mbarrier.init.shared.b64(self._full(at), uint32(COPIERS // 32)))
                w.do(I.ptx.mbarrier.init.shared.b64(self._empty(at), uint32(tile.members // tile.split // 32)))
            w.do(I.ptx.fence.mbarrier_init.release.cluster())
        w.do(I.cuda.cta_sync())

    def _slot(self, turn: Expr) -> TirExpr:
        return tirx.truncmod(turn, self.tile.stages)

    def _round(self, turn: Expr) -> TirExpr:
        return tirx.truncdiv(turn, self.tile.stages)

    # --- copying and multiplying -----------------------------------------------------------------------------------

    def _produce(self, first: Expr, count: Expr) -> None:
        w = self.w
        self._sources()
        with w.loop(count) as k, self._filling(k) as slot:
            self._fill(slot, first + k)
        self._filled(count)

    def _announce(self, pending: int, slot: TirExpr) -> None:
        """The copies of a stage are done."""
        self.w.do(I.ptx["cp.async.wait_group"](pending))
        self._arrive(self._full(slot))

    def _consume(self, count: Expr) -> None:
        w, tile = self.w, self.tile
        turns = w.keep(tirx.truncdiv(count - self.part + (tile.split - 1), tile.split))
        with w.loop(turns) as turn:
            k = w.keep(self.part + turn * tile.split)
            slot = w.keep(self._slot(k))
            self._wait(self._full(slot), self._round(k) % 2)
            self.multiply(w.keep(self.base + tirx.Cast("uint32", slot) * uint32(tile.stage_bytes)))
            self._arrive(self._empty(slot))

    def chunks(self) -> tuple[int, Callable[[Expr], Expr]]:
        return CHUNKS, lambda c: c

    # --- results ---------------------------------------------------------------------------------------------------

    def pieces(self, item: int, block: int) -> list[tuple[int, ...]]:
        """Items: the rows of a thread that one block of the cluster finishes."""
        return super().pieces(item * self.tile.cluster + block, 0)

    def prepare(self) -> None:
        super().prepare()
        self.items = self.tile.high // self.tile.cluster

    def finish(self, item: int) -> None:
        line = self.y + (item * self.tile.cluster + self.rank) * self.tile.down
        self._finish_row(item, self.w.keep(self.row0 + tirx.Cast("int64", line)))
