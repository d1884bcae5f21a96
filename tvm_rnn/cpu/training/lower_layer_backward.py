"""One layer's backward code: the steps of a tile from the last to the first, then what is done for all of them at once.

In: a backward graph with groups, the tape's layout, and the emitter. Out: statements for `lower_network.py`. Values
that `after` and totals read have rows for a whole tile; what the tape has is read where it is.

    before groups (all rows of the tile);  for step, backwards in time: groups;  blank the rows that have ended;
    after groups (all rows);  totals += sums over all rows;  gradients of inputs to the layer below, or to the user
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tvm import tirx

from tvm_rnn.cpu.lower_layer import Context, Layer, Visit, fill_row, keep_row
from tvm_rnn.cpu.register_tile import Places
from tvm_rnn.cpu.user_array_copies import each
from tvm_rnn.cpu.workspace import Array
from tvm_rnn.graph.graph import Node, is_total
from tvm_rnn.graph.tensor_expressions import Index, element
from tvm_rnn.passes.fuse_pointwise import read_at_last
from tvm_rnn.tir.expr import Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import bind, load, loop, sequence, when

from .parameter_gradients import Finish
from .tape_layout import TapeLayout
from .weight_gradient_sums import accumulate

Give = Callable[[int, "Expr", "Expr", "Expr", "Expr | None"], "Stmt"]


@dataclass
class BackwardVisit(Visit):
    """block: address in the tape of what this layer and direction kept. side: its direction, 1 where the forward steps
    went back in time (`direction` is that of the backward steps). totals: address of its sums. give(number, t, b, j,
    value): adds element j of row b of the tile's step t to the gradient of an input; None: what ended is 0."""

    block: Expr = 0
    side: Expr = 0
    totals: Expr = 0
    give: Give = field(default=lambda *where: sequence())


