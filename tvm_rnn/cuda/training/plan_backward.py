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

The gradient of the last layer's output is the user's; a copy of it lies beside those of the other layers' outputs, with
0 in rows that have ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import ClassVar

from tvm_rnn.cuda.codegen.host_program import ALIGNMENT, ITEM_BYTES, Host, HostExpr, Pointer, Program
from tvm_rnn.cuda.codegen.kernel_writer import Kernel
from tvm_rnn.cuda.layer.pointers import Place, rows_of_users
from tvm_rnn.cuda.layer.time_segments import TimeSegment
from tvm_rnn.cuda.layer.value_layout import Layout, RowSums, Target
from tvm_rnn.cuda.model.choose_backward_lanes import WAVE_TILES, fewest_steps, least_steps, room_for_two
from tvm_rnn.cuda.model.choose_regime import EXPECTED_BATCHES
from tvm_rnn.cuda.plan.images import Images
from tvm_rnn.cuda.plan.layer import Layer
from tvm_rnn.cuda.plan.network import HOISTED_BYTES, STREAMS, Plan, Visit
from tvm_rnn.cuda.plan.passing_rows import PassingRows
from tvm_rnn.cuda.rowwise.scan_over_time import Scan
from tvm_rnn.cuda.rowwise.state_moves import Tile
from tvm_rnn.graph.flops import graph_flops
from tvm_rnn.graph.graph import Graph, Group, Node, is_move, sums_rows
from tvm_rnn.network.layer import weight_name
from tvm_rnn.network.rnn import RNN
from tvm_rnn.passes.fuse_pointwise import bases, quotients, read_at_last
from tvm_rnn.passes.keep_choice import RATES

from .gradient_kernels import FinishKernels, InputGradient
from .plan_forward import Blank, ForwardTrain, blank_kernel
from .tape_layout import states_read
from .weight_gradient_sums import WeightGradients

# So many times the room where nothing goes step by step: a tile is a chain of launches, each of which fills the GPU the
# better the more steps it has.
OVER_TIME = 5


def _walks_output(graph: Graph) -> bool:
    """Whether a kernel that walks all steps of pointwise work can write the output, which nothing else reads."""
    steps = [g for g in graph.groups if g.region == "step"]
    read = [a for n in graph.nodes() if sums_rows(n) or graph.region_of(n) == "after" for a in n.args]
    elsewhere = {b for n in (*read, *graph.emitted) for b in bases(n)}
    own = any(graph.output in g.stored for g in steps) and graph.output not in elsewhere
    return own and all(g.kind == "pointwise" for g in steps)


def gradient_width(net: RNN) -> int:
    """Elements of a row of a layer's gradient."""
    return max(layer.width * net.num_directions for layer in net.layers)


def read_later(graph: Graph, stored: Collection[Node]) -> set[Node]:
    """What anything reads that comes behind the steps: sums over rows, values after them, and gradients of inputs. What
    is not stored is computed where it is read."""
    found, todo = set[Node](), [graph.output, *graph.emitted]
    todo += [a for n in graph.nodes() if sums_rows(n) or graph.region_of(n) == "after" for a in n.args]
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += node.args if node not in stored or is_move(node) else ()
    return found


@dataclass
class Sequences:
    """Gradients of layers' outputs for all of T: layers run one after the other, so two are enough, written and read in
    turn. given: the caller's, last, where there is an address, of calls for a segment; None: never."""

    net: RNN
    program: Program
    segment: TimeSegment
    given: Pointer | None

    def __post_init__(self) -> None:
        width, dtype, self.pair = gradient_width(self.net), self.net.dtype, list[Pointer]()
        for number in range(2 if self.net.num_layers > 1 else 1):
            place = self.program.buffer("between", f"T * B * {width}", dtype)
            if self.given is not None:
                size = f"{self.segment.whole} * B * {width * ITEM_BYTES[dtype]}"
                behind = f"{number} * (({size} + {ALIGNMENT - 1}) / {ALIGNMENT} * {ALIGNMENT})"
                text = f"({self.given.text} ? {self.given.text} + {behind} : {place.text})"
                place = self.program.sequence.pointer("between", replace(place, text=text))
            self.pair.append(place)

    def place(self, layer: int, tile: str, row: HostExpr, stride: int) -> Pointer:
        """That of a layer's output from a row on; of the last layer, the copy. Rows have `stride` elements. In arrays
        for all of the time the call's own rows come after those before it."""
        skipped = f"{self.segment.first} * B * {stride}" if self.given is not None else 0
        return self.pair[(self.net.num_layers - 1 - layer) % 2].at(skipped).at(f"{row} * {stride}")


