"""What steps of a recurrence of vectors do to any states that enter them.

In: steps whose operands are there. Out: an `Effect` in registers, of one of a thread's elements: a matrix of the states
and a vector (of `scan_max` a sum and a maximum), and whether something cut the states off. Effects are joined in the
order of time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from tvm import tirx

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.layer.pointers import arithmetic
from tvm_rnn.cuda.layer.row_kernels import Values
from tvm_rnn.graph import scalar
from tvm_rnn.graph.graph import Node, recurrence_states
from tvm_rnn.graph.tensor_expressions import Index, fit
from tvm_rnn.tir.expr import Buffer, Expr, TirExpr

from .vector_group import VectorGroup
from .vector_loads import Step


class Rows:
    """What the rows of a group make of states. cuts: whether steps may cut states off. indices: of a thread's elements,
    once they are known."""

    indices: list[Index]

    def __init__(self, w: Writer, scan: VectorGroup, masked: bool) -> None:
        self.w, self.scan, self.masked = w, scan, masked
        self.dtype = arithmetic(scan.job.precision)
        self.cuts = masked or scan.rows[0].op == "delay"

    def initial(self, state: Node) -> TirExpr:
        return tirx.const(self.scan.initial.get(state.name, 0.0), self.dtype)

    def terms(self, row: Node, values: Values, element: int) -> list[TirExpr]:
        """What a row is made of beside states, for one of the thread's elements."""
        index = self.indices[element]
        return [values.at(a, fit(a.shape, index)) for a in row.args[len(recurrence_states(row)) :]]

    def fresh(self, row: Node, values: Values, old: Mapping[Node, TirExpr], element: int) -> TirExpr:
        """A row's value of old ones."""
        states, terms = recurrence_states(row), self.terms(row, values, element)
        if row.op == "scan_max":
            return scalar.maximum(scalar.add(old[states[0]], terms[0]), terms[1])
        if row.op == "delay":
            return terms[0]
        total = terms[-1]
        for state, factor in zip(states, terms[:-1], strict=True):
            total = scalar.add(scalar.mul(factor, old[state]), total)
        return total

    def act(self, held: Sequence[Buffer], words: Sequence[Expr]) -> None:
        """Let steps act on states, in registers. words: what they do."""
        w, n = self.w, len(self.scan.rows)
        old = [w.keep(register[0]) for register in held]
        for i, register in enumerate(held):
            constant = words[1 + n * n + i]
            total = constant
            for factor, state in zip(words[1 + i * n : 1 + (i + 1) * n], old, strict=True):
                both = scalar.add if self.scan.is_max else scalar.mul
                joined = scalar.maximum if self.scan.is_max else scalar.add
                total = joined(both(factor, state), total)
            cut = tirx.NE(words[0], tirx.const(0.0, self.dtype))
            w.store(register, tirx.Select(cut, constant, total) if self.cuts else total, 0)


class Effect:
    """What steps do to any states of one of a thread's elements that enter them, in registers: nothing at first."""

    def __init__(self, rows: Rows, element: int) -> None:
        self.of, self.w, self.scan, self.dtype = rows, rows.w, rows.scan, rows.dtype
        self.element = element
        states = self.scan.states
        self.cut = self.w.local(1, self.dtype)
        self.matrix = [[self.w.local(1, self.dtype) for _ in states] for _ in states]
        self.vector = [self.w.local(1, self.dtype) for _ in states]
        self.become(self.nothing())

    def nothing(self) -> list[TirExpr]:
        """The words of no steps."""
        states, is_max = range(len(self.vector)), self.scan.is_max
        matrix = [float(i == j and not is_max) for i in states for j in states]
        return [tirx.const(word, self.dtype) for word in (0.0, *matrix, *(-inf if is_max else 0.0 for _ in states))]

    def words(self) -> list[TirExpr]:
        return [register[0] for register in self._registers()]

    def _registers(self) -> list[Buffer]:
        return [self.cut, *(register for row in self.matrix for register in row), *self.vector]

    def step(self, step: Step) -> None:
        """Another step behind them."""
        w, scan, of = self.w, self.scan, self.of
        if step.restart is not None:
            w.store(self.cut, tirx.Select(step.restart, tirx.const(1.0, self.dtype), self.cut[0]), 0)
            for state, register in zip(scan.states, self.vector, strict=True):
                w.store(register, tirx.Select(step.restart, of.initial(state), register[0]), 0)
        old = {state: w.keep(v[0]) for state, v in zip(scan.states, self.vector, strict=True)}
        matrix = [[w.keep(register[0]) for register in row] for row in self.matrix]
        new = [(i, w.keep(of.fresh(row, step.values, old, self.element))) for i, row in enumerate(scan.rows)]
        for i, value in new:
            self._kept(self.vector[i], value, step.active)
        for i, row in enumerate(scan.rows):
            for j, register in enumerate(self.matrix[i]):
                self._kept(register, self._column(row, step.values, [line[j] for line in matrix]), step.active)
        if scan.rows[0].op == "delay":
            self._kept(self.cut, tirx.const(1.0, self.dtype), step.active)

    def join(self, words: Sequence[Expr]) -> None:
        """Steps behind them, of which it is known what they do."""
        w, n = self.w, len(self.vector)
        self.of.act(self.vector, words)
        matrix = [[w.keep(register[0]) for register in row] for row in self.matrix]
        for i, row in enumerate(self.matrix):
            for j, register in enumerate(row):
                factors = words[1 + i * n : 1 + (i + 1) * n]
                if self.scan.is_max:
                    w.store(register, scalar.add(factors[j], matrix[i][j]), 0)
                    continue
                total: TirExpr = tirx.const(0.0, self.dtype)
                for k, factor in enumerate(factors):
                    total = scalar.add(scalar.mul(factor, matrix[k][j]), total)
                w.store(register, total, 0)
        if not self.of.cuts:
            return
        cut = tirx.NE(words[0], tirx.const(0.0, self.dtype))
        w.store(self.cut, tirx.Select(cut, tirx.const(1.0, self.dtype), self.cut[0]), 0)

    def become(self, words: Sequence[Expr]) -> None:
        """Other steps in their place, of which it is known what they do."""
        for register, word in zip(self._registers(), words, strict=True):
            self.w.store(register, word, 0)

    def come_behind(self, words: Sequence[Expr]) -> None:
        """Steps before them, of which it is known what they do."""
        own = [self.w.keep(word) for word in self.words()]
        self.become(words)
        self.join(own)

    def _kept(self, register: Buffer, value: TirExpr, active: Expr | None) -> None:
        self.w.store(register, value if active is None else tirx.Select(active, value, register[0]), 0)

    def _column(self, row: Node, values: Values, column: Sequence[TirExpr]) -> TirExpr:
        """One number of the matrix after a row; of `scan_max` the sum so far."""
        states, terms = recurrence_states(row), self.of.terms(row, values, self.element)
        if row.op == "scan_max":
            return scalar.add(column[0], terms[0])
        total: TirExpr = tirx.const(0.0, self.dtype)
        for state, factor in zip(states, terms[:-1], strict=row.op != "delay"):
            total = scalar.add(scalar.mul(factor, column[self.scan.states.index(state)]), total)
        return total
