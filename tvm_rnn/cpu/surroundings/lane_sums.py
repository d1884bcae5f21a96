"""A sum whose vectors run along what is summed: each lane adds up its own elements, then lanes are added.

In: a nest that adds up, or takes the largest or the smallest, along an axis whose elements lie side by side, where none
of the result's axes does. Out: statements.

Rewrite: for k: y += x[k]  -->  for c: lanes += x[c * 16 : c * 16 + 16]; for v: y += lanes[v]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

from tvm_rnn.surroundings.nest import Nest, mentions, reads, replaced
from tvm_rnn.tir.expr import Buffer, Expr, Stmt, TirExpr
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import load, loop, sequence, variable

from .columns import flat_index, moved_by, step_of
from .shared_loops import product, worth_it
from .sum_tiles import Sum, around, unrolled, vector, with_value

PIECES = 16  # of a sum of all there is, for threads
MANY = 4  # vectors of sums that do not wait for one another
NEUTRAL = {  # what lanes must begin with: extrema may begin with the same number twice
    tirx.Add: 0,
    tirx.Mul: 1,
}


@dataclass
class LaneSum(Sum):
    """columns: what is summed of neighbours in memory, as one loop. outside: what else is summed. element: what is
    added; step: the sum behind it, of the variables sum and own."""

    outside: Sequence[tirx.For]
    element: Expr
    step: Expr
    total: tirx.Var
    own: tirx.Var

    @staticmethod
    def of(nest: Nest, after: tirx.BufferStore | None, lanes: int, threads: TirExpr) -> LaneSum | None:
        """None: it is not such a sum."""
        value, buffer, kind = nest.store.value, nest.store.buffer, str(nest.store.buffer.dtype)
        element = _element(nest)
        joined = [] if element is None else _joined(nest.summed, element)
        if element is None or not joined:
            return None
        along, total, own = variable("k"), tirx.Var("total", kind), tirx.Var("own", kind)
        same = tvm_ffi.structural_equal
        step = tvm_ffi.structural_map(value, (type(element), lambda node: own if same(node, element) else node))
        step = with_value(step, buffer, total)
        count = math.prod([own.extent for own in joined], start=int64(1))
        columns = tirx.For(along, int64(0), count, tirx.ForKind.SERIAL, tirx.Evaluate(int64(0)))
        outside = [own for own in nest.summed if own not in joined]
        return LaneSum(nest, after, columns, lanes, threads, outside, _along(element, joined, along), step, total, own)

    def statement(self) -> Stmt:
        """Threads share the result's axes; a sum of all there is they share in pieces."""
        own = [(own.loop_var, own.extent) for own in self.nest.own]
        whole = [*(own.extent for own in self.outside), self.columns.extent]
        sums = self._registers()
        summed, end = self._summed(sums, self.outside, self.columns), self.end(sums, {}, int64(0))
        plain = sequence(tirx.AllocBuffer(sums), summed, end)
        if own:
            return self.share(own, plain)
        return worth_it(product(whole), self.threads, lambda: plain, lambda _: self._in_pieces())

    def _registers(self) -> Buffer:
        """What one thread adds up."""
        size = MANY * self.lanes
        return tirx.decl_buffer((size,), str(self.nest.store.buffer.dtype), name="sums", scope="local")

    def _in_pieces(self) -> Stmt:
        """Pieces of the walk, the same for any number of threads, and then their sums: a number is added up in the same
        order everywhere. What begins a sum may be in each: it changes nothing."""
        kind = str(self.nest.store.buffer.dtype)
        sizes = {"parts": PIECES, "total": 1}
        parts, total = (tirx.decl_buffer((n,), kind, name=name, scope="local") for name, n in sizes.items())
        cut = self.outside[0] if self.outside else self.columns

        def piece(p: tirx.Var) -> Stmt:
            sums = self._registers()
            begin, end = (tirx.truncdiv(cut.extent * (p + int64(i)), int64(PIECES)) for i in (0, 1))
            own = tirx.For(variable("k"), int64(0), end - begin, cut.kind, cut.body)
            outside = [own, *self.outside[1:]] if self.outside else []
            moved = replace(self, element=replaced(self.element, {cut.loop_var: begin + own.loop_var}))
            if not outside:
                moved.columns = own
            return sequence(
                tirx.AllocBuffer(sums),
                moved._summed(sums, outside, moved.columns),
                tirx.BufferStore(parts, load(sums, int64(0)), [p]),
            )

        return sequence(
            tirx.AllocBuffer(parts),
            tirx.AllocBuffer(total),
            loop("p", PIECES, piece, parallel=True),
            tirx.BufferStore(total, load(parts, int64(0)), [int64(0)]),
            unrolled(PIECES - 1, lambda p: self._added(total, int64(0), load(parts, p + int64(1)))),
            self.end(total, {}, int64(0)),
        )

    def _added(self, sums: Buffer, lane: Expr, value: Expr) -> Stmt:
        return tirx.BufferStore(sums, replaced(self.step, {self.total: load(sums, lane), self.own: value}), [lane])

    def _summed(self, sums: Buffer, outside: Sequence[tirx.For], columns: tirx.For) -> Stmt:
        """The first of the registers becomes the sum of a walk."""
        lanes, extent = self.lanes, columns.extent

        def vectors(count: int, first: Expr) -> Stmt:
            def one(u: tirx.Var) -> Stmt:
                at = u * int64(lanes)
                return vector(lanes, lambda v: self._added(sums, at + v, self.at(first + at + v)))

            return unrolled(count, one)

        many, whole = (tirx.truncdiv(extent, int64(n)) for n in (MANY * lanes, lanes))
        adding = sequence(
            loop("c", many, lambda c: vectors(MANY, c * int64(MANY * lanes))),
            loop("c", whole - many * int64(MANY), lambda c: vectors(1, (many * int64(MANY) + c) * int64(lanes))),
            loop(
                "c",
                extent - whole * int64(lanes),
                lambda c: self._added(sums, int64(0), self.at(whole * int64(lanes) + c)),
            ),
        )

        def folded(u: tirx.Var) -> Stmt:
            return vector(lanes, lambda v: self._added(sums, v, load(sums, (u + int64(1)) * int64(lanes) + v)))

        return sequence(
            unrolled(MANY, lambda u: vector(lanes, lambda v: self.begin(sums, {}, u * int64(lanes) + v))),
            around(outside, adding),
            unrolled(MANY - 1, folded),
            unrolled(lanes - 1, lambda v: self._added(sums, int64(0), load(sums, v + int64(1)))),
        )

    def at(self, place: Expr) -> Expr:
        """The element at a place of the walk."""
        return replaced(self.element, {self.columns.loop_var: place})


