"""A matrix and its gradient made again in whole parts of 64 steps, where a head decays as one.

In: a `Pair`. Out: `PartsAgain`, whose kernel has a block of threads for each part of the time, batch row and head.
Before each part the tape has the matrix S, and behind it the backward recurrence left the gradient G; both lie in
registers as left operands, 16 keys to a warp, and are multiplied with vectors of all steps at once. What steps of the
part wrote is added by scores, products of two steps' vectors, which the matrix and its gradient share.

With d_st what decays from after step s to before a later step t, A_t what is left of S before t, B_t of G after t, c
the constant that all columns are multiplied with:

    L_ts = c d_st <left_t, right_s>, s < t   left: reads S, or is written to G; right: is written to S, or reads G
    read of S by a left vector    A_t S left_t + sum over s < t of column_s L_ts
    read of G by a right vector   B_t G right_t + sum over r > t of column_r L_rt
    product of both               A_t B_t <S, G> + c A_t sum over r > t of d_tr column_r S left_r
                                  + c B_t sum over s < t of d_st column_s G right_s
                                  + c^2 sum over s < t < r of d_st d_tr <column_s, column_r> <left_r, right_s>

Source: chunk forms as Yang et al. 2024, "Gated Linear Attention Transformers with Hardware-Efficient Training".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, converted
from tvm_rnn.cuda.codegen.register_tile import RegisterTile
from tvm_rnn.cuda.codegen.vector_access import pack, unpack
from tvm_rnn.cuda.gemm.mma_sync import INSTRUCTIONS, LDMATRIX
from tvm_rnn.cuda.layer.matrix_operands import marks_dtype
from tvm_rnn.cuda.layer.packed_layout import ceil_div
from tvm_rnn.tir.expr import Expr, TirExpr
from tvm_rnn.tir.index import uint32, wide

from .chunk_products import TURNED
from .chunk_tile import BLOCK, piece_bytes
from .pair import BOTH, EVERY, GRADIENT, STATE, Read, marks_name
from .part_decays import Decays
from .part_layout import PAD, SIDE
from .part_operands import Operands, kernels_of_parts
from .part_place import Place
from .part_scores import PartScores
from .part_vectors import STEP_BYTES, Vectors
from .parts_layout import IN_SQUARE, SCORE_PITCH, SLICE, PartsLayout

ZERO = tirx.const(0.0, "float32")
LINE = 64  # numbers of 128 bytes
AT_ONCE = SIDE // 2  # blocks of 16 steps whose sums registers hold, where two parts share a multiprocessor
Added = tuple[str, RegisterTile, RegisterTile]  # a vector, sums of what it reads, the matrix
TURN = "movmatrix.sync.aligned.m8n8.trans.b16"


@dataclass(frozen=True)
class PartsAgain(PartsLayout):
    """Its kernels take the pair's pointers, then steps and batch; `reset` has flags of all steps, the first too."""

    @cached_property
    def kernels(self) -> tuple[Kernel, Kernel]:
        """Without and with lengths and resets."""
        return kernels_of_parts(self, lambda w, masked: _Body(w, self, masked).run())


