"""GEMM by wgmma, for Hopper: large products of 16-bit or tf32 operands.

In: a `Problem` and a tile. Out: the body of a persistent kernel; `WgmmaProduct`, the products of a warpgroup: 64 rows
times up to 256 columns, stage after stage of shared memory. One warpgroup copies: the rows of x by cp.async (any row
stride that is a multiple of 4 bytes, zeros beyond the last row), the packed weights by bulk copies, of which each block
of a cluster fetches its part for all. Two warpgroups multiply 64 rows each and run the epilogue while the stages fill
again.

Source: Hopper's warpgroup products: PTX ISA 8.5, "wgmma.mma_async".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer, round_tf32
from tvm_rnn.cuda.codegen.tile_layout import PIECE_BYTES
from tvm_rnn.cuda.layer.packed_layout import CHUNKS, ROW_BYTES, ceil_div
from tvm_rnn.cuda.layer.pipeline_barriers import COPIERS, LEAST_STAGES, Stages
from tvm_rnn.tir.expr import Buffer, Expr, TirExpr
from tvm_rnn.tir.index import int64, uint32, wide

from .cp_async_pipeline import GemmBody, GemmTile
from .later_stores import LaterStores
from .problem import Item, Problem

LATER_TURNS = 4  # of a tile, over which the stores of the one before are spread
STEPS = 4  # wgmma steps of a stage: 32 bytes of K each
HIGH = 64  # rows of a warpgroup
SQUARE_BYTES = HIGH * ROW_BYTES  # 64 lines of 128 bytes
KINDS = {"bfloat16": ("k16", "bf16.bf16"), "float16": ("k16", "f16.f16"), "float32": ("k8", "tf32.tf32")}
SWIZZLED = 3  # of 128 bytes, as descriptors say it
BULK = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
REGISTERS = 40, 232  # of a copying and of a multiplying thread
AROUND_REGISTERS = 56, 224  # where the one that copies knows where in an image each of its rows is
LOAD = "ldmatrix.sync.aligned.m8n8.x4.shared.b16"  # four registers of each thread's part of 16 rows of 32 bytes


def units(size: int) -> int:
    """Bytes as descriptors count them."""
    return size // PIECE_BYTES


class WgmmaProduct:
    """Sums of one warpgroup: `acc[n, half]` are a lane's two columns of the n-th 8, in row lane // 4 + 8 half of its
    warp's 16.

    columns: of the product, at most 256. dtype: of the operands. turned: both lie along what is not summed, rows of K
    one below the other, in squares of 64 rows side by side; else along K, lines of 128 bytes.
    """

    def __init__(self, w: Writer, arena: Buffer, columns: int, dtype: str, *, turned: bool = False) -> None:
        self.w, self.columns, self.turned = w, columns, turned
        deep, kinds = KINDS[dtype]
        self.name = f"wgmma.mma_async.sync.aligned.m64n{columns}{deep}.f32.{kinds}"
        # Whether either operand is turned, which only instructions for 16 bits can do.
        self.flags = () if dtype == "float32" else (int(turned), int(turned))
        self.acc = w.tile(columns // 8, 2, 2)
        self.descriptor = w.local(1, "uint64")
        sizes = (units(SQUARE_BYTES), units(8 * ROW_BYTES)) if turned else (1, units(8 * ROW_BYTES))
        at = I.address_of(self.descriptor[0]), arena.ptr_to([0])
        w.do(I.cuda.wgmma.encode_matrix_descriptor(*at, *sizes, SWIZZLED))

    def multiply(
        self,
        offset: TirExpr,
        a_at: Expr,
        b_at: Expr,
        more: TirExpr | None = None,
        beside: Sequence[Callable[[], None]] = (),
    ) -> None:
        """Start a stage's products, and wait for those of the stage before.

        offset: of the stage in shared memory; a_at, b_at: of the operands in it; all in 16 bytes. more: whether there
        are sums already; None: always. beside: statements between the two."""
        w = self.w
        stage = w.bind(self.descriptor[0] + tirx.Cast("uint64", offset))
        w.do(I.ptx.wgmma.fence.sync.aligned())
        for step in range(STEPS):
            further = step * 16 * units(ROW_BYTES) if self.turned else step * 2
            a, b = _further(stage, a_at, further), _further(stage, b_at, further)
            self.start(a, b, tirx.const(1, "int32") if step or more is None else tirx.Cast("int32", more))
        w.do(I.ptx.wgmma.commit_group.sync.aligned())
        for own in beside:
            own()
        self.wait(1)

    def multiply_registers(self, offset: TirExpr, a: Sequence[TirExpr], b_at: Expr, more: TirExpr) -> None:
        """The same of rows in registers, four for each step, which may change once the products are waited for."""
        w = self.w
        stage = w.bind(self.descriptor[0] + tirx.Cast("uint64", offset))
        w.do(I.ptx.wgmma.fence.sync.aligned())
        for step in range(STEPS):
            add = tirx.const(1, "int32") if step else tirx.Cast("int32", more)
            own, b = a[4 * step : 4 * step + 4], _further(stage, b_at, step * 2)
            w.do(I.ptx[self.name](*self.acc.flat, *own, b, I.ptx.pred(add), 1, 1))
        w.do(I.ptx.wgmma.commit_group.sync.aligned())

    def start(self, a: TirExpr, b: TirExpr, add: TirExpr) -> None:
        """One step's product. a, b: descriptors of the operands; add: whether there are sums already."""
        self.w.do(I.ptx[self.name](*self.acc.flat, a, b, I.ptx.pred(add), 1, 1, *self.flags))

    def wait(self, pending: int) -> None:
        """Until all stages but the last `pending` are multiplied."""
        self.w.do(I.ptx.wgmma.wait_group.sync.aligned(pending))


