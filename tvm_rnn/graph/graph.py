"""The graph: typed ops of one layer in regions, with groups of work once passes have formed them.

In: nodes from `language/trace.py`, rewritten by `passes/normalise.py` and `passes/`. Out: `oracle/reference.py` runs
it, `cpu/lower_network.py` compiles it, `compiler/stage_texts.py` prints it. Every stage of a graph is made of rows of
`ops.py`, so every stage can be run by the oracle.

Regions: `weights` (depends on parameters alone: once, when weights are loaded), `before` (once over all T), `step`
(inside the time loop), `after` (once over all T). Shapes leave out T and B, which are implicit and leading; sums
over rows, and what is made of them, have neither axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_rnn.dtypes import real_numbers

from .ops import TABLE, Shape

if TYPE_CHECKING:
    from tvm_rnn.schedule.schedule_template import Chosen, Unit

LEAVES = ("input", "state", "param", "const")

Attributes = dict[str, Any]  # of an operation, by name: axes, shapes, numbers, as its row of the op table takes them


@dataclass(frozen=True, eq=False)
class Node:
    """One value: an op of the table applied to nodes, or a leaf (input, state, param, const).

    Identity is object identity. `attrs` are the op's attributes; a const keeps its array in `value`.
    """

    op: str
    args: tuple[Node, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    shape: Shape = ()
    name: str = ""
    value: np.ndarray | None = None
    source: str = ""

    @property
    def leaf(self) -> bool:
        return self.op in LEAVES

    @property
    def pointwise(self) -> bool:
        return not self.leaf and TABLE[self.op].kind == "pointwise"

    @property
    def random(self) -> bool:
        """A mask, or numbers: it reads nothing, and is made again wherever it is needed."""
        return not self.leaf and TABLE[self.op].kind == "random"

    @property
    def mask(self) -> bool:
        return self.op == "mask"

    @property
    def boolean(self) -> bool:
        """A truth value: a comparison's result, also after it was reshaped, indexed or joined."""
        if self.leaf:
            return False
        return TABLE[self.op].boolean or (TABLE[self.op].kind == "move" and self.args[0].boolean)

    @property
    def scalar(self) -> float | None:
        """The value of a constant of one element, else None."""
        return float(self.value.reshape(())) if self.value is not None and self.value.size == 1 else None


def make(op: str, *args: Node, source: str = "", **attrs: object) -> Node:
    """A node of the table with its shape from the shape rule. Raises ValueError where the operands do not fit."""
    shape = TABLE[op].shape(*(a.shape for a in args), **attrs)
    return Node(op, args, attrs, tuple(int(s) for s in shape), source=source)


def constant(value: object, rank: int = 0) -> Node:
    """A number or an array known now (copied, float64), with leading axes of size 1 up to `rank` axes.

    Raises TypeError, ValueError or OverflowError for what is no real number.
    """
    array = np.array(real_numbers(value))
    array = array.reshape((1,) * (rank - array.ndim) + array.shape)
    return Node("const", shape=array.shape, value=array)


@dataclass(frozen=True)
class Group:
    """Nodes that run as one unit of work: at most one GEMM or reduction, and the pointwise nodes fused to it.

    kind: "gemm" (root: the GEMM), "reduce" (root: sum, max or einsum), "scan" (root: the first row of a recurrence over
    all time, whose states the group reads and writes), "pointwise" and "random" (no root).
    stored: the nodes that other groups, regions or the next step read. phase counts from 1 inside `step`.
    """

    kind: str
    region: str
    phase: int
    root: Node | None
    nodes: tuple[Node, ...]
    stored: tuple[Node, ...]


@dataclass(frozen=True)
class Tiling:
    """How layers and time are walked. rows_per_tile: T-steps x B rows whose hoisted values are kept at once."""

    order: str  # "time-major": time tiles outside, layers inside; "layer-major": each layer over all T first
    rows_per_tile: int | None  # None: all of T in one tile
    unit: Unit | None = field(default=None, compare=False, repr=False)  # what a template was asked about
    chosen: Chosen | None = field(default=None, compare=False, repr=False)  # and what it said


