"""The tape: where `forward_train` leaves what `backward` reads, in one flat buffer.

In: the graphs of training, each layer's rows. Out: addresses in the buffer "tape", and its size for the manifest.
Everything is kept in the order of time, steps outside and batch rows inside, each row padded to whole vectors:

    inputs     the first layer's, then what each layer above reads: the outputs of the one below
    extra      the inputs after the first, which every layer reads
    visits     for each layer and direction: its states, T+1 times, and what its graph emits, T times; matrices that
               are recurrences over all time before each 16th step alone, counted from the last, and before the first

A state before step t is its entry t, after the step t + 1; in the direction that goes backwards it is the reverse. So a
step reads one entry and writes the next, and no state is copied to be kept.

Where a network of two directions goes through time in parts, each layer and direction does for itself: visits have room
for one part, inputs for the whole of time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from tvm import tirx

from tvm_rnn.cpu.lower_layer import Context, Layer, Visit, turned
from tvm_rnn.cpu.workspace import Array, row_stride, strides_of
from tvm_rnn.graph.graph import Graph, Layers, Node
from tvm_rnn.graph.ops import Shape
from tvm_rnn.graph.recurrences import KEPT_EVERY
from tvm_rnn.module_file.schema import CpuTape
from tvm_rnn.network.rnn import RNN
from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import Block, bind


@dataclass
class Rows:
    """Rows of one visit of a graph: strides in elements, one after the other. matrices: the states, by their number,
    that are kept before some steps alone; their stride in `states` is 0."""

    states: list[int]
    emitted: list[int]
    matrices: dict[int, int] = field(default_factory=dict)

    @property
    def per_step(self) -> int:
        return sum(self.states) + sum(self.emitted)

    @property
    def per_mark(self) -> int:
        return sum(self.matrices.values())


@dataclass(frozen=True)
class Extents:
    """Numbers of rows: `steps` of all steps, `batch` of one, `marks` of all that matrices are kept before but the
    last."""

    steps: Expr
    batch: Expr
    marks: Expr


@dataclass
class TapeLayout:
    """Addresses are made of the numbers of rows of all steps, T B, of one step, B, and of one in 16 steps."""

    net: RNN
    layers: Layers  # forward graphs of training
    lanes: int
    rows: list[Rows] = field(default_factory=list)  # by graph
    inputs: list[tuple[int, int]] = field(default_factory=list)  # by layer: place and stride
    extra: list[tuple[int, int]] = field(default_factory=list)
    visits: list[Visited] = field(default_factory=list)  # by layer
    per_sequence_row: int = 0
    per_row: int = 0
    per_mark: int = 0
    inputs_per_row: int = 0  # of per_sequence_row: what inputs take

    def __post_init__(self) -> None:
        for graph in self.layers.graphs:
            self.rows.append(self._rows_of(graph))
        for layer in self.net.layers:
            stride = self.stride(layer.graph.inputs[0])
            self.inputs.append((self._reserve(stride), stride))
        for node in self.net.layers[0].graph.inputs[1:]:
            self.extra.append((self._reserve(self.stride(node)), self.stride(node)))
        self.inputs_per_row = self.per_sequence_row
        for index in self.layers.of_layer:
            own, directions = self.rows[index], self.net.num_directions
            self.visits.append(Visited(self._reserve(directions * own.per_step), self.per_row, self.per_mark))
            self.per_row += directions * (sum(own.states) + own.per_mark)
            self.per_mark += directions * own.per_mark
        # Through a view vectors may run along any axis, and past its end by one vector.
        kept = [n for g in self.layers.graphs for n in (*g.inputs, *g.states, *g.emitted)]
        shapes = [shape for n in kept for shape in (n.shape, turned(n.shape))]
        self.fixed = (2 + max(max(strides_of(shape, self.lanes)[0], default=1) for shape in shapes)) * self.lanes

    def _rows_of(self, graph: Graph) -> Rows:
        found = Rows([], [self.stride(n) for n in graph.emitted])
        for number, (state, result) in enumerate(zip(graph.states, graph.results, strict=True)):
            matrix = result.op == "scan_matrix"
            found.states.append(0 if matrix else self.stride(state))
            if matrix:
                found.matrices[number] = max(self.stride(state), self._stride(turned(state.shape)))
        return found

    def _reserve(self, elements: int) -> int:
        self.per_sequence_row += elements
        return self.per_sequence_row - elements

    def stride(self, node: Node) -> int:
        return self._stride(node.shape)

    def _stride(self, shape: Shape) -> int:
        return row_stride(shape, self.lanes, np.dtype(self.net.dtype).itemsize)

    def sizes(self) -> CpuTape:
        """Elements: fixed + per_row B + per_sequence_row T B + per_mark B for each `mark` of the T steps, the last of
        which may be less. inputs_per_row, in networks of two directions: those of per_sequence_row that all of the time
        has, where it is gone through in parts."""
        inputs = self.inputs_per_row if self.net.num_directions > 1 else None
        marks = (self.per_mark, KEPT_EVERY) if self.per_mark else (None, None)
        return CpuTape(self.fixed, self.per_row, self.per_sequence_row, inputs, *marks)

    # --- addresses; `whole` is what T B is of the whole of time ------------------------------------------------------

    def marks(self, steps: Expr, batch: Expr) -> tuple[Expr, Block]:
        """Rows of matrices but the last ones; set once where there are any."""
        if not self.per_mark:
            return int64(0), None
        return bind("marks", tirx.floordiv(steps + int64(KEPT_EVERY - 1), int64(KEPT_EVERY)) * batch)

    def extents(self, ctx: Context) -> Extents:
        """How many rows a call has."""
        return Extents(ctx.steps * ctx.batch, ctx.batch, ctx.marks)

    def input(self, layer: int, offset: Expr, whole: Expr) -> Expr:
        """Of the input of layer `layer + offset`; those layers share a graph."""
        at, stride = self.inputs[layer]
        return whole * (int64(at) + offset * int64(stride))

    def visit(self, layer: int, offset: Expr, rows: Extents, whole: Expr) -> Expr:
        """Of what one layer and direction keeps: visit number `offset` from direction 0 of layer `layer` on."""
        own, first = self.rows[self.layers.of_layer[layer]], self.visits[layer]
        of_all = rows.steps * (int64(first.steps - self.inputs_per_row) + offset * int64(own.per_step))
        of_one = rows.batch * (int64(first.row) + offset * int64(sum(own.states) + own.per_mark))
        of_marks = rows.marks * (int64(first.mark) + offset * int64(own.per_mark)) if self.per_mark else int64(0)
        return whole * int64(self.inputs_per_row) + of_all + of_one + of_marks

    def state(self, graph: int, number: int, visit: Expr, entry: Expr, rows: Extents) -> Array:
        """One state of a visit, at one of its T + 1 entries."""
        before, stride = sum(self.rows[graph].states[:number]), self.rows[graph].states[number]
        base = visit + (rows.steps + rows.batch) * int64(before) + entry * rows.batch * int64(stride)
        return self._array(self.layers.graphs[graph].states[number], base, stride)

    def emitted(self, graph: int, number: int, visit: Expr, time: Expr, rows: Extents) -> Array:
        """One emitted value of a visit, from step `time` on."""
        own = self.rows[graph]
        stride = own.emitted[number]
        before = sum(own.states) + sum(own.emitted[:number])
        base = visit + rows.steps * int64(before) + rows.batch * int64(sum(own.states))
        return self._array(self.layers.graphs[graph].emitted[number], base + time * rows.batch * int64(stride), stride)

    def matrix(self, graph: int, number: int, visit: Expr, mark: Expr, rows: Extents) -> Array:
        """One matrix of a visit, at one of its entries. It lies there as where it is worked on."""
        own, layer = self.rows[graph], self.layers.graphs[graph]
        stride, state = own.matrices[number], layer.states[number]
        before = sum(own.matrices[n] for n in own.matrices if n < number)
        base = visit + rows.steps * int64(own.per_step) + rows.batch * int64(sum(own.states))
        base = base + (rows.marks + rows.batch) * int64(before) + mark * rows.batch * int64(stride)
        if layer.results[number].attrs["key"] == -2:
            return self._array(state, base, stride)
        strides = turned(strides_of(turned(state.shape), self.lanes)[0])
        return Array("tape", base, stride, strides, state.shape)

    def _array(self, node: Node, base: Expr, stride: int) -> Array:
        return Array("tape", base, stride, strides_of(node.shape, self.lanes)[0], node.shape)


class Visited(NamedTuple):
    """Where a visit begins: in rows of all steps, of one step, and of those that matrices are kept before."""

    steps: int
    row: int
    mark: int


@dataclass
class TapeLayer(Layer):
    """A layer's code of training. `tape` and `index`, the graph's number among the network's, are set before the first
    visit."""

    tape: TapeLayout = field(init=False)
    index: int = field(init=False)

    def marks(
        self, ctx: Context, visit: Visit, number: int, done: Expr
    ) -> tuple[Callable[[Expr], Expr], Callable[[Expr], Array]]:
        """Of a matrix: whether the tape has it before a place in the order of forward's steps, and where. done: steps
        of forward before the tile."""
        many = int64(KEPT_EVERY)

        def has(position: Expr) -> Expr:
            place = done + position
            left = tirx.floormod(ctx.steps - place, many)
            return tirx.Or(tirx.EQ(left, int64(0)), tirx.EQ(place, int64(0)))

        def array(position: Expr) -> Array:
            mark = tirx.floordiv(done + position + int64(KEPT_EVERY - 1), many)
            return self.tape.matrix(self.index, number, visit.block, mark, self.tape.extents(ctx))

        return has, array
