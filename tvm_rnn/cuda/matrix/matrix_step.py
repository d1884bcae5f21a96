"""What a kernel of matrix states has to know of a step: its phases, what they read, and who stores what it leaves.

In: the layout of a layer, or of one head of it. Out: `MatrixStep`, or `NotOnChip` with the reason. A dry run demands
every element that lanes will demand, and takes down the leaves behind them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tvm import tirx

from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.node_text import in_words
from tvm_rnn.graph.ops import Shape
from tvm_rnn.tir.expr import TirExpr

from .element_index import COLUMN, ROW, Along, ElementIndex, NotOnChip, flattened
from .lane_values import Index, LaneValues
from .matrix_axes import MatrixAxes, Roles, is_product
from .matrix_tile import MatrixTile
from .parameter_gradients import Accumulated, GradientPlan, accumulated
from .phases import StepGraph, step_graph


@dataclass(frozen=True)
class Streamed:
    """Elements first, first + factor, ... of a value of every step, one for each row or column; role None: one."""

    node: Node
    role: str | None
    factor: int
    first: int


@dataclass(frozen=True)
class Demands:
    """What a dry run has found. constant: elements of parameters; waited: sums over rows that lanes read again."""

    streamed: tuple[Streamed, ...]
    whole: tuple[tuple[Node, Index], ...]  # elements of matrices of every step
    constant: tuple[tuple[Node, Index], ...]
    waited: frozenset[Node]


@dataclass(frozen=True, eq=False)
class Left:
    """What a step leaves in memory, as it is before views flatten it. pointer: the kernel's. apart: elements of one
    head that lie side by side."""

    node: Node
    roles: Roles
    pointer: str
    place: Place
    apart: int


@dataclass(frozen=True, eq=False)
class MatrixStep:
    """graph: with the axes and phases of a step. accumulated: sums over all rows that are made beside the steps."""

    layout: Layout
    graph: StepGraph
    tile: MatrixTile
    accumulated: tuple[Accumulated, ...] = ()

    @property
    def axes(self) -> MatrixAxes:
        return self.graph.axes

    @property
    def phases(self) -> tuple[Node, ...]:
        return self.graph.phases

    @property
    def states(self) -> tuple[Node, ...]:
        return self.axes.graph.states

    @property
    def results(self) -> tuple[Node, ...]:
        return self.axes.graph.results

    @cached_property
    def products(self) -> list[Node]:
        return [n for n in self.phases if is_product(n, self.axes.roles)]

    @cached_property
    def row_sums(self) -> list[Node]:
        """Sums over rows, which several warps have."""
        return [n for n in self.phases if n not in self.products and ROW in self.axes.summed.get(n, {}).values()]

    @cached_property
    def column_sums(self) -> list[Node]:
        """Sums over columns alone, where several warps have them."""
        return [n for n in self.phases if n in self.axes.summed and self._meets(n)]

    def _meets(self, node: Node) -> bool:
        roles = self.axes.summed[node].values()
        return self.tile.across > 1 and COLUMN in roles and ROW not in roles

    @cached_property
    def dense(self) -> list[Node]:
        """Products of vectors with parameters."""
        return [n for n in self.phases if n.op == "gemm"]

    def weight(self, node: Node) -> Node:
        """The parameter of a product."""
        return next(a for a in node.args if a not in self.axes.roles)

    @cached_property
    def output(self) -> Left:
        """What the layer emits."""
        node, layout = self.graph.output, self.layout
        return Left(node, self.roles_of(node), "y", layout.output, layout.graph.output.shape[0])

    @cached_property
    def left(self) -> list[Left]:
        """The output, of a layer that has one, and what is kept for later."""
        return [self.output, *self.kept] if self.layout.emits else self.kept

    @cached_property
    def kept(self) -> list[Left]:
        pairs = zip(self.layout.taped, self.graph.kept, strict=True)
        gone = self.unstored
        return [
            Left(n, self.roles_of(n), f"kept_{own.number}", own.place, own.apart)
            for own, n in pairs
            if own.number not in gone
        ]

    @cached_property
    def unstored(self) -> frozenset[int]:
        """The numbers of kept values that nobody reads but sums that are made beside the steps."""
        made, sums = {own.node for own in self.accumulated}, self.layout.sums
        left = {arg for node in sums.nodes if node not in made for arg in node.args}
        gone = {node for node in sums.alone if made and node not in left}
        return frozenset(own.number for own in self.layout.taped if self.layout.of_all.kept[own.number] in gone)

    def roles_of(self, node: Node) -> Roles:
        """Also of what is made of no state."""
        own = self.axes.roles.get(node, (None,) * len(node.shape))
        pairs = zip(own, node.shape, strict=True)
        return tuple(role or (self.axes.by_size(size) if size > 1 else None) for role, size in pairs)

    @cached_property
    def by_warp(self) -> list[Left]:
        """What can be made of sums over rows and what is streamed, and is stored by the warp that loads."""
        return [own for own in self.left if self._stored_apart(own)]

    @cached_property
    def by_lanes(self) -> list[Left]:
        """What lanes with elements store."""
        return [own for own in self.left if own not in self.by_warp]

    def _stored_apart(self, own: Left) -> bool:
        if ROW in own.roles:
            return False
        run = self._storing()
        try:
            run.leave(own)
        except NotOnChip:
            return False
        return not run.whole

    def is_constant(self, node: Node) -> bool:
        return self.layout.weights.place(node) is not None

    def is_streamed(self, node: Node) -> bool:
        return node.op == "input" or node in self._hoisted

    @cached_property
    def _hoisted(self) -> frozenset[Node]:
        return frozenset(self.layout.hoisted_nodes)

    # --- the dry run -----------------------------------------------------------------------------------------------

    @cached_property
    def lanes(self) -> Demands:
        """What lanes with elements demand."""
        run = _DryRun(self, self.tile.lanes(0, tirx.Var("lane", "int32")))
        run.steps()
        for own in self.by_lanes:
            run.leave(own)
        for made in self.accumulated:
            for operand in (made.left, made.right):
                run.demand(operand, self.axes.roles[operand])
        return run.found

    @cached_property
    def stores(self) -> Demands:
        """What the warp demands that loads, for what it stores."""
        run = self._storing()
        for own in self.by_warp:
            run.leave(own)
        return run.found

    def _storing(self) -> _DryRun:
        return _DryRun(self, self.tile.spread_lanes(tirx.Var("lane", "int32")))

    @cached_property
    def streamed(self) -> list[Streamed]:
        return list(dict.fromkeys([*self.lanes.streamed, *self.stores.streamed]))

    @cached_property
    def read_nodes(self) -> list[Node]:
        """Pointers to what is of every step."""
        return list(dict.fromkeys([*(s.node for s in self.streamed), *(node for node, _ in self.lanes.whole)]))

    @cached_property
    def param_nodes(self) -> list[Node]:
        """Pointers to what is made of parameters."""
        constant = [node for node, _ in (*self.lanes.constant, *self.stores.constant)]
        return list(dict.fromkeys([*constant, *map(self.weight, self.products)]))


def streamed(node: Node, index: Index) -> Streamed | None:
    """The vector that an element is one of; None where it is one of a matrix."""
    at = flattened(node.shape, index)
    if isinstance(at, int):
        return Streamed(node, None, 0, at)
    if len(at.terms) != 1:
        return None
    ((along, factor),) = at.terms
    return Streamed(node, along.role, factor, at.first)


class _DryRun:
    """One kind of lanes: `values` with names for registers."""

    def __init__(self, step: MatrixStep, lanes: Mapping[str, tuple[Along, ...]]) -> None:
        self.step = step
        self.values = LaneValues(step.axes, lanes, self._leaf, self._name)
        self.streamed, self.whole = dict[Streamed, None](), dict[tuple[Node, Index], None]()
        self.constant, self.waited = dict[tuple[Node, Index], None](), set[Node]()

    @property
    def found(self) -> Demands:
        return Demands(tuple(self.streamed), tuple(self.whole), tuple(self.constant), frozenset(self.waited))

    def steps(self) -> None:
        step, values = self.step, self.values
        for state in step.states:
            for index in values.indices(state):
                values.held[state, index] = self._fresh()
        for node in step.phases:
            if node in step.products:
                self._matrix(node)
            elif node in step.dense:
                for vector in node.args[1::2]:
                    self.demand(vector, step.roles_of(vector))
            elif node in step.axes.summed:
                for index in values.indices(node):
                    list(values.summands(node, index))
                    if node not in step.row_sums:
                        values.held[node, index] = self._fresh()
            else:
                for index in values.indices(node):
                    values.at(node, index)
        for state, result in zip(step.states, step.results, strict=True):
            for index in values.indices(state):
                values.at(result, index)

    def leave(self, own: Left) -> None:
        self.demand(own.node, own.roles)

    def demand(self, node: Node, roles: Roles) -> None:
        for index in self.values.along(roles, node):
            self.values.at(node, index)

    def _matrix(self, node: Node) -> None:
        (matrix,) = (a for a in node.args if a in self.step.axes.roles)
        weight = self.step.weight(node)
        if not self.step.is_constant(weight):
            raise NotOnChip(f"{in_words(node)} multiplies with a matrix that is none of the parameters")
        for index in self.values.indices(matrix):
            self.values.at(matrix, index)
        for index in self.values.indices(node):
            self.values.held[node, index] = self._fresh()

    def _leaf(self, node: Node, index: Index) -> TirExpr | None:
        step = self.step
        if node in step.dense:
            return self._fresh()
        if node in step.row_sums:
            if any(isinstance(i, ElementIndex) and i.alone is None for i in index):
                raise NotOnChip(f"{in_words(node)} is read at other columns")
            self.waited.add(node)
        elif step.is_constant(node):
            self.constant[node, index] = None
        elif step.is_streamed(node):
            own = streamed(node, index)
            if own is None:
                self.whole[node, index] = None
            else:
                self.streamed[own] = None
        else:
            return None
        return self._fresh()

    def _name(self, value: TirExpr) -> TirExpr:
        return tirx.Var("value", str(value.ty))

    def _fresh(self) -> TirExpr:
        return tirx.Var("value", "float32")


def matrix_step(layout: Layout, shape: Shape, accumulate: bool = True, across: int = 1) -> MatrixStep:
    """The step of a layer, or of one head. shape: of the matrices; accumulate: sums over all rows, of those that the
    layout offers; across: warps that share columns. Raises NotOnChip."""
    graph = step_graph(layout, shape)
    tile = MatrixTile(graph.axes.rows, graph.axes.columns, graph.axes.units, across)
    sums = accumulated(layout, graph.kept, graph.axes.roles) if accumulate else ()
    step = MatrixStep(layout, graph, tile, sums if GradientPlan(tile, sums).possible else ())
    for demands in (step.lanes, step.stores):
        read = [*(own.node for own in demands.streamed), *(node for node, _ in demands.whole)]
        if random := [node for node in read if node.mask]:
            raise NotOnChip(f"{in_words(random[0])} is drawn for every step")
    return step