@dataclass(frozen=True)
class Graph:
    """One layer of a cell. `results` are the new states, in the order of `states`; `output` is what the layer emits.

    emitted: further values of each step that are kept for all T: what the backward graph reads again; in a backward
    graph (kind "backward") the gradients of the inputs after the first. weight_gradients: of a backward graph the
    gradients of `params`, in their order, without T and B. backward: the graph of the gradients, once
    `passes/differentiate.py` has made it. The first input and the output are vectors; output_shape: the axes that the
    cell gives its output, where it has several. pixels: of images whose pixels are rows of their own
    (`passes/rows_of_pixels.py`).
    """

    cell: str
    dtype: str
    inputs: tuple[Node, ...]
    states: tuple[Node, ...]
    params: tuple[Node, ...]
    results: tuple[Node, ...]
    output: Node
    output_name: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    region: Mapping[Node, str] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()
    tiling: Tiling | None = None
    applied: tuple[str, ...] = ()
    kind: str = "forward"
    emitted: tuple[Node, ...] = ()
    weight_gradients: tuple[Node, ...] = ()
    backward: Graph | None = None
    output_shape: Shape = ()
    pixels: Shape = ()

    @property
    def roots(self) -> tuple[Node, ...]:
        return (*self.results, self.output, *self.emitted, *self.weight_gradients)

    @cached_property
    def _nodes(self) -> tuple[Node, ...]:
        return (*topological(self.roots),)

    def nodes(self) -> list[Node]:
        """Every node that the roots need, arguments first."""
        return [*self._nodes]

    def users(self) -> dict[Node, list[Node]]:
        found: dict[Node, list[Node]] = {node: [] for node in self._nodes}
        for node in self._nodes:
            for arg in node.args:
                found[arg].append(node)
        return found

    def region_of(self, node: Node) -> str:
        return self.region.get(node, "before" if node.random else "step")


@dataclass(frozen=True)
class Layers:
    """The graphs of an RNN's layers at one stage: distinct graphs, and for each layer the index of its graph."""

    graphs: tuple[Graph, ...]
    of_layer: tuple[int, ...]


def topological(roots: Iterable[Node]) -> Iterator[Node]:
    """Arguments before users, each node once, in the order of a depth-first walk from the roots (iterative)."""
    seen: set[Node] = set()
    for root in roots:
        stack: list[tuple[Node, bool]] = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if ready:
                yield node
            elif node not in seen:
                seen.add(node)
                stack.append((node, True))
                stack.extend((arg, False) for arg in reversed(node.args))


def depends(nodes: Sequence[Node]) -> dict[Node, frozenset[str]]:
    """For each node (arguments first) which kinds of leaves it reads: a subset of {"input", "state"}, where a mask is
    as an input, and so is what a scan makes of a state, since it is known for all steps; {"sum_rows"} for a sum over T
    and B and for what is made of such sums."""
    found: dict[Node, frozenset[str]] = {}
    for node in nodes:
        if is_scan(node):
            found[node] = frozenset({"input"}).union(*(found[arg] for arg in node.args)) - {"state"}
            continue
        if not node.leaf and TABLE[node.op].kind == "sum_rows":
            found[node] = frozenset({"sum_rows"})
            continue
        own = frozenset({node.op}) if node.op in ("input", "state") else frozenset({"input"} if node.random else ())
        found[node] = own.union(*(found[arg] for arg in node.args))
    return found


def alike(a: Node, b: Node) -> bool:
    """Whether two nodes, of one graph or of two forms of it, are the same value."""
    if a is b:
        return True
    same = (a.op, a.name, a.shape, a.attrs) == (b.op, b.name, b.shape, b.attrs) and a.value is b.value
    return same and len(a.args) == len(b.args) and all(map(alike, a.args, b.args))


