"""A matrix and its gradient made again in blocks of 16 steps, on tensor cores, for what backward reads of them.

In: a `Pair`. Out: `BlocksAgain`, whose kernel has a warp for each part of the time, batch row, head and 16 or 32 keys.
Before each part the tape has the matrix, and behind it the backward recurrence left the gradient. A warp takes the
matrix through the part, a block at a time, and keeps it before each; then it takes the gradient back, and of each block
adds up what steps read of the two: of what was there before the block, by products with all vectors of the block at
once; of what steps of the block wrote, by products of the vectors with each other (`block_products.py`), weighted by
columns and decays, a lane for each key (`block_keys.py`). What steps write is known: nothing is solved.

    S = decay * S + sum over writes of column * row           forward
    output = sum over values of (vector * S before the step)  or of G after it
    G = decay * G + sum over writes of column * row           backward

Expected of a part of 64 steps, 64 keys and values, one write and two: 0.4 us of a multiprocessor, against 12 us step by
step. Source: chunk forms as Yang et al. 2024, "Gated Linear Attention Transformers with Hardware-Efficient Training".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, converted, write
from tvm_rnn.cuda.codegen.register_tile import RegisterTile
from tvm_rnn.cuda.codegen.vector_access import pack
from tvm_rnn.cuda.gemm.operands import COPY, COPY_PIECE
from tvm_rnn.cuda.layer.packed_layout import SIZES, ceil_div
from tvm_rnn.cuda.layer.regime import FOREVER, MASK_POINTERS, MASK_SCALARS
from tvm_rnn.graph.scalar_cuda import flavour
from tvm_rnn.tir.expr import Buffer, TirExpr
from tvm_rnn.tir.index import uint32, wide

from .block_keys import KeySums, Steps
from .block_products import Left, Products
from .blocks_layout import PAD, STAGES, BlocksLayout, is_column
from .chunk_tile import BLOCK, TRIANGLE_PITCH, piece_bytes
from .recurrence import Rows
from .steps_again import BOTH, EVERY, GRADIENT, STATE, marks_name

UNROLLED = (8, 4, 2, 1)  # copies of a lane in a row
FOUR_BYTES = 4  # an asynchronous copy has at least
ZERO, ONE = tirx.const(0.0, "float32"), tirx.const(1.0, "float32")


@dataclass(frozen=True)
class BlocksAgain(BlocksLayout):
    """Its kernels take the pair's pointers, then steps and batch; `reset` has flags of all steps, the first too."""

    @cached_property
    def kernels(self) -> tuple[Kernel, Kernel]:
        """Without and with lengths and resets."""
        return self._kernel(False), self._kernel(True)

    def _kernel(self, masked: bool) -> Kernel:
        def run(w: Writer) -> None:
            with flavour(self.pair.precision):
                _Body(w, self, masked).run()

        pointers = (*self.pair.pointers, *(MASK_POINTERS if masked else ()))
        scalars = (("steps", "int32"), ("batch", "int32"), *(MASK_SCALARS if masked else ()))
        name = f"{self.name}_masked" if masked else self.name
        return write(name, pointers, scalars, run, threads=32, shared_bytes=self.shared_bytes)


