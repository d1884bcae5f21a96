"""What a lane adds up for its key over a block of 16 steps: what steps of the block read of what others of it wrote.

In: products of the block in shared memory, decays and columns of its key in registers. Out: results of all 16 steps.
Sums go step by step, as the recurrence does, in float32: a decay is multiplied with what was before it, no logarithm
and no quotient is taken, and a decay of 0 or a reset is a factor of 0.

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

from .block_products import summed
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
    """products: where the lane's row of products is in shared memory; scores: where scores begin."""

    def __init__(self, w: Writer, products: TirExpr, scores: TirExpr) -> None:
        self.w, self.products, self.scores = w, products, scores

    def row(self) -> Buffer:
        """The lane's products, of 16 steps."""
        w, found = self.w, self.w.local(BLOCK)
        for i in range(0, BLOCK, FOUR):
            four = [found[i + j] for j in range(FOUR)]
            w.do(I.ptx["ld.shared.v4.f32"](*four, self.products + uint32(4 * i)))
        return found

    def _scores(self, number: int, line: int, columns: range) -> dict[int, TirExpr]:
        """Of the pair of that number, of a line, those of some columns."""
        found: dict[int, TirExpr] = {}
        if not columns:
            return found
        for i in range(columns.start // FOUR * FOUR, columns.stop, FOUR):
            four = self.w.tile(1, FOUR)
            at = self.scores + uint32(((number * BLOCK + line) * BLOCK + i) * 4)
            self.w.do(I.ptx["ld.shared.v4.f32"](*four[0], at))
            found |= {i + j: four[0][j] for j in range(FOUR)}
        return {i: found[i] for i in columns}

    def read(self, steps: Steps, backwards: bool) -> Buffer:
        """A read-out of all steps. backwards: of the gradient, which steps behind have written to."""
        w, found = self.w, self.row()
        for s in range(BLOCK - 1, 0, -1) if backwards else range(BLOCK - 1):
            columns = range(s) if backwards else range(s + 1, BLOCK)
            scores = [self._scores(i, s, columns) for i in range(len(steps.columns))]
            for t in columns:
                terms = [own[s] * scores[i][t] for i, own in enumerate(steps.columns)]
                before = found[t] if steps.decays is None else found[t] * steps.decays[s]
                w.store(found, summed([before, *terms]), t)
        self._keep(found, [steps])
        return found

    def both(self, state: Steps, gradient: Steps, begin: TirExpr, ends: Sequence[Buffer], reads: Buffer) -> Buffer:
        """The product of the matrix before each step and the gradient after it. begin: of the two at the block's
        borders; ends: what rows of each write of the matrix read of the gradient behind the block; reads: what rows of
        the gradient's writes read of the matrix before it, times columns, summed over writes."""
        w, found, outer = self.w, self.w.local(BLOCK), self.w.local(1)
        w.store(outer, begin, 0)
        own, every = len(state.columns), len(gradient.columns)
        for t in range(BLOCK):
            total: TirExpr = outer[0]
            for r in range(BLOCK - 1, t, -1):
                total = (total if gradient.decays is None else total * gradient.decays[r]) + reads[r]
                total = w.keep(total)
            w.store(found, total, t)
            if t + 1 == BLOCK:
                break
            later = range(t + 2, BLOCK)  # what the next steps read
            scores = [self._scores(n, t, later) for n in range(own * every)]
            for r in later:
                terms = []
                for i in range(own):
                    parts = [gradient.columns[j][r] * scores[i * every + j][r] for j in range(every)]
                    terms.append(state.columns[i][t] * summed(parts))
                w.store(reads, summed([self._left(reads[r], state, t), *terms]), r)
            terms = [state.columns[i][t] * ends[i][t] for i in range(own)]
            w.store(outer, summed([self._left(outer[0], state, t), *terms]), 0)
        self._keep(found, [state, gradient])
        return found

    def _left(self, value: TirExpr, steps: Steps, t: int) -> TirExpr:
        return value if steps.decays is None else value * steps.decays[t]

    def _keep(self, found: Buffer, every: Sequence[Steps]) -> None:
        """0 where a step begins with nothing."""
        for steps in every:
            if steps.keeps is not None:
                for t in range(BLOCK):
                    self.w.store(found, found[t] * steps.keeps[t], t)

    def factors(self, steps: Steps, backwards: bool) -> tuple[list[TirExpr], TirExpr]:
        """What of a step's writing is left behind the block (backwards: before it), and of what was there."""
        w, total = self.w, tirx.const(1.0, "float32")
        found = [total] * BLOCK
        for s in range(BLOCK) if backwards else range(BLOCK - 1, -1, -1):
            found[s] = total
            total = total if steps.decays is None else w.keep(total * steps.decays[s])
        return found, total
