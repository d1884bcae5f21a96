"""The whole network on the GPU: layers, directions and tiles of time around the layers' kernels.

In: an RNN, its layers' graphs after the passes, a target. Out: a `Program`: kernels, memory, and the statements of
`sequence` and `pack`. Tiles of time bound the memory for hoisted values, whatever T is.

    forward:         states in; for tile: for layer: hoisted groups, steps; states out
    with a reverse:  states in; for layer: for direction: for tile: hoisted groups, steps; states out

Where the GPU has room for several layers at once, each layer (or direction) has a CUDA stream of its own: layer l works
on tile k while layer l + 1 works on tile k - 1. Where the weights of products of inputs fit on the chip as well, layers
follow each other step by step instead (`wave.py`).

Source: the wavefront of Appleyard, Kocisky & Blunsom 2016, section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from math import ceil, prod
from typing import Any, ClassVar

from tvm_rnn.cuda.codegen.host_program import ITEM_BYTES, Host, HostExpr, Pointer, Program
from tvm_rnn.cuda.codegen.vector_access import aligned
from tvm_rnn.cuda.layer.pointers import rows_of_users
from tvm_rnn.cuda.layer.time_segments import COUNT, TimeSegment, time_segment
from tvm_rnn.cuda.linear.pair import EVERY
from tvm_rnn.cuda.model.choose_backward_lanes import WAVE_STEPS, WAVE_TILES
from tvm_rnn.cuda.model.choose_regime import EXPECTED_BATCHES
from tvm_rnn.cuda.model.few_steps import least
from tvm_rnn.cuda.model.wave_time import OneByOne
from tvm_rnn.cuda.rowwise.dropout_masks import Dropped, NetworkMaskKeys
from tvm_rnn.cuda.rowwise.live_rows import LiveRows
from tvm_rnn.cuda.rowwise.state_moves import Buffers, InPlace, StateCopy, Tile, copy_states, end_rows
from tvm_rnn.decisions import about, forget, recording, tell, told
from tvm_rnn.graph.flops import flops_per_row, graph_flops
from tvm_rnn.graph.graph import Graph, Layers, Node
from tvm_rnn.options import PASS_NAMES
from tvm_rnn.passes.passed import Passed
from tvm_rnn.target import Target

from .images import Images
from .layer import Layer
from .wave import BATCHES, Wave, wave

HOISTED_BYTES = 256 << 20  # for hoisted values, of all layers that run at once: more rows make no product faster
STREAMS = 8  # layers beyond share them
LISTED_FLOPS = 1e10  # of hoisted products of all rows, from which on those that have ended are left out
FORK_US = 10.0  # of the CPU, to have work on a second stream and wait for it


@dataclass
class Visit:
    """One layer in one direction."""

    code: Layer
    layer: int
    direction: int
    buffers: Buffers
    user: list[tuple[Pointer, Pointer]]  # this layer's and direction's part of each state of the user's, in and out

    @property
    def key(self) -> tuple[int, int]:
        return self.layer, self.direction


@dataclass
class Plan:
    """Writes the program of one network. Call `run()`."""

    passed: Passed
    layers: Layers
    target: Target
    program: Program = field(init=False)
    mask_keys: NetworkMaskKeys | None = field(init=False, default=None)
    dropped: Dropped | None = field(init=False, default=None)
    segment: TimeSegment = field(init=False, default=TimeSegment())
    together: Wave | None = field(init=False, default=None)
    images: Images | None = field(init=False, default=None)
    direct: str = field(init=False, default="")  # a C++ condition: the call's steps are on the user's states
    way: ClassVar[int] = 1  # from the first layer to the last one, or -1
    # The first of the events after which a tile's output is there; number 0 is the first of those after all its work.
    _layer_event: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        net = self.net = self.passed.net
        self.options = self.passed.options
        self.program = Program(dtype=net.dtype)
        self.directions = net.num_directions
        self.whole = self.directions > 1 or net.reverse  # each layer over all of T before the next one
        self.code = [self._quickest(number) for number in range(len(self.layers.graphs))]

    def _quickest(self, number: int) -> Layer:
        """The code of the layers of a graph: with products of inputs in the steps, where that is predicted to take
        less."""
        before, batches = told(), self.options.batches or EXPECTED_BATCHES
        hoisted = self._layer(self.layers.graphs[number], number)
        graph = self._joined(number) if hoisted.multiplies_members else None
        if graph is None:
            return hoisted
        with recording(listen=False):
            other = self._layer(graph, number)
        taken = sum(hoisted.predicted_us(batch) + hoisted.hoisted_us(batch) for batch in batches)
        us = sum(other.predicted_us(batch) for batch in batches)
        each, apart = us / len(batches), taken / len(batches)
        why = f"of members {each:.2f} us per step predicted, {apart:.2f} where they are hoisted"
        if not other.walks_all_steps or us > taken:
            with about("regime", graph=number):
                tell(False, "products of inputs in the steps", why)
            return hoisted
        forget(before)
        with about("regime", graph=number):
            tell(True, "products of inputs in the steps", why)
        return self._layer(graph, number)

    def _layer(self, graph: Graph, number: int) -> Layer:
        own = (graph, number, self.net.dtype, self.options, self.target, self.net.cell.initial)
        return Layer(
            *own,
            directions=self.directions,
            together=self._side_by_side(),
            joined=partial(self._joined, number),
            started=partial(self._started, number),
        )

    def _joined(self, number: int) -> Graph | None:
        """That graph with products of inputs in the step. None: a pass was left out by name, which it would have."""
        whole = set(PASS_NAMES) <= set(self.layers.graphs[number].applied)
        return self.passed.in_wave.graphs[number] if whole else None

    def _started(self, number: int) -> Graph | None:
        """That of a first step from no states, where it takes fewer products. None: as above, or it takes as many."""
        whole = self._joined(number)
        own = self.passed.first_step.graphs[number] if whole is not None else None
        fewer = own is not None and whole is not None and graph_flops(own) < graph_flops(whole)
        return own if fewer else None

    def _side_by_side(self) -> int:
        """Layers, or directions of one, that share the GPU. In strict float32 one layer may take all of it, and then
        the others wait; in fewer bits stacks run as waves, and layers are chosen as if alone."""
        beside = self.directions if self.whole else self.net.num_layers
        return beside if self.options.precision == "float32" else 1

    def run(self) -> Program:
        program, host = self.program, self.program.sequence
        self._take_images()
        self._tile_sizes()
        self.visits = self._visits()
        self.together = self._wave()
        if self.together is not None:
            self.together.choose(host)
        live = self._live_rows()
        self._take_states_of_users(host)
        self._take_whole(host)
        self._copy_states(host, "load", self._load)
        if self.together is not None:
            with host.when(f"{self.together.number} >= 0"):
                self.together.run(host, [visit.buffers for visit in self.visits])
        if self.together is None:
            self._live_layers(host, live)
        elif not self.target.records.lean:  # what is measured runs in a wave
            with host.otherwise():
                self._live_layers(host, live)
        self._copy_states(host, "save", self._save)
        self._rows_without_steps(host)
        self._give_images()
        program.facts["templates"] = list(self._facts())
        program.facts["flops_per_row"] = self.pixels * flops_per_row(self.layers, self.directions)
        return program

    def _rows_without_steps(self, host: Host) -> None:
        """Rows without a step, of a call of one on the user's states."""
        if self.direct:
            width = prod(self.layers.graphs[self.layers.of_layer[-1]].output.shape)
            copies = [
                StateCopy(before, after, prod(state.shape), rows_of_users(self.net.dtype, prod(state.shape)))
                for visit in self.visits
                for state, (before, after) in zip(visit.code.graph.states, visit.user, strict=True)
            ]
            with host.when(f"{self.direct} && T == 1 && has_lengths"):
                end_rows(host, "end", copies, self.program.output, width * self.directions)

    def _take_states_of_users(self, host: Host) -> None:
        """Which states are read and written where the user has them, and when."""
        self.direct = direct = self._direct(host)
        for visit in self.visits:
            if direct:
                visit.buffers.in_place = {n: InPlace(*pair, direct) for n, pair in enumerate(visit.user)}
            elif self.together is None:
                visit.buffers.in_place = visit.code.in_place(host, visit.user, f"{self.steps} >= T", not self.whole)
        if not direct and self.together is None:
            self._walk_states_of_users(host)

    def _take_whole(self, host: Host) -> None:
        """Persistent kernels read and write all states where the user has them, in calls that a tile has all steps
        of."""
        whole = "false"
        each = [code.on_users_states for code in self.code]
        if "false" not in each and not self.segment.given:
            whole = " && ".join([f"{self.steps} >= T", *each])
        own = "false" if self.together is None else self.together.on_users_states
        if self.together is not None and (own, whole) != ("false", "false"):
            whole = f"{self.together.number} >= 0 ? {own} : {whole}"
        if whole != "false":
            when = host.let("whole_call", whole)
            for visit in self.visits:
                visit.buffers.whole = [InPlace(*pair, when) for pair in visit.user]

    def _walk_states_of_users(self, host: Host, unless: str = "") -> None:
        """Those of steps that one kernel walks, where a tile has all of them. unless: a C++ condition."""
        able = [visit for visit in self.visits if visit.code.walks_users_states and not self.segment.given]
        if able:
            whole = host.let("walked", f"{self.steps} >= T" + (f" && !{unless}" if unless else ""))
        for visit in able:
            own = {number: InPlace(*visit.user[number], whole) for number in visit.code.layout.stepped}
            visit.buffers.in_place |= own

    def _direct(self, host: Host) -> str:
        """Whether that holds of all states: a call of one step, or of few, which no regime runs. "": never."""
        if self.mask_keys is not None or any(code.one_step is None for code in self.code):
            return ""
        few = least([code.few for code in self.code])
        able = [f"T <= {few}", f"{self.steps} >= T", "!has_reset", *(f"!({code.by_regime})" for code in self.code)]
        able += [] if self.together is None else [f"{self.together.fits} < 0"]
        # Blocks of a step read all of a state while others write the next one.
        apart = [
            f"{self.program.state_in(n).text} != {self.program.state_out(n).text}"
            for n, _ in enumerate(self.net.cell.states)
        ]
        there = []
        for visit in self.visits:
            for number, pair in enumerate(visit.user):
                place = visit.code.users_state(number)
                there.append(aligned(pair, place.align // ITEM_BYTES[place.dtype]))
        return host.let("direct", " && ".join([*able, *apart, *there]))

    # --- images ----------------------------------------------------------------------------------------------------

    @property
    def pixels(self) -> int:
        """Rows of a batch row: the pixels of an image, or one."""
        return prod(self.layers.graphs[0].pixels)

    def _take_images(self) -> None:
        """What the caller gives as images, as rows of pixels."""
        self.images = Images(self.program, self.pixels) if self.pixels > 1 else None
        if self.images is not None:
            first, last = (self.layers.graphs[self.layers.of_layer[end]] for end in (0, -1))
            for number, node in enumerate(first.inputs):
                self.images.give(f"input[{number}]", [(prod(node.shape), "T * B")])
            self.images.take("output", [(prod(last.output.shape) * self.directions, "T * B")])
            self._take_states(self.images)

    def _take_states(self, images: Images) -> None:
        for number in range(len(self.net.cell.states)):
            sizes = [prod(self.layers.graphs[i].states[number].shape) for i in self.layers.of_layer]
            blocks = [(size, f"{len([*own]) * self.directions} * B") for size, own in groupby(sizes)]
            self.program.state_in(number)
            images.give(f"state_in[{number}]", blocks)
            images.take(f"state_out[{number}]", blocks)
        images.flags()

    def _give_images(self) -> None:
        if self.images is not None:
            self.images.finish()

    def _mask_keys(self, number: int) -> int:
        """Keys of masks, and what drops weights, where there are any: of inputs number `number` and on. Returns the
        number of the input after them."""
        own = self.net.regularisers
        if own:
            self.mask_keys = NetworkMaskKeys(self.program, number, own.streams, self.net.num_layers, self.directions)
            self.mask_keys.prepare(self.program.sequence)
        if own.weight_drop:
            self.program.dropped = self.dropped = Dropped(own.weight_drop)
        return number + (3 if own else 0)

    def _segment(self, number: int) -> int:
        """What calls for a segment of time have more, likewise, where such calls need it."""
        if not self.whole:
            return number
        self.segment = time_segment(self.program, number, self.directions)
        return number + COUNT

    def _load(self, visit: Visit) -> list[StateCopy]:
        return visit.code.states.load(visit.buffers, [before for before, _ in visit.user])

    def _save(self, visit: Visit) -> list[StateCopy]:
        last = self._last(self.program.sequence, visit)
        return visit.code.states.save(visit.buffers, last, [after for _, after in visit.user])

    def _copy_states(self, host: Host, name: str, copies: Callable[[Visit], list[StateCopy]]) -> None:
        """States in or out, of the layers and directions that the call is for."""
        own = [replace(m, visit=v.layer * self.directions + v.direction) for v in self.visits for m in copies(v)]
        copy_states(host, name, own, self.segment.visit if self.segment.given and self.directions > 1 else "")

    def _facts(self) -> Iterator[dict[str, Any]]:
        if self.together is not None:
            every = list(range(self.net.num_layers))
            yield from ({**fact, "layers": every} for fact in self.together.facts())
        for index, code in enumerate(self.code):
            own = [layer for layer, number in enumerate(self.layers.of_layer) if number == index]
            yield from ({**fact, "layers": own} for fact in code.facts())

    def _wave(self) -> Wave | None:
        """All layers at once, where the products of inputs may be part of the step and no pass was left out."""
        if not all(set(PASS_NAMES) <= set(graph.applied) for graph in self.layers.graphs):
            with about("wave"):
                tell(False, "layers in a wave", "a pass was left out by name, which a wave's layers would have")
            return None  # a wave's layers run all passes: what was left out would be back
        if self.pixels > 1:
            with about("wave"):
                tell(False, "layers in a wave", "convolutions read the rows of other pixels, which other blocks make")
            return None
        others = [self._one_by_one(batch) for batch in self.options.batches or BATCHES]
        with about("wave"):
            found = wave(self.passed, self.target, self.code[self.layers.of_layer[0]], others)
        if found is not None:
            found.reserve(self.program)
        return found

    def _one_by_one(self, batch: int) -> OneByOne:
        every = [self.code[index] for index in self.layers.of_layer]
        us, start = (
            sum(times) for times in zip(*((c.predicted_us(batch), c.start_us(batch)) for c in every), strict=True)
        )
        return OneByOne(us, start, len(every), min(code.beside(batch) for code in self.code))

    def _tile_sizes(self) -> None:
        """How many steps a tile has, and whether layers (or directions) run at the same time."""
        program, layers = self.program, self.net.num_layers
        per_row = max(1, *(layer.bytes_per_row for layer in self.code))
        tiled = all("tile_layers_and_time" in graph.applied for graph in self.layers.graphs)
        tiled = tiled and any(code.layout.has_steps for code in self.code)  # else each layer fills the GPU
        self.cuda_streams = self.directions if self.whole else min(layers, STREAMS) if tiled else 1
        wave = "0" if self.cuda_streams == 1 else "1" if self.whole else f"T >= {2 * WAVE_STEPS}"
        for code in self.code if self.cuda_streams > 1 else ():
            wave += f" && 2 * {code.multiprocessors} <= sms"
        self.wave = program.let("wave", wave)
        if self.cuda_streams > 1 and self.whole:
            host = program.sequence
            self.forks = host.let("forks", f"{self.wave} && (T >= {self._worth_a_fork} || {host.captured})")
        else:
            self.forks = self.wave
        share = max(self.directions, layers)
        most = f"max<int64_t>(1, {HOISTED_BYTES // per_row} / ({self.wave} ? {share} : 1) / B)"
        largest = f"max<int64_t>({WAVE_STEPS}, (T + {WAVE_TILES * layers - 1}) / {WAVE_TILES * layers})"
        whole = "T" if self.whole else f"({self.wave} ? {largest} : T)"
        self.steps = program.let("tile_steps", self._in_parts(f"min<int64_t>(T, min<int64_t>({whole}, {most}))"))

    @property
    def room(self) -> str:
        """The steps of which a tile's memory has rows: more for more steps of a call."""
        return self.steps

    @property
    def _worth_a_fork(self) -> int:
        """Steps of a direction from which on a second stream saves more than it takes: to record and wait for events
        costs nothing within a CUDA graph, and outside of one the time of some launches."""
        batches = self.options.batches or EXPECTED_BATCHES
        least = min(code.predicted_us(batch) for code in self.code for batch in batches)
        return max(1, ceil(FORK_US / max(least, 0.1)))

    def _in_parts(self, steps: str) -> str:
        """The steps of a tile: whole parts of the time, before which matrices are kept, if some are."""
        return f"({steps} + {EVERY - 1}) / {EVERY} * {EVERY}" if self.marked else steps

    @property
    def marked(self) -> bool:
        """Whether some matrix is kept before some steps alone."""
        return any(code.marked for code in self.code)

    def _last(self, host: Host, visit: Visit) -> list[Pointer]:
        """The copies of the states that hold their values after T steps."""
        steps = f"(T + {self.steps} - 1) / {self.steps}"
        odd = f"({visit.code.regime} >= 0 ? {steps} : T) & 1" if visit.code.regimes else "T & 1"
        if self.together is not None:
            odd = f"({self.together.number} >= 0 ? {self.together.tiles} & 1 : {odd})"
        odd = host.let("last", odd)
        solved = visit.code.layout.solved.values()
        tiles = host.let("last_tile", f"((T + {self.steps} - 1) / {self.steps}) & 1") if solved else odd
        return [
            Pointer(f"({tiles if i in solved else odd} ? {pair[1].text} : {pair[0].text})", pair[0].dtype)
            for i, pair in enumerate(visit.buffers.states)
        ]

    # --- memory ----------------------------------------------------------------------------------------------------

    def _visits(self) -> list[Visit]:
        program, visits = self.program, []
        states = {}
        for layer, index in enumerate(self.layers.of_layer):
            for direction in range(self.directions):
                states[layer, direction] = self.code[index].state_buffers(program)
        self._between()
        for code in self.code:
            code.choose_regime(program.sequence)
        for layer, index in enumerate(self.layers.of_layer):
            code = self.code[index]
            for direction in range(self.directions):
                work = code.work_buffers(program, f"{self.room} * B", *self._copies(layer, direction))
                weights = code.pack(program, layer, direction)
                mask_keys = None if self.mask_keys is None else self.mask_keys.of(layer, direction)
                buffers = Buffers(weights, *states[layer, direction], **work, mask_keys=mask_keys)
                visits.append(Visit(code, layer, direction, buffers, self._user(layer, direction)))
        return visits

    def _copies(self, layer: int, direction: int) -> tuple[HostExpr, HostExpr]:
        """What may run at the same time has memory of its own: of how many copies, and which."""
        index = self.layers.of_layer[layer]
        own = direction if self.whole else self.layers.of_layer[:layer].count(index)
        count = self.directions if self.whole else self.layers.of_layer.count(index)
        return (f"{self.wave} ? {count} : 1", f"{self.wave} ? {own} : 0") if count > 1 else (1, 0)

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
        """The sequences that layers hand to the next one. Two directions, or a reverse one: two whole sequences,
        written and read in turn. Forward: two tiles behind each layer, likewise."""
        widths = [self.layers.graphs[i].output.shape[0] * self.directions for i in self.layers.of_layer[:-1]]
        rows = "T * B" if self.whole else f"{self.steps} * B"
        if self.whole:
            widths = [max(widths)] * min(2, len(widths)) if widths else []
        self.between = [
            [self.program.buffer("between", f"{rows} * {width}", self.net.dtype) for _ in range(1 if self.whole else 2)]
            for width in widths
        ]

    def _layer_output(self, host: Host, layer: int, tile: str, row: HostExpr, stride: int) -> Pointer:
        """Where layer `layer` leaves the tile's output for the next one."""
        if self.whole:
            return self.between[layer % 2][0].at(f"{row} * {stride}")
        first, second = self.between[layer]
        return host.pointer("between", Pointer(f"({tile} & 1 ? {second.text} : {first.text})", first.dtype))

    # --- statements ------------------------------------------------------------------------------------------------

    def _live_rows(self) -> LiveRows | None:
        """The list of rows that have not ended, for calls whose hoisted products take longer than to make it."""
        able = [visit.code for visit in self.visits if visit.code.hoists_listed]
        if not able:
            return None
        flops = sum(graph_flops(code.graph, "before") for code in able)
        live = LiveRows.of(self.program, ceil(LISTED_FLOPS / flops))
        for code in able:
            code.live = live
        return live

    def _live_layers(self, host: Host, live: LiveRows | None) -> None:
        if live is not None:
            live.make(host)
        self._layers(host)

    def _layers(self, host: Host) -> None:
        if self.whole:
            self._layer_major(host)
        else:
            self._time_major(host)

    def _time_major(self, host: Host) -> None:
        with self._forked(host), self._tiles(host) as (tile, done, count):
            for number, visit in enumerate(self.visits[:: self.way]):
                with self._cuda_stream(host, number % self.cuda_streams):
                    self._after_neighbours(host, visit.layer, tile)
                    start = host.let("start", f"T - {done} - {count}") if self._back(visit) else done
                    self._visit(host, visit, (tile, done, count), start)
                    self._record(host, 2 * visit.layer, tile)

    def _after_neighbours(self, host: Host, layer: int, tile: str) -> None:
        """A layer's tile begins after the same tile of the layer before, and after the layer behind has read what is in
        the place that is written now: two tiles ago."""

        def wait(h: Host) -> None:
            for other, first in ((layer - self.way, self._layer_event), (layer + self.way, 0)):
                if 0 <= other < self.net.num_layers:
                    h.wait(f"{first + 2 * other} + ({tile} & 1)")

        self._when_wave(host, wait)

    def _record(self, host: Host, event: int, tile: str) -> None:
        """One of two events, by the parity of the tile."""
        self._when_wave(host, partial(Host.record, event=f"{event} + ({tile} & 1)"))

    def _layer_major(self, host: Host) -> None:
        for layer in range(self.net.num_layers)[:: self.way]:
            with self._forked(host):
                for visit in self.visits[layer * self.directions : (layer + 1) * self.directions]:
                    number = visit.direction % self.cuda_streams
                    with self.segment.of_visit(host, *visit.key), self._cuda_stream(host, number):
                        with self._tiles(host) as (tile, done, count):
                            start = host.let("start", f"T - {done} - {count}") if self._back(visit) else done
                            self._visit(host, visit, (tile, done, count), start)
                        self._end_visit(host, visit)

    def _end_visit(self, host: Host, visit: Visit) -> None:
        """After all tiles."""

    def _back(self, visit: Visit) -> bool:
        return self.net.reverse or bool(visit.direction)

    @contextmanager
    def _forked(self, host: Host) -> Iterator[None]:
        """Internal streams begin here and end with the block."""
        self._when_wave(host, lambda h: h.fork(self.cuda_streams - 1))
        yield
        self._when_wave(host, lambda h: h.join(self.cuda_streams - 1))

    @contextmanager
    def _cuda_stream(self, host: Host, number: int) -> Iterator[None]:
        """On that layer's or direction's stream, where there is one."""
        if not number:
            yield
        else:
            with host.stream(f"{self.forks} ? {number} : 0"):
                yield

    def _when_wave(self, host: Host, act: Callable[[Host], None]) -> None:
        if self.cuda_streams > 1:
            with host.when(self.forks):
                act(host)

    @contextmanager
    def _tiles(self, host: Host) -> Iterator[tuple[str, str, str]]:
        """for tile: (its number, steps done before it, its steps), in order of processing."""
        with host.loop(f"(T + {self.steps} - 1) / {self.steps}", "tile") as i:
            done = host.let("done", f"{i} * {self.steps}")
            yield i, done, host.let("count", f"min({self.steps}, T - {done})")

    def _kept(self, visit: Visit, row: HostExpr) -> list[Pointer]:
        """Where the rows of what is kept begin: inference keeps nothing."""
        return []

    def _marks(self, visit: Visit, start: HostExpr) -> dict[Node, Pointer]:
        """Where matrices are kept, by state, before the parts of a tile's time: inference keeps none."""
        return {}

    def _visit(self, host: Host, visit: Visit, tile: tuple[str, str, str], start: HostExpr) -> None:
        code, program = visit.code, self.program
        number, done, count = tile
        inputs = [program.input(i) for i in range(len(code.graph.inputs))]
        places = [code.layout.input(i) for i in range(len(inputs))]
        row = f"{start} * B"
        at = [p.at(f"{row} * {place.row_stride}") for p, place in zip(inputs, places, strict=True)]
        if visit.layer:
            at[0] = self._layer_output(host, visit.layer - 1, number, row, places[0].row_stride)
        stride, width = code.layout.output.row_stride, code.graph.output.shape[0]
        if visit.layer + 1 < self.net.num_layers:
            output = self._layer_output(host, visit.layer, number, row, stride)
        else:
            output = program.output.at(f"{row} * {stride}")
        # Step by step the states change copies at every step, a regime changes them once per tile.
        parity = f"({code.regime} >= 0 ? {number} : {done}) & 1" if code.regimes else f"{done} & 1"
        kept = self._kept(visit, row)
        own = start, count, self._back(visit), parity, kept, number, self._marks(visit, start)
        work = Tile(at, output.at(visit.direction * width), *own)
        code.before(host, visit.buffers, work)
        code.recurrence(host, visit.buffers, work)


def plan(passed: Passed, target: Target) -> Program:
    """The program of inference for one target: one of those of the options, or like them. options.precision: "float64",
    "float32", "tf32", "float16" or "bfloat16"; options.stored: "float8_e4m3", with a 16-bit precision, or ""."""
    return Plan(passed, passed.layers, target).run()
