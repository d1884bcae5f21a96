"""One layer's code: where its values live, the packing of its weights, and its work on one tile of time.

In: a graph with groups and the emitter. Out: statements for `lower_network.py`, which walks layers, directions and
tiles. The same statements serve every layer and direction of equal sizes: what differs is in base addresses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tvm import tirx

from tvm_rnn.graph.graph import Graph, Group, Node, depends
from tvm_rnn.tir.expr import Buffer, Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import Block, bind, load, loop, sequence, store, when

from .dropout_masks import Draw
from .int8_products import row_elements
from .lower_group import Emitter
from .register_tile import Places
from .weight_packing import PackedWeights
from .workspace import Array, row_stride, strides_of


@dataclass
class Context:
    """The variables of the sequence function that a layer's code uses."""

    buffers: Mapping[str, Buffer]
    batch: Expr
    steps: Expr
    tile_rows: Expr  # rows of the largest tile: n B
    has_lengths: Expr
    has_reset: Expr
    lengths: Buffer
    reset: Buffer
    threads: Expr | None = None  # that may share the work
    keys: Buffer | None = None  # of masks, where there are any
    streams: Sequence[str] = ()  # their names, in the order of keys
    first_step: Expr | None = None  # the number of step 0 in its whole sequence


@dataclass
class Visit:
    """One visit of a layer: which weights and states, and which tile of time."""

    weights: Expr  # address of the packed weights
    states: Expr  # address of the states
    scratch: Expr  # address of values that live for one step
    hoisted: Expr  # address of what `before` stores, for the rows of one tile
    inputs: Sequence[Expr]  # address of each input at the tile's first step
    widths: Sequence[int]  # row strides of the inputs
    output: Expr  # address of the output at the tile's first step
    output_stride: int
    direction: Expr  # 0 or 1
    start: Expr  # first step of the tile
    count: Expr  # steps in the tile
    done: Expr  # steps of this layer and direction before this tile
    keys: Expr = 0  # address of this layer's and direction's words in the keys of masks


