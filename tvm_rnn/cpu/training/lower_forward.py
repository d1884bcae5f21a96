"""forward_train: the function `sequence` that writes a tape as it goes.

In: the RNN and its graphs of training after the passes. Out: the PrimFunc and its packing. Walks are those of
`cpu/lower_network.py`; states, emitted values and the inputs of all layers live in the tape, and nothing between layers
is copied.
"""

from __future__ import annotations

from typing import ClassVar

from tvm import tirx

from tvm_rnn.cpu.dropout_masks import drop_function
from tvm_rnn.cpu.lower_layer import Emit, Layer, Visit
from tvm_rnn.cpu.lower_network import Run, Tile
from tvm_rnn.cpu.workspace import Array, row_stride
from tvm_rnn.tir.expr import Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import Named, sequence, store, when

from .lower_layer_forward import KeepingLayer
from .lower_network import TrainingLowering


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
        reverse = self.back + (tirx.bitwise_and(visit, int64(1)) if self.net.num_directions == 2 else int64(0))
        entry = self.T * (reverse if first else int64(1) - reverse)
        block = self.tape.visit(run.first, visit, self.steps, self.B, self.whole)
        return self.tape.state(run.graph, number, block, entry, self.steps, self.B)

    def _inputs_at(self, start: Expr) -> list[tuple[Expr, int]]:
        return self._tape_inputs(self.runs[0], int64(0), start)

    def _copy_out(self, start: Expr, count: Expr) -> Stmt:
        """Nothing: the last layer writes y itself."""
        return sequence()

    def _complete(self, work: Visit, named: Named, run: Run, place: tuple[Expr, Expr, Expr], tile: Tile) -> None:
        super()._complete(work, named, run, place, tile)
        work.emit = self._emission(run, *place[:2], tile.start)

    def _emission(self, run: Run, i: Expr, d: Expr, start: Expr) -> Emit:
        """Where a layer's output goes: to the next layer's input in the tape, or to the user's y."""
        width = self.code[run.graph].graph.output.shape[0]
        wide = width * self.net.num_directions
        after = run.first + run.count
        stride = row_stride((wide,), self.lanes, self.itemsize)

        def emit(t: Expr, b: Expr, j: Expr, value: Expr) -> Stmt:
            row, there = (start + t) * self.B + b, (self._there(start) + t) * self.B + b
            column = d * int64(width) + j
            above = self.tape.input(run.first, i + int64(1), self.whole) + there * int64(stride) + column
            to_tape = store(self.ctx.buffers["tape"], above, value)
            to_user = store(self.y, row * int64(wide) + column, value)
            if after < self.net.num_layers:
                return to_tape
            return to_user if run.count == 1 else when(tirx.EQ(i, int64(run.count - 1)), to_user, to_tape)

        return emit
