"""forward_train: the function `sequence` that writes a tape as it goes.

In: the RNN and its graphs of training after the passes. Out: the PrimFunc and its packing. Walks are those of
`cpu/lower_network.py`; states, emitted values and the inputs of all layers live in the tape, and nothing between layers
is copied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
from tvm import tirx

from tvm_rnn.cpu.dropout_masks import drop_function
from tvm_rnn.cpu.lower_layer import Layer, fill_row
from tvm_rnn.cpu.lower_network import Run, Tile
from tvm_rnn.cpu.user_array_copies import each, rows_in
from tvm_rnn.cpu.verify_time_order import verify
from tvm_rnn.cpu.workspace import Array, row_stride, strides_of
from tvm_rnn.tir.expr import Buffer, Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import Block, Named, function, load, loop, sequence, store, when

from .lower_layer_forward import KeepingLayer, TrainingVisit
from .lower_network import TrainingLowering


class ForwardTrain(TrainingLowering):
    """forward_train(T, B, n, threads, has_lengths, has_reset, x..., y, states in..., states out..., lengths, reset,
    packed, tape, workspace), and of masks first_step, keys; with two directions whole, first, visit after the other
    integers."""

    layer_type: ClassVar[type[Layer]] = KeepingLayer
    prefix: ClassVar[str] = "train_"

    def functions(self) -> dict[str, tirx.PrimFunc]:
        """forward_train, its packing, and what drops weights, by name."""
        packs = {f"{self.prefix}pack_{i}": layer for i, layer in enumerate(self.code)}
        found = {"forward_train": self._forward_train()}
        verify(found["forward_train"])
        if self.net.regularisers.weight_drop:
            found["weight_drop"] = drop_function(self.lanes, self.net.dtype, self.itemsize)
        return found | {name: self._pack(layer, name) for name, layer in packs.items()}

    def _forward_train(self) -> tirx.PrimFunc:
        given, cell = self._arguments(), self.net.cell
        self.x, (self.y,) = self._users([a.name for a in cell.inputs]), self._users(["y"])
        self.s_in, self.s_out = (self._users([f"{a.name}_{way}" for a in cell.states]) for way in ("in", "out"))
        self._context(given, ("workspace", "packed", "tape"))
        walk = self._time_major() if self.time_major else self._layer_major()
        body = self._with_threads(given["threads"], self._states(True), walk, self._states(False))
        own = [given[n] for n in ("lengths", "reset", "packed", "tape", "workspace")] + self._of_masks(given)
        params = [*(given[n] for n in self.integers), *self.x, self.y, *self.s_in, *self.s_out, *own]
        return function("forward_train", params, body)

    def _state(self, run: Run, number: int, user: Buffer, start: int, into: bool) -> Stmt:
        """The user's states to the entry that the first step of each direction reads, or the last one written back."""
        directions, tape = self.net.num_directions, self.ctx.buffers["tape"]
        size = int(np.prod(self.code[run.graph].graph.states[number].shape, dtype=int))

        def visit(v: Expr) -> Stmt:
            reverse = self.back + (tirx.bitwise_and(v, int64(1)) if directions == 2 else int64(0))
            entry = self.T * (reverse if into else int64(1) - reverse)
            block = self.tape.visit(run.first, v, self.steps, self.B, self.whole)
            array = self.tape.state(run.graph, number, block, entry, self.steps, self.B)

            def row(b: Expr) -> Stmt:
                first = (int64(start) + v * int64(size)) * self.B + b * int64(size)

                def element(index: tuple[Expr, ...], flat: Expr) -> Stmt:
                    place = array.address(b, index)
                    if into:
                        return store(tape, place, load(user, first + flat))
                    return store(user, first + flat, load(tape, place))

                return each(array.shape, element)

            return self._if_called(run, v, loop("b", self.B, row))

        return loop("v", run.count * directions, visit)

    def _copy_in(self, start: Expr, count: Expr) -> list[Block]:
        """The user's inputs to the tape; nothing that is in their padding."""
        parts: list[Block] = []
        places = [self.tape.inputs[0], *self.tape.extra]
        zero = tirx.const(0.0, self.net.dtype)
        for node, user, (at, stride) in zip(self.net.layers[0].graph.inputs, self.x, places, strict=True):
            base = self.whole * int64(at) + self._there(start) * self.B * int64(stride)
            array = Array("tape", base, stride, strides_of(node.shape, self.lanes)[0], node.shape)
            tape = self.ctx.buffers["tape"]
            parts.append(rows_in(tape, user, array, start * self.B, count * self.B))

            def blank(t: Expr, b: Expr, array: Array = array) -> Stmt:
                return fill_row(self.ctx.buffers["tape"], array, zero, t * self.B + b)

            parts.append(self._ended(start, count, blank))
        return [self._if_layer(0, parts)]

    def _copy_out(self, start: Expr, count: Expr) -> Stmt:
        """Nothing: the last layer writes y itself."""
        return sequence()

    def _visit(self, run: Run, i: Expr, d: Expr, tile: Tile) -> Stmt:
        start = tile.start
        code, directions = self.code[run.graph], self.net.num_directions
        visit = i * int64(directions) + d
        named = Named()
        widths = [self.tape.inputs[run.first][1], *(stride for _, stride in self.tape.extra)]
        places = [self.tape.input(run.first, i, self.whole), *(self.whole * int64(at) for at, _ in self.tape.extra)]
        inputs = [
            named(f"input_{number}", place + self._there(start) * self.B * int64(stride))
            for number, (place, stride) in enumerate(zip(places, widths, strict=True))
        ]
        work = TrainingVisit(
            weights=named("weights", self._weights_of(run, visit)),
            states=int64(0),
            scratch=named("scratch", self._row_address(self.scratch_at)),
            hoisted=named("hoisted", self._tile_address(0)),
            inputs=inputs,
            widths=widths,
            output=int64(0),
            output_stride=0,
            direction=d + self.back,
            start=start,
            count=tile.count,
            done=tile.done,
            block=named("block", self.tape.visit(run.first, visit, self.steps, self.B, self.whole)),
            emit=self._emission(run, i, d, start),
            keys=self._keys_of(run, visit),
        )
        return self._if_called(run, visit, named.sets, code.visit(self.ctx, work))

    def _emission(self, run: Run, i: Expr, d: Expr, start: Expr) -> Callable[[Expr, Expr, Expr, Expr], Stmt]:
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
