"""A matrix and its gradient made again in whole parts of 64 steps, where a head decays as one.

In: a `Pair`. Out: `PartsAgain`, whose kernel has a block of threads for each part of the time, batch row and head.
Before each part the tape has the matrix S, and behind it the backward recurrence left the gradient G; both lie in
registers as left operands, 16 keys to a warp, and are multiplied with vectors of all steps at once. What steps of the
part wrote is added by scores, products of two steps' vectors, which the matrix and its gradient share.

With d_st what decays from after step s to before a later step t, A_t what is left of S before t, B_t of G after t:

    L_ts = d_st <left_t, right_s>, s < t     left: reads S, or is written to G; right: is written to S, or reads G
    read of S by a left vector    A_t S left_t + sum over s < t of column_s L_ts
    read of G by a right vector   B_t G right_t + sum over r > t of column_r L_rt
    product of both               A_t B_t <S, G> + A_t sum over r > t of d_tr column_r S left_r
                                  + B_t sum over s < t of d_st column_s G right_s
                                  + sum over s < t < r of d_st d_tr <column_s, column_r> <left_r, right_s>

Source: chunk forms as Yang et al. 2024, "Gated Linear Attention Transformers with Hardware-Efficient Training".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, converted
from tvm_rnn.cuda.codegen.register_tile import RegisterTile
from tvm_rnn.cuda.codegen.vector_access import pack, unpack
from tvm_rnn.cuda.gemm.mma_sync import INSTRUCTIONS, LDMATRIX
from tvm_rnn.cuda.layer.packed_layout import ceil_div
from tvm_rnn.tir.expr import TirExpr
from tvm_rnn.tir.index import uint32, wide

from .chunk_products import TURNED
from .chunk_tile import BLOCK, piece_bytes
from .pair import BOTH, EVERY, GRADIENT, STATE, Read, marks_name
from .part_decays import Decays
from .part_layout import PAD, SIDE
from .part_operands import Operands, kernels_of_parts
from .part_place import Place
from .part_scores import PartScores
from .parts_layout import SCORE_PITCH, PartsLayout

ZERO = tirx.const(0.0, "float32")


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
        self.scores = PartScores(self.decays)

    def run(self) -> None:
        w = self.w
        self.operands.fill()
        w.do(I.ptx["cp.async.commit_group"]())
        packed = {name: self._load(name) for name in self.pair.made}
        self.decays.make()
        w.do(I.ptx["cp.async.wait_group"](0))
        w.do(I.cuda.cta_sync())
        self.scores.make()
        w.do(I.cuda.cta_sync())
        if self.layout.sums:
            self.decays.put_whole(self._whole(packed))
        found: dict[int, RegisterTile] = {}
        for name in (GRADIENT, STATE):
            for vector in self.layout.vectors[name]:
                found |= self._vector(packed[name], name, vector)
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

    # --- matrices --------------------------------------------------------------------------------------------------

    def _load(self, name: str) -> RegisterTile:
        """A matrix at the border of the part as left operand, 16 keys of it; 0 where there is none."""
        w, place = self.w, self.place
        words = w.tile(self.layout.deep, 4, dtype="uint32")
        for k in range(self.layout.deep):
            for i in range(4):
                two = w.tile(1, 2)
                key = w.bind(self.key0 + (8 * (i % 2) + self.lane // 4))
                for odd in range(2):
                    value = w.bind(self.lane % 4 * 2 + (BLOCK * k + 8 * (i // 2) + odd))
                    there, at = place.border(key, value)
                    two.store(ZERO, 0, odd)
                    with w.when(there):
                        two.store(converted(w[marks_name(name)][at], "float32"), 0, odd)
                pack(w, self.precision, words[k][i], *two[0])
        return words

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

    def _vector(self, matrix: RegisterTile, name: str, vector: str) -> dict[int, RegisterTile]:
        """Results of a matrix that a vector reads, by number, packed: [16 steps][4 words]."""
        w, layout, pair = self.w, self.layout, self.pair
        sums = w.tile(2 * SIDE, 4)
        sums.fill(ZERO)
        at, pitch = self._columns(vector)
        for k in range(layout.deep):
            for n in range(SIDE):  # whose sums are independent
                b = self._right(LDMATRIX.format("x4"), w.bind(at + uint32(n * BLOCK * pitch + 32 * k)))
                for half in range(2):
                    self._multiply(sums[2 * n + half], matrix[k], b[half])
        other = GRADIENT if name == STATE else STATE
        if layout.sums:
            for i, row in enumerate(layout.rows[other]):
                if row == vector:
                    self._sum(sums, f"{other}_column_{i}", name)
        own = [i for i, read in enumerate(pair.reads) if read.of == name and layout.first(f"vector_{i}") == vector]
        if not own:
            return {}
        self._scale(sums, "begins" if name == STATE else "ends")
        for i, row in enumerate(layout.rows[name]):
            pair_of = (vector, row) if name == STATE else (row, vector)
            self._written(sums, f"{name}_column_{i}", pair_of, name == GRADIENT)
        words = w.tile(SIDE, 4, dtype="uint32")
        for n in range(SIDE):
            for i in range(4):
                tile = sums[2 * n + i // 2]
                pack(w, self.precision, words[n][i], tile[2 * (i % 2)], tile[2 * (i % 2) + 1])
        return dict.fromkeys(own, words)

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

    def _scale(self, sums: RegisterTile, kind: str) -> None:
        """Times what is left of the matrix at each step."""
        if not self.decays.weighted:
            return
        for n in range(2 * SIDE):
            left = self.decays.two(kind, self.w.bind(self.lane % 4 * 2 + 8 * n))
            for i in range(4):
                sums.store(sums[n][i] * left[i % 2], n, i)

    def _written(self, sums: RegisterTile, column: str, scores: tuple[str, str], later: bool) -> None:
        """What steps read of what others have written along a column. later: these come later."""
        w, lane, at = self.w, self.lane, self.layout.score_at(*scores)
        line, half = (lane % 16, lane // 16) if later else (lane // 16 * 8 + lane % 8, lane // 8 % 2)
        begin = w.bind(self.base + tirx.Cast("uint32", line * SCORE_PITCH + half * 16 + at))
        for other in range(SIDE):
            a = self._turned(column, other)
            for n in range(other + 1) if later else range(other, SIDE):
                row, place = (other, n) if later else (n, other)
                own = begin + uint32(row * BLOCK * SCORE_PITCH + place * BLOCK * 2)
                b = self._right(TURNED if later else LDMATRIX.format("x4"), own)
                for i in range(2):
                    self._multiply(sums[2 * n + i], a, b[i])

    def _sum(self, sums: RegisterTile, column: str, name: str) -> None:
        """To what the product of both needs: what a matrix gives for a vector, times the column written beside it."""
        w, parts = self.w, list[TirExpr]()
        for n in range(SIDE):
            words = self._turned(column, n)
            for half in range(2):
                two: list[TirExpr] = [ZERO, ZERO]
                for q in range(2):
                    for odd, value in enumerate(unpack(self.precision, words[2 * half + q])):
                        two[odd] = w.keep(two[odd] + sums[2 * n + half][2 * q + odd] * value)
                parts += two
        self.decays.put_parts(parts, name)

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
