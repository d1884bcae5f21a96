"""GEMM without tensor cores: strict float32 (FFMA) and float64.

In: a `Problem` and a tile. Out: a `Kernel`. A thread holds `high` rows x (some units with all their gates). It reads
16 bytes of K of each of its rows at once; lanes of a warp are 8 across units and 4 down rows, so that shared memory
is read without conflicts. `split` groups of threads share K where rows are few.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from .gemm_layout import CHUNKS, ROW_BYTES, Lanes, ceil_div
from .gemm_problem import Problem, uint32
from .gemm_ring import COPY, Ring, RingTile, ring_kernel
from .kernel import Kernel, Writer

Expr = Any
ACROSS = 8  # lanes of a warp along units


@dataclass(frozen=True)
class LanesTile(RingTile):
    """rows of a block, high: of a thread; across: threads along units; groups: of 4 columns of a thread."""

    across: int = 16
    high: int = 8
    groups: int = 2
    size: int = 4

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
    def partial_bytes(self) -> int:
        return (self.threads - self.threads // self.split) * self.high * self.groups * 4 * self.size


def lanes_kernel(name: str, problem: Problem, tile: LanesTile) -> Kernel:
    """A kernel for any number of rows."""
    assert tile.across % ACROSS == 0 and tile.down % (32 // ACROSS) == 0 and CHUNKS % tile.split == 0
    return ring_kernel(name, problem, tile, _Lanes)


class _Lanes(Ring):
    tile: LanesTile

    def __init__(self, w: Writer, problem: Problem, tile: LanesTile) -> None:
        assert isinstance(problem.layout, Lanes)
        super().__init__(w, problem, tile, ceil_div(problem.epilogue.width, tile.across * problem.layout.units))
        self.lanes: Lanes = problem.layout

    def prepare(self) -> None:
        w, tile = self.w, self.tile
        lane, warp = w.bind(self.tx % 32), w.bind(self.tx // 32)
        along = tile.across // ACROSS
        warps = along * (tile.down // (32 // ACROSS))
        own = w.bind(warp % warps)
        self.part = w.bind(warp // warps)
        self.member = w.bind(own * 32 + lane)
        self.x = w.bind(own % along * ACROSS + lane % ACROSS)
        self.y = w.bind(own // along * (32 // ACROSS) + lane // ACROSS)
        self.slots = 4 * tile.groups
        self.sums = tile.high * self.slots
        self.acc = w.local(self.sums, self.problem.arithmetic)
        for i in range(self.sums):
            w.store(self.acc, tirx.const(0.0, self.problem.arithmetic), i)
        self.a = w.local(tile.high * self.chunk_elements, self.problem.arithmetic)
        self.b = w.local(2 * self.slots, self.problem.arithmetic)
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

    def multiply(self, stage: Expr) -> None:
        """Chunks of this thread's part; weights are read one k ahead."""
        w, tile, chunk = self.w, self.tile, self.chunk_elements
        with w.loop(CHUNKS // tile.split) as c:
            number = w.bind(self.part + c * tile.split if tile.split > 1 else c)
            line = tile.groups * tile.across * 4 * tile.size
            weights = w.bind(stage + self.b_at + tirx.Cast("uint32", number * (chunk * line)))
            self._load_b(weights, 0)
            self._load_a(stage, number)
            for e in range(chunk):
                if e + 1 < chunk:
                    self._load_b(weights + uint32((e + 1) * line), (e + 1) % 2)
                for m in range(tile.high):
                    for s in range(self.slots):
                        product = self.a[m * chunk + e] * self.b[e % 2 * self.slots + s]
                        w.store(self.acc, self.acc[m * self.slots + s] + product, m * self.slots + s)

    def _load_a(self, stage: Expr, number: Expr) -> None:
        """One chunk of every row of the thread."""
        w, tile, chunk = self.w, self.tile, self.chunk_elements
        period = max(1, CHUNKS // tile.down)  # rows of a thread that swizzle differently
        kind = "v4.f32" if chunk == 4 else "v2.f64"
        starts = []
        for m in range(min(period, tile.high)):
            swizzled = tirx.bitwise_xor(number, (self.y + m * tile.down) % CHUNKS)
            starts.append(w.bind(stage + self.a_at + tirx.Cast("uint32", swizzled * 16)))
        for m in range(tile.high):
            parts = [self.a[m * chunk + i] for i in range(chunk)]
            w.do(I.ptx[f"ld.shared.{kind}"](*parts, starts[m % period] + uint32(m * tile.down * ROW_BYTES)))

    def _load_b(self, start: Expr, half: int) -> None:
        tile, chunk = self.tile, self.chunk_elements
        kind = "v4.f32" if chunk == 4 else "v2.f64"
        for group in range(tile.groups):
            for first in range(0, 4, chunk):
                parts = [self.b[half * self.slots + group * 4 + first + i] for i in range(chunk)]
                at = start + uint32(group * tile.across * 4 * tile.size + first * tile.size)
                self.w.do(I.ptx[f"ld.shared.{kind}"](*parts, at))

    def finish(self) -> None:
        w, tile, units = self.w, self.tile, self.lanes.units
        unit = w.bind((self.tile_n * tile.across + self.x) * units)
        for m in range(tile.high):
            row = w.bind(self.row0 + tirx.Cast("int64", self.y + m * tile.down))
            with w.when(row < w["rows"]):

                def value(gate: int, u: int, m: int = m) -> Expr:
                    return self.acc[m * self.slots + gate * units + u]

                self.problem.epilogue.emit(w, row, unit, units, value)
