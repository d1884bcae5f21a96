"""How the loops of what is around networks run: what is pointwise goes into what reads it, sums into registers.

In: functions of blocks, as `calls.py` has them of Relax. Out: statements, one loop nest after the other, with arrays
that they need meanwhile. A product of matrices or a convolution becomes tiles of rows and vectors; a row is a row of
the left matrix, a filter, or, where vectors run along filters, a position. What no rule knows stays as it is: plain
loops.

Rewrite: for s: for r: y[s] += f(s, r); for s: z[s] = g(y[s])  -->  parallel for tiles: registers = sum of f; z = g
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tvm import tirx

from tvm_rnn.cpu.pair_product import PairProduct
from tvm_rnn.surroundings.nest import Nest, nest_of, reads, reads_nothing, renaming, replaced
from tvm_rnn.tir.expr import Buffer, Stmt, TirExpr
from tvm_rnn.tir.statements import sequence, variable

from .columns import Laid, Panels, columns_of, in_panels, turned
from .lane_sums import LaneSum
from .pair_sum import PairSum, are_exact, factors_of, short_copy
from .panel_sum import PanelSum
from .pointwise import Pointwise
from .sum_tiles import Sum
from .whole_numbers import WholeNumbers


@dataclass
class Tiles:
    """Statements for nests on a CPU with vectors of so many elements. threads: how many share the work. laid: how
    constants can be laid out. whole: which arrays hold whole numbers. pairs: instructions for their products, by words
    of a vector. copies: arrays of these statements' own that they need meanwhile; added."""

    lanes: int
    threads: TirExpr
    laid: Laid = field(default_factory=Laid)
    whole: WholeNumbers = field(default_factory=WholeNumbers)
    pairs: Mapping[int, PairProduct] = field(default_factory=dict)
    copies: list[Buffer] = field(default_factory=list)

    def scheduled(self, nests: Sequence[Stmt], temporary: Callable[[Buffer], bool]) -> list[Stmt]:
        """The statements in order. temporary: whether an array is read by these statements alone."""
        done, i = list[Stmt](), 0
        while i < len(nests):
            nest = nest_of(nests[i])
            i += 1
            if nest is None or not nest.summed:
                done.append(nests[i - 1] if nest is None else Pointwise(nest, self.lanes, self.threads).statement())
                continue
            if not nest.own:
                lanes = LaneSum.of(nest, None, self.lanes, self.threads)
                done.append(nests[i - 1] if lanes is None else lanes.statement())
                continue
            while i < len(nests) and self._may_go_before(nests[i], nest):
                done.append(nests[i])
                i += 1
            after = nest_of(nests[i]) if i < len(nests) else None
            behind = nests[i + 1 :]
            if after is not None and self._follows(nest, after, behind) and temporary(nest.store.buffer):
                done.append(self.sum(nest, after))
                i += 1
            else:
                done.append(self.sum(nest, None))
        return done

    def _may_go_before(self, statement: Stmt, nest: Nest) -> bool:
        """Whether it is a single number, which the sum's follower may read, and that does not read the sum."""
        return isinstance(statement, tirx.BufferStore) and not reads(statement, nest.store.buffer)

    def _follows(self, nest: Nest, after: Nest, behind: Sequence[Stmt]) -> bool:
        """Whether a pointwise nest reads a sum only where it was just made, and nobody does later."""
        if after.summed or any(reads(s, nest.store.buffer) for s in behind):
            return False
        found = reads(after.store.value, nest.store.buffer)
        return bool(found) and renaming(nest, after) is not None

    def sum(self, nest: Nest, after: Nest | None) -> Stmt:
        """Tiles of rows and vectors, each summed in registers, and stored by `after` where there is one."""
        store = None if after is None else replaced(after.store, renaming(nest, after) or {})
        columns = columns_of(nest, self.lanes, self.laid)
        plain = Sum(nest, store, columns, self.lanes, self.threads)
        width = PanelSum.width(plain)
        if (pairs := self.in_pairs(plain, width)) is not None:
            return pairs
        if reads_nothing(nest.first) and (found := in_panels(nest, columns, self.laid, width)) is not None:
            return PanelSum(found[0], store, columns, min(self.lanes, width), self.threads, found[1]).statement()
        dense = turned(nest, columns, self.laid)
        lanes = None if dense is not None else LaneSum.of(nest, store, self.lanes, self.threads)
        return lanes.statement() if lanes is not None else replace(plain, nest=dense or nest).statement()

    def in_pairs(self, plain: Sum, width: int) -> Stmt | None:
        """The sum as one of pairs of whole numbers; None: it is none, or the CPU has no instruction for it."""
        nest, columns, laid, lanes = plain.nest, plain.columns, self.laid, min(self.lanes, width)
        factors = factors_of(nest, columns, laid.known) if lanes in self.pairs else None
        found = None if factors is None else self.whole.of(factors.moving)
        if factors is None or found is None:
            return None
        source, known = factors.moving.source, laid.array(factors.still.source)
        if known is None or not are_exact(factors, found, known, str(nest.store.buffer.dtype)):
            return None
        weights = laid.paired(factors.still.source, factors.column, factors.pair, width)
        if weights is None:
            return None
        into, copy = short_copy(source)
        self.copies.append(into)
        short = replace(factors, moving=tirx.BufferLoad(into, factors.moving.indices))
        panels = Panels(width, variable("panel"), variable("column"))
        tiles = (nest, plain.after, columns, lanes, self.threads, panels, short, weights, self.pairs[lanes])
        return sequence(Pointwise(copy, self.lanes, self.threads).statement(), PairSum(*tiles).statement())
