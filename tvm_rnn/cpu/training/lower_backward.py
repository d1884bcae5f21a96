"""backward: from a tape and the gradients of y and of the last states to all other gradients.

In: the RNN, its backward graphs after the passes, and the tape's layout. Out: the PrimFunc, its packing, and per
distinct layer a function that makes gradients of weights of its sums.

    for layer from the last: for direction: for tile, against its order: before, steps, after, sums over rows
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import structs
from tvm import tirx

from tvm_rnn.cpu.lower_layer import Layer, Visit
from tvm_rnn.cpu.lower_network import Run, Tile
from tvm_rnn.cpu.workspace import Array, rows_in
from tvm_rnn.graph.recurrences import KEPT_EVERY
from tvm_rnn.module_file.schema import CpuBackward, Finish
from tvm_rnn.network.layer import weight_name
from tvm_rnn.network.rnn import named_constants
from tvm_rnn.tir.expr import Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import Named, bind, buffer, load, loop, runtime_function, sequence, store, variable, when

from .lower_layer_backward import BackwardLayer, BackwardVisit, Give
from .lower_network import TrainingLowering
from .weight_gradient_sums import ROW_SUMS


class Backward(TrainingLowering):
    """backward(T, B, n, threads, has_lengths, has_reset, gy, gradients of states in..., out..., of inputs..., lengths,
    reset, packed, tape, row_sums, workspace), and of masks first_step, keys; with two directions whole, first, visit
    after the other integers. Gradients of inputs and row_sums are added to: they come as zeros."""

    layer_type: ClassVar[type[Layer]] = BackwardLayer
    visit_type: ClassVar[type[Visit]] = BackwardVisit
    prefix: ClassVar[str] = "backward_"
    name: ClassVar[str] = "backward"
    together: ClassVar[int] = KEPT_EVERY
    memories: ClassVar[tuple[str, ...]] = ("packed", "tape", ROW_SUMS, "workspace")

    @property
    def backs(self) -> list[BackwardLayer]:
        """The layers' code as what it is."""
        return [code for code in self.code if isinstance(code, BackwardLayer)]

    def _plan_flow(self) -> None:
        """Two buffers in turn for gradients between layers (one for one layer), and where each layer's sums begin."""
        super()._plan_flow()
        self.memory.per_sequence_row += min(2, self.net.num_layers) * self.stride
        self.sums_at, self.totals_elements = [], 0
        for index in self.layers.of_layer:
            self.sums_at.append(self.totals_elements)
            self.totals_elements += self.backs[index].finish.size * self.net.num_directions
        self.totals_elements += self.slack

    def functions(self) -> dict[str, tirx.PrimFunc]:
        """backward, its packing, and what turns sums to gradients, by name."""
        backs = enumerate(self.backs)
        return super().functions() | {
            name: self._finish(code, name) for i, code in backs if code.graph.params and (name := f"finish_{i}")
        }

    def facts(self) -> CpuBackward:
        """What the runtime must know to call both kinds of function."""
        finishes = []
        for layer, index in enumerate(self.layers.of_layer):
            code = self.backs[index]
            names = [p.name for p in code.graph.params]
            fixed = [*named_constants(code.finish.graph, code.finish.number)]
            for d in range(self.net.num_directions if names else 0):
                weights = [weight_name(n, layer, d) for n in names]
                at = self.sums_at[layer] + d * code.finish.size
                finishes.append(Finish(f"finish_{index}", weights + fixed, at, weights))
        own = structs.asdict(super().facts())
        return CpuBackward(**own, totals_elements=self.totals_elements, finishes=finishes)

    def _finish(self, code: BackwardLayer, name: str) -> tirx.PrimFunc:
        params = [p.name for p in code.graph.params]
        raw = self._raw([*params, *named_constants(code.finish.graph, code.finish.number)])
        gradients = self._users([f"d_{key}" for key in params])
        row_sums, offset = buffer(ROW_SUMS, self.net.dtype), variable("offset")
        body = code.finish.statement(raw, row_sums, offset, gradients)
        return runtime_function(name, [*raw.values(), row_sums, offset, *gradients], body)

    # --- the backward function ---------------------------------------------------------------------------------------

    def _sequence(self) -> tirx.PrimFunc:
        given, cell = self._arguments(), self.net.cell
        (self.gy,) = self._users(["gy"])
        self.s_in, self.s_out = (self._users([f"d_{a.name}_{way}" for a in cell.states]) for way in ("in", "out"))
        self.gx = self._users([f"d_{a.name}" for a in cell.inputs])
        walk = [self._layers(run) for run in reversed(self.runs)]
        body = self._with_threads(given["threads"], self._states(True), self._gy_in(), walk, self._states(False))
        return self._function(given, [self.gy, *self.s_in, *self.s_out, *self.gx], body)

    def _between(self, layer: Expr) -> Expr:
        """Address of the gradient of that layer's output: the buffers take turns from the last layer down."""
        turn = tirx.bitwise_and(int64(self.net.num_layers - 1) - layer, int64(1))
        return self._sequence_address(0) + turn * self.whole * int64(self.stride)

    def _gy_in(self) -> Stmt:
        """The gradient of y, of which rows that have ended count nothing."""
        width, first = self.net.output_size, self._between(int64(self.net.num_layers - 1))
        first = first + self.first * self.B * int64(self.stride) if self.in_parts else first
        array = Array("workspace", first, self.stride, (1,), (width,))
        copied = rows_in(self.ws, self.gy, array, int64(0), self.steps)
        return self._if_layer(self.net.num_layers - 1, [copied, self._blank(array, int64(0), self.T)])

    def _layers(self, run: Run) -> Stmt:
        directions = self.net.num_directions

        def layer(j: Expr) -> Stmt:
            i, set_i = bind("layer", int64(run.count - 1) - j)

            def direction(d: Expr) -> Stmt:
                def tile(done: Expr, count: Expr) -> Stmt:
                    back = int64(1) - d - self.back
                    start, set_start = bind("start", done + back * (self.T - done - done - count))
                    return sequence(set_start, self._visit(run, i, d, Tile(done, start, count, start)))

                return self._tiles(tile)

            return sequence(set_i, loop("d", directions, direction))

        return loop("l", run.count, layer)

    def _inputs(self, named: Named, run: Run, i: Expr, d: Expr, tile: Tile) -> tuple[list[Expr], list[int]]:
        """The gradient of the output, then what forward read."""
        width = int64(self.code[run.graph].graph.inputs[0].shape[0])
        there = self._there(tile.start) * self.B * int64(self.stride)
        above = named("above", self._between(i + int64(run.first)) + there + d * width)
        inputs, widths = super()._inputs(named, run, i, d, tile)
        return [above, *inputs], [self.stride, *widths]

    def _complete(self, work: Visit, named: Named, run: Run, place: tuple[Expr, Expr, Expr], tile: Tile) -> None:
        super()._complete(work, named, run, place, tile)
        assert isinstance(work, BackwardVisit)
        (i, d, visit), size = place, self.backs[run.graph].finish.size
        work.side, work.direction = d + self.back, int64(1) - d - self.back
        work.sums_at = named("sums", int64(self.sums_at[run.first]) + visit * int64(size))
        work.give = self._giving(run, i, d, tile.start)

    def _giving(self, run: Run, i: Expr, d: Expr, start: Expr) -> Give:
        """Where gradients of inputs go: the first one's to the layer below, or to the user; the others' to the user,
        from every layer. Both directions read the same inputs: the second adds."""
        inputs = self.code[run.graph].graph.inputs[1:]
        zero = tirx.const(0.0, self.net.dtype)

        def to_user(number: int, row: Expr, flat: Expr, value: Expr | None) -> Stmt:
            size = int(np.prod(inputs[number].shape, dtype=int))
            at = row * int64(size) + flat
            into = self.gx[number]
            return store(into, at, zero if value is None else load(into, at) + value)

        def below(row: Expr, flat: Expr, value: Expr | None) -> Stmt:
            there = row + self.first * self.B if self.in_parts else row
            at = self._between(i + int64(run.first - 1)) + there * int64(self.stride) + flat
            if value is None:
                return store(self.ws, at, zero)
            first = store(self.ws, at, value)
            both = self.net.num_directions == 2
            return when(tirx.EQ(d, int64(0)), first, store(self.ws, at, load(self.ws, at) + value)) if both else first

        def give(number: int, t: Expr, b: Expr, flat: Expr, value: Expr | None) -> Stmt:
            row = (start + t) * self.B + b
            if number or (run.first == 0 and run.count == 1):
                return to_user(number, row, flat, value)
            if run.first:
                return below(row, flat, value)
            return when(tirx.EQ(i, int64(0)), to_user(0, row, flat, value), below(row, flat, value))

        return give
