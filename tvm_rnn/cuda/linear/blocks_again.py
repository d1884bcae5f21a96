"""A matrix and its gradient made again in blocks of 16 steps, on tensor cores, for what backward reads of them.

In: a `Pair`. Out: `BlocksAgain`, whose kernel has a block of threads for each part of the time, batch row, head and 16
or 32 keys. Before each part the tape has the matrix, and behind it the backward recurrence left the gradient. A warp
has 16 steps of the part: it takes the matrix to these, and the gradient back to them, 16 steps at a time; then it adds
up what its steps read of the two: of what was there before, by products with all vectors at once; of what steps of the
block wrote, by products of the vectors with each other (`block_products.py`), weighted by columns and decays, a lane
for each key (`block_keys.py`). What steps write is known: nothing is solved.

    S = decay * S + sum over writes of column * row           forward
    output = sum over values of (vector * S before the step)  or of G after it
    G = decay * G + sum over writes of column * row           backward

A warp that went through all four blocks of a part, one after the other, took 50 us on an H100 (64 keys and values, one
write and two), and a multiprocessor held five: 377 us for 131,072 steps, where these take 275, and step by step 1,900.
Source: chunk forms as Yang et al. 2024, "Gated Linear Attention Transformers with Hardware-Efficient Training".
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, converted
from tvm_rnn.cuda.codegen.register_tile import RegisterTile
from tvm_rnn.cuda.codegen.vector_access import pack
from tvm_rnn.cuda.layer.packed_layout import ceil_div
from tvm_rnn.tir.expr import Buffer, TirExpr
from tvm_rnn.tir.index import uint32, wide

from .block_keys import KeySums, Steps
from .block_products import Products
from .blocks_layout import BlocksLayout
from .chunk_tile import BLOCK, TRIANGLE_PITCH
from .pair import BOTH, EVERY, GRADIENT, STATE, marks_name
from .part_operands import Operands, kernels_of_parts
from .part_place import Place

UNROLLED = (8, 4, 2, 1)  # copies of a lane in a row
FOUR_BYTES = 4  # an asynchronous copy has at least
ZERO, ONE = tirx.const(0.0, "float32"), tirx.const(1.0, "float32")


@dataclass(frozen=True)
class BlocksAgain(BlocksLayout):
    """Its kernels take the pair's pointers, then steps and batch; `reset` has flags of all steps, the first too."""

    @cached_property
    def kernels(self) -> tuple[Kernel, Kernel]:
        """Without and with lengths and resets."""
        return kernels_of_parts(self, lambda w, masked: _Body(w, self, masked).run())


class _Place(Place):
    """A lane has a key of the warp's."""

    def __init__(self, w: Writer, layout: BlocksLayout, masked: bool) -> None:
        super().__init__(w, layout, masked)
        self.own = w.keep(self.lane % layout.keys)
        self.key = w.keep(self.key0 + self.own)
        self.there = w.bind(self.key < layout.pair.keys)


