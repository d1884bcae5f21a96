"""The part that GEMM kernels with cp.async share: which tile a block has, and pipeline stages in shared memory.

In: a `Problem` and a tile. Out: a base class; `mma_sync.py` and `ffma.py` say how weights are copied and how a
stage is multiplied. A stage holds 128 bytes of K of every row, swizzled: 16 bytes at chunk c of row r are at c ^ r % 8.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.codegen.register_tile import RegisterTile
from tvm_rnn.cuda.codegen.tile_layout import SWIZZLE_128
from tvm_rnn.cuda.layer.packed_layout import CHUNKS, ROW_BYTES, SIZES, ceil_div
from tvm_rnn.tir.expr import Expr, TirExpr
from tvm_rnn.tir.index import uint32

from .operands import Operand
from .problem import Problem, int64

COPY, COPY_PIECE = "cp.async.cg.shared.global", "cp.async.ca.shared.global"  # of 16 bytes, of fewer
DEPENDENT = "tirx.use_programtic_dependent_launch"  # as TVM spells it


def copy_chunk(w: Writer, operand: Operand, dtype: str, target: Expr, at: Expr, size: Expr) -> None:
    """Start the copy of 16 bytes of an operand, from element `at` on, to shared memory: `size` bytes, then zeros."""
    piece = operand.piece(dtype)
    if piece == 16:
        w.do(I.ptx[COPY](target, w[operand.name].ptr_to([at]), 16, size))
        return
    left = w.keep(tirx.Cast("int32", size))
    for first in range(0, 16, piece):
        part = tirx.Cast("uint32", tirx.max(tirx.min(left - first, piece), 0))
        source = w[operand.name].ptr_to([at + first // SIZES[dtype]])
        w.do(I.ptx[COPY_PIECE](target + uint32(first), source, piece, part))


@contextmanager
def cp_async_loop(w: Writer, turns: Expr, stages: int, fill: Callable[[TirExpr], None]) -> Iterator[TirExpr]:
    """A loop over turns whose stages all threads fill by cp.async, `stages` - 1 turns ahead: yields the turn whose
    stage is there. fill(turn): start the copies of a turn, if there is one; those of the first turns are under way, a
    group each."""
    with w.loop(turns) as turn:
        w.do(I.ptx["cp.async.wait_group"](stages - 2))
        w.do(I.cuda.cta_sync())
        fill(turn + (stages - 1))
        w.do(I.ptx["cp.async.commit_group"]())
        yield turn


@dataclass(frozen=True)
class CpAsyncTile(ABC):
    """rows of a block; split: parts of K that different warps take; pipeline stages; group: blocks of rows that go
    together; cluster: blocks that share K; overlap: weights are fetched while the kernel before this one still runs;
    blocks: that registers must allow on a multiprocessor; pace: K tiles of a stage, which share a barrier."""

    rows: int
    split: int = 1
    stages: int = 4
    group: int = 8
    cluster: int = 1
    overlap: bool = False
    blocks: int = 1
    pace: int = 1

    @property
    @abstractmethod
    def threads(self) -> int:
        """Of a block."""

    @property
    @abstractmethod
    def weight_bytes(self) -> int:
        """Of a stage."""

    @property
    @abstractmethod
    def sums(self) -> int:
        """Accumulators of a thread, in bytes."""

    @property
    def parts(self) -> int:
        """Of K, over warps and blocks."""
        return self.split * self.cluster

    @property
    def stage_bytes(self) -> int:
        """Of one K tile."""
        return self.rows * ROW_BYTES + self.weight_bytes

    @property
    def shared_bytes(self) -> int:
        return max(self.stages * self.pace * self.stage_bytes, self.threads * self.sums if self.parts > 1 else 0)


class CpAsyncGemm(ABC):
    """A kernel's body: run() emits all of it."""

    def __init__(self, w: Writer, problem: Problem, tile: CpAsyncTile, tiles: int) -> None:
        self.threads = tile.threads
        self.w, self.problem, self.tile, self.tiles = w, problem, tile, tiles
        self.layout = problem.layout
        self.deep, self.chunk_elements = ROW_BYTES // SIZES[problem.compute], 16 // SIZES[problem.compute]
        self.depths = [ceil_div(o.depth, self.deep) for o in problem.operands]
        self.total = sum(self.depths)

    def run(self) -> None:
        w, tile = self.w, self.tile
        blocks = tirx.floordiv(w["rows"] + (tile.rows - 1), int64(tile.rows))
        grid = tirx.Cast("int32", blocks * self.tiles)
        self.rank: Expr = 0
        if tile.cluster > 1:
            cta, rank = w.keep(I.cluster_id([grid])), I.cta_id_in_cluster([tile.cluster])
            self.rank = w.keep(rank)
        else:
            cta = I.cta_id([grid])
        self.tx = I.thread_id([self.threads])
        arena = I.alloc_buffer((tile.shared_bytes,), "uint8", scope="shared.dyn", align=1024)
        self.base = w.bind(I.cuda.cvta_generic_to_shared(arena.ptr_to([0])))
        self._place(cta, w.keep(tirx.Cast("int32", blocks)))
        self.prepare()
        self.body()

    def body(self) -> None:
        """Copy, multiply, add up, finish."""
        self._sources()
        self._mainloop()
        if self.tile.parts > 1:
            self._combine()
        else:
            for item in range(self.items):
                self.finish(item)

    # --- what a kernel adds -----------------------------------------------------------------------------------------

    acc: RegisterTile
    items: int  # of epilogue work, in a thread that has the sums of one block of the cluster
    part: Expr  # of K
    member: Expr  # this thread's number among those with the same part

    @abstractmethod
    def prepare(self) -> None:
        """Thread numbers, registers."""

    @abstractmethod
    def copy_weights(self, number: int, stage: Expr, k: Expr) -> None:
        """Start the copies of tile `k` of a weight."""

    @abstractmethod
    def multiply(self, stage: TirExpr) -> None:
        """Add a stage's products."""

    @abstractmethod
    def pieces(self, item: int, block: int) -> list[tuple[int, ...]]:
        """The fragments of `acc` of an item that a block of the cluster needs, each exchanged as a vector."""

    @abstractmethod
    def finish(self, item: int) -> None:
        """The epilogue of an item, whose sums are where pieces(item, 0) says."""

    # --- blocks ----------------------------------------------------------------------------------------------------

    def _place(self, cta: Expr, blocks: Expr) -> None:
        """Which tile this block has: down `group` blocks of rows, then to the next columns."""
        w, tile = self.w, self.tile
        period = tile.group * self.tiles
        first = w.keep(tirx.truncdiv(cta, period) * tile.group)
        high = w.keep(tirx.min(blocks - first, tile.group))
        within = w.keep(tirx.truncmod(cta, period))
        self.row0 = w.keep(tirx.Cast("int64", first + tirx.truncmod(within, high)) * tile.rows)
        self.tile_n = w.keep(tirx.truncdiv(within, high))

    # --- global to shared memory -----------------------------------------------------------------------------------

    def _sources(self) -> None:
        """Per thread: the chunk and the rows of the left operand that it copies: `line`, and every `apart`-th after."""
        w, tile = self.w, self.tile
        self.copies, self.apart = ceil_div(tile.rows * CHUNKS, tile.threads), tile.threads // CHUNKS
        self.chunk, self.line = w.bind(self.tx % CHUNKS), w.bind(self.tx // CHUNKS)
        self.aligned = [w.bind(self.problem.aligned(w, operand)) for operand in self.problem.operands]
        self.row = w.keep(self.row0 + tirx.Cast("int64", self.line))
        self.left = w.keep(tirx.Cast("int32", tirx.min(w["rows"] - self.row, int64(tile.rows))))

    def _into(self, i: Expr) -> Expr:
        """Where in a stage the thread's i-th chunk goes."""
        line = self.line + i * self.apart
        return tirx.Cast("uint32", SWIZZLE_128.offset(line, self.chunk))

    def _fill(self, slot: Expr, k: Expr, rows: bool = True, weights: bool = True) -> None:
        """Stage `slot` from K tile `k`, counted over all operands: rows of left operands, weights, or both."""
        w = self.w
        stage = w.bind(self.base + tirx.Cast("uint32", slot) * uint32(self.tile.stage_bytes))
        start = 0
        for number, deep in enumerate(self.depths):
            if len(self.depths) == 1:
                self._fill_from(number, stage, k, rows, weights)
            else:
                with w.when(tirx.And(k >= start, k < start + deep)):
                    self._fill_from(number, stage, k - start if start else k, rows, weights)
            start += deep

    def _fill_from(self, number: int, stage: Expr, k: Expr, rows: bool, weights: bool) -> None:
        if weights:
            self.copy_weights(number, stage + uint32(self.tile.rows * ROW_BYTES), k)
        if not rows:
            return
        operand = self.problem.operands[number]
        if operand.piece(self.problem.compute):
            with I.If(self.aligned[number]):
                with I.Then():
                    self._copy(number, stage, k)
                with I.Else():
                    self._gather(number, stage, k)
        else:
            self._gather(number, stage, k)

    def _copy(self, number: int, stage: Expr, k: Expr) -> None:
        """A stage of a left operand by the hardware; zeros beyond its depth and beyond the rows. One address and
        constant steps from it: address arithmetic is what a short K tile would wait for."""
        w, tile, operand, chunk = self.w, self.tile, self.problem.operands[number], self.chunk_elements
        assert operand.offset is not None
        first = w.bind(k * self.deep + self.chunk * chunk)
        inside: Expr = 16  # bytes of the chunk that the row has
        if operand.depth % self.deep:
            inside = w.keep(tirx.max(tirx.min(operand.depth - first, chunk), 0) * (16 // chunk))
        at = self.row * operand.place.row_stride + tirx.Cast("int64", first) + operand.offset
        for i in range(self.copies):
            size = tirx.Cast("uint32", tirx.Select(self.left > i * self.apart, inside, 0))
            source = at + i * self.apart * operand.place.row_stride
            every = (i + 1) * tile.threads <= tile.rows * CHUNKS
            with nullcontext() if every else w.when(self.line + i * self.apart < tile.rows):
                copy_chunk(w, operand, self.problem.compute, stage + self._into(i), source, size)

    def _gather(self, number: int, stage: Expr, k: Expr) -> None:
        """The same element by element: a loop, because it is long and rarely taken."""
        w, tile = self.w, self.tile
        first = w.bind(k * self.deep + self.chunk * self.chunk_elements)
        with w.loop(self.copies) as i, w.when(self.line + i * self.apart < tile.rows):
            row = self.row + tirx.Cast("int64", i * self.apart)
            source = w.keep(tirx.min(row, w["rows"] - 1))
            target = stage + self._into(i)
            self.problem.store_chunk(w, target, self.problem.operands[number], source, row < w["rows"], first)

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
        w, stages, parts = self.w, self.tile.stages, self.tile.cluster
        first: Expr = 0
        count: Expr = self.total
        if parts > 1:  # this block's part of K
            first = w.keep(tirx.truncdiv(self.rank * self.total, parts))
            count = w.keep(tirx.truncdiv((self.rank + 1) * self.total, parts) - first)
        self._before(first, count)
        pace = self.tile.pace
        turns = tirx.truncdiv(count + (pace - 1), pace)
        with cp_async_loop(w, turns, stages, lambda turn: self._fill_group(turn, first, count)) as turn:
            for j in range(pace):
                slot = tirx.Cast("uint32", tirx.truncmod(turn, stages) * pace + j)
                stage = w.keep(self.base + slot * uint32(self.tile.stage_bytes))
                if isinstance(count, int) and count % pace == 0:
                    self.multiply(stage)
                else:
                    with w.when(turn * pace + j < count):
                        self.multiply(stage)

    def _fill_group(self, group: Expr, first: Expr, count: Expr, rows: bool = True, weights: bool = True) -> None:
        """The K tiles that one barrier announces."""
        pace = self.tile.pace
        with self.w.loop(pace) as j:
            k = self.w.keep(group * pace + j)
            with self.w.when(k < count):
                slot = tirx.truncmod(group, self.tile.stages) * pace + j
                self._fill(slot, first + k, rows, weights)

    def _before(self, first: Expr, count: Expr) -> None:
        """Fill all stages but one. With `overlap`, only weights until the kernel before this one is done."""
        w, stages = self.w, self.tile.stages
        if self.tile.overlap:
            w.do(I.ptx.griddepcontrol.launch_dependents())
            with w.loop(stages - 1) as group:
                self._fill_group(group, first, count, rows=False)
            w.do(I.ptx.griddepcontrol.wait())
        with w.loop(stages - 1) as group:
            self._fill_group(group, first, count, weights=not self.tile.overlap)
            w.do(I.ptx["cp.async.commit_group"]())

    # --- results ---------------------------------------------------------------------------------------------------

    def _combine(self) -> None:
        """Add the parts of K up, through the shared memory of the block that needs them. All warps share the items."""
        w, tile = self.w, self.tile
        size = SIZES[self.problem.arithmetic]
        width = self.acc.shape[-1]
        kind = f"v{width}.f{8 * size}"
        members, each = tile.threads // tile.split, len(self.pieces(0, 0))
        w.do(I.ptx["cp.async.wait_group"](0))
        self._meet()  # no block reads stages any more

        def at(start: Expr, source: Expr, number: int) -> Expr:
            place = ((source * (self.items * each) + number) * members + self.member) * (width * size)
            return start + tirx.Cast("uint32", place)

        source = self.rank * tile.split + self.part
        remote = w.local(1, "uint32")
        for block in range(tile.cluster):
            if tile.cluster > 1:
                w.do(I.ptx["mapa.shared::cluster.u32"](remote[0], self.base, uint32(block)))
            to, space = (remote[0], "shared::cluster") if tile.cluster > 1 else (self.base, "shared")
            for item in range(self.items):
                for number, piece in enumerate(self.pieces(item, block), item * each):
                    w.do(I.ptx[f"st.{space}.{kind}"](at(to, source, number), *self.acc[piece]))
        self._meet()
        other = w.tile(width, dtype=self.problem.arithmetic).flat
        for part in range(tile.split):
            with w.when(self.part == part):
                for item in range(part, self.items, tile.split):
                    for number, piece in enumerate(self.pieces(item, 0), item * each):
                        for source in range(tile.parts):
                            w.do(I.ptx[f"ld.shared.{kind}"](*other, at(self.base, tirx.const(source, "int32"), number)))
                            for i, value in enumerate(other):
                                self.acc.store(self.acc[piece][i] + value if source else value, *piece, i)
                    self.finish(item)

    def _meet(self) -> None:
        """All threads that share K."""
        if self.tile.cluster > 1:
            self.w.do(I.ptx["barrier.cluster.arrive.release.aligned"]())
            self.w.do(I.ptx["barrier.cluster.wait.acquire.aligned"]())
        else:
            self.w.do(I.cuda.cta_sync())


def cp_async_kernel(
    name: str, problem: Problem, tile: CpAsyncTile, make: Callable[[Writer], CpAsyncGemm], threads: int = 0
) -> Kernel:
    """A kernel whose grid is one block, or cluster of blocks, per tile of rows and columns. threads: of a block, where
    there are others than the tile's."""

    def body(w: Writer) -> None:
        with problem.flavour(), I.attr({"tirx.launch_bounds_min_blocks_per_sm": tile.blocks}):
            make(w).run()

    attributes = {"tirx.kernel_launch_params": [DEPENDENT]} if tile.overlap else None
    given = problem.pointers, problem.scalars, body
    shared, threads = tile.shared_bytes, threads or tile.threads
    return write(name, *given, threads=threads, attributes=attributes, shared_bytes=shared, cluster=tile.cluster)
