"""GEMM without tensor cores: strict float32 (FFMA) and float64.

In: a `Problem` and a tile. Out: a `Kernel`. A thread holds `high` rows x (some units with all their gates). It reads
16 bytes of K of each of its rows at once; lanes of a warp are 8 across units and 4 down rows, so that shared memory
is read without conflicts. `split` groups of threads share K where rows are few.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer
from tvm_rnn.cuda.codegen.tile_layout import SWIZZLE_128
from tvm_rnn.cuda.layer.packed_layout import CHUNKS, ROW_BYTES, Lanes, ceil_div
from tvm_rnn.tir.expr import Expr, TirExpr
from tvm_rnn.tir.index import uint32

from .cp_async_pipeline import COPY, CpAsyncGemm, CpAsyncTile, cp_async_kernel
from .problem import Problem

ACROSS = 8  # lanes of a warp along units, at most


@dataclass(frozen=True)
class LanesTile(CpAsyncTile):
    """rows of a block, high: of a thread; across: threads along units; groups: of 4 columns of a thread."""

    across: int = 16
    high: int = 8
    groups: int = 2
    size: int = 4

    @property
    def lanes(self) -> int:
        """Lanes of a warp along units."""
        return min(self.across, ACROSS)

    @property
    def down(self) -> int:
        """Threads along rows."""
        return self.rows // self.high

    @property
    def threads(self) -> int:
        return self.across * self.down * self.split

    @property
    def weight_bytes(self) -> int:
        return ROW_BYTES // self.size * 4 * self.across * self.groups * self.size

    @property
    def sums(self) -> int:
        return self.high * self.groups * 4 * self.size


def lanes_kernel(name: str, problem: Problem, tile: LanesTile) -> Kernel:
    """A kernel for any number of rows."""
    assert tile.down * tile.lanes % 32 == 0 and CHUNKS % tile.split == 0 and tile.cluster == 1
    return cp_async_kernel(name, problem, tile, lambda w: _Lanes(w, problem, tile))


class _Lanes(CpAsyncGemm):
    tile: LanesTile

    def __init__(self, w: Writer, problem: Problem, tile: LanesTile) -> None:
        assert isinstance(problem.layout, Lanes)
        super().__init__(w, problem, tile, ceil_div(problem.epilogue.width, tile.across * problem.layout.units))
        self.lanes: Lanes = problem.layout

    def prepare(self) -> None:
        w, tile = self.w, self.tile
        lane, warp = w.bind(self.tx % 32), w.bind(self.tx // 32)
        along, lines = tile.across // tile.lanes, 32 // tile.lanes
        warps = along * (tile.down // lines)
        own = w.bind(warp % warps)
        self.part = w.bind(warp // warps)
        self.member = w.bind(own * 32 + lane)
        self.x = w.bind(own % along * tile.lanes + lane % tile.lanes)
        self.y = w.bind(own // along * lines + lane // tile.lanes)
        self.slots = 4 * tile.groups
        self.items, dtype = tile.high, self.problem.arithmetic
        self.vectors = self.slots // self.chunk_elements  # of 16 bytes, of a row's sums
        self.acc = w.tile(tile.high, self.vectors, self.chunk_elements, dtype=dtype)
        self.acc.fill(tirx.const(0.0, dtype))
        self.a = w.tile(tile.high, self.chunk_elements, dtype=dtype)
        self.b = w.tile(2, self.vectors, self.chunk_elements, dtype=dtype)
        self.a_at = w.bind(tirx.Cast("uint32", self.y * ROW_BYTES))
        self.b_at = w.bind(tirx.Cast("uint32", self.x * (4 * tile.size) + tile.rows * ROW_BYTES))

    def copy_weights(self, number: int, stage: Expr, k: Expr) -> None:
        """`deep` rows of K; of each, one run of `across` threads' columns per group."""
        w, tile, lanes = self.w, self.tile, self.lanes
        run = tile.across * 4  # columns
        chunks = self.deep * tile.groups * run // self.chunk_elements
        per_run = run // self.chunk_elements
        weight = w[self.problem.weight_name(number)]
        inside = lanes.THREADS // tile.across  # tiles of this kernel in one of the layout
        column = self.tile_n // inside * lanes.tile + self.tile_n % inside * run
        source = tirx.Cast("int64", k) * (self.deep * lanes.columns) + tirx.Cast("int64", column)
        for i in range(ceil_div(chunks, tile.threads)):
            piece = w.bind(self.tx + i * tile.threads)
            line, within = piece // per_run, piece % per_run * self.chunk_elements
            at = line // tile.groups * lanes.columns + line % tile.groups * (4 * lanes.THREADS) + within
            target = stage + tirx.Cast("uint32", piece) * uint32(16)
            copy = I.ptx[COPY](target, weight.ptr_to([source + tirx.Cast("int64", at)]), 16)
            if (i + 1) * tile.threads <= chunks:
                w.do(copy)
            else:
                with w.when(piece < chunks):
                    w.do(copy)

    def multiply(self, stage: TirExpr) -> None:
        """Chunks of this thread's part. A k of the weights is read one k ahead, a row of the next chunk as soon as the
        row's last product is made: the loads hide behind the other rows' products."""
        w, tile, chunk = self.w, self.tile, self.chunk_elements
        count, number = self.chunks()
        line = tile.groups * tile.across * 4 * tile.size
        weights = w.bind(stage + self.b_at)

        def b_of(c: Expr, e: int) -> Expr:
            return weights + tirx.Cast("uint32", number(c) * (chunk * line)) + uint32(e * line)

        starts = self._a_starts(stage, number(0))
        self._load_b(b_of(0, 0), 0)
        for m in range(tile.high):
            self._load_a(starts, m)
        with w.loop(count) as c:
            following = tirx.min(c + 1, count - 1)  # once too often, which does no harm
            starts = self._a_starts(stage, number(following))
            for e in range(chunk):
                self._load_b(b_of(c, e + 1) if e + 1 < chunk else b_of(following, 0), (e + 1) % 2)
                for m in range(tile.high):
                    for v, z in product(range(self.vectors), range(chunk)):
                        self.acc.store(self.acc[m, v][z] + self.a[m][e] * self.b[e % 2, v][z], m, v, z)
                    if e == chunk - 1:
                        self._load_a(starts, m)

    def chunks(self) -> tuple[int, Callable[[Expr], Expr]]:
        """How many chunks of a stage this thread multiplies, and which the c-th is."""
        split = self.tile.split
        return CHUNKS // split, lambda c: self.part + c * split if split > 1 else c

    def _a_starts(self, stage: Expr, number: Expr) -> list[Expr]:
        """Addresses of a chunk in the thread's first rows; later ones swizzle like one of these."""
        w, tile = self.w, self.tile
        starts: list[Expr] = []
        for m in range(min(max(1, CHUNKS // tile.down), tile.high)):
            swizzled = SWIZZLE_128.piece(self.y + m * tile.down, number)
            starts.append(w.bind(stage + self.a_at + tirx.Cast("uint32", swizzled * 16)))
        return starts

    def _load_a(self, starts: list[Expr], m: int) -> None:
        chunk = self.chunk_elements
        kind = "v4.f32" if chunk == 4 else "v2.f64"
        start = starts[m % len(starts)] + uint32(m * self.tile.down * ROW_BYTES)
        self.w.do(I.ptx[f"ld.shared.{kind}"](*self.a[m], start))

    def _load_b(self, start: Expr, half: int) -> None:
        tile, chunk = self.tile, self.chunk_elements
        kind = "v4.f32" if chunk == 4 else "v2.f64"
        for group in range(tile.groups):
            for first in range(0, 4, chunk):
                at = start + uint32(group * tile.across * 4 * tile.size + first * tile.size)
                self.w.do(I.ptx[f"ld.shared.{kind}"](*self.b[half, (group * 4 + first) // chunk], at))

    def pieces(self, item: int, block: int) -> list[tuple[int, ...]]:
        """Items: rows."""
        return [(item, v) for v in range(self.vectors)]

    def finish(self, item: int) -> None:
        self._finish_row(item, self.w.bind(self.row0 + tirx.Cast("int64", self.y + item * self.tile.down)))

    def _finish_row(self, item: int, row: TirExpr) -> None:
        """The epilogue of a row, whose sums are pieces(item, 0)."""
        w, units = self.w, self.lanes.units
        sums = [value for piece in self.pieces(item, 0) for value in self.acc[piece]]

        def value(gate: int, u: int) -> TirExpr:
            return sums[gate * units + u]

        with w.when(row < w["rows"]):
            self.problem.epilogue.emit(w, row, (self.tile_n * self.tile.across + self.x) * units, units, value)
