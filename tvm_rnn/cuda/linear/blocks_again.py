"""A matrix and its gradient made again between blocks of 16 steps, for what backward reads of them.

In: a `Pair`. Out: `BlocksAgain`, whose kernel has a block of threads for each part of the time, batch row, head and up
to 64 keys, 16 to a warp. Before each part the tape has the matrix S, and behind it the backward recurrence left the
gradient G; both are multiplied with vectors of all steps at once, on tensor cores. What steps of a block wrote goes to
the products of all later steps (of G: earlier ones), by columns that are scaled to the block's border and by products
of the vectors with each other; behind that, products are those of the matrix at the border of each step's own block.
So no matrix is made. What is written in a step's own block is added up by a lane for each key and block
(`block_keys.py`). With A_b what is left of S behind block b, K_b its scaled columns, B_b and C_b the same of G:

    products of S with steps after block b = A_b (the same) + K_b <row, vector>
    <S, G> at the borders of a block       = <S, G> at the part's, times what is left behind each block between, plus
                                             the sum of K or C times products of that matrix with the rows written

    S = decay * S + sum over writes of column * row           forward
    output = sum over values of (vector * S before the step)  or of G after it
    G = decay * G + sum over writes of column * row           backward

Source: chunk forms as Yang et al. 2024, "Gated Linear Attention Transformers with Hardware-Efficient Training".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, converted
from tvm_rnn.cuda.codegen.register_tile import RegisterTile
from tvm_rnn.cuda.codegen.vector_access import pack, unpack
from tvm_rnn.tir.expr import Buffer, TirExpr
from tvm_rnn.tir.index import uint32, wide

from .block_borders import Borders
from .block_keys import KeySums, Steps, factors
from .block_products import ZERO, Products
from .blocks_layout import PRODUCT_PITCH, SCALED_PITCH, UNIT_BYTES, BlocksLayout
from .chunk_tile import BLOCK
from .pair import BOTH, EVERY, GRADIENT, STATE, Read
from .part_layout import SIDE
from .part_operands import Operands, kernels_of_parts
from .part_place import ONE, Place
from .recurrence import Rows

EVERYONE = tirx.const(0xFFFFFFFF, "uint32")
Sums = dict[str, RegisterTile]  # by vector, [tiles of 8 steps][4]


@dataclass(frozen=True)
class BlocksAgain(BlocksLayout):
    """Its kernels take the pair's pointers, then steps and batch; `reset` has flags of all steps, the first too."""

    @cached_property
    def kernels(self) -> tuple[Kernel, Kernel]:
        """Without and with lengths and resets."""
        return kernels_of_parts(self, lambda w, masked: _Body(w, self, masked).run())


