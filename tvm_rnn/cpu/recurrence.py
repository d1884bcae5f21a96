"""A recurrence over all time: one loop over a tile's steps for each batch row and block of elements, states in
registers.

In: a group of kind "scan" and how it walks through time. Out: a statement. No step waits for another thread: threads
share rows and blocks, and each goes through all of the tile's steps. Rows that have ended do no more steps.

Rewrite: h' = scan(h, a, b)  -->  parallel for row, block: (registers) h;  for t: h = a[t] * h + b[t];  h[row] = h
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from tvm import tirx

from tvm_rnn.graph.graph import Group, Node, is_scan, make, topological, with_args
from tvm_rnn.schedule.schedule_template import Config, Template, Unit
from tvm_rnn.tir.expr import Buffer, Expr, Stmt
from tvm_rnn.tir.index import int64, wide
from tvm_rnn.tir.statements import (
    Block,
    Named,
    bind,
    floordiv,
    floormod,
    load,
    loop,
    sequence,
    store,
    use_threads,
    vector,
)

from . import register_tile
from .matrix_part import held, total
from .register_tile import Places, Tile
from .walk_through_time import Walk
from .workspace import Array

# Below so many elements of work one thread does it all: a launch costs about 1 us.
SHARED_ELEMENTS = 16384
ROWS = ("scan", "scan_max", "delay")  # what makes a state anew


def shared(tasks: Expr, work: Expr, threads: Expr | None, body: Callable[[Expr], Block], name: str = "i") -> Stmt:
    """for name in range(tasks): body(name), shared among threads where there is enough work, in elements."""
    if threads is None:
        return loop(name, tasks, body)
    few = tirx.Select(work < int64(SHARED_ELEMENTS), int64(1), threads)
    return sequence(use_threads(few), loop(name, tasks, body, parallel=True), use_threads(threads))


@dataclass(frozen=True)
class Tasks:
    """Tasks of a recurrence, which wait for no other. count: how many; work: of all, in elements; body(i): the i-th."""

    count: Expr
    work: Expr
    body: Callable[[Expr], Block]
    before: Block = None  # statements that set what these read


def side_by_side(recurrences: Sequence[Tasks], threads: Expr | None) -> Stmt:
    """The tasks of all, none of which reads what another makes. Each thread has an equal share of every recurrence."""
    before = [tasks.before for tasks in recurrences]
    if threads is None:
        return sequence(before, [loop("i", tasks.count, tasks.body) for tasks in recurrences])
    work = total([tasks.work for tasks in recurrences])
    few, set_few = bind("few", tirx.Select(work < int64(SHARED_ELEMENTS), int64(1), wide(threads)))

    def share(tasks: Tasks, thread: Expr) -> list[Block]:
        first, set_first = held("first_task", tirx.floordiv(thread * tasks.count, few))
        end, set_end = held("end", tirx.floordiv((thread + int64(1)) * tasks.count, few))
        return [set_first, set_end, loop("i", end - first, lambda i: tasks.body(first + i))]

    shares = loop("thread", few, lambda t: [share(tasks, t) for tasks in recurrences], parallel=True)
    return sequence(before, set_few, use_threads(few), shares, use_threads(threads))


def one_step(group: Group) -> tuple[Group, dict[Node, Node]]:
    """What the group does in one step: pointwise work that reads its states and stores all that it makes of them. And
    of each node what it is there."""
    members, new = set(group.nodes), dict[Node, Node]()
    for node in topological(group.nodes):
        own = with_args(node, new)
        new[node] = _at_a_step(own) if node in members and is_scan(node) else own
    nodes = tuple(new[n] for n in group.nodes)
    stored = tuple(new[n] for n in group.nodes if n in group.stored or n.op in ROWS)
    return replace(group, kind="pointwise", root=None, nodes=nodes, stored=stored), new


def _at_a_step(node: Node) -> Node:
    """A row of a recurrence, made of pointwise rows."""
    args = node.args
    if node.op == "scan":
        count, total = len(args) // 2, args[-1]
        for state, factor in zip(args[:count], args[count:-1], strict=True):
            if factor.value is None or np.any(factor.value):  # a state that is not read may be NaN
                total = make("add", make("mul", factor, state), total)
        return total if total.shape == node.shape else make("broadcast", total, to=node.shape)
    if node.op == "scan_max":
        return make("maximum", make("add", args[0], args[1]), args[2])
    return make("broadcast", args[1], to=node.shape)  # delay: the new value; carried: the state


@dataclass(frozen=True)
class Recurrence:
    """One group of vectors on a tile's steps. config: how many vectors go through time together."""

    group: Group
    unit: Unit
    places: Places
    walk: Walk
    lanes: int
    template: Template
    config: Config

    def tasks(self, rows: Expr) -> Tasks:
        """The whole group. rows: steps x batch rows of the tile."""
        batch = self.places.batch
        assert batch is not None and self.group.root is not None
        *outer, width = self.group.root.shape or (1,)
        across = self.config["panels"]
        blocks = -(-width // self.lanes) // across

        def task(i: Expr) -> list[Block]:
            named, left = Named(), floordiv(i, blocks)
            panel = named("panel", floormod(i, blocks) * int64(across))
            index: list[Expr] = []
            for axis, size in reversed([*enumerate(outer)]):
                index.insert(0, named(f"i{axis}", floormod(left, size)))
                left = floordiv(left, size)
            row = named("row", left)
            return [*named.sets, _Part(self, batch, row, tuple(index), panel).statement()]

        return Tasks(batch * int64(prod(outer) * blocks), rows * int64(prod(outer) * width), task)


@dataclass(frozen=True)
class _Part:
    """One batch row and one block of vectors: all steps."""

    whole: Recurrence
    batch: Expr
    row: Expr
    outer: tuple[Expr, ...]
    panel: Expr

    def statement(self) -> Stmt:
        """The states come, go through the steps in registers, and are left for the next tile."""
        walk, dtype = self.whole.walk, self.whole.unit.dtype
        size = self.whole.config["panels"] * self.whole.lanes
        made = {walk.states[n]: n for n in self.whole.group.nodes if n in walk.states}
        now, then = (
            {s: tirx.decl_buffer((size,), dtype, name=f"{s.name}_{word}", scope="local") for s in made}
            for word in ("now", "then")
        )
        steps, set_steps = bind("steps", walk.active(self.row))
        work = self._tile(made, now, then)

        def step(k: Expr) -> list[Block]:
            t, set_t = bind("t", k + walk.direction * (steps - int64(1) - k - k))
            at, set_at = bind("at", t * self.batch + self.row)
            fresh = [self._filled(now[s], tirx.const(walk.fresh[s], dtype)) for s in made]
            kept = [self._moved(now[s], walk.kept[s], at, out=True) for s in made if s in walk.kept]
            renewed = [self._copied(now[s], then[s]) for s in made]
            own: list[Block] = [kept, work(at), renewed]
            again = walk.restart(t, self.row, fresh)
            return [set_t, set_at, *([*own, again] if walk.behind else [again, *own])]

        return sequence(
            set_steps,
            [tirx.AllocBuffer(b) for b in (*now.values(), *then.values())],
            [self._moved(now[s], walk.first[s], self.row, out=False) for s in made],
            loop("k", steps, step),
            [self._moved(now[s], walk.last[s], self.row, out=True) for s in made],
        )

    def _tile(
        self, made: Mapping[Node, Node], now: Mapping[Node, Buffer], then: Mapping[Node, Buffer]
    ) -> Callable[[Expr], Stmt]:
        """The work of one step, whose rows begin at a given one. made: of each state what makes it anew."""
        whole = self.whole
        group, new = one_step(whole.group)
        states = {new[n]: s for s, n in made.items()}
        old = {new[n]: n for n in whole.group.stored}

        def name(state: Node, word: str) -> str:
            return f"{state.name}_{word}"

        def local(state: Node, word: str) -> Array:
            strides = (*(0 for _ in state.shape[:-1]), 1)[-len(state.shape) :] if state.shape else ()
            return Array(name(state, word), int64(0) - self.panel * int64(whole.lanes), 0, strides, state.shape)

        def read(node: Node) -> Array | None:
            return local(node, "now") if node in now else whole.places.read(node)

        def write(node: Node) -> list[Array]:
            own = [local(states[node], "then")] if node in states else []
            return [*own, *(whole.places.write(old[node]) if node in old else ())]

        both = (("now", now), ("then", then))
        registers = {name(s, word): b for word, of_state in both for s, b in of_state.items()}
        places = replace(whole.places, buffers={**whole.places.buffers, **registers}, read=read, write=write)

        def work(at: Expr) -> Stmt:
            panels, outer = whole.config["panels"], self.outer
            own = Tile(group, places, whole.unit, whole.lanes, panels=panels, row0=at, panel0=self.panel, outer=outer)
            return register_tile.pointwise(own, whole.template, whole.config)

        return work

    def _moved(self, registers: Buffer, array: Array, row: Expr, *, out: bool) -> list[Stmt]:
        """One row of a state from memory to registers, or out to memory. A scalar fills its vector."""
        memory, first = self.whole.places.buffers[array.buffer], self.panel * int64(self.whole.lanes)
        flat = array if array.shape else replace(array, strides=(1,))

        def one(v: Expr) -> Stmt:
            at = flat.address(row, (*self.outer, first + v))
            return store(memory, at, load(registers, v)) if out else store(registers, v, load(memory, at))

        return self._each(one)

    def _filled(self, registers: Buffer, value: Expr) -> list[Stmt]:
        return self._each(lambda v: store(registers, v, value))

    def _copied(self, into: Buffer, source: Buffer) -> list[Stmt]:
        return self._each(lambda v: store(into, v, load(source, v)))

    def _each(self, body: Callable[[Expr], Stmt]) -> list[Stmt]:
        """body(place) for all places of the block, vector by vector."""
        lanes = self.whole.lanes
        parts = range(self.whole.config["panels"])

        def one(first: int) -> Stmt:
            return vector("v", lanes, lambda v: body(v + int64(first)))

        return [one(p * lanes) for p in parts]
