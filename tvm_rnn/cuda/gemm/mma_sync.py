"""GEMM by mma.sync: 16-bit and tf32 tensor cores, any rows, depth and alignment; the one for few rows as well.

In: a `Problem` and a tile. Out: a `Kernel`. Both operands lie swizzled in shared memory and are read by ldmatrix, one
step ahead of the products. With few rows, `split` warps share one part of the result, each with its part of K.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer
from tvm_rnn.cuda.layer.packed_layout import CHUNKS, ROW_BYTES, ceil_div

from .cp_async_pipeline import Ring, RingTile, ring_kernel
from .problem import Problem, uint32

Expr = Any
STEPS = 4  # of 32 bytes of K in a stage
INSTRUCTIONS = {
    "bfloat16": "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
    "float16": "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
    "float32": "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
}
LDMATRIX = "ldmatrix.sync.aligned.m8n8.{}.shared.b16"


@dataclass(frozen=True)
class MmaTile(RingTile):
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
    return ring_kernel(name, problem, tile, lambda w: _Mma(w, problem, tile))


class _Mma(Ring):
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
        self.step, self.items = 2, 2 * tile.high * (tile.broad // tile.cluster * 8 // self.problem.fragments.block)
        self.acc = w.local(tile.high * tile.broad * 4)
        for i in range(tile.high * tile.broad * 4):
            w.store(self.acc, tirx.const(0.0, "float32"), i)
        self.a = w.local(2 * tile.high * 4, "uint32")
        self.b = w.local(2 * tile.broad * 2, "uint32")
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

    def multiply(self, stage: Expr) -> None:
        steps = STEPS // self.tile.split
        self._load(stage, 0)
        for step in range(steps):
            if step + 1 < steps:
                self._load(stage, step + 1)
            self._products(step % 2)

    def _load(self, stage: Expr, step: int) -> None:
        """Fragments of one step of this warp's part of K, into alternating halves of the registers."""
        w, tile, lane, half = self.w, self.tile, self.lane, step % 2
        own = self.part + step * tile.split if tile.split > 1 else step
        a_chunk = tirx.Cast("uint32", tirx.bitwise_xor(own * 2 + lane // 16, lane % 8) * 16)
        b_chunk = tirx.Cast("uint32", tirx.bitwise_xor(own * 2 + lane // 8 % 2, lane % 8) * 16)
        a_from, b_from = w.bind(stage + self.a_at + a_chunk), w.bind(stage + self.b_at + b_chunk)
        for m in range(tile.high):
            parts = [self.a[(half * tile.high + m) * 4 + i] for i in range(4)]
            w.do(I.ptx[LDMATRIX.format("x4")](*parts, a_from + uint32(m * 16 * ROW_BYTES)))
        for n in range(0, tile.broad, 2):
            count = min(4, 2 * (tile.broad - n))
            parts = [self.b[(half * tile.broad + n) * 2 + i] for i in range(count)]
            w.do(I.ptx[LDMATRIX.format(f"x{count}")](*parts, b_from + uint32(n * 8 * ROW_BYTES)))

    def _products(self, half: int) -> None:
        tile = self.tile
        for m in range(tile.high):
            for n in range(tile.broad):
                d = [self.acc[(m * tile.broad + n) * 4 + i] for i in range(4)]
                a = [self.a[(half * tile.high + m) * 4 + i] for i in range(4)]
                b = [self.b[(half * tile.broad + n) * 2 + i] for i in range(2)]
                self.w.do(I.ptx[INSTRUCTIONS[self.problem.compute]](*d, *a, *b, *d))

    def pieces(self, item: int, block: int) -> list[int]:
        """Items: 8 rows of a tile of 16, and a block of units with all gates."""
        tile, wide = self.tile, self.problem.fragments.block // 8
        each = tile.broad // tile.cluster
        half, unit_block, m = item % 2, item // 2 % (each // wide), item // 2 // (each // wide)
        first = m * tile.broad + block * each + unit_block * wide
        return [(first + n) * 4 + half * 2 for n in range(wide)]

    def finish(self, item: int) -> None:
        w, tile, wide = self.w, self.tile, self.problem.fragments.block // 8
        blocks = tile.broad // tile.cluster // wide
        half, within, m = item % 2, item // 2 % blocks, item // 2 // blocks
        row = self.row0 + tirx.Cast("int64", self.down * (16 * tile.high) + (m * 16 + half * 8) + self.lane // 4)
        unit_block = ((self.tile_n * tile.along + self.across) * tile.cluster + self.rank) * blocks + within
        self.problem.finish_rows(w, row, unit_block, self.lane, self.acc, self.pieces(item, 0)[0])
