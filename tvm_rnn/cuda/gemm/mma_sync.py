"""GEMM by mma.sync: 16-bit and tf32 tensor cores, any rows, depth and alignment; the one for few rows as well.

In: a `Problem` and a tile. Out: a `Kernel`. Both operands lie swizzled in shared memory and are read by ldmatrix, one
step ahead of the products. With few rows, `split` warps share one part of the result, each with its part of K.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer
from tvm_rnn.cuda.codegen.tile_layout import SWIZZLE_128
from tvm_rnn.cuda.layer.packed_layout import CHUNKS, ROW_BYTES, ceil_div
from tvm_rnn.tir.expr import Expr, TirExpr
from tvm_rnn.tir.index import uint32

from .cp_async_pipeline import CpAsyncGemm, CpAsyncTile, cp_async_kernel
from .mma_product import MmaProduct
from .problem import Problem

STEPS = 4  # of 32 bytes of K in a stage
LDMATRIX = "ldmatrix.sync.aligned.m8n8.{}.shared.b16"


@dataclass(frozen=True)
class MmaTile(CpAsyncTile):
    """rows x columns of a block; warps: along rows, along: warps along columns, split: along K."""

    columns: int = 128
    warps: int = 4
    along: int = 1

    @property
    def threads(self) -> int:
        return 32 * self.warps * self.along * self.split

    @property
    def high(self) -> int:
        """Tiles of 16 rows of a warp."""
        return self.rows // (16 * self.warps)

    @property
    def broad(self) -> int:
        """Tiles of 8 columns of a warp."""
        return self.columns // (8 * self.along)

    @property
    def weight_bytes(self) -> int:
        return self.columns * ROW_BYTES

    @property
    def sums(self) -> int:
        return self.high * self.broad * 16


def mma_kernel(name: str, problem: Problem, tile: MmaTile) -> Kernel:
    """A kernel for any number of rows."""
    assert tile.rows % (16 * tile.warps) == 0 and STEPS % tile.split == 0
    layout = problem.fragments
    assert tile.broad * 8 // tile.cluster % layout.block == 0 and layout.columns % tile.columns == 0
    return cp_async_kernel(name, problem, tile, lambda w: _Mma(w, problem, tile))


class _Mma(CpAsyncGemm):
    tile: MmaTile

    def __init__(self, w: Writer, problem: Problem, tile: MmaTile) -> None:
        super().__init__(w, problem, tile, ceil_div(problem.epilogue.width, tile.columns // problem.gates))

    def prepare(self) -> None:
        w, tile = self.w, self.tile
        self.lane, warp = w.bind(self.tx % 32), w.bind(self.tx // 32)
        own = w.bind(warp % (tile.warps * tile.along))
        self.part = w.bind(warp // (tile.warps * tile.along))
        self.member = w.bind(own * 32 + self.lane)
        self.down, self.across = w.bind(own % tile.warps), w.bind(own // tile.warps)
        self.items = 2 * tile.high * (tile.broad // tile.cluster * 8 // self.problem.fragments.block)
        self.product = MmaProduct(w, self.problem.compute, tile.high, tile.broad)
        self.product.take_fragments(buffers=2)
        self.acc = self.product.acc
        # The row that each lane names to ldmatrix, as an offset into a stage.
        a_row = self.down * (16 * tile.high) + self.lane % 16
        self.a_at = w.bind(tirx.Cast("uint32", a_row * ROW_BYTES))
        b_row = self.across * (8 * tile.broad) + self.lane // 16 * 8 + self.lane % 8
        self.b_at = w.bind(tirx.Cast("uint32", b_row * ROW_BYTES + tile.rows * ROW_BYTES))

    def copy_weights(self, number: int, stage: Expr, k: Expr) -> None:
        layout, columns = self.problem.fragments, self.tile.columns
        first = tirx.Cast("int64", self.tile_n) * (columns * layout.deep)
        source = tirx.Cast("int64", k) * (layout.columns * layout.deep) + first
        self.copy_run(number, stage, source, columns * CHUNKS)

    def multiply(self, stage: TirExpr) -> None:
        steps = STEPS // self.tile.split
        self._load(stage, 0)
        for step in range(steps):
            if step + 1 < steps:
                self._load(stage, step + 1)
            self.product.multiply(step % 2)

    def _load(self, stage: TirExpr, step: int) -> None:
        """Fragments of one step of this warp's part of K, into alternating halves of the registers."""
        w, tile, lane, half = self.w, self.tile, self.lane, step % 2
        own = self.part + step * tile.split if tile.split > 1 else step
        a_chunk = tirx.Cast("uint32", SWIZZLE_128.piece(lane, own * 2 + lane // 16) * 16)
        b_chunk = tirx.Cast("uint32", SWIZZLE_128.piece(lane, own * 2 + lane // 8 % 2) * 16)
        a_from, b_from = w.bind(stage + self.a_at + a_chunk), w.bind(stage + self.b_at + b_chunk)
        for m in range(tile.high):
            w.do(I.ptx[LDMATRIX.format("x4")](*self.product.a[half, m], a_from + uint32(m * 16 * ROW_BYTES)))
        for n in range(0, tile.broad, 2):
            parts = [word for z in range(n, min(n + 2, tile.broad)) for word in self.product.b[half, z]]
            w.do(I.ptx[LDMATRIX.format(f"x{len(parts)}")](*parts, b_from + uint32(n * 8 * ROW_BYTES)))

    def pieces(self, item: int, block: int) -> list[tuple[int, ...]]:
        """Items: 8 rows of a tile of 16, and a block of units with all gates."""
        tile, wide = self.tile, self.problem.fragments.block // 8
        each = tile.broad // tile.cluster
        half, unit_block, m = item % 2, item // 2 % (each // wide), item // 2 // (each // wide)
        first = block * each + unit_block * wide
        return [(m, first + n, half) for n in range(wide)]

    def finish(self, item: int) -> None:
        w, tile, wide = self.w, self.tile, self.problem.fragments.block // 8
        blocks = tile.broad // tile.cluster // wide
        half, within, m = item % 2, item // 2 % blocks, item // 2 // blocks
        row = self.row0 + tirx.Cast("int64", self.down * (16 * tile.high) + (m * 16 + half * 8) + self.lane // 4)
        unit_block = ((self.tile_n * tile.along + self.across) * tile.cluster + self.rank) * blocks + within
        pairs = [self.acc[piece] for piece in self.pieces(item, 0)]
        self.problem.finish_rows(w, row, unit_block, self.lane, pairs)
