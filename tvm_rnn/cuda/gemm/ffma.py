"""GEMM without tensor cores: strict float32 (FFMA) and float64.

In: a `Problem` and a tile. Out: kernels' bodies. A thread holds `high` rows x (some units with all their gates). It
reads 16 bytes of K of each of its rows at once; lanes of a warp are 8 across units and 4 down rows, so that shared
memory is read without conflicts. `split` groups of threads share K where rows are few.

For the rows of one step, on Hopper, K is shared out over a cluster as well (`LanesSplitK`): a step has so few tiles
that some multiprocessors would multiply two and others one; a share of K for each block of a cluster makes as many
parts as there are multiprocessors. Four warps copy, ahead by some pipeline stages; the others multiply, each group of
them every `split`-th stage, and meet only to add up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from itertools import product
from typing import ClassVar

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.codegen.tile_layout import SWIZZLE_128
from tvm_rnn.cuda.layer.packed_layout import CHUNKS, ROW_BYTES, Lanes, ceil_div
from tvm_rnn.cuda.layer.pipeline_barriers import LEAST_STAGES
from tvm_rnn.tir.expr import Expr, TirExpr
from tvm_rnn.tir.index import uint32, wide

from .cp_async_pipeline import CpAsyncGemm, CpAsyncTile
from .problem import Problem

WARP = 32
ACROSS = 8  # lanes of a warp along units


def spread(lane: Expr, lanes: int) -> tuple[Expr, Expr]:
    """(column, line) of a lane, of so many along columns. Lanes 2n and 2n + 1 have one line, lanes n and n ^ 2 one
    column: shared memory serves half a warp at once, instead of a quarter, where each lane of a warp reads the same 16
    bytes as the lane of one of these numbers."""
    if lanes in (1, WARP):
        return lane % lanes, lane // lanes
    return lane % 2 + lane // 4 % (lanes // 2) * 2, lane // 2 % 2 + lane // (2 * lanes) * 2


@dataclass(frozen=True)
class LanesTile(CpAsyncTile):
    """rows of a block, high: of a thread; across: threads along units; groups: of 4 columns of a thread."""

    _: KW_ONLY
    across: int = 16
    high: int = 8
    groups: int = 2
    size: int = 4

    @property
    def lanes(self) -> int:
        """Lanes of a warp along units: more where rows are too few for the others."""
        return max(min(self.across, ACROSS), WARP // self.down)

    @property
    def down(self) -> int:
        """Threads along rows."""
        return self.rows // self.high

    @property
    def members(self) -> int:
        return self.across * self.down * self.split

    @property
    def weight_bytes(self) -> int:
        return ROW_BYTES // self.size * 4 * self.across * self.groups * self.size

    @property
    def sums(self) -> int:
        return self.high * self.groups * 4 * self.size


class LanesGemm(CpAsyncGemm):
    """A thread multiplies its rows and units by itself."""

    tile: LanesTile

    def __init__(self, w: Writer, problem: Problem, tile: LanesTile) -> None:
        assert isinstance(problem.layout, Lanes) and tile.down * tile.lanes % 32 == 0 and CHUNKS % tile.split == 0
        self.lanes: Lanes = problem.layout
        super().__init__(w, problem, tile, ceil_div(self.lanes.width, tile.across * self.lanes.units))

    def prepare(self) -> None:
        w, tile = self.w, self.tile
        lane, warp = w.bind(self.tx % 32), w.bind(self.tx // 32)
        along, lines = tile.across // tile.lanes, 32 // tile.lanes
        warps = along * (tile.down // lines)
        own = w.bind(warp % warps)
        self.part = w.bind(warp // warps)
        self.member = w.bind(own * 32 + lane)
        x, y = spread(lane, tile.lanes)
        self.x = w.bind(own % along * tile.lanes + x)
        self.y = w.bind(own // along * lines + y)
        self.items, dtype, chunk = tile.high // tile.cluster, self.problem.arithmetic, self.chunk_elements
        self.vectors = 4 * tile.groups // chunk  # of 16 bytes, of a row's sums
        self.load_vector = "ld.shared.v4.f32" if chunk == 4 else "ld.shared.v2.f64"
        self.acc = w.tile(tile.high, self.vectors, chunk, dtype=dtype)
        self.acc.fill(tirx.const(0.0, dtype))
        self.a = w.tile(tile.high, chunk, dtype=dtype)
        self.b = w.tile(2, self.vectors, chunk, dtype=dtype)
        self.a_at = w.bind(tirx.Cast("uint32", self.y * ROW_BYTES))
        self.b_at = w.bind(tirx.Cast("uint32", self.x * (4 * tile.size) + tile.rows * ROW_BYTES))

    def copy_weights(self, number: int, stage: TirExpr, k: TirExpr) -> None:
        """`deep` rows of K; of each, one run of `across` threads' columns per group."""
        tile, lanes, chunk = self.tile, self.lanes, self.chunk_elements
        run = tile.across * 4  # columns
        inside = lanes.THREADS // tile.across  # tiles of this kernel in one of the layout
        column = self.tile_n // inside * lanes.tile + self.tile_n % inside * run
        first = wide(k) * (self.deep * lanes.columns) + wide(column)

        def source(piece: TirExpr) -> Expr:
            line, within = piece // (run // chunk), piece % (run // chunk) * chunk
            at = line // tile.groups * lanes.columns + line % tile.groups * (4 * lanes.THREADS) + within
            return first + wide(at)

        self.copy_chunks(number, stage, self.deep * tile.groups * run // chunk, source, bound=True)

    def multiply(self, stage: TirExpr) -> None:
        """Chunks of this thread's part. A k of the weights is read one k ahead, a row of the next chunk as soon as the
        row's last product is made: the loads hide behind the other rows' products. Where a part is one chunk, nothing
        of it is left to read ahead."""
        w, tile, chunk = self.w, self.tile, self.chunk_elements
        count, number = self.chunks()
        line = tile.groups * tile.across * 4 * tile.size
        weights = w.bind(stage + self.b_at)

        def b_of(c: Expr, e: int) -> TirExpr:
            return weights + tirx.Cast("uint32", number(c) * (chunk * line)) + uint32(e * line)

        starts = self._a_starts(stage, number(0))
        self._load_b(b_of(0, 0), 0)
        for m in range(tile.high):
            self._load_a(starts, m)
        with w.loop(count) as c:
            following = tirx.min(c + 1, count - 1)  # once too often, which does no harm
            starts = self._a_starts(stage, number(following))
            for e in range(chunk):
                last = e == chunk - 1
                if count > 1 or not last:
                    self._load_b(b_of(following, 0) if last else b_of(c, e + 1), (e + 1) % 2)
                for m in range(tile.high):
                    for v, z in product(range(self.vectors), range(chunk)):
                        self.acc.store(self.acc[m, v][z] + self.a[m][e] * self.b[e % 2, v][z], m, v, z)
                    if count > 1 and last:
                        self._load_a(starts, m)

    def chunks(self) -> tuple[int, Callable[[Expr], Expr]]:
        """How many chunks of a stage this thread multiplies, and which the c-th is."""
        split = self.tile.split
        return CHUNKS // split, lambda c: self.part + c * split if split > 1 else c

    def _a_starts(self, stage: TirExpr, number: Expr) -> list[TirExpr]:
        """Addresses of a chunk in the thread's first rows; later ones swizzle like one of these."""
        starts = []
        for m in range(min(max(1, CHUNKS // self.tile.down), self.tile.high)):
            swizzled = SWIZZLE_128.piece(self.y + m * self.tile.down, number)
            starts.append(self.w.bind(stage + self.a_at + tirx.Cast("uint32", swizzled * 16)))
        return starts

    def _load_a(self, starts: list[TirExpr], m: int) -> None:
        start = starts[m % len(starts)] + uint32(m * self.tile.down * ROW_BYTES)
        self.w.do(I.ptx[self.load_vector](*self.a[m], start))

    def _load_b(self, start: TirExpr, half: int) -> None:
        tile, chunk = self.tile, self.chunk_elements
        for group in range(tile.groups):
            for first in range(0, 4, chunk):
                at = start + uint32(group * tile.across * 4 * tile.size + first * tile.size)
                self.w.do(I.ptx[self.load_vector](*self.b[half, (group * 4 + first) // chunk], at))

    def pieces(self, item: int, block: int) -> list[tuple[int, ...]]:
        """Items: the rows of a thread that one block of the cluster finishes."""
        return [(item * self.tile.cluster + block, v) for v in range(self.vectors)]

    def finish(self, item: int) -> None:
        units, hold = self.lanes.units, self.w.keep if self.tile.apart else self.w.bind
        own = item * self.tile.cluster + self.rank
        row = hold(self.row0 + wide(self.y + own * self.tile.down))
        sums = [value for piece in self.pieces(item, 0) for value in self.acc[piece]]
        self.problem.finish(self.w, row, (self.tile_n * self.tile.across + self.x) * units, units, sums)


@dataclass(frozen=True)
class LanesSplitKTile(LanesTile):
    """split: groups of threads that take turns with stages."""

    apart: ClassVar[bool] = True


class LanesSplitK(LanesGemm):
    """Some warps copy, groups of the others take turns with stages."""

    tile: LanesSplitKTile
    by_wgmma, stores = False, True
    div, mod = staticmethod(tirx.truncdiv), staticmethod(tirx.truncmod)

    def body(self) -> None:
        """Copiers and multipliers, in place of one loop for all."""
        w, tile = self.w, self.tile
        assert tile.high % tile.cluster == 0 and tile.parts > 1 and tile.stages >= LEAST_STAGES
        first, count = self._share_of_k()
        self._make_barriers(self.arrivals, tile.members // tile.split // 32)
        with I.If(self.tx < tile.members):
            with I.Then():
                self._consume(count)
                self._combine()
            with I.Else():
                self.tx = w.bind(self.tx - tile.members)
                self._sources()
                with w.loop(count) as k, self._filling(k) as slot:
                    self._fill(slot, first + k)
                self._filled()
                self._meet(alone=True)
                self._meet(alone=True)

    def _consume(self, count: TirExpr) -> None:
        w, split = self.w, self.tile.split
        with w.loop(w.keep(tirx.truncdiv(count - self.part + (split - 1), split))) as turn:
            k = w.keep(self.part + turn * split)
            slot = w.keep(self._slot(k))
            self._wait_for_stage(slot, k)
            self.multiply(w.keep(self._stage(slot)))
            self._arrive(self._empty(slot))

    def chunks(self) -> tuple[int, Callable[[Expr], Expr]]:
        return CHUNKS, lambda c: c
