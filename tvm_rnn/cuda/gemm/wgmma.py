"""GEMM by wgmma, for Hopper: large products of 16-bit or tf32 operands.

In: a `Problem` and a tile. Out: a persistent `Kernel`. One warpgroup copies: the rows of x by cp.async (any row stride
that is a multiple of 4 bytes, zeros beyond the last row), the packed weights by bulk copies, of which each block of a
cluster fetches its part for all. Two warpgroups multiply 64 rows each and run the epilogue while the ring fills again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.layer.packed_layout import CHUNKS, ROW_BYTES, SIZES, Fragments, ceil_div
from tvm_rnn.cuda.layer.pipeline_barriers import Stages

from .cp_async_pipeline import copy_chunk
from .problem import Problem, int64, keep, uint32

Expr = Any
ROWS, CONSUMERS, STEPS = 128, 2, 4  # of a block; warpgroups that multiply; steps of 32 bytes of K in a stage
THREADS = 128 * (CONSUMERS + 1)
LAG = 2  # stages between a copy's start and its announcement
INPUTS: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "bfloat16": ("k16", "bf16.bf16", (0, 0)),
    "float16": ("k16", "f16.f16", (0, 0)),
    "float32": ("k8", "tf32.tf32", ()),
}
BULK = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
FEW_REGISTERS, MANY_REGISTERS = 40, 232  # of a copying and of a multiplying thread


@dataclass(frozen=True)
class WgmmaTile:
    """columns of a block (at most 256); stages of the ring; cluster: blocks that share weights; blocks: at once."""

    columns: int
    stages: int = 4
    cluster: int = 2
    blocks: int = 132
    group: int = 8

    @property
    def stage_bytes(self) -> int:
        return (ROWS + self.columns) * ROW_BYTES

    @property
    def shared_bytes(self) -> int:
        return self.stages * (self.stage_bytes + 16)


def wgmma_kernel(name: str, problem: Problem, tile: WgmmaTile) -> Kernel:
    """A kernel for operands that the hardware copies."""
    layout = problem.fragments
    assert tile.columns % layout.block == 0 and layout.columns % tile.columns == 0 and tile.columns <= 256
    assert tile.stages > LAG + 1 and tile.columns % (8 * tile.cluster) == 0

    def body(w: Writer) -> None:
        # The register cap of one block: without it the compiler ignores setmaxnreg.
        with problem.flavour(), I.attr({"tirx.launch_bounds_min_blocks_per_sm": 1}):
            _Wgmma(w, problem, tile).run()

    given = problem.pointers, problem.scalars, body
    return write(name, *given, threads=THREADS, shared_bytes=tile.shared_bytes, cluster=tile.cluster)


class _Wgmma(Stages):
    tile: Any  # a WgmmaTile, or that of a kind of kernel that is made of this one

    def __init__(self, w: Writer, problem: Problem, tile: Any) -> None:
        self.w, self.problem, self.tile = w, problem, tile
        self.layout: Fragments = problem.fragments
        self.depths = [self.layout.tiles_deep(o.depth) for o in problem.operands]
        self.total = sum(self.depths)
        self.tiles = ceil_div(problem.epilogue.width, tile.columns // problem.gates)

    def run(self) -> None:
        w, tile = self.w, self.tile
        high = tirx.floordiv(w["rows"] + (ROWS * tile.cluster - 1), int64(ROWS * tile.cluster))
        clusters = tirx.Cast("int32", tirx.min(high * self.tiles, int64(tile.blocks // tile.cluster)))
        if tile.cluster > 1:
            first, rank = I.cluster_id([clusters]), I.cta_id_in_cluster([tile.cluster])
            own = w.local(2, "int32")  # special registers: read once
            w.store(own, first, 0)
            w.store(own, rank, 1)
            self.first, self.rank = own[0], own[1]
        else:
            self.first, self.rank = I.cta_id([clusters]), tirx.const(0, "int32")
        self.tx = I.thread_id([THREADS])
        self.arena = I.alloc_buffer((tile.shared_bytes,), "uint8", scope="shared.dyn", align=1024)
        self.base = w.bind(I.cuda.cvta_generic_to_shared(self.arena.ptr_to([0])))
        self.high, self.clusters = keep(w, tirx.Cast("int32", high)), keep(w, clusters)
        left = self.high * self.tiles - self.first + (self.clusters - 1)
        self.items = keep(w, tirx.truncdiv(left, self.clusters))
        self._make_barriers(5, 4 * CONSUMERS * tile.cluster)  # full: by 4 warps, and the bulk copies
        self._meet()
        with I.If(self.tx < 128):
            with I.Then():
                w.do(I.ptx["setmaxnreg.dec.sync.aligned.u32"](FEW_REGISTERS))
                self._produce()
            with I.Else():
                w.do(I.ptx["setmaxnreg.inc.sync.aligned.u32"](MANY_REGISTERS))
                self._consume()
        self._meet()

    def _item(self, number: Expr) -> tuple[Expr, Expr]:
        """(first row, tile of columns) of this block's item: down `group` blocks of rows, then the next columns."""
        w, tile = self.w, self.tile
        item = keep(w, self.first + number * self.clusters)
        period = tile.group * self.tiles
        start = keep(w, tirx.truncdiv(item, period) * tile.group)
        height = keep(w, tirx.min(self.high - start, tile.group))
        within = keep(w, tirx.truncmod(item, period))
        block = (start + tirx.truncmod(within, height)) * tile.cluster + self.rank
        return keep(w, tirx.Cast("int64", block) * ROWS), keep(w, tirx.truncdiv(within, height))

    # --- copying ---------------------------------------------------------------------------------------------------

    def _produce(self) -> None:
        w = self.w
        self.chunk, line = w.bind(self.tx % CHUNKS), w.bind(self.tx // CHUNKS)
        swizzled = tirx.bitwise_xor(self.chunk, line % CHUNKS) * 16
        self.into = w.bind(tirx.Cast("uint32", line * ROW_BYTES + swizzled))
        with w.loop(self.items) as number:
            row0, column = self._item(number)
            row = row0 + tirx.Cast("int64", line)
            left = keep(w, tirx.Cast("int32", tirx.min(w["rows"] - row, int64(ROWS))))
            with w.loop(self.total) as k:
                turn = w.bind(number * self.total + k)
                slot = w.bind(turn % self.tile.stages)
                self._wait(self._empty(slot), (turn // self.tile.stages + 1) % 2)
                start = 0
                for operand, deep in enumerate(self.depths):
                    if len(self.depths) == 1:
                        self._copy(operand, slot, k, row, left, column)
                    else:
                        with w.when(tirx.And(k >= start, k < start + deep)):
                            self._copy(operand, slot, k - start if start else k, row, left, column)
                    start += deep
                w.do(I.ptx["cp.async.commit_group"]())
                with w.when(turn >= LAG):
                    self._announce(LAG, (turn - LAG) % self.tile.stages)
        last = self.items * self.total
        for behind in range(LAG, 0, -1):  # fewer where there are fewer, over all items: a short K has one tile in each
            with w.when(last >= behind):
                self._announce(behind - 1, (last - behind) % self.tile.stages)

    def _announce(self, pending: int, slot: Expr) -> None:
        """The copies of a stage are done, and visible to wgmma."""
        w = self.w
        w.do(I.ptx["cp.async.wait_group"](pending))
        w.do(I.ptx.fence.proxy.async_.shared__cta())
        w.do(I.cuda.warp_sync())
        with w.when(self.tx % 32 == 0):
            w.do(I.ptx["mbarrier.arrive.shared.b64"](self._full(slot)))

    def _copy(self, number: int, slot: Expr, k: Expr, row: Expr, left: Expr, column: Expr) -> None:
        w, tile, layout, operand = self.w, self.tile, self.layout, self.problem.operands[number]
        stage = w.bind(self.base + tirx.Cast("uint32", slot) * uint32(tile.stage_bytes))
        with w.when(self.tx == 0):
            part = tile.columns // tile.cluster  # columns that this block fetches
            offset = self.rank * (part * ROW_BYTES) if tile.cluster > 1 else tirx.const(0, "int32")
            target = stage + uint32(ROWS * ROW_BYTES) + tirx.Cast("uint32", offset)
            first = tirx.Cast("int64", column * tile.columns + self.rank * part) * layout.deep
            source = w[self.problem.weight_name(number)].ptr_to(
                [tirx.Cast("int64", k) * (layout.columns * layout.deep) + first]
            )
            full = w.bind(self._full(slot))
            w.do(I.ptx["mbarrier.arrive.expect_tx.shared.b64"](full, uint32(tile.columns * ROW_BYTES)))
            size = uint32(part * ROW_BYTES)
            if tile.cluster > 1:
                mask = tirx.const((1 << tile.cluster) - 1, "uint16")
                w.do(I.ptx[BULK + ".multicast::cluster"](target, source, size, full, mask))
            else:
                w.do(I.ptx[BULK](target, source, size, full))
        first = w.bind(k * layout.deep + self.chunk * layout.chunk)
        whole = operand.depth % layout.deep == 0
        reach = 16 if whole else tirx.max(tirx.min(operand.depth - first, layout.chunk), 0) * SIZES[layout.dtype]
        reach = reach if whole else w.bind(reach)
        assert operand.offset is not None
        at = w.bind(row * operand.place.row_stride + tirx.Cast("int64", first) + operand.offset)
        target = w.bind(stage + self.into)
        for i in range(ROWS * CHUNKS // 128):
            high = i * (128 // CHUNKS)
            size = tirx.Cast("uint32", tirx.Select(left > high, reach, 0))
            source = at + high * operand.place.row_stride
            copy_chunk(w, operand, layout.dtype, target + uint32(high * ROW_BYTES), source, size)

    # --- multiplying -----------------------------------------------------------------------------------------------

    def _consume(self) -> None:
        w, tile = self.w, self.tile
        lane, warp = w.bind(self.tx % 32), w.bind(self.tx // 32 - 4)
        acc = w.local(tile.columns // 2)
        desc = w.local(1, "uint64")
        w.do(I.cuda.wgmma.encode_matrix_descriptor(I.address_of(desc[0]), self.arena.ptr_to([0]), 1, 64, 3))
        release = self._remote(lane)
        own = w.bind(tirx.Cast("uint64", warp // 4 * (64 * ROW_BYTES // 16)))
        with w.loop(self.items) as number:
            row0, column = self._item(number)
            with w.loop(self.total) as k:
                turn = w.bind(number * self.total + k)
                slot = w.bind(turn % tile.stages)
                self._wait(self._full(slot), turn // tile.stages % 2)
                stage = w.bind(desc[0] + tirx.Cast("uint64", slot * (tile.stage_bytes // 16)))
                w.do(I.ptx.wgmma.fence.sync.aligned())
                for step in range(STEPS):
                    self._step(acc, stage + own, stage, step, k)
                w.do(I.ptx.wgmma.commit_group.sync.aligned())
                w.do(I.ptx.wgmma.wait_group.sync.aligned(1))
                with w.when(tirx.And(k > 0, lane < tile.cluster)):
                    self._release(release, turn - 1)
            w.do(I.ptx.wgmma.wait_group.sync.aligned(0))
            with w.when(lane < tile.cluster):
                self._release(release, number * self.total + (self.total - 1))
            row = row0 + tirx.Cast("int64", warp * 16)
            self.problem.finish_fragments(w, row, (column, tile.columns), lane, acc)

    def _step(self, acc: Any, a: Expr, b: Expr, step: int, k: Expr) -> None:
        deep, kinds, transposed = INPUTS[self.problem.compute]
        name = f"wgmma.mma_async.sync.aligned.m64n{self.tile.columns}{deep}.f32.{kinds}"
        add = tirx.const(1, "int32") if step else tirx.Cast("int32", k > 0)
        offset = tirx.const(2 * step, "uint64")
        from_b = b + tirx.const(ROWS * ROW_BYTES // 16 + 2 * step, "uint64")
        d = [acc[i] for i in range(self.tile.columns // 2)]
        self.w.do(I.ptx[name](*d, a + offset, from_b, I.ptx.pred(add), 1, 1, *transposed))
