"""GEMM by wgmma for the rows of one step, for Hopper: K is shared out over a cluster.

In: a `Problem` and a tile. Out: a kernel's body. Weights that do not stay on the chip are read once by all blocks
together; what else a block reads is its rows of x, and with K shared out over the blocks of a cluster that is only a
part of each row. A warpgroup copies as in `wgmma.py`, into as many stages as there is room for; the others multiply 64
rows each. Then the blocks exchange sums, and all warps share the epilogue.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass
from math import prod

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.codegen.register_tile import RegisterTile
from tvm_rnn.cuda.layer.packed_layout import ROW_BYTES, SIZES, ceil_div
from tvm_rnn.cuda.layer.pipeline_barriers import COPIERS, LEAST_STAGES
from tvm_rnn.tir.expr import Expr, TirExpr
from tvm_rnn.tir.index import int64, uint32, wide

from .cp_async_pipeline import GemmTile
from .problem import Problem
from .wgmma import BULK, HIGH, SQUARE_BYTES, WgmmaProduct, WgmmaRows, WgmmaStages, units

SECTOR = 32  # bytes that L2 fetches at least
EVICT_FIRST, EVICT_LAST = 0x12F0000000000000, 0x14F0000000000000  # policies of copies, as createpolicy makes them


@dataclass(frozen=True)
class SplitKTile(GemmTile):
    """columns of a cluster, and those of a block of units with all gates; along: warpgroups along columns; cluster:
    blocks that share K. kept: percent of the weights that L2 is asked to keep from step to step.
    """

    rows: int = HIGH
    _: KW_ONLY
    columns: int
    block: int
    along: int = 1
    cluster: int = 2
    kept: int = 0

    @property
    def high(self) -> int:
        """Warpgroups down rows."""
        return self.rows // HIGH

    @property
    def members(self) -> int:
        return 128 * self.high * self.along

    @property
    def readers(self) -> int:
        """Each block has a part of K of its own."""
        return 1

    @property
    def weight_bytes(self) -> int:
        return self.columns * ROW_BYTES

    @property
    def fits(self) -> bool:
        """Whether there are stages enough, and at a kernel's start registers for one wgmma's sums and what it takes
        beside them: ptxas asked for 98 where there were 72 sums, for 154 where there were 128."""
        most = min(255, (1 << 16) // self.threads // 8 * 8)
        return self.stages >= LEAST_STAGES and self.columns // self.along // 2 + 26 <= most

    @property
    def items(self) -> int:
        """Of epilogue work: 8 rows of a warp's 16, and a block of units with all gates."""
        return 2 * self.columns // self.along // self.block

    @property
    def own(self) -> int:
        """Items of a thread that one block of the cluster finishes, at most."""
        return ceil_div(self.items, self.cluster)

    @property
    def shared_bytes(self) -> int:
        return max(super().shared_bytes, self.cluster * self.own * self.members * self.block)


