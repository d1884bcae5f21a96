"""GEMMs of weight gradients by wgmma, for Hopper: sums over all rows of products of two rows' elements.

In: operands that lie as rows of pieces of 16 or 4 bytes, as many of the left ones as share a right one. Out: tiles,
whose kernels have the arguments and results of that in `weight_gradient_mma.py`. One warpgroup copies, the others
multiply 64 lines of the result each.

    as they lie  of 16 bits. Rows are what K is in other products; wgmma takes 16-bit operands along either axis, so
                 rows are copied as they lie, 64 elements of 64 rows at a time, swizzled: 16 bytes at chunk c of row r
                 are at c ^ r % 8
    packed       of large gradients: `pack_kernel` puts rows into the order in which a stage of a block's tile is one
                 piece of memory for each operand, which one thread fetches by bulk copies: the left one for itself, of
                 the right one a part for every block of the cluster. A copy costs both ways through memory once; the
                 GEMM then reads each operand as often as it has tiles

What L2 hands to all blocks is the limit: 12,800 rows of 10,240 and 2,560 elements in bf16 took 1.61 ms on an H200 with
tiles of 128 x 256, which ask L2 for 4.9 TB/s. A third warpgroup would leave too few registers for 256 columns. Asked of
L2 per stage by a packed block of 128 x 256 in a cluster of two: 128 + 128 columns, in place of 128 + 256.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, replace
from itertools import product

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.codegen.tile_layout import SWIZZLE_128
from tvm_rnn.cuda.gemm.around import Around
from tvm_rnn.cuda.gemm.operands import Operand
from tvm_rnn.cuda.gemm.wgmma import SQUARE_BYTES, WgmmaProduct, WgmmaStages, bulk_copy, units
from tvm_rnn.cuda.layer.packed_layout import CHUNKS, ROW_BYTES, SIZES, ceil_div
from tvm_rnn.cuda.layer.pipeline_barriers import COPIERS
from tvm_rnn.cuda.layer.pointers import storage
from tvm_rnn.tir.expr import Buffer, Expr, TirExpr
from tvm_rnn.tir.index import int64, uint32, wide

from .row_product import RowProduct
from .weight_gradient_block import Found, WeightGradientBlock, WeightGradientTile, numbered

SQUARE = 64  # columns
PACKERS = 128
PIECES = SQUARE_BYTES // 16 // PACKERS  # of 16 bytes, for each thread
PITCH = SQUARE * 4 + 16  # bytes from row to row before they are turned: half a warp's columns meet no bank twice
WIDTHS, HEIGHTS = (256, 192, 128, 64), (128, 64)
ONES_BYTES = 2 * 8 * ROW_BYTES  # what a wgmma reads of 8 columns
ONES = {"float16": 0x3C003C00, "bfloat16": 0x3F803F80}  # two in a word
SHAPES = ((128, 256), (128, 192), (128, 128), (192, 192), (192, 128))  # of packed operands' tiles
# Of a thread that copies, and of one that multiplies, by warpgroups that do.
REGISTERS = {1: (40, 232), 2: (40, 232), 3: (24, 160)}
# Of blocks that multiply several left operands: stages, as many as have room, a thread's sums, bytes of shared memory,
# and parts of the rows.
STAGES_OF_ALL, MOST_SUMS, SHARED_BYTES, PARTS = (4, 3), 192, 232448, 8
PAIRS = 16  # of sums that a thread stores: so many are asked for at once, where they are added to
PAIR = 2  # parts of the rows that a cluster adds up; of clusters of four only 30 have room on an H200
LEAST = 64  # lines and columns below which the other kernel's tiles waste less
# Tensor cores' rates and memory's, as measured on an H200, in FLOP/s and bytes/s: with packed operands and without.
PACKED_RATE = {"float16": 650e12, "bfloat16": 650e12, "tf32": 330e12}
PLAIN_RATE = {"float16": 417e12, "bfloat16": 417e12, "tf32": 100e12}
MEMORY_RATE = 3.5e12


def rows_of_stage(precision: str) -> int:
    """How many rows 128 bytes of a line are, or how many lines a square has."""
    return 32 if precision == "tf32" else SQUARE


def squares(depth: int) -> int:
    """Of a stage."""
    return ceil_div(depth, SQUARE)


@dataclass(frozen=True)
class WgmmaWeightGradientTile(WeightGradientTile):
    """high x wide of a block: 64 lines for each warpgroup that multiplies, and what a wgmma has of columns."""

    @property
    def deep(self) -> int:
        return rows_of_stage(self.precision)

    @property
    def members(self) -> int:
        return 2 * self.high

    @property
    def right_at(self) -> int:
        return self.together * self.high // SQUARE * SQUARE_BYTES

    @property
    def stage_bytes(self) -> int:
        return self.right_at + self.wide // SQUARE * SQUARE_BYTES

    @property
    def ones_at(self) -> int:
        """Where the column of ones lies, behind the barriers."""
        return ceil_div(super().shared_bytes, ONES_BYTES) * ONES_BYTES

    @property
    def shared_bytes(self) -> int:
        stages = self.ones_at + ONES_BYTES if self.totals else super().shared_bytes
        handed = self.totals_at + self.adds * len(self.summed) * self.members * 2
        return max(stages, handed) if self.adds > 1 else stages

    # --- sums that a cluster adds up ---

    @property
    def pieces(self) -> int:
        """What a thread hands to each block of the cluster, in pieces of 16 bytes."""
        return self.together * self.wide // 8 // self.adds

    @property
    def totals_at(self) -> int:
        """Where totals lie behind the sums, in shared memory."""
        return self.adds * self.pieces * self.members * 16

    @property
    def summed(self) -> list[int]:
        """The numbers of a block's left operands that have totals."""
        return sorted({left % self.together for array in self.totals for left in array})

    def body(self, w: Writer, lefts: Sequence[Operand], rights: Sequence[Operand]) -> WeightGradientBlock:
        return _AsTheyLie(w, self, lefts, rights)


