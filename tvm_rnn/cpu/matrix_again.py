"""A matrix and its gradient made again, step by step, for what backward reads of them along the other axis.

In: a part of a group whose rows are `rescan`, and how backward walks through time; the lanes of vectors lie along the
axis of the recurrence's keys. Out: a statement. The tape has the matrix every few steps: from such a one forward goes
through the steps until the next, and keeps the matrix before each; then the gradient goes back through them, in place.
What both are made of is known: no step waits for a product.

Rewrite: for part of time, from the last: S[0] = tape;  for t: S[t + 1] = d[t] S[t] + k[t] u[t]
         for t, backwards: dk[t] = G v[t]; dq[t] = S[t] w[t]; dd[t] = sum(S[t] * G); G = d[t] G + q[t] w[t]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from tvm import tirx

from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.recurrences import KEPT_EVERY
from tvm_rnn.tir.expr import Buffer, Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import Block, load, loop, sequence, when

from .matrix_part import Numbers, Part, held
from .matrix_update import Update, update_of
from .walk_through_time import Again
from .workspace import Array


@dataclass(frozen=True)
class _Row:
    """A matrix that is made again: which value it is, where it is, and what a step makes of it."""

    node: Node
    update: Update
    again: Again

    def at(self, slot: Expr) -> Array:
        return replace(self.again.memory, base=self.again.memory.base + slot * int64(self.again.slot))


class MatrixAgain:
    """The steps of a tile. part: of the value `part.root`, one of the rows. batch: rows of a step."""

    def __init__(self, part: Part, batch: Expr) -> None:
        self.part, self.batch, walk = part, batch, part.work.walk
        places = part.work.places
        rows = [n for n in part.work.group.nodes if n.op == "rescan"]
        found = [_Row(n, update_of(n, lambda v: places.read(v) is not None), walk.again[n.args[0]]) for n in rows]
        self.rows = {row.node: row for row in found}
        self.tape = next((row for row in found if row.again.kept is not None), None)
        self.gradient = next((row for row in found if row.again.kept is None), None)
        self.steps, self.set_steps = held("steps", walk.active(part.row))
        self.side = int64(1) - walk.direction  # 1: forward went back in time

    def statement(self) -> Stmt:
        walk = self.part.work.walk
        many = int64(KEPT_EVERY)
        parts = tirx.floordiv(walk.count + int64(KEPT_EVERY - 1), many)

        def some(p: Expr) -> list[Block]:
            high, set_high = held("high", walk.count - p * many)
            low, set_low = held("low", tirx.max(high - many, int64(0)))
            before = self.side * (walk.count - self.steps)  # of steps after a row's end, gone through first
            begin, set_begin = held("begin", tirx.max(low, before))
            count, set_count = held("steps_here", tirx.min(high, before + self.steps) - begin)
            body = self.part.over_blocks(lambda part: _Block(self, part).some(low, begin, count))
            return [set_high, set_low, set_begin, set_count, when(count > int64(0), body)]

        return sequence(self.set_steps, loop("p", parts, some))

    def time(self, position: Expr) -> Expr:
        """Of a step by its place in the order in which forward went through the tile."""
        return position + self.side * (self.part.work.walk.count - int64(1) - position - position)


class _Block:
    """A block of the lanes' axis."""

    def __init__(self, whole: MatrixAgain, part: Part) -> None:
        self.whole, self.part = whole, part

    def some(self, low: Expr, begin: Expr, count: Expr) -> list[Block]:
        """`count` steps from place `begin` on; the tape has the matrix before place `low`."""
        tape, again = self.whole.tape, list[Block]()
        if tape is not None:
            assert tape.again.kept is not None
            kept = tape.again.kept(low)
            again += [
                self._fill(tape.at(int64(0)), lambda p, key, j: p.get(kept, key, j)),
                loop("i", count, lambda i: self._forward(tape, begin, i, count)),
            ]
        return [*again, loop("i", count, lambda i: self._backward(begin, count - int64(1) - i))]

    def _at(self, begin: Expr, i: Expr) -> tuple[Expr, Expr, list[Block]]:
        time, set_time = held("time", self.whole.time(begin + i))
        row, set_row = held("now", time * self.whole.batch + self.part.row)
        return time, row, [set_time, set_row]

    def _forward(self, tape: _Row, begin: Expr, i: Expr, count: Expr) -> list[Block]:
        time, row, sets = self._at(begin, i)
        fresh = tirx.const(tape.again.fresh, self.part.dtype)
        again = self._restart(time, self._fill(tape.at(i), lambda p, key, j: fresh))
        step = _Step(self.part, tape.update, row)

        def one(key: Expr) -> list[Block]:
            return step.renew(key, partial(self.part.get, tape.at(i), key), tape.at(i + int64(1)))

        made: list[Block] = [step.begin, self.part.over_keys(one)]
        return [sets, again, when(i < count - int64(1), made)]

    def _backward(self, begin: Expr, i: Expr) -> list[Block]:
        """What is read before the step goes back, and the gradient before it."""
        part, whole = self.part, self.whole
        time, row, sets = self._at(begin, i)
        reads = [(node, part.registers("sum")) for node in part.reads]
        places = {r.node: r.at(i if r is whole.tape else int64(0)) for r in whole.rows.values()}
        values = {node: part.registers(node.args[0].name or "matrix") for node in places}
        step = None if whole.gradient is None else _Step(part, whole.gradient.update, row)

        def one(key: Expr) -> list[Block]:
            take = [part.fill(b, partial(part.get, places[node], key)) for node, b in values.items()]
            numbers, adds = Numbers(part.dtype), list[Block]()
            for node, into in reads:
                matrix, vector = values[_made(node.args[0])], node.args[1]
                if vector.op == "carried":
                    adds.append(part.fill(into, partial(_plus_product, into, matrix, values[_made(vector)])))
                else:
                    adds.append(part.add(into, numbers("f", part.number(vector, row, key)), matrix))
            renewed: list[Block] = []
            if step is not None and whole.gradient is not None:
                old = values[whole.gradient.node]
                renewed = step.renew(key, lambda j: load(old, j), places[whole.gradient.node])
            return [[tirx.AllocBuffer(b) for b in values.values()], take, numbers.sets, adds, renewed]

        def leave(node: Node, into: Buffer, j: Expr) -> list[Stmt]:
            return part.leave(node, row, j, load(into, j))

        left = [part.each(partial(leave, node, into)) for node, into in reads]
        zeros = [[tirx.AllocBuffer(b), part.zero(b)] for _, b in reads]
        zero = tirx.const(0.0, part.dtype)
        again = None
        if whole.gradient is not None:
            again = self._restart(time, self._fill(places[whole.gradient.node], lambda p, key, j: zero))
        return [sets, zeros, step.begin if step else None, part.over_keys(one), left, again]

    def _fill(self, into: Array, value: Callable[[Part, Expr, Expr], Expr]) -> Stmt:
        return self.part.over_keys(lambda key: self.part.put(into, key, partial(value, self.part, key)))

    def _restart(self, time: Expr, body: Block) -> Stmt:
        return self.part.work.walk.restart(time, self.part.row, body)


