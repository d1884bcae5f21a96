"""Where products read the vectors of a part's steps: by `ldmatrix` from lines with room behind them, or by wgmma from
lines of 128 bytes that are swizzled, squares of 64 values one behind the other.

In: a kernel's writer, a `PartsLayout`, the address of shared memory. Out: `Vectors`: addresses of a lane, and matrix
descriptors.

Source: Hopper's warpgroup products: PTX ISA 8.5, "wgmma.mma_async", shared memory layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.codegen.register_tile import RegisterTile
from tvm_rnn.cuda.codegen.tile_layout import PIECE_BYTES, SWIZZLE_128
from tvm_rnn.cuda.gemm.wgmma import KINDS, SQUARE_BYTES, SWIZZLED, units
from tvm_rnn.tir.expr import Expr, TirExpr
from tvm_rnn.tir.index import uint32

from .chunk_tile import BLOCK
from .part_operands import Operands
from .parts_layout import IN_SQUARE, PartsLayout

STEP_BYTES = 2 * BLOCK  # of a vector, that a step of K takes


class Vectors:
    """lane: of a warp."""

    def __init__(self, w: Writer, layout: PartsLayout, operands: Operands, lane: TirExpr) -> None:
        self.w, self.layout, self.base, self.lane = w, layout, operands.base, lane
        if layout.by_wgmma:
            self.descriptor = w.local(1, "uint64")
            at = I.address_of(self.descriptor[0]), operands.arena.ptr_to([0])
            w.do(I.cuda.wgmma.encode_matrix_descriptor(*at, 1, units(8 * SWIZZLE_128.row_bytes), SWIZZLED))

    def lines(self, name: str, line: TirExpr, half: TirExpr) -> Callable[[int], TirExpr]:
        """Where a lane reads 16 bytes of a line: of the first or the second half of a step of K, by its number. line:
        has the lane's remainder by 8."""
        own, layout = self.layout.first(name), self.layout
        if not layout.swizzled(own):
            at = self.w.bind(self.base + tirx.Cast("uint32", line * layout.pitch(own) + half * 16 + layout.at(own)))
            return lambda k: at + uint32(STEP_BYTES * k)
        first = self.w.keep(self.base + tirx.Cast("uint32", line * SWIZZLE_128.row_bytes + layout.at(own)))
        piece = self.w.keep(tirx.Cast("uint32", SWIZZLE_128.piece(self.lane % 8, half)))

        def place(k: int) -> TirExpr:
            within = (piece ^ uint32(k % IN_SQUARE * 2)) * uint32(PIECE_BYTES)
            return first + within + uint32(k // IN_SQUARE * SQUARE_BYTES)

        return place

    def multiply(
        self, sums: RegisterTile, matrix: RegisterTile, name: str, steps: Sequence[int], square: Expr = 0, tile: int = 0
    ) -> None:
        """Start the products of a matrix in registers, 16 keys of a warp, with the vectors of some blocks of 16 steps.
        square, tile: the first values of the matrix, in 64, and in 16 from there on."""
        w, layout, precision = self.w, self.layout, self.layout.pair.precision
        deep, kinds = KINDS[precision]
        how = f"wgmma.mma_async.sync.aligned.m64n{BLOCK * len(steps)}{deep}.f32.{kinds}"
        at = layout.at(name) + steps[0] * BLOCK * SWIZZLE_128.row_bytes
        begin = w.keep(self.descriptor[0] + tirx.Cast("uint64", square * units(SQUARE_BYTES) + units(at)))
        for k in range(matrix.shape[0]):
            own = (tile + k) // IN_SQUARE * SQUARE_BYTES + (tile + k) % IN_SQUARE * STEP_BYTES
            b = begin + tirx.const(units(own), "uint64")
            w.do(I.ptx[how](*sums.flat, *matrix[k], b, I.ptx.pred(tirx.const(1, "int32")), 1, 1, 0))
