"""Results of a tile that wait in registers, and are stored while the next tile's product is under way.

In: a `Problem` whose results are 16 bits in vectors of 16 bytes. Out: statements that keep the results of an epilogue,
and statements that store them, one vector each. All multiprocessors come to the ends of their tiles at about the same
time: what they store at once is more than L2 takes while nobody multiplies.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tvm import tirx

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.layer.packed_layout import SIZES
from tvm_rnn.tir.expr import TirExpr

from .problem import Item, Problem, Span, Write

MOST_WORDS = 64  # registers beside the sums


def words_of(problem: Problem, columns: int) -> int:
    """Registers of a lane for the results of a tile of 64 rows and so many columns; 0 where they cannot wait."""
    writes, count = problem.writes_of(), 2 * problem.fragments.span
    if any(SIZES[w.place.dtype] != 2 or _at_once(problem, w, count) < 16 for w in writes):
        return 0
    words = 2 * columns // problem.fragments.block * len(writes) * count // 2
    return words if words <= MOST_WORDS else 0


def _at_once(problem: Problem, write: Write, count: int) -> int:
    return problem.bytes_at_once(write.node, write.place, write.offset, write.apart, count)


class LaterStores:
    """Of a lane that has two rows of a tile, and of each as many spans of units as the tile has blocks. Before the
    first tile there is nothing: its rows are behind all rows."""

    def __init__(self, w: Writer, problem: Problem, columns: int, lane: TirExpr) -> None:
        self.w, self.problem, self.lane = w, problem, lane
        self.writes, self.count = problem.writes_of(), 2 * problem.fragments.span
        self.blocks = columns // problem.fragments.block
        self.words = w.local(words_of(problem, columns), "uint32")
        self.rows, self.block = w.local(2, "int64"), w.local(1, "int32")
        w.store(self.block, tirx.const(0, "int32"), 0)
        for half in range(2):
            w.store(self.rows, w["rows"], half)

    def keep(self, number: int, item: Item, span: Span) -> None:
        """The results of the number-th item of a tile: of the first row all blocks, then of the second one."""
        w = self.w
        if number % self.blocks == 0:
            w.store(self.rows, item.row, number // self.blocks)
        if number == 0:
            w.store(self.block, item.block, 0)
        span.compute()
        for n, write in enumerate(self.writes):
            for at, word in enumerate(span.words(write, span.of(write)), self._first(number, n)):
                w.store(self.words, word, at)

    def stores(self) -> list[Callable[[], None]]:
        """Statements that store what is kept, one vector each."""
        return [partial(self._put, i, n) for i in range(2 * self.blocks) for n in range(len(self.writes))]

    def _first(self, number: int, write: int) -> int:
        return (number * len(self.writes) + write) * self.count // 2

    def _put(self, number: int, n: int) -> None:
        w, own, first = self.w, self.problem, self._first(number, n)
        row, block = self.rows[number // self.blocks], self.block[0] + number % self.blocks
        unit = w.bind(own.unit_of(block, self.lane, self.count))
        with w.when(tirx.And(row < w["rows"], unit < own.layout.width)):
            nothing = [[tirx.const(0.0, own.arithmetic)] * self.count] * own.layout.gates
            span = Span(own, w, row, unit, nothing)
            span.put(self.writes[n], [self.words[first + i] for i in range(self.count // 2)])
