"""One layer's forward code that keeps what training reads: states and emitted values go to the tape, not to scratch.

In: a graph of training with groups, and the tape's layout. Out: statements for `lower_network.py`, as
`cpu/lower_layer.py` makes them for inference; only where values live differs, and that nothing is left in the padding
of the tape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tvm import tirx

from tvm_rnn.cpu.lower_layer import Context, Layer, Visit, fill_row, keep_row
from tvm_rnn.cpu.workspace import Array
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import Block, bind, load, loop, sequence, when

from .tape_layout import TapeLayout

Emit = Callable[[Expr, Expr, Expr, Expr], Stmt]


@dataclass
class TrainingVisit(Visit):
    """block: address in the tape of what this layer and direction keeps. emit(t, b, j, value): stores element j of the
    output of row b of step t, counted from the tile's first."""

    block: Expr = 0
    emit: Emit = field(default=lambda *where: sequence())


@dataclass
class KeepingLayer(Layer):
    """`tape` and `index`, the graph's number among the network's, are set before the first visit."""

    tape: TapeLayout | None = None
    index: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        emitted = set(self.graph.emitted)
        # A kept value's only place is the tape: scratch and hoisted rows have none for it. The layer's output, where it
        # is computed before the steps, is copied to scratch by the step, as in inference.
        early = [n for n in self.hoisted if n in emitted]
        self.scratch = self._rows(n for n in self.scratch if n not in emitted or n in early)
        self.hoisted = self._rows(n for n in self.hoisted if n not in emitted) | dict.fromkeys(early, (0, 0))
        self.late = [n for n in dict.fromkeys(self.graph.emitted) if n not in early]

    @property
    def states_per_row(self) -> int:
        """None in the workspace."""
        return 0

    def _kept(self, node: Node, visit: Visit, t: Expr, ctx: Context) -> Array:
        assert isinstance(visit, TrainingVisit) and self.tape is not None
        number = self.graph.emitted.index(node)
        steps = ctx.steps * ctx.batch
        return self.tape.emitted(self.index, number, visit.block, visit.start + t, steps, ctx.batch)

    def _hoisted(self, node: Node, visit: Visit, t: Expr, ctx: Context) -> Array:
        return self._kept(node, visit, t, ctx) if node in self.graph.emitted else super()._hoisted(node, visit, t, ctx)

    def _input(self, number: int, visit: Visit, t: Expr, ctx: Context) -> Array:
        return replace(super()._input(number, visit, t, ctx), buffer="tape")

    def _entries(self, ctx: Context, visit: Visit, time: Expr) -> tuple[list[Array], list[Array], list[Block]]:
        """Each state before and after step `time`, and the statements that bind their addresses."""
        assert isinstance(visit, TrainingVisit) and self.tape is not None
        old: list[Array] = []
        new: list[Array] = []
        sets: list[Block] = []
        for number, node in enumerate(self.graph.states):
            for into, entry in ((old, time + visit.direction), (new, time + int64(1) - visit.direction)):
                array = self.tape.state(self.index, number, visit.block, entry, ctx.steps * ctx.batch, ctx.batch)
                base, set_base = bind(f"{node.name}_{'old' if into is old else 'new'}", array.base)
                sets.append(set_base)
                into.append(replace(array, base=base))
        return old, new, sets

    def _step(self, ctx: Context, visit: Visit, s: Expr) -> list[Block]:
        assert isinstance(visit, TrainingVisit)
        t, set_t = bind("t", s + visit.direction * (visit.count - int64(1) - s - s))
        time, set_time = bind("time", visit.start + t)
        old, new, sets = self._entries(ctx, visit, time)
        read = dict(zip(self.graph.states, old, strict=True))
        read |= {n: self._input(i, visit, t, ctx) for i, n in enumerate(self.graph.inputs)}
        read |= {n: self._hoisted(n, visit, t, ctx) for n in self.hoisted}
        write: dict[Node, list[Array]] = {}
        for node, (at, stride) in self.scratch.items():
            write[node] = [self._array("workspace", node, visit.scratch + ctx.batch * int64(at), stride)]
        for node in self.late:
            write.setdefault(node, []).append(self._kept(node, visit, t, ctx))
        for node, array in zip(self.graph.results, new, strict=True):
            write.setdefault(node, []).append(array)
        groups = self._groups(ctx, visit, read, write, tirx.bitwise_and(time, int64(1)))
        out = (read | {n: a[0] for n, a in write.items()})[self.graph.output]
        kept = [self._kept(n, visit, t, ctx) for n in dict.fromkeys(self.graph.emitted)]
        on_tape = replace(ctx, buffers={**ctx.buffers, "workspace": ctx.buffers["tape"]})
        return [
            set_t,
            set_time,
            *sets,
            self._restart(on_tape, visit, time, old),
            *groups,
            self._emit(ctx, visit, out, t),
            self._end(ctx, visit, time, t, list(zip(old, new, strict=True)), kept),
        ]

    def _emit(self, ctx: Context, visit: TrainingVisit, out: Array, t: Expr) -> Stmt:
        source = ctx.buffers[out.buffer]

        def copy(b: Expr, j: Expr) -> Stmt:
            return visit.emit(t, b, j, load(source, out.address(b, (j,))))

        return loop("b", ctx.batch, lambda b: loop("j", out.shape[-1], lambda j: copy(b, j)))

    def _end(
        self,
        ctx: Context,
        visit: TrainingVisit,
        time: Expr,
        t: Expr,
        states: list[tuple[Array, Array]],
        kept: list[Array],
    ) -> Stmt:
        """Rows that have ended keep their state and emit zeros. What the tape has of them becomes 0: weight gradients
        sum over all rows, and 0 times NaN is NaN."""
        tape, zero = ctx.buffers["tape"], tirx.const(0.0, self.graph.dtype)

        def row(b: Expr) -> Stmt:
            keep = [keep_row(tape, old, new, b) for old, new in states]
            blank = [fill_row(tape, a, zero, b) for a in (*(old for old, _ in states), *kept)]
            silent = loop("j", self.graph.output.shape[0], lambda j: visit.emit(t, b, j, zero))
            return when(tirx.GE(time, load(ctx.lengths, b)), [*keep, *blank, silent])

        return when(tirx.NE(ctx.has_lengths, int64(0)), loop("b", ctx.batch, row))