class _Body:
    """What a block of threads does."""

    def __init__(self, w: Writer, layout: BlocksAgain, masked: bool) -> None:
        self.w, self.layout, self.pair = w, layout, layout.pair
        self.place = place = _Place(w, layout, masked)
        self.operands = operands = Operands(w, layout, place)
        self.words, self.numbers = operands.words, operands.numbers
        own = tirx.Cast("uint32", place.warp * layout.warp_bytes + layout.warps_at)
        self.own = w.keep(operands.base + own)
        self.products = Products(w, layout, operands.base, self.own, place.lane)
        row = tirx.Cast("uint32", place.own * (TRIANGLE_PITCH * 4))
        self.sums = KeySums(w, w.keep(self.own + row), w.bind(self.own + uint32(layout.scores_at)))

    def run(self) -> None:
        w, place = self.w, self.place
        self._fill()
        w.do(I.ptx["cp.async.commit_group"]())
        w.do(I.ptx["cp.async.wait_group"](0))
        w.do(I.cuda.cta_sync())
        blocks = w.keep(tirx.truncdiv(place.limit + (BLOCK - 1), BLOCK))
        with w.when(place.warp < blocks):
            self._reads(blocks)
        with w.when(place.warp >= blocks), w.loop(BLOCK) as t:
            step = w.bind(place.warp * BLOCK + t)
            with w.when(step < place.count):
                for i in range(len(self.pair.reads)):
                    self._put(i, step, ZERO)

    def _reads(self, blocks: TirExpr) -> None:
        """All results of the warp's steps."""
        w, own, place = self.w, self.pair, self.place
        packed: dict[str, RegisterTile] = {}
        begin: list[list[TirExpr]] = []
        if own.state is not None:
            state = self._load(STATE)
            with w.loop(place.warp) as block:
                self._make(STATE, state, block)
            packed[STATE] = self.products.packed(state)
        if own.gradient is not None:
            gradient = self._load(GRADIENT)
            with w.loop(blocks - 1 - place.warp) as late:
                self._make(GRADIENT, gradient, w.keep(blocks - 1 - late))
            packed[GRADIENT] = self.products.packed(gradient)
            if any(read.of == BOTH for read in own.reads):
                begin = self.products.both(packed[STATE], gradient)
        self.products.enter(place.warp)
        for i, read in enumerate(own.reads):
            found = self._both(packed, begin) if read.of == BOTH else self._read(i, read.of, packed[read.of])
            for t in range(BLOCK):
                step = w.bind(place.warp * BLOCK + t)
                with w.when(step < place.count):
                    self._put(i, step, tirx.Select(step < place.limit, found[t], ZERO))
            w.do(I.cuda.warp_sync())

    # --- a block ---------------------------------------------------------------------------------------------------

    def _read(self, i: int, of: str, matrix: RegisterTile) -> Buffer:
        """A read-out of a matrix, of all steps."""
        steps = self._steps(of, self.place.warp)
        self.products.of_matrix(matrix, f"vector_{i}")
        for number in range(len(steps.columns)):
            self.products.scores(f"{of}_row_{number}", f"vector_{i}", number)
        self.w.do(I.cuda.warp_sync())
        return self.sums.read(steps, of == GRADIENT)

    def _both(self, packed: dict[str, RegisterTile], begin: list[list[TirExpr]]) -> Buffer:
        """The product of the two matrices, of all steps. begin: of the two at the block's borders."""
        w, products = self.w, self.products
        state, gradient = (self._steps(name, self.place.warp) for name in (STATE, GRADIENT))
        reads, ends = w.local(BLOCK), list[Buffer]()
        for t in range(BLOCK):
            w.store(reads, ZERO, t)
        for j, column in enumerate(gradient.columns):
            products.of_matrix(packed[STATE], f"{GRADIENT}_row_{j}")
            for i in range(len(state.columns)):
                products.scores(f"{STATE}_row_{i}", f"{GRADIENT}_row_{j}", i * len(gradient.columns) + j)
            w.do(I.cuda.warp_sync())
            row = self.sums.row()
            for t in range(BLOCK):
                w.store(reads, reads[t] + column[t] * row[t], t)
            w.do(I.cuda.warp_sync())
        for i in range(len(state.columns)):
            products.of_matrix(packed[GRADIENT], f"{STATE}_row_{i}")
            w.do(I.cuda.warp_sync())
            ends.append(self.sums.row())
            w.do(I.cuda.warp_sync())
        return self.sums.both(state, gradient, self._mine(begin), ends, reads)

    def _mine(self, sums: list[list[TirExpr]]) -> TirExpr:
        """The lane's key's, of sums that lanes have of keys as they lie in tiles."""
        w, own = self.w, self.place.own
        everyone, found = tirx.const(0xFFFFFFFF, "uint32"), w.local(1)
        for m, two in enumerate(sums):
            for half, one in enumerate(two):
                source = w.bind(own % 8 * 4)
                value = w.keep(tirx.call_extern("float32", "__shfl_sync", everyone, one, source, 32))
                mine = tirx.EQ(tirx.truncdiv(own, 8), 2 * m + half)
                w.store(found, tirx.Select(mine, value, found[0]) if m or half else value, 0)
        return found[0]

    def _make(self, name: str, matrix: RegisterTile, block: TirExpr) -> None:
        """A matrix behind a block; the gradient, before it."""
        w, steps = self.w, self._steps(name, block)
        self.products.enter(block)
        factors, total = self.sums.factors(steps, name == GRADIENT)
        if steps.decays is not None:
            self.products.scale(matrix, w.keep(total))
        at = w.bind(self.own + tirx.Cast("uint32", self.place.own * self.layout.scaled_pitch))
        for i, column in enumerate(steps.columns):
            words = w.tile(2, 4, dtype="uint32")
            for n in range(BLOCK // 2):
                two = [column[t] * factors[t] for t in (2 * n, 2 * n + 1)]
                pack(w, self.pair.precision, words[n // 4][n % 4], *two)
            for half in range(2):
                w.do(I.ptx["st.shared.v4.b32"](at + uint32(16 * half), *words[half]))
            w.do(I.cuda.warp_sync())
            self.products.add_outer(matrix, f"{name}_row_{i}")
            w.do(I.cuda.warp_sync())

    def _steps(self, name: str, block: TirExpr) -> Steps:
        """Of a block's steps, of a lane's key."""
        made, layout, first = self.pair.made[name], self.layout, self.w.bind(block * BLOCK)
        keeps: Buffer | None = None
        if self.place.masked:
            keeps = self._numbers(layout.keeps_at // 4 + int(name == GRADIENT) + first, 1)
        decays = keeps
        if made.decay is not None:
            width = layout.decay_width(f"{name}_decay")
            at = first * width + layout.decay_at(f"{name}_decay") // 4
            decays = self._numbers(at + self.place.own if width > 1 else at, width, keeps)
        columns = [self._column(f"{name}_column_{i}", first) for i in range(len(made.writes))]
        return Steps(decays, keeps, columns)

    def _column(self, name: str, first: TirExpr) -> Buffer:
        """A column of 16 steps."""
        w, layout, found = self.w, self.layout, self.w.local(BLOCK)
        pitch = layout.pitch(name) // 2
        at = w.bind(first * pitch + layout.at(name) // 2 + self.place.own)
        for t in range(BLOCK):
            w.store(found, tirx.Cast("float32", self.words[at + t * pitch]), t)
        return found

    def _numbers(self, at: TirExpr, width: int, keeps: Buffer | None = None) -> Buffer:
        """Numbers of 16 steps, of a lane's key, times what the steps keep, if given."""
        w, found, first = self.w, self.w.local(BLOCK), self.w.bind(at)
        for t in range(BLOCK):
            value = self.numbers[first + t * width]
            w.store(found, value if keeps is None else value * keeps[t], t)
        return found

    # --- memory ----------------------------------------------------------------------------------------------------

    def _put(self, i: int, step: TirExpr, value: TirExpr) -> None:
        """A result of a lane's key."""
        w, place, output = self.w, self.place, self.pair.reads[i].output
        name = f"output_{i}"
        inside = tirx.And(place.there, place.key < output.width)
        with w.when(tirx.And(inside, place.lane < self.layout.keys)):
            w.store(w[name], converted(value, output.dtype), place.at(name, output, step) + wide(place.key))

    def _load(self, name: str) -> RegisterTile:
        """A matrix at the border of the part; 0 where there is none."""
        w, layout, place = self.w, self.layout, self.place
        matrix = w.tile(layout.high, 2 * layout.deep, 4)
        matrix.fill(ZERO)
        for m in range(layout.high):
            for n in range(2 * layout.deep):
                for i in range(4):
                    key = w.bind(place.key0 + (m * BLOCK + 8 * (i // 2)) + place.lane // 4)
                    value = w.bind(place.lane % 4 * 2 + (8 * n + i % 2))
                    there, at = place.border(key, value)
                    with w.when(there):
                        matrix.store(converted(w[marks_name(name)][at], "float32"), m, n, i)
        return matrix

    def _fill(self) -> None:
        """Start the copies of all steps' operands; numbers of steps."""
        w, layout, place, threads = self.w, self.layout, self.place, self.layout.threads
        self.operands.fill()
        for name, rows in layout.decays.items():
            width = layout.decay_width(name)
            with w.loop(ceil_div(EVERY * width, threads)) as turn:
                number = w.bind(turn * threads + place.thread)
                with nullcontext() if EVERY * width % threads == 0 else w.when(number < EVERY * width):
                    value = place.decay(name, rows, tirx.truncdiv(number, width), tirx.truncmod(number, width))
                    w.store(self.numbers, value, layout.decay_at(name) // 4 + number)
        if place.masked:
            with w.when(place.thread <= EVERY):
                w.store(self.numbers, place.kept(place.thread), layout.keeps_at // 4 + place.thread)