def _element(nest: Nest) -> Expr | None:
    """What is added in each step; None: the nest does not add, multiply or choose, or begins with anything."""
    value = nest.store.value
    if isinstance(value, tirx.Select):
        sides = (value.true_value, value.false_value)
    elif isinstance(value, tirx.Add | tirx.Mul | tirx.Max | tirx.Min):
        sides = (value.a, value.b)
    else:
        return None
    neutral = NEUTRAL.get(type(value))
    if neutral is not None and getattr(nest.first, "value", None) != neutral:
        return None
    others = [side for side in sides if not reads(side, nest.store.buffer)]
    return others[0] if len(others) == 1 else None


def _joined(summed: Sequence[tirx.For], element: Expr) -> list[tirx.For]:
    """The innermost loops that are one walk over neighbours in memory, the first one outside; none: there are none."""
    loads = list[tvm.ir.TensorLoad]()
    tvm_ffi.structural_walk(element, (tvm.ir.TensorLoad, loads.append))
    bare = tvm_ffi.structural_map(element, (tvm.ir.TensorLoad, lambda load: tirx.const(1, str(load.ty))))
    found, size, analyzer = list[tirx.For](), int64(1), Analyzer()
    inner = {load: step_of(load, summed[-1].loop_var) for load in loads}
    if 1 not in inner.values() or any(step not in (0, 1) for step in inner.values()):
        return []
    for own in reversed(summed):
        moved = [(moved_by(load, own.loop_var), step) for load, step in inner.items() if step is not None]
        if mentions(bare, own.loop_var) or not all(analyzer.can_prove_equal(m, size * int64(n)) for m, n in moved):
            break
        found.insert(0, own)
        size = size * own.extent
    return found


def _along(element: Expr, joined: Sequence[tirx.For], along: tirx.Var) -> Expr:
    """The element in the variable of the walk. A place is one number, behind zeros: only their sum counts in memory."""
    if len(joined) == 1:
        return replaced(element, {joined[0].loop_var: along})

    def moved(load: tvm.ir.TensorLoad) -> tvm.ir.TensorLoad:
        if not any(mentions(i, own.loop_var) for i in load.indices for own in joined):
            return load
        begin = replaced(flat_index(load), {own.loop_var: int64(0) for own in joined})
        return tirx.BufferLoad(load.source, [*[int64(0)] * (len(load.indices) - 1), begin + along])

    return tvm_ffi.structural_map(element, (tvm.ir.TensorLoad, moved))
