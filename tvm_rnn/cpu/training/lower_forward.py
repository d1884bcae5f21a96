"""forward_train: the function `sequence` that writes a tape as it goes.

In: the RNN and its graphs of training after the passes. Out: the PrimFunc and its packing. Walks are those of
`cpu/lower_network.py`; states, emitted values and the inputs of all layers live in the tape, and nothing between layers
is copied.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tvm import tirx

from tvm_rnn.cpu.dropout_masks import drop_function
from tvm_rnn.cpu.lower_layer import Context, Emit, Layer, Step, Visit, ended_in_tile, fill_row
from tvm_rnn.cpu.lower_network import Run, Tile
from tvm_rnn.cpu.register_tile import Places
from tvm_rnn.cpu.walk_through_time import Kept, Walk
from tvm_rnn.cpu.workspace import Array, row_stride
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import Block, Named, bind, store

from .lower_network import TrainingLowering
from .tape_layout import TapeLayer


@dataclass
class KeepingLayer(TapeLayer):
    """A layer whose states and emitted values are in the tape."""

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
    def tape_matrices(self) -> list[Node]:
        """Those of which it has some."""
        return [s for r, s in self.solved.items() if r.op == "scan_matrix"]

    @property
    def vectors(self) -> list[Node]:
        """The solved states of which the tape has all steps."""
        return [s for s in self.solved.values() if s not in self.tape_matrices]

    @property
    def states_per_row(self) -> int:
        """None in the workspace, but where the tape has matrices of some steps alone."""
        return super().states_per_row if self.tape_matrices else 0

    def _kept(self, node: Node, visit: Visit, t: Expr, ctx: Context) -> Array:
        number = self.graph.emitted.index(node)
        return self.tape.emitted(self.index, number, visit.block, visit.start + t, self.tape.extents(ctx))

    def _hoisted(self, node: Node, visit: Visit, t: Expr, ctx: Context) -> Array:
        return self._kept(node, visit, t, ctx) if node in self.graph.emitted else super()._hoisted(node, visit, t, ctx)

    def _input(self, number: int, visit: Visit, t: Expr, ctx: Context) -> Array:
        return replace(super()._input(number, visit, t, ctx), buffer="tape")

    def _begin(self, ctx: Context, visit: Visit, s: Expr) -> Step:
        step = Step(visit, s)
        step.time, set_time = bind("time", step.time)
        step.odd = tirx.bitwise_and(step.time, int64(1))
        step.sets.append(set_time)
        entries = (step.time + visit.direction, step.time + int64(1) - visit.direction)
        for node in self.stepped:
            step.bind_state(node.name, *(self._entry(ctx, visit, node, entry) for entry in entries))
        return step

    def _entry(self, ctx: Context, visit: Visit, state: Node, entry: Expr) -> Array:
        number = self.graph.states.index(state)
        return self.tape.state(self.index, number, visit.block, entry, self.tape.extents(ctx))

    def _walk(self, ctx: Context, visit: Visit) -> Walk:
        """The tape has a recurrence's states before each step."""
        before = visit.start + visit.direction
        kept = {s: self._entry(ctx, visit, s, before) for s in self.vectors}
        tape = {s: Kept(*self.marks(ctx, visit, self.graph.states.index(s), visit.done)) for s in self.tape_matrices}
        return replace(super()._walk(ctx, visit), kept=kept, tape=tape, few=None)

    def _state_at(self, ctx: Context, visit: Visit, state: Node, last: bool) -> Array:
        if state in self.tape_matrices:
            return super()._state_at(ctx, visit, state, last)
        end = int64(1) - visit.direction if last else visit.direction
        return self._entry(ctx, visit, state, visit.start + end * visit.count)

    def _after(self, ctx: Context, visit: Visit, rows: Expr, places: Places) -> list[Block]:
        """The output; and zeros in the tape for what is left there before the steps."""
        kept = [self._entry(ctx, visit, s, visit.start + visit.direction) for s in self.vectors]
        if not self.has_steps:
            kept += [self._kept(n, visit, int64(0), ctx) for n in dict.fromkeys(self.graph.emitted)]
        zero = tirx.const(0.0, self.graph.dtype)

        def blank(t: Expr, b: Expr) -> list[Stmt]:
            return [fill_row(ctx.buffers, array, zero, t * ctx.batch + b) for array in kept]

        blanked = ended_in_tile(ctx, visit.start, visit.count, blank) if kept else None
        return [*super()._after(ctx, visit, rows, places), blanked]

    def _written(self, ctx: Context, visit: Visit, t: Expr) -> dict[Node, list[Array]]:
        return super()._written(ctx, visit, t) | {n: [self._kept(n, visit, t, ctx)] for n in self.late}

    def _blanked(self, ctx: Context, visit: Visit, step: Step) -> list[Array]:
        """All that the tape has: weight gradients sum over all rows, and 0 times NaN is NaN."""
        return [*step.old, *(self._kept(n, visit, step.t, ctx) for n in dict.fromkeys(self.graph.emitted))]


class ForwardTrain(TrainingLowering):
    """forward_train(T, B, n, threads, has_lengths, has_reset, x..., y, states in..., states out..., lengths, reset,
    packed, tape, workspace), and of masks first_step, keys; with two directions whole, first, visit after the other
    integers."""

    layer_type: ClassVar[type[Layer]] = KeepingLayer
    prefix: ClassVar[str] = "train_"

    name: ClassVar[str] = "forward_train"
    memories: ClassVar[tuple[str, ...]] = ("packed", "tape", "workspace")
    flow: ClassVar[str] = "tape"

    def functions(self) -> dict[str, tirx.PrimFunc]:
        """forward_train, its packing, and what drops weights, by name."""
        found = super().functions()
        if self.net.regularisers.weight_drop:
            found["weight_drop"] = drop_function(self.lanes, self.net.dtype, self.itemsize)
        return found

    def _state_array(self, run: Run, number: int, visit: Expr, first: bool) -> Array:
        """The entry that the first step of a direction reads, or that the last one writes."""
        if number in self.tape.rows[run.graph].matrices:
            return super()._state_array(run, number, visit, first)
        reverse = self.back + (tirx.bitwise_and(visit, int64(1)) if self.net.num_directions == 2 else int64(0))
        entry = self.T * (reverse if first else int64(1) - reverse)
        return self.tape.state(run.graph, number, self._block(run, visit), entry, self.extents)

    def _inputs_at(self, start: Expr) -> list[tuple[Expr, int]]:
        return self._tape_inputs(self.runs[0], int64(0), start)

    def _complete(self, work: Visit, named: Named, run: Run, place: tuple[Expr, Expr, Expr], tile: Tile) -> None:
        super()._complete(work, named, run, place, tile)
        work.emit = self._emission(named, run, *place[:2], tile)

    def _onward(self, named: Named, run: Run, i: Expr, d: Expr, tile: Tile) -> Emit:
        """To the next layer's input in the tape."""
        width = self.code[run.graph].graph.output.shape[0]
        stride = row_stride((width * self.net.num_directions,), self.lanes, self.itemsize)

        def emit(t: Expr, b: Expr, j: Expr, value: Expr) -> Stmt:
            there = (self._there(tile.start) + t) * self.B + b
            above = self.tape.input(run.first, i + int64(1), self.whole) + there * int64(stride)
            return store(self.ctx.buffers["tape"], above + d * int64(width) + j, value)

        return emit