class _Place:
    """Which part of the time, row, head and keys a warp has, and which steps the row has there."""

    def __init__(self, w: Writer, layout: BlocksLayout, masked: bool) -> None:
        self.w, self.layout, self.masked, own = w, layout, masked, layout.pair
        parts = tirx.truncdiv(w["steps"] + (EVERY - 1), EVERY)
        grid = wide(w["batch"]) * wide(parts) * (layout.tiles * own.heads)
        block = w.keep(I.cta_id([tirx.Cast("int32", grid)]))
        self.lane = w.keep(I.thread_id([32]))
        self.key0 = w.keep(tirx.truncmod(block, layout.tiles) * layout.keys)
        rest = w.keep(tirx.truncdiv(block, layout.tiles))
        self.head, self.number = w.keep(tirx.truncmod(rest, own.heads)), w.keep(tirx.truncdiv(rest, own.heads))
        self.row = w.keep(tirx.truncmod(self.number, w["batch"]))
        self.first = w.keep(tirx.truncdiv(self.number, w["batch"]) * EVERY)
        self.count = w.keep(tirx.min(w["steps"] - self.first, EVERY))
        self.limit = self._limit()
        self.own = w.keep(self.lane % layout.keys)  # the lane's key, of the warp's
        self.key = w.keep(self.key0 + self.own)
        self.there = w.bind(self.key < own.keys)
        outputs = {f"output_{i}": read.output for i, read in enumerate(own.reads)}
        self.base = {name: self._base(rows) for name, rows in {**own.operands, **outputs}.items()}

    def _base(self, rows: Rows) -> TirExpr:
        head = tirx.truncdiv(self.head, rows.group) * rows.width
        return self.w.keep(wide(self.row) * rows.stride + (rows.offset + wide(head)))

    def _limit(self) -> TirExpr:
        """Steps of the part that the row has."""
        w = self.w
        if not self.masked:
            return self.count
        ends = w.local(1, "int32")
        w.store(ends, tirx.const(FOREVER, "int32"), 0)
        with w.when(tirx.NE(w["has_lengths"], tirx.const(0, "int32"))):
            most = tirx.Min(w["lengths"][wide(self.row)], tirx.const(FOREVER, "int64"))
            w.store(ends, tirx.Cast("int32", most), 0)
        self.end = ends[0]
        return w.keep(tirx.max(tirx.min(self.count, ends[0] - w["start"] - self.first), 0))

    def at(self, name: str, rows: Rows, step: TirExpr) -> TirExpr:
        """Where an operand's vector of a step of the part begins."""
        return self.base[name] + (wide(self.first) + wide(step)) * wide(self.w["batch"]) * rows.stride

    def kept(self, step: TirExpr) -> TirExpr:
        """0 where a step of the part begins with nothing, else 1."""
        w, found = self.w, self.w.local(1)
        w.store(found, tirx.const(1.0, "float32"), 0)
        time = w.keep(w["start"] + self.first + step)
        known = tirx.And(time < w["total"], time < self.end)
        with w.when(tirx.And(tirx.NE(w["has_reset"], tirx.const(0, "int32")), known)):
            flag = w["reset"][wide(time) * wide(w["batch"]) + wide(self.row)]
            with w.when(tirx.NE(tirx.Cast("int32", flag), tirx.const(0, "int32"))):
                w.store(found, tirx.const(0.0, "float32"), 0)
        return found[0]


