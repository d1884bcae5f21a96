"""The recurrence of a matrix over all time, step by step without a wait: threads share batch rows, heads and blocks of
the value axis, and each goes through all of a tile's steps with its part of the matrix in the level-1 cache.

In: a group of kind "scan" whose first row is `scan_matrix`, and how it walks through time. Out: a statement. Vectors
run along the value axis, which is the last one where the matrix lies in memory. One pass over the matrix does a step,
what is read of it, and the products that the next step begins with.

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


@dataclass
class _Part:
    """One batch row, one head and one block of the value axis: all steps.

    written: vectors by which the matrix grows, each with the number for a key that it is multiplied with: those of
    `scan_matrix` itself, and the sums that its products begin with. sums: of what is read, and of the products of the
    next step, `turns` of each side by side.
    """

    whole: MatrixRecurrence
    root: Node
    batch: Expr
    row: Expr
    heads: tuple[Expr, ...]
    first: Expr

    def __post_init__(self) -> None:
        root, walk = self.root, self.whole.walk
        self.key, self.keys = int(root.attrs["key"]), root.shape[root.attrs["key"]]
        self.dtype, self.panels = self.whole.unit.dtype, self.whole.config["panels"]
        self.state = walk.states[root]
        self.matrix = walk.last[self.state]
        writes, products = matrix_operands(root.args, root.attrs["writes"])
        self.reads = [n for n in self.whole.group.nodes if n.op == "read_out"]
        self.turns = next(u for u in (4, 2, 1) if self.keys % u == 0 and u * self.panels <= max(SUMS, self.panels))
        self.given = [(v, self._registers("v")) for _, v in writes]
        self.begun = [(r, self._registers("z")) for _, r in products]
        values = [registers for _, registers in (*self.given, *self.begun)]
        self.written = [(k, own) for (k, _), own in zip((*writes, *products), values, strict=True)]
        self.sums = {n: [self._registers("sum") for _ in range(self.turns)] for n in self.reads}
        self.ahead = [[self._registers("ahead") for _ in range(self.turns)] for _ in products]
        self.registers = [*values, *(b for parts in (*self.sums.values(), *self.ahead) for b in parts)]

    def statement(self) -> Stmt:
        """The matrix comes to where it is left at the end, and goes through the steps there."""
        walk = self.whole.walk
        steps, set_steps = bind("steps", walk.active(self.row))
        end, set_end = bind("end", tirx.max(steps - int64(1), int64(0)))

        def time(k: Expr) -> Expr:
            return k + walk.direction * (end - k - k)

        def step(k: Expr) -> list[Block]:
            t, set_t = bind("t", time(k))
            now, set_now = bind("now", t * self.batch + self.row)
            then, set_then = bind("then", time(tirx.min(k + int64(1), end)) * self.batch + self.row)
            fresh = tirx.const(walk.fresh[self.state], self.dtype)
            fill = self._over_keys(lambda key: self._set(self.matrix, key, lambda j: fresh))
            return [
                set_t,
                set_now,
                set_then,
                walk.restart(t, self.row, [fill, self._begin(now)]),
                self._step(now, then),
            ]

        source = walk.first[self.state]
        copy = self._over_keys(lambda key: self._set(self.matrix, key, lambda j: self._get(source, key, j)))
        begin = self._begin(time(int64(0)) * self.batch + self.row)
        allocated = [tirx.AllocBuffer(b) for b in self.registers]
        return sequence(set_steps, set_end, allocated, copy, begin, loop("k", steps, step))

    def _begin(self, row: Expr) -> list[Block]:
        """The sums of a step's products, where no step before it has made them."""

        def one(key: Expr) -> list[Block]:
            numbers = _Numbers(self.dtype)
            factors = [numbers("r", self._number(r, row, key)) for r, _ in self.begun]
            adds = [
                self._add(z, factor, lambda j: self._get(self.matrix, key, j))
                for factor, (_, z) in zip(factors, self.begun, strict=True)
            ]
            return [numbers.sets, adds]

        return [[self._zero(z) for _, z in self.begun], self._over_keys(one)] if self.begun else []

    def _step(self, now: Expr, then: Expr) -> list[Block]:
        """One step, and the sums of the next one's products. now, then: their rows among those of the tile."""
        values = [self._taken(own, v, now) for v, own in self.given]
        zeros = [self._zero(b) for parts in (*self.sums.values(), *self.ahead) for b in parts]
        passed = loop(
            "key", self.keys // self.turns, lambda c: [self._one_key(c, u, now, then) for u in range(self.turns)]
        )
        leave = [self._leave(node, parts, now) for node, parts in self.sums.items()]
        renew = [self._summed(z, parts) for (_, z), parts in zip(self.begun, self.ahead, strict=True)]
        return [values, zeros, passed, leave, renew]

    def _one_key(self, turn: Expr, u: int, now: Expr, then: Expr) -> list[Block]:
        key, numbers = turn * int64(self.turns) + int64(u), _Numbers(self.dtype)
        decay = numbers("d", self._number(self.root.args[1], now, key))
        written = [(numbers("k", self._number(k, now, key)), values) for k, values in self.written]
        following = [numbers("r", self._number(r, then, key)) for r, _ in self.begun]
        asked = [numbers("q", self._number(n.args[1], now, key)) for n in self.reads]
        old, new = self._registers("old"), self._registers("new")

        def made(j: Expr) -> Stmt:
            total: Expr = decay * load(old, j)
            for factor, values in written:
                total = total + factor * load(values, j)
            return store(new, j, total)

        adds = []
        for node, factor in zip(self.reads, asked, strict=True):
            source = new if node.args[0] is self.root else old
            adds.append(self._add_registers(self.sums[node][u], factor, source))
        for parts, factor in zip(self.ahead, following, strict=True):
            adds.append(self._add_registers(parts[u], factor, new))
        take = self._each(lambda j: store(old, j, self._get(self.matrix, key, j)))
        put = self._set(self.matrix, key, lambda j: load(new, j))
        return [numbers.sets, tirx.AllocBuffer(old), tirx.AllocBuffer(new), take, self._each(made), put, adds]

    # --- vectors of the value axis -----------------------------------------------------------------------------------

    def _registers(self, name: str) -> Buffer:
        return tirx.decl_buffer((self.panels * self.whole.lanes,), self.dtype, name=name, scope="local")

    def _each(self, body: Callable[[Expr], Stmt]) -> list[Stmt]:
        """body(place) for all places of the block, vector by vector."""
        lanes = self.whole.lanes

        def one(first: int) -> Stmt:
            return vector("j", lanes, lambda j: body(j + int64(first)))

        return [one(p * lanes) for p in range(self.panels)]

    def _over_keys(self, body: Callable[[Expr], Block]) -> Stmt:
        return loop("key", self.keys, body)

    def _zero(self, into: Buffer) -> list[Stmt]:
        return self._each(lambda j: store(into, j, tirx.const(0.0, self.dtype)))

    def _add(self, into: Buffer, factor: Expr, value: Callable[[Expr], Expr]) -> list[Stmt]:
        return self._each(lambda j: store(into, j, load(into, j) + factor * value(j)))

    def _add_registers(self, into: Buffer, factor: Expr, values: Buffer) -> list[Stmt]:
        return self._add(into, factor, lambda j: load(values, j))

    def _summed(self, into: Buffer, parts: Sequence[Buffer]) -> list[Stmt]:
        return self._each(lambda j: store(into, j, _total(parts, j)))

    def _taken(self, into: Buffer, node: Node, row: Expr) -> list[Stmt]:
        return self._each(lambda j: store(into, j, self._value(node, row, j)))

    # --- the matrix in memory ----------------------------------------------------------------------------------------

    def _index(self, key: Expr, value: Expr) -> tuple[Expr, ...]:
        return (*self.heads, *((value, key) if self.key == -1 else (key, value)))

    def _get(self, array: Array, key: Expr, j: Expr) -> Expr:
        memory = self.whole.places.buffers[array.buffer]
        return load(memory, array.address(self.row, self._index(key, self.first + j)))

    def _set(self, array: Array, key: Expr, value: Callable[[Expr], Expr]) -> list[Stmt]:
        memory = self.whole.places.buffers[array.buffer]
        return self._each(lambda j: store(memory, array.address(self.row, self._index(key, self.first + j)), value(j)))

    # --- operands, which are known for all steps ---------------------------------------------------------------------

    def _element(self, node: Node, row: Expr, index: Index) -> Expr:
        places = self.whole.places

        def read(n: Node, i: Index) -> Expr | None:
            array = places.read(n)
            return None if array is None else load(places.buffers[array.buffer], array.address(row, i))

        return element(node, fit(node.shape, index), read, self.dtype)

    def _number(self, node: Node, row: Expr, key: Expr) -> Expr:
        """A number for a key."""
        return self._element(node, row, self._index(key, 0))

    def _value(self, node: Node, row: Expr, j: Expr) -> Expr:
        """What is written along the value axis."""
        return self._element(node, row, self._index(0, self.first + j))

    def _leave(self, node: Node, parts: Sequence[Buffer], row: Expr) -> list[Block]:
        """What was read of the matrix, to where it is stored."""
        places = self.whole.places

        def one(array: Array) -> list[Stmt]:
            memory = places.buffers[array.buffer]
            return self._each(
                lambda j: store(memory, array.address(row, (*self.heads, self.first + j)), _total(parts, j))
            )

        return [one(array) for array in places.write(node)] if node in self.whole.group.stored else []


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
