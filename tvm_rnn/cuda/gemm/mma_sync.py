"""GEMM by mma.sync: 16-bit and tf32 tensor cores, any rows, depth and alignment; the one for few rows as well.

In: a `Problem` and a tile. Out: a kernel's body; `MmaProduct`, the products of a warp: tiles of 16 x 8 sums, a step of
K at a time out of registers. Both operands lie swizzled in shared memory and are read by ldmatrix, one step ahead of
the products. With few rows, `split` warps share one part of the result, each with its part of K.

Source: fragments of "mma.m16n8k16" and "mma.m16n8k8": PTX ISA 8.5.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer, round_tf32
from tvm_rnn.cuda.codegen.tile_layout import SWIZZLE_128
from tvm_rnn.cuda.layer.packed_layout import CHUNKS, ROW_BYTES, ceil_div
from tvm_rnn.tir.expr import TirExpr
from tvm_rnn.tir.index import uint32, wide

from .cp_async_pipeline import CpAsyncGemm, CpAsyncTile
from .problem import Problem

STEPS = 4  # of 32 bytes of K in a stage
LDMATRIX = "ldmatrix.sync.aligned.m8n8.{}.shared.b16"
INSTRUCTIONS = {
    "bfloat16": "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
    "float16": "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
    "float32": "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
}


class MmaProduct:
    """high tiles of 16 rows by broad tiles of 8 columns, all sums 0.

    acc[m, n, half]: a lane's sums in columns 2 (lane % 4) and the next, row lane // 4 + 8 half. a[buffer, m] and
    b[buffer, n]: fragments of a step of 32 bytes of K; `buffers` of them, for loads that run ahead of products.
    """

    def __init__(self, w: Writer, dtype: str, high: int, broad: int) -> None:
        self.w, self.dtype, self.high, self.broad = w, dtype, high, broad
        self.acc = w.tile(high, broad, 2, 2)
        self.acc.fill(tirx.const(0.0, "float32"))

    def take_fragments(self, buffers: int = 1) -> None:
        """Registers for fragments."""
        self.a = self.w.tile(buffers, self.high, 4, dtype="uint32")
        self.b = self.w.tile(buffers, self.broad, 2, dtype="uint32")

    def multiply(self, buffer: int = 0) -> None:
        """Add the products of a step's fragments."""
        for m in range(self.high):
            for n in range(self.broad):
                d = *self.acc[m, n, 0], *self.acc[m, n, 1]
                self.w.do(I.ptx[INSTRUCTIONS[self.dtype]](*d, *self.a[buffer, m], *self.b[buffer, n], *d))


@dataclass(frozen=True)
class MmaTile(CpAsyncTile):
    """rows x columns of a block; warps: along rows, along: warps along columns, split: along K."""

    _: KW_ONLY
    columns: int = 128
    warps: int = 4
    along: int = 1

    @property
    def members(self) -> int:
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


class MmaGemm(CpAsyncGemm):
    """A warp multiplies tiles of 16 x 8 sums."""

    tile: MmaTile

    def __init__(self, w: Writer, problem: Problem, tile: MmaTile) -> None:
        layout = problem.fragments
        assert tile.rows % (16 * tile.warps) == 0 and STEPS % tile.split == 0
        assert tile.broad * 8 // tile.cluster % layout.block == 0 and layout.columns % tile.columns == 0
        super().__init__(w, problem, tile, ceil_div(layout.width, tile.columns // layout.gates))

    def prepare(self) -> None:
        w, tile = self.w, self.tile
        self.lane, warp = w.bind(self.tx % 32), w.bind(self.tx // 32)
        own = w.bind(warp % (tile.warps * tile.along))
        self.part = w.bind(warp // (tile.warps * tile.along))
        self.member = w.bind(own * 32 + self.lane)
        self.down, self.across = w.bind(own % tile.warps), w.bind(own // tile.warps)
        self.wide = self.problem.fragments.block // 8
        self.blocks = tile.broad // tile.cluster // self.wide  # of units, that a block of the cluster finishes
        self.items = 2 * tile.high * self.blocks
        self.product = MmaProduct(w, self.problem.compute, tile.high, tile.broad)
        self.product.take_fragments(buffers=2)
        self.acc = self.product.acc
        # The row that each lane names to ldmatrix, as an offset into a stage.
        a_row = self.down * (16 * tile.high) + self.lane % 16
        self.a_at = w.bind(tirx.Cast("uint32", a_row * ROW_BYTES))
        b_row = self.across * (8 * tile.broad) + self.lane // 16 * 8 + self.lane % 8
        self.b_at = w.bind(tirx.Cast("uint32", b_row * ROW_BYTES + tile.rows * ROW_BYTES))

    def copy_weights(self, number: int, stage: TirExpr, k: TirExpr) -> None:
        layout, columns = self.problem.fragments, self.tile.columns
        source = wide(k) * (layout.columns * layout.deep) + wide(self.tile_n) * (columns * layout.deep)
        self.copy_chunks(number, stage, columns * CHUNKS, lambda piece: source + wide(piece) * self.chunk_elements)

    def multiply(self, stage: TirExpr) -> None:
        steps = STEPS // self.tile.split
        self._load(stage, 0)
        for step in range(steps):
            if step + 1 < steps:
                self._load(stage, step + 1)
            if self.problem.precision == "tf32":  # weights are rounded when they are packed
                round_tf32(self.w, [word for m in range(self.tile.high) for word in self.product.a[step % 2, m]])
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
        half, within, m = item % 2, item // 2 % self.blocks, item // 2 // self.blocks
        first = (block * self.blocks + within) * self.wide
        return [(m, first + n, half) for n in range(self.wide)]

    def finish(self, item: int) -> None:
        tile = self.tile
        half, within, m = item % 2, item // 2 % self.blocks, item // 2 // self.blocks
        line = self.down * (16 * tile.high) + (m * 16 + half * 8) + self.lane // 4
        block = ((self.tile_n * tile.along + self.across) * tile.cluster + self.rank) * self.blocks + within
        pairs = [self.acc[piece] for piece in self.pieces(item, 0)]
        self.problem.finish_rows(self.w, self.w.bind(self.row0 + wide(line)), block, self.lane, pairs)