class WgmmaSplitKGemm(WgmmaRows, WgmmaStages):
    """For operands whose rows begin at multiples of 4 bytes, and best of 16."""

    tile: SplitKTile
    div, mod = staticmethod(tirx.truncdiv), staticmethod(tirx.truncmod)

    def __init__(self, w: Writer, problem: Problem, tile: SplitKTile) -> None:
        assert tile.columns % (tile.along * tile.block) == 0 and tile.columns // tile.along <= 256 and tile.fits
        super().__init__(w, problem, tile, ceil_div(problem.layout.width, tile.columns // problem.layout.gates))
        self.fragments = problem.fragments
        self.size = tile.block // 4  # sums of a thread of an item, of which so many are exchanged together:
        self.width = 4 if self.size % 4 == 0 else 2

    def run(self) -> None:
        w, tile = self.w, self.tile
        place, _ = self._enter()
        self.row0 = w.keep(wide(tirx.truncdiv(place, self.tiles)) * tile.rows)
        self.column = w.keep(tirx.truncmod(place, self.tiles))
        if self.problem.listed:
            self._take_list()
        with w.when(self.row0 < self.there) if self.problem.listed else nullcontext():
            self._run()

    def _run(self) -> None:
        w, tile = self.w, self.tile
        self.begin, self.count = self._share_of_k()
        self._make_barriers(self.arrivals + 1, tile.members // 32)  # full: also by the bulk copy
        product = WgmmaProduct(w, self.arena, tile.columns // tile.along, self.problem.compute)
        with I.If(self.tx < COPIERS):
            with I.Then():
                self._produce()
            with I.Else():
                self._consume(product)
        self._meet(alone=True)  # no block reads stages any more
        with w.when(self.tx >= COPIERS):
            self._store_sums(product.acc)
        self._meet(alone=True)
        self._finish()

    # --- copying ---------------------------------------------------------------------------------------------------

    def _produce(self) -> None:
        w, stages = self.w, self.tile.stages
        self._take_line()
        self._take_rows(w.keep(self.row0 + wide(self.line)))
        if self.tile.overlap:
            with w.loop(tirx.min(self.count, stages)) as k:
                self._weights(k, k)
            self._wait_for_rows()
            self._open(waited=True)
        with w.loop(self.count) as k, self._filling(k) as slot:
            with w.when(k >= stages) if self.tile.overlap else nullcontext():
                self._weights(k, slot)
            for number, own in self._of_operands(self.begin + k):
                self._copy_rows(number, self._stage(slot), own)
        self._filled()

    def _each_row(self) -> Iterator[int]:
        """Of as many as all threads of the block have at a time, the first ones alone, or the first half, where no more
        exist: nobody reads the sums of others, whatever a stage has there. All threads go the same way."""
        assert self.tile.rows % (4 * self.apart) == 0
        quarter = self.tile.rows // (4 * self.apart)
        yield from range(quarter)
        with self.w.when(self.there - self.row0 > quarter * self.apart):
            yield from range(quarter, 2 * quarter)
            with self.w.when(self.there - self.row0 > 2 * quarter * self.apart):
                yield from range(2 * quarter, 4 * quarter)

    def _weights(self, k: TirExpr, slot: TirExpr) -> None:
        """One bulk copy: packed columns of a K tile lie side by side."""
        w, tile, layout = self.w, self.tile, self.fragments
        with w.when(tirx.EQ(self.tx, 0)):
            target = self._stage(slot) + uint32(tile.rows * ROW_BYTES)
            columns = w.keep(tirx.min(layout.columns - self.column * tile.columns, tile.columns))
            size = w.bind(tirx.Cast("uint32", columns * ROW_BYTES))
            full = w.bind(self._full(slot))
            w.do(I.ptx["mbarrier.arrive.expect_tx.shared.b64"](full, size))
            first = wide(self.column * tile.columns) * layout.deep
            name, hint = BULK, list[TirExpr]()
            if tile.kept:
                early = k * 100 < self.count * tile.kept
                name += ".L2::cache_hint"
                hint = [tirx.Select(early, tirx.const(EVICT_LAST, "uint64"), tirx.const(EVICT_FIRST, "uint64"))]
            for number, own in self._of_operands(self.begin + k):
                start = first + self._further(number)
                source = w[f"w{number}"].ptr_to([wide(own) * (layout.columns * layout.deep) + start])
                w.do(I.ptx[name](target, source, size, full, *hint))

    # --- multiplying -----------------------------------------------------------------------------------------------

    def _consume(self, product: WgmmaProduct) -> None:
        w, tile = self.w, self.tile
        self._take_place()
        self._fetch(w.bind(self.tx - COPIERS))
        if tile.overlap:
            self._wait_for_rows()
        down, across = self.warp // 4 % tile.high, self.warp // 4 // tile.high
        weights = w.bind(across * units(product.columns * ROW_BYTES) + units(tile.rows * ROW_BYTES))
        weights, tell = w.bind(tirx.Cast("uint64", weights)), self._remote(self.lane)
        if self.problem.precision == "tf32":
            line = w.bind(down * HIGH + self.warp % 4 * 16)
            self._multiply_rounded(product, tell, (line, weights), self.count)
        else:
            rows = w.bind(tirx.Cast("uint64", down * units(SQUARE_BYTES)))
            self._multiply(product, tell, (rows, weights), self.count)

    # --- results ---------------------------------------------------------------------------------------------------

    def _fetch(self, member: TirExpr) -> None:
        """Ask L2 for what the epilogue of this cluster's tile will read: hoisted values come from memory."""
        w, tile, width = self.w, self.tile, self.problem.layout.width
        units = tile.columns // self.problem.layout.gates
        unit = w.bind(self.column * units)
        for node, place in self.problem.reads.items():
            size = SIZES[place.dtype]
            if not place.row_stride or node.shape[-1:] != (width,):
                continue
            members = bool(self.problem.members)
            if members and node.shape[0] != self.problem.members:
                continue
            lines, parts = prod(node.shape[members:-1]), ceil_div(units * size, SECTOR) + 1
            pieces = tile.rows * lines * parts
            each = tile.members * tile.cluster
            for i in range(ceil_div(pieces, each)):
                piece = w.bind(member * tile.cluster + self.rank + i * each)
                row = self._row_of_sums(self.row0 + wide(tirx.truncdiv(piece, lines * parts)))
                line = tirx.truncmod(tirx.truncdiv(piece, parts), lines) if lines > 1 else 0
                end = tirx.min(unit + units, width) - 1
                at = tirx.min(unit + tirx.truncmod(piece, parts) * (SECTOR // size), end) + line * width
                at = w.bind(wide(at) + self.problem.further(lines * width))
                with w.when(tirx.And(piece < pieces, row < w["rows"])):
                    address = w[self.problem.names["read", node, 0]].ptr_to([place.row(row) * place.row_stride + at])
                    w.do(I.ptx["prefetch.global.L2"](address))

    def _at(self, start: TirExpr, source: TirExpr, item: Expr, part: int, member: TirExpr) -> TirExpr:
        """Where a block has some of a thread's sums: from which block, of which of its items."""
        place = (source * self.tile.own + item) * (self.size // self.width) + part
        return start + tirx.Cast("uint32", (place * self.tile.members + member) * (4 * self.width))

    def _store_sums(self, acc: RegisterTile) -> None:
        """To every block of the cluster, the sums of its items."""
        w, tile, size, width = self.w, self.tile, self.size, self.width
        member = w.keep(self.tx - COPIERS)
        left = w.keep(tirx.Cast("int32", tirx.min(self.there - self.row0, int64(tile.rows))) - self._line(member))
        for block, (to, space) in self._blocks():
            start = w.bind(self._at(to, self.rank, 0, 0, member))
            for item in range(block, tile.items, tile.cluster):
                first = item // 2 * (size // 2)  # tiles of 8 columns, of which a thread has two in each row
                found = [value for n in range(first, first + size // 2) for value in acc[n, item % 2]]
                with w.when(left > item % 2 * 8):
                    for part in range(size // width):
                        offset = (item // tile.cluster * (size // width) + part) * tile.members * 4 * width
                        values = found[part * width : (part + 1) * width]
                        w.do(I.ptx[f"st.{space}.v{width}.f32"](start + uint32(offset), *values))

    def _line(self, member: TirExpr) -> TirExpr:
        """The first row of the tile that a thread has sums of; the other one is 8 below."""
        return member // 128 % self.tile.high * HIGH + member // 32 % 4 * 16 + member % 32 // 4

    def _finish(self) -> None:
        """The items of this block, by all its threads."""
        w, tile = self.w, self.tile
        self._wait_at_the_end()
        with w.loop(ceil_div(tile.own * tile.members, tile.threads)) as turn:
            piece = w.keep(self.tx + turn * tile.threads)
            mine, member = w.keep(tirx.truncdiv(piece, tile.members)), w.keep(tirx.truncmod(piece, tile.members))
            item = w.keep(mine * tile.cluster + self.rank)
            row = w.keep(self._row_of_sums(self.row0 + wide(self._line(member) + item % 2 * 8)))
            with w.when(tirx.And(tirx.And(mine < tile.own, item < tile.items), row < w["rows"])):
                self._finish_item(mine, item, member, row)

    def _finish_item(self, mine: TirExpr, item: TirExpr, member: TirExpr, row: TirExpr) -> None:
        w, tile, width = self.w, self.tile, self.width
        sums, other = w.tile(self.size // 2, 2), w.tile(width)
        for source in range(tile.cluster):
            for part in range(self.size // width):
                at = self._at(self.base, tirx.const(source, "int32"), mine, part, member)
                w.do(I.ptx[f"ld.shared.v{width}.f32"](*other.flat, at))
                for i, value in enumerate(other.flat, part * width):
                    sums.store(sums.flat[i] + value if source else value, *divmod(i, 2))
        group, lane = member // 128, w.bind(member % 32)
        blocks = tile.columns // tile.block
        block = w.keep(self.column * blocks + group // tile.high * (blocks // tile.along) + item // 2)
        self.problem.finish_rows(w, row, block, lane, [sums[n] for n in range(self.size // 2)])
