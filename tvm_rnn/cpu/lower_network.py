"""Graphs to functions: the loops over layers, directions and tiles of time around the layers' code.

In: the RNN, its layers' graphs after the passes, a target. Out: an IRModule with `sequence` and one `pack_k` per
distinct layer, and the facts that the manifest needs. Closing the loop over time happens here and nowhere else;
`verify` checks it.

    time-major:   states in; for tile of time: inputs in; for layer: layer's tile; states out
    layer-major:  states in; inputs in; for layer: for direction: for tile of time: layer's tile; states out
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import tvm
import tvm_ffi
from msgspec import structs
from tvm import tirx

from tvm_rnn.errors import PassError, message
from tvm_rnn.graph.flops import flops_per_row
from tvm_rnn.graph.graph import Layers, Node, makes_levels
from tvm_rnn.graph.scalar import using
from tvm_rnn.module_file.facts import common_facts
from tvm_rnn.module_file.schema import CpuNetwork, Pack
from tvm_rnn.network.layer import weight_name
from tvm_rnn.network.rnn import RNN, named_constants
from tvm_rnn.options import Options
from tvm_rnn.tir.expr import Buffer, Expr, Stmt, TirExpr
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import (
    Block,
    Named,
    bind,
    buffer,
    load,
    loop,
    raised,
    runtime_function,
    sequence,
    store,
    use_threads,
    variable,
    when,
)

from .lower_group import Emitter, Used
from .lower_layer import Context, Emit, Layer, Visit
from .matrix_part import held
from .second_thread import threads_for_call, threads_for_directions
from .shared_groups import SharedGroups
from .surroundings.levels import FORMS
from .walk_through_time import CHUNK, is_few
from .weight_storage import Storages, bytes_on, storage_on
from .workspace import Array, Workspace, each_element, row_stride, rows_in, strides_of

INTEGERS = ("T", "B", "n", "threads", "has_lengths", "has_reset")
Given = dict[str, Any]  # a function's parameters by name, expressions and buffers
BESIDE = "beside"  # the loop over directions that run at the same time
MAX_ROWS = 1 << 30  # "all of T in one tile"


@dataclass(frozen=True)
class Run:
    """Consecutive layers that share a graph: `first` is their first layer, `at` how many layers of the graph came
    before."""

    graph: int
    first: int
    count: int
    at: int


@dataclass(frozen=True)
class Tile:
    """A tile of time of one layer and direction: `done` steps are before it in the order of processing; it has `count`
    steps from `start` on in the order of time. row: step `start` in the buffers between layers."""

    done: Expr
    start: Expr
    count: Expr
    row: Expr


@dataclass
class Lowering:
    """Lowers one RNN. Call `run()`. number: of the first graph, among all whose constants the module's file has.
    sharing: the groups of all functions of the file."""

    net: RNN
    layers: Layers
    options: Options
    number: int = 0
    sharing: SharedGroups | None = field(default_factory=SharedGroups)
    memory: Workspace = field(default_factory=Workspace)
    name: ClassVar[str] = "sequence"
    layer_type: ClassVar[type[Layer]] = Layer
    visit_type: ClassVar[type[Visit]] = Visit
    prefix: ClassVar[str] = ""  # of the names of packing functions
    memories: ClassVar[tuple[str, ...]] = ("packed", "workspace")  # the compiler's own buffers
    flow: ClassVar[str] = "workspace"  # where layers read inputs
    together: ClassVar[int] = CHUNK  # steps of matrices that belong together
    least: ClassVar[int] = CHUNK  # steps of a tile where there are matrices, however many rows; the call may have fewer
    in_bytes: ClassVar[bool] = True  # whether products of bytes are computed as such
    in_place: ClassVar[bool] = True  # whether inputs may be read in the caller's arrays
    few_as_given: ClassVar[bool] = True  # whether matrices stay as their owner laid them out for a few steps
    beside: ClassVar[bool] = True  # whether both directions of a layer may run at the same time

    def __post_init__(self) -> None:
        net, options = self.net, self.options
        self.stored = options.stored
        self.itemsize = np.dtype(net.dtype).itemsize
        in_bytes = self.in_bytes and net.dtype == "float32" and not options.training
        whole = bytes_on(options.target, self._bytes) if in_bytes else None
        self.storages = Storages(storage_on(options.target, self.stored), whole)
        self.emitter = Emitter(options.target, net.dtype, options.batches, self.storages, self.sharing)
        self.lanes, self.back = self.emitter.lanes, int64(int(net.reverse))
        initial = net.cell.initial
        numbered = enumerate(self.layers.graphs, self.number)
        self.code = [self.layer_type(g, initial, self.emitter, self.itemsize, i) for i, g in numbered]
        self.runs = self._runs()
        tiling = self.layers.graphs[0].tiling
        if tiling is None:
            raise PassError(message("the graph has no tiling", do="run tile_layers_and_time, or leave it out by name"))
        self.time_major = tiling.order == "time-major"
        rows = [g.tiling.rows_per_tile for g in self.layers.graphs if g.tiling]
        self.rows_per_tile = MAX_ROWS if None in rows else min(r for r in rows if r is not None)
        self._plan()

    @property
    def _bytes(self) -> list[np.ndarray]:
        """The matrices that the network has now which its equations make bytes of."""
        names = {
            weight_name(own.name, layer, d)
            for layer, graph in enumerate(self.layers.of_layer)
            for node in self.layers.graphs[graph].nodes()
            if node.op == "to_int8" and (own := node.args[0]).op == "param"
            for d in range(self.net.num_directions)
        }
        return [value for name, value in self.net.weights.items() if name in names]

    def _runs(self) -> list[Run]:
        runs: list[Run] = []
        for layer, graph in enumerate(self.layers.of_layer):
            if runs and runs[-1].graph == graph:
                last = runs.pop()
                runs.append(Run(graph, last.first, last.count + 1, last.at))
            else:
                runs.append(Run(graph, layer, 1, self.layers.of_layer[:layer].count(graph)))
        return runs

    # --- memory --------------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Addresses of packed weights and states per graph, and the sizes of the workspace."""
        net, of_layer, d = self.net, self.layers.of_layer, self.net.num_directions
        counts = [of_layer.count(i) for i in range(len(self.code))]
        self.packed_at, self.states_at = [], []
        packed = 0
        for layer, count in zip(self.code, counts, strict=True):
            self.packed_at.append(packed)
            packed += layer.packed.size * count * d
            self.states_at.append(self.memory.per_row)
            self.memory.per_row += layer.states_per_row * count * d
        widths = [layer.graph.inputs[0].shape[0] for layer in net.layers] + [net.output_size]
        widths = widths[1:] if self._is_read_in_place(0) else widths
        self.stride = max(row_stride((w,), self.lanes, self.itemsize) for w in widths)
        self.extra = [row_stride(n.shape, self.lanes, self.itemsize) for n in self.code[0].graph.inputs[1:]]
        # Vectors may read past the end of a value into padding, by at most one vector of its outermost axis.
        widest = max(strides_of(n.shape, self.lanes)[1] for g in self.layers.graphs for n in g.nodes())
        slack = widest + 2 * self.lanes
        self.packed_elements = packed + slack
        self.scratch_at = self.memory.per_row
        self.scratch_size = max(layer.scratch_per_row for layer in self.code)
        self.hoisted_size = max(layer.hoisted_per_row for layer in self.code)
        own = d if self.beside else 1
        self.memory.per_row += self.scratch_size * own
        self.memory.per_tile_row += self.hoisted_size * own
        self.memory.fixed += slack
        self._plan_flow()

    def _plan_flow(self) -> None:
        self.flow_at = self.memory.per_tile_row
        flow = 2 * self.stride + sum(self.extra)
        if self.time_major:
            self.memory.per_tile_row += flow
        else:
            self.memory.per_sequence_row += flow

    # --- the sequence function -----------------------------------------------------------------------------------

    def run(self) -> Lowering:
        self.found = self.functions()
        return self

    @cached_property
    def module(self) -> tvm.IRModule:
        """All functions, those of `found`, with their code."""
        return tvm.IRModule(self.found if self.sharing is None else self.sharing.finish(self.found))

    def describe(self) -> CpuNetwork:
        """What the manifest says of a module, before that of training."""
        net, own = self.net, self.options
        return CpuNetwork(
            **structs.asdict(common_facts(net, own.target, own.batches, own.without)),
            packs=self.packs,
            packed_elements=self.packed_elements,
            workspace=self._declared.sizes(),
            rows_per_tile=self.rows_per_tile,
            flops_per_row=flops_per_row(self.layers, net.num_directions),
            templates=[used.facts() for used in (*self.emitter.used, *self.walks)],
            weight_dtype=self.stored or None,
        )

    def functions(self) -> dict[str, tirx.PrimFunc]:
        """The function that goes through a sequence, and its packing, by name."""
        found = {self.name: self._sequence()}
        verify(found[self.name])
        packs = {f"{self.prefix}pack_{i}": layer for i, layer in enumerate(self.code)}
        return found | {name: self._pack(layer, name) for name, layer in packs.items()}

    @property
    def walks(self) -> list[Used]:
        """Which template chose how each graph's layers and time are walked."""
        return [Used(t.unit, *t.chosen) for g in self.layers.graphs if (t := g.tiling) and t.unit and t.chosen]

    @property
    def packs(self) -> list[Pack]:
        packs = []
        for run in self.runs:
            layer = self.code[run.graph]
            names = [p.name for p in layer.graph.params]
            fixed = [*named_constants(layer.graph, layer.number)]
            for i in range(run.count):
                for d in range(self.net.num_directions):
                    at = self.packed_at[run.graph] + ((run.at + i) * self.net.num_directions + d) * layer.packed.size
                    weights = [weight_name(n, run.first + i, d) for n in names]
                    name = f"{self.prefix}pack_{run.graph}"
                    packs.append(Pack(name, weights + fixed, at))
        return packs

    def _pack(self, layer: Layer, name: str) -> tirx.PrimFunc:
        keys = (*(p.name for p in layer.graph.params), *named_constants(layer.graph, layer.number))
        raw = self._raw(keys)
        packed, offset = buffer("packed", self.net.dtype), variable("offset")
        stored = self._stored(packed)
        body = sequence(_views([*stored.values()], packed), layer.weights.pack(raw, packed, offset, stored))
        return runtime_function(name, [*raw.values(), packed, offset], body)

    def _raw(self, keys: Sequence[str]) -> dict[str, Buffer]:
        """Weights and constants as they are given, by name."""
        return dict(zip(keys, self._users([key.replace(".", "_") for key in keys]), strict=True))

    def _stored(self, packed: Buffer) -> dict[str, Buffer]:
        """The packed memory as elements of the dtypes in which products' parameters are stored, where these are
        others."""
        products = [node for layer in self.code for node in layer.weights.products]
        found = dict.fromkeys(own for node in products if (own := self.storages.of(node)) is not None)
        views = {own.view: own.dtype for own in found}
        views |= {"sums": "int32"} if any(own.dot for own in found) else {}
        return {name: tirx.decl_buffer(packed.shape, dtype, name=name) for name, dtype in views.items()}

    def _sequence(self) -> tirx.PrimFunc:
        given, cell = self._arguments(), self.net.cell
        self.few = self._threads_of_call(given["threads"])
        self.x, (self.y,) = self._users([a.name for a in cell.inputs]), self._users(["y"])
        self.s_in, self.s_out = (self._users([f"{a.name}_{way}" for a in cell.states]) for way in ("in", "out"))
        in_place = {f"input_{i}": user for i, user in enumerate(self.x) if self._is_read_in_place(i)}
        self.ctx.buffers = {**self.ctx.buffers, **in_place, "y": self.y}
        with using(self._forms):
            walk = self._time_major() if self.time_major else self._layer_major()
        body = self._with_threads(given["threads"], self._states(True), walk, self._states(False))
        return self._function(given, [*self.x, self.y, *self.s_in, *self.s_out], body)

    @property
    def _forms(self) -> Mapping[str, Callable[..., Expr]]:
        """Where states are rounded to 8 bits, they have ONNX Runtime's bits: the last one may decide for a level."""
        levels = any(makes_levels(layer.graph.nodes()) for layer in self.code)
        return FORMS if levels and self.net.dtype == "float32" else {}

    def _function(self, given: Given, users: Sequence[Buffer], body: Stmt) -> tirx.PrimFunc:
        own = [given[n] for n in ("lengths", "reset", *self.memories)]
        params = [*(given[n] for n in self.integers), *users, *own, *self._more(given)]
        return runtime_function(self.name, params, body)

    @property
    def integers(self) -> tuple[str, ...]:
        """The function's first parameters."""
        return INTEGERS

    @property
    def streams(self) -> list[str]:
        """The names of what is drawn by counters. Where there are any, the function has two arguments more."""
        return self.net.draws

    def _more(self, given: Given) -> list[TirExpr | Buffer]:
        """The last parameters: the number of the first step in its whole sequence, and the keys [L, D, streams, 2]."""
        return [given["first_step"], given["keys"]] if self.streams else []

    def _integers(self) -> Given:
        return {n: variable(n) for n in self.integers}

    def _arguments(self) -> Given:
        """The integers, lengths, reset, and the compiler's own buffers, which code finds in `ctx`."""
        found = self._integers()
        found |= {"lengths": buffer("lengths", "int64", 8), "reset": buffer("reset", "uint8", 1)}
        found |= {n: self._memory(n) for n in self.memories}
        self.T, self.B, self.ws = found["T"], found["B"], found["workspace"]
        self.n, set_n = self._tile_steps(found["n"])
        self.tile_rows, set_rows = bind("tile_rows", self.n * self.B)
        self.sets: list[Block] = [set_n, set_rows]
        stored = self._stored(found["packed"])
        integer = any(layer.weights.sums for layer in self.code)
        levels = {"levels": tirx.decl_buffer(self.ws.shape, "int32", name="levels")} if integer else {}
        self.views = [*_views([*stored.values()], found["packed"]), *_views([*levels.values()], self.ws)]
        buffers = {n: found[n] for n in self.memories} | stored | levels
        flags = (found[n] for n in ("has_lengths", "has_reset", "lengths", "reset", "threads"))
        self.ctx = Context(buffers, self.B, self.T, self.tile_rows, *flags)
        if self.streams:
            found |= {"first_step": variable("first_step"), "keys": buffer("keys", "uint32", 4)}
            self.ctx.keys, self.ctx.streams, self.ctx.first_step = found["keys"], self.streams, found["first_step"]
        return found

    def _memory(self, name: str) -> Buffer:
        """One of the compiler's own buffers."""
        return buffer(name, self.net.dtype)

    @property
    def _has_matrices(self) -> bool:
        return any(result.op == "scan_matrix" for layer in self.code for result in layer.solved)

    def _tile_steps(self, given: Expr) -> tuple[Expr, Block]:
        """The steps of a tile: whole numbers of `together` of them where there are matrices, if there are so many. Many
        rows leave the caller few steps or one, which would take as long as `least` or longer: matrices are read once
        for all of a chunk."""
        if not self._has_matrices:
            return given, None
        given, set_given = held("steps_given", tirx.max(given, tirx.min(self.T, int64(self.least))))
        rest = tirx.floormod(given, int64(self.together))
        steps, set_steps = held("tile_steps", tirx.Select(given < int64(self.together), given, given - rest))
        return steps, [set_given, set_steps]

    @property
    def _declared(self) -> Workspace:
        """The workspace as a caller is told of it, who may count with tiles of one step."""
        more = (self.least - 1) * self.memory.per_tile_row if self._has_matrices else 0
        return replace(self.memory, per_row=self.memory.per_row + more)

    def _threads_of_call(self, count: TirExpr) -> TirExpr:
        """How many threads the call has: one where it is little work."""
        work = self.T * self.B * int64(flops_per_row(self.layers, self.net.num_directions))
        return threads_for_call(work, count)

    def _with_threads(self, count: TirExpr, *body: Block) -> Stmt:
        """The call, on one thread where it is little work."""
        few = self._threads_of_call(count)
        return sequence(self.views, use_threads(few), self.sets, body, use_threads(int64(1)))

    def _users(self, names: list[str]) -> list[Buffer]:
        """Arrays of the user's."""
        return [buffer(name, self.net.dtype, self.itemsize) for name in names]

    # The workspace: values per row, then values per row of a tile, then values per row of the whole sequence.

    def _row_address(self, offset: int) -> Expr:
        return self.B * int64(offset)

    def _tile_address(self, offset: int) -> Expr:
        return self._row_address(self.memory.per_row) + self.tile_rows * int64(offset)

    def _sequence_address(self, offset: int) -> Expr:
        return self._tile_address(self.memory.per_tile_row) + self.T * self.B * int64(offset)

    def _flow(self, number: int) -> Expr:
        """Address of the two buffers that layers read and write in turn (0, 1), and of the extra inputs behind them."""
        offset = number * self.stride if number < 2 else 2 * self.stride + sum(self.extra[: number - 2])
        return self._tile_address(self.flow_at + offset) if self.time_major else self._sequence_address(offset)

    # --- copies between the user's arrays and the workspace ------------------------------------------------------

    def _states(self, into: bool) -> list[Stmt]:
        """The user's states (all layers of a state one after the other) to the first copies, or the last ones back."""
        parts = []
        for number, user in enumerate(self.s_in if into else self.s_out):
            start = 0
            for run in self.runs:
                visits = run.count * self.net.num_directions
                parts.append(self._state(run, number, user, start, into))
                start += visits * int(np.prod(self.code[run.graph].graph.states[number].shape, dtype=int))
        return parts

    def _state(self, run: Run, number: int, user: Buffer, start: int, into: bool) -> Stmt:
        """One state of all layers and directions of a run; `start`: elements per batch row that come before."""
        code = self.code[run.graph]
        node = code.graph.states[number]
        size = int(np.prod(node.shape, dtype=int))

        def copy(v: Expr, array: Array) -> Stmt:
            own = self.ctx.buffers[array.buffer]

            def row(b: Expr) -> Stmt:
                first = (int64(start) + v * int64(size)) * self.B + b * int64(size)

                def element(index: tuple[Expr, ...], flat: Expr) -> Stmt:
                    place = array.address(b, index)
                    if into:
                        return store(own, place, load(user, first + flat))
                    return store(user, first + flat, load(own, place))

                return each_element(array.shape, element)

            return loop("b", self.B, row)

        def visit(v: Expr) -> Stmt:
            array = self._state_array(run, number, v, into)
            if node not in code.turned or not self.few_as_given:
                return self._if_called(run, v, copy(v, array))
            given = copy(v, code.as_given(node, array))
            return self._if_called(run, v, when(is_few(self.T, code.turned[node]), given, copy(v, array)))

        return loop("v", run.count * self.net.num_directions, visit)

    def _state_array(self, run: Run, number: int, visit: Expr, first: bool) -> Array:
        """Where the first step reads a state of a layer and direction, or where the last one leaves it."""
        parity = int64(0) if first else tirx.bitwise_and(self.T, int64(1))
        return self.code[run.graph].state(number, parity, self._state_base(run, visit), self.B)

    def _if_called(self, run: Run, visit: Expr, *body: Block) -> Stmt:
        """What is done for one layer and direction of a run: in inference in every call."""
        return sequence(*body)

    def _if_layer(self, layer: int, body: Block) -> Stmt:
        """What is done for both directions of a layer."""
        return sequence(body)

    def _state_base(self, run: Run, visit: Expr) -> Expr:
        per = self.code[run.graph].states_per_row
        at = self.states_at[run.graph] + run.at * self.net.num_directions * per
        return self.B * (int64(at) + visit * int64(per))

    def _copy_in(self, start: Expr, count: Expr) -> Stmt:
        """The user's inputs from step `start` on, to where the first layer reads them."""
        parts: list[Block] = []
        nodes = self.net.layers[0].graph.inputs
        for i, (node, user, (base, stride)) in enumerate(zip(nodes, self.x, self._inputs_at(start), strict=True)):
            if self._is_read_in_place(i):
                continue
            array = Array(self.flow, base, stride, strides_of(node.shape, self.lanes)[0], node.shape)
            parts.append(rows_in(self.ctx.buffers[self.flow], user, array, start * self.B, count * self.B))
            parts.append(self._blank(array, start, count))
        return self._if_layer(0, parts)

    def _is_read_in_place(self, number: int) -> bool:
        """Whether an input is read in the caller's array: a copy of many inputs takes as long as products with few
        units (LSTM, I = 1400, H = 16, B = 16: a quarter of the time). Layers that share code read the workspace."""
        graph = self.layers.of_layer[0]
        alone = self.layers.of_layer.count(graph) == 1 and (number == 0 or self.net.num_layers == 1)
        flat = len(self.layers.graphs[graph].inputs[number].shape) == 1
        return self.in_place and alone and flat and self.code[graph].is_read_within(number)

    def _inputs_at(self, start: Expr) -> list[tuple[Expr, int]]:
        """Where the first layer reads each input, and its row stride."""
        return [(self._flow(i + 1 if i else 0), s) for i, s in enumerate([self.stride, *self.extra])]

    def _blank(self, array: Array, start: Expr, count: Expr) -> Stmt | None:
        """What becomes of rows that have ended: in inference nobody reads them."""
        return None

    # --- the two walks -------------------------------------------------------------------------------------------

    def _tiles(self, body: Callable[[Expr, Expr], Block]) -> Stmt:
        """for tile: body(index of its first step in processing order, number of steps)."""

        def tile(i: Expr) -> list[Block]:
            done, set_done = bind("done", i * self.n)
            count, set_count = bind("count", tirx.min(self.n, self.T - done))
            return [when(i > int64(0), _look()), set_done, set_count, body(done, count)]

        return loop("tile", tirx.floordiv(self.T + self.n - int64(1), self.n), tile)

    def _time_major(self) -> Stmt:
        def tile(done: Expr, count: Expr) -> list[Block]:
            def layers(run: Run) -> Stmt:
                return loop("l", run.count, lambda i: self._visit(run, i, int64(0), Tile(done, done, count, int64(0))))

            return [self._copy_in(done, count), *map(layers, self.runs)]

        return self._tiles(tile)

    def _layer_major(self) -> Stmt:
        def layer(run: Run, i: Expr) -> Stmt:
            def direction(d: Expr) -> Stmt:
                def tile(done: Expr, count: Expr) -> Stmt:
                    start, set_start = bind("start", done + (d + self.back) * (self.T - done - done - count))
                    return sequence(set_start, self._visit(run, i, d, Tile(done, start, count, start)))

                return self._tiles(tile)

            return self._directions(direction)

        def layers(run: Run) -> Stmt:
            return loop("l", run.count, lambda i: layer(run, i))

        return sequence(self._copy_in(int64(0), self.T), list(map(layers, self.runs)))

    def _directions(self, direction: Callable[[Expr], Stmt]) -> Stmt:
        """Both directions of a layer: at the same time where a thread each is the best use of them, else one after the
        other, each shared by all threads."""
        if self.net.num_directions == 1 or not self.beside:
            return loop("d", self.net.num_directions, direction)
        work = self.B * int64(flops_per_row(self.layers, 2) // (4 * self.net.num_layers))
        all_threads = use_threads(self.few)
        both = loop(BESIDE, 2, lambda d: sequence(all_threads, direction(d)), parallel=True)
        return sequence(use_threads(threads_for_directions(work, self.few)), both, all_threads)

    def _own(self, d: Expr, rows: Expr, size: int) -> TirExpr:
        """Where a direction's part of memory begins that the other one must not write."""
        return d * int64(size) * rows if self.beside else int64(0)

    def _weights_of(self, run: Run, visit: Expr) -> Expr:
        """Where the packed weights of a run's layer and direction begin."""
        size = self.code[run.graph].packed.size
        return int64(self.packed_at[run.graph] + run.at * self.net.num_directions * size) + visit * int64(size)

    def _visit(self, run: Run, i: Expr, d: Expr, tile: Tile) -> Stmt:
        """Layer `run.first + i` on one tile of time."""
        code, visit, named = self.code[run.graph], i * int64(self.net.num_directions) + d, Named()
        inputs, widths = self._inputs(named, run, i, d, tile)
        work = self.visit_type(
            weights=named("weights", self._weights_of(run, visit)),
            states=named("states", self._state_base(run, visit)) if code.states_per_row else int64(0),
            scratch=named("scratch", self._row_address(self.scratch_at) + self._own(d, self.B, self.scratch_size)),
            hoisted=named("hoisted", self._tile_address(0) + self._own(d, self.tile_rows, self.hoisted_size)),
            inputs=inputs,
            widths=widths,
            direction=d + self.back,
            start=tile.start,
            count=tile.count,
            done=tile.done,
        )
        self._complete(work, named, run, (i, d, visit), tile)
        return self._if_called(run, visit, named.sets, code.visit(self.ctx, work))

    def _inputs(self, named: Named, run: Run, i: Expr, d: Expr, tile: Tile) -> tuple[list[Expr], list[int]]:
        """Where a visit reads its inputs, at the tile's first step; their row strides."""
        own = self._flow(0) + self._odd(run, i) * self._flow_size
        inputs = [named("input", own + tile.row * self.B * int64(self.stride))]
        for number, stride in enumerate(self.extra):
            inputs.append(named(f"input_{number + 1}", self._flow(number + 2) + tile.row * self.B * int64(stride)))
        return inputs, [self.stride, *self.extra]

    def _given(self, run: Run, i: Expr, tile: Tile) -> dict[Node, Array]:
        """What a visit reads in the caller's arrays."""
        nodes = self.code[run.graph].graph.inputs if run.first == 0 else ()
        own = {k: node for k, node in enumerate(nodes) if self._is_read_in_place(k)}
        rows = {k: tile.start * self.B * int64(node.shape[0]) for k, node in own.items()}
        return {node: Array(f"input_{k}", rows[k], node.shape[0], (1,), node.shape) for k, node in own.items()}

    def _odd(self, run: Run, i: Expr) -> Expr:
        return tirx.bitwise_and(i + int64(run.first), int64(1))

    @property
    def _flow_size(self) -> Expr:
        return self._flow(1) - self._flow(0)

    def _complete(self, work: Visit, named: Named, run: Run, place: tuple[Expr, Expr, Expr], tile: Tile) -> None:
        """What else a visit must know. place: its layer in the run, its direction, its number in the run."""
        i, d, number = place
        work.given = self._given(run, i, tile)
        if self.streams:
            work.keys = (int64(run.first * self.net.num_directions) + number) * int64(2 * len(self.streams))
        work.emit = self._emission(named, run, i, d, tile)
        work.y = self._output(run, d, tile)

    def _output(self, run: Run, d: Expr, tile: Tile) -> Array | None:
        """The caller's y from a tile's first step on, where a visit is always the last layer's."""
        if run.count > 1 or run.first + 1 < self.net.num_layers:
            return None
        shape = self.code[run.graph].graph.output.shape
        width = shape[0] * self.net.num_directions
        return Array("y", tile.start * self.B * int64(width) + d * int64(shape[0]), width, (1,), shape)

    def _emission(self, named: Named, run: Run, i: Expr, d: Expr, tile: Tile) -> Emit:
        """Where a layer's output goes: to the next layer, or to the user's y."""
        width, onward = self.code[run.graph].graph.output.shape[0], self._onward(named, run, i, d, tile)

        def to_user(t: Expr, b: Expr, j: Expr, value: Expr) -> Stmt:
            row = (tile.start + t) * self.B + b
            return store(self.y, row * int64(width * self.net.num_directions) + d * int64(width) + j, value)

        def either(*element: Expr) -> Stmt:
            return when(tirx.EQ(i, int64(run.count - 1)), to_user(*element), onward(*element))

        if run.first + run.count < self.net.num_layers:
            return onward
        return to_user if run.count == 1 else either

    def _onward(self, named: Named, run: Run, i: Expr, d: Expr, tile: Tile) -> Emit:
        """To the next layer's input."""
        flow = self._flow(0) + (int64(1) - self._odd(run, i)) * self._flow_size
        output = flow + tile.row * self.B * int64(self.stride)
        output = named("output", output + d * int64(self.code[run.graph].graph.output.shape[0]))
        stride = int64(self.stride)
        return lambda t, b, j, value: store(self.ws, output + t * self.B * stride + b * stride + j, value)


def _look() -> Stmt:
    """Ends the call where a signal's handler raised an error, as that of Ctrl-C does: see pool.c."""
    return raised(tirx.EQ(tirx.call_extern("int32", "tvm_rnn_look"), tirx.const(0, "int32")))


def _views(buffers: Sequence[Buffer], memory: Buffer) -> list[Stmt]:
    """Statements that make buffers views of memory."""
    return [tirx.DeclBuffer(view, data=tirx.buffer.buffer_data(memory)) for view in buffers]


def verify(func: tirx.PrimFunc) -> None:
    """Raise PassError unless every loop over time ("tile", "step") is serial, and outside of every parallel loop but
    the one over directions."""
    problems: list[str] = []
    time = ("tile", "step")

    def inside(node: tirx.For) -> None:
        if node.loop_var.name in time:
            problems.append(f"loop over {node.loop_var.name} inside a parallel loop")

    def check(node: tirx.For) -> None:
        serial = node.kind in (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED)
        if node.loop_var.name in time and not serial:
            problems.append(f"loop over {node.loop_var.name} is not serial")
        if node.kind == tirx.ForKind.PARALLEL and node.loop_var.name != BESIDE:
            tvm_ffi.structural_walk(node.body, (tirx.For, inside))

    tvm_ffi.structural_walk(func.body, (tirx.For, check))
    if problems:
        raise PassError(message("the order of time is broken", got=", ".join(problems), do="leave time to lower.py"))
