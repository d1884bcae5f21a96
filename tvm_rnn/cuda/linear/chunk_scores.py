"""The warps of a chunk scan that make scores: what a step reads of what the steps before it wrote.

In: the kernel's body, a warp's number. Out: statements that leave in shared memory, for each read-out, the scores of a
chunk, [step][step written], and for the erasure those times its scale, whose blocks of 16 on the diagonal are replaced
by the inverse of 1 - block: substitution, in float32. What is erased may be a result too, before it is scaled. Then the
scores have no scale, but what is inverted has those of the steps that wrote.

A warp has 16 steps of the erasure and 16 of a read-out, whose order is reversed: all have as many blocks to make. What
is erased and read by the same vector is one product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.codegen.register_tile import RegisterTile
from tvm_rnn.cuda.codegen.vector_access import pack
from tvm_rnn.cuda.gemm.mma_sync import INSTRUCTIONS, LDMATRIX
from tvm_rnn.tir.expr import Expr, TirExpr
from tvm_rnn.tir.index import uint32

from .chunk_block import Block
from .chunk_tile import BLOCK, TRIANGLE_PITCH, exp2, further, swizzled, turned
from .recurrence import sum_name

NEVER = -1000.0  # log2 of 0, once
Sums = Sequence[Sequence[TirExpr]]  # [tile of 8 columns][4]


@dataclass(frozen=True)
class _Scores:
    """16 rows of scores. column: what was written along; at: where scores go; block: which rows; row: a lane's two;
    g, scale: theirs, if any; own: a step sees what it writes itself; solves: what is inverted has the scales of what
    was written; alone: the block on the diagonal is all that is wanted."""

    column: str
    at: TirExpr
    block: TirExpr
    row: Sequence[TirExpr]
    g: Sequence[TirExpr] | None
    scale: Sequence[TirExpr] | None
    own: bool
    solves: bool
    alone: bool


class Scorers:
    """warp: the number of this one, among those of scores."""

    def __init__(self, block: Block, warp: TirExpr) -> None:
        self.body, self.w, self.scan, self.warp = block, block.w, block.scan, warp
        self.recurrence, self.tile, self.precision = block.recurrence, block.tile, block.recurrence.precision
        self.q = block.lane % 4 * 2  # the first of a lane's columns, of eight
        if self.recurrence.erasing is not None:
            count = self.tile.scorers * BLOCK * TRIANGLE_PITCH
            self.triangle = I.alloc_buffer((count,), "float32", scope="shared", align=16)

    def make(self, number: TirExpr) -> None:
        """Scores of a chunk."""
        w, solves = self.w, self.recurrence.erasing is not None
        scores = self._enter(number)
        backwards = w.bind((self.tile.scorers - 1) - self.warp)
        for turn, sets in enumerate(self._alike()):
            forwards = turn % 2 == (0 if solves else 1)
            found = []
            for i in sets:
                own = scores if not i else w.bind(scores + uint32(self.scan.score_at(i)))
                where = self._where(i, own, self.warp if forwards else backwards, solves and not i)
                found.append(replace(where, alone=self.scan.alone(i)))
            self._rows(self.scan.scores[sets[0]][0], found, solves and not sets[0])

    def _alike(self) -> list[list[int]]:
        """Scores, by their numbers, whose products are the same: of the same vectors, before and after a decay."""
        found: dict[tuple[int, int], list[int]] = {}
        for i, (vector, _, column) in enumerate(self.scan.scores):
            found.setdefault((self.scan.vector_at(vector), self.scan.vector_at(column)), []).append(i)
        return list(found.values())

    def _enter(self, number: TirExpr) -> TirExpr:
        """Where the scores of a chunk go."""
        self.number = number
        self.stage = self.w.keep(self.body.base + tirx.Cast("uint32", self.body.slot(number)))
        begin = number % 2 * self.scan.score_bytes + self.scan.scores_at
        return self.w.keep(self.body.base + tirx.Cast("uint32", begin))

    def _where(self, which: int, at: TirExpr, block: TirExpr, erases: bool) -> _Scores:
        """which: of the scan's scores."""
        w, numbers, (vector, of, column) = self.w, self.body.numbers, self.scan.scores[which]
        row = [w.bind(block * BLOCK + self.body.lane // 4 + 8 * half) for half in range(2)]
        g, scale = None, None
        if self.body.weighted:
            scales = {f"read_{i}": self.scan.read_scale(i) for i in range(len(self.recurrence.reads))}
            more = log2(scales.get(vector, 1.0))
            g = [numbers.load(sum_name(of), self.number, r) for r in row]
            g = [w.keep(one + more if more else one) for one in g]
        unscaled = self.scan.unscaled is not None
        solves = self.recurrence.erasing is not None and which < len(self.recurrence.columns)
        if solves and not unscaled and "scale" in numbers.buffers:
            scale = [w.keep(numbers.load("scale", self.number, r)) for r in row]
        return _Scores(column, at, block, row, g, scale, turned(of), erases and unscaled, False)

    def _rows(self, vector: str, every: Sequence[_Scores], erases: bool) -> None:
        """All blocks of 16 rows: those below the diagonal, and that on it. every: what is made of the same products, of
        which the first erases, if any does."""
        w, scan, lane, scores = self.w, self.scan, self.body.lane, every[0]
        deep = scan.keys // BLOCK
        a = w.tile(deep, 4, dtype="uint32")
        line = scores.block * BLOCK + lane % 16
        pitch = scan.key_pitch
        own = scan.vector_at(vector) + line * pitch + swizzled(pitch, lane, lane // 16 * 16)
        at = w.bind(self.stage + tirx.Cast("uint32", own))
        for k in range(deep):
            w.do(I.ptx[LDMATRIX.format("x4")](*a[k], further(pitch, at, k)))
        line = lane // 16 * 8 + lane % 8
        own = scan.vector_at(scores.column) + line * pitch + swizzled(pitch, lane, lane // 8 % 2 * 16)
        keys, b = w.bind(self.stage + tirx.Cast("uint32", own)), w.tile(deep, 2, 2, dtype="uint32")

        def load(block: Expr) -> None:
            begin = w.bind(keys + tirx.Cast("uint32", block * (BLOCK * pitch)))
            for k in range(deep):
                w.do(I.ptx[LDMATRIX.format("x4")](*b[k, 0], *b[k, 1], further(pitch, begin, k)))

        load(tirx.const(0, "int32"))
        with w.loop(scores.block) as other:
            chains = self._chains(a, b)
            load(other + 1)  # while what is here is weighed
            sums = _added(w, chains)
            for one in every:
                if not one.alone:
                    self._keep(self._weigh(sums, other, one, False), one, other)
        sums = _added(w, self._chains(a, b))
        for i, one in enumerate(every):
            found = self._weigh(sums, scores.block, one, True)
            self._keep(self._inverse(found) if erases and not i else found, one, scores.block)

    def _chains(self, a: RegisterTile, b: RegisterTile) -> RegisterTile:
        """16 x 16: chains of products for several parts of K."""
        w, deep = self.w, self.scan.keys // BLOCK
        chains = next(n for n in (4, 2, 1) if deep >= 2 * n or n == 1)
        acc = w.tile(chains, 2, 4)
        acc.fill(tirx.const(0.0, "float32"))
        for k in range(deep):
            for n in range(2):
                d = acc[k % chains, n]
                w.do(I.ptx[INSTRUCTIONS[self.precision]](*d, *a[k], *b[k, n], *d))
        return acc

    def _weigh(self, sums: Sums, other: TirExpr, scores: _Scores, diagonal: bool) -> Sums:
        """Times decays and scales; 0 where a step would read later ones."""
        w, numbers = self.w, self.body.numbers
        zero, never = tirx.const(0.0, "float32"), tirx.const(NEVER, "float32")
        found: list[list[TirExpr]] = [[], []]
        for n in range(2):
            for i in range(4):
                half, column = i // 2, w.bind(8 * n + self.q + i % 2)
                line = self.body.lane // 4 + 8 * half
                seen = (column <= line if scores.own else column < line) if diagonal else None
                value = sums[n][i]
                if scores.g is not None:
                    away = scores.g[half] - numbers.load("after", self.number, other * BLOCK + column)
                    value = value * exp2(away if seen is None else tirx.Select(seen, away, never))
                if scores.scale is not None:
                    value = value * scores.scale[half]
                if scores.solves and diagonal and "scale" in numbers.buffers:
                    value = value * numbers.load("scale", self.number, other * BLOCK + column)
                found[n].append(w.keep(value if seen is None else tirx.Select(seen, value, zero)))
        return found

    def _keep(self, found: Sums, scores: _Scores, other: TirExpr) -> None:
        """A block of 16 x 16 to shared memory, as operands."""
        w, words = self.w, self.w.local(4, "uint32")
        for n in range(2):
            for half in range(2):
                line = scores.row[half] - scores.block * BLOCK if scores.alone else scores.row[half]
                at = line * self.scan.score_pitch + (other * BLOCK + 8 * n + self.q) * 2
                word = words[2 * n + half]
                pack(w, self.precision, word, found[n][2 * half], found[n][2 * half + 1])
                w.do(I.ptx["st.shared.b32"](scores.at + tirx.Cast("uint32", at), word))

    def _inverse(self, found: Sums) -> Sums:
        """The inverse of 1 - block: lane j has column j. Rows of the inverse are done from above; what is done of
        column m is added to all rows below."""
        w, lane, at = self.w, self.body.lane, self.w.bind(self.warp * (BLOCK * TRIANGLE_PITCH))
        place = [[(8 * n + self.q + i % 2, lane // 4 + 8 * (i // 2)) for i in range(4)] for n in range(2)]
        for n in range(2):
            for i, (column, line) in enumerate(place[n]):
                w.store(self.triangle, found[n][i], at + column * TRIANGLE_PITCH + line)
        w.do(I.cuda.warp_sync())
        base = w.bind(I.cuda.cvta_generic_to_shared(self.triangle.ptr_to([at])))
        x, columns = w.local(BLOCK), w.tile(BLOCK, 4, 4)
        for i in range(BLOCK):
            one = tirx.Select(tirx.EQ(lane % 16, i), tirx.const(1.0, "float32"), tirx.const(0.0, "float32"))
            w.store(x, one, i)

        def load(m: int) -> None:
            for four in range((m + 1) // 4, 4):
                place = base + uint32((m * TRIANGLE_PITCH + 4 * four) * 4)
                w.do(I.ptx["ld.shared.v4.f32"](*columns[m, four], place))

        load(0)
        for m in range(BLOCK - 1):
            if m + 2 < BLOCK:
                load(m + 1)
            for i in range(m + 1, BLOCK):
                w.store(x, x[i] + columns[m, i // 4][i % 4] * x[m], i)
        w.do(I.cuda.warp_sync())
        for i in range(BLOCK):
            w.store(self.triangle, x[i], at + i * TRIANGLE_PITCH + lane % 16)
        w.do(I.cuda.warp_sync())
        return [[w.keep(self.triangle[at + line * TRIANGLE_PITCH + column]) for column, line in row] for row in place]


def _added(w: Writer, chains: RegisterTile) -> Sums:
    """The sums of all chains."""
    found: list[list[TirExpr]] = []
    for n in range(2):
        found.append([])
        for i in range(4):
            total = chains[0, n][i]
            for chain in range(1, chains.shape[0]):
                total = total + chains[chain, n][i]
            found[n].append(w.keep(total))
    return found