class _Body:
    """What a block of threads does."""

    def __init__(self, w: Writer, layout: PartsAgain, masked: bool) -> None:
        self.w, self.layout, self.pair = w, layout, layout.pair
        self.precision = layout.pair.precision
        self.place = place = Place(w, layout, masked)
        self.operands = operands = Operands(w, layout, place)
        self.base, self.lane = operands.base, place.lane
        self.key0 = w.keep(place.warp * BLOCK)
        self.decays = Decays(w, layout, place, operands)
        self.vectors = Vectors(w, layout, operands, self.lane)
        self.scores = PartScores(self.decays, self.vectors)

    def run(self) -> None:
        w = self.w
        self.operands.fill()
        w.do(I.ptx["cp.async.commit_group"]())
        if self._whole_tiles:
            for name in self._order:
                self._ask_for(name)
        first, *others = self._order
        packed = {name: self._load(name, 0) for name in self._order} if self.layout.slices else {}
        self.decays.make()
        w.do(I.ptx["cp.async.wait_group"](0))
        if self.layout.by_wgmma:
            w.do(I.ptx.fence.proxy.async_.shared__cta())
        w.do(I.cuda.cta_sync())
        self.scores.make()
        if not self.layout.slices:  # registers do not hold a matrix beside what scores take
            packed[first] = self._load(first, 0)
        if not self._whole_tiles:  # whose loads end so
            w.do(I.cuda.cta_sync())
        if self.layout.slices:
            found = self._in_slices(packed)
        else:
            self._turn(packed[first])
            found = self._vectors(packed[first], first, lambda: packed.update({n: self._load(n, 0) for n in others}))
            for name in others:
                self._turn(packed[name])
                if self.layout.sums:
                    self.decays.put_whole(self._whole(packed))
                found |= self._vectors(packed[name], name)
        w.do(I.cuda.cta_sync())
        if self.layout.sums:
            self.decays.sum_up()
        for number, words in enumerate(found.values()):
            self._put(number, words)
        w.do(I.cuda.cta_sync())
        for number, i in enumerate(found):
            self._store(number, i, self.pair.reads[i])
        for i, read in enumerate(self.pair.reads):
            if read.of == BOTH:
                self.decays.products(i, read)

    @property
    def _order(self) -> list[str]:
        """Of what is read: of whole matrices registers hold the results of one beside the other."""
        return [name for name in (GRADIENT, STATE) if name in self.pair.made]

    # --- matrices --------------------------------------------------------------------------------------------------

    def _load(self, name: str, value0: Expr) -> RegisterTile:
        """A matrix, or a slice of its values, at the border of the part as left operand, 16 keys of it; 0 where there
        is none. value0: the first."""
        words = self.w.tile(SLICE if self.layout.slices else self.layout.deep, 4, dtype="uint32")
        if self._whole_tiles:
            self._load_tiles(words, name)
        else:
            self._load_into(words, name, value0)
        return words

    def _load_into(self, words: RegisterTile, name: str, value0: Expr) -> None:
        words.fill(uint32(0))
        for k in range(words.shape[0]):
            for i in range(4):
                first = self.key0 + 8 * (i % 2), value0 + (BLOCK * k + 8 * (i // 2))
                (self._load_pair if self._paired else self._load_each)(name, words[k][i], first)

    @property
    def _paired(self) -> bool:
        """Whether memory has words of two neighbours as products take them."""
        own = self.pair
        return marks_dtype(own.precision) == own.precision and (own.keys if own.keys_last else own.values) % 2 == 0

    @property
    def _whole_tiles(self) -> bool:
        """Whether such words fill the tiles of a matrix that registers hold."""
        own = self.pair
        return self._paired and not self.layout.slices and own.keys % BLOCK == 0 and own.values % BLOCK == 0

    def _load_tiles(self, words: RegisterTile, name: str) -> None:
        """All of them, from one address on: none waits for another."""
        own, line, column = self.pair, self.lane // 4, self.lane % 4 * 2
        first = (self.key0 + column, line) if own.keys_last else (self.key0 + line, column)
        _, at = self.place.border(*(self.w.bind(number) for number in first))
        begin = self.w.keep(at)
        for k in range(words.shape[0]):
            for i in range(4):
                key, value = 8 * (i % 2), BLOCK * k + 8 * (i // 2)
                then = begin + (value * own.keys + key if own.keys_last else key * own.values + value)
                self.w.do(I.ptx["ld.global.b32"](words[k][i], self.w[marks_name(name)].ptr_to([then])))
        self.w.do(I.cuda.cta_sync())  # or compilers move each to where it is used, and it waits alone

    def _ask_for(self, name: str) -> None:
        """To L2, line by line."""
        w, own, threads = self.w, self.pair, self.layout.threads
        lines = ceil_div(own.keys * own.values, LINE)
        with w.loop(ceil_div(lines, threads)) as turn:
            line = w.bind(turn * threads + self.place.thread)
            with w.when(line < lines):
                place = self.place.matrix + wide(line * LINE)
                w.do(I.ptx["prefetch.global.L2"](w[marks_name(name)].ptr_to([place])))

    def _load_pair(self, name: str, word: TirExpr, first: tuple[TirExpr, Expr]) -> None:
        """Two neighbours at once."""
        w, (key0, value0) = self.w, first
        line, column = self.lane // 4, self.lane % 4 * 2
        key, value = (key0 + column, line + value0) if self.pair.keys_last else (key0 + line, column + value0)
        there, at = self.place.border(w.bind(key), w.bind(value))
        with w.when(there):
            w.do(I.ptx["ld.global.b32"](word, w[marks_name(name)].ptr_to([at])))

    def _load_each(self, name: str, word: TirExpr, first: tuple[TirExpr, Expr]) -> None:
        """One by one."""
        w, two = self.w, self.w.tile(1, 2)
        key = w.bind(first[0] + self.lane // 4)
        for odd in range(2):
            value = w.bind(self.lane % 4 * 2 + (first[1] + odd))
            there, at = self.place.border(key, value)
            two.store(ZERO, 0, odd)
            with w.when(there):
                two.store(converted(w[marks_name(name)][at], "float32"), 0, odd)
        pack(w, self.precision, word, *two[0])

    def _turn(self, words: RegisterTile) -> None:
        """Blocks of 8 x 8 whose neighbours were keys, so that they are values."""
        if self._paired and self.pair.keys_last:
            for word in words.flat:
                self.w.do(I.ptx[TURN](word, word))

    def _whole(self, packed: dict[str, RegisterTile]) -> TirExpr:
        """What a lane has of the product of both at the borders, summed over keys too."""
        total: TirExpr = ZERO
        for a, b in zip(packed[STATE].flat, packed[GRADIENT].flat, strict=True):
            for left, right in zip(unpack(self.precision, a), unpack(self.precision, b), strict=True):
                total = self.w.keep(total + left * right)
        return total

    # --- products of all steps -------------------------------------------------------------------------------------

    def _multiply(self, sums: tuple[TirExpr, ...], a: tuple[TirExpr, ...], b: tuple[TirExpr, ...]) -> None:
        self.w.do(I.ptx[INSTRUCTIONS[self.precision]](*sums, *a, *b, *sums))

    def _vectors(
        self, matrix: RegisterTile, name: str, then: Callable[[], None] = lambda: None
    ) -> dict[int, RegisterTile]:
        """Results of a matrix, by number, packed: [16 steps][4 words]. then: what comes behind its last products."""
        found: dict[int, RegisterTile] = {}
        for vector in self.layout.vectors[name]:
            own, words = self._results(name, vector)
            for first in range(0, SIDE, AT_ONCE):
                last = vector == self.layout.vectors[name][-1] and first + AT_ONCE == SIDE
                blocks = range(first, first + AT_ONCE)
                self._vector(matrix, (name, vector), blocks, words, then if last else lambda: None)
            if words is not None:
                found |= dict.fromkeys(own, words)
        return found

    def _results(self, name: str, vector: str) -> tuple[list[int], RegisterTile | None]:
        """Numbers of the results that a vector reads of a matrix, and where they go, if there are any."""
        reads = enumerate(self.pair.reads)
        own = [i for i, read in reads if read.of == name and self.layout.first(f"vector_{i}") == vector]
        return own, self.w.tile(SIDE, 4, dtype="uint32") if own else None

    def _in_slices(self, packed: dict[str, RegisterTile]) -> dict[int, RegisterTile]:
        """Results of both matrices. packed: the first slices; the next ones come while these are multiplied."""
        w, layout = self.w, self.layout
        sums = {(name, vector): w.tile(2 * SIDE, 4) for name in packed for vector in layout.vectors[name]}
        for tile in sums.values():
            tile.fill(ZERO)
        more = {name: w.tile(SLICE, 4, dtype="uint32") for name in packed}
        total = w.local(1)
        w.store(total, ZERO, 0)
        with w.loop(layout.slices // 2) as turn:
            for half, (now, then) in enumerate(((packed, more), (more, packed))):
                value0 = w.bind(turn * (2 * SLICE * BLOCK) + (half + 1) * SLICE * BLOCK)
                for name, matrix in then.items():
                    self._load_into(matrix, name, value0)
                for matrix in now.values():
                    self._turn(matrix)
                if layout.sums:
                    w.store(total, total[0] + self._whole(now), 0)
                every = [(vector, tile, now[name]) for (name, vector), tile in sums.items()]
                self._add(every, range(SIDE), turn, half * SLICE)
        if layout.sums:
            self.decays.put_whole(total[0])
        found: dict[int, RegisterTile] = {}
        for which, tile in sums.items():
            own, words = self._results(*which)
            self._finish(tile, which, range(SIDE), words)
            if words is not None:
                found |= dict.fromkeys(own, words)
        return found

    def _vector(
        self,
        matrix: RegisterTile,
        which: tuple[str, str],
        blocks: range,
        words: RegisterTile | None,
        then: Callable[[], None],
    ) -> None:
        """What a vector reads of a matrix in some blocks of 16 steps. words: where it goes; None: it is no result.
        then: what comes behind the matrix's products."""
        sums = self.w.tile(2 * len(blocks), 4)
        sums.fill(ZERO)
        self._add([(which[1], sums, matrix)], blocks)
        then()
        self._finish(sums, which, blocks, words)

    def _add(self, every: Sequence[Added], blocks: range, square: Expr = 0, tile: int = 0) -> None:
        """To what vectors read, of values from a square of 64, and a tile of 16 in it, on."""
        if not self.layout.by_wgmma:
            for added in every:
                self._add_by_warps(added, blocks, (square * IN_SQUARE + tile) * STEP_BYTES)
            return
        self.w.do(I.ptx.wgmma.fence.sync.aligned())
        for vector, sums, matrix in every:
            self.vectors.multiply(sums, matrix, vector, blocks, square, tile)
        self.w.do(I.ptx.wgmma.commit_group.sync.aligned())
        self.w.do(I.ptx.wgmma.wait_group.sync.aligned(0))

    def _add_by_warps(self, added: Added, blocks: range, byte: Expr) -> None:
        """The same, each warp by itself. byte: where the vector's values begin."""
        vector, sums, matrix = added
        at, pitch = self._columns(vector)
        at = self.w.bind(at + tirx.Cast("uint32", byte))
        for k in range(matrix.shape[0]):
            for n, block in enumerate(blocks):  # whose sums are independent
                b = self._right(LDMATRIX.format("x4"), self.w.bind(at + uint32(block * BLOCK * pitch + STEP_BYTES * k)))
                for half in range(2):
                    self._multiply(sums[2 * n + half], matrix[k], b[half])

    def _finish(self, sums: RegisterTile, which: tuple[str, str], blocks: range, words: RegisterTile | None) -> None:
        """What some blocks of steps read of the matrix is added to the product of both, and what others wrote to it."""
        w, layout, (name, vector) = self.w, self.layout, which
        other = GRADIENT if name == STATE else STATE
        sums.scale(layout.scale(vector))
        if layout.sums:
            for i, row in enumerate(layout.rows[other]):
                if row == vector:
                    self._sum(sums, (other, i), blocks)
        if words is None:
            return
        self._scale(sums, "begins" if name == STATE else "ends", blocks)
        for i, row in enumerate(layout.rows[name]):
            pair_of = (vector, row) if name == STATE else (row, vector)
            self._written(sums, (name, i), pair_of, blocks)
        for n, block in enumerate(blocks):
            for i in range(4):
                tile = sums[2 * n + i // 2]
                pack(w, self.precision, words[block][i], tile[2 * (i % 2)], tile[2 * (i % 2) + 1])

    def _columns(self, name: str) -> tuple[TirExpr, int]:
        """Where a lane reads rows of steps that are columns of a right operand, and their pitch."""
        name, lane = self.layout.first(name), self.lane
        pitch = self.layout.pitch(name)
        own = (lane // 16 * 8 + lane % 8) * pitch + lane // 8 % 2 * 16 + self.layout.at(name)
        return self.w.bind(self.base + tirx.Cast("uint32", own)), pitch

    def _right(self, how: str, at: TirExpr) -> RegisterTile:
        b = self.w.tile(2, 2, dtype="uint32")
        self.w.do(I.ptx[how](*b[0], *b[1], at))
        return b

    def _turned(self, name: str, n: int) -> tuple[TirExpr, ...]:
        """A block of columns of 16 steps, [keys of the warp][steps], as left operand, or as sums lie, packed."""
        at, pitch = self._columns(name)
        words = self.w.tile(1, 4, dtype="uint32")
        own = tirx.Cast("uint32", self.key0 * 2) + uint32(n * BLOCK * pitch)
        self.w.do(I.ptx[TURNED](*words[0], at + own))
        return words[0]

    def _left(self, n: int) -> list[tuple[TirExpr, ...]]:
        """What a lane's steps of a block of 16 decay by, two of each 8."""
        return [self.decays.two("decay", self.w.bind(self.lane % 4 * 2 + (BLOCK * n + 8 * half))) for half in range(2)]

    def _scale(self, sums: RegisterTile, kind: str, blocks: range) -> None:
        """Times what is left of the matrix at each step."""
        if not self.decays.weighted:
            return
        for n in range(2 * len(blocks)):
            left = self.decays.two(kind, self.w.bind(self.lane % 4 * 2 + (blocks[0] * BLOCK + 8 * n)))
            for i in range(4):
                sums.store(sums[n][i] * left[i % 2], n, i)

    def _written(self, sums: RegisterTile, which: tuple[str, int], scores: tuple[str, str], blocks: range) -> None:
        """What steps of some blocks read of what others have written along a column: to the gradient, later ones."""
        w, lane, (name, number) = self.w, self.lane, which
        at, later = self.layout.score_at(*scores), name == GRADIENT
        line, half = (lane % 16, lane // 16) if later else (lane // 16 * 8 + lane % 8, lane // 8 % 2)
        begin = w.bind(self.base + tirx.Cast("uint32", line * SCORE_PITCH + half * 16 + at))
        for other in range(SIDE):
            own = [n for n in blocks if (n <= other if later else n >= other)]
            if not own:
                continue
            a = self._turned(f"{name}_column_{number}", other)
            if self.pair.made[name].late:
                a = self._decayed(a, other)
            for n in own:
                row, place = (other, n) if later else (n, other)
                from_ = begin + uint32(row * BLOCK * SCORE_PITCH + place * BLOCK * 2)
                b = self._right(TURNED if later else LDMATRIX.format("x4"), from_)
                for i in range(2):
                    self._multiply(sums[2 * (n - blocks[0]) + i], a, b[i])

    def _decayed(self, words: tuple[TirExpr, ...], n: int) -> tuple[TirExpr, ...]:
        """A block of columns times the decays of its steps."""
        found, left = self.w.tile(1, 4, dtype="uint32"), self._left(n)
        for i, word in enumerate(words):
            values = unpack(self.precision, word)
            pack(self.w, self.precision, found[0][i], *(v * by for v, by in zip(values, left[i // 2], strict=True)))
        return found[0]

    def _sum(self, sums: RegisterTile, which: tuple[str, int], blocks: range) -> None:
        """To what the product of both needs: what a matrix gives for a vector, times the column that the vector is
        written along to the other one. which: that one, and the number of the column."""
        w, (other, number), parts = self.w, which, list[TirExpr]()
        for n, block in enumerate(blocks):
            words = self._turned(f"{other}_column_{number}", block)
            left = self._left(block) if self.pair.made[other].late else None
            for half in range(2):
                two: list[TirExpr] = [ZERO, ZERO]
                for q in range(2):
                    for odd, value in enumerate(unpack(self.precision, words[2 * half + q])):
                        two[odd] = w.keep(two[odd] + sums[2 * n + half][2 * q + odd] * value)
                parts += two if left is None else [w.keep(a * by) for a, by in zip(two, left[half], strict=True)]
        self.decays.put_parts(parts, STATE if other == GRADIENT else GRADIENT, blocks[0] * BLOCK)

    # --- results ---------------------------------------------------------------------------------------------------

    @property
    def _pitch(self) -> int:
        return 2 * self.layout.keys + PAD

    def _put(self, number: int, words: RegisterTile) -> None:
        """Results to shared memory, a row of keys for each step. Not by stmatrix, which older GPUs have not."""
        pitch = self._pitch // 2
        begin = self.w.bind(self.lane % 4 * 2 * pitch + self.lane // 4 + self.key0 + number * EVERY * pitch)
        for n in range(SIDE):
            for i, word in enumerate(words[n]):
                for odd, half in enumerate((word & uint32(0xFFFF), word >> uint32(16))):
                    value = tirx.reinterpret(self.precision, tirx.Cast("uint16", half))
                    at = begin + ((BLOCK * n + 8 * (i // 2) + odd) * pitch + 8 * (i % 2))
                    self.w.store(self.operands.words, value, at)

    def _store(self, number: int, i: int, read: Read) -> None:
        """Results to memory, 0 where the row has ended."""
        w, place, output, name = self.w, self.place, read.output, f"output_{i}"
        each = 8 if piece_bytes(output) == 16 else 1
        across = ceil_div(output.width, each)
        with w.loop(ceil_div(EVERY * across, self.layout.threads)) as turn:
            piece = w.bind(turn * self.layout.threads + place.thread)
            step, key = w.keep(tirx.truncdiv(piece, across)), w.keep(tirx.truncmod(piece, across) * each)
            with w.when(step < place.count):
                at = w.keep(place.at(name, output, step) + wide(key))
                begin = step * self._pitch + key * 2 + number * EVERY * self._pitch
                there = step < place.limit
                if each == 1:
                    value = self.operands.words[tirx.truncdiv(begin, 2)]
                    w.store(w[name], tirx.Select(there, value, tirx.const(0.0, output.dtype)), at)
                else:
                    four = w.tile(1, 4, dtype="uint32")
                    w.do(I.ptx["ld.shared.v4.b32"](*four[0], self.base + tirx.Cast("uint32", begin)))
                    for j in range(4):
                        four.store(tirx.Select(there, four[0][j], uint32(0)), 0, j)
                    w.do(I.ptx["st.global.v4.b32"](w[name].ptr_to([at]), *four[0]))
