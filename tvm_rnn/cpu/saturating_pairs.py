"""Weights of products of bytes for an instruction whose sums of two products saturate in 16 bits.

In: words of four signed bytes, as `weight_packing.py` leaves them: [panel][word][gate][lane]. Out: the same words, in
which no sum of two products with numbers from 0 to 255 can leave 16 bits, and what was taken out of them. The first and
the second byte of a word are added, and the third and the fourth: where both together are beyond 128, the second one
moves to a word of its own. Words that have something moved are listed for each panel, and are multiplied once more.

Weights that were trained are near zero but for a few: of 1,000 pairs none to two move. So two instructions do for four
products what widening to 16 bits does in four, and sums are exact whatever the weights are.

Rewrite: for w: sums[g, v] += word[w, g, v] . levels[w]
         -->  for w: sums[g, v] += kept[w, g, v] . levels[w]; for e: sums[g, v] += moved[e, g, v] . levels[listed[e]]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
from tvm import tirx

from tvm_rnn.tir.expr import Buffer, Expr, Stmt, TirExpr
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import Block, bind, load, loop, sequence, store

MOST = 128  # of two weights together: 255 times as much is below 2**15
FEW = 1 / 256  # of all pairs: a word of 4 gates of 8 units has 64, so that a fifth of all words are multiplied twice


def are_few(matrices: Iterable[np.ndarray]) -> bool:
    """Whether few pairs of weights move, of matrices [..., K] of whole numbers of a byte; False of none."""
    moved = pairs = 0
    for matrix in matrices:
        half = matrix.shape[-1] // 2
        moved += int((np.abs(matrix[..., :half] + matrix[..., half : 2 * half]) > MOST).sum())
        pairs += matrix[..., :half].size
    return pairs > 0 and moved <= FEW * pairs


@dataclass(frozen=True)
class Words:
    """A matrix in words of 32 bits. base: of its first word; panels, count, gates, lanes: of its words."""

    base: Expr
    panels: int
    count: int
    gates: int
    lanes: int

    @property
    def size(self) -> int:
        """Words that it takes: as many once more for what moves, and for each panel how many and which."""
        return 2 * self._words + self.panels * (self.count + 1)

    @property
    def _words(self) -> int:
        return self.panels * self.count * self.gates * self.lanes

    def kept(self, panel: Expr, word: Expr, gate: Expr, lane: Expr) -> TirExpr:
        return self.base + ((panel * int64(self.count) + word) * int64(self.gates) + gate) * int64(self.lanes) + lane

    def moved(self, panel: Expr, number: Expr, gate: Expr, lane: Expr) -> TirExpr:
        """number: of a word in the panel's list."""
        return int64(self._words) + self.kept(panel, number, gate, lane)

    def listed(self, panel: Expr, number: Expr) -> TirExpr:
        """Where it is said which word is number 1, 2 ... of a panel's list; number 0: how many there are."""
        return self.base + int64(2 * self._words) + panel * int64(self.count + 1) + number

    def split(self, words: Buffer) -> Stmt:
        """Move what may saturate."""

        def one(p: Expr, w: Expr) -> list[Block]:
            seen = tirx.decl_buffer((1,), "int32", name="seen", scope="local")
            found, set_found = bind("found", tirx.Cast("int64", load(words, self.listed(p, int64(0)))))
            number, set_number = bind("number", found + int64(1))

            def move(g: int, v: Expr) -> list[Stmt]:
                word, moved = (load(words, own(int64(g), v)) for own in (partial(self.kept, p, w), into))
                return [
                    store(words, into(int64(g), v), _moved(word)),
                    store(words, self.kept(p, w, int64(g), v), tirx.bitwise_xor(word, moved)),
                    store(seen, int64(0), tirx.bitwise_or(load(seen, int64(0)), moved)),
                ]

            into = partial(self.moved, p, found)
            lanes = [loop("v", self.lanes, partial(move, g)) for g in range(self.gates)]
            more = tirx.Select(tirx.NE(load(seen, int64(0)), _int(0)), number, found)
            listed = store(words, self.listed(p, number), tirx.Cast("int32", w))
            count = store(words, self.listed(p, int64(0)), tirx.Cast("int32", more))
            nothing = store(seen, int64(0), _int(0))
            return [tirx.AllocBuffer(seen), nothing, set_found, set_number, *lanes, listed, count]

        def panel(p: Expr) -> list[Stmt]:
            return [store(words, self.listed(p, int64(0)), _int(0)), loop("w", self.count, lambda w: one(p, w))]

        return loop("p", self.panels, panel)

    def again(self, words: Buffer, panel: Expr, multiply: Callable[[Expr, Callable[[int], Expr]], list[Stmt]]) -> Stmt:
        """Multiply what was moved. multiply: a word's levels by the words of each gate, by their first places."""

        def one(e: Expr) -> Stmt:
            word, set_word = bind("again", tirx.Cast("int64", load(words, self.listed(panel, e + int64(1)))))
            return sequence(set_word, multiply(word, lambda g: self.moved(panel, e, int64(g), int64(0))))

        return loop("e", tirx.Cast("int64", load(words, self.listed(panel, int64(0)))), one)


def _moved(word: TirExpr) -> TirExpr:
    """The second byte of each pair that is too large, in its place."""
    one, two, three, four = [(word << _int(24 - 8 * j)) >> _int(24) for j in range(4)]

    def over(a: TirExpr, b: TirExpr, bits: int) -> TirExpr:
        return tirx.Select(tirx.abs(a + b) > _int(MOST), tirx.bitwise_and(word, _int(bits)), _int(0))

    return tirx.bitwise_or(over(one, two, 0xFF00), over(three, four, -(1 << 24)))


def _int(value: int) -> TirExpr:
    return tirx.const(value, "int32")
