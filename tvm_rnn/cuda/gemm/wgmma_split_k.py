"""GEMM by wgmma for the rows of one step, for Hopper: K is shared out over a cluster.

In: a `Problem` and a tile. Out: a `Kernel` with one cluster per tile of rows x columns. Weights that do not stay on the
chip are read once by all blocks together; what else a block reads is its rows of x, and with K shared out over the
blocks of a cluster that is only a part of each row. A warpgroup copies as in `wgmma.py`, into as many stages as
there is room for; the others multiply 64 rows each. Then the blocks exchange sums, and all warps share the epilogue.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from math import prod

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.codegen.register_tile import RegisterTile
from tvm_rnn.cuda.layer.packed_layout import ROW_BYTES, SIZES, ceil_div
from tvm_rnn.cuda.layer.pipeline_barriers import COPIERS, LAG
from tvm_rnn.tir.expr import Expr, TirExpr
from tvm_rnn.tir.index import uint32

from .cp_async_pipeline import DEPENDENT
from .problem import Problem, int64
from .wgmma import BULK, WgmmaRows
from .wgmma_product import HIGH, SQUARE_BYTES, WgmmaProduct, units

SECTOR = 32  # bytes that L2 fetches at least
EVICT_FIRST, EVICT_LAST = 0x12F0000000000000, 0x14F0000000000000  # policies of copies, as createpolicy makes them


@dataclass(frozen=True)
class SplitTile:
    """columns of a cluster; high: warpgroups down rows; along: warpgroups along columns; cluster: blocks that share K.

    kept: percent of the weights that L2 is asked to keep from step to step. overlap: weights are fetched while the
    kernel before this one still runs.
    """

    columns: int
    high: int = 1
    along: int = 1
    cluster: int = 2
    stages: int = 4
    kept: int = 0
    overlap: bool = False

    @property
    def rows(self) -> int:
        return HIGH * self.high

    @property
    def members(self) -> int:
        """Threads that multiply."""
        return 128 * self.high * self.along

    @property
    def threads(self) -> int:
        return COPIERS + self.members

    @property
    def stage_bytes(self) -> int:
        return (self.rows + self.columns) * ROW_BYTES

    @property
    def pipeline_bytes(self) -> int:
        return self.stages * (self.stage_bytes + 16)

    @property
    def fits(self) -> bool:
        """Whether there are stages enough, and at a kernel's start registers for one wgmma's sums and what it takes
        beside them: ptxas asked for 98 where there were 72 sums, for 154 where there were 128."""
        most = min(255, (1 << 16) // self.threads // 8 * 8)
        return self.stages > LAG + 1 and self.columns // self.along // 2 + 26 <= most

    def items(self, block: int) -> int:
        """Of epilogue work: 8 rows of a warp's 16, and a block of units with all gates."""
        return 2 * self.columns // self.along // block

    def own(self, block: int) -> int:
        """Items of a thread that one block of the cluster finishes, at most."""
        return ceil_div(self.items(block), self.cluster)

    def shared_bytes(self, block: int) -> int:
        exchanged = self.cluster * self.own(block) * self.members * block
        return max(self.pipeline_bytes, exchanged)


def split_kernel(name: str, problem: Problem, tile: SplitTile) -> Kernel:
    """A kernel for 16-byte aligned operands."""
    block = problem.fragments.block
    assert tile.columns % (tile.along * block) == 0 and tile.columns // tile.along <= 256 and tile.fits

    def body(w: Writer) -> None:
        with problem.flavour(), I.attr({"tirx.launch_bounds_min_blocks_per_sm": 1}):
            _Split(w, problem, tile).run()

    given = problem.pointers, problem.scalars, body
    attributes = {"tirx.kernel_launch_params": [DEPENDENT]} if tile.overlap else None
    shared = tile.shared_bytes(block)
    return write(name, *given, threads=tile.threads, attributes=attributes, shared_bytes=shared, cluster=tile.cluster)


