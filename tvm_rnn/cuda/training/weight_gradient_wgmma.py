"""The GEMM of a weight's gradient by wgmma, for Hopper: sums over all rows of products of two rows' 16-bit elements.

In: operands that lie as rows of pieces of 16 or 4 bytes, as many of the left ones as share a right one. Out: a `Kernel`
with the arguments and results of that in `weight_gradient_mma.py`. Rows are what K is in other products; wgmma takes
16-bit operands along either axis, so rows are copied as they lie, 64 elements of 64 rows at a time, swizzled: 16 bytes
at chunk c of row r are at c ^ r % 8. One warpgroup copies, the others multiply 64 lines of the result each.

What L2 hands to all blocks is the limit: 12,800 rows of 10,240 and 2,560 elements in bf16 took 1.61 ms on an H200 with
tiles of 128 x 256, which ask L2 for 4.9 TB/s. A third warpgroup would leave too few registers for 256 columns.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer
from tvm_rnn.cuda.codegen.register_tile import RegisterTile
from tvm_rnn.cuda.codegen.tile_layout import SWIZZLE_128
from tvm_rnn.cuda.gemm.operands import Operand
from tvm_rnn.cuda.gemm.wgmma import SQUARE_BYTES, WgmmaProduct, units
from tvm_rnn.cuda.layer.packed_layout import CHUNKS, ROW_BYTES, ceil_div
from tvm_rnn.cuda.layer.pipeline_barriers import COPIERS, Stages
from tvm_rnn.cuda.layer.pointers import storage
from tvm_rnn.tir.expr import TirExpr
from tvm_rnn.tir.index import int64, uint32

from .weight_gradient_block import RowOperands, WeightGradientBlock, pointers_of, weight_gradient_kernel
from .weight_gradient_pack import SQUARE, rows_of_stage

WIDTHS, HEIGHTS = (256, 192, 128, 64), (128, 64)
# Of a thread that copies, and of one that multiplies, by warpgroups that do.
REGISTERS = {1: (40, 232), 2: (40, 232), 3: (24, 160)}
LEAST = 64  # lines and columns below which the other kernel's tiles waste less


@dataclass(frozen=True)
class WgmmaWeightGradientTile:
    """high x wide of a block: 64 lines for each warpgroup that multiplies, and what a wgmma has of columns."""

    precision: str
    wide: int
    high: int = 128
    stages: int = 4
    cluster: int = 1
    resident: int = 1  # blocks on a multiprocessor at once

    @property
    def deep(self) -> int:
        """Rows of a stage."""
        return rows_of_stage(self.precision)

    @property
    def multiplying(self) -> int:
        """Warpgroups that multiply."""
        return self.high // 64

    @property
    def threads(self) -> int:
        return COPIERS + 128 * self.multiplying

    @property
    def right_at(self) -> int:
        """Where the right operand lies in a stage."""
        return self.high // SQUARE * SQUARE_BYTES

    @property
    def stage_bytes(self) -> int:
        return (self.high + self.wide) // SQUARE * SQUARE_BYTES

    @property
    def shared_bytes(self) -> int:
        return self.stages * (self.stage_bytes + 16)


def wgmma_tile_for(
    precision: str, lefts: Sequence[Operand], right: Operand, arch: str
) -> WgmmaWeightGradientTile | None:
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
    return WgmmaWeightGradientTile(precision, wide, high)


def wgmma_weight_gradient(name: str, tile: WgmmaWeightGradientTile, lefts: Sequence[Operand], right: Operand) -> Kernel:
    """parts[part, left, m, n] of `lefts` (of one depth) with `right`, for all rows; scalars: rows, parts."""
    pointers = pointers_of((*lefts, right))
    return weight_gradient_kernel(name, tile, pointers, lambda w: _AsTheyLie(w, tile, lefts, right).run())


class WgmmaWeightGradient(WeightGradientBlock, Stages):
    """The body of a kernel: one warpgroup copies, the others multiply. What is copied, and how, others say as well
    (`weight_gradient_wgmma_packed.py`)."""

    tile: WgmmaWeightGradientTile

    def _work(self, copiers: int, there: TirExpr) -> None:
        """copiers: arrivals that fill a stage. there: whether the tile is one of the result."""
        w, tile = self.w, self.tile
        self._make_barriers(copiers, 4 * tile.multiplying * tile.cluster)
        self._meet()
        few, many = REGISTERS[tile.multiplying]
        with I.If(self.tx < COPIERS):
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

    def _consume(self, there: TirExpr) -> None:
        w, tile = self.w, self.tile
        lane, warp = w.bind(self.tx % 32), w.bind(self.tx // 32 - 4)
        # 16-bit operands lie along what is not summed; of tf32 wgmma takes only what lies along K.
        turned = tile.precision != "tf32"
        product = WgmmaProduct(w, self.arena, tile.wide, storage(tile.precision), turned=turned, zero=True)
        own = w.bind(tirx.Cast("uint64", warp // 4 * units(SQUARE_BYTES)))
        tell = self._remote(lane)
        with w.loop(self.count) as turn:
            slot = w.bind(self._slot(turn))
            self._wait(self._full(slot), turn // tile.stages % 2)
            product.multiply(slot * units(tile.stage_bytes), own, units(tile.right_at))
            with w.when(tirx.And(turn > 0, lane < tile.cluster)):
                self._release(tell, turn - 1)
        product.wait(0)
        with w.when(tirx.And(self.count > 0, lane < tile.cluster)):
            self._release(tell, self.count - 1)
        self._finish(product.acc, warp, lane, there)

    def _finish(self, acc: RegisterTile, warp: TirExpr, lane: TirExpr, there: TirExpr) -> None:
        w, size = self.w, self.height * self.width
        block = self._result()
        pairs = self.width % 2 == 0
        for high in range(2):
            line = w.keep(self.line + warp * 16 + (lane // 4 + 8 * high))
            start = w.keep(block * size + tirx.Cast("int64", line) * self.width)
            with w.when(tirx.And(there, line < self.height)):
                for i in range(self.tile.wide // 8):
                    column = w.bind(self.column + 8 * i + lane % 4 * 2)
                    if pairs:
                        with w.when(column < self.width):
                            place = w["sums"].ptr_to([start + tirx.Cast("int64", column)])
                            w.do(I.ptx["st.global.v2.f32"](place, *acc[i, high]))
                        continue
                    for odd, value in enumerate(acc[i, high]):
                        with w.when(column + odd < self.width):
                            w.store(w["sums"], value, start + tirx.Cast("int64", column + odd))


class _AsTheyLie(RowOperands, WgmmaWeightGradient):
    """Rows are copied from where they are."""

    def __init__(self, w: Writer, tile: WgmmaWeightGradientTile, lefts: Sequence[Operand], right: Operand) -> None:
        super().__init__(w, tile, lefts, right)
        self.tile = tile

    def run(self) -> None:
        self._locate()
        self._share_rows()
        self._work(COPIERS // 32, tirx.const(True, "bool"))  # warps that copy

    # --- copying ---------------------------------------------------------------------------------------------------

    def _produce(self) -> None:
        w, tile = self.w, self.tile
        self.chunk, self.row = w.bind(self.tx % CHUNKS), w.bind(self.tx // CHUNKS)
        into = w.bind(tirx.Cast("uint32", SWIZZLE_128.offset(self.row, self.chunk)))
        with w.loop(self.count) as turn, self._filling(turn) as slot:
            stage = w.bind(self.base + into + tirx.Cast("uint32", slot) * uint32(tile.stage_bytes))
            row0 = (self.first + tirx.Cast("int64", turn)) * SQUARE + tirx.Cast("int64", self.row)
            self._copy_both(stage, w.keep(row0), uint32(tile.right_at))
        self._filled(self.count)

    def _copy(self, operand: Operand, target: TirExpr, row0: TirExpr, first: TirExpr, columns: int) -> None:
        w, step = self.w, COPIERS // CHUNKS
        assert operand.offset is not None
        left = w.keep(tirx.Cast("int32", tirx.min(w["rows"] - row0, int64(SQUARE))))
        inside = tirx.max(tirx.min(row0, w["rows"] - 1), int64(0))
        start = w.keep(inside * operand.place.row_stride + operand.offset)
        for square in range(columns // SQUARE):
            at = w.bind(first + square * SQUARE + self.chunk * 8)
            reach = w.bind(tirx.max(tirx.min(operand.depth - at, 8), 0) * 2)
            place = w.bind(start + tirx.Cast("int64", tirx.Select(reach > 0, at, 0)))
            for i in range(SQUARE // step):
                here = left > i * step
                size = tirx.Cast("uint32", tirx.Select(here, reach, 0))
                source = place + tirx.Select(here, int64(i * step * operand.place.row_stride), int64(0))
                into = target + uint32(square * SQUARE_BYTES + i * step * ROW_BYTES)
                operand.copy(w, self.tile.precision, into, source, size)