@dataclass
class Tiles:
    """The same of one tile of time. Layers that run side by side have two each, written and read in turn; else one is
    read while the other is written. steps: of a tile. wave: a condition: layers run side by side."""

    net: RNN
    program: Program
    steps: str
    wave: str

    def __post_init__(self) -> None:
        dtype, others = self.net.dtype, self.net.num_layers - 1
        each = ALIGNMENT // ITEM_BYTES[dtype]
        width = gradient_width(self.net) // self.program.each
        size = f"({self.steps} * B * {width} + {each - 1}) / {each} * {each}"
        self.size = self.program.let("handed_size", size)
        count = f"({self.wave} ? {2 * others} : {min(2, others)})"
        self.tiles = self.program.buffer("between", f"{count} * {self.size}", dtype)
        self.last: Pointer | None = None  # of the last layer: where the copy is, when its place is known

    @property
    def bytes(self) -> str:
        """Of the copy of the gradient of y."""
        return f"{self.size} * {ITEM_BYTES[self.net.dtype]}"

    def place(self, layer: int, tile: str, row: HostExpr, stride: int) -> Pointer:
        """The row is the tile's first one."""
        if layer + 1 == self.net.num_layers:
            assert self.last is not None
            return self.last
        return self.tiles.at(f"({self.wave} ? {2 * layer} + ({tile} & 1) : {layer % 2}) * {self.size}")


@dataclass
class BackwardCode:
    """What all layers share that have one graph."""

    layer: Layer
    weight_gradients: WeightGradients
    finish: FinishKernels
    input_gradients: list[InputGradient]
    early: list[Node]  # values from before the steps that sums read: rows that have ended must be 0
    direct: bool  # whether kernels of the steps, or of all, write the gradient of the input where it goes
    kept_rows: list[tuple[Pointer, str]] = field(default_factory=list)  # a copy for each layer, and its elements
    last_rows: Pointer | None = None  # the gradient of the input, until directions are added up

    def bytes_per_row(self) -> int:
        """Of what has rows for a whole tile."""
        layout = self.layer.layout
        places = [layout.kept_place(n) for i, n in enumerate(layout.kept) if i not in self.layer.unstored]
        return self.layer.bytes_per_row + sum(p.row_stride * ITEM_BYTES[p.dtype] for p in places)


