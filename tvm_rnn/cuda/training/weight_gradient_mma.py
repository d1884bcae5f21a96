"""The GEMM of a weight gradient: sums over all rows (steps x batch) of products of two rows' elements.

In: operands that lie as rows, as many of the left ones as share a right one. Out: a tile, whose kernel sums parts of
the rows, a block of the result each: rows are what K is in other products, so both operands come from shared memory as
they lie in global memory, turned by ldmatrix.trans. Parts are added up in a fixed order by `weight_gradient_sums.py`:
no atomics.

Rewrite: for m, n: sum[m, n] = sum over rows of a[row, m] b[row, n]  -->  tiles of m x n x parts of the rows
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.gemm.cp_async_pipeline import cp_async_loop
from tvm_rnn.cuda.gemm.mma_sync import MmaProduct
from tvm_rnn.cuda.gemm.operands import COPY, Operand
from tvm_rnn.cuda.layer.packed_layout import SIZES, ceil_div
from tvm_rnn.cuda.layer.pointers import arithmetic
from tvm_rnn.tir.expr import Expr, TirExpr
from tvm_rnn.tir.index import int64, uint32, wide

from .row_product import RowProduct
from .weight_gradient_block import Found, WeightGradientBlock, WeightGradientTile

THREADS, WARPS_DOWN, WARPS_ACROSS = 256, 2, 4
TURNED = "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"


@dataclass(frozen=True)
class MmaWeightGradientTile(WeightGradientTile):
    """Of operands of any kind."""

    apart: ClassVar[bool] = False
    _: KW_ONLY
    stages: int = 3
    resident: int = 2

    @property
    def members(self) -> int:
        return THREADS

    @property
    def size(self) -> int:
        return SIZES[self.compute]

    @property
    def deep(self) -> int:
        return 32 if self.size == 2 else 16

    @property
    def tensor(self) -> bool:
        return self.precision in ("float16", "bfloat16", "tf32")

    def row_bytes(self, columns: int) -> int:
        """With a pad behind a row: neighbouring rows begin in other banks."""
        return columns * self.size + (16 if self.size != 4 or not self.tensor else 32)

    @property
    def right_at(self) -> int:
        return self.deep * self.row_bytes(self.high)

    @property
    def stage_bytes(self) -> int:
        return self.right_at + self.deep * self.row_bytes(self.wide)

    def body(self, w: Writer, lefts: Sequence[Operand], rights: Sequence[Operand]) -> WeightGradientBlock:
        return (_OnTensorCores if self.tensor else _WithoutTensorCores)(w, self, lefts, rights)


def tile_for(precision: str, product: RowProduct) -> MmaWeightGradientTile:
    """The largest that the result fills."""
    most = 64 if precision == "float64" else 128
    high, wide = (min(most, 64 if side.depth <= 64 else 128) for side in (product.left, product.right))
    heads, vectors = product.heads, product.vectors
    return MmaWeightGradientTile(precision, high, wide, heads=heads, vectors=vectors, turned=product.turned)


class _Staged(WeightGradientBlock):
    """Stages filled by cp.async of all threads; subclasses multiply."""

    tile: MmaWeightGradientTile

    def _work(self) -> None:
        w, stages = self.w, self.tile.stages
        self.lane, warp = w.bind(self.tx % 32), w.bind(self.tx // 32)
        self.down, self.across = w.bind(warp % WARPS_DOWN), w.bind(warp // WARPS_DOWN)
        self._prepare()
        for early in range(stages - 1):
            with w.when(self.count > early):
                self._fill(tirx.const(early, "int32"), tirx.const(early, "int32"))
            w.do(I.ptx["cp.async.commit_group"]())
        with cp_async_loop(w, self.count, stages, self._fill_ahead) as turn:
            slot = tirx.Cast("uint32", tirx.truncmod(turn, stages))
            self._multiply(w.keep(self.base + slot * uint32(self.tile.stage_bytes)))
        self._finish()

    @abstractmethod
    def _prepare(self) -> None:
        """Registers for sums, all 0."""

    @abstractmethod
    def _multiply(self, stage: TirExpr) -> None:
        """Add a stage's products."""

    @abstractmethod
    def _finish(self) -> None:
        """Store the sums."""

    def _fill_ahead(self, number: TirExpr) -> None:
        ahead = self.w.keep(number)
        with self.w.when(ahead < self.count):
            self._fill(tirx.truncmod(ahead, self.tile.stages), ahead)

    def _fill(self, slot: TirExpr, number: TirExpr) -> None:
        w, tile = self.w, self.tile
        stage = w.bind(self.base + tirx.Cast("uint32", slot) * uint32(tile.stage_bytes))
        self._copy_both(stage, w.keep((self.first + wide(number)) * tile.deep))

    def _copy(self, operand: Operand, target: TirExpr, row0: TirExpr, first: TirExpr, columns: int) -> None:
        w, tile = self.w, self.tile
        chunk = 16 // tile.size
        across = columns // chunk
        for turn in range(ceil_div(tile.deep * across, THREADS)):
            piece = w.bind(self.tx + turn * THREADS)
            line, at = w.bind(tirx.truncdiv(piece, across)), w.bind(first + tirx.truncmod(piece, across) * chunk)
            row = w.bind(row0 + wide(line))
            own = line * tile.row_bytes(columns) + tirx.truncmod(piece, across) * 16
            into = target + tirx.Cast("uint32", own)
            with w.when(piece < tile.deep * across):
                if operand.rows_of(tile.compute) and operand.around is not None:
                    there = w.keep(row < self.rows)
                    place, count = operand.found(w, w.bind(tirx.Select(there, row, int64(0))), at, chunk)
                    size = tirx.Cast("uint32", tirx.Select(there, count * tile.size, 0))
                    w.do(I.ptx[COPY](into, w[operand.name].ptr_to([place]), 16, size))
                elif operand.rows_of(tile.compute):
                    assert operand.offset is not None
                    reach = tirx.max(tirx.min(operand.depth - at, chunk), 0) * tile.size
                    size = w.bind(tirx.Cast("uint32", tirx.Select(row < self.rows, reach, 0)))
                    inside = tirx.Select(size > uint32(0), row, tirx.const(0, "int64"))
                    start = tirx.Select(size > uint32(0), at, tirx.const(0, "int32"))
                    own, shift = self._vector(operand, inside)
                    place = own * operand.place.row_stride + wide(start) + operand.offset + shift
                    w.do(I.ptx[COPY](into, w[operand.name].ptr_to([place]), 16, size))
                else:
                    own, shift = self._vector(operand, row)
                    operand.gather(w, tile.compute, into, own, at, shift)

    def _vector(self, operand: Operand, row: TirExpr) -> tuple[TirExpr, Expr]:
        """Which row a vector lies in, and how many elements after that of the first head and vector."""
        vectors, shift = self.tile.vectors, wide(self.head) * operand.apart
        if vectors == 1:
            return row, shift
        return tirx.truncdiv(row, int64(vectors)), shift + tirx.truncmod(row, int64(vectors)) * operand.step

    def _store(self, sums: Sequence[tuple[TirExpr, TirExpr, TirExpr]]) -> None:
        """Lines and columns of the tile, with their sums."""
        w, places = self.w, list[Found]()
        for line, column, _ in sums:
            line, column = w.bind(self.line + line), w.bind(self.column + column)
            outer, size, inner = (column, self.height, line) if self.tile.turned else (line, self.width, column)
            at = self._result() * (self.height * self.width) + wide(outer) * size + wide(inner)
            places.append((w.bind(at), tirx.And(line < self.height, column < self.width)))
        self._store_sums("sums", places, [value for *_, value in sums])