def wgmma_tile_for(
    precision: str, lefts: Sequence[Operand], row: RowProduct, arch: str, sms: int
) -> WgmmaWeightGradientTile | None:
    """The tile with which blocks read least; None where operands, sizes or the GPU do not suit. row: the product of the
    first of `lefts`."""
    if arch != "sm_90a" or precision not in ("float16", "bfloat16") or row.vectors > 1:
        return None
    height, width = lefts[0].depth, row.right.depth
    if min(height, width) < LEAST or not all(one.piece(precision) for one in (*lefts, row.right)):
        return None
    plain = (WgmmaWeightGradientTile(precision, *shape) for shape in product(HEIGHTS, WIDTHS))
    tiles = [replace(tile, heads=row.heads, turned=row.turned) for tile in plain]
    tiles += _of_all(tiles, len(lefts), (height, width), sms)

    def asked(tile: WgmmaWeightGradientTile) -> int:
        """Of L2, by all blocks."""
        return tile.tiles(len(lefts), height, width) * (tile.together * tile.high + tile.wide)

    return min(tiles, key=asked)


def _of_all(
    tiles: Sequence[WgmmaWeightGradientTile], lefts: int, size: tuple[int, int], sms: int
) -> list[WgmmaWeightGradientTile]:
    """The tiles that multiply all left operands at once: of those whose sums registers hold, and which are so many that
    PARTS parts of the rows keep nine tenths of the multiprocessors at work."""
    found = [deepest(replace(t, together=lefts)) for t in tiles if lefts * t.wide <= 2 * MOST_SUMS]
    return [t for t in found if lefts > 1 and 10 * PARTS * t.tiles(lefts, *size) >= 9 * sms and _fits(t)]


def _fits(tile: WgmmaWeightGradientTile) -> bool:
    """Also with totals of all left operands, in a cluster that adds parts up."""
    most = replace(tile, totals=(tuple(range(tile.together)),), adds=PAIR)
    return most.shared_bytes <= SHARED_BYTES