class _Body:
    """What a block of threads does. own, key: a lane's key in the block and of all; a lane has two blocks of steps."""

    def __init__(self, w: Writer, layout: BlocksAgain, masked: bool) -> None:
        self.w, self.layout, self.pair = w, layout, layout.pair
        self.place = place = Place(w, layout, masked)
        self.operands = operands = Operands(w, layout, place)
        self.products, self.borders = Products(w, layout, operands.base, place), Borders(w, layout, place, operands)
        self.own = w.keep(place.warp * BLOCK + place.lane % BLOCK)
        self.key = w.keep(place.key0 + self.own)
        self.begins: list[list[TirExpr]] = []  # of each block, of the keys of a lane as sums lie

    def run(self) -> None:
        w, layout = self.w, self.layout
        self._fill(0)
        if self.place.masked:
            with w.loop(-(-(EVERY + 1) // layout.threads)) as turn:
                step = w.bind(turn * layout.threads + self.place.thread)
                with w.when(step <= EVERY):
                    w.store(self.operands.numbers, self.place.kept(step), layout.keeps_at // 4 + step)
            w.do(I.cuda.cta_sync())
        with self._blocks() as block:
            self._scale(block)
        sums, whole = self._multiply()
        w.do(I.cuda.cta_sync())
        self._carry(sums, whole)
        w.do(I.cuda.warp_sync())
        with self._blocks() as block:
            self._read(block)

    @contextmanager
    def _blocks(self) -> Iterator[TirExpr]:
        """The blocks of 16 steps that a lane has, one after the other."""
        with self.w.loop(SIDE // 2) as turn:
            yield self.w.keep(turn * 2 + self.place.lane // BLOCK)

    def _fill(self, piece: int) -> None:
        self.operands.fill(piece * self.layout.deep * BLOCK)
        self.w.do(I.ptx["cp.async.commit_group"]())
        self.borders.fill(piece)

    # --- a lane's key over a block ---------------------------------------------------------------------------------

    def _scale(self, block: TirExpr) -> None:
        """Columns scaled to the border of their block, and what is left behind it, to shared memory."""
        w, layout, base = self.w, self.layout, self.operands.base
        known: dict[str, Buffer] = {}
        for name, made in self.pair.made.items():
            steps = self._steps(name, block, known)
            found, total = factors(w, steps, name == GRADIENT)
            at = tirx.Cast("int32", block * layout.keys + self.own) + layout.left_at(name) // 4
            w.store(self.operands.numbers, total, at)
            for i in range(len(made.writes)):
                words = w.tile(2, 4, dtype="uint32")
                for n in range(BLOCK // 2):
                    two = [steps.columns[i][t] * found[t] for t in (2 * n, 2 * n + 1)]
                    pack(w, self.pair.precision, words[n // 4][n % 4], *two)
                own = self.own * SCALED_PITCH + block * (2 * BLOCK) + layout.scaled_at(name, i)
                place = w.keep(base + tirx.Cast("uint32", own))
                for half in range(2):
                    w.do(I.ptx["st.shared.v4.b32"](place + uint32(16 * half), *words[half]))

    def _steps(self, name: str, block: TirExpr, known: dict[str, Buffer]) -> Steps:
        """Of a block's steps, of a lane's key. known: decays that are there already."""
        w, made, layout, first = self.w, self.pair.made[name], self.layout, self.w.keep(block * BLOCK)
        keeps: Buffer | None = None
        if self.place.masked:
            keeps, at = w.local(BLOCK), w.keep(first + (layout.keeps_at // 4 + int(name == GRADIENT)))
            for t in range(BLOCK):
                w.store(keeps, self.operands.numbers[at + t], t)
        decays = keeps
        if made.decay is not None:
            own = layout.first(f"{name}_decay")
            if own not in known:
                known[own] = self._numbers(own, made.decay, first, ONE)
            decays = known[own]
            if keeps is not None:
                decays = w.local(BLOCK)
                for t in range(BLOCK):
                    w.store(decays, known[own][t] * keeps[t], t)
        columns = []
        for i, (rows, _) in enumerate(made.writes):
            columns.append(self._numbers(f"{name}_column_{i}", rows, first, ZERO))
            for t in range(BLOCK if rows.scale != 1.0 else 0):
                w.store(columns[i], columns[i][t] * rows.scale, t)
        if made.late and made.decay is not None:
            left = known[layout.first(f"{name}_decay")]
            for column in columns:
                for t in range(BLOCK):
                    w.store(column, column[t] * left[t], t)
        return Steps(decays, keeps, columns)

    def _numbers(self, name: str, rows: Rows, first: TirExpr, missing: TirExpr) -> Buffer:
        """Numbers of 16 steps, of a lane's key, from memory; something else where there are none."""
        w, place, found = self.w, self.place, self.w.local(BLOCK)
        raw = w.local(BLOCK, rows.dtype)  # all loads are on their way before the first is awaited
        key: TirExpr = tirx.min(self.key, rows.width - 1) if rows.width > 1 else tirx.const(0, "int32")
        begin = w.keep(place.at(name, rows, tirx.const(0, "int32")) + wide(key))
        step, last = w.keep(wide(w["batch"]) * rows.stride), w.keep(tirx.max(place.limit - 1, 0))
        inside = w.keep(tirx.Select(self.key < rows.width, place.limit, 0) if rows.width > 1 else place.limit)
        for t in range(BLOCK):
            w.store(raw, w[name][begin + step * wide(tirx.min(first + t, last))], t)
        for t in range(BLOCK):
            w.store(found, tirx.Select(first + t < inside, converted(raw[t], "float32"), missing), t)
        return found

    # --- products at the part's borders ----------------------------------------------------------------------------

    def _multiply(self) -> tuple[dict[str, Sums], RegisterTile]:
        """Products of each matrix with what reads it, of all steps; and of the two, of a lane's keys and values."""
        w, layout = self.w, self.layout
        sums = {name: {vector: w.tile(2 * SIDE, 4) for vector in layout.vectors[name]} for name in self.pair.made}
        whole = w.tile(1, 2)
        whole.fill(ZERO)
        for tile in (one for own in sums.values() for one in own.values()):
            tile.fill(ZERO)
        for piece in range(layout.pieces):
            if piece:
                w.do(I.cuda.cta_sync())
                self._fill(piece)
            w.do(I.ptx["cp.async.wait_group"](0))
            w.do(I.cuda.cta_sync())
            self.products.scores(more=piece > 0)
            borders = {name: self.borders.operand(name) for name in self.pair.made}
            if layout.sums:
                self.products.add_both(whole, borders[STATE], borders[GRADIENT])
            for name, own in sums.items():
                for vector, tile in own.items():
                    self.products.add(tile, borders[name], vector)
        for vector, tile in (item for own in sums.values() for item in own.items()):
            tile.scale(layout.scale(vector))
        return sums, whole

    # --- from block to block ---------------------------------------------------------------------------------------

    def _carry(self, sums: dict[str, Sums], whole: RegisterTile) -> None:
        """Products at the border of each step's own block, and of the two matrices at the borders of each block."""
        if self.layout.sums:
            self.begins = [list(whole[0])]
            for block in range(SIDE - 1, 0, -1):  # of the matrix before the part, and the gradient before the block
                self.begins.insert(0, self._behind(GRADIENT, block, self.begins[0], sums[STATE]))
        for block in range(SIDE - 1):
            self._hand_on(STATE, block, range(block + 1, SIDE), sums.get(STATE, {}))
        for block in range(SIDE - 1, -1, -1):
            if self.layout.sums:
                for before in range(block):
                    self.begins[block] = self._behind(STATE, before, self.begins[block], sums[GRADIENT])
            self._hand_on(GRADIENT, block, range(block), sums.get(GRADIENT, {}))
        for name, own in sums.items():
            for vector, tile in own.items():
                self.products.put(tile, self.layout.product_at(name, vector))
        if self.layout.sums:
            self._put_begins()

    def _hand_on(self, name: str, block: int, to: range, sums: Sums) -> None:
        """To products of other blocks' steps what a block leaves of them, and what it wrote."""
        if not sums or not to:
            return
        left = self.products.left(name, block)
        columns = [self.products.scaled(name, i, block) for i in range(len(self.layout.rows[name]))]
        for vector, tile in sums.items():
            for other in to:
                for n in (2 * other, 2 * other + 1):
                    for i in range(4):
                        tile.store(tile[n][i] * left[i // 2], n, i)
                for column, row in zip(columns, self.layout.rows[name], strict=True):
                    pair = (vector, row) if name == STATE else (row, vector)
                    self.products.add_written(tile, column, pair, (other, block))

    def _behind(self, name: str, block: int, before: Sequence[TirExpr], sums: Sums) -> list[TirExpr]:
        """The product of both, of one of them behind a block: what is left of it, and what was written, which products
        of the other one with the rows have. Lanes have parts of sums over steps."""
        w, left = self.w, self.products.left(name, block)
        found = [w.keep(one * by) for one, by in zip(before, left, strict=True)]
        for i, row in enumerate(self.layout.rows[name]):
            columns = self.products.scaled(name, i, block)
            for j, word in enumerate(columns[0]):
                own = sums[row][2 * block + j // 2][2 * (j % 2) : 2 * (j % 2) + 2]
                for value, product in zip(unpack(self.pair.precision, word), own, strict=True):
                    found[j % 2] = w.keep(found[j % 2] + value * product)
        return found

    def _put_begins(self) -> None:
        w, lane = self.w, self.place.lane
        for block, two in enumerate(self.begins):
            for half, value in enumerate(two):
                for turn in (1, 2):
                    value = w.keep(value + I.tvm_warp_shuffle_xor(EVERYONE, value, turn, 32, 32))
                with w.when(tirx.EQ(lane % 4, 0)):
                    own = self.products.key0 + lane // 4 + (8 * half + block * self.layout.keys)
                    w.store(self.operands.numbers, value, own + self.layout.begins_at // 4)

    # --- results ---------------------------------------------------------------------------------------------------

    def _read(self, block: TirExpr) -> None:
        """All results of a block's steps, of a lane's key."""
        w, base, known = self.w, self.operands.base, dict[str, Buffer]()
        steps = {name: self._steps(name, block, known) for name in self.pair.made}
        products = w.keep(base + tirx.Cast("uint32", self.own * PRODUCT_PITCH + block * (4 * BLOCK)))
        sums = KeySums(w, products, w.keep(base + tirx.Cast("uint32", block * UNIT_BYTES)))
        for i, read in enumerate(self.pair.reads):
            if read.of == BOTH:
                found = self._both(sums, steps, block)
            else:
                found = self._one(sums, steps[read.of], read.of, self.layout.first(f"vector_{i}"))
            self._store(i, read, block, found)

    def _one(self, sums: KeySums, steps: Steps, name: str, vector: str) -> Buffer:
        layout, rows = self.layout, self.layout.rows[name]
        at = layout.product_at(name, vector)
        if name == STATE:
            return sums.read(steps, at, [layout.score_at(vector, row) for row in rows])
        return sums.read_gradient(steps, at, [layout.score_at(row, vector) for row in rows])

    def _both(self, sums: KeySums, steps: dict[str, Steps], block: TirExpr) -> Buffer:
        w, layout = self.w, self.layout
        reads = w.local(BLOCK)
        for t in range(BLOCK):
            w.store(reads, ZERO, t)
        for column, row in zip(steps[GRADIENT].columns, layout.rows[GRADIENT], strict=True):
            found = sums.row(layout.product_at(STATE, row))
            for t in range(BLOCK):
                w.store(reads, reads[t] + column[t] * found[t], t)
        ends = [sums.row(layout.product_at(GRADIENT, row)) for row in layout.rows[STATE]]
        begin = w.keep(self.operands.numbers[block * layout.keys + self.own + layout.begins_at // 4])
        scores = [[layout.score_at(late, row) for late in layout.rows[GRADIENT]] for row in layout.rows[STATE]]
        return sums.both(steps[STATE], steps[GRADIENT], begin, ends, reads, scores)

    def _store(self, i: int, read: Read, block: TirExpr, found: Buffer) -> None:
        """A result of a lane's key, of 16 steps; 0 where the row has ended."""
        w, place, rows, first = self.w, self.place, read.output, self.w.keep(block * BLOCK)
        begin = w.keep(place.at(f"output_{i}", rows, first) + wide(self.key))
        step = w.keep(wide(w["batch"]) * rows.stride)
        inside = w.keep(tirx.Select(self.key < rows.width, place.count, 0))
        for t in range(BLOCK):
            with w.when(first + t < inside):
                value = tirx.Select(first + t < place.limit, found[t], ZERO)
                w.store(w[f"output_{i}"], converted(value, rows.dtype), begin + step * wide(t))