@dataclass
class BackwardLayer(Layer):
    """`tape` and `index`, the graph's number among the network's, are set before the first visit. `graph` is what is
    computed for each row; sums over rows, and what is made of them, are in `sums` and `finish`."""

    tape: TapeLayout | None = None
    index: int = 0

    def __post_init__(self) -> None:
        whole = self.graph
        self.sums = [n for n in whole.nodes() if is_total(n)]
        operands = [a for n in self.sums for a in n.args]
        self.graph = replace(whole, totals=(), emitted=(*whole.emitted, *operands))
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

    def _given(self, number: int, visit: BackwardVisit, t: Expr, ctx: Context) -> Array:
        """Input `number` of the graph, from step t of the tile on: the gradient of y, inputs, states, kept values."""
        assert self.tape is not None
        node, steps = self.graph.inputs[number], ctx.steps * ctx.batch
        inputs, states = len(self.gradients), len(self.graph.states)
        time = visit.start + t
        if number <= inputs:
            stride = visit.widths[number]
            base = visit.inputs[number] + t * ctx.batch * int64(stride)
            return self._array("tape" if number else "workspace", node, base, stride)
        number -= inputs + 1
        if number < states:
            return self.tape.state(self.index, number, visit.block, time + visit.side, steps, ctx.batch)
        return self.tape.emitted(self.index, number - states, visit.block, time, steps, ctx.batch)

    def _rows_read(self, ctx: Context, visit: BackwardVisit, t: Expr) -> dict[Node, Array]:
        """What has a row for every step, from step t of the tile on."""
        read = {n: self._given(i, visit, t, ctx) for i, n in enumerate(self.graph.inputs)}
        return read | {n: self._hoisted(n, visit, t, ctx) for n in self.hoisted}

    def _own(self, places: Places, group: Any) -> Places:
        elsewhere = (n for n in group.stored if n.leaf or n in self.before or n in self.packed.names)
        sources = {n: places.read(n) for n in elsewhere}
        return replace(places, copied={n: array for n, array in sources.items() if array is not None})

    # --- one tile of time --------------------------------------------------------------------------------------------

    def visit(self, ctx: Context, visit: Visit) -> Stmt:
        """The whole tile; `visit.direction` is 1 where the steps go back in time."""
        assert isinstance(visit, BackwardVisit)
        rows, set_rows = bind("rows", visit.count * ctx.batch)
        arrays = self._rows_read(ctx, visit, int64(0))
        places = self._places(ctx, visit, arrays, {n: [arrays[n]] for n in self.hoisted})
        groups = {r: [g for g in self.graph.groups if g.region == r] for r in ("before", "after")}
        return sequence(
            set_rows,
            [self.emitter.group(g, rows, places) for g in groups["before"]],
            loop("step", visit.count, lambda s: self._step(ctx, visit, s)),
            self._blank(ctx, visit, [arrays[n] for n in (*self.early, *self.last, *self.carried)]),
            [self.emitter.group(g, rows, places) for g in groups["after"]],
            [accumulate(self.emitter, n, rows, places, self.finish.place(n, visit.totals)) for n in self.sums],
            [self._give(ctx, visit, number, places) for number in range(len(self.gradients))],
        )

    def _step(self, ctx: Context, visit: Visit, s: Expr) -> list[Any]:
        assert isinstance(visit, BackwardVisit)
        t, set_t = bind("t", s + visit.direction * (visit.count - int64(1) - s - s))
        parity, set_parity = bind("parity", tirx.bitwise_and(visit.done + s, int64(1)))
        sets: list[Any] = [set_t, set_parity]
        old: list[Array] = []
        new: list[Array] = []
        for number, node in enumerate(self.graph.states):
            for into, p in ((old, parity), (new, int64(1) - parity)):
                array = self.state(number, p, visit.states, ctx.batch)
                base, set_base = bind(f"{node.name}_{'old' if into is old else 'new'}", array.base)
                sets.append(set_base)
                into.append(replace(array, base=base))
        rows = self._rows_read(ctx, visit, t)
        read = rows | dict(zip(self.graph.states, old, strict=True))
        copies = [self._copy(ctx, read[n], rows[n]) for n in self.carried]
        write = {
            node: [self._array("workspace", node, visit.scratch + ctx.batch * int64(at), stride)]
            for node, (at, stride) in self.scratch.items()
        }
        write |= {n: [read[n]] for n in self.last}
        for node, array in zip(self.graph.results, new, strict=True):
            write.setdefault(node, []).append(array)
        groups = self._groups(ctx, visit, read, write, parity)
        time = visit.start + t
        return [*sets, *copies, *groups, self._cut(ctx, visit, time, new), self._pass_on(ctx, time, old, new)]

    def _copy(self, ctx: Context, old: Array, into: Array) -> Stmt:
        return loop("b", ctx.batch, lambda b: keep_row(ctx.buffers["workspace"], old, into, b))

    def _cut(self, ctx: Context, visit: BackwardVisit, time: Expr, new: list[Array]) -> Stmt:
        """No gradient goes to the state before a step that began again."""
        ws, zero = ctx.buffers["workspace"], tirx.const(0.0, self.graph.dtype)
        at = time + visit.side  # backwards, a flag at t + 1 separates t from what was processed before

        def row(b: Expr) -> Stmt:
            fill = [fill_row(ws, array, zero, b) for array in new]
            flagged = when(tirx.NE(load(ctx.reset, at * ctx.batch + b), tirx.const(0, "uint8")), fill)
            unfinished = when(at < load(ctx.lengths, b), flagged)  # flags in the padding mean nothing
            return when(tirx.EQ(ctx.has_lengths, int64(0)), flagged, unfinished)

        return when(tirx.NE(ctx.has_reset, int64(0)), when(at < ctx.steps, loop("b", ctx.batch, row)))

    def _pass_on(self, ctx: Context, time: Expr, old: list[Array], new: list[Array]) -> Stmt:
        """A step after a row's end did nothing: its gradients go through as they are."""
        ws = ctx.buffers["workspace"]

        def row(b: Expr) -> Stmt:
            keep = [keep_row(ws, a, n, b) for a, n in zip(old, new, strict=True)]
            return when(tirx.GE(time, load(ctx.lengths, b)), keep)

        return when(tirx.NE(ctx.has_lengths, int64(0)), loop("b", ctx.batch, row))

    def _ended(self, ctx: Context, visit: Visit, blank: Callable[[Expr, Expr], Any]) -> Stmt:
        """blank(t, b) for each row b of each step t of the tile that is after the row's end."""

        def row(t: Expr, b: Expr) -> Stmt:
            return when(tirx.GE(visit.start + t, load(ctx.lengths, b)), blank(t, b))

        rows = loop("t", visit.count, lambda t: loop("b", ctx.batch, lambda b: row(t, b)))
        return when(tirx.NE(ctx.has_lengths, int64(0)), rows)

    def _blank(self, ctx: Context, visit: BackwardVisit, arrays: list[Array]) -> Stmt:
        """Rows of what is read from now on become 0 after their end: sums over rows take them all."""
        ws, zero = ctx.buffers["workspace"], tirx.const(0.0, self.graph.dtype)
        return self._ended(ctx, visit, lambda t, b: [fill_row(ws, array, zero, t * ctx.batch + b) for array in arrays])

    def _give(self, ctx: Context, visit: BackwardVisit, number: int, places: Places) -> Stmt:
        """The gradient of one input to where it goes."""
        root = self.gradients[number]

        def row(t: Expr, b: Expr) -> Stmt:
            def read(node: Node, index: Index) -> Expr | None:
                array, at = places.read(node), t * ctx.batch + b
                return None if array is None else load(ctx.buffers[array.buffer], array.address(at, index))

            def one(index: tuple[Expr, ...], flat: Expr) -> Stmt:
                return visit.give(number, t, b, flat, element(root, index, read, self.graph.dtype))

            return each(root.shape, one)

        blank = self._ended(
            ctx, visit, lambda t, b: each(root.shape, lambda _, flat: visit.give(number, t, b, flat, None))
        )
        return sequence(loop("t", visit.count, lambda t: loop("b", ctx.batch, lambda b: row(t, b))), blank)
