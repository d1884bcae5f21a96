"""The recurrence of a matrix over all time, without a wait: threads share batch rows, heads and blocks of the value
axis, and each goes through all of a tile's steps with its part of the matrix in the level-1 cache.

In: a group of kind "scan" whose first row is `scan_matrix`, and how it walks through time. Out: a statement, in which a
sequence of few steps works on the matrix as its owner laid it out, and others a chunk of steps after the other on one
whose last axis is that of values.

Rewrite: S' = d S + k v + p (r . S); y = q . S'  -->  parallel for row, head, block:  for steps: chunk
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from tvm import tirx

from tvm_rnn.errors import PassError, message
from tvm_rnn.graph.graph import Group, Node
from tvm_rnn.schedule.schedule_template import Config, Unit
from tvm_rnn.target import Target
from tvm_rnn.tir.expr import Expr, Stmt
from tvm_rnn.tir.index import int64, wide
from tvm_rnn.tir.statements import Block, Named, bind, floordiv, floormod, load, loop, sequence, store, when

from .matrix_again import MatrixAgain
from .matrix_chunk import Chunk, steps_together
from .matrix_part import Part, Work, held
from .matrix_rows import Rows
from .matrix_update import update_of
from .recurrence import Tasks
from .register_tile import Places
from .walk_through_time import Kept, Walk
from .workspace import Array, strides_of


@dataclass(frozen=True)
class MatrixRecurrence:
    """One group on a tile's steps. config: how many vectors of the value axis go through time together."""

    group: Group
    unit: Unit
    places: Places
    walk: Walk
    target: Target
    config: Config

    def tasks(self, rows: Expr) -> Tasks:
        """The whole group. rows: steps x batch rows of the tile."""
        root, batch, places = self.group.root, self.places.batch, self.places
        assert root is not None and batch is not None
        self._check(root)
        update = update_of(root, lambda n: places.read(n) is not None)
        work = Work(self.group, self.unit, places, self.walk, self.target, self.config, update)
        heads, count = root.shape[:-2], int64(-(-self.unit.width // work.lanes) // self.config["panels"])
        whole = batch * int64(prod(heads))
        threads = places.threads
        assert threads is not None
        # What the blocks of a head have in common is made once by each thread that has some of them.
        apart, set_apart = bind("apart", tirx.Select(whole < threads, tirx.min(count, wide(threads)), int64(1)))

        def task(i: Expr) -> list[Block]:
            named, left = Named(), tirx.floordiv(i, apart)
            number = named("number", tirx.floormod(i, apart))
            low = named("low", tirx.floordiv(number * count, apart))
            blocks = named("blocks", tirx.floordiv((number + int64(1)) * count, apart) - low)
            index: list[Expr] = []
            for axis, size in reversed([*enumerate(heads)]):
                index.insert(0, named(f"i{axis}", floormod(left, size)))
                left = floordiv(left, size)
            row = named("row", left)
            return [*named.sets, _through_time(Part(work, root, row, tuple(index), low, blocks), batch)]

        return Tasks(whole * apart, rows * int64(prod(root.shape)), task, set_apart)

    def _check(self, root: Node) -> None:
        """What is read has the matrix's own heads: passes read a matrix once for each of several queries."""
        heads = root.shape[:-2]
        for node in (n for n in self.group.nodes if n.op == "read_out"):
            if node.shape[:-1] != heads:
                fault, do = f"queries of {node.shape[:-1]} heads", "read the matrix for each query alone"
                raise PassError(message("heads are not those of the matrix", got=fault, expected=str(heads), do=do))


def _through_time(part: Part, batch: Expr) -> Stmt:
    """All steps of a tile."""
    if part.root.op == "rescan":
        return MatrixAgain(part, batch).statement()
    steps, set_steps = held("steps", part.work.walk.active(part.row))
    walk, few = _Steps(part, batch, steps), part.work.walk.few
    chunks = walk.in_chunks()
    return sequence(set_steps, when(few(part.root), walk.in_rows(), chunks) if few and part.key == -1 else chunks)


@dataclass(frozen=True)
class _Steps:
    """The steps of a part. steps: their number, which is a variable."""

    part: Part
    batch: Expr
    steps: Expr

    def _time(self, k: Expr) -> Expr:
        """The place in time of the step that comes k-th."""
        return k + self.part.work.walk.direction * (self.steps - int64(1) - k - k)

    def _row(self, name: str, k: Expr) -> tuple[Expr, list[Block]]:
        return held(name, self._time(k) * self.batch + self.part.row)

    def _arrays(self) -> tuple[Array, Array]:
        """The matrix before the tile and after it."""
        walk = self.part.work.walk
        state = walk.states[self.part.root]
        return walk.first[state], walk.last[state]

    def _source(self, k: Expr) -> tuple[Array, list[Block]]:
        """The matrix before step k: where the tile finds it, later where it leaves it."""
        first, last = self._arrays()
        base, set_base = held("base", tirx.Select(tirx.EQ(k, int64(0)), first.base, last.base))
        return replace(last, base=base), set_base

    def in_rows(self) -> Stmt:
        """Step by step, the matrix as its owner laid it out."""
        part = self.part
        strides = strides_of(part.root.shape, part.lanes)[0]
        first, last = (replace(array, strides=strides) for array in self._arrays())

        def step(k: Expr) -> list[Block]:
            found, set_base = self._source(k)
            source = replace(found, strides=strides)
            row, set_row = self._row("now", k)
            again = self._restart(k, part.over_blocks(lambda p: Rows(p).fill(source, part.fresh)))
            return [set_base, set_row, again, part.over_blocks(lambda p: Rows(p).step(source, last, row))]

        kept = part.over_blocks(lambda p: Rows(p).copy(first, last))
        return when(tirx.EQ(self.steps, int64(0)), kept, loop("k", self.steps, step))

    def in_chunks(self) -> Stmt:
        """In chunks; where one is not full, or begins again after its first step, one step after the other."""
        together = steps_together(self.part)
        first, last = self._arrays()
        kept = self._renewed(last, lambda p, key, j: p.get(first, key, j))

        def some(c: Expr) -> list[Block]:
            k, set_k = bind("k", c * int64(together))
            left, set_left = bind("left", tirx.min(self.steps - k, int64(together)))
            alone = tirx.decl_buffer((1,), "int32", name="alone", scope="local")
            apart = store(alone, int64(0), tirx.const(1, "int32"))
            is_alone = tirx.NE(load(alone, int64(0)), tirx.const(0, "int32"))
            flags = [self._apart(k + int64(s), apart) for s in range(1, together)]
            full = when(tirx.EQ(left, int64(together)), flags, apart)
            begin = [tirx.AllocBuffer(alone), store(alone, int64(0), tirx.const(0, "int32"))]

            def one(s: Expr) -> list[Block]:
                source, set_base = self._source(k + s)
                again = [self._restart(k + s, self._fresh(source)), self._keep(k + s, source)]
                single, whole = self._chunk(k + s, source, 1), self._chunk(k, source, together)
                return [set_base, again, when(is_alone, single, whole)]

            return [set_k, set_left, begin, full, loop("s", tirx.Select(is_alone, left, int64(1)), one)]

        chunks = floordiv(self.steps + int64(together - 1), together)
        walked: list[Block] = [self._keep_before(first), loop("c", chunks, some)]
        if self.part.work.walk.behind:
            walked.append(
                self.part.work.walk.restart(self._time(self.steps - int64(1)), self.part.row, self._fresh(last))
            )
        return when(tirx.EQ(self.steps, int64(0)), [kept, self._keep_before(first)], walked)

    def _renewed(self, into: Array, value: Callable[[Part, Expr, Expr], Expr]) -> Stmt:
        """A matrix becomes value(part, key, place of a block)."""
        return self.part.over_blocks(lambda p: p.over_keys(lambda key: p.put(into, key, partial(value, p, key))))

    def _chunk(self, k: Expr, source: Array, count: int) -> list[Block]:
        rows = [self._row("now", k + int64(s)) for s in range(count)]
        return [[set_row for _, set_row in rows], Chunk(self.part, [row for row, _ in rows], source).statement()]

    def _restart(self, k: Expr, body: Block) -> Stmt:
        """body before step k, where the matrix begins again there: before that step, or behind the one before it."""
        walk = self.part.work.walk
        if walk.behind:
            return when(k > int64(0), walk.restart(self._time(k - int64(1)), self.part.row, body))
        return walk.restart(self._time(k), self.part.row, body)

    def _fresh(self, into: Array) -> Stmt:
        return self._renewed(into, lambda p, key, j: p.fresh)

    # --- what a tape has of it ---------------------------------------------------------------------------------------

    @property
    def _tape(self) -> Kept | None:
        walk = self.part.work.walk
        return walk.tape.get(walk.states[self.part.root])

    def _before(self) -> Expr:
        """Steps of the tile after the row's end that are gone through before it."""
        walk = self.part.work.walk
        return walk.direction * (walk.count - self.steps)

    def _apart(self, k: Expr, apart: Stmt) -> list[Block]:
        """Where a chunk may not go on to step k as one."""
        kept = self._tape
        return [self._restart(k, apart), when(kept.has(k + self._before()), apart) if kept is not None else None]

    def _keep(self, k: Expr, source: Array) -> Stmt | None:
        """Leave the matrix before step k where the tape has it."""
        return self._left(k + self._before(), source)

    def _keep_before(self, first: Array) -> Stmt | None:
        """The same of steps that are gone through before the row's end."""
        return None if self._tape is None else loop("i", self._before(), lambda i: self._left(i, first))

    def _left(self, position: Expr, source: Array) -> Stmt | None:
        kept = self._tape
        if kept is None:
            return None
        copy = self._renewed(kept.array(position), lambda p, key, j: p.get(source, key, j))
        return when(kept.has(position), copy)
