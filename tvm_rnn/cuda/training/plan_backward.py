"""backward on the GPU: from a tape and the gradients of y and of the last states to all other gradients.

In: the plan of forward_train, and its backward graphs after the passes. Out: a `Program` whose `sequence` takes, in
place of inputs, the gradient of y, the tape, the inputs, and where the gradients of inputs and of weights go, and for
segments of time four numbers (`cuda/layer/time_segments.py`), with two directions the address of the layers'
gradients; its states are the gradients of the states, last ones in and first ones out.

    for tile from the end of time: for layer from the last:
        before groups; steps; blank rows that have ended; after groups; gradients of inputs; sums over rows
    with a reverse:  for layer from the last: for direction: for tile, against the direction's order: the same
    then the gradients of weights, from the sums

Where the GPU has room for several layers at once, each has a CUDA stream of its own, as in `cuda/plan/network.py`: the
last layer works on tile k, counted from the end of time, while the one below works on tile k - 1. That one begins when
the gradients of the tile's inputs are there: sums over rows, for weights, run beside its steps.
`cuda/model/choose_backward_lanes.py` helps to choose kernels' sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import gcd, prod
from typing import ClassVar

from tvm_rnn.cuda.codegen.host_program import ITEM_BYTES, Host, HostExpr, Pointer, Program
from tvm_rnn.cuda.codegen.kernel_writer import Kernel
from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.cuda.model.choose_backward_lanes import WAVE_TILES, least_steps, room_for_two
from tvm_rnn.cuda.model.choose_regime import EXPECTED_BATCHES
from tvm_rnn.cuda.plan.layer import Layer
from tvm_rnn.cuda.plan.network import HOISTED_BYTES, STREAMS, Plan, Visit
from tvm_rnn.cuda.rowwise.state_moves import Tile
from tvm_rnn.graph.graph import Graph, Node, is_total
from tvm_rnn.network.layer import weight_name
from tvm_rnn.passes.fuse_pointwise import read_at_last

from .input_gradients import InputGradient
from .layer_gradients import LayerGradients, Sequences, Tiles
from .parameter_gradients import FinishKernels
from .plan_forward import Blank, ForwardTrain, blank_kernel
from .tape_layout import states_read
from .weight_gradient_sums import WeightGradients


@dataclass
class BackwardCode:
    """What all layers share that have one graph."""

    layer: Layer
    weight_gradients: WeightGradients
    finish: FinishKernels
    input_gradients: list[InputGradient]
    early: list[Node]  # values from before the steps that sums read: rows that have ended must be 0

    def bytes_per_row(self) -> int:
        """Of what has rows for a whole tile."""
        layout = self.layer.layout
        own = sum(p.row_stride * ITEM_BYTES[p.dtype] for p in map(layout.kept_place, layout.kept))
        return self.layer.bytes_per_row + own


@dataclass
class BackwardPlan(Plan):
    """Call `run()`."""

    way: ClassVar[int] = -1
    forward: ForwardTrain | None = None
    number: int = 0
    backs: list[BackwardCode] = field(default_factory=list)
    blanks: dict[str, Kernel] = field(default_factory=dict)

    def _layer(self, graph: Graph, number: int) -> Layer:
        """The layer's code; what follows its steps goes to `backs`."""
        assert self.forward is not None
        sums = [n for n in graph.nodes() if is_total(n)]
        last = read_at_last(graph)
        stored = {n: g.region for g in graph.groups for n in g.stored if not n.leaf}
        kept = tuple(n for n in last if n.op == "state" or stored.get(n) == "step")
        operands = tuple(a for n in sums for a in n.args)
        rows = replace(graph, totals=(), emitted=(*graph.emitted, *operands))
        given = self._given(self.forward.code[number].layout)
        layer = Layer(
            rows,
            self.number + number,
            self.net.dtype,
            self.options,
            self.target,
            initial={},
            kept=kept,
            given=given,
            streams=tuple(self.net.regularisers.streams),
            together=1 if self.whole else self.net.num_layers,
        )
        name = f"g{layer.number}"
        layout = layer.layout

        def reads(node: Node) -> Place | None:
            found = layout.source(node, False, "after")
            return None if found is None else found.place

        def operand(node: Node) -> Place | None:
            found = layout.source(node, True, "after")
            return None if found is None else found.place

        weight_gradients = WeightGradients(
            name, sums, self.options.precision, reads, operand, self.target.arch, self.target.sms
        )
        finish = FinishKernels(graph, sums, f"{layer.number}_finish", self.options.precision)
        direct = layout.written_last and self.directions == 1
        roots = [*([] if direct else [graph.output]), *graph.emitted]
        input_gradients = [
            InputGradient(f"{name}_give{i}", n, self.options.precision, reads, self.net.dtype)
            for i, n in enumerate(roots)
        ]
        early = [n for n in last if stored.get(n) == "before"]
        self.backs.append(BackwardCode(layer, weight_gradients, finish, input_gradients, early))
        return layer

    def _given(self, layout: Layout) -> dict[int, Place]:
        """How the inputs of a backward graph lie: the gradient of the output, x, states and kept values."""
        graph, dtype = layout.graph, self.net.dtype
        width = graph.output.shape[0]
        found = {0: Place(dtype, width * self.directions, gcd(16, width * ITEM_BYTES[dtype]))}
        found |= {1 + n: Place(dtype, prod(node.shape), 16) for n, node in enumerate(graph.inputs)}
        first, emitted = 1 + len(graph.inputs), len(graph.emitted)
        for at, number in enumerate(states_read(graph)):
            found[first + number] = layout.kept_place(layout.kept[emitted + at])
        for number, node in enumerate(graph.emitted):
            found[first + len(graph.states) + number] = layout.kept_place(node)
        return found

    def run(self) -> Program:
        """The program."""
        assert self.forward is not None
        program, host = self.program, self.program.sequence
        self.together = None
        self._layer_event = 2 * self.net.num_layers
        self.gradient = program.input(0)
        self.tape = self.forward.tape
        after = self._segment(self._mask_keys(self._outputs()))
        self.given_gradients = program.input(after) if self.segment.given and self.directions > 1 else None
        self.tape_pointers = self.tape.pointers(program, program.input(1), 2, self.segment)
        self._tile_sizes()
        self.visits = self._visits()
        self._reserve()
        begin = [v.code.states.load(v.buffers, [before for before, _ in v.user]) for v in self.visits]
        self._copy_states(host, "load", list(zip(self.visits, begin, strict=True)))
        self._prepare(host)
        self._walk(host)
        ends = [v.code.states.save(self._last(host, v), [after for _, after in v.user]) for v in self.visits]
        self._copy_states(host, "save", list(zip(self.visits, ends, strict=True)))
        for visit in self.visits:
            back = self.backs[self.layers.of_layer[visit.layer]]
            key = visit.layer, visit.direction
            if back.layer.graph.params:
                with self.segment.of_visit(host, *key):
                    back.finish.run(host, self.sums[key], self.finish_weights[key], self.weight_gradients[key])
                    self._drop(host, back.layer.graph.params, key)
        program.facts["templates"] = list(self._facts())
        return program

    def _drop(self, host: Host, params: Sequence[Node], key: tuple[int, int]) -> None:
        """Weight drop, in the gradients of what was dropped."""
        dropped = self.dropped
        for param, gradient in zip(params, self.weight_gradients[key], strict=True):
            if dropped is not None and self.mask_keys is not None and param.name in dropped.own:
                dropped.gradient(host, self.mask_keys, param, key, gradient)

    # --- memory ----------------------------------------------------------------------------------------------------

    def _outputs(self) -> int:
        """Where gradients go: of each input, then of each weight of each layer and direction. Returns the number of the
        input after them."""
        program, at = self.program, 2 + len(self.net.layers[0].graph.inputs)
        self.input_gradients = []
        for _ in self.net.layers[0].graph.inputs:
            self.input_gradients.append(program.input(at))
            at += 1
        self.weight_gradients: dict[tuple[int, int], list[Pointer]] = {}
        self.gradient_names: list[str] = []
        dtype = "float64" if self.options.precision == "float64" else "float32"
        for layer, index in enumerate(self.layers.of_layer):
            for direction in range(self.directions):
                names = [weight_name(p.name, layer, direction) for p in self.layers.graphs[index].params]
                own = [program.input(at + i).cast(dtype) for i in range(len(names))]
                self.weight_gradients[layer, direction] = own
                self.gradient_names += names
                at += len(names)
        return at

    def _tile_sizes(self) -> None:
        """How many steps a tile has, and whether layers run at the same time: where all have persistent kernels, and
        there is room for two of each. Where a step is launches, these fill the GPU, and more tiles cost more."""
        program, layers = self.program, self.net.num_layers
        per_row = max(1, *(back.bytes_per_row() for back in self.backs))
        tiled = all("tile_layers_and_time" in graph.applied for graph in self.layers.graphs)
        able = tiled and not self.whole and all(code.regimes for code in self.code)
        self.cuda_streams = min(layers, STREAMS) if able else 1
        us = min(
            max(code.predicted_us(batch) for code in self.code) for batch in self.options.batches or EXPECTED_BATCHES
        )
        least = least_steps(us)
        room = "".join(f" && {room_for_two(code.regimes)}" for code in self.code)
        self.wave = program.let("wave", f"T > {least}{room}" if self.cuda_streams > 1 else "0")
        tiles = f"max<int64_t>(1, min<int64_t>({WAVE_TILES * layers}, (T + {least - 1}) / {least}))"
        tiles = program.let("tiles", f"{self.wave} ? {tiles} : 1")
        most = f"max<int64_t>(1, {HOISTED_BYTES // per_row} / ({self.wave} ? {layers} : 1) / B)"
        self.steps = program.let("tile_steps", f"min<int64_t>((T + {tiles} - 1) / {tiles}, {most})")

    def _between(self) -> None:
        """Memory for the gradients of layers' outputs."""
        own = (self.net, self.program)
        self.layer_gradients: LayerGradients = (
            Sequences(*own, self.segment, self.given_gradients) if self.whole else Tiles(*own, self.steps, self.wave)
        )

    def _above(self, layer: int, tile: str, row: HostExpr, stride: int) -> Pointer:
        """The gradient of that layer's output, from a row on."""
        own = self.layer_gradients.place(layer, tile, row, stride)
        if layer < self.net.num_layers - 1:
            return own
        return Pointer(f"(has_lengths ? {own.text} : {self.gradient.at(f'{row} * {stride}').text})", own.dtype)

    def _reserve(self) -> None:
        program, rows = self.program, f"{self.steps} * B"
        self.flags = program.buffer("flags", "T * B")
        program.flags = self.flags.text
        self.kept_rows: list[list[tuple[Pointer, str]]] = []  # by graph: a copy for each layer, and its elements
        self.last_rows: list[Pointer] = []
        beside = f"({self.wave} ? {self.cuda_streams} : 1)" if self.cuda_streams > 1 else 1
        for index, back in enumerate(self.backs):
            layout = back.layer.layout
            copies: HostExpr = 1 if self.whole else self._copies(self.layers.of_layer.index(index), 0)[0]
            places = [layout.kept_place(n) for n in layout.kept]
            kept = []
            for place in places:
                size = program.let("kept_size", f"({rows} * {place.row_stride} + 255) / 256 * 256")
                kept.append((program.buffer("kept", f"({copies}) * {size}", place.dtype), size))
            self.kept_rows.append(kept)
            direct = layout.written_last and self.directions == 1
            stride = 0 if direct or not layout.written_last else layout.output.row_stride
            self.last_rows.append(program.buffer("last", f"{rows} * {stride}", self.net.dtype))
            back.weight_gradients.reserve(program, rows, copies, beside)
            back.finish.reserve(program)
        self.sums, self.finish_weights = {}, {}
        for visit in self.visits:
            back, key = self.backs[self.layers.of_layer[visit.layer]], (visit.layer, visit.direction)
            gradients = self.weight_gradients[key]
            ready = {nodes: gradients[number] for nodes, number in back.finish.joined().items()}
            self.sums[key] = back.weight_gradients.pointers(program, ready)
            self.finish_weights[key] = back.finish.weights.pack(program, *key)

    # --- statements ------------------------------------------------------------------------------------------------

    def _back(self, visit: Visit) -> bool:
        """Against the order of the forward steps."""
        return not super()._back(visit)

    def _prepare(self, host: Host) -> None:
        """Ended rows of the gradient of y count nothing. The first flag separates no two steps, but where some come
        before the call's; it is for `_cut`."""
        if self.whole:
            with self.segment.of_layer(host, self.net.num_layers - 1):
                self._end_rows(host, "0", 0, "T")
        with host.when("has_reset"):
            host.copy(self.flags, Pointer("reset"), "T * B")
            host.memset(self.flags, f"({self.segment.border} & 2 ? 0 : B)" if self.segment.given else "B")

    def _blank(self, host: Host, name: str, arrays: list[Blank], start: HostExpr, count: HostExpr) -> None:
        """Rows of the steps from `start` on that have ended."""
        if not arrays:
            return
        kernel = self.blanks.setdefault(name, blank_kernel(f"blank_{name}", arrays, 0))
        scalars = [f"{count} * B", "B", "T", "1", "0", start, "0"]
        pointers = [*(a.pointer for a in arrays), self.program.lengths, self.program.reset]
        host.launch(kernel, pointers, scalars)

    def _end_rows(self, host: Host, tile: str, start: HostExpr, count: HostExpr) -> None:
        """The steps from `start` on of the gradient of y, without rows that have ended."""
        width = self.net.output_size
        with host.when("has_lengths"):
            row = f"{start} * B"
            own = self.layer_gradients.place(self.net.num_layers - 1, tile, row, width)
            given = self.gradient.at(f"{row} * {width}")
            host.copy(own, given, f"{count} * B * {width * ITEM_BYTES[self.net.dtype]}")
            self._blank(host, "gradient", [Blank(own, Place(self.net.dtype, width), width)], start, count)

    def _walk(self, host: Host) -> None:
        """All layers, one after the other or side by side."""
        if self.whole:
            self._layer_major(host)
            return
        self._time_major(host)
        for visit in self.visits:
            self._cut(host, visit)

    def _layer_major(self, host: Host) -> None:
        for layer in reversed(range(self.net.num_layers)):
            for visit in self.visits[layer * self.directions : (layer + 1) * self.directions]:
                with self.segment.of_visit(host, layer, visit.direction):
                    with self._tiles(host) as (tile, done, count):
                        start = host.let("start", f"T - {done} - {count}") if self._back(visit) else done
                        self._visit(host, visit, (tile, done, count), start)
                    self._cut(host, visit)

    def _cut(self, host: Host, visit: Visit) -> None:
        """No gradient goes to the first state of a row whose first step was reset."""
        if not self._back(visit):
            return
        with host.when("has_reset"):
            last = self._last(host, visit)
            visit.code.states.cut(host, last, Pointer("reset", "uint8"))

    def _tile(self, visit: Visit, number: str, done: str, start: HostExpr, count: HostExpr) -> Tile:
        index = self.layers.of_layer[visit.layer]
        layout = self.backs[index].layer.layout
        forward = self.forward
        assert forward is not None
        source = forward.code[index].layout
        graph, row = source.graph, f"{start} * B"
        width, inputs = graph.output.shape[0], [self.tape.inputs[visit.layer], *self.tape.extra]
        above = self._above(visit.layer, number, row, layout.input(0).row_stride)
        found = [above.at(visit.direction * width)]
        for i, at in enumerate(inputs, 1):
            found.append(self.tape_pointers[at].at(f"{row} * {layout.input(i).row_stride}"))
        kept = self.tape.visits[visit.layer, visit.direction]
        emitted, side = len(graph.emitted), int(not self._back(visit))
        read = states_read(graph)
        for state in range(len(graph.states)):
            if state not in read:
                found.append(found[0])  # nobody reads it
                continue
            place = layout.input(1 + len(inputs) + state)
            pointer = self.tape_pointers[kept[emitted + read.index(state)]]
            found.append(pointer.at(f"({row} + {side} * B) * {place.row_stride}"))
        for i in range(emitted):
            place = layout.input(1 + len(inputs) + len(graph.states) + i)
            found.append(self.tape_pointers[kept[i]].at(f"{row} * {place.row_stride}"))
        code = visit.code
        parity = f"({code.regime} >= 0 ? {number} : {done}) & 1" if code.regimes else f"{done} & 1"
        back, output = self._back(visit), self._below(visit, number, start)
        copy = self._copy(visit)
        kept_rows = [rows if copy == 0 else rows.at(f"({copy}) * {size}") for rows, size in self.kept_rows[index]]
        return Tile(found, output, start, count, back, parity, kept_rows)

    def _copy(self, visit: Visit) -> HostExpr:
        """Which copy is its own of what layers of one graph have for a tile."""
        return 0 if self.whole else self._copies(visit.layer, 0)[1]

    def _below(self, visit: Visit, tile: str, start: HostExpr) -> Pointer:
        """Where the tile's gradient of the layer's first input goes, or is until directions are added up."""
        index = self.layers.of_layer[visit.layer]
        layout = self.backs[index].layer.layout
        if layout.written_last and self.directions > 1:
            return self.last_rows[index]
        return self._destination(visit, 0, tile, start)

    def _destination(self, visit: Visit, number: int, tile: str, start: HostExpr) -> Pointer:
        """Rows of the gradient of an input, from step `start` on."""
        size = prod(self.net.layers[visit.layer].graph.inputs[number].shape)
        if number or not visit.layer:
            return self.input_gradients[number].at(f"{start} * B * {size}")
        return self.layer_gradients.place(visit.layer - 1, tile, f"{start} * B", size)

    def _visit(self, host: Host, visit: Visit, tile: tuple[str, str, str], start: HostExpr) -> None:
        number, done, count = tile
        index = self.layers.of_layer[visit.layer]
        back, code = self.backs[index], visit.code
        first = visit.layer == self.net.num_layers - 1 and not visit.direction
        if first and not self.whole:
            self._end_rows(host, number, start, count)
        work = self._tile(visit, number, done, start, count)
        code.before(host, visit.buffers, work)
        code.recurrence(host, visit.buffers, work)
        layout, find = code.layout, code.rows_of(visit.buffers, work)
        with host.when("has_lengths"):
            arrays = [
                Blank(p, layout.kept_place(n), prod(n.shape)) for n, p in zip(layout.kept, work.kept, strict=True)
            ]
            arrays += [Blank(visit.buffers.hoisted[n], layout.hoisted(n), prod(n.shape)) for n in back.early]
            self._blank(host, f"rows{index}", arrays, start, count)
        code.after(host, visit.buffers, work)

        def place(node: Node, product: bool) -> Pointer:
            target = layout.source(node, product, "after")
            assert target is not None
            return find(target, node)

        direct = layout.written_last and self.directions == 1
        for at, gradient in enumerate(back.input_gradients, int(direct)):
            add = not first if at else bool(visit.direction)
            gradient.run(host, place, self._destination(visit, at, number, start), (start, count), add)
        # The layer below begins, beside the sums.
        self._record(host, self._layer_event + 2 * visit.layer, number)
        sums = self.sums[visit.layer, visit.direction]
        back.weight_gradients.run(host, place, f"{count} * B", sums, f"{number} > 0", self._copy(visit))
