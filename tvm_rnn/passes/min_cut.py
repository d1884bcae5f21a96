"""The smallest set of values between products and what reads their results.

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


def cheapest_cut(graph: Graph, read: Sequence[Node], there: Collection[Node] = ()) -> list[Node]:
    """The fewest elements per row that must be kept so that `read` needs no product and no reduction again. there:
    values that are kept in any case.

    A minimal cut between what is read and the products, by augmenting paths (Edmonds & Karp 1972) over values split in
    an entrance and an exit; of minimal cuts the one nearest to what is read.
    """
    nodes = graph.nodes()
    leaves = depends(nodes)
    late = [n for n in nodes if leaves[n] and not n.leaf]
    room: dict[Point, dict[Point, float]] = {}

    def edge(a: Point, b: Point, capacity: float) -> None:
        room.setdefault(a, {})[b] = capacity
        room.setdefault(b, {}).setdefault(a, 0.0)

    room["read"], room["products"] = {}, {}
    for node in read:
        edge("read", (node, 0), inf)
    for node in late:
        loose = node.boolean or TABLE[node.op].kind == "move"  # made again from what it reads, never kept
        size = 0 if node in there else prod(node.shape)
        edge((node, 0), (node, 1), inf if loose else size)
        if TABLE[node.op].kind in HEAVY:
            edge((node, 1), "products", inf)
            continue
        for arg in node.args:
            if leaves[arg] and not arg.leaf:
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
    return [n for n in late if (n, 0) in near and (n, 1) not in near]


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
