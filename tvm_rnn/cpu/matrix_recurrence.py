"""The recurrence of a matrix over all time, step by step without a wait: threads share batch rows, heads and blocks of
the value axis, and each goes through all of a tile's steps with its part of the matrix in the level-1 cache.

In: a group of kind "scan" whose first row is `scan_matrix`, and how it walks through time. Out: a statement. Vectors run
along the value axis, which is the last one where the matrix lies in memory. One pass over the matrix does a step, what
is read of it, and the products that the next step begins with.

Rewrite: S' = d S + k v + p (r . S); y = q . S'
         -->  parallel for row, head, block: z = r[0] . S;
                  for t: for key: S = d S + k v + p z;  y += q S;  next z += r[t + 1] S
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from tvm import tirx

from tvm_rnn.graph.graph import Group, Node
from tvm_rnn.graph.recurrences import matrix_operands
from tvm_rnn.graph.tensor_expressions import Index, element, fit
from tvm_rnn.schedule.schedule_template import Config, Unit
from tvm_rnn.tir.expr import Buffer, Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import Block, Named, bind, floordiv, floormod, load, loop, sequence, store, vector

from .recurrence import shared
from .register_tile import Places
from .walk_through_time import Walk
from .workspace import Array

SUMS = 4  # that must be under way at once, for one addition waits for the one before it


@dataclass(frozen=True)
class MatrixRecurrence:
    """One group on a tile's steps. config: how many vectors of the value axis go through time together."""

    group: Group
    unit: Unit
    places: Places
    walk: Walk
    lanes: int
    config: Config

    def statement(self, rows: Expr) -> Stmt:
        """The whole group. rows: steps x batch rows of the tile."""
        root, batch = self.group.root, self.places.batch
        assert root is not None and batch is not None and not self.walk.kept and not self.walk.behind
        heads, across = root.shape[:-2], self.config["panels"]
        blocks = -(-self.unit.width // self.lanes) // across

        def task(i: Expr) -> list[Block]:
            named, left = Named(), floordiv(i, blocks)
            first = named("first", floormod(i, blocks) * int64(across * self.lanes))
            index: list[Expr] = []
            for axis, size in reversed([*enumerate(heads)]):
                index.insert(0, named(f"i{axis}", floormod(left, size)))
                left = floordiv(left, size)
            row = named("row", left)
            return [*named.sets, _Part(self, root, batch, row, tuple(index), first).statement()]

        return shared(batch * int64(prod(heads) * blocks), rows * int64(prod(root.shape)), self.places, task)


@dataclass(frozen=True)
class _Part:
    """One batch row, one head and one block of the value axis: all steps."""

    whole: MatrixRecurrence
    root: Node
    batch: Expr
    row: Expr
    heads: tuple[Expr, ...]
    first: Expr

    @property
    def _key(self) -> int:
        return int(self.root.attrs["key"])

    @property
    def _size(self) -> int:
        return self.whole.config["panels"] * self.whole.lanes

    def statement(self) -> Stmt:
        """The matrix comes to where it is left at the end, and goes through the steps there."""
        walk, root, dtype = self.whole.walk, self.root, self.whole.unit.dtype
        state = walk.states[root]
        writes, products = matrix_operands(root.args, root.attrs["writes"])
        reads = [n for n in self.whole.group.nodes if n.op == "read_out"]
        turns = next(
            u
            for u in (4, 2, 1)
            if root.shape[self._key] % u == 0 and (u == 1 or u * self._size <= SUMS * self.whole.lanes)
        )
        given = [self._registers(f"v{i}") for i in range(len(writes))]
        ready = [self._registers(f"z{i}") for i in range(len(products))]
        sums = [[self._registers(f"y{i}_{u}") for u in range(turns)] for i in range(len(reads))]
        ahead = [[self._registers(f"z{i}_{u}") for u in range(turns)] for i in range(len(products))]
        matrix = walk.last[state]
        steps, set_steps = bind("steps", walk.active(self.row))

        def at(k: Expr) -> Expr:
            return (k + walk.direction * (steps - int64(1) - k - k)) * self.batch + self.row

        def products_of(row: Expr) -> list[Block]:
            """What the products of a step begin with, by a pass of their own."""
            if not products:
                return []

            def one(key: Expr) -> list[Block]:
                named = _Numbers(dtype)
                factors = [named("r", self._operand(r, row, key)) for _, r in products]
                adds = [self._add(z, f, self._load(matrix, key)) for z, f in zip(ready, factors, strict=True)]
                return [named.sets, adds]

            return [[self._zero(z) for z in ready], loop("key", root.shape[self._key], one)]

        def step(k: Expr) -> list[Block]:
            now, set_now = bind("now", at(k))
            then, set_then = bind("then", at(tirx.min(k + int64(1), steps - int64(1))))
            t, set_t = bind("t", k + walk.direction * (steps - int64(1) - k - k))
            value = tirx.const(walk.fresh[state], dtype)
            again = [self._fill(matrix, value), products_of(now)]
            values = [
                self._each(lambda j, g=g, v=v: store(g, j, self._value(v, now, j)))
                for g, (_, v) in zip(given, writes, strict=True)
            ]
            zeros = [self._zero(b) for group in (*sums, *ahead) for b in group]
            body = loop(
                "key",
                root.shape[self._key] // turns,
                lambda c: [one(c * int64(turns) + int64(u), u, now, then) for u in range(turns)],
            )
            leave = [self._leave(n, parts, now) for n, parts in zip(reads, sums, strict=True)]
            renew = [
                self._each(lambda j, z=z, p=p: store(z, j, _total(p, j))) for z, p in zip(ready, ahead, strict=True)
            ]
            return [set_t, set_now, set_then, walk.restart(t, self.row, again), values, zeros, body, leave, renew]

        def one(key: Expr, u: int, now: Expr, then: Expr) -> list[Block]:
            """One key of one step."""
            named = _Numbers(dtype)
            decay = named("d", self._operand(root.args[1], now, key))
            written = [
                (named("k", self._operand(k, now, key)), g) for k, g in zip((k for k, _ in writes), given, strict=True)
            ]
            written += [
                (named("p", self._operand(p, now, key)), z)
                for p, z in zip((p for p, _ in products), ready, strict=True)
            ]
            following = [named("r", self._operand(r, then, key)) for _, r in products]
            asked = [named("q", self._operand(q.args[1], now, key)) for q in reads]
            old = self._registers("old")
            new = self._registers("new")
            take = self._each(lambda j: store(old, j, self._load(matrix, key)(j)))

            def made(j: Expr) -> Stmt:
                total: Expr = decay * load(old, j)
                for factor, values in written:
                    total = total + factor * load(values, j)
                return store(new, j, total)

            adds: list[Block] = []
            for read, factor, parts in zip(reads, asked, sums, strict=True):
                source = new if read.args[0] is root else old
                adds.append(self._add(parts[u], factor, lambda j, s=source: load(s, j)))
            for factor, parts in zip(following, ahead, strict=True):
                adds.append(self._add(parts[u], factor, lambda j: load(new, j)))
            leave = self._each(lambda j: store(self._memory(matrix), self._place(matrix, key, j), load(new, j)))
            allocated = [tirx.AllocBuffer(b) for b in (old, new)]
            return [named.sets, allocated, take, self._each(made), leave, adds]

        registers = [*given, *ready, *(b for group in (*sums, *ahead) for b in group)]
        begin = loop("key", root.shape[self._key], lambda key: self._copy(walk.first[state], matrix, key))
        return sequence(
            set_steps,
            [tirx.AllocBuffer(b) for b in registers],
            begin,
            products_of(at(int64(0))),
            loop("k", steps, step),
        )

    # --- vectors of the value axis -----------------------------------------------------------------------------------

    def _registers(self, name: str) -> Buffer:
        return tirx.decl_buffer((self._size,), self.whole.unit.dtype, name=name, scope="local")

    def _each(self, body: Callable[[Expr], Stmt]) -> list[Stmt]:
        """body(place) for all places of the block, vector by vector."""
        lanes = self.whole.lanes
        return [
            vector("j", lanes, lambda j, p=p: body(j + int64(p * lanes))) for p in range(self.whole.config["panels"])
        ]

    def _zero(self, into: Buffer) -> list[Stmt]:
        return self._each(lambda j: store(into, j, tirx.const(0.0, self.whole.unit.dtype)))

    def _add(self, into: Buffer, factor: Expr, value: Callable[[Expr], Expr]) -> list[Stmt]:
        return self._each(lambda j: store(into, j, load(into, j) + factor * value(j)))

    # --- the matrix in memory ----------------------------------------------------------------------------------------

    def _memory(self, array: Array) -> Buffer:
        return self.whole.places.buffers[array.buffer]

    def _index(self, key: Expr, value: Expr) -> tuple[Expr, ...]:
        return (*self.heads, *((value, key) if self._key == -1 else (key, value)))

    def _place(self, array: Array, key: Expr, j: Expr) -> Expr:
        return array.address(self.row, self._index(key, self.first + j))

    def _load(self, array: Array, key: Expr) -> Callable[[Expr], Expr]:
        return lambda j: load(self._memory(array), self._place(array, key, j))

    def _copy(self, source: Array, into: Array, key: Expr) -> list[Stmt]:
        return self._each(lambda j: store(self._memory(into), self._place(into, key, j), self._load(source, key)(j)))

    def _fill(self, array: Array, value: Expr) -> Stmt:
        def one(key: Expr) -> list[Stmt]:
            return self._each(lambda j: store(self._memory(array), self._place(array, key, j), value))

        return loop("key", self.root.shape[self._key], one)

    # --- operands, which are known for all steps ---------------------------------------------------------------------

    def _element(self, node: Node, row: Expr, index: Index) -> Expr:
        places = self.whole.places

        def read(n: Node, i: Index) -> Expr | None:
            array = places.read(n)
            return None if array is None else load(places.buffers[array.buffer], array.address(row, i))

        return element(node, fit(node.shape, index), read, self.whole.unit.dtype)

    def _operand(self, node: Node, row: Expr, key: Expr) -> Expr:
        """A number for a key."""
        return self._element(node, row, self._index(key, 0))

    def _value(self, node: Node, row: Expr, j: Expr) -> Expr:
        """What is written along the value axis."""
        return self._element(node, row, self._index(0, self.first + j))

    def _leave(self, node: Node, parts: Sequence[Buffer], row: Expr) -> list[Block]:
        """What was read of the matrix, to where it is stored."""
        arrays = self.whole.places.write(node) if node in self.whole.group.stored else ()
        return [
            self._each(
                lambda j, a=a: store(self._memory(a), a.address(row, (*self.heads, self.first + j)), _total(parts, j))
            )
            for a in arrays
        ]


class _Numbers(Named):
    """Names numbers of a dtype."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.dtype = dtype

    def __call__(self, name: str, value: Expr) -> Expr:
        var = tirx.Var(name, self.dtype)
        self.sets.append(tirx.Bind(var, value))
        return var


def _total(parts: Sequence[Buffer], j: Expr) -> Expr:
    total: Expr = load(parts[0], j)
    for part in parts[1:]:
        total = total + load(part, j)
    return total
