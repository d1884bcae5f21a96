"""The tape: where `forward_train` leaves what `backward` reads, in one flat buffer.

In: the graphs of training, each layer's rows. Out: addresses in the buffer "tape", and its size for the manifest.
Everything is kept in the order of time, steps outside and batch rows inside, each row padded to whole vectors:

    inputs     the first layer's, then what each layer above reads: the outputs of the one below
    extra      the inputs after the first, which every layer reads
    visits     for each layer and direction: its states, T+1 times, and what its graph emits, T times

A state before step t is its entry t, after the step t + 1; in the direction that goes backwards it is the reverse. So a
step reads one entry and writes the next, and no state is copied to be kept.

Where a network of two directions goes through time in parts, each layer and direction does for itself: visits have room
for one part, inputs for the whole of time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tvm_rnn.cpu.lower_layer import Layer
from tvm_rnn.cpu.workspace import Array, row_stride, strides_of
from tvm_rnn.graph.graph import Layers, Node
from tvm_rnn.module_file.schema import CpuTape
from tvm_rnn.network.rnn import RNN
from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import int64


@dataclass
class Rows:
    """Rows of one visit of a graph: strides in elements, one after the other."""

    states: list[int]
    emitted: list[int]

    @property
    def per_step(self) -> int:
        return sum(self.states) + sum(self.emitted)


@dataclass
class TapeLayout:
    """Addresses are made of the numbers of rows of all steps, T B, and of one step, B."""

    net: RNN
    layers: Layers  # forward graphs of training
    lanes: int
    rows: list[Rows] = field(default_factory=list)  # by graph
    inputs: list[tuple[int, int]] = field(default_factory=list)  # by layer: place and stride
    extra: list[tuple[int, int]] = field(default_factory=list)
    visits: list[tuple[int, int]] = field(default_factory=list)  # by layer: places in all steps' rows, in one step's
    per_sequence_row: int = 0
    per_row: int = 0
    inputs_per_row: int = 0  # of per_sequence_row: what inputs take

    def __post_init__(self) -> None:
        for graph in self.layers.graphs:
            self.rows.append(Rows(*([self.stride(n) for n in nodes] for nodes in (graph.states, graph.emitted))))
        for layer in self.net.layers:
            stride = self.stride(layer.graph.inputs[0])
            self.inputs.append((self._reserve(stride), stride))
        for node in self.net.layers[0].graph.inputs[1:]:
            self.extra.append((self._reserve(self.stride(node)), self.stride(node)))
        self.inputs_per_row = self.per_sequence_row
        for index in self.layers.of_layer:
            own, directions = self.rows[index], self.net.num_directions
            self.visits.append((self._reserve(directions * own.per_step), self.per_row))
            self.per_row += directions * sum(own.states)
        # Through a view vectors may run along any axis, and past its end by one vector.
        kept = [n for g in self.layers.graphs for n in (*g.inputs, *g.states, *g.emitted)]
        self.fixed = (2 + max(max(strides_of(n.shape, self.lanes)[0], default=1) for n in kept)) * self.lanes

    def _reserve(self, elements: int) -> int:
        self.per_sequence_row += elements
        return self.per_sequence_row - elements

    def stride(self, node: Node) -> int:
        return row_stride(node.shape, self.lanes, np.dtype(self.net.dtype).itemsize)

    def sizes(self) -> CpuTape:
        """Elements: fixed + per_row B + per_sequence_row T B. inputs_per_row, in networks of two directions: those of
        per_sequence_row that all of the time has, where it is gone through in parts."""
        inputs = self.inputs_per_row if self.net.num_directions > 1 else None
        return CpuTape(self.fixed, self.per_row, self.per_sequence_row, inputs)

    # --- addresses: `steps` is T B, `batch` is B, `whole` what T B is of the whole of time --------------------------

    def input(self, layer: int, offset: Expr, whole: Expr) -> Expr:
        """Of the input of layer `layer + offset`; those layers share a graph."""
        at, stride = self.inputs[layer]
        return whole * (int64(at) + offset * int64(stride))

    def visit(self, layer: int, offset: Expr, steps: Expr, batch: Expr, whole: Expr) -> Expr:
        """Of what one layer and direction keeps: visit number `offset` from direction 0 of layer `layer` on."""
        own = self.rows[self.layers.of_layer[layer]]
        at, row = self.visits[layer]
        of_all = steps * (int64(at - self.inputs_per_row) + offset * int64(own.per_step))
        return whole * int64(self.inputs_per_row) + of_all + batch * (int64(row) + offset * int64(sum(own.states)))

    def state(self, graph: int, number: int, visit: Expr, entry: Expr, steps: Expr, batch: Expr) -> Array:
        """One state of a visit, at one of its T + 1 entries."""
        before, stride = sum(self.rows[graph].states[:number]), self.rows[graph].states[number]
        base = visit + (steps + batch) * int64(before) + entry * batch * int64(stride)
        return self._array(self.layers.graphs[graph].states[number], base, stride)

    def emitted(self, graph: int, number: int, visit: Expr, time: Expr, steps: Expr, batch: Expr) -> Array:
        """One emitted value of a visit, from step `time` on."""
        own = self.rows[graph]
        stride = own.emitted[number]
        before = sum(own.states) + sum(own.emitted[:number])
        base = visit + steps * int64(before) + batch * int64(sum(own.states)) + time * batch * int64(stride)
        return self._array(self.layers.graphs[graph].emitted[number], base, stride)

    def _array(self, node: Node, base: Expr, stride: int) -> Array:
        return Array("tape", base, stride, strides_of(node.shape, self.lanes)[0], node.shape)


@dataclass
class TapeLayer(Layer):
    """A layer's code of training. `tape` and `index`, the graph's number among the network's, are set before the first
    visit."""

    tape: TapeLayout = field(init=False)
    index: int = field(init=False)