def _further(stage: TirExpr, at: Expr, further: int) -> TirExpr:
    if isinstance(at, int):
        return stage + tirx.const(at + further, "uint64")
    return stage + at + tirx.const(further, "uint64")


class WgmmaStages(Stages):
    """A body whose first warpgroup copies; the others multiply 64 rows each."""

    def _divide(self, registers: tuple[int, int], produce: Callable[[], None], consume: Callable[[], None]) -> None:
        """registers: of a thread that copies, and of one that multiplies."""
        self._meet()
        with I.If(self.tx < COPIERS):
            with I.Then():
                self.w.do(I.ptx["setmaxnreg.dec.sync.aligned.u32"](registers[0]))
                produce()
            with I.Else():
                self.w.do(I.ptx["setmaxnreg.inc.sync.aligned.u32"](registers[1]))
                consume()
        self._meet()

    def _take_place(self) -> None:
        """Of a thread that multiplies."""
        self.lane, self.warp = self.w.bind(self.tx % 32), self.w.bind(self.tx // 32 - COPIERS // 32)

    def _multiply(
        self,
        product: WgmmaProduct,
        tell: TirExpr,
        at: tuple[Expr, Expr],
        count: Expr,
        first: TirExpr | None = None,
        beside: Sequence[Sequence[Callable[[], None]]] = (),
    ) -> None:
        """The stages of `count` turns, the first of which begins the sums, and tell when they are read no more. at:
        where both operands lie in a stage, in 16 bytes. first: the first turn's number, where there is one in any case;
        None: 0. beside: statements of the first turns, which there are, while their products are under way."""
        w, tile, tells = self.w, self.tile, self.lane < self.tile.readers

        def take(k: TirExpr, own: Sequence[Callable[[], None]] = ()) -> None:
            turn = k if first is None else w.bind(first + k)
            slot = w.bind(self._slot(turn))
            self._wait_for_stage(slot, turn)
            product.multiply(slot * units(tile.stage_bytes), *at, k > 0, own)
            with w.when(tirx.And(k > 0, tells)):
                self._release(tell, turn - 1)

        for n, own in enumerate(beside):
            take(tirx.const(n, "int32"), own)
        with w.loop(count, len(beside)) as k:
            take(k)
        product.wait(0)
        with w.when(tirx.And(count > 0, tells) if first is None else tells):
            self._release(tell, count - 1 if first is None else first + (count - 1))

    def _multiply_rounded(
        self, product: WgmmaProduct, tell: TirExpr, at: tuple[TirExpr, Expr], count: Expr, first: TirExpr | int = 0
    ) -> None:
        """The same of rows of tf32, which are rounded in registers by who multiplies them. While one warpgroup loads
        and rounds, the other's products are under way. Where the threads that copy rounded rows in shared memory, it
        had to give 1280 cycles a stage in place of 1024: LSTM 1312, 512 rows of as many inputs, H200, 86 us; 64. at:
        the first of this warp's rows, and where weights lie in a stage, in 16 bytes."""
        w, tile, tells = self.w, self.tile, self.lane < self.tile.readers
        loaded = w.local(4 * STEPS, "uint32")
        words = [loaded[z] for z in range(4 * STEPS)]
        piece = tirx.bitwise_xor(tirx.shift_right(self.lane, tirx.const(4, "int32")), self.lane % 8)
        line = w.keep(tirx.Cast("uint32", (at[0] + self.lane % 16) * ROW_BYTES + piece * PIECE_BYTES))
        with w.loop(count) as k:
            turn = w.bind(first + k)
            slot = w.bind(self._slot(turn))
            self._wait(self._full(slot), self._round(turn) % 2)
            stage = w.bind(self.base + tirx.Cast("uint32", slot) * uint32(tile.stage_bytes) + line)
            for step in range(STEPS):
                w.do(I.ptx[LOAD](*words[4 * step : 4 * step + 4], tirx.bitwise_xor(stage, uint32(32 * step))))
            round_tf32(w, words)
            product.multiply_registers(slot * units(tile.stage_bytes), words, at[1], k > 0)
            product.wait(0)
            with w.when(tells):
                self._release(tell, turn)


@dataclass(frozen=True)
class WgmmaTile(GemmTile):
    """columns of a block (at most 256); cluster: blocks that share weights; most: blocks at once; later: whether a
    tile's results are stored while the next one's product is under way."""

    shares: ClassVar[bool] = True  # what the kernel before writes is not read ahead of its end
    rows: int = 2 * HIGH
    _: KW_ONLY
    columns: int
    cluster: int = 2
    most: int = 132
    later: bool = False

    @property
    def members(self) -> int:
        return 2 * self.rows

    @property
    def weight_bytes(self) -> int:
        return self.columns * ROW_BYTES


class WgmmaRows(GemmBody):
    """Whose copying warpgroup brings rows of x by cp.async, to constant steps from one address of a stage."""

    def _take_line(self) -> None:
        super()._take_line()
        self.into = self.w.bind(self._into(0))

    def _addresses(self, stage: TirExpr, at: TirExpr) -> tuple[TirExpr, Callable[[int], TirExpr]]:
        at, target = self.w.bind(at), self.w.bind(stage + self.into)
        return at, lambda i: target + uint32(i * self.apart * ROW_BYTES)

    # --- rows of a list ---------------------------------------------------------------------------------------------

    def _take_list(self) -> None:
        """Which part of the list is this launch's: that of `steps` steps from `first` on."""
        w = self.w
        w.do(I.ptx.griddepcontrol.wait())  # another kernel has made the list
        self.entry = w.keep(w["starts"][w["first"]])
        self.there = w.keep(wide(w["starts"][w["first"] + w["steps"]] - self.entry))
        self.earlier = w.keep(tirx.truncdiv(w["rows"], wide(w["steps"])) * wide(w["first"]))
        if self.tile.rows > self.tile.copiers // CHUNKS:
            self.below = w.local(self.tile.rows * CHUNKS // self.tile.copiers, "int32")

    def _row_at(self, index: TirExpr) -> TirExpr:
        """The row in memory that is the index-th to work on, or the last one where there are fewer."""
        at = wide(self.entry) + tirx.min(index, self.there - 1)
        return self.w.keep(wide(self.w["live"][at]) - self.earlier)

    def _take_rows(self, row: TirExpr) -> None:
        super()._take_rows(row)
        if not self.problem.listed:
            return
        self.row = self._row_at(row)
        for i in range(1, self.tile.rows // self.apart):
            below = self._row_at(row + i * self.apart) - self.row
            self.w.store(self.below, tirx.Cast("int32", below), i)

    def _below(self, i: int) -> Expr:
        return wide(self.below[i]) if self.problem.listed and i else super()._below(i)

    def _row_of_sums(self, index: TirExpr) -> TirExpr:
        """The row in memory of a lane's sums, or one behind all rows."""
        if not self.problem.listed:
            return self.w.bind(index)
        index = self.w.keep(index)
        return self.w.keep(tirx.Select(index < self.there, self._row_at(index), self.w["rows"]))


def bulk_copy(w: Writer, target: TirExpr, source: TirExpr, size: TirExpr, full: TirExpr, cluster: int = 1) -> None:
    """Consecutive bytes into shared memory, which barrier `full` waits for; with a cluster, into every block's."""
    if cluster == 1:
        w.do(I.ptx[BULK](target, source, size, full))
        return
    mask = tirx.const((1 << cluster) - 1, "uint16")
    w.do(I.ptx[BULK + ".multicast::cluster"](target, source, size, full, mask))


class WgmmaGemm(WgmmaRows, WgmmaStages):
    """A block has one item of the grid after the other."""

    tile: WgmmaTile

    def __init__(self, w: Writer, problem: Problem, tile: WgmmaTile) -> None:
        layout = problem.fragments
        assert tile.columns % layout.block == 0 and layout.columns % tile.columns == 0 and tile.columns <= 256
        assert tile.stages >= LEAST_STAGES and tile.columns % (8 * tile.cluster) == 0
        super().__init__(w, problem, tile, ceil_div(layout.width, tile.columns // layout.gates))

    def run(self) -> None:
        w, tile = self.w, self.tile
        each = self.tiles * max(self.problem.members, 1)
        clusters = tirx.Cast("int32", tirx.min(self._down(w["rows"]) * each, int64(tile.most // tile.cluster)))
        if tile.cluster > 1:
            first, rank = I.cluster_id([clusters]), I.cta_id_in_cluster([tile.cluster])
            own = w.local(2, "int32")  # special registers: read once
            w.store(own, first, 0)
            w.store(own, rank, 1)
            self.number, self.rank = own[0], own[1]
        else:
            self.number, self.rank = I.cta_id([clusters]), tirx.const(0, "int32")
        self._allocate()
        if self.problem.listed:
            self._take_list()
        self.high, self.clusters = w.keep(tirx.Cast("int32", self._down(self.there))), w.keep(clusters)
        left = tirx.Cast("int32", self._down(self.there) * each) - self.number + (self.clusters - 1)
        self.items = w.keep(tirx.truncdiv(left, self.clusters))
        self._make_barriers(self.arrivals + 1, tile.members // 32 * tile.cluster)  # full: also by the bulk copies
        self._begin()
        around = any(operand.around is not None for operand in self.problem.operands)
        self._divide(AROUND_REGISTERS if around else REGISTERS, self._produce, self._consume)

    def _down(self, rows: TirExpr) -> TirExpr:
        """Items below each other, of so many rows."""
        each = self.tile.rows * self.tile.cluster
        return tirx.floordiv(rows + (each - 1), int64(each))

    # --- copying and multiplying ------------------------------------------------------------------------------------

    def _take_item(self, number: TirExpr) -> TirExpr:
        """The first row of this block's item. Clusters of blocks are one below the other."""
        item = self.w.keep(self.number + number * self.clusters)
        item = self._take_member(item, self.high) if self.problem.members else item
        high, column = self._place(item, self.high)
        row0 = self.w.keep(wide(high * self.tile.cluster + self.rank) * self.tile.rows)
        self.column = self.w.keep(column)
        return row0

    def _produce(self) -> None:
        w, early = self.w, min(self.total, self.tile.stages) if self.tile.overlap else 0
        self._take_line()
        if early:
            self._fetch(early)
        with w.loop(self.items) as number:
            self._take_rows(self._take_item(number) + wide(self.line))
            with w.loop(self.total) as k:
                turn = w.bind(number * self.total + k)
                with self._filling(turn) as slot:
                    for operand, own in self._of_operands(k):
                        stage = w.bind(self._stage(slot))
                        with w.when(turn >= early) if early else nullcontext():
                            self._copy_weights(operand, slot, stage, own)
                        self._copy_rows(operand, stage, own)
        self._filled()

    def _fetch(self, turns: int) -> None:
        """The weights of the first turns, while the kernel before this one still runs."""
        w = self.w
        with w.when(self.items > 0) if self.problem.listed else nullcontext():
            self._take_item(tirx.const(0, "int32"))
            with w.loop(turns) as k:
                for operand, own in self._of_operands(k):
                    self._copy_weights(operand, k, w.bind(self._stage(k)), own)
        self._wait_for_rows()
        self._open(waited=True)

    def _hold(self, reach: TirExpr) -> TirExpr:
        return self.w.bind(reach)

    def _copy_weights(self, number: int, slot: TirExpr, stage: TirExpr, k: TirExpr) -> None:
        w, tile, layout = self.w, self.tile, self.problem.fragments
        with w.when(tirx.EQ(self.tx, 0)):
            part = tile.columns // tile.cluster  # columns that this block fetches
            target = stage + uint32(tile.rows * ROW_BYTES) + tirx.Cast("uint32", self.rank * (part * ROW_BYTES))
            first = wide(self.column * tile.columns + self.rank * part) * layout.deep
            first = first + self._further(number)
            source = w[f"w{number}"].ptr_to([wide(k) * (layout.columns * layout.deep) + first])
            full = w.bind(self._full(slot))
            w.do(I.ptx["mbarrier.arrive.expect_tx.shared.b64"](full, uint32(tile.weight_bytes)))
            bulk_copy(w, target, source, uint32(part * ROW_BYTES), full, tile.cluster)

    def _consume(self) -> None:
        w, tile, block = self.w, self.tile, self.problem.fragments.block
        self._take_place()
        product = WgmmaProduct(w, self.arena, tile.columns, self.problem.compute)
        tell = self._remote(self.lane)
        own, weights = w.bind(tirx.Cast("uint64", self.warp // 4 * units(SQUARE_BYTES))), units(tile.rows * ROW_BYTES)
        if tile.overlap:
            self._wait_for_rows()
        later = LaterStores(w, self.problem, tile.columns, self.lane) if tile.later else None
        stores = [] if later is None else later.stores()
        turns = min(self.total, LATER_TURNS) if stores else 0
        beside = [stores[n::turns] for n in range(turns)]
        with w.loop(self.items) as number:
            row0 = self._take_item(number)
            if self.problem.precision == "tf32":
                self._multiply_rounded(product, tell, (self.warp * 16, weights), self.total, number * self.total)
            else:
                self._multiply(product, tell, (own, weights), self.total, number * self.total, beside)
            row, blocks = row0 + wide(self.warp * 16), tile.columns // block
            items = []
            for half in range(2):
                at = self._row_of_sums(row + wide(self.lane // 4 + 8 * half))
                for n in range(blocks):
                    pairs = [product.acc[n * (block // 8) + i, half] for i in range(block // 8)]
                    items.append(Item(at, self.column * blocks + n, self.lane, pairs))
            self._wait_at_the_end()
            self.problem.finish_items(w, items, None if later is None else later.keep)
        for store in stores:
            store()