def deepest(tile: WgmmaWeightGradientTile) -> WgmmaWeightGradientTile:
    """With as many stages as have room."""
    found = [replace(tile, stages=stages) for stages in STAGES_OF_ALL]
    return next(filter(_fits, found), found[-1])


def in_one_cluster(tile: WgmmaWeightGradientTile, lefts: int, size: tuple[int, int], sms: int) -> WeightGradientTile:
    """Of a tile whose parts of the rows leave sums to be folded the lower half, where one cluster adds up all parts of
    that: no fold is left, and a lower tile has more stages."""
    low = deepest(replace(tile, high=HEIGHTS[-1]))
    whole, blocks = tile.tiles(lefts, *size), low.tiles(lefts, *size)
    folds = sms // whole // added(whole, sms) > 1
    return low if folds and added(blocks, sms) == sms // blocks == PAIR else tile


def added(blocks: int, sms: int) -> int:
    """How many parts of so many blocks a cluster adds up: two, where pairs keep nine tenths of the multiprocessors at
    work."""
    return PAIR if 10 * (sms // blocks // PAIR * PAIR) * blocks >= 9 * sms else 1


@dataclass(frozen=True)
class PackedWeightGradientTile(WgmmaWeightGradientTile):
    """high x wide of a block; cluster: blocks below each other, which share what they fetch of the right operand."""

    _: KW_ONLY
    cluster: int = 2

    def tiles(self, lefts: int, height: int, width: int) -> int:
        """The last cluster of a column may have one without work."""
        down = ceil_div(lefts * ceil_div(height, self.high), self.cluster) * self.cluster
        return down * ceil_div(width, self.wide)

    def pointers(self, lefts: Sequence[Operand], rights: Sequence[Operand]) -> list[tuple[str, str]]:
        """`a`: [stage][left][square], and `b`: [stage][square]."""
        return [("a", self.compute), ("b", self.compute)]

    def body(self, w: Writer, lefts: Sequence[Operand], rights: Sequence[Operand]) -> WeightGradientBlock:
        return _Packed(w, self, lefts, rights)


def packed_tile_for(
    precision: str, lefts: Sequence[Operand], right: Operand, arch: str, sms: int
) -> PackedWeightGradientTile | None:
    """The tile with which all blocks are done first; None where another kernel is faster or operands do not suit."""
    if arch != "sm_90a" or precision not in PACKED_RATE:
        return None
    if not all(one.piece(storage(precision)) for one in (*lefts, right)):
        return None
    if any(
        one.around is not None for one in (*lefts, right)
    ):  # in order it would be as many times larger as it has taps
        return None
    height, width, count = lefts[0].depth, right.depth, len(lefts)
    # Left operands are put in order once for two products as a rule: with inputs, and with states.
    flops, moved = 2 * count * height * width, (count * height + 2 * width) * SIZES[storage(precision)]
    if flops / PACKED_RATE[precision] + moved / MEMORY_RATE > flops / PLAIN_RATE[precision]:
        return None

    def work(tile: PackedWeightGradientTile) -> float:
        """Of the multiprocessor that has most: products, and what is asked of L2 for them."""
        turns = ceil_div(tile.tiles(count, height, width), sms)
        return turns * (tile.high * tile.wide + 32 * (tile.high + tile.wide / 2))

    return min((PackedWeightGradientTile(precision, *shape) for shape in SHAPES), key=work)


class _Products(WgmmaProduct):
    """A warpgroup's products with each of a block's left operands, and with ones beside those of which totals are made:
    a left operand's sums, in each of 8 columns."""

    def __init__(self, w: Writer, arena: Buffer, tile: WgmmaWeightGradientTile) -> None:
        # 16-bit operands lie along what is not summed; of tf32 wgmma takes only what lies along K.
        plain = {"turned": tile.precision != "tf32"}
        super().__init__(w, arena, tile.wide, tile.compute, **plain)
        self.apart = units(tile.right_at // tile.together)  # from one left operand to the next
        self.each = [self, *(WgmmaProduct(w, arena, tile.wide, tile.compute, **plain) for _ in range(1, tile.together))]
        self.totals = {n: WgmmaProduct(w, arena, 8, tile.compute, **plain) for n in tile.summed}
        self.ones = w.bind(self.descriptor[0] + tirx.const(units(tile.ones_at), "uint64")) if tile.totals else None

    def start(self, a: TirExpr, b: TirExpr, add: TirExpr) -> None:
        for n, one in enumerate(self.each):
            left = a + tirx.const(n * self.apart, "uint64") if n else a
            WgmmaProduct.start(one, left, b, add)
            if n in self.totals and self.ones is not None:
                self.totals[n].start(left, self.ones, add)


class _WgmmaWeightGradient(WeightGradientBlock, WgmmaStages):
    """One warpgroup copies, the others multiply."""

    tile: WgmmaWeightGradientTile

    def _work(self) -> None:
        if self.tile.totals:
            self._make_ones()
        self._make_barriers(self.arrivals, self.tile.members // 32 * self.tile.cluster)
        self._divide(REGISTERS[self.tile.members // 128], self._produce, self._consume)

    def _make_ones(self) -> None:
        w, ones = self.w, uint32(ONES[self.tile.precision])
        with w.when(self.tx < ONES_BYTES // 16):
            at = self.base + uint32(self.tile.ones_at) + tirx.Cast("uint32", self.tx * 16)
            w.do(I.ptx["st.shared.v4.b32"](at, ones, ones, ones, ones))
            w.do(I.ptx.fence.proxy.async_.shared__cta())

    @abstractmethod
    def _produce(self) -> None:
        """Fill the stages; by the threads that copy."""

    def _consume(self) -> None:
        w, tile = self.w, self.tile
        self._take_place()
        products = _Products(w, self.arena, tile)
        own = w.bind(tirx.Cast("uint64", self.warp // 4 * units(SQUARE_BYTES)))
        self._multiply(products, self._remote(self.lane), (own, units(tile.right_at)), self.count)
        if tile.adds > 1:
            self._hand_out(products)
            self._add_up(products)
            return
        for high in range(2):
            line = self._own_line(high)
            with w.when(tirx.And(self.there, line < self.height)):
                for number, one in enumerate(products.each):
                    self._store(number, line, [self._sums(one.acc[i, high]) for i in range(tile.wide // 8)])
            for number, ones in products.totals.items():
                self._store_totals(number, line, *self._sums(ones.acc[0, high][:1]))

    def _own_line(self, high: int) -> TirExpr:
        """One of the two lines of the result of which a thread has sums."""
        return self.w.keep(self.line + self.warp * 16 + (self.lane // 4 + 8 * high))

    # --- a cluster's sums ---

    def _sums_at(self, start: TirExpr, source: TirExpr) -> TirExpr:
        """Where a block has this thread's sums, from which block."""
        tile = self.tile
        return self.w.bind(start + tirx.Cast("uint32", (source * (tile.pieces * tile.members) + self.member) * 16))

    def _totals_at(self, start: TirExpr, source: TirExpr) -> TirExpr:
        """The same of its totals, of every fourth thread."""
        tile = self.tile
        at = source * (len(tile.summed) * tile.members * 2) + self.member // 4 * 8
        return self.w.bind(start + uint32(tile.totals_at) + tirx.Cast("uint32", at))

    def _hand_out(self, products: _Products) -> None:
        """To every block of the cluster, the sums of its columns; totals by turns."""
        w, tile = self.w, self.tile
        self.member = w.keep(self.tx - COPIERS)
        across = tile.wide // 8 // tile.adds
        self._meet_cluster()  # no block reads stages any more
        remote = w.local(1, "uint32")
        for block in range(tile.adds):
            w.do(I.ptx["mapa.shared::cluster.u32"](remote[0], self.base, uint32(block)))
            at = self._sums_at(remote[0], self.rank)
            pieces = product(products.each, range(2), range(block * across, (block + 1) * across, 2))
            for piece, (one, high, i) in enumerate(pieces):
                values = self._sums((*one.acc[i, high], *one.acc[i + 1, high]))
                w.do(I.ptx["st.shared::cluster.v4.f32"](at + uint32(piece * tile.members * 16), *values))
            own = [*products.totals.values()][block :: tile.adds]
            with w.when(tirx.EQ(self.lane % 4, 0)) if own else nullcontext():
                at = self._totals_at(remote[0], self.rank)
                for n, ones in enumerate(own):
                    values = self._sums((ones.acc[0, 0][0], ones.acc[0, 1][0]))
                    w.do(I.ptx["st.shared::cluster.v2.f32"](at + uint32(n * tile.members * 2), *values))
        self._meet_cluster()

    def _add_up(self, products: _Products) -> None:
        """What this block was given, in the order of the parts."""
        w, tile = self.w, self.tile
        across = tile.wide // 8 // tile.adds
        lines = [self._own_line(high) for high in range(2)]
        for n, high in product(range(tile.together), range(2)):
            sums = []
            for i in range(0, across, 2):
                piece = (n * 2 + high) * (across // 2) + i // 2
                found = self._all_of(4, lambda b: self._sums_at(self.base, b), piece * tile.members * 16)
                sums += [found[:2], found[2:]]
            with w.when(tirx.And(self.there, lines[high] < self.height)):
                self._store(n, lines[high], sums, self.rank * (across * 8))
        for place, number in enumerate(products.totals):
            with w.when(tirx.And(tirx.EQ(self.rank, place % tile.adds), tirx.EQ(self.lane % 4, 0))):
                offset = place // tile.adds * tile.members * 2
                found = self._all_of(2, lambda b: self._totals_at(self.base, b), offset)
                for high in range(2):
                    self._store_totals(number, lines[high], found[high])

    def _all_of(self, count: int, place: Callable[[TirExpr], TirExpr], offset: int) -> list[TirExpr]:
        """So many numbers side by side, of all parts. place: where a block's begin, and `offset` further these."""
        w, own, other = self.w, self.w.tile(count), self.w.tile(count)
        for source in range(self.tile.adds):
            to = other if source else own
            w.do(I.ptx[f"ld.shared.v{count}.f32"](*to.flat, place(tirx.const(source, "int32")) + uint32(offset)))
            for i in range(count if source else 0):
                own.store(own.flat[i] + other.flat[i], i)
        return [*own.flat]

    def _sums(self, values: Sequence[TirExpr]) -> list[TirExpr]:
        """What was added up; 0 in a part that has no rows."""
        return [tirx.Select(self.count > 0, value, tirx.const(0.0, "float32")) for value in values]

    def _store(self, number: int, line: TirExpr, sums: Sequence[Sequence[TirExpr]], first: TirExpr | int = 0) -> None:
        """A line of the product with the number-th of the left operands: two of every 8 columns. first: of the tile's
        columns."""
        for right, name in enumerate(numbered("sums", len(self.rights))):
            with self._of(right, len(self.rights)):
                self._store_in(name, number, line, sums, first)

    def _store_in(
        self, name: str, number: int, line: TirExpr, sums: Sequence[Sequence[TirExpr]], first: TirExpr | int
    ) -> None:
        """The same in an array of that name."""
        w, tile, size = self.w, self.tile, self.height * self.width
        pairs = self.width % 2 == 0 and not tile.turned
        across, down = (self.height, 1) if tile.turned else (1, self.width)
        start = w.keep(self._result(number) * size + wide(line) * down)
        for begin in range(0, len(sums), PAIRS):
            places, part = list[Found](), sums[begin : begin + PAIRS]
            for i in range(begin, begin + len(part)):
                column = w.bind(self.column + first + 8 * i + self.lane % 4 * 2)
                for odd in range(1 if pairs else 2):
                    places.append((w.bind(start + wide(column + odd) * across), column + odd < self.width))
            self._store_sums(name, places, [value for pair in part for value in pair])

    def _store_totals(self, number: int, line: TirExpr, value: TirExpr) -> None:
        """A line's total, by the lane that has the first column, of a block that has."""
        tile = self.tile
        mine = tirx.And(tirx.EQ(self.column, 0), tirx.EQ(self.lane % 4, 0))
        arrays = zip(numbered("totals", len(tile.totals)), tile.totals, strict=True)
        places = [(name, lefts, place) for name, lefts in arrays for place in range(len(lefts))]
        for name, lefts, place in places:
            group, place_in_group = divmod(lefts[place], tile.together)
            if place_in_group != number:
                continue
            matrix = self._matrix(place, len(lefts))
            own = tirx.And(tirx.EQ(self.group, group), tirx.And(self.there, line < self.height))
            self._store_sums(name, [(matrix * self.height + wide(line), tirx.And(mine, own))], [value])


class _AsTheyLie(_WgmmaWeightGradient):
    """Rows are copied from where they are."""

    def _produce(self) -> None:
        w, tile = self.w, self.tile
        self.chunk, self.row = w.bind(self.tx % CHUNKS), w.bind(self.tx // CHUNKS)
        into = w.bind(tirx.Cast("uint32", SWIZZLE_128.offset(self.row, self.chunk)))
        with w.loop(self.count) as turn, self._filling(turn) as slot:
            stage = w.bind(self.base + into + tirx.Cast("uint32", slot) * uint32(tile.stage_bytes))
            self._copy_both(stage, w.keep((self.first + wide(turn)) * SQUARE + wide(self.row)))
        self._filled()
        if tile.adds > 1:  # all threads of the cluster, before the others hand out their sums and after
            self._meet_cluster()
            self._meet_cluster()

    def _copy(self, operand: Operand, target: TirExpr, row0: TirExpr, first: TirExpr, columns: int) -> None:
        w, step = self.w, COPIERS // CHUNKS
        assert operand.offset is not None
        left = w.keep(tirx.Cast("int32", tirx.min(w["rows"] - row0, int64(SQUARE))))
        inside = tirx.max(tirx.min(row0, w["rows"] - 1), int64(0))
        start = w.keep(inside * operand.place.row_stride + wide(self.head) * operand.apart + operand.offset)
        if operand.around is not None:
            self._copy_around(operand, operand.around, target, (inside, left), (first, columns))
            return
        for square in range(columns // SQUARE):
            at = w.bind(first + square * SQUARE + self.chunk * 8)
            reach = w.bind(tirx.max(tirx.min(operand.depth - at, 8), 0) * 2)
            place = w.bind(start + wide(tirx.Select(reach > 0, at, 0)))
            for i in range(SQUARE // step):
                here = left > i * step
                size = tirx.Cast("uint32", tirx.Select(here, reach, 0))
                source = place + tirx.Select(here, int64(i * step * operand.place.row_stride), int64(0))
                into = target + uint32(square * SQUARE_BYTES + i * step * ROW_BYTES)
                operand.copy(w, self.tile.precision, into, source, size)

    def _copy_around(
        self,
        operand: Operand,
        around: Around,
        target: TirExpr,
        rows: tuple[TirExpr, TirExpr],
        part: tuple[TirExpr, int],
    ) -> None:
        """The same of what taps see. rows: the thread's first one, and how many are left from there; part: the first
        column and how many."""
        w, step, stride = self.w, COPIERS // CHUNKS, operand.place.row_stride
        pixels = [around.pixel(w, rows[0] + i * step) for i in range(SQUARE // step)]
        for square in range(part[1] // SQUARE):
            look = around.look(w, w.bind(part[0] + square * SQUARE + self.chunk * 8))
            reach = w.bind(tirx.Cast("int32", look.reach(8)) * 2)
            place = w.bind((rows[0] + wide(look.rows)) * stride + wide(look.channel) + (operand.offset or 0))
            for i, pixel in enumerate(pixels):
                here = tirx.And(rows[1] > i * step, look.sees(pixel))
                size = tirx.Cast("uint32", tirx.Select(here, reach, 0))
                into = target + uint32(square * SQUARE_BYTES + i * step * ROW_BYTES)
                operand.copy(w, self.tile.precision, into, place + i * step * stride, size)


class _Packed(_WgmmaWeightGradient):
    """Squares are fetched by one thread."""

    arrivals = 1

    def _locate(self) -> None:
        w, tile = self.w, self.tile
        down, across = ceil_div(self.height, tile.high), ceil_div(self.width, tile.wide)
        clusters = ceil_div(self.lefts * down, tile.cluster) * across
        first, rank = I.cluster_id([tirx.Cast("int32", w["parts"] * clusters)]), I.cta_id_in_cluster([tile.cluster])
        cluster, self.rank = w.keep(first), w.keep(rank)  # special registers: read once
        self.head = tirx.const(0, "int32")
        self.column = w.keep(tirx.truncmod(cluster, across) * tile.wide)
        number = w.keep(tirx.truncmod(tirx.truncdiv(cluster, across), clusters // across) * tile.cluster + self.rank)
        self.there = number < self.lefts * down
        number = w.keep(tirx.min(number, self.lefts * down - 1))
        self.group = w.keep(tirx.truncdiv(number, down))
        self.line = w.keep(tirx.truncmod(number, down) * tile.high)
        self.written = self.part = w.keep(wide(tirx.truncdiv(cluster, clusters)))

    def _produce(self) -> None:
        with self.w.when(tirx.EQ(self.tx, 0)):
            self._fetch()

    def _fetch(self) -> None:
        w, tile = self.w, self.tile
        each = SQUARE_BYTES // SIZES[tile.compute]  # elements of a square
        own = squares(self.height)
        place = wide(self.group * own + tirx.truncdiv(self.line, SQUARE)) * each
        left = w.keep(self.first * (self.lefts * own * each) + place)
        part = tile.wide // tile.cluster  # columns that this block fetches
        place = wide(self.column + self.rank * part) * (each // SQUARE)
        right = w.keep(self.first * (squares(self.width) * each) + place)
        with w.loop(self.count) as turn:
            slot = w.bind(self._slot(turn))
            self._wait(self._empty(slot), (turn // tile.stages + 1) % 2)
            full = w.bind(self._full(slot))
            w.do(I.ptx["mbarrier.arrive.expect_tx.shared.b64"](full, uint32(tile.stage_bytes)))
            stage = w.bind(self.base + tirx.Cast("uint32", slot) * uint32(tile.stage_bytes))
            source = w["a"].ptr_to([left + wide(turn) * (self.lefts * own * each)])
            bulk_copy(w, stage, source, uint32(tile.right_at), full)
            target = stage + uint32(tile.right_at) + tirx.Cast("uint32", self.rank * (part * ROW_BYTES))
            source = w["b"].ptr_to([right + wide(turn) * (squares(self.width) * each)])
            bulk_copy(w, target, source, uint32(part * ROW_BYTES), full, tile.cluster)


# --- packing ---------------------------------------------------------------------------------------------------------


def pack_kernel(name: str, operand: Operand, precision: str, *, stage_squares: int, first: int) -> Kernel:
    """Fill squares `first` and further ones of every stage, which has `stage_squares`; scalar: rows, at least 1.

    A square is 8192 bytes: 64 columns of the operand by a stage's rows, in the 128-byte swizzle of wgmma. Of 16 bits a
    line is a row, 64 of them in a stage; of tf32, which wgmma takes along K alone, a line is a column, of 32 rows, and
    numbers are rounded. Zeros stand beyond the last row and the last column."""
    dtype, turned = storage(precision), precision == "tf32"
    pointers = [(operand.name, operand.place.dtype), ("packed", dtype)]

    def body(w: Writer) -> None:
        own, deep = squares(operand.depth), rows_of_stage(precision)
        stages = tirx.truncdiv(w["rows"] + (deep - 1), int64(deep))
        cta, tx = w.keep(I.cta_id([tirx.Cast("int32", stages * own)])), I.thread_id([PACKERS])
        stage, square = w.keep(tirx.truncdiv(cta, own)), w.keep(tirx.truncmod(cta, own))
        arena = I.alloc_buffer((deep * PITCH if turned else SQUARE_BYTES,), "uint8", scope="shared", align=128)
        base = w.bind(I.cuda.cvta_generic_to_shared(arena.ptr_to([0])))
        _load_square(w, operand, dtype, (stage, square), tx, base)
        target = (tirx.Cast("int64", stage) * stage_squares + (first + tirx.Cast("int64", square))) * (
            SQUARE_BYTES // SIZES[dtype]
        )
        for i in range(PIECES):
            (_store_transposed if turned else _store_piece)(w, w.keep(target), tx + i * PACKERS, base)

    return write(name, pointers, [("rows", "int64")], body, threads=PACKERS)


def _load_square(w: Writer, operand: Operand, dtype: str, at: tuple[Expr, Expr], tx: Expr, base: Expr) -> None:
    """A square's rows to shared memory, as they lie."""
    assert operand.offset is not None
    size = SIZES[dtype]
    chunk = 16 // size
    across = SQUARE // chunk
    deep, pitch = PIECES * PACKERS // across, PITCH if size == 4 else ROW_BYTES
    column = w.bind(at[1] * SQUARE + tirx.truncmod(tx, across) * chunk)
    reach = w.bind(tirx.max(tirx.min(operand.depth - column, chunk), 0) * size)
    for i in range(PIECES):
        line = w.bind(tirx.truncdiv(tx, across) + i * (PACKERS // across))
        row = w.bind(tirx.Cast("int64", at[0]) * deep + tirx.Cast("int64", line))
        here = w.keep(tirx.Cast("int32", tirx.And(row < w["rows"], reach > 0)))
        place = row * operand.place.row_stride + tirx.Cast("int64", column) + operand.offset
        source = tirx.Select(here > 0, place, int64(operand.offset))
        target = base + tirx.Cast("uint32", line * pitch + tirx.truncmod(tx, across) * 16)
        operand.copy(w, dtype, target, source, tirx.Cast("uint32", here * reach))
    w.do(I.ptx["cp.async.commit_group"]())
    w.do(I.ptx["cp.async.wait_group"](0))
    w.do(I.cuda.cta_sync())


def _store_piece(w: Writer, target: Expr, piece: Expr, base: Expr) -> None:
    """16 bytes of a row."""
    four = w.tile(4, dtype="uint32").flat
    line, chunk = tirx.truncdiv(piece, CHUNKS), tirx.truncmod(piece, CHUNKS)
    w.do(I.ptx["ld.shared.v4.b32"](*four, base + tirx.Cast("uint32", piece * 16)))
    to = line * (ROW_BYTES // 2) + SWIZZLE_128.piece(tirx.truncmod(line, CHUNKS), chunk) * 8
    w.do(I.ptx["st.global.v4.b32"](w["packed"].ptr_to([target + tirx.Cast("int64", to)]), *four))


def _store_transposed(w: Writer, target: Expr, piece: Expr, base: Expr) -> None:
    """Four rows of a column, rounded. Two neighbouring lanes have 32 bytes of a line."""
    words, value = w.tile(4, dtype="uint32").flat, w.local(1)
    pair, odd = tirx.truncdiv(piece, 2), tirx.truncmod(piece, 2)
    line, chunk = tirx.truncmod(pair, SQUARE), tirx.truncdiv(pair, SQUARE) * 2 + odd
    source = w.bind(base + tirx.Cast("uint32", chunk * (4 * PITCH) + line * 4))
    for z in range(4):
        w.do(I.ptx["ld.shared.f32"](value[0], source + uint32(z * PITCH)))
        w.do(I.ptx["cvt.rna.tf32.f32"](words[z], value[0]))
    to = line * (ROW_BYTES // 4) + SWIZZLE_128.piece(tirx.truncmod(line, CHUNKS), chunk) * 4
    place = w["packed"].ptr_to([target + tirx.Cast("int64", to)])
    w.do(I.ptx["st.global.v4.b32"](place, *words))
