"""The GEMM of a weight's gradient by wgmma, for Hopper: sums over all rows of products of two rows' 16-bit elements.

In: operands that lie as rows of pieces of 16 or 4 bytes, as many of the left ones as share a right one. Out: a `Kernel`
with the arguments and results of that in `weight_gradient_mma.py`. Rows are what K is in other products; wgmma takes
16-bit operands along either axis, so rows are copied as they lie, 64 elements of 64 rows at a time, swizzled: 16 bytes
at chunk c of row r are at c ^ r % 8. One warpgroup copies, the others multiply 64 lines of the result each.

What L2 hands to all blocks is the limit: 12,800 rows of 10,240 and 2,560 elements in bf16 took 1.61 ms on an H200 with
tiles of 128 x 256, which ask L2 for 4.9 TB/s. A third warpgroup would leave too few registers for 256 columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.gemm.cp_async_pipeline import copy_chunk
from tvm_rnn.cuda.gemm.operands import Operand
from tvm_rnn.cuda.gemm.problem import keep, uint32
from tvm_rnn.cuda.gemm.wgmma import INPUTS, LAG
from tvm_rnn.cuda.layer.packed_layout import CHUNKS, ROW_BYTES, ceil_div
from tvm_rnn.cuda.layer.pipeline_barriers import Stages
from tvm_rnn.cuda.layer.pointers import storage
from tvm_rnn.graph.scalar_cuda import flavour

from .weight_gradient_pack import SQUARE, SQUARE_BYTES, rows_of_stage

Expr = Any
WIDTHS, HEIGHTS = (256, 192, 128, 64), (128, 64)
# Of a thread that copies, and of one that multiplies, by warpgroups that do.
REGISTERS = {1: (40, 232), 2: (40, 232), 3: (24, 160)}
STEPS = 4  # wgmma steps of a stage, 32 bytes of K each
LEAST = 64  # lines and columns below which the other kernel's tiles waste less


@dataclass(frozen=True)
class WgmmaTotalsTile:
    """high x wide of a block: 64 lines for each warpgroup that multiplies, and what a wgmma has of columns."""

    precision: str
    wide: int
    high: int = 128
    stages: int = 4
    cluster: int = 1

    @property
    def multiplying(self) -> int:
        """Warpgroups that multiply."""
        return self.high // 64

    @property
    def threads(self) -> int:
        return 128 * (self.multiplying + 1)

    @property
    def resident(self) -> int:
        """Blocks on a multiprocessor at once."""
        return 1

    @property
    def stage_bytes(self) -> int:
        return (self.high + self.wide) // SQUARE * SQUARE_BYTES

    @property
    def shared_bytes(self) -> int:
        return self.stages * (self.stage_bytes + 16)


def wgmma_tile_for(precision: str, lefts: Sequence[Operand], right: Operand, arch: str) -> WgmmaTotalsTile | None:
    """The tile with which blocks read least; None where operands, sizes or the GPU do not suit."""
    if arch != "sm_90a" or precision not in ("float16", "bfloat16"):
        return None
    if not all(one.piece(precision) for one in (*lefts, right)):
        return None
    if lefts[0].depth < LEAST or right.depth < LEAST:
        return None

    def asked(shape: tuple[int, int]) -> int:
        """Of L2, by all blocks."""
        high, wide = shape
        return ceil_div(lefts[0].depth, high) * ceil_div(right.depth, wide) * (high + wide)

    high, wide = min(product(HEIGHTS, WIDTHS), key=asked)
    return WgmmaTotalsTile(precision, wide, high)


def wgmma_totals_kernel(name: str, tile: WgmmaTotalsTile, lefts: Sequence[Operand], right: Operand) -> Kernel:
    """parts[part, left, m, n] of `lefts` (of one depth) with `right`, for all rows; scalars: rows, parts."""
    pointers = [(o.name, o.place.dtype) for o in lefts] + [(right.name, right.place.dtype), ("sums", "float32")]

    def body(w: Writer) -> None:
        # The register cap of one block: without it the compiler ignores setmaxnreg.
        with flavour(tile.precision), I.attr({"tirx.launch_bounds_min_blocks_per_sm": 1}):
            _AsTheyLie(w, tile, lefts, right).run()

    scalars = [("rows", "int64"), ("parts", "int64")]
    return write(name, pointers, scalars, body, threads=tile.threads, shared_bytes=tile.shared_bytes)


class WgmmaTotals(Stages, ABC):
    """The body of a kernel: one warpgroup copies, the others multiply. What is copied, and how, others say as well
    (`weight_gradient_wgmma_packed.py`)."""

    tile: WgmmaTotalsTile
    w: Writer
    # Of this block: its left operand, where its tile begins, its part of the rows.
    left: Expr
    line: Expr
    column: Expr
    part: Expr
    lefts: int
    height: int
    width: int

    def _share_rows(self) -> None:
        """Shared memory, and the stages of this block's part."""
        w, deep = self.w, rows_of_stage(self.tile.precision)
        self.arena = I.alloc_buffer((self.tile.shared_bytes,), "uint8", scope="shared.dyn", align=1024)
        self.base = w.bind(I.cuda.cvta_generic_to_shared(self.arena.ptr_to([0])))
        stages = tirx.truncdiv(w["rows"] + (deep - 1), tirx.const(deep, "int64"))
        each = keep(w, tirx.truncdiv(stages + w["parts"] - 1, w["parts"]))
        self.first = keep(w, self.part * each)
        self.count = keep(w, tirx.Cast("int32", tirx.max(tirx.min(stages - self.first, each), 0)))

    def _work(self, copiers: int, there: Expr) -> None:
        """copiers: arrivals that fill a stage. there: whether the tile is one of the result."""
        w, tile = self.w, self.tile
        self._make_barriers(copiers, 4 * tile.multiplying * tile.cluster)
        self._meet()
        few, many = REGISTERS[tile.multiplying]
        with I.If(self.tx < 128):
            with I.Then():
                w.do(I.ptx["setmaxnreg.dec.sync.aligned.u32"](few))
                self._produce()
            with I.Else():
                w.do(I.ptx["setmaxnreg.inc.sync.aligned.u32"](many))
                self._consume(there)
        self._meet()

    @abstractmethod
    def _produce(self) -> None:
        """Fill the stages; by the threads that copy."""

    # --- multiplying -----------------------------------------------------------------------------------------------

    def _consume(self, there: Expr) -> None:
        w, tile = self.w, self.tile
        lane, warp = w.bind(self.tx % 32), w.bind(self.tx // 32 - 4)
        acc = w.local(tile.wide // 2)
        for i in range(tile.wide // 2):
            w.store(acc, tirx.const(0.0, "float32"), i)
        desc = w.local(1, "uint64")
        # Along K: 8 lines after the other. Along what is not summed: squares side by side, in a square 8 rows.
        sizes = (1, 64) if tile.precision == "tf32" else (SQUARE_BYTES // 16, 8 * ROW_BYTES // 16)
        w.do(I.cuda.wgmma.encode_matrix_descriptor(I.address_of(desc[0]), self.arena.ptr_to([0]), *sizes, 3))
        own = w.bind(tirx.Cast("uint64", warp // 4 * (SQUARE_BYTES // 16)))
        tell = self._remote(lane)
        with w.loop(self.count) as turn:
            slot = w.bind(turn % tile.stages)
            self._wait(self._full(slot), turn // tile.stages % 2)
            stage = w.bind(desc[0] + tirx.Cast("uint64", slot * (tile.stage_bytes // 16)))
            w.do(I.ptx.wgmma.fence.sync.aligned())
            for step in range(STEPS):
                self._step(acc, stage + own, stage, step)
            w.do(I.ptx.wgmma.commit_group.sync.aligned())
            w.do(I.ptx.wgmma.wait_group.sync.aligned(1))
            with w.when(tirx.And(turn > 0, lane < tile.cluster)):
                self._release(tell, turn - 1)
        w.do(I.ptx.wgmma.wait_group.sync.aligned(0))
        with w.when(tirx.And(self.count > 0, lane < tile.cluster)):
            self._release(tell, self.count - 1)
        self._finish(acc, warp, lane, there)

    def _step(self, acc: Any, a: Expr, b: Expr, step: int) -> None:
        tf32 = self.tile.precision == "tf32"
        deep, kinds, _ = INPUTS[storage(self.tile.precision)]
        name = f"wgmma.mma_async.sync.aligned.m64n{self.tile.wide}{deep}.f32.{kinds}"
        offset = 2 * step if tf32 else step * 16 * ROW_BYTES // 16
        from_b = tirx.const(self.tile.high * ROW_BYTES // 16 + offset, "uint64")
        d = [acc[i] for i in range(self.tile.wide // 2)]
        turned = [] if tf32 else [1, 1]  # 16-bit operands lie along what is not summed
        add = I.ptx.pred(tirx.const(1, "int32"))
        self.w.do(I.ptx[name](*d, a + tirx.const(offset, "uint64"), b + from_b, add, 1, 1, *turned))

    def _finish(self, acc: Any, warp: Expr, lane: Expr, there: Expr) -> None:
        w, size = self.w, self.height * self.width
        block = self.part * self.lefts + tirx.Cast("int64", self.left)
        pairs = self.width % 2 == 0
        for high in range(2):
            line = keep(w, self.line + warp * 16 + (lane // 4 + 8 * high))
            start = keep(w, block * size + tirx.Cast("int64", line) * self.width)
            with w.when(tirx.And(there, line < self.height)):
                for i in range(self.tile.wide // 8):
                    column, at = w.bind(self.column + 8 * i + lane % 4 * 2), 4 * i + 2 * high
                    if pairs:
                        with w.when(column < self.width):
                            place = w["sums"].ptr_to([start + tirx.Cast("int64", column)])
                            w.do(I.ptx["st.global.v2.f32"](place, acc[at], acc[at + 1]))
                        continue
                    for odd in range(2):
                        with w.when(column + odd < self.width):
                            w.store(w["sums"], acc[at + odd], start + tirx.Cast("int64", column + odd))


class _AsTheyLie(WgmmaTotals):
    """Rows are copied from where they are."""

    def __init__(self, w: Writer, tile: WgmmaTotalsTile, lefts: Sequence[Operand], right: Operand) -> None:
        self.w, self.tile, self.operands, self.right = w, tile, lefts, right
        self.lefts, self.height, self.width = len(lefts), lefts[0].depth, right.depth

    def run(self) -> None:
        w, tile = self.w, self.tile
        down, across = ceil_div(self.height, tile.high), ceil_div(self.width, tile.wide)
        blocks = w["parts"] * (self.lefts * down * across)
        cta, self.tx = keep(w, I.cta_id([tirx.Cast("int32", blocks)])), I.thread_id([tile.threads])
        self.column = keep(w, tirx.truncmod(cta, across) * tile.wide)
        self.line = keep(w, tirx.truncmod(tirx.truncdiv(cta, across), down) * tile.high)
        self.left = keep(w, tirx.truncmod(tirx.truncdiv(cta, across * down), self.lefts))
        self.part = keep(w, tirx.Cast("int64", tirx.truncdiv(cta, across * down * self.lefts)))
        self._share_rows()
        self._work(4, tirx.const(True, "bool"))  # warps that copy

    # --- copying ---------------------------------------------------------------------------------------------------

    def _produce(self) -> None:
        w, tile = self.w, self.tile
        self.chunk, self.row = w.bind(self.tx % CHUNKS), w.bind(self.tx // CHUNKS)
        swizzled = tirx.bitwise_xor(self.chunk, self.row % CHUNKS) * 16
        self.into = w.bind(tirx.Cast("uint32", self.row * ROW_BYTES + swizzled))
        with w.loop(self.count) as turn:
            slot = w.bind(turn % tile.stages)
            self._wait(self._empty(slot), (turn // tile.stages + 1) % 2)
            stage = w.bind(self.base + self.into + tirx.Cast("uint32", slot) * uint32(tile.stage_bytes))
            row0 = (self.first + tirx.Cast("int64", turn)) * SQUARE + tirx.Cast("int64", self.row)
            row0 = keep(w, row0)
            for n, operand in enumerate(self.operands):
                with w.when(self.left == n) if self.lefts > 1 else w.when(tirx.const(True, "bool")):
                    self._copy(operand, stage, row0, self.line, tile.high)
            behind = stage + uint32(tile.high // SQUARE * SQUARE_BYTES)
            self._copy(self.right, behind, row0, self.column, tile.wide)
            w.do(I.ptx["cp.async.commit_group"]())
            with w.when(turn >= LAG):
                self._announce(LAG, (turn - LAG) % tile.stages)
        for late in range(LAG, 0, -1):
            with w.when(self.count >= late):
                self._announce(late - 1, (self.count - late) % tile.stages)

    def _copy(self, operand: Operand, target: Expr, row0: Expr, first: Expr, columns: int) -> None:
        """A stage's rows of an operand; zeros beyond the last row and the last element."""
        w, step = self.w, 128 // CHUNKS
        assert operand.offset is not None
        left = keep(w, tirx.Cast("int32", tirx.min(w["rows"] - row0, tirx.const(SQUARE, "int64"))))
        inside = tirx.max(tirx.min(row0, w["rows"] - 1), tirx.const(0, "int64"))
        start = keep(w, inside * operand.place.row_stride + operand.offset)
        for square in range(columns // SQUARE):
            at = w.bind(first + square * SQUARE + self.chunk * 8)
            reach = w.bind(tirx.max(tirx.min(operand.depth - at, 8), 0) * 2)
            place = w.bind(start + tirx.Cast("int64", tirx.Select(reach > 0, at, 0)))
            for i in range(SQUARE // step):
                here = left > i * step
                size = tirx.Cast("uint32", tirx.Select(here, reach, 0))
                further = tirx.const(i * step * operand.place.row_stride, "int64")
                source = place + tirx.Select(here, further, tirx.const(0, "int64"))
                into = target + uint32(square * SQUARE_BYTES + i * step * ROW_BYTES)
                copy_chunk(w, operand, self.tile.precision, into, source, size)

    def _announce(self, pending: int, slot: Expr) -> None:
        """The copies of a stage are done, and visible to wgmma."""
        w = self.w
        w.do(I.ptx["cp.async.wait_group"](pending))
        w.do(I.ptx.fence.proxy.async_.shared__cta())
        w.do(I.cuda.warp_sync())
        with w.when(self.tx % 32 == 0):
            w.do(I.ptx["mbarrier.arrive.shared.b64"](self._full(slot)))
