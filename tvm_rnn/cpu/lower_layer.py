"""One layer's code: where its values live, the packing of its weights, and its work on one tile of time.

In: a graph with groups and the emitter. Out: statements for `lower_network.py`, which walks layers, directions and
tiles. The same statements serve every layer and direction of equal sizes: what differs is in base addresses.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tvm import tirx

from tvm_rnn.graph.graph import Graph, Group, Node, depends, has_steps, is_scan
from tvm_rnn.tir.expr import Buffer, Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import Block, bind, load, loop, sequence, store, when

from .dropout_masks import Draw
from .int8_products import row_elements
from .lower_group import Emitter
from .recurrence import shared
from .register_tile import Places
from .row_stages import by_sections, in_stages
from .walk_through_time import Walk, is_few
from .weight_packing import PackedWeights
from .workspace import Array, row_stride, strides_of

Emit = Callable[[Expr, Expr, Expr, Expr], Stmt]
VIEWS = ("reshape", "index", "slice")  # of which every element is one of the operand's


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
    marks: Expr = 0  # of training: rows before which a tape has matrices, but for the last ones


@dataclass
class Visit:
    """One visit of a layer: which weights and states, and which tile of time."""

    weights: Expr  # address of the packed weights
    states: Expr  # address of the states
    scratch: Expr  # address of values that live for one step
    hoisted: Expr  # address of what `before` stores, for the rows of one tile
    inputs: Sequence[Expr]  # address of each input at the tile's first step
    widths: Sequence[int]  # row strides of the inputs
    direction: Expr  # 0 or 1
    start: Expr  # first step of the tile
    count: Expr  # steps in the tile
    done: Expr  # steps of this layer and direction before this tile
    emit: Emit = field(default=lambda *where: sequence())  # emit(t, b, j, value): element j of row b of step t's output
    given: Mapping[Node, Array] = field(default_factory=dict)  # what is read in the caller's arrays, from `start` on
    y: Array | None = None  # the caller's output from `start` on, where this layer's is it
    keys: Expr = 0  # address of this layer's and direction's words in the keys of masks
    block: Expr = 0  # address in the tape of what this layer and direction keeps


class Step:
    """One step of a visit. t: its place in the tile; time: in the sequence; odd: 0 and 1 in turns; old, new: each state
    before and after it; sets: the statements that set these variables. read, write: where values are, and go to."""

    def __init__(self, visit: Visit, s: Expr) -> None:
        self.t, set_t = bind("t", s + visit.direction * (visit.count - int64(1) - s - s))
        self.time: Expr = visit.start + self.t
        self.odd: Expr = 0
        self.sets: list[Block] = [set_t]
        self.old: list[Array] = []
        self.new: list[Array] = []
        self.read: dict[Node, Array] = {}
        self.write: dict[Node, list[Array]] = {}
        self.has_left_output = False  # by its groups, where it goes

    def bind_state(self, name: str, old: Array, new: Array) -> None:
        for into, array, word in ((self.old, old, "old"), (self.new, new, "new")):
            base, set_base = bind(f"{name}_{word}", array.base)
            self.sets.append(set_base)
            into.append(replace(array, base=base))


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
        results = dict(zip(g.states, g.results, strict=True))
        self.solved = {result: state for state, result in results.items() if is_scan(result)}
        self.stepped = {state: result for state, result in results.items() if not is_scan(result)}
        self.has_steps = has_steps(g)
        # Of a matrix that is solved the value axis is the last one in memory: vectors run along it.
        self.turned = {s: r for r, s in self.solved.items() if r.op == "scan_matrix" and r.attrs["key"] == -1}
        self.state_rows = [self._state_row(s) for s in g.states]
        self.hoisted = self._rows(n for group in g.groups if group.region == "before" for n in group.stored)
        self.before = set(self.hoisted)
        own = [n for group in g.groups if group.region == "step" for n in group.stored]
        self.scratch = self._rows(n for n in own if n not in g.results)
        self.weights = PackedWeights(g, self.free, self.lanes, self.number, self.emitter.storages)
        self.packed, self.products = self.weights.packed, self.weights.products
        integer = [group for group in g.groups if group.root in self.weights.sums]
        self.levels = {
            region: self._levels([q for q in integer if q.region == region]) for region in ("before", "step")
        }

    def _levels(self, groups: Sequence[Group]) -> tuple[dict[Node, list[tuple[int, int]]], int]:
        """Offset and stride of each operand's rows in integers, behind the region's values; and what all take."""
        found: dict[Node, list[tuple[int, int]]] = {}
        at = 0
        for root in (group.root for group in groups if group.root is not None):
            found[root] = []
            storage = self.emitter.storages.of(root)
            assert storage is not None and storage.dot is not None
            for operand in root.args[1::2]:
                stride = row_elements(operand.shape[0], self.lanes, storage.dot)
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
        return self.weights.array(node, visit.weights) if node in self.packed.names else None

    def visit(self, ctx: Context, visit: Visit) -> Stmt:
        """`before` over the tile's rows, then the steps in this direction's order."""
        rows, set_rows = bind("rows", visit.count * ctx.batch)
        arrays = self._rows_read(ctx, visit, int64(0))
        write = {n: [self._hoisted(n, visit, int64(0), ctx)] for n in self.hoisted}
        if (y := self._whole_rows_of_y(visit)) is not None:
            write[self.graph.output].append(y)
        places = self._places(ctx, visit, arrays, write)
        if self.solved:
            places = replace(places, walk=self._walk(ctx, visit))
        own = [g for g in self.graph.groups if g.region == "before"]
        before = self._before(own, rows, places)
        steps = loop("step", visit.count, lambda s: self._step(ctx, visit, s)) if self.has_steps else None
        return sequence(set_rows, before, steps, self._after(ctx, visit, rows, places))

    def _before(self, groups: Sequence[Group], rows: Expr, places: Places) -> list[Stmt]:
        """The groups on a tile's rows."""
        found = list[Stmt]()
        for stage in in_stages(groups, lambda g: self.emitter.tall(g) > 0):
            if stage[0].kind == "scan":
                found.append(self.emitter.recurrences(stage, rows, [self._copying(places, g) for g in stage]))
                continue
            apart = not all(map(self.emitter.tall, stage)) or (len(stage) == 1 and stage[0].kind == "gemm")
            if places.threads is None or apart:
                found += [self.emitter.group(g, rows, self._copying(places, g)) for g in stage]
                continue
            work, body = sum(map(self.emitter.elements_of, stage)), partial(self._section, stage, places)
            tall = self.emitter.tall(max(stage, key=self.emitter.elements_of))
            found.append(by_sections(rows, rows * int64(work), places.threads, tall, body))
        return found

    def _section(self, stage: Sequence[Group], places: Places, first: Expr, count: Expr) -> list[Block]:
        """Some rows of a stage, by one thread. What a row has made is read again while it is near.

        Rewrite: for row: a[row] = f(..); for row: b[row] = g(a[row])  -->  for row: a[row] = ..; b[row] = ..
        """
        own, found = replace(at_row(places, first), alone=True), list[Block]()
        for by_row, run in itertools.groupby(stage, self.emitter.is_by_row):
            groups = list(run)
            if by_row:
                found.append(loop("row", count, partial(self._one_row, groups, own)))
            else:
                found += [self.emitter.group(g, count, self._copying(own, g)) for g in groups]
        return found

    def _one_row(self, groups: Sequence[Group], places: Places, row: Expr) -> list[Stmt]:
        own = at_row(places, row)
        return [self.emitter.group(g, int64(1), self._copying(own, g)) for g in groups]

    def _after(self, ctx: Context, visit: Visit, rows: Expr, places: Places) -> list[Block]:
        """What follows a tile's steps: in forward functions the output, where no step has left it."""
        if self.has_steps:
            return []
        if self._whole_rows_of_y(visit) is None:
            return [self._whole_output(ctx, visit)]
        zero, width = tirx.const(0.0, self.graph.dtype), self.graph.output.shape[0]

        def blank(t: Expr, b: Expr) -> Stmt:
            return loop("j", width, lambda j: visit.emit(t, b, j, zero))

        return [ended_in_tile(ctx, visit.start, visit.count, blank)]

    def _whole_rows_of_y(self, visit: Visit) -> Array | None:
        """The caller's output, where what makes it before any step is whole vectors: that leaves it there as well."""
        node, y = self.graph.output, visit.y
        if self.has_steps or y is None or node.leaf or node.shape[-1] % self.lanes:
            return None
        makes = (g for g in self.graph.groups if g.region == "before" and node in g.nodes and node in g.stored)
        if not any(g.kind in ("pointwise", "scan") for g in makes):
            return None
        return replace(y, strides=strides_of(node.shape, 1)[0], shape=node.shape)

    def _whole_output(self, ctx: Context, visit: Visit) -> Block:
        """The output of all steps of a tile; rows that have ended emit zeros."""
        node, zero = self.graph.output, tirx.const(0.0, self.graph.dtype)
        out = self._hoisted(node, visit, int64(0), ctx)
        source, width = ctx.buffers[out.buffer], node.shape[0]

        def emit(i: Expr) -> list[Block]:
            t, set_t = bind("t", tirx.floordiv(i, ctx.batch))
            b, set_b = bind("b", tirx.floormod(i, ctx.batch))
            value = loop("j", width, lambda j: visit.emit(t, b, j, load(source, out.address(i, (j,)))))
            nothing = loop("j", width, lambda j: visit.emit(t, b, j, zero))
            return [set_t, set_b, when(self._has_ended(ctx, visit.start + t, b), nothing, value)]

        rows = visit.count * ctx.batch
        return shared(rows, rows * int64(width), ctx.threads, emit, "row")

    @staticmethod
    def _has_ended(ctx: Context, time: Expr, b: Expr) -> Expr:
        """Whether row b has no step `time`."""
        after = tirx.GE(time, load(ctx.lengths, b))
        return tirx.if_then_else(tirx.NE(ctx.has_lengths, int64(0)), after, tirx.const(False, "bool"))

    def _copying(self, places: Places, group: Group) -> Places:
        """What is known without a step is copied where it is stored."""
        elsewhere = [n for n in group.stored if n.leaf or n in self.packed.names]
        return self._copied(places, elsewhere) if elsewhere else places

    def _copied(self, places: Places, nodes: Iterable[Node]) -> Places:
        sources = {n: places.read(n) for n in nodes}
        return replace(places, copied={n: array for n, array in sources.items() if array is not None})

    # --- recurrences over all steps of a tile ------------------------------------------------------------------------

    def _walk(self, ctx: Context, visit: Visit) -> Walk:
        states = list(self.solved.values())
        first, last = ({s: self._state_at(ctx, visit, s, end) for s in states} for end in (False, True))
        fresh = {s: self.initial.get(s.name, 0.0) for s in states}

        def active(b: Expr) -> Expr:
            left = tirx.max(tirx.min(load(ctx.lengths, b) - visit.start, visit.count), int64(0))
            return tirx.if_then_else(tirx.NE(ctx.has_lengths, int64(0)), left, visit.count)

        def restart(t: Expr, b: Expr, body: Block) -> Stmt:
            # Backwards, a flag at t + 1 separates t from what was just processed.
            return self._row_restart(ctx, visit.start + t + visit.direction, b, body)

        return Walk(
            self.solved,
            first,
            last,
            {},
            active,
            visit.direction,
            restart,
            fresh,
            False,
            partial(is_few, ctx.steps),
            visit.count,
        )

    def _state_at(self, ctx: Context, visit: Visit, state: Node, last: bool) -> Array:
        """A solved state before the tile's steps, or after them."""
        done = visit.done + visit.count if last else visit.done
        parity = tirx.bitwise_and(done, int64(1))
        return self.state(self.graph.states.index(state), parity, visit.states, ctx.batch)

    def _rows_read(self, ctx: Context, visit: Visit, t: Expr) -> dict[Node, Array]:
        """What has a row for every step, from step t of the tile on. What is only copied is read where it was; of
        states the steps themselves have the latest alone."""
        read = {n: self._input(i, visit, t, ctx) for i, n in enumerate(self.graph.inputs)}
        copies = {n for n in self.hoisted if (n.leaf and n.op != "state") or n in self.packed.names}
        return read | {n: self._hoisted(n, visit, t, ctx) for n in self.hoisted if n not in copies}

    def _hoisted(self, node: Node, visit: Visit, t: Expr, ctx: Context) -> Array:
        at, stride = self.hoisted[node]
        # Values lie one after the other, each with all rows of the largest tile.
        base = visit.hoisted + ctx.tile_rows * int64(at) + t * ctx.batch * int64(stride)
        return self._array("workspace", node, base, stride)

    def _input(self, number: int, visit: Visit, t: Expr, ctx: Context) -> Array:
        node, stride = self.graph.inputs[number], visit.widths[number]
        if (given := visit.given.get(node)) is not None:
            return replace(given, base=given.base + t * ctx.batch * int64(given.row_stride))
        return self._array("workspace", node, visit.inputs[number] + t * ctx.batch * int64(stride), stride)

    def is_read_within(self, number: int) -> bool:
        """Whether what reads an input reads no padding behind it: products take element by element, and vectors end
        where a last axis is whole vectors."""
        return self._is_read_within(self.graph.inputs[number], self.graph.users())

    def _is_read_within(self, node: Node, users: Mapping[Node, Sequence[Node]]) -> bool:
        if node in (*self.graph.results, self.graph.output):
            return False

        def within(user: Node) -> bool:
            if user.op == "gemm":
                return not self._in_bytes(user)
            whole = bool(user.shape) and user.shape[-1] % self.lanes == 0
            return whole and (user.pointwise or (user.op in VIEWS and self._is_read_within(user, users)))

        return all(map(within, users.get(node, [])))  # of one that nothing reads there are none

    def _in_bytes(self, product: Node) -> bool:
        storage = self.emitter.storages.of(product)
        return storage is not None and storage.dot is not None

    def state(self, number: int, parity: Expr, states: Expr, batch: Expr) -> Array:
        """State `number` of one layer and direction, the copy of the given parity."""
        before = 2 * sum(self.state_rows[:number])
        stride = self.state_rows[number]
        base = states + batch * (int64(before) + parity * int64(stride))
        node = self.graph.states[number]
        strides = strides_of(self._as_stored(node), self.lanes)[0]
        return Array("workspace", base, stride, turned(strides) if node in self.turned else strides, node.shape)

    def _state_row(self, state: Node) -> int:
        """Elements of a state's row. One that is turned is so in sequences of many steps alone."""
        return max(row_stride(shape, self.lanes, self.itemsize) for shape in (state.shape, self._as_stored(state)))

    def as_given(self, state: Node, array: Array) -> Array:
        """A state as its owner laid it out, in the memory of one that may be turned."""
        return replace(array, strides=strides_of(state.shape, self.lanes)[0])

    def _as_stored(self, state: Node) -> tuple[int, ...]:
        return turned(state.shape) if state in self.turned else state.shape

    def _places(
        self, ctx: Context, visit: Visit, read: Mapping[Node, Array], write: Mapping[Node, Sequence[Array]]
    ) -> Places:
        own = self.weights
        products = {
            n: [(visit.weights + int64(o)) * int64(own.ratio(n)) for o in offsets]
            for n, offsets in own.products.items()
        }
        scales = {n: [visit.weights + int64(o) for o in offsets] for n, offsets in own.scales.items()}
        sums = {n: [visit.weights + int64(o) for o in offsets] for n, offsets in own.sums.items()}
        found = (lambda n: read.get(n) or self._weights(n, visit), lambda n: write[n])
        places = Places(dict(ctx.buffers), *found, products, batch=ctx.batch, threads=ctx.threads)
        places = replace(places, scales=scales, tails=own.tails)
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
        step = self._begin(ctx, visit, s)
        step.read = self._rows_read(ctx, visit, step.t) | dict(zip(self.stepped, step.old, strict=True))
        step.write = self._written(ctx, visit, step.t)
        for node, array in zip(self.stepped.values(), step.new, strict=True):
            step.write.setdefault(node, []).append(array)
        return [*step.sets, *self._work(ctx, visit, step)]

    def _begin(self, ctx: Context, visit: Visit, s: Expr) -> Step:
        """The step's place in time, and its states: two copies in turn."""
        step = Step(visit, s)
        parity, set_parity = bind("parity", tirx.bitwise_and(visit.done + s, int64(1)))
        step.odd = parity
        step.sets.append(set_parity)
        for node in self.stepped:
            number = self.graph.states.index(node)
            pair = (self.state(number, p, visit.states, ctx.batch) for p in (parity, int64(1) - parity))
            step.bind_state(node.name, *pair)
        return step

    def _written(self, ctx: Context, visit: Visit, t: Expr) -> dict[Node, list[Array]]:
        """Where a step's values go that are no results."""
        rows = self.scratch.items()
        base = visit.scratch
        return {n: [self._array("workspace", n, base + ctx.batch * int64(at), stride)] for n, (at, stride) in rows}

    def _work(self, ctx: Context, visit: Visit, step: Step) -> list[Block]:
        """What a step does: states begin again, groups, the output; rows that have ended keep their state and emit
        zeros."""
        initial, t = self.initial, step.t
        first = [(array, initial.get(n.name, 0.0)) for array, n in zip(step.old, self.stepped, strict=True)]
        groups = self._groups(ctx, visit, step)
        out = (step.read | {n: arrays[0] for n, arrays in step.write.items()})[self.graph.output]
        zero = tirx.const(0.0, self.graph.dtype)

        def emit(b: Expr) -> Stmt:
            source = ctx.buffers[out.buffer]
            return loop("j", out.shape[-1], lambda j: visit.emit(t, b, j, load(source, out.address(b, (j,)))))

        def end(b: Expr) -> list[Stmt]:
            keep = [keep_row(ctx.buffers, old, new, b) for old, new in zip(step.old, step.new, strict=True)]
            blank = [fill_row(ctx.buffers, array, zero, b) for array in self._blanked(ctx, visit, step)]
            return [*keep, *blank, loop("j", self.graph.output.shape[0], lambda j: visit.emit(t, b, j, zero))]

        # Backwards, a flag at t + 1 separates t from what was just processed.
        restart = self._restart(ctx, step.time + visit.direction, first)
        output = None if step.has_left_output else loop("b", ctx.batch, emit)
        return [restart, *groups, output, ended(ctx, step.time, end)]

    def _blanked(self, ctx: Context, visit: Visit, step: Step) -> list[Array]:
        """What becomes 0 in rows that have ended."""
        return []

    def _groups(self, ctx: Context, visit: Visit, step: Step) -> list[Stmt]:
        """The step's groups. What they compute is read back from its first place; a result that is a leaf is read as
        that leaf."""
        own = [g for g in self.graph.groups if g.region == "step"]
        stored = {n for g in own for n in g.stored if not n.leaf} - {*step.read, *self.packed.names}
        same = {g.nodes: array for g in own if (array := self._in_other_shape(g, step.write)) is not None}
        step.write |= {node: [array] for (node,), array in same.items()}
        own = [g for g in own if g.nodes not in same]
        output = self.graph.output
        self._leave_output(ctx, visit, step, own, output.args[0] if (output,) in same else output)
        step.read |= {n: arrays[0] for n, arrays in step.write.items() if n in stored}
        places = replace(self._places(ctx, visit, step.read, step.write), odd=step.odd)
        read = {source for g in own for n in g.nodes for source in self._sources(n)}
        places = replace(places, given=tuple(step.read[n] for n in visit.given if n in read))
        return self.emitter.step(own, ctx.batch, [self._own(places, g) for g in own])

    def _sources(self, node: Node) -> Iterator[Node]:
        """What a node reads, but for views."""
        for arg in node.args:
            if arg.op in VIEWS:
                yield from self._sources(arg)
            else:
                yield arg

    def _leave_output(self, ctx: Context, visit: Visit, step: Step, groups: Sequence[Group], node: Node) -> None:
        """A pointwise group stores the output, which is this node, where the caller has it as well, if it is whole
        vectors: row after row, as a copy would."""
        y = visit.y
        made = any(g.kind == "pointwise" and node in g.nodes and node in g.stored for g in groups)
        if y is None or not made or node.leaf or not node.shape or node.shape[-1] % self.lanes:
            return
        base = y.base + step.t * ctx.batch * int64(y.row_stride)
        step.write[node].append(replace(y, base=base, strides=strides_of(node.shape, 1)[0], shape=node.shape))
        step.has_left_output = True

    def _in_other_shape(self, group: Group, written: Mapping[Node, Sequence[Array]]) -> Array | None:
        """Where a group's one value is already, if it is another shape of what the step leaves, without padding."""
        node, *more = group.nodes or group.stored
        if more or node.op != "reshape" or node not in self.scratch or node.args[0] not in written:
            return None
        array, strides = written[node.args[0]][0], strides_of(node.shape, self.lanes)[0]
        flat = array.strides == strides_of(array.shape, 1)[0] and strides == strides_of(node.shape, 1)[0]
        return replace(array, strides=strides, shape=node.shape) if flat else None

    def _own(self, places: Places, group: Group) -> Places:
        """A result that is a leaf, or that another region computes, is copied from where it is."""
        return self._copied(places, (n for n in group.stored if n.leaf or n in self.before or n in self.packed.names))

    def _restart(self, ctx: Context, at: Expr, states: Sequence[tuple[Array, float]]) -> Stmt:
        """Rows whose reset flag is set at step `at` get those values; finished rows stay as they are: flags in the
        padding mean nothing."""

        def row(b: Expr) -> Stmt:
            fill = [fill_row(ctx.buffers, a, tirx.const(value, self.graph.dtype), b) for a, value in states]
            return self._if_flagged(ctx, at, b, fill)

        body = when(at < ctx.steps, loop("b", ctx.batch, row))
        return when(tirx.NE(ctx.has_reset, int64(0)), body)

    def _row_restart(self, ctx: Context, at: Expr, b: Expr, body: Block) -> Stmt:
        """The same of one row."""
        return when(tirx.NE(ctx.has_reset, int64(0)), when(at < ctx.steps, self._if_flagged(ctx, at, b, body)))

    @staticmethod
    def _if_flagged(ctx: Context, at: Expr, b: Expr, body: Block) -> Stmt:
        whole = tirx.EQ(ctx.has_lengths, int64(0))  # then there are no lengths to read
        unfinished = tirx.if_then_else(whole, tirx.const(True, "bool"), at < load(ctx.lengths, b))
        return when(unfinished, when(tirx.NE(load(ctx.reset, at * ctx.batch + b), tirx.const(0, "uint8")), body))


