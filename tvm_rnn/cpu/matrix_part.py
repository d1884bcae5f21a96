"""The part of a matrix that one thread takes through time: one batch row, one head, blocks of the value axis.

In: a group of kind "scan" of a matrix, and where its values live. Out: statements on vectors of the part, numbers of
the operands, and addresses, of which `matrix_chunk.py` and `matrix_rows.py` make steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm import tirx

from tvm_rnn.graph.graph import Group, Node
from tvm_rnn.graph.scalar import where
from tvm_rnn.graph.tensor_expressions import Index, element, fit
from tvm_rnn.schedule.schedule_template import Config, Unit
from tvm_rnn.target import Target
from tvm_rnn.tir.expr import Buffer, Expr, Stmt
from tvm_rnn.tir.index import INDEX, int64
from tvm_rnn.tir.statements import Block, Named, bind, load, loop, store, vector

from .matrix_update import Addend, Update
from .register_tile import Places
from .walk_through_time import Walk
from .workspace import Array

SUMS = 8  # that must be under way at once, for one addition waits for the one before it


@dataclass(frozen=True)
class Work:
    """One group on a tile's steps. config: how many vectors of the value axis go through time together."""

    group: Group
    unit: Unit
    places: Places
    walk: Walk
    target: Target
    config: Config
    update: Update

    @property
    def lanes(self) -> int:
        return self.target.lanes(self.unit.dtype)


