"""The part that GEMM kernels with cp.async share: which tile a block has, and a ring of stages in shared memory.

In: a `Problem` and a tile. Out: a base class; `gemm_mma.py` and `gemm_lanes.py` say how weights are copied and how a
stage is multiplied. A stage holds 128 bytes of K of every row, swizzled: 16 bytes at chunk c of row r are at c ^ r % 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from .gemm_layout import CHUNKS, ROW_BYTES, SIZES, ceil_div
from .gemm_problem import Problem, int64, keep, uint32
from .kernel import Kernel, Writer, write

Expr = Any
COPY = "cp.async.cg.shared.global"


@dataclass(frozen=True)
class RingTile:
    """rows of a block; split: parts of K that different warps take; stages of the ring; group: blocks of rows that go
    together."""

    rows: int
    split: int = 1
    stages: int = 4
    group: int = 8

    @property
    def threads(self) -> int:
        raise NotImplementedError

    @property
    def weight_bytes(self) -> int:
        """Of a stage."""
        raise NotImplementedError

    @property
    def partial_bytes(self) -> int:
        """Sums that warps hand to those that finish."""
        raise NotImplementedError

    @property
    def stage_bytes(self) -> int:
        return self.rows * ROW_BYTES + self.weight_bytes

    @property
    def shared_bytes(self) -> int:
        return max(self.stages * self.stage_bytes, self.partial_bytes)


class Ring:
    """A kernel's body: run() emits all of it."""

    def __init__(self, w: Writer, problem: Problem, tile: RingTile, tiles: int) -> None:
        self.w, self.problem, self.tile, self.tiles = w, problem, tile, tiles
        self.layout = problem.layout
        self.deep, self.chunk_elements = ROW_BYTES // SIZES[problem.compute], 16 // SIZES[problem.compute]
        self.depths = [ceil_div(o.depth, self.deep) for o in problem.operands]
        self.total = sum(self.depths)

    def run(self) -> None:
        w, tile = self.w, self.tile
        blocks = tirx.floordiv(w["rows"] + (tile.rows - 1), int64(tile.rows))
        cta = I.cta_id([tirx.Cast("int32", blocks * self.tiles)])
        self.tx = I.thread_id([tile.threads])
        arena = I.alloc_buffer((tile.shared_bytes,), "uint8", scope="shared.dyn", align=1024)
        self.base = w.bind(I.cuda.cvta_generic_to_shared(arena.ptr_to([0])))
        self._place(cta, keep(w, tirx.Cast("int32", blocks)))
        self.prepare()
        self._sources()
        self._mainloop()
        if tile.split > 1:
            self._reduce()
            with w.when(self.part == 0):
                self.finish()
        else:
            self.finish()

    # --- what a kernel adds -----------------------------------------------------------------------------------------

    acc: Any  # registers, of which there are `sums`
    sums: int
    part: Expr  # of K
    member: Expr  # this thread's number among those with the same part

    def prepare(self) -> None:
        """Thread numbers, registers."""
        raise NotImplementedError

    def copy_weights(self, number: int, stage: Expr, k: Expr) -> None:
        """Start the copies of tile `k` of a weight."""
        raise NotImplementedError

    def multiply(self, stage: Expr) -> None:
        """Add a stage's products."""
        raise NotImplementedError

    def finish(self) -> None:
        """The epilogue."""
        raise NotImplementedError

    # --- blocks ----------------------------------------------------------------------------------------------------

    def _place(self, cta: Expr, blocks: Expr) -> None:
        """Which tile this block has: down `group` blocks of rows, then to the next columns."""
        w, tile = self.w, self.tile
        period = tile.group * self.tiles
        first = keep(w, tirx.truncdiv(cta, period) * tile.group)
        high = keep(w, tirx.min(blocks - first, tile.group))
        within = keep(w, tirx.truncmod(cta, period))
        self.row0 = keep(w, tirx.Cast("int64", first + tirx.truncmod(within, high)) * tile.rows)
        self.tile_n = keep(w, tirx.truncdiv(within, high))

    # --- global to shared memory -----------------------------------------------------------------------------------

    def _sources(self) -> None:
        """Per thread: rows and chunks of the left operand that it copies."""
        w, tile = self.w, self.tile
        self.copies = ceil_div(tile.rows * CHUNKS, tile.threads)
        self.chunk = w.bind(self.tx % CHUNKS)
        self.aligned = [w.bind(self.problem.aligned(w, operand)) for operand in self.problem.operands]
        self.valid, self.row, self.into = [], [], []
        for i in range(self.copies):
            row = w.bind(self.tx // CHUNKS + i * (tile.threads // CHUNKS))
            at = w.bind(self.row0 + tirx.Cast("int64", row))
            self.valid.append(w.bind(at < w["rows"]))
            self.row.append(w.bind(tirx.min(at, w["rows"] - 1)))
            swizzled = row * ROW_BYTES + tirx.bitwise_xor(self.chunk, row % CHUNKS) * 16
            self.into.append(w.bind(tirx.Cast("uint32", swizzled)))

    def _fill(self, slot: Expr, k: Expr) -> None:
        """Stage `slot` from K tile `k`, counted over all operands."""
        w = self.w
        stage = w.bind(self.base + tirx.Cast("uint32", slot) * uint32(self.tile.stage_bytes))
        start = 0
        for number, deep in enumerate(self.depths):
            if len(self.depths) == 1:
                self._fill_from(number, stage, k)
            else:
                with w.when(tirx.And(k >= start, k < start + deep)):
                    self._fill_from(number, stage, k - start if start else k)
            start += deep

    def _fill_from(self, number: int, stage: Expr, k: Expr) -> None:
        operand = self.problem.operands[number]
        if operand.rows_of(self.problem.compute):
            with I.If(self.aligned[number]):
                with I.Then():
                    self._copies(number, stage, k)
                with I.Else():
                    self._gather(number, stage, k)
        else:
            self._gather(number, stage, k)
        self.copy_weights(number, stage + uint32(self.tile.rows * ROW_BYTES), k)

    def _copies(self, number: int, stage: Expr, k: Expr) -> None:
        """A stage of a left operand, by the hardware."""
        tile = self.tile
        for i in range(self.copies):
            if (i + 1) * tile.threads <= tile.rows * CHUNKS:
                self._copy(number, stage, k, i)
            else:
                with self.w.when(self.tx + i * tile.threads < tile.rows * CHUNKS):
                    self._copy(number, stage, k, i)

    def _copy(self, number: int, stage: Expr, k: Expr, i: int) -> None:
        """16 bytes of one row of a left operand; zeros beyond its depth and beyond the rows."""
        w, operand, chunk = self.w, self.problem.operands[number], self.chunk_elements
        assert operand.offset is not None
        first = w.bind(k * self.deep + self.chunk * chunk)
        left = tirx.max(tirx.min(operand.depth - first, chunk), 0)
        left = tirx.Select(self.valid[i], left, 0)
        inside = tirx.Select(first < operand.depth, first, 0)
        at = self.row[i] * operand.place.row_stride + tirx.Cast("int64", inside) + operand.offset
        size = tirx.Cast("uint32", left * (16 // chunk))
        w.do(I.ptx[COPY](stage + self.into[i], w[operand.name].ptr_to([at]), 16, size))

    def _gather(self, number: int, stage: Expr, k: Expr) -> None:
        """The same element by element: a loop, because it is long and rarely taken."""
        w, tile = self.w, self.tile
        first = w.bind(k * self.deep + self.chunk * self.chunk_elements)
        with w.loop(self.copies) as i:
            row = w.bind(self.tx // CHUNKS + i * (tile.threads // CHUNKS))
            at = w.bind(self.row0 + tirx.Cast("int64", row))
            valid = at < w["rows"]
            source = w.bind(tirx.min(at, w["rows"] - 1))
            swizzled = row * ROW_BYTES + tirx.bitwise_xor(self.chunk, row % CHUNKS) * 16
            with w.when(row < tile.rows):
                target = stage + tirx.Cast("uint32", swizzled)
                self.problem.store_chunk(w, target, self.problem.operands[number], source, valid, first)

    def copy_run(self, number: int, target: Expr, source: Expr, chunks: int) -> None:
        """Consecutive chunks of a packed weight, by all threads."""
        w, threads = self.w, self.tile.threads
        weight = w[self.problem.weight_name(number)]
        for i in range(ceil_div(chunks, threads)):
            piece = self.tx + i * threads
            at = source + tirx.Cast("int64", piece) * self.chunk_elements
            copy = I.ptx[COPY](target + tirx.Cast("uint32", piece) * uint32(16), weight.ptr_to([at]), 16)
            if (i + 1) * threads <= chunks:
                w.do(copy)
            else:
                with w.when(piece < chunks):
                    w.do(copy)

    def _mainloop(self) -> None:
        w, stages = self.w, self.tile.stages
        with w.loop(stages - 1) as s:
            with w.when(s < self.total):
                self._fill(s, s)
            w.do(I.ptx["cp.async.commit_group"]())
        with w.loop(self.total) as k:
            w.do(I.ptx["cp.async.wait_group"](stages - 2))
            w.do(I.cuda.cta_sync())
            following = k + (stages - 1)
            with w.when(following < self.total):
                self._fill(following % stages, following)
            w.do(I.ptx["cp.async.commit_group"]())
            self.multiply(w.bind(self.base + tirx.Cast("uint32", k % stages) * uint32(self.tile.stage_bytes)))

    # --- results ---------------------------------------------------------------------------------------------------

    def _reduce(self) -> None:
        """Add the parts of K up, through shared memory, in the threads of part 0."""
        w, tile = self.w, self.tile
        size = SIZES[self.problem.arithmetic]
        step, kind = 16 // size, "v4.f32" if size == 4 else "v2.f64"
        members = tile.threads // tile.split
        w.do(I.ptx["cp.async.wait_group"](0))
        w.do(I.cuda.cta_sync())

        def at(part: Expr, i: int) -> Expr:
            place = ((part * (self.sums // step) + i // step) * members + self.member) * 16
            return self.base + tirx.Cast("uint32", place)

        with w.when(self.part > 0):
            for i in range(0, self.sums, step):
                values = [self.acc[i + j] for j in range(step)]
                w.do(I.ptx[f"st.shared.{kind}"](at(self.part - 1, i), *values))
        w.do(I.cuda.cta_sync())
        with w.when(self.part == 0):
            other = w.local(step, self.problem.arithmetic)
            for i in range(0, self.sums, step):
                for part in range(tile.split - 1):
                    parts = [other[j] for j in range(step)]
                    w.do(I.ptx[f"ld.shared.{kind}"](*parts, at(tirx.const(part, "int32"), i)))
                    for j in range(step):
                        w.store(self.acc, self.acc[i + j] + other[j], i + j)


def ring_kernel(name: str, problem: Problem, tile: RingTile, kind: type[Ring]) -> Kernel:
    """A kernel whose grid is one block per tile of rows and columns."""

    def body(w: Writer) -> None:
        with problem.flavour():
            kind(w, problem, tile).run()  # type: ignore[call-arg]

    facts = {"threads": tile.threads, "shared_bytes": tile.shared_bytes}
    return write(name, problem.pointers, problem.scalars, body, **facts)
