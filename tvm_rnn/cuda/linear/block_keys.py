"""What a lane adds up for its key over a block of 16 steps: what steps of the block read of what others of it wrote.

In: products and scores of the block in shared memory, decays and columns of its key in registers. Out: results of all
16 steps. Sums go step by step, as the recurrence does, in float32: a decay is multiplied with what was before it, no
logarithm and no quotient is taken, and a decay of 0 or a reset is a factor of 0.

Rewrite, with a_s a step's decay, 0 where it begins with nothing, c its column, w the scores:

    read of the matrix before t = (((S a_0 + c_0 w_0t) a_1 + c_1 w_1t) ... a_t-1 + c_t-1 w_t-1,t)
    S before t, times G after it, summed over values: q_r is what the write of step r reads of S before t, times c_r
        = (((<S, G> a_15 + q_15) a_14 + q_14) ... a_t+1 + q_t+1)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.tir.expr import Buffer, TirExpr
from tvm_rnn.tir.index import uint32

from .blocks_layout import LINE_BYTES
from .chunk_tile import BLOCK

FOUR = 4


@dataclass(frozen=True)
class Steps:
    """Of a matrix, of a lane's key: decays of the 16 steps with what is left of what was before; None: 1. keeps: 0
    where a step reads nothing of what was before. columns: of each write, 16 numbers."""

    decays: Buffer | None
    keeps: Buffer | None
    columns: Sequence[Buffer]


class KeySums:
    """products: where the lane's products with the block's steps begin in shared memory, from a vector's place on;
    scores: where those of the block with itself do, from a pair's place on."""

    def __init__(self, w: Writer, products: TirExpr, scores: TirExpr) -> None:
        self.w, self.products, self.scores = w, products, scores

    def row(self, at: int) -> Buffer:
        """The lane's products, of 16 steps. at: of the vector."""
        w, found = self.w, self.w.local(BLOCK)
        for i in range(0, BLOCK, FOUR):
            four = [found[i + j] for j in range(FOUR)]
            w.do(I.ptx["ld.shared.v4.f32"](*four, self.products + uint32(4 * i + at)))
        return found

    def _scores(self, at: int, line: int, columns: range) -> dict[int, TirExpr]:
        """Of the pair at that place, of an earlier step, those of some later ones."""
        found: dict[int, TirExpr] = {}
        if not columns:
            return found
        for i in range(columns.start // FOUR * FOUR, columns.stop, FOUR):
            four = self.w.tile(1, FOUR)
            self.w.do(I.ptx["ld.shared.v4.f32"](*four[0], self.scores + uint32(line * LINE_BYTES + i * 4 + at)))
            found |= {i + j: four[0][j] for j in range(FOUR)}
        return {i: found[i] for i in columns}

    def read(self, steps: Steps, vector: int, scores: Sequence[int]) -> Buffer:
        """A read-out of the matrix, of all steps. vector: its place; scores: that of the pair with each write."""
        w, found = self.w, self.row(vector)
        for s in range(BLOCK - 1):
            later = range(s + 1, BLOCK)
            own = [self._scores(at, s, later) for at in scores]
            for t in later:
                terms = [column[s] * own[i][t] for i, column in enumerate(steps.columns)]
                w.store(found, summed([_left(found[t], steps, s), *terms]), t)
        self._keep(found, [steps])
        return found

    def read_gradient(self, steps: Steps, vector: int, scores: Sequence[int]) -> Buffer:
        """The same of the gradient, which steps behind have written to."""
        w, found = self.w, self.row(vector)
        for t in range(BLOCK - 1):
            later = range(t + 1, BLOCK)
            own = [self._scores(at, t, later) for at in scores]
            total: TirExpr = found[t]
            for s in reversed(later):
                terms = [column[s] * own[i][s] for i, column in enumerate(steps.columns)]
                total = w.keep(summed([_left(total, steps, s), *terms]))
            w.store(found, total, t)
        self._keep(found, [steps])
        return found

    def both(
        self,
        state: Steps,
        gradient: Steps,
        begin: TirExpr,
        ends: Sequence[Buffer],
        reads: Buffer,
        scores: Sequence[Sequence[int]],
    ) -> Buffer:
        """The product of the matrix before each step and the gradient after it. begin: of the two at the block's
        borders; ends: what rows of each write of the matrix read of the gradient behind the block; reads: what rows of
        the gradient's writes read of the matrix before it, times columns, summed over writes. scores: places of those
        of each write of the matrix with each of the gradient."""
        w, found, outer = self.w, self.w.local(BLOCK), self.w.local(1)
        w.store(outer, begin, 0)
        for t in range(BLOCK):
            total: TirExpr = outer[0]
            for r in range(BLOCK - 1, t, -1):
                total = w.keep(_left(total, gradient, r) + reads[r])
            w.store(found, total, t)
            if t + 1 == BLOCK:
                break
            later = range(t + 2, BLOCK)  # what the next steps read
            own = [[self._scores(at, t, later) for at in line] for line in scores]
            for r in later:
                terms = []
                for i, line in enumerate(own):
                    parts = [gradient.columns[j][r] * one[r] for j, one in enumerate(line)]
                    terms.append(state.columns[i][t] * summed(parts))
                w.store(reads, summed([_left(reads[r], state, t), *terms]), r)
            terms = [state.columns[i][t] * end[t] for i, end in enumerate(ends)]
            w.store(outer, summed([_left(outer[0], state, t), *terms]), 0)
        self._keep(found, [state, gradient])
        return found

    def _keep(self, found: Buffer, every: Sequence[Steps]) -> None:
        """0 where a step begins with nothing."""
        for steps in every:
            if steps.keeps is not None:
                for t in range(BLOCK):
                    self.w.store(found, found[t] * steps.keeps[t], t)


def _left(value: TirExpr, steps: Steps, t: int) -> TirExpr:
    return value if steps.decays is None else value * steps.decays[t]


def factors(w: Writer, steps: Steps, backwards: bool) -> tuple[list[TirExpr], TirExpr]:
    """What of a step's writing is left behind the block (backwards: before it), and of what was there."""
    total: TirExpr = tirx.const(1.0, "float32")
    found = [total] * BLOCK
    for s in range(BLOCK) if backwards else range(BLOCK - 1, -1, -1):
        found[s] = total
        total = total if steps.decays is None else w.keep(total * steps.decays[s])
    return found, total


def summed(terms: Sequence[TirExpr]) -> TirExpr:
    """All of them, of which there is one at least."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
