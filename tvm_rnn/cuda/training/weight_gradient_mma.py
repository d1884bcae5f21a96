"""The GEMM of a weight's gradient: sums over all rows (steps x batch) of products of two rows' elements.

In: operands that lie as rows, as many of the left ones as share a right one. Out: a `Kernel` that sums parts of the
rows, a block of the result each: rows are what K is in other products, so both operands come from shared memory as they
lie in global memory, turned by ldmatrix.trans. Parts are added up in a fixed order by `weight_gradient_sums.py`: no
atomics.

Rewrite: for m, n: sum[m, n] = sum over rows of a[row, m] b[row, n]  -->  tiles of m x n x parts of the rows
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.gemm.epilogue import store_chunk
from tvm_rnn.cuda.gemm.mma_sync import INSTRUCTIONS
from tvm_rnn.cuda.gemm.operands import Operand
from tvm_rnn.cuda.gemm.problem import keep, uint32
from tvm_rnn.cuda.layer.packed_layout import SIZES, ceil_div
from tvm_rnn.cuda.layer.pointers import arithmetic, storage
from tvm_rnn.graph.scalar_cuda import flavour

Expr = Any
THREADS, WARPS_DOWN, WARPS_ACROSS = 256, 2, 4
COPY = "cp.async.cg.shared.global"
TURNED = "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"


@dataclass(frozen=True)
class TotalsTile:
    """high x wide of a block; deep: rows of a stage."""

    precision: str
    high: int
    wide: int
    stages: int = 3

    @property
    def compute(self) -> str:
        return storage(self.precision)

    @property
    def size(self) -> int:
        return SIZES[self.compute]

    @property
    def deep(self) -> int:
        return 32 if self.size == 2 else 16

    @property
    def tensor(self) -> bool:
        return self.precision in ("float16", "bfloat16", "tf32")

    @property
    def pad(self) -> int:
        """Bytes behind a row: neighbouring rows begin in other banks."""
        return 16 if self.size != 4 or not self.tensor else 32

    def row_bytes(self, columns: int) -> int:
        return columns * self.size + self.pad

    @property
    def stage_bytes(self) -> int:
        return self.deep * (self.row_bytes(self.high) + self.row_bytes(self.wide))

    @property
    def shared_bytes(self) -> int:
        return self.stages * self.stage_bytes


def tile_for(precision: str, height: int, width: int) -> TotalsTile:
    """The largest that the result fills."""
    most = 64 if precision == "float64" else 128
    return TotalsTile(precision, min(most, 64 if height <= 64 else 128), min(most, 64 if width <= 64 else 128))


def tiles_of(tile: Any, height: int, width: int) -> int:
    """Blocks of a result; tile: with its `high` and `wide`."""
    return ceil_div(height, tile.high) * ceil_div(width, tile.wide)


def totals_kernel(name: str, tile: TotalsTile, lefts: Sequence[Operand], right: Operand) -> Kernel:
    """parts[part, left, m, n] of `lefts` (of one depth) with `right`, for all rows; scalars: rows, parts."""
    pointers = [(o.name, o.place.dtype) for o in lefts] + [(right.name, right.place.dtype)]
    pointers.append(("sums", arithmetic(tile.precision)))

    def body(w: Writer) -> None:
        with flavour(tile.precision), I.attr({"tirx.launch_bounds_min_blocks_per_sm": 1}):
            _Totals(w, tile, lefts, right).run()

    scalars = [("rows", "int64"), ("parts", "int64")]
    return write(name, pointers, scalars, body, threads=THREADS, shared_bytes=tile.shared_bytes)


class _Totals:
    def __init__(self, w: Writer, tile: TotalsTile, lefts: Sequence[Operand], right: Operand) -> None:
        self.w, self.tile, self.lefts, self.right = w, tile, lefts, right
        self.height, self.width = lefts[0].depth, right.depth

    def run(self) -> None:
        w, tile = self.w, self.tile
        down, across = ceil_div(self.height, tile.high), ceil_div(self.width, tile.wide)
        blocks = w["parts"] * (len(self.lefts) * down * across)
        cta, self.tx = keep(w, I.cta_id([tirx.Cast("int32", blocks)])), I.thread_id([THREADS])
        self.column = keep(w, tirx.truncmod(cta, across) * tile.wide)
        self.line = keep(w, tirx.truncmod(tirx.truncdiv(cta, across), down) * tile.high)
        self.left = keep(w, tirx.truncmod(tirx.truncdiv(cta, across * down), len(self.lefts)))
        self.part = keep(w, tirx.Cast("int64", tirx.truncdiv(cta, across * down * len(self.lefts))))
        arena = I.alloc_buffer((tile.shared_bytes,), "uint8", scope="shared.dyn", align=1024)
        self.base = w.bind(I.cuda.cvta_generic_to_shared(arena.ptr_to([0])))
        stages = tirx.truncdiv(w["rows"] + (tile.deep - 1), tirx.const(tile.deep, "int64"))
        each = keep(w, tirx.truncdiv(stages + w["parts"] - 1, w["parts"]))
        self.first = keep(w, self.part * each)
        self.count = keep(w, tirx.Cast("int32", tirx.max(tirx.min(stages - self.first, each), 0)))
        self._prepare()
        self._mainloop()
        self._finish()

    def _mainloop(self) -> None:
        w, stages = self.w, self.tile.stages
        for stage in range(stages - 1):
            with w.when(self.count > stage):
                self._fill(tirx.const(stage, "int32"), tirx.const(stage, "int32"))
            w.do(I.ptx["cp.async.commit_group"]())
        with w.loop(self.count) as turn:
            w.do(I.ptx["cp.async.wait_group"](stages - 2))
            w.do(I.cuda.cta_sync())
            ahead = keep(w, turn + (stages - 1))
            with w.when(ahead < self.count):
                self._fill(tirx.truncmod(ahead, stages), ahead)
            w.do(I.ptx["cp.async.commit_group"]())
            slot = tirx.Cast("uint32", tirx.truncmod(turn, stages))
            stage = keep(w, self.base + slot * uint32(self.tile.stage_bytes))
            (self._multiply if self.tile.tensor else self._multiply_lanes)(stage)

    # --- global to shared memory -----------------------------------------------------------------------------------

    def _fill(self, slot: Expr, number: Expr) -> None:
        w, tile = self.w, self.tile
        stage = w.bind(self.base + tirx.Cast("uint32", slot) * uint32(tile.stage_bytes))
        row0 = keep(w, (self.first + tirx.Cast("int64", number)) * tile.deep)
        for n, operand in enumerate(self.lefts):
            with w.when(self.left == n) if len(self.lefts) > 1 else w.when(tirx.const(True, "bool")):
                self._copy(operand, stage, row0, self.line, tile.high)
        behind = stage + uint32(tile.deep * tile.row_bytes(tile.high))
        self._copy(self.right, behind, row0, self.column, tile.wide)

    def _copy(self, operand: Operand, stage: Expr, row0: Expr, first: Expr, columns: int) -> None:
        w, tile = self.w, self.tile
        chunk = 16 // tile.size
        across = columns // chunk
        plain = operand.rows_of(tile.compute)
        for turn in range(ceil_div(tile.deep * across, THREADS)):
            piece = w.bind(self.tx + turn * THREADS)
            line, at = w.bind(tirx.truncdiv(piece, across)), w.bind(first + tirx.truncmod(piece, across) * chunk)
            row = w.bind(row0 + tirx.Cast("int64", line))
            own = line * tile.row_bytes(columns) + tirx.truncmod(piece, across) * 16
            target = stage + tirx.Cast("uint32", own)
            with w.when(piece < tile.deep * across):
                if plain:
                    assert operand.offset is not None
                    reach = tirx.max(tirx.min(operand.depth - at, chunk), 0) * tile.size
                    size = w.bind(tirx.Cast("uint32", tirx.Select(row < w["rows"], reach, 0)))
                    inside = tirx.Select(size > uint32(0), row, tirx.const(0, "int64"))
                    start = tirx.Select(size > uint32(0), at, tirx.const(0, "int32"))
                    place = inside * operand.place.row_stride + tirx.Cast("int64", start) + operand.offset
                    w.do(I.ptx[COPY](target, w[operand.name].ptr_to([place]), 16, size))
                else:
                    source = keep(w, tirx.min(row, w["rows"] - 1))
                    store_chunk(w, target, operand, source, row < w["rows"], at, tile.compute)

    # --- tensor cores ----------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        w, tile = self.w, self.tile
        self.lane, warp = w.bind(self.tx % 32), w.bind(self.tx // 32)
        self.down, self.across = w.bind(warp % WARPS_DOWN), w.bind(warp // WARPS_DOWN)
        self.rows_m, self.cols_n = tile.high // (16 * WARPS_DOWN), tile.wide // (8 * WARPS_ACROSS)
        if tile.tensor:
            self.acc = w.local(self.rows_m * self.cols_n * 4)
            count = self.rows_m * self.cols_n * 4
        else:
            count = tile.high * tile.wide // THREADS
            self.acc = w.local(count, arithmetic(tile.precision))
        for i in range(count):
            w.store(self.acc, tirx.const(0.0, arithmetic(tile.precision)), i)

    def _multiply(self, stage: Expr) -> None:
        w, tile = self.w, self.tile
        deep = 8 if tile.size == 4 else 16
        left = w.bind(stage + tirx.Cast("uint32", self.down * (16 * self.rows_m * tile.size)))
        behind = uint32(tile.deep * tile.row_bytes(tile.high))
        right = w.bind(stage + behind + tirx.Cast("uint32", self.across * (8 * self.cols_n * tile.size)))
        a, b = w.local(4 * self.rows_m, "uint32"), w.local(2 * self.cols_n, "uint32")
        for step in range(tile.deep // deep):
            if tile.size == 2:
                self._turned(left, right, step * deep, a, b)
            else:
                self._single(left, right, step * deep, a, b)
            for m in range(self.rows_m):
                for n in range(self.cols_n):
                    d = [self.acc[(m * self.cols_n + n) * 4 + i] for i in range(4)]
                    own = [a[4 * m + i] for i in range(4)], [b[2 * n + i] for i in range(2)]
                    w.do(I.ptx[INSTRUCTIONS[tile.compute]](*d, *own[0], *own[1], *d))

    def _turned(self, left: Expr, right: Expr, k: int, a: Any, b: Any) -> None:
        """Fragments of 16 rows: four 8 x 8 matrices at a time, each row 16 bytes of one row of an operand."""
        w, tile, lane = self.w, self.tile, self.lane
        matrix, line = w.bind(lane // 8), w.bind(lane % 8)
        # Of a: (k 0..7, m 0..7), (k 0..7, m 8..15), (k 8..15, m 0..7), (k 8..15, m 8..15).
        row = k + matrix // 2 * 8 + line
        at = w.bind(tirx.Cast("uint32", row * tile.row_bytes(tile.high) + matrix % 2 * 16))
        for m in range(self.rows_m):
            w.do(I.ptx[TURNED](*[a[4 * m + i] for i in range(4)], left + at + uint32(32 * m)))
        # Of b: the two halves of k of one tile of 8 columns, then of the next.
        row = k + matrix % 2 * 8 + line
        at = w.bind(tirx.Cast("uint32", row * tile.row_bytes(tile.wide) + matrix // 2 * 16))
        for n in range(0, self.cols_n, 2):
            w.do(I.ptx[TURNED](*[b[2 * n + i] for i in range(4)], right + at + uint32(16 * n)))

    def _single(self, left: Expr, right: Expr, k: int, a: Any, b: Any) -> None:
        """Fragments of 8 rows in float32, word by word, rounded to 10 bits of mantissa."""
        w, tile = self.w, self.tile
        g, q = w.bind(self.lane // 4), w.bind(self.lane % 4)

        def load(into: Any, number: int, base: Expr, columns: int, row: int, column: int) -> None:
            at = (k + row + q) * tile.row_bytes(columns) + (column + g) * 4
            word = w.local(1)
            w.do(I.ptx["ld.shared.f32"](word[0], base + tirx.Cast("uint32", at)))
            w.do(I.ptx["cvt.rna.tf32.f32"](into[number], word[0]))

        for m in range(self.rows_m):
            for i in range(4):
                load(a, 4 * m + i, left, tile.high, i // 2 * 4, 16 * m + i % 2 * 8)
        for n in range(self.cols_n):
            for i in range(2):
                load(b, 2 * n + i, right, tile.wide, i * 4, 8 * n)

    # --- without tensor cores --------------------------------------------------------------------------------------

    @property
    def vector(self) -> int:
        return 16 // self.tile.size

    def _multiply_lanes(self, stage: Expr) -> None:
        """Each thread: vectors of m, 16 vectors apart, times vectors of n likewise."""
        w, tile, vector = self.w, self.tile, self.vector
        dtype = arithmetic(tile.precision)
        high, wide = tile.high // 16, tile.wide // 16
        a, b = w.local(high, dtype), w.local(wide, dtype)
        behind = uint32(tile.deep * tile.row_bytes(tile.high))
        kind = "ld.shared.v4.f32" if vector == 4 else "ld.shared.v2.f64"
        left = w.bind(stage + tirx.Cast("uint32", self.tx // 16 * 16))
        right = w.bind(stage + behind + tirx.Cast("uint32", self.tx % 16 * 16))
        with w.loop(tile.deep) as k:
            for values, base, columns in ((a, left, tile.high), (b, right, tile.wide)):
                row = w.bind(base + tirx.Cast("uint32", k * tile.row_bytes(columns)))
                for piece in range(columns // 16 // vector):
                    parts = [values[piece * vector + i] for i in range(vector)]
                    w.do(I.ptx[kind](*parts, row + uint32(piece * 256)))
            for m in range(high):
                for n in range(wide):
                    w.store(self.acc, self.acc[m * wide + n] + a[m] * b[n], m * wide + n)

    # --- results ---------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        tile = self.tile
        if tile.tensor:
            for m in range(self.rows_m):
                for n in range(self.cols_n):
                    for i in range(4):
                        line = self.down * (16 * self.rows_m) + (16 * m + i // 2 * 8) + self.lane // 4
                        column = self.across * (8 * self.cols_n) + (8 * n + i % 2) + self.lane % 4 * 2
                        self._store(line, column, self.acc[(m * self.cols_n + n) * 4 + i])
            return
        vector, wide = self.vector, tile.wide // 16
        for m in range(tile.high // 16):
            for n in range(wide):
                line = m // vector * (16 * vector) + self.tx // 16 * vector + m % vector
                column = n // vector * (16 * vector) + self.tx % 16 * vector + n % vector
                self._store(line, column, self.acc[m * wide + n])

    def _store(self, line: Expr, column: Expr, value: Expr) -> None:
        w = self.w
        line, column = w.bind(self.line + line), w.bind(self.column + column)
        with w.when(tirx.And(line < self.height, column < self.width)):
            block = self.part * len(self.lefts) + tirx.Cast("int64", self.left)
            at = block * (self.height * self.width) + tirx.Cast("int64", line) * self.width + tirx.Cast("int64", column)
            w.store(w["sums"], value, at)
