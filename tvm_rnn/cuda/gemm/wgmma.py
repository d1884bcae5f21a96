"""GEMM by wgmma, for Hopper: large products of 16-bit or tf32 operands.

In: a `Problem` and a tile. Out: a persistent `Kernel`. One warpgroup copies: the rows of x by cp.async (any row stride
that is a multiple of 4 bytes, zeros beyond the last row), the packed weights by bulk copies, of which each block of a
cluster fetches its part for all. Two warpgroups multiply 64 rows each and run the epilogue while the stages fill again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.codegen.tile_layout import SWIZZLE_128
from tvm_rnn.cuda.layer.packed_layout import CHUNKS, ROW_BYTES, SIZES, Fragments, ceil_div
from tvm_rnn.cuda.layer.pipeline_barriers import COPIERS, LAG, Stages
from tvm_rnn.tir.expr import Expr, TirExpr
from tvm_rnn.tir.index import uint32

from .cp_async_pipeline import copy_chunk
from .problem import Problem, int64
from .wgmma_product import SQUARE_BYTES, WgmmaProduct, units

ROWS, CONSUMERS = 128, 2  # of a block; warpgroups that multiply
THREADS = COPIERS + 128 * CONSUMERS
BULK = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
FEW_REGISTERS, MANY_REGISTERS = 40, 232  # of a copying and of a multiplying thread


@dataclass(frozen=True)
class WgmmaTile:
    """columns of a block (at most 256); pipeline stages; cluster: blocks that share weights; blocks: at once."""

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


def bulk_copy(w: Writer, target: TirExpr, source: TirExpr, size: TirExpr, full: TirExpr, cluster: int = 1) -> None:
    """Consecutive bytes into shared memory, which barrier `full` waits for; with a cluster, into every block's."""
    if cluster == 1:
        w.do(I.ptx[BULK](target, source, size, full))
        return
    mask = tirx.const((1 << cluster) - 1, "uint16")
    w.do(I.ptx[BULK + ".multicast::cluster"](target, source, size, full, mask))


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


