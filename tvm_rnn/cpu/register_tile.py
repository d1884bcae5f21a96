"""A group's register tile: arrays of fixed small size, as a statement to embed.

In: a group, where its operands and results live (`workspace.Array`), and a template's configuration. Out: a TVM
statement that computes `rows` batch rows by `panels` vectors of the group, on flat buffers.

A tile has a fixed shape whatever T, B and the thread count are: the loops over time, batch rows and units around it are
`lower_network.py`'s, so a template cannot break the order of time. Its arrays are sums in registers, "product_i" or
"partial", then "value_i" (intermediate vectors), and "out_i" (what is stored).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import tvm_ffi
from tvm import tirx

from tvm_rnn.graph.graph import Group, Node
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.graph.tensor_expressions import Index, element
from tvm_rnn.passes.fuse_pointwise import FUNCTION, is_truth
from tvm_rnn.schedule.schedule_template import Config, Template, Unit
from tvm_rnn.tir.expr import Buffer, Expr, Stmt, TirExpr
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import load, sequence, variable

from .dropout_masks import Draw
from .head_loops import Within
from .register_tile_stages import Place, Stage, Sum, axes, in_registers, scheduled
from .walk_through_time import Walk
from .weight_packing import Tail
from .weight_storage import Storage
from .workspace import Array

CACHE_LINE = 64  # bytes
READ, SECOND_LEVEL, EVERY_LEVEL, DATA = (tirx.IntImm("int32", value) for value in (0, 2, 3, 1))


def prefetch(buffer: Buffer, place: Expr, level: Expr) -> Stmt:
    """Asks for the cache line of an element, into caches from `level` on."""
    address = tirx.address_of(tirx.BufferLoad(buffer, [place]))
    return tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", address, READ, level, DATA))


def with_prefetches(product: Stmt, weights: Buffer, level: Expr, wanted: Callable[[tirx.Var], Sequence[Expr]]) -> Stmt:
    """The product, with prefetches of `weights` into caches from `level` on. wanted(k): the elements to prefetch in the
    loop over k, one in each cache line; none in a loop that is not one over K.

    Rewrite: for k: acc += a[k] * w[k]  -->  for k: prefetch w[k + ahead]; acc += a[k] * w[k]
    """

    def prefetch_first(loop: tirx.For) -> tirx.For:
        requests = [prefetch(weights, place, level) for place in wanted(loop.loop_var)]
        if not requests:
            return loop
        body = tirx.SeqStmt([*requests, loop.body])
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations={})

    return tvm_ffi.structural_map(product, (tirx.For, prefetch_first))


@dataclass(frozen=True)
class Wanted:
    """What a run's tiles ask for before they multiply: rows of the caller's arrays that its pointwise groups read
    behind them. number: of this group, among `groups` that ask."""

    arrays: Sequence[Array]
    number: int
    groups: int


@dataclass(frozen=True)
class Places:
    """Where the nodes that a tile reads and writes live, and the buffers they live in."""

    buffers: Mapping[str, Buffer]  # "workspace", "packed" -> tirx.Buffer
    read: Callable[[Node], Array | None]
    write: Callable[[Node], Sequence[Array]]
    products: Mapping[Node, Sequence[Expr]]  # a gemm -> address of each packed parameter
    copied: Mapping[Node, Array] = field(default_factory=dict)  # members that are loaded from there, not computed
    storage: Storage | None = None  # of products' parameters, which are in the buffer "stored" then
    scales: Mapping[Node, Sequence[Expr]] = field(default_factory=dict)  # a gemm -> address of each parameter's
    sums: Mapping[Node, Sequence[Expr]] = field(default_factory=dict)  # the same of integers: where sums begin
    levels: Mapping[Node, Sequence[Array]] = field(default_factory=dict)  # a gemm -> its operands in integers
    tails: Mapping[Node, Tail] = field(default_factory=dict)  # a gemm -> what its last panel has
    batch: Expr | None = None  # rows of a step
    threads: Expr | None = None  # that may share the work
    alone: bool = False  # one of them does all of the group
    odd: Expr | None = None  # 0 and 1 in turns, from step to step; None outside of steps
    draw: Draw | None = None  # what masks are made of
    walk: Walk | None = None  # through a tile's steps, of recurrences
    within: Within | None = None  # the loop over heads around the group
    given: Sequence[Array] = ()  # rows of the caller's arrays that a step's groups read
    wanted: Wanted | None = None  # of these, what this group's tiles ask for
    chains: int = 0  # of additions that a product is to have at least; 0: as many as accumulators


@dataclass(frozen=True)
class Ahead:
    """What a tile asks for while it multiplies: its part of the panels that are multiplied after its own, from `panel`
    on. number: of the tile, among `tiles` of rows."""

    panel: Expr
    number: Expr
    tiles: int


@dataclass
class Tile:
    """One tile under construction. The free variables are the lower loops' own."""

    group: Group
    places: Places
    unit: Unit
    lanes: int
    rows: int = 1
    panels: int = 1
    row0: Expr = 0  # first batch row
    panel0: Expr = 0  # first vector of units
    outer: Index = ()  # leading indices of a pointwise group of several axes
    slot: tuple[Expr, Expr, int] | None = None  # in an epilogue: row and panel inside the product's tile, its panels
    ahead: Ahead | None = None  # which weights are asked for meanwhile
    tail: Tail | None = None  # of the last panel, where this is one whose gates lie side by side
    part: tuple[Expr, int] = (0, 1)  # of a product's terms: the number-th of so many, added to what is in "gates"
    first: Expr = 0  # the tile's first row there
    stages: dict[Node, Stage] = field(default_factory=dict)
    outputs: list[Stage] = field(default_factory=list)
    sums: list[Stage] = field(default_factory=list)
    halves: list[Stage] = field(default_factory=list)  # of the lanes of a sum

    def vector_at(self, address: Expr) -> Expr:
        """The addresses of a vector of units."""
        return tirx.Ramp(address, int64(1), self.lanes)

    # --- addresses -----------------------------------------------------------------------------------------------

    def load(self, node: Node, row: Expr, index: Index) -> Expr | None:
        array = self.places.read(node)
        return None if array is None else self._at(array, row, index)

    def _at(self, array: Array, row: Expr, index: Index) -> Expr:
        return self.at(array.buffer, array.address(self.row0 + row, index))

    def at(self, buffer: str, address: Expr) -> TirExpr:
        """An element of a buffer."""
        return load(self.places.buffers[buffer], address)

    def unit_of(self, panel: Expr, lane: Expr) -> Expr:
        return (self.panel0 + panel) * int64(self.lanes) + lane

    # --- expressions ---------------------------------------------------------------------------------------------

    def products(self) -> None:
        """Blocks product_i: acc[row, panel, gate, lane], one for each (parameter, operand) of the group's gemm, or more
        where its terms are split into several sums."""
        root, depths = self.group.root, list[int]()
        assert root is not None
        for number, operand in enumerate(root.args[1::2]):
            ways = self._ways(operand.shape[0])
            depths += [operand.shape[0] // ways] * ways
            for way in range(ways):
                name, base = f"product_{len(self.sums)}", self.places.products[root][number]
                self.sums.append(self._product(name, operand, base, (way, ways)))
        self.unit = replace(self.unit, depths=tuple(depths))

    def _ways(self, depth: int) -> int:
        """Into how many sums a product is split: a power of two that divides its depth."""
        ways = 1
        able = depth // self.part[1]
        while self.rows * self.panels * self.vectors * ways * 2 <= self.places.chains and not able % (2 * ways):
            ways *= 2
        return ways

    def _product(self, name: str, operand: Node, base: Expr, part: tuple[int, int]) -> Stage:
        """part: number i of n: of terms i, i + n, i + 2n, ..."""
        depth, (way, ways), (number, parts) = operand.shape[0], part, self.part
        turn, terms = variable(f"k_{name}"), depth // ways // parts
        at = turn if parts == 1 else turn + number * int64(terms)
        k = at if ways == 1 else at * ways + way

        def value(r: Expr, p: Expr, g: Expr, v: Expr) -> Expr:
            x = element(operand, (k,), lambda n, i: self.load(n, r, i), self.unit.dtype)
            return x * self._weight(self.weight_address(base, depth, p, k) + (g * self.lanes + v))

        shape = (self.rows, self.panels, self.vectors, self.lanes)
        return in_registers(name, shape, self.unit.dtype, value, added({turn: terms}, self.unit.dtype))

    def _weight(self, address: Expr) -> Expr:
        storage = self.places.storage
        return self.at("packed", address) if storage is None else storage.decode(self.at("stored", address))

    def weight_address(self, base: Expr, depth: int, p: Expr, k: Expr) -> Expr:
        """The address of the first gate's first lane."""
        first = base + (self.panel0 + p) * int64(depth * self.gates * self.lanes)
        return first + k * int64(self.vectors * self.lanes)

    @property
    def gates(self) -> int:
        root = self.group.root
        return root.shape[0] if root is not None and len(root.shape) == 2 else 1

    @property
    def vectors(self) -> int:
        """That a product's panel has."""
        return self.gates if self.tail is None else self.tail.vectors

    def accumulated(self, r: Expr, p: Expr, g: Expr, v: Expr) -> Expr:
        if self.slot is not None:
            row, panel, across = self.slot
            pair = (row + r) * int64(across) + panel + p
            if self.tail is None:
                return self.at("gates", (pair * int64(self.gates) + g) * int64(self.lanes) + v)
            units, first = self.tail.units, pair * int64(self.tail.vectors * self.lanes)
            found = self.at("gates", first + g * int64(units) + v)
            return tirx.Select(v < units, found, tirx.const(0.0, self.unit.dtype))
        total = self._sum(0, r, p, g, v)
        for number in range(1, len(self.sums)):
            total = total + self._sum(number, r, p, g, v)
        return total

    def _sum(self, number: int, r: Expr, p: Expr, g: Expr, v: Expr) -> Expr:
        """Of one parameter's product, times the scale of its row where it has one."""
        own, root = self.sums[number](r, p, g, v), self.group.root
        if root is None or root not in self.places.scales:
            return own
        place = ((self.panel0 + p) * int64(self.gates) + g) * int64(self.lanes) + v
        return own * self.at("packed", self.places.scales[root][number] + place)

    def value(self, node: Node, r: Expr, p: Expr, v: Expr, top: bool = False) -> Expr:
        """The group's node at the tile's own element."""
        own = self.index_of(p, v) if node.shape else ()

        def read(n: Node, index: Index) -> Expr | None:
            if n is node and top:
                source = self.places.copied.get(n)
                return None if source is None else self._at(source, self.row_of(r, v), index)
            if n in self.stages:
                return self.stages[n](r, p, v)
            if n is self.group.root:
                return self.accumulated(r, p, index[0] if len(index) == 2 else 0, v)
            return self.load(n, self.row_of(r, v), index)

        return element(node, own, read, self.unit.dtype)

    def row_of(self, r: Expr, v: Expr) -> Expr:
        """The batch row of a place, from the tile's first one on."""
        return r

    def index_of(self, p: Expr, v: Expr) -> Index:
        """Of what is pointwise, at a place."""
        return (*self.outer, self.unit_of(p, v))

    def values(self) -> None:
        """Blocks value_i for what is used more than once, then out_i for what is stored."""
        members = set(self.group.nodes)
        uses = dict.fromkeys(members, 0)
        for node in members:
            for arg in _operands(node):
                if arg in uses:
                    uses[arg] += 1
        for node in self.group.nodes:
            if node is self.group.root:
                continue
            stored = node in self.group.stored
            # Functions get a block each as well: TVM's lowering of nested intrinsics is exponential in their depth.
            if not node.boolean and (uses[node] > 1 or stored or TABLE[node.op].cost >= FUNCTION):
                self.stages[node] = self._vectors(f"value_{len(self.stages)}", self._top(node))
        for node in self.group.stored:
            for array in self.places.write(node):
                self._store(node, array)

    def _vectors(self, name: str, value: Callable[[Expr, Expr, Expr], Expr]) -> Stage:
        return in_registers(name, (self.rows, self.panels, self.lanes), self.unit.dtype, value)

    def _top(self, node: Node) -> Callable[[Expr, Expr, Expr], Expr]:
        return lambda r, p, v: self.value(node, r, p, v, top=True)

    def _store(self, node: Node, array: Array) -> None:
        shape = (self.rows, self.panels, self.lanes)
        if node is not self.group.root:
            if not node.shape:  # a scalar fills its vector
                array = replace(array, strides=(1,))
            self.store(array, shape, self.stages[node], lambda r, p, v: self.index_of(p, v))
            return
        for gate in range(self.gates):
            lead = (gate,) if len(node.shape) == 2 else ()
            value = partial(self._gate, gate)
            self.store(array, shape, value, lambda r, p, v, lead=lead: (*lead, self.unit_of(p, v)))

    def _gate(self, gate: int, r: Expr, p: Expr, v: Expr) -> Expr:
        return self.accumulated(r, p, gate, v)

    def store(
        self, array: Array, shape: tuple[int, ...], value: Callable[..., Expr], index: Callable[..., Index]
    ) -> None:
        """What is stored, at each place: value(*place) at index(*place) of an array, whose row is the place's first
        entry behind the tile's own."""
        place = axes(shape)

        def address(at: Place) -> Expr:
            return array.address(self.row0 + self.row_of(at[0], at[-1]), index(*at))

        name, into = f"out_{len(self.outputs)}", self.places.buffers[array.buffer]
        self.outputs.append(Stage(name, shape, place, value(*place), into, address))

    # --- embedding -----------------------------------------------------------------------------------------------

    def statement(self, template: Template, config: Config) -> Stmt:
        """The tile: its arrays one after the other, the sums as the template schedules them."""
        after, plan = [*self.halves, *self.stages.values()], template.schedule
        made = [tirx.AllocBuffer(own.buffer) for own in (*self.sums, *after)]
        if self.sums and plan is not None:
            sums = scheduled(self.sums, [*self.places.buffers.values()], lambda sch: plan(sch, self.unit, config))
        else:
            sums = sequence([own.statement() for own in self.sums])
        return sequence(made, sums, [own.statement() for own in (*after, *self.outputs)])


def added(axes: Mapping[tirx.Var, Expr], dtype: str) -> Sum:
    """A plain sum over these axes."""
    return Sum(axes, tirx.const(0.0, dtype), lambda total, value: total + value)


def _operands(node: Node) -> list[Node]:
    """What a value is computed from, with truth values, which are never stages, replaced by their own operands."""
    return [b for a in node.args for b in (_operands(a) if is_truth(a) else [a])]


def product(tile: Tile, template: Template, config: Config) -> Stmt:
    """The products of a gemm group, summed in registers, then left in "gates" [row, panel, gate, lane]."""
    tile.products()
    shape = (tile.rows, tile.panels, tile.vectors, tile.lanes)
    strides = (tile.panels * tile.vectors * tile.lanes, tile.vectors * tile.lanes, tile.lanes, 1)
    sums = Array("gates", tile.first * int64(strides[0]), 0, strides, shape)

    def total(*index: Expr) -> Expr:
        own = tile.accumulated(*index)
        return own if tile.part[1] == 1 else own + tile.at("gates", sums.address(int64(0), index))

    tile.store(sums, shape, total, lambda *index: index)
    done, ahead = tile.statement(template, config), config.get("ahead", 0)
    packed = tile.places.buffers.get("stored", tile.places.buffers["packed"])
    step = max(1, CACHE_LINE * 8 // int(tvm_ffi.dtype(packed.dtype).bits))
    if ahead:
        done = with_prefetches(done, packed, EVERY_LEVEL, lambda k: _wanted(tile, k, ahead, step))
    if tile.ahead is None:
        return done
    return with_prefetches(done, packed, SECOND_LEVEL, partial(_coming, tile, tile.ahead, step))


def _coming(tile: Tile, ahead: Ahead, step: int, k: tirx.Var) -> list[Expr]:
    """The tile's part of the panels to come, every `step` elements, shared out over the turns of the loop."""
    if (found := _matrix(tile, k)) is None:
        return []
    base, depth = found
    row = tile.gates * tile.lanes
    lines = -(-tile.panels * row // step)
    each = -(-lines // ahead.tiles)
    number, parts = tile.part
    turn = tirx.min(ahead.number, int64(-(-lines // each) - 1)) * int64(depth) + k
    turn = turn if parts == 1 else turn + number * int64(depth // parts)
    first = base + ahead.panel * int64(depth * row) + turn * int64(each * step)
    return [first + int64(i * step) for i in range(each)]


def _matrix(tile: Tile, k: tirx.Var) -> tuple[Expr, int] | None:
    """Address and depth of the parameter whose product has the loop over k; None: of no product."""
    root = tile.group.root
    assert root is not None
    numbers = {f"k_product_{i}": i for i in range(len(root.args) // 2)}
    if k.name not in numbers:
        return None
    number = numbers[k.name]
    return tile.places.products[root][number], root.args[2 * number + 1].shape[0]


def _wanted(tile: Tile, k: tirx.Var, ahead: int, step: int) -> list[Expr]:
    """The weights of the k that comes `ahead` vectors of all gates later, every `step` elements, where k is the loop of
    a product. What lies past the end is the next panel's, or nobody's, which does no harm."""
    if (own := _matrix(tile, k)) is None:
        return []
    found = []
    for p in range(tile.panels):
        first = tile.weight_address(*own, p, k) + int64(ahead * tile.vectors * tile.lanes)
        found += [first + int64(at) for at in range(0, tile.vectors * tile.lanes, step)]
    return found


def pointwise(tile: Tile, template: Template, config: Config) -> Stmt:
    """Pointwise work: one row and one vector of a group, or a gemm group's on a part of what `product` left."""
    tile.values()
    return tile.statement(template, config)
