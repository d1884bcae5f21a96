"""Scores of each two steps of a part: what a later one reads of what an earlier one wrote, weighted by decays.

In: a part's decays and operands. Out: `PartScores`, which leaves scores in shared memory, [later step][earlier step], a
block of 16 x 16 at a time, shared by all warps; and of the product of a matrix and its gradient, for every step, what
writes to the matrix before it and to the gradient behind it give, by one more product, of scores and weights, in tf32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.register_tile import RegisterTile
from tvm_rnn.cuda.codegen.vector_access import pack
from tvm_rnn.cuda.gemm.mma_sync import INSTRUCTIONS, LDMATRIX
from tvm_rnn.tir.expr import TirExpr

from .chunk_tile import BLOCK
from .pair import GRADIENT, STATE
from .part_decays import Decays
from .part_layout import SIDE, UNITS, is_column
from .part_vectors import STEP_BYTES, Vectors
from .parts_layout import SCORE_PITCH

ZERO = tirx.const(0.0, "float32")
AT_ONCE = 4  # pairs whose sums registers hold beside both matrices
TF32 = INSTRUCTIONS["float32"]
Pair = tuple[str, str]
Sums = list[list[TirExpr]]  # [8 columns][4], as sums of mma.sync lie


class PartScores:
    """later, earlier: blocks of 16 steps of the unit at hand; row, column: a lane's steps."""

    def __init__(self, decays: Decays, vectors: Vectors) -> None:
        self.vectors = vectors
        self.decays, self.w, self.layout, self.place = decays, decays.w, decays.layout, decays.place
        self.lane, self.base = decays.place.lane, decays.operands.base
        self.precision = decays.layout.pair.precision

    def make(self) -> None:
        """All units, in turn by all warps."""
        w, warps = self.w, self.layout.warps
        with w.loop(-(-UNITS // warps)) as turn:
            unit = w.keep(turn * warps + self.place.warp)
            with w.when(unit < UNITS):
                later = w.keep(
                    sum((tirx.Cast("int32", unit >= n * (n + 1) // 2) for n in range(1, SIDE)), tirx.const(0, "int32"))
                )
                self._unit(unit, later, w.keep(unit - tirx.truncdiv(later * (later + 1), 2)))

    def _unit(self, unit: TirExpr, later: TirExpr, earlier: TirExpr) -> None:
        w, layout, decays = self.w, self.layout, self.decays
        self.row0, self.column0 = w.keep(later * BLOCK), w.keep(earlier * BLOCK)
        self.rows = [w.keep(self.row0 + self.lane // 4 + 8 * half) for half in range(2)]
        self.columns = [
            [w.keep(self.column0 + self.lane % 4 * 2 + (8 * n + odd)) for odd in range(2)] for n in range(2)
        ]
        if decays.weighted:
            self.before = [decays.number("before", row) for row in self.rows]
            self.after = [[decays.number("after", column) for column in two] for two in self.columns]
        weights = [[self._weight(n, i) for i in range(4)] for n in range(2)]
        columns = self._columns if layout.sums else {}
        found = self._products(list(dict.fromkeys([*layout.scores, *columns.values()])))
        for left, right in layout.scores:
            self._keep(found[left, right], weights, layout.score_at(left, right))
        if layout.sums:
            both = w.tile(2, 4)
            both.fill(ZERO)
            for scores, own in columns.items():
                for n in range(2):
                    for k in range(4):
                        both.store(both[n][k] + found[own][n][k] * found[scores[:2]][n][k], n, k)
            self._decay(both)
            self._between(unit, both)

    def _decay(self, sums: RegisterTile) -> None:
        """Times a later step's decay if what it writes to the gradient decays there, and an earlier one's likewise; and
        times the constants of both columns."""
        made, scale = self.layout.pair.made, self.layout.pair.scale
        for n in range(2):
            for k in range(4):
                if scale != 1.0:
                    sums.store(sums[n][k] * scale**2, n, k)
                steps = {GRADIENT: self.rows[k // 2], STATE: self.columns[n][k % 2]}
                for name, step in steps.items():
                    if made[name].late:
                        sums.store(sums[n][k] * self.decays.number("decay", step), n, k)

    @cached_property
    def _columns(self) -> dict[tuple[str, str, int, int], tuple[str, str]]:
        """By scores of rows, and the numbers of their writes: the columns that are written beside these."""
        rows = self.layout.rows
        return {
            (row, other, j, i): (f"{GRADIENT}_column_{j}", f"{STATE}_column_{i}")
            for j, row in enumerate(rows[GRADIENT])
            for i, other in enumerate(rows[STATE])
        }

    def _weight(self, n: int, i: int) -> TirExpr:
        half, odd = i // 2, i % 2
        seen = self.columns[n][odd] < self.rows[half]
        before, after = (self.before[half], self.after[n][odd]) if self.decays.weighted else (ZERO, ZERO)
        weight = self.decays.weight(seen, before, after)
        scale = self.layout.pair.scale
        return self.w.keep(weight if scale == 1.0 else weight * scale)

    def _products(self, pairs: list[Pair]) -> dict[Pair, RegisterTile]:
        """<left of the later steps, right of the earlier ones> of some pairs at a time, whose sums are independent:
        one pair's alone waited for each other."""
        found = dict[Pair, RegisterTile]()
        for first in range(0, len(pairs), AT_ONCE):
            some = {pair: self.w.tile(2, 4) for pair in pairs[first : first + AT_ONCE]}
            for sums in some.values():
                sums.fill(ZERO)
            deep = {pair: self.layout.row_bytes(self.layout.first(pair[0])) // STEP_BYTES for pair in some}
            places = {own: self._place(*own) for pair in some for own in ((pair[0], True), (pair[1], False))}
            for k in range(max(deep.values())):
                words = {own: self._load(at, k) for own, at in places.items()}
                for pair, sums in some.items():
                    if k < deep[pair]:
                        a, b = words[pair[0], True], words[pair[1], False]
                        for n in range(2):
                            right = b[2 * n : 2 * n + 2]
                            self.w.do(I.ptx[INSTRUCTIONS[self.precision]](*sums[n], *a, *right, *sums[n]))
            for pair, sums in some.items():
                if not is_column(pair[0]):
                    sums.scale(self.layout.scale(pair[0]) * self.layout.scale(pair[1]))
            found |= some
        return found

    def _place(self, name: str, left: bool) -> Callable[[int], TirExpr]:
        """Where a lane reads rows of the block of later, or of earlier steps."""
        lane = self.lane
        if left:
            return self.vectors.lines(name, self.row0 + lane % 16, lane // 16)
        return self.vectors.lines(name, self.column0 + lane // 16 * 8 + lane % 8, lane // 8 % 2)

    def _load(self, at: Callable[[int], TirExpr], k: int) -> tuple[TirExpr, ...]:
        words = self.w.tile(1, 4, dtype="uint32")
        self.w.do(I.ptx[LDMATRIX.format("x4")](*words[0], at(k)))
        return words[0]

    def _keep(self, sums: RegisterTile, weights: Sums, at: int) -> None:
        """Scores, weighted, to shared memory."""
        w, words = self.w, self.w.tile(1, 4, dtype="uint32")
        for n in range(2):
            for half in range(2):
                two = [sums[n][2 * half + odd] * weights[n][2 * half + odd] for odd in range(2)]
                word = words[0][2 * n + half]
                pack(w, self.precision, word, *two)
                place = self.rows[half] * SCORE_PITCH + self.columns[n][0] * 2 + at
                w.do(I.ptx["st.shared.b32"](self.base + tirx.Cast("uint32", place), word))

    # --- the product of the matrix and its gradient ------------------------------------------------------------------

    def _between(self, unit: TirExpr, both: RegisterTile) -> None:
        """For all steps between two blocks: sums of what is written before and behind, times what decays from the one
        to the step and from the step to the other. Lanes' order of K is that in which sums lie."""
        w, decays = self.w, self.decays
        a = w.tile(2, 4, dtype="uint32")
        for n in range(2):
            for i, k in enumerate((0, 2, 1, 3)):
                seen = self.columns[n][k % 2] < self.rows[k // 2]
                value = w.keep(tirx.Select(seen, both[n][k], ZERO))
                w.do(I.ptx["cvt.rna.tf32.f32"](a[n][i], value))
        with w.loop(w.bind(self.row0 // BLOCK + 1) - w.bind(self.column0 // BLOCK)) as number:
            step0 = w.keep(self.column0 + number * BLOCK)
            decays.put_unit(unit, step0, [*self._steps(a, step0), *self._steps(a, w.keep(step0 + 8))])

    def _steps(self, a: RegisterTile, step0: TirExpr) -> list[TirExpr]:
        """Of a lane's two of 8 steps, over some rows. a: what is written before and behind them."""
        w, decays, lane = self.w, self.decays, self.lane
        b = w.tile(2, 2, dtype="uint32")
        own = w.keep(step0 + lane // 4)
        before = decays.number("before", own) if decays.weighted else ZERO
        sums = w.tile(1, 4)
        sums.fill(ZERO)
        for n in range(2):
            for odd in range(2):
                after = self.after[n][odd] if decays.weighted else ZERO
                value = w.keep(decays.weight(self.columns[n][odd] < own, before, after))
                w.do(I.ptx["cvt.rna.tf32.f32"](b[n][odd], value))
            w.do(I.ptx[TF32](*sums[0], *a[n], *b[n], *sums[0]))
        two: list[TirExpr] = [ZERO, ZERO]
        for odd in range(2):
            step = w.keep(step0 + lane % 4 * 2 + odd)
            after = decays.number("after", step) if decays.weighted else ZERO
            for half in range(2):
                before = self.before[half] if decays.weighted else ZERO
                weight = decays.weight(step < self.rows[half], before, after)
                two[odd] = w.keep(two[odd] + sums[0][2 * half + odd] * weight)
        return two
