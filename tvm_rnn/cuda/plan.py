"""The whole network on the GPU: layers, directions and tiles of time around the layers' kernels.

In: an RNN, its layers' graphs after the passes, a target. Out: a `Program`: kernels, memory, and the statements of
`sequence` and `pack`. Tiles of time bound the memory for hoisted values, whatever T is.

    one direction:   states in; for tile: for layer: hoisted groups, steps; states out
    two directions:  states in; for layer: for direction: for tile: hoisted groups, steps; states out
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ..graph import depends
from ..lower import node_flops
from ..pipeline import Layers
from ..rnn import RNN
from ..target import Target
from .program import Expr, Host, Pointer, Program
from .steps import Buffers, Layer, Tile

HOISTED_BYTES = 256 << 20  # for the hoisted values of one tile: more rows make no product faster


@dataclass
class Visit:
    """One layer in one direction."""

    code: Layer
    layer: int
    direction: int
    buffers: Buffers
    user: list[tuple[Pointer, Pointer]]  # this layer's and direction's part of each state of the user's, in and out


@dataclass
class Plan:
    """Writes the program of one network. Call `run()`."""

    net: RNN
    layers: Layers
    target: Target
    batches: tuple[int, ...]
    precision: str
    program: Program = field(init=False)

    def __post_init__(self) -> None:
        net = self.net
        self.program = Program(dtype=net.dtype)
        self.directions = net.num_directions
        self.code = [
            Layer(graph, i, self.precision, net.dtype, self.target, net.cell.initial, self.batches, self.directions)
            for i, graph in enumerate(self.layers.graphs)
        ]

    def run(self) -> Program:
        program, host = self.program, self.program.sequence
        per_row = max(1, *(layer.bytes_per_row for layer in self.code))
        self.steps = program.let("tile_steps", f"max<int64_t>(1, min<int64_t>(T, {HOISTED_BYTES // per_row} / B))")
        self.visits = self._visits()
        for visit in self.visits:
            visit.code.states.load(host, visit.buffers, [before for before, _ in visit.user])
        if self.directions == 1:
            self._time_major(host)
        else:
            self._layer_major(host)
        for visit in self.visits:
            visit.code.states.save(host, self._last(host, visit), [after for _, after in visit.user])
        program.facts["templates"] = [fact for code in self.code for fact in code.facts()]
        program.facts["flops_per_row"] = self._flops()
        return program

    def _last(self, host: Host, visit: Visit) -> list[Pointer]:
        """The copies of the states that hold their values after T steps."""
        steps = f"(T + {self.steps} - 1) / {self.steps}"
        odd = f"({visit.code.regime} >= 0 ? {steps} : T) & 1" if visit.code.regimes else "T & 1"
        odd = host.let("last", odd)
        return [Pointer(f"({odd} ? {pair[1].text} : {pair[0].text})", pair[0].dtype) for pair in visit.buffers.states]

    def _flops(self) -> int:
        total = 0
        for index in self.layers.of_layer:
            nodes = self.layers.graphs[index].nodes()
            leaves = depends(nodes)
            total += sum(node_flops(n) for n in nodes if not n.leaf and leaves[n])
        return total * self.directions

    # --- memory ----------------------------------------------------------------------------------------------------

    def _visits(self) -> list[Visit]:
        program, visits = self.program, []
        work: dict[int, Any] = {}
        states = {}
        for layer, index in enumerate(self.layers.of_layer):
            for direction in range(self.directions):
                states[layer, direction] = self.code[index].state_buffers(program)
        self._between()
        # Layers run one after the other: their hoisted and step values share memory. Nothing is reserved after this.
        for index, code in enumerate(self.code):
            with program.scratch():
                work[index] = code.work_buffers(program, f"{self.steps} * B")
            code.choose_regime(program.sequence)
        for layer, index in enumerate(self.layers.of_layer):
            code = self.code[index]
            for direction in range(self.directions):
                weights = code.weights.pack(program, layer, direction)
                buffers = Buffers(weights, *states[layer, direction], *work[index])
                visits.append(Visit(code, layer, direction, buffers, self._user(layer, direction)))
        return visits

    def _user(self, layer: int, direction: int) -> list[tuple[Pointer, Pointer]]:
        """Where the states of a layer and direction begin in the user's arrays."""
        found = []
        for number in range(len(self.net.cell.states)):
            sizes = [prod(self.layers.graphs[i].states[number].shape) for i in self.layers.of_layer]
            before = self.directions * sum(sizes[:layer]) + direction * sizes[layer]
            pair = (self.program.state_in(number), self.program.state_out(number))
            found.append((pair[0].at(f"{before} * B"), pair[1].at(f"{before} * B")))
        return found

    def _between(self) -> None:
        """The sequences that layers hand to the next one: two buffers, written and read in turn."""
        layers = self.net.layers[:-1]
        width = max((layer.width for layer in layers), default=0) * self.directions
        rows = "T * B" if self.directions > 1 else f"{self.steps} * B"
        count = min(2, len(layers))
        self.between = [self.program.buffer("between", f"{rows} * {width}", self.net.dtype) for _ in range(count)]

    # --- statements ------------------------------------------------------------------------------------------------

    def _time_major(self, host: Host) -> None:
        with self._tiles(host) as (tile, done, count):
            for visit in self.visits:
                self._visit(host, visit, (tile, done, count), done)

    def _layer_major(self, host: Host) -> None:
        for visit in self.visits:
            with self._tiles(host) as (tile, done, count):
                start = host.let("start", f"T - {done} - {count}") if visit.direction else done
                self._visit(host, visit, (tile, done, count), start)

    @contextmanager
    def _tiles(self, host: Host) -> Iterator[tuple[str, str, str]]:
        """for tile: (its number, steps done before it, its steps), in order of processing."""
        with host.loop(f"(T + {self.steps} - 1) / {self.steps}", "tile") as i:
            done = host.let("done", f"{i} * {self.steps}")
            yield i, done, host.let("count", f"min({self.steps}, T - {done})")

    def _visit(self, host: Host, visit: Visit, tile: tuple[str, str, str], start: Expr) -> None:
        code, program = visit.code, self.program
        number, done, count = tile
        inputs = [program.input(i) for i in range(len(code.graph.inputs))]
        places = [code.layout.input(i) for i in range(len(inputs))]
        row = f"{start} * B"
        at = [p.at(f"{row} * {place.row_stride}") for p, place in zip(inputs, places, strict=True)]
        first = row if self.directions > 1 else "0"  # of the tile, in the buffers between layers
        if visit.layer:
            at[0] = self.between[(visit.layer - 1) % 2].at(f"{first} * {places[0].row_stride}")
        stride, width = code.layout.output.row_stride, code.graph.output.shape[0]
        if visit.layer + 1 < self.net.num_layers:
            output = self.between[visit.layer % 2].at(f"{first} * {stride}")
        else:
            output = program.output.at(f"{row} * {stride}")
        # Step by step the states change copies at every step, a regime changes them once per tile.
        parity = f"({code.regime} >= 0 ? {number} : {done}) & 1" if code.regimes else f"{done} & 1"
        work = Tile(at, output.at(visit.direction * width), start, count, bool(visit.direction), parity)
        code.before(host, visit.buffers, work)
        code.recurrence(host, visit.buffers, work)


def plan(net: RNN, layers: Layers, target: Target, batches: tuple[int, ...], precision: str) -> Program:
    """The program of a network for one target. precision: "float64", "float32", "tf32", "float16" or "bfloat16"."""
    return Plan(net, layers, target, batches, precision).run()