def at_row(places: Places, row: Expr) -> Places:
    """The same places, in which row 0 is this one."""

    def moved(array: Array) -> Array:
        return replace(array, base=array.base + row * int64(array.row_stride)) if array.row_stride else array

    def read(node: Node) -> Array | None:
        found = places.read(node)
        return None if found is None else moved(found)

    return replace(places, read=read, write=lambda node: [moved(a) for a in places.write(node)])


def turned(axes: tuple[int, ...]) -> tuple[int, ...]:
    """With the last two axes the other way round."""
    return (*axes[:-2], *axes[:-3:-1])


def ended(ctx: Context, time: Expr, body: Callable[[Expr], Block]) -> Stmt:
    """body(b) for each row b that has ended before step `time`."""
    return when(tirx.NE(ctx.has_lengths, int64(0)), _rows_ended(ctx, time, body))


def ended_in_tile(ctx: Context, start: Expr, count: Expr, body: Callable[[Expr, Expr], Block]) -> Stmt:
    """body(t, b) for each row b of each of `count` steps start + t that is after the row's end."""
    rows = loop("t", count, lambda t: _rows_ended(ctx, start + t, partial(body, t)))
    return when(tirx.NE(ctx.has_lengths, int64(0)), rows)


def _rows_ended(ctx: Context, time: Expr, body: Callable[[Expr], Block]) -> Stmt:
    return loop("b", ctx.batch, lambda b: when(tirx.GE(time, load(ctx.lengths, b)), body(b)))


def fill_row(buffers: Mapping[str, Buffer], array: Array, value: Expr, b: Expr) -> Stmt:
    """One batch row of an array, padding included, becomes `value`."""
    at = array.base + b * int64(array.row_stride)
    return loop("j", array.row_stride, lambda j: store(buffers[array.buffer], at + j, value))


def keep_row(buffers: Mapping[str, Buffer], old: Array, new: Array, b: Expr) -> Stmt:
    """One batch row of the new state becomes that of the old one."""
    source, place = old.base + b * int64(old.row_stride), new.base + b * int64(new.row_stride)
    own, into = buffers[old.buffer], buffers[new.buffer]
    return loop("j", new.row_stride, lambda j: store(into, place + j, load(own, source + j)))
