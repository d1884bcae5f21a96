"""The smallest set of values between products, or leaves, and what reads their results.

In: a graph, and the values that are read later. Out: those to keep, of which pointwise work can make the others again.
`differentiate` asks what forward leaves for backward, `hoist_gemms` what backward leaves for its steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from math import inf, prod
from typing import TypeAlias

from tvm_rnn.graph.graph import Graph, Node, depends
from tvm_rnn.graph.ops import TABLE

Point: TypeAlias = "str | tuple[Node, int]"  # of the network of flows: a value's entrance or exit, or an end of it
HEAVY = ("contract", "reduce")  # kinds of what is not done again


def cheapest_cut(
    graph: Graph, read: Sequence[Node], there: Collection[Node] = (), *, leaves_too: bool = False
) -> list[Node]:
    """The fewest elements per row that must be kept so that `read` needs no product and no reduction again. there:
    values that are kept in any case.

    leaves_too: where the graph has neither, all can be made again of leaves, which are not kept for nothing: an element
    of an input is read, one of a state or of another value is written before. The fewest of these, then.

    A minimal cut between what is read and the products (or leaves), by augmenting paths (Edmonds & Karp 1972) over
    values split in an entrance and an exit; of minimal cuts the one nearest to what is read.
    """
    nodes = graph.nodes()
    leaves = depends(nodes)
    light = leaves_too and not any(TABLE[n.op].kind in HEAVY for n in nodes if leaves[n] and not n.leaf)
    late = [n for n in nodes if leaves[n] and not (n.leaf and not light)]
    room: dict[Point, dict[Point, float]] = {}

    def edge(a: Point, b: Point, capacity: float) -> None:
        room.setdefault(a, {})[b] = capacity
        room.setdefault(b, {}).setdefault(a, 0.0)

    room["read"], room["products"] = {}, {}
    for node in read:
        edge("read", (node, 0), inf)
    for node in late:
        kind = "leaf" if node.leaf else TABLE[node.op].kind
        loose = node.boolean or kind == "move"  # made again from what it reads, never kept
        size = 0 if node in there else prod(node.shape) * (1 if node.op == "input" or not light else 2)
        edge((node, 0), (node, 1), inf if loose else size)
        if kind in ("leaf", *HEAVY):
            edge((node, 1), "products", inf)
            continue
        for arg in node.args:
            if leaves[arg] and (light or not arg.leaf):
                edge((node, 1), (arg, 0), inf)
    near = _reachable(room)
    while "products" in near:
        path: list[Point] = ["products"]
        while path[-1] != "read":
            path.append(near[path[-1]])
        steps = list(zip(path[1:], path, strict=False))
        flow = min(room[a][b] for a, b in steps)
        for a, b in steps:
            room[a][b] -= flow
            room[b][a] += flow
        near = _reachable(room)
    return [n for n in late if (n, 0) in near and (n, 1) not in near and not n.leaf]


def _reachable(room: Mapping[Point, Mapping[Point, float]]) -> dict[Point, Point]:
    """From "read" along edges with room left, breadth first: what each place was reached from."""
    found: dict[Point, Point] = {"read": "read"}
    queue: deque[Point] = deque(["read"])
    while queue:
        place = queue.popleft()
        for other, left in room[place].items():
            if left > 0 and other not in found:
                found[other] = place
                queue.append(other)
    return found


__all__ = ["HEAVY", "cheapest_cut"]