@dataclass(frozen=True)
class Part:
    """work on one batch row and head, and on `blocks` of the value axis from block `low` on. first: where the block
    begins that statements are about."""

    work: Work
    root: Node
    row: Expr
    heads: tuple[Expr, ...]
    low: Expr
    blocks: Expr
    first: Expr = 0

    def over_blocks(self, body: Callable[[Part], Block]) -> Stmt:
        def block(b: Expr) -> list[Block]:
            first, set_first = held("first", (self.low + b) * int64(self.panels * self.lanes))
            return [set_first, body(replace(self, first=first))]

        return loop("block", self.blocks, block)

    @property
    def key(self) -> int:
        """The axis of the keys, from the end."""
        return int(self.root.attrs["key"])

    @property
    def keys(self) -> int:
        return self.root.shape[self.key]

    @property
    def lanes(self) -> int:
        return self.work.lanes

    @property
    def panels(self) -> int:
        return self.work.config["panels"]

    @property
    def dtype(self) -> str:
        return self.work.unit.dtype

    @property
    def update(self) -> Update:
        return self.work.update

    @property
    def reads(self) -> list[Node]:
        return [n for n in self.work.group.nodes if n.op == "read_out"]

    @property
    def matrix(self) -> Array:
        """Where the matrix is left after the tile."""
        return self.work.walk.last[self.work.walk.states[self.root]]

    @property
    def fresh(self) -> Expr:
        return tirx.const(self.work.walk.fresh[self.work.walk.states[self.root]], self.dtype)

    # --- vectors of the value axis -----------------------------------------------------------------------------------

    def registers(self, name: str) -> Buffer:
        return tirx.decl_buffer((self.panels * self.lanes,), self.dtype, name=name, scope="local")

    def each(self, body: Callable[[Expr], Block]) -> list[Stmt]:
        """body(place) for all places of the block, vector by vector."""

        def one(first: int) -> Stmt:
            return vector("j", self.lanes, lambda j: body(j + int64(first)))

        return [one(p * self.lanes) for p in range(self.panels)]

    def over_keys(self, body: Callable[[Expr], Block], together: int = 1) -> Stmt:
        """body(key) for all keys; `together`: how many one turn of the loop has, which divides them."""
        n = int64(together)
        return loop("key", self.keys // together, lambda turn: [body(turn * n + int64(u)) for u in range(together)])

    def fill(self, into: Buffer, value: Callable[[Expr], Expr]) -> list[Stmt]:
        return self.each(lambda j: store(into, j, value(j)))

    def zero(self, into: Buffer) -> list[Stmt]:
        return self.fill(into, lambda j: tirx.const(0.0, self.dtype))

    def add(self, into: Buffer, factor: Expr, values: Buffer) -> list[Stmt]:
        return self.fill(into, lambda j: load(into, j) + factor * load(values, j))

    def turns(self, count: int) -> int:
        """How many of each of `count` sums go side by side."""
        return next((u for u in (4, 2) if self.keys % u == 0 and u * count * self.panels <= SUMS), 1)

    # --- the matrix in memory ----------------------------------------------------------------------------------------

    def index(self, key: Expr, value: Expr) -> tuple[Expr, ...]:
        return (*self.heads, *((value, key) if self.key == -1 else (key, value)))

    def get(self, array: Array, key: Expr, j: Expr) -> Expr:
        memory = self.work.places.buffers[array.buffer]
        return load(memory, array.address(self.row, self.index(key, self.first + j)))

    def put(self, array: Array, key: Expr, value: Callable[[Expr], Expr]) -> list[Stmt]:
        memory = self.work.places.buffers[array.buffer]
        return self.each(lambda j: store(memory, array.address(self.row, self.index(key, self.first + j)), value(j)))

    # --- operands, which are known for all steps. row: of a step, among those of the tile ----------------------------

    def element(self, node: Node, row: Expr, index: Index) -> Expr:
        places = self.work.places

        def read(n: Node, i: Index) -> Expr | None:
            array = places.read(n)
            return None if array is None else load(places.buffers[array.buffer], array.address(row, i))

        return element(node, fit(node.shape, index), read, self.dtype)

    def number(self, node: Node, row: Expr, key: Expr) -> Expr:
        """A number for a key."""
        return self.element(node, row, self.index(key, 0))

    def value(self, node: Node, row: Expr, j: Expr) -> Expr:
        """What is written along the value axis, at a place of the block."""
        return self.element(node, row, self.index(0, self.first + j))

    def product(self, factors: Sequence[Node], row: Expr, value: Expr) -> Expr:
        """A value times numbers."""
        total = value
        for factor in factors:
            total = total * self.number(factor, row, 0)
        return total

    def added(self, addends: Sequence[Addend], row: Expr, made: Callable[[int, Expr], Expr], j: Expr) -> Expr:
        """What a column writes at a place of the block. made(i, j): of the sums of product i."""
        values = [made(a.value, j) if isinstance(a.value, int) else self.value(a.value, row, j) for a in addends]
        return total([self.product(a.factors, row, value) for a, value in zip(addends, values, strict=True)])

    def until_end(self, value: Expr, key: Expr, rest: float) -> Expr:
        """A lane's value, and `rest` behind the last key."""
        known = self.keys % self.lanes == 0
        return value if known else where(key < int64(self.keys), value, tirx.const(rest, self.dtype))

    def leave(self, node: Node, row: Expr, j: Expr, value: Expr) -> list[Stmt]:
        """What was read of the matrix, at a place of the block, to where it is stored."""
        arrays = self.work.places.write(node) if node in self.work.group.stored else []
        places = [(a.buffer, a.address(row, (*self.heads, self.first + j))) for a in arrays]
        return [store(self.work.places.buffers[buffer], at, value) for buffer, at in places]


class Numbers(Named):
    """Names numbers of a dtype."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.dtype = dtype

    def __call__(self, name: str, value: Expr) -> Expr:
        var = tirx.Var(name, self.dtype)
        self.sets.append(tirx.Bind(var, value))
        return var


def held(name: str, value: Expr) -> tuple[Expr, list[Block]]:
    """A variable that is set once, and its statements. TVM writes the value of a plain one into each address that it is
    in, and takes twice the time to simplify them; LLVM makes a register of this one."""
    memory = tirx.decl_buffer((1,), INDEX, name=f"{name}_memory", scope="local")
    var, set_var = bind(name, load(memory, int64(0)))
    return var, [tirx.AllocBuffer(memory), store(memory, int64(0), value), set_var]


def total(parts: Sequence[Expr]) -> Expr:
    """The sum of the parts, in their order."""
    found = parts[0]
    for part in parts[1:]:
        found = found + part
    return found


def across(wide: Buffer, lanes: int, dtype: str) -> tuple[list[Block], Expr]:
    """The statements that sum a vector's lanes up, half by half, and the sum."""
    statements: list[Block] = []
    while lanes > 1:
        lanes //= 2
        half = tirx.decl_buffer((lanes,), dtype, name=f"half_{lanes}", scope="local")
        statements += [tirx.AllocBuffer(half), _halved(half, wide, lanes)]
        wide = half
    return statements, load(wide, int64(0))


def _halved(half: Buffer, wide: Buffer, lanes: int) -> Stmt:
    return vector("j", lanes, lambda j: store(half, j, load(wide, j) + load(wide, j + int64(lanes))))
