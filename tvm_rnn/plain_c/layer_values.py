"""What of a layer's equations is known now, what is kept in memory, and what is computed where it is read.

In: a layer's graph as traced, and its weights. Out: `LayerValues`: the graph with its products combined; every value
that is made of weights alone, as an array; the values that get memory, in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tvm_rnn.graph.graph import Graph, Node, depends, is_move, rewrite, with_args
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.oracle.reference import evaluate
from tvm_rnn.passes.combine_gemms import combined
from tvm_rnn.passes.normalise import OWN_GRADIENT, normalise

PRODUCTS = ("gemm", "einsum", "conv")
DEEPEST = 24  # operations of one expression


@dataclass(frozen=True)
class LayerValues:
    """A layer whose equations are written out in C.

    fixed: what is made of weights alone, by its node. stored: what gets memory, arguments first. in_place: of stored
    values those that are written over the state that they replace, by the state's node.
    """

    graph: Graph
    fixed: Mapping[Node, np.ndarray]
    stored: tuple[Node, ...]
    in_place: Mapping[Node, Node]

    def has_place(self, node: Node) -> bool:
        """Whether its elements lie in memory, one after the other."""
        return node.op in ("input", "state") or node in self.fixed or node in self.stored


def layer_values(graph: Graph, weights: Mapping[str, np.ndarray]) -> LayerValues:
    """The values of a layer. weights: by parameter, as the network has them."""
    graph = combined(_values_alone(normalise(graph, expand=False)))
    nodes, leaves = graph.nodes(), depends(graph.nodes())
    fixed = {p: np.asarray(weights[p.name], np.float64) for p in graph.params}
    evaluate([n for n in nodes if not leaves[n]], fixed)
    read = _read_by(graph, fixed)
    stored: list[Node] = []
    depth = dict.fromkeys(nodes, 0)  # of the expression that a value is, where it has no memory
    for node in nodes:
        if node.leaf or node in fixed:
            continue
        depth[node] = 1 + max((depth[arg] for arg in node.args), default=0)
        if depth[node] > DEEPEST or _is_stored(node, graph, read):
            stored.append(node)
            depth[node] = 0
    return LayerValues(graph, fixed, tuple(stored), _in_place(graph, tuple(stored)))


def _values_alone(graph: Graph) -> Graph:
    """Without what has a gradient of its own: that is its first operand."""
    new: dict[Node, Node] = {}
    for node in graph.nodes():
        new[node] = new[node.args[0]] if node.op in OWN_GRADIENT else with_args(node, new)
    return rewrite(graph, new)


def _read_by(graph: Graph, fixed: Mapping[Node, np.ndarray]) -> dict[Node, list[Node]]:
    """For each value who reads it, with views of it seen through; a view that a step leaves behind is a reader."""
    users, roots = graph.users(), {*graph.results, graph.output}
    found: dict[Node, list[Node]] = {}
    for node in reversed(graph.nodes()):
        found[node] = []
        for user in users[node]:
            if user not in fixed:
                found[node] += found[user] if _is_view(user) else [user]
                found[node] += [user] if _is_view(user) and user in roots else []
    return found


def _is_view(node: Node) -> bool:
    return is_move(node) and node.op != "concat"


def _is_stored(node: Node, graph: Graph, read: Mapping[Node, list[Node]]) -> bool:
    """Whether a value gets memory: it is what a step leaves behind, a sum, or is read more than once."""
    if _is_view(node):  # products walk over memory
        return any(user.op == "gemm" and _needs_copy(node, user) for user in graph.users()[node])
    if node in graph.results or node is graph.output or not node.pointwise:
        return True
    readers = read[node]
    sums = any(user.op in PRODUCTS for user in readers)
    wider = any(np.prod(user.shape, dtype=int) > np.prod(node.shape, dtype=int) for user in readers)
    return len(readers) > 1 or sums or (wider and not _is_cheap(node))


def _needs_copy(node: Node, user: Node) -> bool:
    return node in user.args[1::2] and node.op != "reshape"


def _is_cheap(node: Node) -> bool:
    return TABLE[node.op].cost == 1 and all(arg.leaf for arg in node.args)


def _in_place(graph: Graph, stored: tuple[Node, ...]) -> dict[Node, Node]:
    """Results that may overwrite their state: whoever reads the state comes before, or is the result itself, which
    reads an element where it writes it."""
    found: dict[Node, Node] = {}
    for state, result in zip(graph.states, graph.results, strict=True):
        if result not in stored or not result.pointwise or result in found or result.shape != state.shape:
            continue
        later = stored[stored.index(result) + 1 :]
        left = [root for root in (*graph.results, graph.output) if root not in stored]
        reads = any(_reads(node, state, stored) for node in (*later, *left))
        if not reads and _reads_in_step(result, state, stored):
            found[result] = state
    return found


def _reads(node: Node, state: Node, stored: tuple[Node, ...]) -> bool:
    """Whether computing a value reads the state, itself or through what has no memory of its own."""
    if node is state:
        return True
    return any(arg not in stored and _reads(arg, state, stored) for arg in node.args)


def _reads_in_step(node: Node, state: Node, stored: tuple[Node, ...]) -> bool:
    """Whether element i of a pointwise value reads of the state at most element i."""
    for arg in node.args:
        if arg is state or arg in stored or arg.leaf:
            continue
        if _reads(arg, state, stored) and not (
            arg.pointwise and arg.shape == node.shape and _reads_in_step(arg, state, stored)
        ):
            return False
    return all(arg is not state or arg.shape == node.shape for arg in node.args)