class _Split(WgmmaRows):
    tile: SplitTile
    reach_kept = True

    def __init__(self, w: Writer, problem: Problem, tile: SplitTile) -> None:
        super().__init__(w, problem, tile.columns)
        self.tile, self.rows = tile, tile.rows

    def run(self) -> None:
        w, tile, block = self.w, self.tile, self.layout.block
        grid = tirx.Cast("int32", tirx.floordiv(w["rows"] + (tile.rows - 1), int64(tile.rows)) * self.tiles)
        self.rank: TirExpr = tirx.const(0, "int32")
        if tile.cluster > 1:
            place, rank = w.keep(I.cluster_id([grid])), I.cta_id_in_cluster([tile.cluster])
            self.rank = w.keep(rank)
        else:
            place = I.cta_id([grid])
        self.tx = I.thread_id([tile.threads])
        self.arena = I.alloc_buffer((tile.shared_bytes(block),), "uint8", scope="shared.dyn", align=1024)
        self.base = w.bind(I.cuda.cvta_generic_to_shared(self.arena.ptr_to([0])))
        self.row0 = w.keep(tirx.Cast("int64", tirx.truncdiv(place, self.tiles)) * tile.rows)
        self.column = w.keep(tirx.truncmod(place, self.tiles))
        self.begin = w.keep(tirx.truncdiv(self.rank * self.total, tile.cluster))
        self.count = w.keep(tirx.truncdiv((self.rank + 1) * self.total, tile.cluster) - self.begin)
        self._make_barriers(5, tile.members // 32)  # full: by 4 warps, and the bulk copy
        if tile.overlap:
            w.do(I.ptx.griddepcontrol.launch_dependents())
        with I.If(self.tx < 128):
            with I.Then():
                self._produce()
                self._meet()
            with I.Else():
                self._consume()
        self._meet()
        self._finish()

    def _meet(self) -> None:
        """All threads of the cluster."""
        if self.tile.cluster > 1:
            super()._meet()
        else:
            self.w.do(I.cuda.cta_sync())

    # --- copying ---------------------------------------------------------------------------------------------------

    def _produce(self) -> None:
        w, stages = self.w, self.tile.stages
        line = self._line()
        row = w.keep(self.row0 + tirx.Cast("int64", line))
        left = w.keep(tirx.Cast("int32", tirx.min(w["rows"] - row, int64(self.tile.rows))))
        if self.tile.overlap:
            with w.loop(tirx.min(self.count, stages)) as k:
                self._weights(k, k)
            w.do(I.ptx.griddepcontrol.wait())
        with w.loop(self.count) as k, self._filling(k) as slot:
            with w.when(k >= stages) if self.tile.overlap else nullcontext():
                self._weights(k, slot)
            stage = self.base + tirx.Cast("uint32", slot) * uint32(self.tile.stage_bytes)
            for number, inside, at in self._operands(self.begin + k):
                with w.when(inside) if inside is not None else nullcontext():
                    self._rows(number, stage, at, row, left)
        self._filled(self.count)

    def _weights(self, k: TirExpr, slot: TirExpr) -> None:
        """One bulk copy: packed columns of a K tile lie side by side."""
        w, tile, layout = self.w, self.tile, self.layout
        with w.when(tirx.EQ(self.tx, 0)):
            target = self.base + tirx.Cast("uint32", slot) * uint32(tile.stage_bytes) + uint32(tile.rows * ROW_BYTES)
            columns = w.keep(tirx.min(layout.columns - self.column * tile.columns, tile.columns))
            size = w.bind(tirx.Cast("uint32", columns * ROW_BYTES))
            full = w.bind(self._full(slot))
            w.do(I.ptx["mbarrier.arrive.expect_tx.shared.b64"](full, size))
            first = tirx.Cast("int64", self.column * tile.columns) * layout.deep
            hint: tuple[Expr, ...] = ()
            if tile.kept:
                early = k * 100 < self.count * tile.kept
                hint = (tirx.Select(early, tirx.const(EVICT_LAST, "uint64"), tirx.const(EVICT_FIRST, "uint64")),)
            name = BULK + (".L2::cache_hint" if hint else "")
            for number, inside, at in self._operands(self.begin + k):
                with w.when(inside) if inside is not None else nullcontext():
                    place = tirx.Cast("int64", at) * (layout.columns * layout.deep) + first
                    source = w[self.problem.weight_name(number)].ptr_to([place])
                    w.do(I.ptx[name](target, source, size, full, *hint))

    # --- multiplying -----------------------------------------------------------------------------------------------

    def _consume(self) -> None:
        w, tile = self.w, self.tile
        member = w.bind(self.tx - 128)
        self._fetch(member)
        if tile.overlap:
            w.do(I.ptx.griddepcontrol.wait())
        broad = tile.columns // tile.along
        product = WgmmaProduct(w, self.arena, broad, self.layout.dtype)
        down, across = member // 128 % tile.high, member // 128 // tile.high
        x_at = w.bind(tirx.Cast("uint64", down * units(SQUARE_BYTES)))
        w_at = w.bind(tirx.Cast("uint64", across * units(broad * ROW_BYTES) + units(tile.rows * ROW_BYTES)))
        leads = w.bind(tirx.EQ(member % 32, 0))
        with w.loop(self.count) as k:
            slot = w.keep(self._slot(k))
            self._wait(self._full(slot), self._round(k) % 2)
            product.multiply(slot * units(tile.stage_bytes), x_at, w_at, more=k > 0)
            with w.when(tirx.And(k > 0, leads)):
                self._release(self._empty(tirx.const(0, "int32")), k - 1)
        product.wait(0)
        self._meet()  # no block reads stages any more
        self._store_sums(member, product.acc)

    def _release(self, barrier: TirExpr, turn: TirExpr) -> None:
        at = barrier + tirx.Cast("uint32", self._slot(turn) * 8)
        self.w.do(I.ptx["mbarrier.arrive.shared.b64"](at))

    def _slot(self, turn: Expr) -> TirExpr:
        return tirx.truncmod(turn, self.tile.stages)

    def _round(self, turn: Expr) -> TirExpr:
        return tirx.truncdiv(turn, self.tile.stages)

    # --- results ---------------------------------------------------------------------------------------------------

    def _fetch(self, member: Expr) -> None:
        """Ask L2 for what the epilogue of this cluster's tile will read: hoisted values come from memory."""
        w, tile, epilogue = self.w, self.tile, self.problem.epilogue
        units = tile.columns // self.problem.gates
        unit = w.bind(self.column * units)
        for node, place in epilogue.reads.items():
            size = SIZES[place.dtype]
            if not place.row_stride or node.shape[-1:] != (epilogue.width,):
                continue
            lines, parts = prod(node.shape[:-1]), ceil_div(units * size, SECTOR) + 1
            pieces = tile.rows * lines * parts
            each = tile.members * tile.cluster
            for i in range(ceil_div(pieces, each)):
                piece = w.bind(member * tile.cluster + self.rank + i * each)
                row = w.bind(self.row0 + tirx.Cast("int64", tirx.truncdiv(piece, lines * parts)))
                line = tirx.truncmod(tirx.truncdiv(piece, parts), lines) if lines > 1 else 0
                end = tirx.min(unit + units, epilogue.width) - 1
                at = w.bind(
                    tirx.min(unit + tirx.truncmod(piece, parts) * (SECTOR // size), end) + line * epilogue.width
                )
                with w.when(tirx.And(piece < pieces, row < w["rows"])):
                    name = epilogue.names["read", node, 0]
                    address = w[name].ptr_to([row * place.row_stride + tirx.Cast("int64", at)])
                    w.do(I.ptx["prefetch.global.L2"](address))

    @property
    def _width(self) -> int:
        """Floats that are exchanged together."""
        return 4 if self.layout.block // 4 % 4 == 0 else 2

    def _at(self, start: Expr, source: Expr, item: Expr, part: int, member: Expr) -> Expr:
        """Where a block has some of a thread's sums: from which block, of which of its items."""
        parts = self.layout.block // 4 // self._width
        place = ((source * self.tile.own(self.layout.block) + item) * parts + part) * self.tile.members + member
        return start + tirx.Cast("uint32", place * (4 * self._width))

    def _store_sums(self, member: Expr, acc: RegisterTile) -> None:
        """To every block of the cluster, the sums of its items."""
        w, tile, size, width = self.w, self.tile, self.layout.block // 4, self._width
        remote = w.local(1, "uint32")
        for block in range(tile.cluster):
            if tile.cluster > 1:
                w.do(I.ptx["mapa.shared::cluster.u32"](remote[0], self.base, uint32(block)))
            to, space = (remote[0], "shared::cluster") if tile.cluster > 1 else (self.base, "shared")
            start = w.bind(self._at(to, self.rank, 0, 0, member))
            for item in range(block, tile.items(self.layout.block), tile.cluster):
                first = item // 2 * (size // 2)  # tiles of 8 columns, of which a thread has two in each row
                found = [value for n in range(first, first + size // 2) for value in acc[n, item % 2]]
                for part in range(size // width):
                    offset = (item // tile.cluster * (size // width) + part) * tile.members * 4 * width
                    values = found[part * width : (part + 1) * width]
                    w.do(I.ptx[f"st.{space}.v{width}.f32"](start + uint32(offset), *values))

    def _finish(self) -> None:
        """The items of this block, by all its threads."""
        w, tile, layout = self.w, self.tile, self.layout
        size, width, own = layout.block // 4, self._width, tile.own(layout.block)
        work = own * tile.members
        with w.loop(ceil_div(work, tile.threads)) as turn:
            piece = w.keep(self.tx + turn * tile.threads)
            mine, member = w.keep(tirx.truncdiv(piece, tile.members)), w.keep(tirx.truncmod(piece, tile.members))
            item = w.keep(mine * tile.cluster + self.rank)
            with w.when(tirx.And(mine < own, item < tile.items(layout.block))):
                self._finish_item(mine, item, member, size, width)

    def _finish_item(self, mine: Expr, item: Expr, member: Expr, size: int, width: int) -> None:
        w, tile, layout = self.w, self.tile, self.layout
        sums, other = w.tile(size // 2, 2), w.tile(width)
        for source in range(tile.cluster):
            for part in range(size // width):
                at = self._at(self.base, tirx.const(source, "int32"), mine, part, member)
                w.do(I.ptx[f"ld.shared.v{width}.f32"](*other.flat, at))
                for i in range(width):
                    n = divmod(part * width + i, 2)
                    sums.store(sums[n[0]][n[1]] + other.flat[i] if source else other.flat[i], *n)
        group, lane = member // 128, w.bind(member % 32)
        line = group % tile.high * HIGH + member // 32 % 4 * 16 + item % 2 * 8 + lane // 4
        row = w.keep(self.row0 + tirx.Cast("int64", line))
        blocks = tile.columns // layout.block
        block = w.keep(self.column * blocks + group // tile.high * (blocks // tile.along) + item // 2)

        def value(gate: int, u: int) -> TirExpr:
            return sums[gate * layout.span + u // 2][u % 2]

        with w.when(row < w["rows"]):
            unit = block * (8 * layout.span) + lane % 4 * (2 * layout.span)
            self.problem.epilogue.emit(w, row, unit, 2 * layout.span, value)