def is_move(node: Node) -> bool:
    return not node.leaf and TABLE[node.op].kind == "move"


def in_order(node: Node) -> Node:
    """What a node is a reshape of, or itself: the same elements, as they lie."""
    while node.op == "reshape":
        node = node.args[0]
    return node


def makes_levels(nodes: Iterable[Node]) -> bool:
    """Whether one of them rounds values to 8 bits. The last bit of what it reads may decide for a level."""
    return any(node.op in ("to_int8", "to_uint8") for node in nodes)


def is_scan(node: Node) -> bool:
    return not node.leaf and TABLE[node.op].kind == "scan"


def recurrence_states(node: Node) -> tuple[Node, ...]:
    """The states that a recurrence reads: the first arguments of `scan`, `scan_max`, `scan_matrix` or `delay`."""
    return node.args[: len(node.args) // 2] if node.op == "scan" else node.args[:1]


def has_steps(graph: Graph) -> bool:
    """Whether anything is left that must be done one step after the other."""
    if any(not is_scan(result) for result in graph.results):
        return True
    leaves = depends(nodes := graph.nodes())
    return any(leaves[n] and not n.leaf and "sum_rows" not in leaves[n] and graph.region_of(n) == "step" for n in nodes)


def stepped(graph: Graph) -> Graph:
    """The graph as a loop over time sees it: without the states that recurrences over all time make."""
    left = [pair for pair in zip(graph.states, graph.results, strict=True) if not is_scan(pair[1])]
    if len(left) == len(graph.states):
        return graph
    return replace(graph, states=tuple(s for s, _ in left), results=tuple(r for _, r in left))


def sums_rows(node: Node) -> bool:
    return not node.leaf and TABLE[node.op].kind == "sum_rows"


def downstream(nodes: Iterable[Node], begins: Callable[[Node], bool]) -> set[Node]:
    """Of nodes, arguments first: those of which `begins` says so, and all that is computed from them."""
    found: set[Node] = set()
    for node in nodes:
        if begins(node) or any(a in found for a in node.args):
            found.add(node)
    return found


def with_args(node: Node, new: Mapping[Node, Node]) -> Node:
    """The node with its arguments mapped through `new`; the node itself where they stay."""
    args = tuple(new[a] for a in node.args)
    return node if args == node.args else replace(node, args=args)


def rewrite(graph: Graph, new: Mapping[Node, Node], **changes: Any) -> Graph:
    """The graph with its roots mapped through `new` (a full old -> new map), and other fields changed."""
    results, outputs, emitted, summed = (
        tuple(new.get(n, n) for n in nodes)
        for nodes in (graph.results, (graph.output,), graph.emitted, graph.weight_gradients)
    )
    return replace(graph, results=results, output=outputs[0], emitted=emitted, weight_gradients=summed, **changes)


def reduced_axes(node: Node) -> list[tuple[str, int]]:
    """The axes that a sum, max or einsum node reduces, in order: (letter, size)."""
    if node.op != "einsum":
        return [("k", node.args[0].shape[node.attrs["axis"]])]
    inputs, out = node.attrs["spec"].split("->")
    shapes = zip(inputs.split(","), (a.shape for a in node.args), strict=True)
    sizes = {t: s for text, shape in shapes for t, s in zip(text, shape, strict=True)}
    return [(t, s) for t, s in sizes.items() if t not in out]


def runs_along(root: Node) -> bool:
    """Whether the reduction's vectors run along the reduced axis (else along the result's last axis)."""
    if not root.shape:
        return True
    if root.op != "einsum":
        return bool(root.attrs["axis"] == -1)
    inputs, out = root.attrs["spec"].split("->")
    last = out[-1]
    return not all(last not in text or text[-1] == last for text in inputs.split(","))