class _Step:
    """One step's vectors of lanes: what is written, and the decay. begin: statements that find them."""

    def __init__(self, part: Part, update: Update, row: Expr) -> None:
        self.part, self.update, self.row = part, update, row
        self.added = [part.registers("u") for _ in update.columns]
        self.decay = part.registers("d")
        self.begin: list[Block] = [tirx.AllocBuffer(b) for b in (*self.added, self.decay)]
        self.begin.append(part.fill(self.decay, partial(part.value, update.decay, row)))
        for into, (_, addends) in zip(self.added, update.columns, strict=True):
            self.begin.append(part.fill(into, partial(part.added, addends, row, _none)))

    def renew(self, key: Expr, old: Callable[[Expr], Expr], into: Array) -> list[Block]:
        """What the step makes of the vector of a key."""
        numbers = Numbers(self.part.dtype)
        factors = [numbers("k", self.part.number(k, self.row, key)) for k, _ in self.update.columns]

        def value(j: Expr) -> Expr:
            total = load(self.decay, j) * old(j)
            for factor, vector in zip(factors, self.added, strict=True):
                total = total + factor * load(vector, j)
            return total

        return [numbers.sets, self.part.put(into, key, value)]


def _made(node: Node) -> Node:
    """The row of which a value is the matrix before the step."""
    return node.args[0] if node.op == "carried" else node


def _plus_product(into: Buffer, one: Buffer, other: Buffer, j: Expr) -> Expr:
    return load(into, j) + load(one, j) * load(other, j)


def _none(number: int, j: Expr) -> Expr:
    raise AssertionError("a matrix that is made again has no products")
