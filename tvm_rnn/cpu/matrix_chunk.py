"""A few steps of a matrix at once: it is read for what all of them ask, and then for what all of them write.

In: a part of a matrix (`matrix_part.py`), vectors along the value axis, which is the last one where the matrix lies in
memory. Out: a statement. A step by itself takes 5 operations for each element of a gated delta rule, a chunk of C steps
3 + 1/C; the products of the steps' vectors with each other are few, for C is. Products of decays are made without
logarithms and nothing is divided by them: a decay of 0 forgets, as it must.

Rewrite: for t: S = d[t] S + k[t] v[t] + p[t] (r[t] . S);  y[t] = q[t] . S
         -->  z[t] = R[t] . S + sum of s < t: (R[t] . K[s]) u[s];  u[t] = v[t] + .. z[t];
              y[t] = Q[t] . S + sum of s <= t: (Q[t] . K[s]) u[s];  S = D S + sum of s: K[s] u[s]
         R, Q, K: times the decays between, D: all of them

Source: Yang, Wang, Zhang, Shen & Kim 2024, "Parallelizing linear transformers with the delta rule over sequence
length".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tvm import tirx

from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Buffer, Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import Block, load, loop, sequence, store, vector

from .matrix_part import Numbers, Part, across, total
from .walk_through_time import CHUNK
from .workspace import Array

MOST_ELEMENTS = 1 << 14  # of the vectors of a chunk's steps, which are on the stack

Asked = tuple["Node | int", int]  # a read-out or the number of a product, and the step
Written = tuple[int, int]  # a column and the step
Pair = tuple[Asked, Written]


def steps_together(part: Part) -> int:
    """How many steps a chunk of this matrix has: the fewer, the more columns each writes, for what is asked is
    multiplied with every column of its chunk."""
    update = part.update
    count = max(2, CHUNK // len(update.columns))
    vectors = len(update.products) + len(part.reads) + len(update.columns)
    return count if (vectors * count + 1) * (part.keys + part.lanes) <= MOST_ELEMENTS else 1


class Chunk:
    """The steps of a chunk. rows: of each, among those of the tile; source: the matrix before them."""

    def __init__(self, part: Part, rows: Sequence[Expr], source: Array) -> None:
        self.part, self.rows, self.source, update = part, rows, source, part.update
        steps, products, columns = range(len(rows)), range(len(update.products)), range(len(update.columns))
        self.asked: list[Asked] = [(x, t) for t in steps for x in (*products, *part.reads)]
        self.written: list[Written] = [(c, t) for t in steps for c in columns]
        self.pairs = [(x, w) for x in self.asked for w in self.written if self._is_after(x, w)]
        self.one_decay = update.decay.scalar is not None or update.decay.shape[part.key] == 1
        # By key; of a single step they are read where they are.
        kept = len(rows) > 1
        self.factors = {x: self._by_key("factor") for x in self.asked if kept}
        self.columns = {w: self._by_key("column") for w in self.written if kept}
        self.decays = self._by_key("decays") if kept and not self.one_decay else None

    def statement(self) -> Stmt:
        flat = [*self.factors.values(), *self.columns.values(), *([] if self.decays is None else [self.decays])]
        between, products = self._between()
        whole, set_whole = self._whole_decay()
        blocks = self.part.over_blocks(lambda part: _Block(self, part, products, whole).statement())
        return sequence([tirx.AllocBuffer(b) for b in flat], between, set_whole, blocks)

    def _is_after(self, asked: Asked, written: Written) -> bool:
        """Whether what is asked reads what is written: the new matrix has it at the same step."""
        x, t = asked
        return written[1] < t or (written[1] == t and self._is_new(x))

    def _is_new(self, x: Node | int) -> bool:
        """Whether the matrix after the step is asked."""
        return not isinstance(x, int) and x.args[0] is self.part.root

    def _vector(self, x: Node | int) -> Node:
        return self.part.update.products[x] if isinstance(x, int) else x.args[1]

    # --- the steps' vectors of the key axis, and their products with each other --------------------------------------

    def _between(self) -> tuple[Block, dict[Pair, Expr]]:
        """Statements that find vectors and products, and each product."""
        part, dtype = self.part, self.part.dtype
        sums = {pair: self._lanes("pair") for pair in self.pairs}
        found: list[Block] = [[tirx.AllocBuffer(b), self._each(b, lambda j: self._const(0.0))] for b in sums.values()]
        found.append(loop("part", -(-part.keys // part.lanes), lambda i: self._some_keys(sums, i * int64(part.lanes))))
        products: dict[Pair, Expr] = {}
        for pair, wide in sums.items():
            numbers = Numbers(dtype)
            halves, value = across(wide, part.lanes, dtype)
            products[pair] = numbers("between", value)
            found += [halves, numbers.sets]
        return found, products

    def _some_keys(self, sums: dict[Pair, Buffer], first: Expr) -> list[Block]:
        """One vector of keys, from `first` on: all steps in their order."""
        part = self.part
        columns = {w: self._lanes("column") for w in self.written}
        decay, so_far, value = self._lanes("decay"), self._lanes("so_far"), self._lanes("value")
        found: list[Block] = [tirx.AllocBuffer(b) for b in (*columns.values(), decay, so_far, value)]

        def take(into: Buffer, node: Node, row: Expr, rest: float) -> None:
            found.append(self._each(into, lambda j: part.until_end(part.number(node, row, first + j), first + j, rest)))

        def ask(x: Asked) -> None:
            take(value, self._vector(x[0]), self.rows[x[1]], 0.0)
            for w in (w for w in self.written if (x, w) in sums):
                found.append(self._each(sums[x, w], partial(_plus, sums[x, w], value, columns[w])))
            if x in self.factors:
                if x[1] or self._is_new(x[0]):
                    found.append(self._scale(value, so_far))
                found.append(self._each(self.factors[x], lambda j: load(value, j), first))

        found.append(self._each(so_far, lambda j: self._const(1.0)))
        for t, row in enumerate(self.rows):
            for x in (x for x in self.asked if x[1] == t and not self._is_new(x[0])):
                ask(x)
            take(decay, part.update.decay, row, 1.0)
            found += [self._scale(b, decay) for b in (so_far, *(columns[w] for w in self.written if w[1] < t))]
            for c, (node, _) in enumerate(part.update.columns):
                take(columns[c, t], node, row, 0.0)
            for x in (x for x in self.asked if x[1] == t and self._is_new(x[0])):
                ask(x)
        found += [self._each(b, partial(load, columns[w]), first) for w, b in self.columns.items()]
        return [*found, self._each(self.decays, partial(load, so_far), first) if self.decays is not None else None]

    def _whole_decay(self) -> tuple[Expr, Block]:
        """The product of all decays, where it is the same for all keys."""
        if not self.one_decay:
            return self._const(1.0), None
        numbers = Numbers(self.part.dtype)
        whole = numbers("d", self._decay(0, int64(0)))
        for t in range(1, len(self.rows)):
            whole = numbers("d", whole * self._decay(t, int64(0)))
        return whole, numbers.sets

    # --- numbers by key ----------------------------------------------------------------------------------------------

    def factor(self, x: Asked, key: Expr) -> Expr:
        if x in self.factors:
            return load(self.factors[x], key)
        own = self.part.number(self._vector(x[0]), self.rows[x[1]], key)
        return own * self._decay(x[1], key) if self._is_new(x[0]) else own

    def column(self, w: Written, key: Expr) -> Expr:
        if w in self.columns:
            return load(self.columns[w], key)
        return self.part.number(self.part.update.columns[w[0]][0], self.rows[w[1]], key)

    def passed(self, key: Expr) -> Expr:
        return load(self.decays, key) if self.decays is not None else self._decay(0, key)

    def _decay(self, t: int, key: Expr) -> Expr:
        return self.part.number(self.part.update.decay, self.rows[t], key)

    # --- vectors of the key axis -------------------------------------------------------------------------------------

    def _by_key(self, name: str) -> Buffer:
        size = -(-self.part.keys // self.part.lanes) * self.part.lanes
        return tirx.decl_buffer((size,), self.part.dtype, name=name, scope="local")

    def _lanes(self, name: str) -> Buffer:
        return tirx.decl_buffer((self.part.lanes,), self.part.dtype, name=name, scope="local")

    def _each(self, into: Buffer, value: Callable[[Expr], Expr], first: Expr = 0) -> Stmt:
        return vector("j", self.part.lanes, lambda j: store(into, first + j, value(j)))

    def _scale(self, into: Buffer, factor: Buffer) -> Stmt:
        return self._each(into, lambda j: load(into, j) * load(factor, j))

    def _const(self, value: float) -> Expr:
        return tirx.const(value, self.part.dtype)


class _Block:
    """A block of the value axis: what the matrix is asked, and what it becomes. products: of the steps' vectors; decay:
    of all steps, where keys do not differ."""

    def __init__(self, chunk: Chunk, part: Part, products: Mapping[Pair, Expr], decay: Expr) -> None:
        self.chunk, self.part, self.products, self.decay = chunk, part, products, decay
        # Sums take half of the registers, beside the matrix and its factors.
        self.together = max(1, part.work.target.vector_registers // 2 // part.panels)
        turns = part.turns(min(self.together, len(chunk.asked)))
        self.sums = {x: [part.registers("sum") for _ in range(turns)] for x in chunk.asked}
        self.made = {x: part.registers("z") for x in chunk.asked if isinstance(x[0], int)}
        self.added = {w: part.registers("u") for w in chunk.written}

    def statement(self) -> list[Block]:
        flat = [b for parts in self.sums.values() for b in parts] + [*self.made.values(), *self.added.values()]
        every = self.chunk.asked
        asked = [self._ask(every[i : i + self.together]) for i in range(0, len(every), self.together)]
        steps = [self._step(t, row) for t, row in enumerate(self.chunk.rows)]
        return [[tirx.AllocBuffer(b) for b in flat], asked, steps, self._write()]

    def _ask(self, asked: Sequence[Asked]) -> list[Block]:
        part = self.part
        turns = len(self.sums[asked[0]])

        def one(turn: Expr, u: int) -> list[Block]:
            key, old = turn * int64(turns) + int64(u), part.registers("old")
            numbers = Numbers(part.dtype)
            factors = [numbers("f", self.chunk.factor(x, key)) for x in asked]
            adds = [part.add(self.sums[x][u], f, old) for x, f in zip(asked, factors, strict=True)]
            take = part.fill(old, partial(part.get, self.chunk.source, key))
            return [tirx.AllocBuffer(old), numbers.sets, take, adds]

        zeros = [part.zero(b) for x in asked for b in self.sums[x]]
        return [zeros, loop("key", part.keys // turns, lambda c: [one(c, u) for u in range(turns)])]

    def _step(self, t: int, row: Expr) -> list[Block]:
        """What is asked at step t, now that what is written before it is known; and what it writes."""
        part, found = self.part, list[Block]()

        def whole(x: Asked, j: Expr) -> Expr:
            earlier = [
                self.products[x, w] * load(self.added[w], j) for w in self.chunk.written if (x, w) in self.products
            ]
            return total([*(load(b, j) for b in self.sums[x]), *earlier])

        def leave(node: Node, j: Expr) -> list[Stmt]:
            return part.leave(node, row, j, whole((node, t), j))

        for x, into in self.made.items():
            if x[1] == t:
                found.append(part.fill(into, partial(whole, x)))
        for c, (_, addends) in enumerate(part.update.columns):
            found.append(
                part.fill(self.added[c, t], partial(part.added, addends, row, lambda i, j: load(self.made[i, t], j)))
            )
        for node in part.reads:
            found.append(part.each(partial(leave, node)))
        return found

    def _write(self) -> Stmt:
        part = self.part

        def one(key: Expr) -> list[Block]:
            numbers = Numbers(part.dtype)
            passed = self.decay if self.chunk.one_decay else numbers("d", self.chunk.passed(key))
            columns = {w: numbers("k", self.chunk.column(w, key)) for w in self.chunk.written}
            new = part.registers("new")

            def made(j: Expr) -> Expr:
                parts = [columns[w] * load(self.added[w], j) for w in self.chunk.written]
                # What is new is summed first: few additions round as coarsely as what has been gathered.
                return total([*parts, passed * part.get(self.chunk.source, key, j)])

            put = part.put(part.matrix, key, partial(load, new))
            return [tirx.AllocBuffer(new), numbers.sets, part.fill(new, made), put]

        return part.over_keys(one, part.turns(1))


def _plus(into: Buffer, one: Buffer, other: Buffer, j: Expr) -> Expr:
    return load(into, j) + load(one, j) * load(other, j)
