"""One layer's backward code: the steps of a tile from the last to the first, then what is done for all of them at once.

In: a backward graph with groups, the tape's layout, and the emitter. Out: statements for `lower_network.py`. Values
that `after` and sums over rows read have rows for a whole tile; what the tape has is read where it is.

    before groups (all rows of the tile);  for step, backwards in time: groups;  blank the rows that have ended;
    after groups (all rows);  sums over all rows are added up;  gradients of inputs to the layer below, or to the user
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tvm import tirx

from tvm_rnn.cpu.lower_layer import Context, Step, Visit, ended, ended_in_tile, fill_row, keep_row, turned
from tvm_rnn.cpu.register_tile import Places
from tvm_rnn.cpu.walk_through_time import Again, Walk
from tvm_rnn.cpu.workspace import Array, each_element, strides_of
from tvm_rnn.graph.graph import Group, Node, sums_rows
from tvm_rnn.graph.recurrences import KEPT_EVERY
from tvm_rnn.graph.tensor_expressions import Index, element
from tvm_rnn.passes.fuse_pointwise import quotients, read_at_last
from tvm_rnn.tir.expr import Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import Block, load, loop, sequence, store, when

from .parameter_gradients import Finish
from .tape_layout import TapeLayer
from .weight_gradient_sums import accumulate

Give = Callable[[int, "Expr", "Expr", "Expr", "Expr | None"], "Stmt"]


@dataclass
class BackwardVisit(Visit):
    """side: its direction, 1 where the forward steps went back in time (`direction` is that of the backward steps).
    sums_at: address of its sums. give(number, t, b, j, value): adds element j of row b of the tile's step t to the
    gradient of an input; None: what ended is 0."""

    side: Expr = 0
    sums_at: Expr = 0
    give: Give = field(default=lambda *where: sequence())


@dataclass
class BackwardLayer(TapeLayer):
    """`graph`: what is computed for each row; sums over rows, and what is made of them, are in `sums` and `finish`."""

    def __post_init__(self) -> None:
        whole = self.graph
        self.sums = [n for n in whole.nodes() if sums_rows(n)]
        operands = [a for n in self.sums for a in n.args]
        self.graph = replace(whole, weight_gradients=(), emitted=(*whole.emitted, *operands))
        self.gradients = (whole.output, *whole.emitted)
        super().__post_init__()
        self.finish = Finish(whole, self.sums, self.lanes, f"{self.number}.finish")
        by_region: dict[str, list[Node]] = {"before": [], "step": [], "after": []}
        for group in whole.groups:
            by_region[group.region] += [n for n in group.stored if n not in by_region[group.region]]
        at_last = set(read_at_last(whole))
        self.last = [n for n in by_region["step"] if n in at_last]
        self.carried = [n for n in self.graph.states if n in at_last]
        self.early = [n for n in by_region["before"] if n in at_last]
        self.hoisted = self._rows([*by_region["before"], *self.last, *self.carried, *by_region["after"]])
        self.before = set(by_region["before"])
        self.scratch = self._rows(n for n in by_region["step"] if n not in whole.results and n not in at_last)

    # --- where values are --------------------------------------------------------------------------------------------

    def _input(self, number: int, visit: Visit, t: Expr, ctx: Context) -> Array:
        """Input `number` of the graph, from step t of the tile on: the gradient of y, inputs, states, kept values."""
        assert isinstance(visit, BackwardVisit)
        inputs, states = len(self.gradients), len(self.graph.states)
        if number <= inputs:
            return replace(super()._input(number, visit, t, ctx), buffer="tape" if number else "workspace")
        number -= inputs + 1
        time, rows = visit.start + t, self.tape.extents(ctx)
        if number < states:
            return self.tape.state(self.index, number, visit.block, time + visit.side, rows)
        return self.tape.emitted(self.index, number - states, visit.block, time, rows)

    def _walk(self, ctx: Context, visit: Visit) -> Walk:
        """No gradient goes to the state before a step that began again."""
        assert isinstance(visit, BackwardVisit)
        at = visit.start + visit.side
        own = super()._walk(ctx, visit)

        def restart(t: Expr, b: Expr, body: Block) -> Stmt:
            return self._row_restart(ctx, at + t, b, body)

        fresh, again = dict.fromkeys(own.fresh, 0.0), self._again(ctx, visit)
        return replace(own, restart=restart, fresh=fresh, behind=True, few=None, again=again)

    # --- matrices that are made again ----------------------------------------------------------------------------

    def _matrices(self) -> list[tuple[Node, Node, int]]:
        """The rows, what they begin from, and of each the axis along which it is read."""
        return [(n, n.args[0], n.attrs["key"]) for n in self.graph.nodes() if n.op == "rescan"]

    def _memory(self, state: Node, key: int) -> tuple[tuple[int, ...], int, int]:
        """Of one matrix: strides, with vectors along the other axis; elements; and of how many steps there are some."""
        strides, size = strides_of(turned(state.shape) if key == -1 else state.shape, self.lanes)
        return turned(strides) if key == -1 else strides, size, 1 if state in self.graph.states else KEPT_EVERY

    @property
    def scratch_per_row(self) -> int:
        return super().scratch_per_row + sum(self._row(s, key) for _, s, key in self._matrices())

    def _row(self, state: Node, key: int) -> int:
        _, size, steps = self._memory(state, key)
        return size * steps + self.lanes  # rows whole pages apart would share cache sets

    def _again(self, ctx: Context, visit: BackwardVisit) -> dict[Node, Again]:
        found, at = {}, super().scratch_per_row
        done = visit.start + visit.side * (ctx.steps - visit.start - visit.start - visit.count)
        for _, state, key in self._matrices():
            (strides, size, _), stride = self._memory(state, key), self._row(state, key)
            array = Array("workspace", visit.scratch + ctx.batch * int64(at), stride, strides, state.shape)
            at += stride
            if state in self.graph.states:
                found[state] = Again(array, size, None, 0.0)
                continue
            number = self.graph.inputs.index(state) - len(self.gradients) - 1
            _, kept = self.marks(ctx, visit, number, done)
            found[state] = Again(array, size, kept, self.initial.get(state.name, 0.0))
        return found

    def _begin_again(self, ctx: Context, visit: BackwardVisit) -> Block:
        """The gradients of matrices after the last step, from which they are made again: what makes them anew works in
        place."""
        walk, states = self._walk(ctx, visit), {s for _, s, _ in self._matrices()} & {*self.graph.states}
        memory = ctx.buffers["workspace"]

        def copied(state: Node) -> Stmt:
            first, into = walk.first[state], walk.again[state].memory

            def row(b: Expr) -> Stmt:
                def one(index: tuple[Expr, ...], _: Expr) -> Stmt:
                    return store(memory, into.address(b, index), load(memory, first.address(b, index)))

                return each_element(state.shape, one)

            return loop("b", ctx.batch, row)

        copies = [copied(s) for s in self.graph.states if s in states]
        return when(tirx.EQ(visit.done, int64(0)), copies) if copies else None

    def visit(self, ctx: Context, visit: Visit) -> Stmt:
        assert isinstance(visit, BackwardVisit)
        return sequence(self._begin_again(ctx, visit), super().visit(ctx, visit))

    # --- one tile of time --------------------------------------------------------------------------------------------

    def _after(self, ctx: Context, visit: Visit, rows: Expr, places: Places) -> list[Block]:
        """Rows that have ended become 0 in what is read from now on, for sums over rows take them all; then what is
        done for all steps at once."""
        assert isinstance(visit, BackwardVisit)
        arrays = [self._hoisted(n, visit, int64(0), ctx) for n in (*self.early, *self.last, *self.carried)]
        after = [g for g in self.graph.groups if g.region == "after"]
        return [
            self._blank(ctx, visit, arrays),
            [part for g in after for part in (self.emitter.group(g, rows, places), self._defined(ctx, visit, g))],
            accumulate(self.emitter, self.sums, rows, places, lambda n: self.finish.place(n, visit.sums_at)),
            [self._give(ctx, visit, number, places) for number in range(len(self.gradients))],
        ]

    def _defined(self, ctx: Context, visit: Visit, group: Group) -> Block:
        """The same for what a group has divided."""
        divided = [self._hoisted(n, visit, int64(0), ctx) for n in quotients([group])]
        return self._blank(ctx, visit, divided) if divided else None

    def _blank(self, ctx: Context, visit: Visit, arrays: list[Array]) -> Stmt:
        zero = tirx.const(0.0, self.graph.dtype)

        def blank(t: Expr, b: Expr) -> list[Stmt]:
            return [fill_row(ctx.buffers, array, zero, t * ctx.batch + b) for array in arrays]

        return ended_in_tile(ctx, visit.start, visit.count, blank)

    def _written(self, ctx: Context, visit: Visit, t: Expr) -> dict[Node, list[Array]]:
        return super()._written(ctx, visit, t) | {n: [self._hoisted(n, visit, t, ctx)] for n in self.last}

    def _work(self, ctx: Context, visit: Visit, step: Step) -> list[Block]:
        """States that are read at last are copied; no gradient goes to the state before a step that began again; a step
        after a row's end did nothing: its gradients go through as they are."""
        assert isinstance(visit, BackwardVisit)
        copies = [self._copy(ctx, step.read[n], self._hoisted(n, visit, step.t, ctx)) for n in self.carried]
        groups = self._groups(ctx, visit, step)
        # Backwards, a flag at t + 1 separates t from what was processed before.
        cut = self._restart(ctx, step.time + visit.side, [(array, 0.0) for array in step.new])

        def keep(b: Expr) -> list[Stmt]:
            return [keep_row(ctx.buffers, a, n, b) for a, n in zip(step.old, step.new, strict=True)]

        return [*copies, *groups, cut, ended(ctx, step.time, keep)]

    def _copy(self, ctx: Context, old: Array, into: Array) -> Stmt:
        return loop("b", ctx.batch, lambda b: keep_row(ctx.buffers, old, into, b))

    def _give(self, ctx: Context, visit: BackwardVisit, number: int, places: Places) -> Stmt:
        """The gradient of one input to where it goes."""
        root = self.gradients[number]

        def row(t: Expr, b: Expr) -> Stmt:
            def read(node: Node, index: Index) -> Expr | None:
                array, at = places.read(node), t * ctx.batch + b
                return None if array is None else load(ctx.buffers[array.buffer], array.address(at, index))

            def one(index: tuple[Expr, ...], flat: Expr) -> Stmt:
                return visit.give(number, t, b, flat, element(root, index, read, self.graph.dtype))

            return each_element(root.shape, one)

        def blank(t: Expr, b: Expr) -> Stmt:
            return each_element(root.shape, lambda _, flat: visit.give(number, t, b, flat, None))

        rows = loop("t", visit.count, lambda t: loop("b", ctx.batch, lambda b: row(t, b)))
        return sequence(rows, ended_in_tile(ctx, visit.start, visit.count, blank))
