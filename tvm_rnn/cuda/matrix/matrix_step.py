"""What a kernel of matrix states has to know of a step: its phases, what they read, and who stores what is emitted.

In: the layout of a layer, or of one head of it. Out: `MatrixStep`, or `NotOnChip` with the reason. A dry run demands
every element that lanes will demand, and takes down the leaves behind them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tvm import tirx

from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.graph.graph import Node, stepped
from tvm_rnn.graph.node_text import in_words
from tvm_rnn.tir.expr import TirExpr

from .element_index import COLUMN, ROW, Along, ElementIndex, NotOnChip, flattened
from .lane_values import Index, LaneValues
from .matrix_axes import MatrixAxes, Roles, is_product, matrix_axes, output_of
from .matrix_tile import MatrixTile


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
    whole: tuple[Node, ...]  # matrices of every step
    constant: tuple[tuple[Node, Index], ...]
    waited: frozenset[Node]


@dataclass(frozen=True, eq=False)
class MatrixStep:
    """phases: what is computed for all of a lane's elements before the next: products, sums, values of states."""

    layout: Layout
    axes: MatrixAxes
    tile: MatrixTile
    phases: tuple[Node, ...]

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

    def weight(self, node: Node) -> Node:
        """The parameter of a product."""
        return next(a for a in node.args if a not in self.axes.roles)

    @cached_property
    def output(self) -> Node:
        return output_of(self.axes.graph)

    @cached_property
    def output_roles(self) -> Roles:
        own = self.axes.roles.get(self.output, (None,) * len(self.output.shape))
        return tuple(
            role or (self.axes.by_size(size) if size > 1 else None)
            for role, size in zip(own, self.output.shape, strict=True)
        )

    def output_indices(self, values: LaneValues) -> Iterator[Index]:
        return values.along(self.output_roles, self.output)

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
        tile, lane = self.tile, tirx.Var("lane", "int32")
        rows = tuple(tile.row(0, lane, i) for i in range(tile.lane_rows))
        run = _DryRun(self, {ROW: rows, COLUMN: tuple(tile.column(lane, j) for j in range(tile.lane_columns))})
        run.steps()
        if not self.stored_apart:
            run.output()
        return run.found

    @cached_property
    def stores(self) -> Demands:
        """What the warp demands that stores the output; nothing where lanes with elements do."""
        run = self._storing()
        if self.stored_apart:
            run.output()
        return run.found

    @cached_property
    def stored_apart(self) -> bool:
        """Whether the output can be made of sums over rows and what is streamed, by the warp that loads."""
        try:
            self._storing().output()
        except NotOnChip:
            return False
        return ROW not in self.output_roles

    def _storing(self) -> _DryRun:
        lane = tirx.Var("lane", "int32")
        tile = self.tile
        spread = {r: tuple(tile.spread(r, lane, i) for i in range(tile.spread_count(r))) for r in (ROW, COLUMN)}
        return _DryRun(self, spread)

    @cached_property
    def streamed(self) -> list[Streamed]:
        return list(dict.fromkeys([*self.lanes.streamed, *self.stores.streamed]))

    @cached_property
    def read_nodes(self) -> list[Node]:
        """Pointers to what is of every step."""
        return list(dict.fromkeys([*(s.node for s in self.streamed), *self.lanes.whole, *self.stores.whole]))

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

    def __init__(self, step: MatrixStep, lanes: dict[str, tuple[Along, ...]]) -> None:
        self.step = step
        self.values = LaneValues(step.axes, lanes, self._leaf, self._name)
        self.streamed, self.whole = dict[Streamed, None](), dict[Node, None]()
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

    def output(self) -> None:
        for index in self.step.output_indices(self.values):
            self.values.at(self.step.output, index)

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
        if node in step.row_sums:
            if any(isinstance(i, ElementIndex) and i.alone is None for i in index):
                raise NotOnChip(f"{in_words(node)} is read at other columns")
            self.waited.add(node)
        elif step.is_constant(node):
            self.constant[node, index] = None
        elif step.is_streamed(node):
            own = streamed(node, index)
            if own is None:
                self.whole[node] = None
            else:
                self.streamed[own] = None
        else:
            return None
        return self._fresh()

    def _name(self, value: TirExpr) -> TirExpr:
        return tirx.Var("value", str(value.ty))

    def _fresh(self) -> TirExpr:
        return tirx.Var("value", "float32")


def matrix_step(layout: Layout) -> MatrixStep:
    """The step of a layer, or of one head. Raises NotOnChip."""
    graph = stepped(layout.graph)
    try:
        axes = matrix_axes(graph, turned=False)
    except NotOnChip as reason:
        try:
            axes = matrix_axes(graph, turned=True)
        except NotOnChip:
            raise reason from None
    stored = {n for group in layout.graph.groups if group.region == "step" for n in group.stored}
    phases = [n for n in graph.nodes() if n in axes.summed or (n in stored and n in axes.roles and worth(n, axes))]
    step = MatrixStep(layout, axes, MatrixTile(axes.rows, axes.columns), tuple(phases))
    for demands in (step.lanes, step.stores):
        if random := [s.node for s in demands.streamed if s.node.mask]:
            raise NotOnChip(f"{in_words(random[0])} is drawn for every step")
    return step


def worth(node: Node, axes: MatrixAxes) -> bool:
    """Whether a value is kept in registers: views are not, nor what lanes do not have as it is."""
    sizes = zip(axes.roles[node], node.shape, strict=True)
    return node.pointwise and not node.boolean and not any(role is None and size > 1 for role, size in sizes)
