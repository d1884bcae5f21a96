"""The phases of a step of matrix states: products, sums and values of whole matrices, in the order they are computed.

In: the layout of a layer, or of one head of it, forward or backward. Out: `StepGraph`, or `NotOnChip`. Sums come as
soon as they can: what they read needs registers no longer. Sums over a whole matrix add up columns first, as lanes of
one warp have them all.

Rewrite: sum over columns of (sum over rows of m)  -->  sum over rows of (sum over columns of m)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.graph.graph import Graph, Node, make, rewrite, stepped, with_args
from tvm_rnn.graph.ops import TABLE, Shape
from tvm_rnn.passes.fuse_pointwise import FUNCTION

from .element_index import COLUMN, ROW, NotOnChip
from .matrix_axes import MatrixAxes, dense_of, in_step, is_product, matrix_axes


@dataclass(frozen=True, eq=False)
class StepGraph:
    """phases: what is computed for all of a lane's elements before the next. output, kept: what the layer emits, and
    what is kept for later, as they are before views flatten them."""

    axes: MatrixAxes
    phases: tuple[Node, ...]
    reads: Mapping[Node, frozenset[Node]]  # of a phase: the phases, states and other leaves that it is made of
    output: Node
    kept: tuple[Node, ...]
    known: frozenset[Node]  # what is there before the step, beside inputs

    @property
    def matrices_at_once(self) -> int:
        """How many whole matrices a lane has elements of at the same time, at most: states, phases, those of a tape."""
        ends = (*self.axes.graph.results, *self.kept)
        last = {node: len(self.phases) for end in ends for node in self._behind(end)}
        for at in reversed(range(len(self.phases))):
            for node in self.reads[self.phases[at]]:
                last.setdefault(node, at)
        born = {node: self.phases.index(node) if node in self.phases else -1 for node in last}
        whole = [node for node in last if self._is_whole(node)]
        counts = [sum(born[n] <= at <= last[n] for n in whole) for at in range(len(self.phases) + 1)]
        return max(counts)

    def _behind(self, end: Node) -> Collection[Node]:
        return [end] if end in self.phases else behind(end, {*self.phases, *self.known})

    def _is_whole(self, node: Node) -> bool:
        return {ROW, COLUMN} <= {*self.axes.roles.get(node, ())}


def step_graph(layout: Layout, shape: Shape) -> StepGraph:
    """The step of a layer, or of one head. shape: of the matrices. Raises NotOnChip."""
    graph = stepped(layout.graph)
    kept = tuple(dense_of(own.node) for own in layout.taped)
    output = graph.output if layout.emits else (*graph.results, *kept)[0]
    graph = replace(graph, output=output, emitted=kept, weight_gradients=())
    stored = {n for group in layout.graph.groups if group.region == "step" for n in group.stored}
    known = frozenset(layout.hoisted_nodes)
    axes = _either_way(graph, shape, known)
    turned = _columns_first(graph, axes)
    if turned:
        graph, stored = rewrite(graph, turned), {turned.get(n, n) for n in stored}
        axes = _either_way(graph, shape, known)
    own = in_step(graph, known)
    phases = [n for n in own if _is_phase(n, axes) or (n in stored and n in axes.roles and _worth(n, axes))]
    there = {*phases, *known}
    phases = [n for n in phases if _is_phase(n, axes) or not _late(n, phases, there, graph)]
    reads = {n: frozenset(behind(n, {*phases, *known})) for n in phases}
    return StepGraph(axes, _ordered(phases, reads, axes), reads, dense_of(graph.output), graph.emitted, known)


def _is_phase(node: Node, axes: MatrixAxes) -> bool:
    return node in axes.summed or (node in axes.roles and node.op == "gemm")


def _either_way(graph: Graph, shape: Shape, known: Collection[Node]) -> MatrixAxes:
    try:
        return matrix_axes(graph, shape, turned=False, known=known)
    except NotOnChip as reason:
        try:
            return matrix_axes(graph, shape, turned=True, known=known)
        except NotOnChip:
            raise reason from None


def _columns_first(graph: Graph, axes: MatrixAxes) -> dict[Node, Node]:
    """A full map from old nodes to new ones, empty where nothing changes."""
    users, new = graph.users(), dict[Node, Node]()
    for node in graph.nodes():
        new[node] = with_args(node, new)
        inner = node.args[0] if node.op == "sum" else None
        if inner is None or inner.op != "sum" or len(users[inner]) > 1 or inner in graph.roots:
            continue
        both = node.attrs["keepdims"] and inner.attrs["keepdims"]
        if both and (axes.summed.get(inner), axes.summed.get(node)) == ({"k": ROW}, {"k": COLUMN}):
            first = make("sum", new[inner.args[0]], source=inner.source, **node.attrs)
            new[node] = make("sum", first, source=node.source, **inner.attrs)
    return new if any(old is not other for old, other in new.items()) else {}


def _worth(node: Node, axes: MatrixAxes) -> bool:
    """Whether a value is kept in registers: matrices are; views are not, nor what lanes do not have as it is."""
    sizes = zip(axes.roles[node], node.shape, strict=True)
    alone = any(role is None and size > 1 for role, size in sizes)
    return node.pointwise and not node.boolean and not alone and {ROW, COLUMN} <= {*axes.roles[node]}


def _late(node: Node, phases: Sequence[Node], there: Collection[Node], graph: Graph) -> bool:
    """Whether a value is arithmetic that its one reader does as well. there: phases, and what is known before."""
    if node in graph.roots:
        return False
    own, stack = set[Node](), [node]
    while stack:
        found = stack.pop()
        if found not in own and not found.leaf and (found is node or found not in there):
            own.add(found)
            stack += found.args
    if any(found.pointwise and TABLE[found.op].cost >= FUNCTION for found in own):
        return False
    ends = dict.fromkeys((*phases, *graph.roots))
    return sum(node in behind(end, there) for end in ends if end is not node) < 2


def behind(node: Node, there: Collection[Node]) -> list[Node]:
    """What a value is made of: leaves, and what is there."""
    found, stack, seen = dict[Node, None](), list(node.args), set[Node]()
    while stack:
        own = stack.pop()
        if own in there or own.leaf:
            found[own] = None
        elif own not in seen:
            seen.add(own)
            stack += own.args
    return [*found]


def _ordered(phases: Sequence[Node], reads: Mapping[Node, frozenset[Node]], axes: MatrixAxes) -> tuple[Node, ...]:
    left, found = list(phases), list[Node]()
    while left:
        ready = [n for n in left if not any(a in left for a in reads[n])]
        sums = [n for n in ready if n in axes.summed and not is_product(n, axes.roles)]
        found.append((sums or ready)[0])
        left.remove(found[-1])
    return tuple(found)