class WgmmaRows(Stages):
    """What kernels share whose copying warpgroup brings rows of x by cp.async. reach_kept: whether the bytes of a piece
    that a row has stay in a register."""

    rows: int  # of a stage
    reach_kept = False

    def __init__(self, w: Writer, problem: Problem, columns: int) -> None:
        self.w, self.problem = w, problem
        self.layout: Fragments = problem.fragments
        self.depths = [self.layout.tiles_deep(o.depth) for o in problem.operands]
        self.total = sum(self.depths)
        self.tiles = ceil_div(problem.epilogue.width, columns // problem.gates)

    def _line(self) -> TirExpr:
        """The first row that this thread copies a piece of, and where the piece goes."""
        w = self.w
        self.chunk, line = w.bind(self.tx % CHUNKS), w.bind(self.tx // CHUNKS)
        self.into = w.bind(tirx.Cast("uint32", SWIZZLE_128.offset(line, self.chunk)))
        return line

    def _operands(self, k: TirExpr) -> Iterator[tuple[int, TirExpr | None, TirExpr]]:
        """Of every operand: whether K tile k is its own (None: it is the only one), and the tile's number within it."""
        start = 0
        for number, deep in enumerate(self.depths):
            inside = None if len(self.depths) == 1 else tirx.And(k >= start, k < start + deep)
            yield number, inside, k - start if start else k
            start += deep

    def _rows(self, number: int, stage: TirExpr, k: TirExpr, row: TirExpr, left: TirExpr) -> None:
        """A K tile of x from `row` on, of which `left` are left; zeros beyond these and beyond the depth."""
        w, layout, operand = self.w, self.layout, self.problem.operands[number]
        assert operand.offset is not None
        first = w.bind(k * layout.deep + self.chunk * layout.chunk)
        reach: Expr = 16
        if operand.depth % layout.deep:
            inside = tirx.max(tirx.min(operand.depth - first, layout.chunk), 0) * SIZES[layout.dtype]
            reach = w.keep(inside) if self.reach_kept else w.bind(inside)
        at = w.bind(row * operand.place.row_stride + tirx.Cast("int64", first) + operand.offset)
        target = w.bind(stage + self.into)
        for i in range(self.rows * CHUNKS // COPIERS):
            high = i * (COPIERS // CHUNKS)
            size = tirx.Cast("uint32", tirx.Select(left > high, reach, 0))
            source = at + high * operand.place.row_stride
            copy_chunk(w, operand, layout.dtype, target + uint32(high * ROW_BYTES), source, size)


class _Wgmma(WgmmaRows):
    tile: WgmmaTile
    rows = ROWS

    def __init__(self, w: Writer, problem: Problem, tile: WgmmaTile) -> None:
        super().__init__(w, problem, tile.columns)
        self.tile = tile

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
        self.high, self.clusters = w.keep(tirx.Cast("int32", high)), w.keep(clusters)
        left = self.high * self.tiles - self.first + (self.clusters - 1)
        self.items = w.keep(tirx.truncdiv(left, self.clusters))
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

    def _item(self, number: TirExpr) -> tuple[TirExpr, TirExpr]:
        """(first row, tile of columns) of this block's item: down `group` blocks of rows, then the next columns."""
        w, tile = self.w, self.tile
        item = w.keep(self.first + number * self.clusters)
        period = tile.group * self.tiles
        start = w.keep(tirx.truncdiv(item, period) * tile.group)
        height = w.keep(tirx.min(self.high - start, tile.group))
        within = w.keep(tirx.truncmod(item, period))
        block = (start + tirx.truncmod(within, height)) * tile.cluster + self.rank
        return w.keep(tirx.Cast("int64", block) * ROWS), w.keep(tirx.truncdiv(within, height))

    # --- copying ---------------------------------------------------------------------------------------------------

    def _produce(self) -> None:
        w = self.w
        line = self._line()
        with w.loop(self.items) as number:
            row0, column = self._item(number)
            row = row0 + tirx.Cast("int64", line)
            left = w.keep(tirx.Cast("int32", tirx.min(w["rows"] - row, int64(ROWS))))
            with w.loop(self.total) as k, self._filling(w.bind(number * self.total + k)) as slot:
                for operand, inside, at in self._operands(k):
                    with w.when(inside) if inside is not None else nullcontext():
                        self._copy(operand, slot, at, row, left, column)
        self._filled(self.items * self.total)  # over all items: a short K has one tile in each

    def _copy(self, number: int, slot: TirExpr, k: TirExpr, row: TirExpr, left: TirExpr, column: TirExpr) -> None:
        w, tile, layout = self.w, self.tile, self.layout
        stage = w.bind(self.base + tirx.Cast("uint32", slot) * uint32(tile.stage_bytes))
        with w.when(tirx.EQ(self.tx, 0)):
            part = tile.columns // tile.cluster  # columns that this block fetches
            offset = self.rank * (part * ROW_BYTES) if tile.cluster > 1 else tirx.const(0, "int32")
            target = stage + uint32(ROWS * ROW_BYTES) + tirx.Cast("uint32", offset)
            first = tirx.Cast("int64", column * tile.columns + self.rank * part) * layout.deep
            source = w[self.problem.weight_name(number)].ptr_to(
                [tirx.Cast("int64", k) * (layout.columns * layout.deep) + first]
            )
            full = w.bind(self._full(slot))
            w.do(I.ptx["mbarrier.arrive.expect_tx.shared.b64"](full, uint32(tile.columns * ROW_BYTES)))
            bulk_copy(w, target, source, uint32(part * ROW_BYTES), full, tile.cluster)
        self._rows(number, stage, k, row, left)

    # --- multiplying -----------------------------------------------------------------------------------------------

    def _consume(self) -> None:
        w, tile = self.w, self.tile
        lane, warp = w.bind(self.tx % 32), w.bind(self.tx // 32 - 4)
        product = WgmmaProduct(w, self.arena, tile.columns, self.layout.dtype)
        release = self._remote(lane)
        own = w.bind(tirx.Cast("uint64", warp // 4 * units(SQUARE_BYTES)))
        with w.loop(self.items) as number:
            row0, column = self._item(number)
            with w.loop(self.total) as k:
                turn = w.bind(number * self.total + k)
                slot = w.bind(turn % tile.stages)
                self._wait(self._full(slot), turn // tile.stages % 2)
                product.multiply(slot * units(tile.stage_bytes), own, units(ROWS * ROW_BYTES), more=k > 0)
                with w.when(tirx.And(k > 0, lane < tile.cluster)):
                    self._release(release, turn - 1)
            product.wait(0)
            with w.when(lane < tile.cluster):
                self._release(release, number * self.total + (self.total - 1))
            row = row0 + tirx.Cast("int64", warp * 16)
            self.problem.finish_fragments(w, row, (column, tile.columns), lane, product.acc)