@dataclass
class BackwardPlan(Plan):
    """Call `run()`."""

    way: ClassVar[int] = -1
    forward: ForwardTrain | None = None
    number: int = 0
    backs: list[BackwardCode] = field(default_factory=list)
    blanks: dict[str, Kernel] = field(default_factory=dict)

    def _quickest(self, number: int) -> Layer:
        return self._layer(self.layers.graphs[number], number)

    def _layer(self, graph: Graph, number: int) -> Layer:
        """The layer's code; what follows its steps goes to `backs`."""
        assert self.forward is not None
        sums, last = [n for n in graph.nodes() if sums_rows(n)], read_at_last(graph)
        stored = {n: g.region for g in graph.groups for n in g.stored if not n.leaf}
        operands = tuple(a for n in sums for a in n.args)
        rows = replace(graph, weight_gradients=(), emitted=(*graph.emitted, *operands))
        kept = tuple(n for n in last if n.op == "state" or stored.get(n) == "step")
        given, streams = self._given(self.forward.code[number].layout), tuple(self.net.regularisers.streams)
        again = self.forward.again.get(number)
        together = 1 if self.whole else self.net.num_layers
        offered = [n for n in sums if n.op == "einsum_rows"]
        others = read_at_last(graph, offered)

        def layer_of(kept: tuple[Node, ...]) -> Layer:
            own = rows, self.number + number, self.net.dtype, self.options, self.target, dict[str, float](), 1, kept
            beside = RowSums(tuple(offered), tuple(n for n in kept if n not in others))
            return Layer(*own, given, streams, together=together, sums=beside, again=again)

        layer = None
        if self.directions == 1 and _walks_output(graph):
            layer = layer_of(tuple(n for n in kept if n is not graph.output))
        if layer is None or not any(isinstance(regime, Scan) for regime in layer.regimes):
            layer = layer_of(kept)
        name, layout, precision = f"g{layer.number}", layer.layout, self.options.precision

        def reads(node: Node, product: bool = False) -> Place | None:
            found = layout.source(node, product, "after")
            return None if found is None else found.place

        places = reads, partial(reads, product=True)
        made, machine = layer.accumulated, (self.target.arch, self.target.sms)
        left = [n for n in sums if n not in made]
        finish = FinishKernels(graph, sums, f"{layer.number}_finish", precision)
        weight_gradients = WeightGradients(
            name, left, precision, *places, *machine, accumulated=made, beside=finish.joined(1)
        )
        direct = bool(layout.in_output) or layout.walked or (layout.written_last and self.directions == 1)
        roots = [*([] if direct else [graph.output]), *graph.emitted]
        facts = precision, reads, self.net.dtype
        input_gradients = [InputGradient(f"{name}_give{i}", n, *facts) for i, n in enumerate(roots)]
        early = [n for n in last if stored.get(n) == "before"]
        self.backs.append(BackwardCode(layer, weight_gradients, finish, input_gradients, early, direct))
        return layer

    def _given(self, layout: Layout) -> dict[int, Place]:
        """How the inputs of a backward graph lie: the gradient of the output, x, states and kept values."""
        graph, dtype = layout.graph, self.net.dtype
        width = graph.output.shape[0]
        found = {0: replace(rows_of_users(dtype, width), row_stride=width * self.directions)}
        found |= {n: Place(dtype, prod(node.shape), 16) for n, node in enumerate(graph.inputs, 1)}
        first, emitted = 1 + len(graph.inputs), len(graph.emitted)
        kept = [first + len(graph.states) + n for n in range(emitted)] + [first + n for n in states_read(graph)]
        return found | {n: layout.kept_place(node) for n, node in zip(kept, layout.kept, strict=True)}

    def run(self) -> Program:
        """The program."""
        assert self.forward is not None
        program, host = self.program, self.program.sequence
        self._layer_event = 2 * self.net.num_layers
        self.tape = self.forward.tape
        after = self._segment(self._mask_keys(self._outputs()))
        self.given_gradients = program.input(after) if self.segment.given and self.directions > 1 else None
        self.tape_pointers = self.tape.pointers(program, program.input(1), 2, self.segment)
        self._take_images()
        self._tile_sizes()
        self.visits = self._visits()
        self._reserve()
        self._walk_states_of_users(host, unless="has_reset")  # gradients of first states are cut there
        self._copy_states(host, "load", self._load)
        self._prepare(host)
        self._layers(host)
        for visit in () if self.whole else self.visits:
            self._end_visit(host, visit)
        self._copy_states(host, "save", self._save)
        for visit in self.visits:
            back, own = self._code(visit), self.weight_gradients[visit.key]
            if back.layer.graph.params:
                with self.segment.of_visit(host, *visit.key):
                    back.finish.run(host, self.sums[visit.key], self.finish_weights[visit.key], own)
                    for param, gradient in zip(back.layer.graph.params, own, strict=True):
                        if self.dropped is not None and self.mask_keys is not None and param.name in self.dropped.own:
                            self.dropped.gradient(host, self.mask_keys, param, visit.key, gradient)
        self._give_images()
        program.facts["templates"] = list(self._facts())
        return program

    def _take_images(self) -> None:
        self.images = Images(self.program, self.pixels) if self.pixels > 1 else None
        if self.images is None:
            return
        inputs = [prod(node.shape) // self.pixels for node in self.net.layers[0].graph.inputs]
        self.images.give("input[0]", [(self.net.output_size // self.pixels, "T * B")])
        for number, channels in enumerate(inputs, 2):
            self.images.give(f"input[{number}]", [(channels, "T * B")])
            self.images.take(f"input[{number + len(inputs)}]", [(channels, "T * B")])
        self._take_states(self.images)

    def _code(self, visit: Visit) -> BackwardCode:
        return self.backs[self.layers.of_layer[visit.layer]]

    # --- memory ----------------------------------------------------------------------------------------------------

    def _outputs(self) -> int:
        """Where gradients go: of each input, then of each weight of each layer and direction. Returns the number of the
        input after them."""
        program, inputs = self.program, len(self.net.layers[0].graph.inputs)
        self.input_gradients = [program.input(2 + inputs + n) for n in range(inputs)]
        self.weight_gradients: dict[tuple[int, int], list[Pointer]] = {}
        self.gradient_names: list[str] = []
        at, dtype = 2 + 2 * inputs, "float64" if self.options.precision == "float64" else "float32"
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
        batches = self.options.batches or EXPECTED_BATCHES
        least = least_steps(min(max(code.predicted_us(batch) for code in self.code) for batch in batches))
        for_two = "".join(f" && {room_for_two(code.regimes)}" for code in self.code)
        self.wave = self.forks = program.let("wave", f"T > {least}{for_two}" if self.cuda_streams > 1 else "0")
        tiles = f"max<int64_t>(1, min<int64_t>({WAVE_TILES * layers}, (T + {least - 1}) / {least}))"
        tiles = program.let("tiles", f"{self.wave} ? {tiles} : 1")
        room = HOISTED_BYTES * (1 if any(code.layout.has_steps for code in self.code) else OVER_TIME)
        most = f"max<int64_t>(1, {room // per_row} / ({self.wave} ? {layers} : 1) / B)"
        longest = f"min<int64_t>({most}, {self.wave} ? T : {self._fewest_steps()})"
        longest = self._in_parts(f"min<int64_t>((T + {tiles} - 1) / {tiles}, {longest})")
        self._room = program.let("room", longest)
        count = program.let("count", f"max<int64_t>(1, (T + {self._room} - 1) / {self._room})")
        self.steps = program.let("tile_steps", self._in_parts(f"(T + {count} - 1) / {count}"))

    @property
    def room(self) -> str:
        return self._room

    def _fewest_steps(self) -> HostExpr:
        """Of a tile of layers one after the other; where nothing goes step by step, more than any call has."""
        if not all(code.layout.has_steps for code in self.code):
            return 1 << 30
        found, rate = "1", RATES[self.options.precision][1]
        for back, graph in zip(self.backs, self.layers.graphs, strict=True):
            sums = back.weight_gradients.elements
            flops = graph_flops(graph, "before") + graph_flops(graph, "after") + 2 * sums
            us = min(map(back.layer.predicted_us, self.options.batches or EXPECTED_BATCHES))
            found = f"max<int64_t>({found}, {fewest_steps(us, flops / rate, sums)})"
        return found

    @property
    def marked(self) -> bool:
        """Whether a part of the time begins from states that were kept there."""
        return super().marked or (self.forward is not None and self.forward.marked)

    def _between(self) -> None:
        """Memory for the gradients of layers' outputs."""
        own = self.net, self.program
        tiles = None if self.whole else Tiles(*own, self.room, self.wave)
        self.layer_gradients = tiles or Sequences(*own, self.segment, self.given_gradients)
        for index, back in enumerate(self.backs):
            code, (left, right) = back.layer, back.weight_gradients.side_bytes(f"{self.room} * B")
            later = read_later(code.graph, code.layout.home)
            nodes = [n for n in code.hoisted_rows if code.layout.home[n].region == "before" and n not in later]
            given: HostExpr = 0
            if tiles is not None and index == self.layers.of_layer[-1]:
                given = tiles.bytes if code.graph.inputs[0] not in later else 0
                tiles.last = None if given else self.program.buffer("between", tiles.size, self.net.dtype)
            code.passing = PassingRows([(n, code.layout.hoisted(n)) for n in nodes], given, f"{left} + {right}")

    def _reserve(self) -> None:
        program, rows, last = self.program, f"{self.room} * B", self.visits[-1]
        if isinstance(self.layer_gradients, Tiles) and self.layer_gradients.last is None:
            assert last.code.passing is not None
            self.layer_gradients.last = last.code.passing.beside(self._copy(last)).cast(self.net.dtype)
        self.flags = program.buffer("flags", "T * B")
        program.flags = self.flags.text
        beside = f"({self.wave} ? {self.cuda_streams} : 1)" if self.cuda_streams > 1 else 1
        for index, back in enumerate(self.backs):
            layout = back.layer.layout
            copies: HostExpr = 1 if self.whole else self._copies(self.layers.of_layer.index(index), 0)[0]
            for number, place in enumerate(map(layout.kept_place, layout.kept)):
                stride = 0 if number in back.layer.unstored else place.row_stride
                size = program.let("kept_size", f"({rows} * {stride} + 255) / 256 * 256")
                back.kept_rows.append((program.buffer("kept", f"({copies}) * {size}", place.dtype), size))
            added = layout.written_last and not back.direct
            stride = layout.output.row_stride if added else 0
            last_rows = program.buffer("last", f"{rows} * {stride}", self.net.dtype)
            back.last_rows = last_rows if added else None
            passing = back.layer.passing
            assert passing is not None and passing.start is not None
            packed = passing.start, passing.size
            back.weight_gradients.reserve(program, rows, copies, beside, f"T > {self.steps}", packed)
            back.finish.reserve(program)
        self.sums, self.finish_weights = {}, {}
        for visit in self.visits:
            back, gradients = self._code(visit), self.weight_gradients[visit.key]
            in_heads = back.weight_gradients.in_heads
            joined = {nodes: number for nodes, number in back.finish.joined(1).items() if nodes in in_heads}
            ready = {nodes: gradients[number] for nodes, number in (back.finish.joined() | joined).items()}
            self.sums[visit.key] = back.weight_gradients.pointers(program, ready)
            self.finish_weights[visit.key] = back.finish.weights.pack(program, *visit.key)

    # --- statements ------------------------------------------------------------------------------------------------

    def _back(self, visit: Visit) -> bool:
        """Against the order of the forward steps."""
        return not super()._back(visit)

    def _prepare(self, host: Host) -> None:
        """Ended rows of the gradient of y count nothing. The first flag separates no two steps, but where some come
        before the call's; it is for `_end_visit`."""
        if self.whole:
            with self.segment.of_layer(host, self.net.num_layers - 1):
                self._end_rows(host, "0", 0, "T")
        with host.when("has_reset"):
            host.copy(self.flags, Pointer("reset"), "T * B")
            host.memset(self.flags, f"({self.segment.border} & 2 ? 0 : B)" if self.segment.given else "B")

    def _blank(self, host: Host, name: str, arrays: list[Blank], start: HostExpr, count: HostExpr) -> None:
        """Rows of the steps from `start` on that have ended."""
        if arrays:
            kernel = self.blanks.setdefault(name, blank_kernel(f"blank_{name}", arrays, 0))
            pointers = [*(a.pointer for a in arrays), self.program.lengths, self.program.reset]
            host.launch(kernel, pointers, [f"{count} * B", "B", "T", "1", "0", start, "0"])

    def _end_rows(self, host: Host, tile: str, start: HostExpr, count: HostExpr) -> None:
        """The steps from `start` on of the gradient of y, without rows that have ended."""
        width, row = self.net.output_size // self.program.each, f"{start} * B"
        with host.when("has_lengths"):
            own = self.layer_gradients.place(self.net.num_layers - 1, tile, row, width)
            given = self.program.input(0).at(f"{row} * {width}")
            host.copy(own, given, f"{count} * B * {width * ITEM_BYTES[self.net.dtype]}")
            self._blank(host, "gradient", [Blank(own, Place(self.net.dtype, width), width)], start, count)

    @contextmanager
    def _tiles(self, host: Host) -> Iterator[tuple[str, str, str]]:
        """Where matrices are kept before some steps, all tiles but that of the last steps, the first one, are whole."""
        if not self.marked:
            with super()._tiles(host) as found:
                yield found
            return
        tiles = host.let("count", f"(T + {self.steps} - 1) / {self.steps}")
        with host.loop(tiles, "tile") as i:
            start = host.let("begin", f"({tiles} - 1 - {i}) * {self.steps}")
            count = host.let("count", f"min({self.steps}, T - {start})")
            yield i, host.let("done", f"T - {start} - {count}"), count

    def _end_visit(self, host: Host, visit: Visit) -> None:
        """No gradient goes to the first state of a row whose first step was reset."""
        if self._back(visit):
            with host.when("has_reset"):
                visit.code.states.cut(host, self._last(host, visit), Pointer("reset", "uint8"))

    def _tile(self, visit: Visit, tile: tuple[str, str, str], start: HostExpr) -> Tile:
        """Inputs are in the order of the backward graph's: the gradient of the output, x, states and kept values."""
        number, done, count = tile
        code, own, forward = visit.code, self._code(visit), self.forward
        assert forward is not None
        graph, row = forward.code[self.layers.of_layer[visit.layer]].graph, f"{start} * B"
        strides = [code.layout.input(n).row_stride for n in range(len(code.graph.inputs))]
        above = self.layer_gradients.place(visit.layer, number, row, strides[0])
        if visit.layer == self.net.num_layers - 1:
            users = self.program.input(0).at(f"{row} * {strides[0]}")
            above = Pointer(f"(has_lengths ? {above.text} : {users.text})", above.dtype)
        found = [above.at(visit.direction * graph.output.shape[0])]
        for at in (self.tape.inputs[visit.layer], *self.tape.extra):
            found.append(self.tape_pointers[at].at(f"{row} * {strides[len(found)]}"))
        kept = self.tape.visits[visit.key]
        emitted, side, read = len(graph.emitted), int(not self._back(visit)), states_read(graph)
        marks: dict[Node, Pointer] = {}
        for state in range(len(graph.states)):
            if state in self.tape.matrices[visit.key]:
                found.append(self.tape.matrix(self.tape_pointers, visit.key, state, start))
                marks[code.graph.inputs[len(found) - 1]] = found[-1]
            elif state in read:
                pointer = self.tape_pointers[kept[emitted + read.index(state)]]
                found.append(pointer.at(f"({row} + {side} * B) * {strides[len(found)]}"))
            else:
                found.append(found[0])  # nobody reads it
        for at in kept[:emitted]:
            found.append(self.tape_pointers[at].at(f"{row} * {strides[len(found)]}"))
        parity = f"({code.regime} >= 0 ? {number} : {done}) & 1" if code.regimes else f"{done} & 1"
        copy, output = self._copy(visit), own.last_rows or self._destination(visit, 0, number, start)
        kept_rows = [rows if copy == 0 else rows.at(f"({copy}) * {size}") for rows, size in own.kept_rows]
        return Tile(found, output, start, count, self._back(visit), parity, kept_rows, number, marks)

    def _copy(self, visit: Visit) -> HostExpr:
        """Which copy is its own of what layers of one graph have for a tile."""
        return 0 if self.whole else self._copies(visit.layer, 0)[1]

    def _destination(self, visit: Visit, number: int, tile: str, start: HostExpr) -> Pointer:
        """Rows of the gradient of an input, from step `start` on."""
        size = prod(self.net.layers[visit.layer].graph.inputs[number].shape) // self.program.each
        if number or not visit.layer:
            return self.input_gradients[number].at(f"{start} * B * {size}")
        return self.layer_gradients.place(visit.layer - 1, tile, f"{start} * B", size)

    def _visit(self, host: Host, visit: Visit, tile: tuple[str, str, str], start: HostExpr) -> None:
        number, _, count = tile
        index = self.layers.of_layer[visit.layer]
        back, code, layout = self.backs[index], visit.code, visit.code.layout
        first = visit.layer == self.net.num_layers - 1 and not visit.direction
        if first and not self.whole:
            self._end_rows(host, number, start, count)
        work = self._tile(visit, tile, start)
        code.before(host, visit.buffers, work)
        code.recurrence(host, visit.buffers, work)
        find = code.rows_of(visit.buffers, work)

        def source(node: Node, product: bool) -> Target:
            target = layout.source(node, product, "after")
            assert target is not None
            return target

        def place(node: Node, product: bool) -> Pointer:
            return find(source(node, product), node)

        with host.when("has_lengths"):
            pairs = zip(layout.kept, work.kept, strict=True)
            stored = [pair for number, pair in enumerate(pairs) if number not in code.unstored]
            blank = [Blank(p, layout.kept_place(n), prod(n.shape)) for n, p in stored]
            blank += [Blank(place(n, False), source(n, False).place, prod(n.shape)) for n in back.early]
            self._blank(host, f"rows{index}", blank, start, count)

        def blank_quotients(groups: list[Group]) -> None:
            found = [(n, t) for n in quotients(groups) for t in layout.targets(n, "after")]
            with host.when("has_lengths") if found else nullcontext():
                names = f"quotients{index}_{'_'.join(str(layout.graph.groups.index(g)) for g in groups)}"
                own = [Blank(find(t, n), t.place, prod(n.shape)) for n, t in found]
                self._blank(host, names, own, start, count)

        code.after(host, visit.buffers, work, blank_quotients)
        if layout.in_output:
            with host.when("has_lengths"):
                size = prod(layout.graph.output.shape)
                own = [Blank(work.output, Place(self.net.dtype, size), size)]
                self._blank(host, f"input{index}", own, start, count)

        for at, gradient in enumerate(back.input_gradients, int(back.direct)):
            add = not first if at else bool(visit.direction)
            gradient.run(host, place, self._destination(visit, at, number, start), (start, count), add)
        # The layer below begins, beside the sums.
        self._record(host, self._layer_event + 2 * visit.layer, number)
        sums = self.sums[visit.key]
        again, copy, left = f"{number} > 0", self._copy(visit), visit.buffers.regime
        back.weight_gradients.run(host, place, f"{count} * B", sums, again, copy)
        if code.on_chip is not None and left is not None:
            parts = {node: code.on_chip.parts(left, node) for node in code.accumulated}
            back.weight_gradients.add_parts(host, parts, sums, again)