@dataclass
class Layer:
    """The code of all layers that share a graph."""

    graph: Graph
    initial: Mapping[str, float]
    emitter: Emitter
    itemsize: int
    number: int = 0  # of the graph, among the network's

    def __post_init__(self) -> None:
        g, self.lanes = self.graph, self.emitter.lanes
        nodes = g.nodes()
        leaves = depends(nodes)
        self.free = {n for n in nodes if not leaves[n]}
        self.state_rows = [row_stride(s.shape, self.lanes, self.itemsize) for s in g.states]
        self.hoisted = self._rows(n for group in g.groups if group.region == "before" for n in group.stored)
        own = [n for group in g.groups if group.region == "step" for n in group.stored]
        self.scratch = self._rows(n for n in own if n not in g.results)
        self.weights = PackedWeights(g, self.free, self.lanes, self.number, self.emitter.storage)
        self.packed, self.products = self.weights.packed, self.weights.products
        storage = self.emitter.storage
        integer = [group for group in g.groups if group.kind == "gemm" and storage is not None and storage.integer]
        self.levels = {
            region: self._levels([q for q in integer if q.region == region]) for region in ("before", "step")
        }

    def _levels(self, groups: Sequence[Group]) -> tuple[dict[Node, list[tuple[int, int]]], int]:
        """Offset and stride of each operand's rows in integers, behind the region's values; and what all take."""
        found: dict[Node, list[tuple[int, int]]] = {}
        at = 0
        for root in (group.root for group in groups if group.root is not None):
            found[root] = []
            for operand in root.args[1::2]:
                stride = row_elements(operand.shape[0], self.lanes)
                found[root].append((at, stride))
                at += stride
        return found, at

    @property
    def scratch_per_row(self) -> int:
        return self.extent(self.scratch) + self.levels["step"][1]

    @property
    def hoisted_per_row(self) -> int:
        return self.extent(self.hoisted) + self.levels["before"][1]

    def _rows(self, nodes: Iterable[Node]) -> dict[Node, tuple[int, int]]:
        """Offset and stride of each stored value, in elements per row."""
        found, at = {}, 0
        for node in dict.fromkeys(nodes):
            stride = row_stride(node.shape, self.lanes, self.itemsize)
            found[node] = (at, stride)
            at += stride
        return found

    @staticmethod
    def extent(rows: Mapping[Node, tuple[int, int]]) -> int:
        return sum(stride for _, stride in rows.values())

    @property
    def states_per_row(self) -> int:
        """Elements per row of the states of one layer and direction: two copies, read and written in turn."""
        return 2 * sum(self.state_rows)

    # --- one tile of time ----------------------------------------------------------------------------------------

    def _array(self, buffer: str, node: Node, base: Expr, stride: int) -> Array:
        return Array(buffer, base, stride, strides_of(node.shape, self.lanes)[0], node.shape)

    def _weights(self, node: Node, visit: Visit) -> Array | None:
        if node not in self.packed.names:
            return None
        return self.weights.array(node, visit.weights)

    def visit(self, ctx: Context, visit: Visit) -> Stmt:
        """`before` over the tile's rows, then the steps in this direction's order."""
        rows, set_rows = bind("rows", visit.count * ctx.batch)
        parts: list[Block] = [set_rows]
        arrays = {n: self._hoisted(n, visit, int64(0), ctx) for n in self.hoisted}
        arrays |= {n: self._input(i, visit, int64(0), ctx) for i, n in enumerate(self.graph.inputs)}
        places = self._places(ctx, visit, arrays, {n: [arrays[n]] for n in self.hoisted})
        parts += [self.emitter.group(g, rows, places) for g in self.graph.groups if g.region == "before"]
        parts.append(loop("step", visit.count, lambda s: self._step(ctx, visit, s)))
        return sequence(parts)

    def _hoisted(self, node: Node, visit: Visit, t: Expr, ctx: Context) -> Array:
        at, stride = self.hoisted[node]
        # Values lie one after the other, each with all rows of the largest tile.
        base = visit.hoisted + ctx.tile_rows * int64(at) + t * ctx.batch * int64(stride)
        return self._array("workspace", node, base, stride)

    def _input(self, number: int, visit: Visit, t: Expr, ctx: Context) -> Array:
        node, stride = self.graph.inputs[number], visit.widths[number]
        return self._array("workspace", node, visit.inputs[number] + t * ctx.batch * int64(stride), stride)

    def state(self, number: int, parity: Expr, states: Expr, batch: Expr) -> Array:
        """State `number` of one layer and direction, the copy of the given parity."""
        before = 2 * sum(self.state_rows[:number])
        stride = self.state_rows[number]
        base = states + batch * (int64(before) + parity * int64(stride))
        return self._array("workspace", self.graph.states[number], base, stride)

    def _places(
        self, ctx: Context, visit: Visit, read: Mapping[Node, Array], write: Mapping[Node, Sequence[Array]]
    ) -> Places:
        own, ratio = self.weights, int64(self.weights.ratio)
        products = {n: [(visit.weights + int64(o)) * ratio for o in offsets] for n, offsets in own.products.items()}
        scales = {n: [visit.weights + int64(o) for o in offsets] for n, offsets in own.scales.items()}
        sums = {n: [visit.weights + int64(o) for o in offsets] for n, offsets in own.sums.items()}
        places = Places(
            dict(ctx.buffers), lambda n: read.get(n) or self._weights(n, visit), lambda n: write[n], products
        )
        places = replace(places, batch=ctx.batch, threads=ctx.threads, storage=own.storage, scales=scales)
        if ctx.keys is not None and ctx.first_step is not None:
            draw = Draw(ctx.keys, visit.keys, ctx.streams, ctx.first_step + visit.start, ctx.batch)
            places = replace(places, draw=draw)
        return replace(places, sums=sums, levels=self._levels_at(ctx, visit)) if own.sums else places

    def _levels_at(self, ctx: Context, visit: Visit) -> dict[Node, list[Array]]:
        """Where operands are in integers: one step's behind its values, the others' behind a tile's."""
        bases = {
            "step": (visit.scratch, ctx.batch, self.extent(self.scratch)),
            "before": (visit.hoisted, ctx.tile_rows, self.extent(self.hoisted)),
        }
        return {
            node: [Array("levels", base + rows * int64(behind + at), stride, (1,), (1,)) for at, stride in places]
            for region, (base, rows, behind) in bases.items()
            for node, places in self.levels[region][0].items()
        }

    def _step(self, ctx: Context, visit: Visit, s: Expr) -> list[Block]:
        t, set_t = bind("t", s + visit.direction * (visit.count - int64(1) - s - s))
        parity, set_parity = bind("parity", tirx.bitwise_and(visit.done + s, int64(1)))
        old: list[Array] = []
        new: list[Array] = []
        sets = [set_t, set_parity]
        for number, node in enumerate(self.graph.states):
            for into, p in ((old, parity), (new, int64(1) - parity)):
                array = self.state(number, p, visit.states, ctx.batch)
                base, set_base = bind(f"{node.name}_{'old' if into is old else 'new'}", array.base)
                sets.append(set_base)
                into.append(replace(array, base=base))
        read = dict(zip(self.graph.states, old, strict=True))
        read |= {n: self._input(i, visit, t, ctx) for i, n in enumerate(self.graph.inputs)}
        read |= {n: self._hoisted(n, visit, t, ctx) for n in self.hoisted}
        write: dict[Node, list[Array]] = {}
        for node, (at, stride) in self.scratch.items():
            write[node] = [self._array("workspace", node, visit.scratch + ctx.batch * int64(at), stride)]
        for node, array in zip(self.graph.results, new, strict=True):
            write.setdefault(node, []).append(array)
        groups = self._groups(ctx, visit, read, write, parity)
        out = (read | {n: a[0] for n, a in write.items()})[self.graph.output]
        time = visit.start + t
        row0 = visit.output + t * ctx.batch * int64(visit.output_stride)
        return [
            *sets,
            self._restart(ctx, visit, time, old),
            *groups,
            self._emit_output(ctx, out, row0, visit.output_stride),
            self._freeze(ctx, time, old, new, row0, visit.output_stride),
        ]

    def _groups(
        self, ctx: Context, visit: Visit, read: dict[Node, Array], write: Mapping[Node, Sequence[Array]], odd: Expr
    ) -> list[Stmt]:
        """The step's groups. What they compute is read back from its first place, which `read` gets; a result that is a
        leaf is read as that leaf."""
        own = [g for g in self.graph.groups if g.region == "step"]
        stored = {n for g in own for n in g.stored if not n.leaf} - {*read, *self.packed.names}
        read |= {n: arrays[0] for n, arrays in write.items() if n in stored}
        places = replace(self._places(ctx, visit, read, write), odd=odd)
        return [self.emitter.group(g, ctx.batch, self._own(places, g)) for g in own]

    def _own(self, places: Places, group: Group) -> Places:
        """A result that is a leaf, or that another region computes, is copied from where it is."""
        elsewhere = (n for n in group.stored if n.leaf or n in self.hoisted or n in self.packed.names)
        sources = {n: places.read(n) for n in elsewhere}
        return replace(places, copied={n: array for n, array in sources.items() if array is not None})

    def _emit_output(self, ctx: Context, out: Array, row0: Expr, stride: int) -> Stmt:
        ws = ctx.buffers["workspace"]

        def copy(b: Expr, j: Expr) -> Stmt:
            return store(ws, row0 + b * int64(stride) + j, load(ws, out.address(b, (j,))))

        return loop("b", ctx.batch, lambda b: loop("j", out.shape[-1], lambda j: copy(b, j)))

    def _restart(self, ctx: Context, visit: Visit, time: Expr, old: Sequence[Array]) -> Stmt:
        """Rows whose reset flag is set start again from the initial value; finished rows stay as they are."""
        ws = ctx.buffers["workspace"]
        at = time + visit.direction  # backwards, a flag at t + 1 separates t from what was just processed

        def row(b: Expr) -> Stmt:
            fill = [fill_row(ws, a, self._first(n), b) for a, n in zip(old, self.graph.states, strict=True)]
            flagged = when(tirx.NE(load(ctx.reset, at * ctx.batch + b), tirx.const(0, "uint8")), fill)
            unfinished = when(at < load(ctx.lengths, b), flagged)
            return when(tirx.EQ(ctx.has_lengths, int64(0)), flagged, unfinished)

        body = when(at < ctx.steps, loop("b", ctx.batch, row))
        return when(tirx.NE(ctx.has_reset, int64(0)), body)

    def _first(self, state: Node) -> Expr:
        return tirx.const(self.initial.get(state.name, 0.0), self.graph.dtype)

    def _freeze(
        self, ctx: Context, time: Expr, old: Sequence[Array], new: Sequence[Array], row0: Expr, stride: int
    ) -> Stmt:
        """Rows that have ended keep their state and emit zeros."""
        ws = ctx.buffers["workspace"]
        zero = tirx.const(0.0, self.graph.dtype)

        def row(b: Expr) -> Stmt:
            keep = [keep_row(ws, a, n, b) for a, n in zip(old, new, strict=True)]
            width = self.graph.output.shape[0]
            blank = loop("j", width, lambda j: store(ws, row0 + b * int64(stride) + j, zero))
            return when(tirx.GE(time, load(ctx.lengths, b)), [*keep, blank])

        return when(tirx.NE(ctx.has_lengths, int64(0)), loop("b", ctx.batch, row))


def fill_row(ws: Buffer, array: Array, value: Expr, b: Expr) -> Stmt:
    """One batch row of an array, padding included, becomes `value`."""
    at = array.base + b * int64(array.row_stride)
    return loop("j", array.row_stride, lambda j: store(ws, at + j, value))


def keep_row(ws: Buffer, old: Array, new: Array, b: Expr) -> Stmt:
    """One batch row of the new state becomes that of the old one."""
    source, place = old.base + b * int64(old.row_stride), new.base + b * int64(new.row_stride)
    return loop("j", new.row_stride, lambda j: store(ws, place + j, load(ws, source + j)))