class _OnTensorCores(_Staged):
    def _prepare(self) -> None:
        high, wide = self.tile.high // (16 * WARPS_DOWN), self.tile.wide // (8 * WARPS_ACROSS)
        self.product = MmaProduct(self.w, self.tile.compute, high, wide)

    def _multiply(self, stage: TirExpr) -> None:
        w, tile, product = self.w, self.tile, self.product
        deep = 8 if tile.size == 4 else 16
        left = w.bind(stage + tirx.Cast("uint32", self.down * (16 * product.high * tile.size)))
        own = tirx.Cast("uint32", self.across * (8 * product.broad * tile.size))
        right = w.bind(stage + uint32(tile.right_at) + own)
        product.take_fragments()
        for step in range(tile.deep // deep):
            (self._load_turned if tile.size == 2 else self._load_words)(left, right, step * deep)
            product.multiply()

    def _load_turned(self, left: TirExpr, right: TirExpr, k: int) -> None:
        """Fragments of 16 rows: four 8 x 8 matrices at a time, each row 16 bytes of one row of an operand."""
        w, tile, lane = self.w, self.tile, self.lane
        matrix, line = w.bind(lane // 8), w.bind(lane % 8)
        # Of a: (k 0..7, m 0..7), (k 0..7, m 8..15), (k 8..15, m 0..7), (k 8..15, m 8..15).
        row = k + matrix // 2 * 8 + line
        at = w.bind(tirx.Cast("uint32", row * tile.row_bytes(tile.high) + matrix % 2 * 16))
        for m in range(self.product.high):
            w.do(I.ptx[TURNED](*self.product.a[0, m], left + at + uint32(32 * m)))
        # Of b: the two halves of k of one tile of 8 columns, then of the next.
        row = k + matrix % 2 * 8 + line
        at = w.bind(tirx.Cast("uint32", row * tile.row_bytes(tile.wide) + matrix // 2 * 16))
        for n in range(0, self.product.broad, 2):
            w.do(I.ptx[TURNED](*self.product.b[0, n], *self.product.b[0, n + 1], right + at + uint32(16 * n)))

    def _load_words(self, left: TirExpr, right: TirExpr, k: int) -> None:
        """Fragments of 8 rows in float32, word by word, rounded to 10 bits of mantissa."""
        w, tile = self.w, self.tile
        g, q = w.bind(self.lane // 4), w.bind(self.lane % 4)

        def load(into: TirExpr, base: TirExpr, columns: int, row: int, column: int) -> None:
            at = (k + row + q) * tile.row_bytes(columns) + (column + g) * 4
            word = w.local(1)
            w.do(I.ptx["ld.shared.f32"](word[0], base + tirx.Cast("uint32", at)))
            w.do(I.ptx["cvt.rna.tf32.f32"](into, word[0]))

        for m in range(self.product.high):
            for i, register in enumerate(self.product.a[0, m]):
                load(register, left, tile.high, i // 2 * 4, 16 * m + i % 2 * 8)
        for n in range(self.product.broad):
            for i, register in enumerate(self.product.b[0, n]):
                load(register, right, tile.wide, i * 4, 8 * n)

    def _finish(self) -> None:
        product = self.product
        for m in range(product.high):
            found = []
            for n in range(product.broad):
                for half in range(2):
                    for odd, value in enumerate(product.acc[m, n, half]):
                        line = self.down * (16 * product.high) + (16 * m + half * 8) + self.lane // 4
                        column = self.across * (8 * product.broad) + (8 * n + odd) + self.lane % 4 * 2
                        found.append((line, column, value))
            self._store(found)


class _WithoutTensorCores(_Staged):
    """float32 and float64: a thread has vectors of m, 16 vectors apart, times vectors of n likewise."""

    def _prepare(self) -> None:
        self.dtype = arithmetic(self.tile.precision)
        self.acc = self.w.tile(self.tile.high // 16, self.tile.wide // 16, dtype=self.dtype)
        self.acc.fill(tirx.const(0.0, self.dtype))
        self.vector = 16 // self.tile.size

    def _multiply(self, stage: TirExpr) -> None:
        w, tile, vector = self.w, self.tile, self.vector
        a, b = (w.tile(size // 16 // vector, vector, dtype=self.dtype) for size in (tile.high, tile.wide))
        kind = "ld.shared.v4.f32" if vector == 4 else "ld.shared.v2.f64"
        left = w.bind(stage + tirx.Cast("uint32", self.tx // 16 * 16))
        right = w.bind(stage + uint32(tile.right_at) + tirx.Cast("uint32", self.tx % 16 * 16))
        with w.loop(tile.deep) as k:
            for values, base, columns in ((a, left, tile.high), (b, right, tile.wide)):
                row = w.bind(base + tirx.Cast("uint32", k * tile.row_bytes(columns)))
                for piece in range(columns // 16 // vector):
                    w.do(I.ptx[kind](*values[piece], row + uint32(piece * 256)))
            for m, x in enumerate(a.flat):
                for n, y in enumerate(b.flat):
                    self.acc.store(self.acc[m][n] + x * y, m, n)

    def _finish(self) -> None:
        vector = self.vector
        for m in range(self.tile.high // 16):
            line, found = m // vector * (16 * vector) + self.tx // 16 * vector + m % vector, []
            for n, value in enumerate(self.acc[m]):
                column = n // vector * (16 * vector) + self.tx % 16 * vector + n % vector
                found.append((line, column, value))
            self._store(found)
