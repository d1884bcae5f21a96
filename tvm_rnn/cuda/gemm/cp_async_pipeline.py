"""What GEMM kernels share: which tile a block has, and pipeline stages in shared memory, filled by cp.async.

In: a `Problem` and a tile. Out: base classes of kernels' bodies; `mma_sync.py` and `ffma.py` say how weights are copied
and how a stage is multiplied, `wgmma.py` and `wgmma_split_k.py` also who copies and who multiplies. A stage holds 128
bytes of K of every row, swizzled: 16 bytes at chunk c of row r are at c ^ r % 8.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.codegen.register_tile import RegisterTile
from tvm_rnn.cuda.codegen.tile_layout import SWIZZLE_128
from tvm_rnn.cuda.layer.packed_layout import CHUNKS, ROW_BYTES, SIZES, ceil_div
from tvm_rnn.cuda.layer.pipeline_barriers import BlockTile, Stages
from tvm_rnn.tir.expr import Expr, TirExpr
from tvm_rnn.tir.index import int64, uint32, wide

from .around import Look
from .operands import COPY, Operand
from .problem import Problem


@dataclass(frozen=True)
class GemmTile(BlockTile):
    """rows of a block; group: blocks of rows that go together; cluster: blocks that share K, or weights; overlap:
    weights are fetched while the kernel before this one still runs."""

    rows: int
    _: KW_ONLY
    group: int = 8

    @property
    @abstractmethod
    def weight_bytes(self) -> int:
        """Of a stage."""

    @property
    def stage_bytes(self) -> int:
        """Of one K tile."""
        return self.rows * ROW_BYTES + self.weight_bytes


class GemmBody(Stages):
    """tiles: along columns. The grid is one block, or cluster of blocks that share K, per tile of rows and columns."""

    tile: GemmTile
    row: TirExpr  # the first one that this thread copies a piece of, and how many are left from there
    left: TirExpr
    pixels: list[TirExpr]  # of each row that it copies a piece of, where rows are pixels

    def __init__(self, w: Writer, problem: Problem, tile: GemmTile, tiles: int) -> None:
        self.w, self.problem, self.tile, self.tiles = w, problem, tile, tiles
        self.deep, self.chunk_elements = ROW_BYTES // SIZES[problem.compute], 16 // SIZES[problem.compute]
        self.depths = [ceil_div(o.depth, self.deep) for o in problem.operands]
        self.total = sum(self.depths)
        self.there: TirExpr = w["rows"]  # how many rows the kernel works on

    # --- blocks ----------------------------------------------------------------------------------------------------

    def _enter(self) -> tuple[TirExpr, TirExpr]:
        """This block's, or cluster's, number, and how many tiles of rows there are."""
        w, tile = self.w, self.tile
        blocks = tirx.floordiv(w["rows"] + (tile.rows - 1), int64(tile.rows))
        members = self.problem.members
        grid = tirx.Cast("int32", blocks * (self.tiles * max(members, 1)))
        self.rank: TirExpr = tirx.const(0, "int32")
        if tile.cluster > 1:
            cta, rank = w.keep(I.cluster_id([grid])), I.cta_id_in_cluster([tile.cluster])
            self.rank = w.keep(rank)
        else:
            cta = I.cta_id([grid])
        self._allocate()
        self._begin()
        return (self._take_member(cta, tirx.Cast("int32", blocks)) if members else cta), blocks

    def _begin(self) -> None:
        self._open()
        if self.problem.given and not self.tile.overlap:
            self._wait_for_rows()

    def _open(self, waited: bool = False) -> None:
        """Let the kernel behind this one begin: at the start, where nothing that it does before it waits can matter;
        else when this one has waited for the kernel before it, as one that was not launched early has at its start."""
        own = self.problem.opens and self.tile.overlap
        if waited == own and (self.problem.opens or self.problem.given or self.tile.overlap):
            self.w.do(I.ptx.griddepcontrol.launch_dependents())

    def _wait_for_rows(self) -> None:
        """Left operands may be what the kernel before this one writes, while it still runs."""
        with self.w.when(tirx.EQ(self.w["given"], 0)) if self.problem.given else nullcontext():
            self.w.do(I.ptx.griddepcontrol.wait())

    def _wait_at_the_end(self) -> None:
        """The products are done: what the epilogue reads may be the kernel's before this one."""
        if self.problem.given:
            self.w.do(I.ptx.griddepcontrol.wait())

    def _take_member(self, item: TirExpr, blocks: TirExpr) -> TirExpr:
        """Of a batched GEMM's items those of one member are numbered together: which is this one of its own."""
        each = self.w.keep(blocks * self.tiles)
        self.problem = self.problem.at(self.w.keep(tirx.truncdiv(item, each)))
        return self.w.keep(tirx.truncmod(item, each))

    def _place(self, item: TirExpr, blocks: TirExpr) -> tuple[TirExpr, TirExpr]:
        """(tile of rows, tile of columns) of an item: down `group` tiles of rows, then to the next columns."""
        w, group = self.w, self.tile.group
        first = w.keep(tirx.truncdiv(item, group * self.tiles) * group)
        high = w.keep(tirx.min(blocks - first, group))
        within = w.keep(tirx.truncmod(item, group * self.tiles))
        return first + tirx.truncmod(within, high), tirx.truncdiv(within, high)

    def _share_of_k(self) -> tuple[TirExpr, TirExpr]:
        """The first of this block's K tiles, and how many it has."""
        w, cluster = self.w, self.tile.cluster
        first = w.keep(tirx.truncdiv(self.rank * self.total, cluster))
        return first, w.keep(tirx.truncdiv((self.rank + 1) * self.total, cluster) - first)

    def _blocks(self) -> Iterator[tuple[int, tuple[TirExpr, str]]]:
        """The blocks that share K: the number of each, and where its shared memory begins, in which address space."""
        remote = self.w.local(1, "uint32")
        for block in range(self.tile.cluster):
            if self.tile.cluster > 1:
                self.w.do(I.ptx["mapa.shared::cluster.u32"](remote[0], self.base, uint32(block)))
            yield block, (remote[0], "shared::cluster") if self.tile.cluster > 1 else (self.base, "shared")

    # --- global to shared memory -----------------------------------------------------------------------------------

    def _further(self, number: int) -> Expr:
        """Where this member's packed weight begins."""
        return self.problem.further(self.problem.packed[number])

    def _take_line(self) -> None:
        """Per thread: the chunk and the rows of the left operand that it copies: `line`, and every `apart`-th after."""
        self.chunk, self.line = self.w.bind(self.tx % CHUNKS), self.w.bind(self.tx // CHUNKS)
        self.apart = self.tile.copiers // CHUNKS

    def _take_rows(self, row: TirExpr) -> None:
        """Of the block's tile, from this thread's first one on; of those that are pixels also where in their image."""
        self.row = row
        around = next((o.around for o in self.problem.operands if o.around is not None), None)
        lines = range(ceil_div(self.tile.rows, self.apart) if around is not None else 0)
        self.pixels = [around.pixel(self.w, row + i * self.apart) for i in lines if around is not None]
        self.left = self.w.keep(tirx.Cast("int32", tirx.min(self.there - row, int64(self.tile.rows))))

    def _stage(self, slot: TirExpr) -> TirExpr:
        return self.base + tirx.Cast("uint32", slot) * uint32(self.tile.stage_bytes)

    def _of_operands(self, k: TirExpr) -> Iterator[tuple[int, TirExpr]]:
        """Of each operand: its number, and which of its K tiles `k` is, that is counted over all of them. What is
        written meanwhile is for K tiles that are its own."""
        start = 0
        for number, deep in enumerate(self.depths):
            inside = None if len(self.depths) == 1 else tirx.And(k >= start, k < start + deep)
            with nullcontext() if inside is None else self.w.when(inside):
                yield number, k - start if start else k
            start += deep

    def _copy_rows(self, number: int, stage: TirExpr, k: TirExpr) -> None:
        """A stage of a left operand by the hardware; zeros beyond its depth and beyond the rows. One address and
        constant steps from it: address arithmetic is what a short K tile would wait for."""
        w, operand, chunk = self.w, self.problem.operands[number], self.chunk_elements
        assert operand.offset is not None
        first = w.bind(k * self.deep + self.chunk * chunk)
        if operand.around is not None:
            self._copy_around(operand, operand.around.look(w, first), stage)
            return
        inside: Expr = 16  # bytes of the chunk that the row has
        if operand.depth % self.deep:
            reach = tirx.max(tirx.min(operand.depth - first, chunk), 0) * (16 // chunk)
            inside = self._hold(reach)
        start = self.row * operand.place.row_stride + wide(first) + operand.offset
        at, target = self._addresses(stage, start + self.problem.further(operand.apart))
        for i in self._each_row():
            size = tirx.Cast("uint32", tirx.Select(self.left > i * self.apart, inside, 0))
            source = at + self._below(i) * operand.place.row_stride
            operand.copy(w, self.problem.compute, target(i), source, size)

    def _copy_around(self, operand: Operand, look: Look, stage: TirExpr) -> None:
        """The same of pixels that a tap looks at: rows at one distance from these, and zeros where there are none."""
        w, chunk, stride = self.w, self.chunk_elements, operand.place.row_stride
        inside, rows = self._hold(tirx.Cast("int32", look.reach(chunk)) * (16 // chunk)), self.row + wide(look.rows)
        at, target = self._addresses(stage, rows * stride + wide(look.channel) + (operand.offset or 0))
        for i in self._each_row():
            here = tirx.And(self.left > i * self.apart, look.sees(self.pixels[i]))
            size = tirx.Cast("uint32", tirx.Select(here, inside, 0))
            operand.copy(w, self.problem.compute, target(i), at + i * self.apart * stride, size)

    def _below(self, i: int) -> Expr:
        """How many rows below its first one a thread's i-th row is."""
        return i * self.apart

    def _each_row(self) -> Iterator[int]:
        """The rows that this thread copies a piece of: that many `apart` below its first one. What is written meanwhile
        is for rows that the tile has."""
        for i in range(ceil_div(self.tile.rows, self.apart)):
            every = (i + 1) * self.apart <= self.tile.rows
            with nullcontext() if every else self.w.when(self.line + i * self.apart < self.tile.rows):
                yield i

    def _addresses(self, stage: TirExpr, at: TirExpr) -> tuple[TirExpr, Callable[[int], TirExpr]]:
        """Of the thread's first chunk in memory, and of the i-th one in a stage."""
        return at, lambda i: stage + self._into(i)

    def _into(self, i: Expr) -> TirExpr:
        """Where in a stage the thread's i-th chunk goes."""
        return tirx.Cast("uint32", SWIZZLE_128.offset(self.line + i * self.apart, self.chunk))

    def _hold(self, reach: TirExpr) -> TirExpr:
        """The bytes of a chunk that a row has."""
        return self.w.keep(reach)


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
class CpAsyncTile(GemmTile):
    """split: parts of K that different warps take; pace: K tiles of a stage, which share a barrier."""

    apart: ClassVar[bool] = False
    _: KW_ONLY
    split: int = 1
    pace: int = 1

    @property
    @abstractmethod
    def sums(self) -> int:
        """Accumulators of a thread, in bytes."""

    @property
    def parts(self) -> int:
        """Of K, over warps and blocks."""
        return self.split * self.cluster

    @property
    def shared_bytes(self) -> int:
        return max(self.pace * super().shared_bytes, self.members * self.sums if self.parts > 1 else 0)


class CpAsyncGemm(GemmBody):
    """All threads copy and multiply, in one loop."""

    tile: CpAsyncTile

    def run(self) -> None:
        """Copy, multiply, add up, finish."""
        cta, blocks = self._enter()
        block, column = self._place(cta, self.w.keep(tirx.Cast("int32", blocks)))
        self.row0 = self.w.keep(wide(block) * self.tile.rows)
        self.tile_n = self.w.keep(column)
        self.prepare()
        self.body()

    def body(self) -> None:
        self._sources()
        self._mainloop()
        self._wait_at_the_end()
        if self.tile.parts > 1:
            self._combine()
        else:
            for item in range(self.items):
                self.finish(item)

    # --- what a kernel adds -----------------------------------------------------------------------------------------

    acc: RegisterTile
    items: int  # of epilogue work, in a thread that has the sums of one block of the cluster
    part: TirExpr  # of K
    member: TirExpr  # this thread's number among those with the same part

    @abstractmethod
    def prepare(self) -> None:
        """Thread numbers, registers."""

    @abstractmethod
    def copy_weights(self, number: int, stage: TirExpr, k: TirExpr) -> None:
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

    # --- global to shared memory -----------------------------------------------------------------------------------

    def _sources(self) -> None:
        self._take_line()
        self.aligned = [self.w.bind(one.aligned(self.w, self.problem.compute)) for one in self.problem.operands]
        self._take_rows(self.w.keep(self.row0 + wide(self.line)))

    def _fill(self, slot: TirExpr, k: TirExpr, rows: bool = True, weights: bool = True) -> None:
        """Stage `slot` from K tile `k`, counted over all operands: rows of left operands, weights, or both."""
        stage = self.w.bind(self._stage(slot))
        for number, own in self._of_operands(k):
            if weights:
                self.copy_weights(number, stage, own)
            if rows:
                self._copy_rows(number, stage, own)

    def _copy_rows(self, number: int, stage: TirExpr, k: TirExpr) -> None:
        if not self.problem.operands[number].piece(self.problem.compute):
            self._gather(number, stage, k)
            return
        with I.If(self.aligned[number]):
            with I.Then():
                super()._copy_rows(number, stage, k)
            with I.Else():
                self._gather(number, stage, k)

    def _gather(self, number: int, stage: TirExpr, k: TirExpr) -> None:
        """The same element by element: a loop, because it is long and rarely taken."""
        w, tile = self.w, self.tile
        first = w.bind(k * self.deep + self.chunk * self.chunk_elements)
        with w.loop(ceil_div(tile.rows, self.apart)) as i, w.when(self.line + i * self.apart < tile.rows):
            row, operand = self.row + wide(i * self.apart), self.problem.operands[number]
            shift = self.problem.further(operand.apart)
            operand.gather(w, self.problem.compute, stage + self._into(i), row, first, shift)

    def copy_chunks(
        self, number: int, stage: TirExpr, chunks: int, source: Callable[[TirExpr], Expr], bound: bool = False
    ) -> None:
        """Chunks of a packed weight, by all threads. source: where one lies. bound: whether its number is a value."""
        w, threads, target = self.w, self.tile.copiers, stage + uint32(self.tile.rows * ROW_BYTES)
        for i in range(ceil_div(chunks, threads)):
            piece = w.bind(self.tx + i * threads) if bound else self.tx + i * threads
            with nullcontext() if (i + 1) * threads <= chunks else w.when(piece < chunks):
                address = w[f"w{number}"].ptr_to([source(piece) + self._further(number)])
                w.do(I.ptx[COPY](target + tirx.Cast("uint32", piece) * uint32(16), address, 16))

    def _mainloop(self) -> None:
        w, stages, pace = self.w, self.tile.stages, self.tile.pace
        first, count = self._share_of_k() if self.tile.cluster > 1 else (0, self.total)
        self._before(first, count)
        turns = tirx.truncdiv(count + (pace - 1), pace)
        with cp_async_loop(w, turns, stages, lambda turn: self._fill_group(turn, first, count)) as turn:
            for j in range(pace):
                stage = w.keep(self._stage(tirx.truncmod(turn, stages) * pace + j))
                every = isinstance(count, int) and count % pace == 0
                with nullcontext() if every else w.when(turn * pace + j < count):
                    self.multiply(stage)

    def _fill_group(self, group: TirExpr, first: Expr, count: Expr, rows: bool = True, weights: bool = True) -> None:
        """The K tiles that one barrier announces."""
        pace = self.tile.pace
        with self.w.loop(pace) as j:
            k = self.w.keep(group * pace + j)
            with self.w.when(k < count):
                slot = tirx.truncmod(group, self.tile.stages) * pace + j
                self._fill(slot, first + k, rows, weights)

    def _before(self, first: Expr, count: Expr) -> None:
        """Fill all stages but one. Where it waits, only weights until the kernel before this one is done."""
        w, stages = self.w, self.tile.stages
        if self.tile.overlap:
            with w.loop(stages - 1) as group:
                self._fill_group(group, first, count, rows=False)
            self._wait_for_rows()
            self._open(waited=True)
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
        members, each = tile.members // tile.split, len(self.pieces(0, 0))
        w.do(I.ptx["cp.async.wait_group"](0))
        self._meet(alone=True)  # no block reads stages any more

        def at(start: TirExpr, source: TirExpr, number: int) -> TirExpr:
            place = ((source * (self.items * each) + number) * members + self.member) * (width * size)
            return start + tirx.Cast("uint32", place)

        source = self.rank * tile.split + self.part
        for block, (to, space) in self._blocks():
            for item in range(self.items):
                for number, piece in enumerate(self.pieces(item, block), item * each):
                    w.do(I.ptx[f"st.{space}.{kind}"](at(to, source, number), *self.acc[piece]))
        self._meet(alone=True)
        other = w.tile(width, dtype=self.problem.arithmetic).flat
        for part in range(tile.split):
            with w.when(tirx.EQ(self.part, part)):
                for item in range(part, self.items, tile.split):
                    for number, piece in enumerate(self.pieces(item, 0), item * each):
                        for n in range(tile.parts):
                            w.do(I.ptx[f"ld.shared.{kind}"](*other, at(self.base, tirx.const(n, "int32"), number)))
                            for i, value in enumerate(other):
                                self.acc.store(self.acc[piece][i] + value if n else value, *piece, i)
                    self.finish(item)