class _Body:
    """matrices: [tile of 16 keys][8 values][4], as sums of mma.sync lie."""

    def __init__(self, w: Writer, layout: BlocksAgain, masked: bool) -> None:
        self.w, self.layout, self.pair = w, layout, layout.pair
        self.place = _Place(w, layout, masked)
        arena = I.alloc_buffer((layout.shared_bytes,), "uint8", scope="shared.dyn", align=128)
        self.base = w.bind(I.cuda.cvta_generic_to_shared(arena.ptr_to([0])))
        words = layout.shared_bytes // 2
        self.words = I.decl_buffer((words,), self.pair.precision, data=arena.data, scope="shared.dyn")
        self.products = Products(w, layout, self.base, self.place.lane)
        row = tirx.Cast("uint32", self.place.own * (TRIANGLE_PITCH * 4) + layout.products_at)
        self.sums = KeySums(w, w.keep(self.base + row), w.bind(self.base + uint32(layout.scores_at)))

    # --- the walk --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        w, own, place = self.w, self.pair, self.place
        blocks = w.keep(tirx.truncdiv(place.limit + (BLOCK - 1), BLOCK))
        early = w.keep(tirx.max(blocks - 1, 0) if own.state is not None else tirx.const(0, "int32"))
        every, states = [*self.layout.held], self.layout.of_state()
        with w.when(early > 0):
            self._ask(tirx.const(0, "int32"), tirx.const(0, "int32"), states)
        with w.when(tirx.And(tirx.EQ(early, 0), blocks > 0)):
            self._ask(tirx.const(0, "int32"), w.keep(blocks - 1), every)
        w.do(I.ptx["cp.async.commit_group"]())
        if own.state is not None:
            state = self._load(STATE)
            with w.loop(early) as block:
                with w.when(block + 1 < early):
                    self._ask(w.keep(block + 1), w.keep(block + 1), states)
                with w.when(tirx.EQ(block + 1, early)):
                    self._ask(early, early, every)
                with self._turn(block):
                    self._forward(state, block)
            self.products.keep(state, self._kept(early))
        gradient = None if own.gradient is None else self._load(GRADIENT)
        with w.loop(blocks) as i:
            block = w.keep(blocks - 1 - i)
            with w.when(block > 0):
                self._ask(w.keep(early + i + 1), w.keep(block - 1), every)
            with self._turn(w.keep(early + i)):
                self._back(gradient, block)
        with w.loop(place.count - tirx.min(blocks * BLOCK, place.count)) as late:
            step = w.bind(tirx.min(blocks * BLOCK, place.count) + late)
            for i in range(len(own.reads)):
                self._put(i, step, ZERO)

    @contextmanager
    def _turn(self, number: TirExpr) -> Iterator[None]:
        """The block whose operands were asked for before the last ones."""
        w = self.w
        w.do(I.ptx["cp.async.commit_group"]())
        w.do(I.ptx["cp.async.wait_group"](1))
        w.do(I.cuda.warp_sync())
        stage = w.keep(number % STAGES * self.layout.stage_bytes)
        self.stage = stage
        self.products.enter(w.keep(self.base + tirx.Cast("uint32", stage)))
        yield
        w.do(I.cuda.warp_sync())

    def _kept(self, block: TirExpr) -> TirExpr:
        """Where a lane has the matrix before a block."""
        own = block * self.layout.kept_bytes + self.place.lane * 16 + self.layout.kept_at
        return self.w.keep(self.base + tirx.Cast("uint32", own))

    def _forward(self, state: RegisterTile, block: TirExpr) -> None:
        """The matrix through a block; it is kept before."""
        self.products.keep(state, self._kept(block))
        self._make(STATE, state, self._steps(STATE, self.w.keep(block * BLOCK)))

    def _back(self, gradient: RegisterTile | None, block: TirExpr) -> None:
        """What is read of a block, then the gradient before it."""
        w, own, first = self.w, self.pair, self.w.keep(block * BLOCK)
        steps = {name: self._steps(name, first) for name in own.made}
        left: dict[str, Left] = {} if own.state is None else {STATE: self.products.kept(self._kept(block))}
        left |= {} if gradient is None else {GRADIENT: self.products.packed(gradient)}
        for i, read in enumerate(own.reads):
            if read.of == BOTH:
                assert gradient is not None
                found = self._both(steps, left, self.products.both(left[STATE], gradient))
            else:
                found = self._read(i, read.of, steps[read.of], left[read.of])
            for t in range(BLOCK):
                step = w.bind(first + t)
                with w.when(step < self.place.count):
                    self._put(i, step, tirx.Select(step < self.place.limit, found[t], ZERO))
            w.do(I.cuda.warp_sync())
        if gradient is not None:
            self._make(GRADIENT, gradient, steps[GRADIENT])

    # --- a block ---------------------------------------------------------------------------------------------------

    def _read(self, i: int, of: str, steps: Steps, left: Left) -> Buffer:
        """A read-out of a matrix, of all steps."""
        self.products.of_matrix(left, f"vector_{i}")
        for number in range(len(steps.columns)):
            self.products.scores(f"{of}_row_{number}", f"vector_{i}", number)
        self.w.do(I.cuda.warp_sync())
        return self.sums.read(steps, of == GRADIENT)

    def _both(self, steps: dict[str, Steps], left: dict[str, Left], begin: list[list[TirExpr]]) -> Buffer:
        """The product of the two matrices, of all steps. begin: of the two at the block's borders."""
        w, products, state, gradient = self.w, self.products, steps[STATE], steps[GRADIENT]
        reads, ends = w.local(BLOCK), list[Buffer]()
        for t in range(BLOCK):
            w.store(reads, ZERO, t)
        for j, column in enumerate(gradient.columns):
            products.of_matrix(left[STATE], f"{GRADIENT}_row_{j}")
            for i in range(len(state.columns)):
                products.scores(f"{STATE}_row_{i}", f"{GRADIENT}_row_{j}", i * len(gradient.columns) + j)
            w.do(I.cuda.warp_sync())
            row = self.sums.row()
            for t in range(BLOCK):
                w.store(reads, reads[t] + column[t] * row[t], t)
            w.do(I.cuda.warp_sync())
        for i in range(len(state.columns)):
            products.of_matrix(left[GRADIENT], f"{STATE}_row_{i}")
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

    def _make(self, name: str, matrix: RegisterTile, steps: Steps) -> None:
        """A matrix behind a block; the gradient, before it."""
        w, layout = self.w, self.layout
        factors, total = self.sums.factors(steps, name == GRADIENT)
        if steps.decays is not None:
            self.products.scale(matrix, w.keep(total))
        own = tirx.Cast("uint32", self.place.own * layout.scaled_pitch + layout.scaled_at)
        at = w.bind(self.base + own)
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

    def _steps(self, name: str, first: TirExpr) -> Steps:
        """Of a block's steps, of a lane's key. first: the block's first, in the part."""
        w, made, place = self.w, self.pair.made[name], self.place
        keeps = decays = None
        if place.masked:
            keeps = w.local(BLOCK)
            for t in range(BLOCK):
                w.store(keeps, place.kept(w.bind(first + (t + int(name == GRADIENT)))), t)
        if made.decay is not None or keeps is not None:
            decays = w.local(BLOCK)
            for t in range(BLOCK):
                w.store(decays, ONE if made.decay is None else self._decay(name, made.decay, w.bind(first + t)), t)
                if keeps is not None:
                    w.store(decays, decays[t] * keeps[t], t)
        columns = []
        for i in range(len(made.writes)):
            column = f"{name}_column_{i}"
            pitch, at = self.layout.pitch(column), self.layout.at(column)
            own = w.keep(tirx.truncdiv(self.stage + at, 2) + place.own)
            numbers = w.local(BLOCK)
            for t in range(BLOCK):
                w.store(numbers, tirx.Cast("float32", self.words[own + t * (pitch // 2)]), t)
            columns.append(numbers)
        return Steps(decays, keeps, columns)

    def _decay(self, name: str, rows: Rows, step: TirExpr) -> TirExpr:
        """Of a lane's key; 1 behind the row's last step."""
        w, own, place = self.w, f"{name}_decay", self.place
        wide_row = rows.width > 1
        found = w.local(1)
        w.store(found, ONE, 0)
        inside = step < place.limit
        with w.when(tirx.And(inside, place.there) if wide_row else inside):
            at = place.at(own, rows, step)
            w.store(found, converted(w[own][at + wide(place.key) if wide_row else at], "float32"), 0)
        return found[0]

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
        w, own, layout, place = self.w, self.pair, self.layout, self.place
        matrix = w.tile(layout.high, 2 * layout.deep, 4)
        base = w.keep((wide(place.number) * own.heads + wide(place.head)) * (own.keys * own.values))
        matrix.fill(ZERO)
        for m in range(layout.high):
            for n in range(2 * layout.deep):
                for i in range(4):
                    key = w.bind(place.key0 + (m * BLOCK + 8 * (i // 2)) + place.lane // 4)
                    value = w.bind(place.lane % 4 * 2 + (8 * n + i % 2))
                    with w.when(tirx.And(key < own.keys, value < own.values)):
                        at = value * own.keys + key if own.keys_last else key * own.values + value
                        matrix.store(w[marks_name(name)][base + wide(at)], m, n, i)
        return matrix

    def _ask(self, number: TirExpr, block: TirExpr, names: Sequence[str]) -> None:
        """Start the copies of a block's operands to the stage of that turn; zeros where there is nothing."""
        w = self.w
        stage, first = w.keep(number % STAGES * self.layout.stage_bytes), w.keep(block * BLOCK)
        for name in names:
            rows = self.layout.held[name]
            size = max(piece_bytes(rows), SIZES[rows.dtype])
            across = (self.layout.pitch(name) - PAD) // size
            turns = ceil_div(BLOCK * across, 32)
            group = next(n for n in UNROLLED if turns % n == 0)
            with w.loop(turns // group) as outer:
                for inner in range(group):
                    piece = w.bind((outer * group + inner) * 32 + self.place.lane)
                    with nullcontext() if BLOCK * across % 32 == 0 else w.when(piece < BLOCK * across):
                        line, column = tirx.truncdiv(piece, across), tirx.truncmod(piece, across)
                        self._copy(name, size, (stage, w.bind(line), w.bind(column)), first)

    def _copy(self, name: str, size: int, piece: tuple[TirExpr, TirExpr, TirExpr], first: TirExpr) -> None:
        """So many bytes of a step's vector. piece: the stage, which step of the block, which piece of the vector."""
        w, rows, place, (stage, line, number) = self.w, self.layout.held[name], self.place, piece
        each = SIZES[rows.dtype]
        step = w.bind(first + line)
        column = w.bind(number * (size // each) + (place.key0 if is_column(name) else 0))
        left: TirExpr = tirx.max(tirx.min((rows.width - column) * each, size), 0)
        inside = w.bind(tirx.Select(step < place.limit, left, 0))
        there = inside > 0
        source = place.at(name, rows, tirx.Select(there, step, 0)) + wide(tirx.Select(there, column, 0))
        to = stage + line * self.layout.pitch(name) + number * size + self.layout.at(name)
        if size < FOUR_BYTES:
            value = w.local(1, rows.dtype)
            w.store(value, tirx.const(0.0, rows.dtype), 0)
            with w.when(there):
                w.store(value, w[name][source], 0)
            w.store(self.words, value[0], tirx.truncdiv(to, 2))
            return
        how = COPY if size == 16 else COPY_PIECE
        address = self.base + tirx.Cast("uint32", to)
        w.do(I.ptx[how](address, w[name].ptr_to([source]), size, tirx.Cast("uint32", inside)))
