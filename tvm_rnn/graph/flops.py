"""Floating-point operations of a node, a graph and a network, for one row of one step.

In: nodes, graphs. Out: numbers: a multiply-add counts two, a pointwise op what its row of the table says.
"""

from __future__ import annotations

import numpy as np

from .graph import Graph, Layers, Node, depends, reduced_axes
from .ops import GEMMS, TABLE
from .recurrences import matrix_operands


def node_flops(node: Node) -> int:
    """Operations of one value for one row: a multiply-add counts two, a pointwise op what its row of the table says."""
    op = TABLE[node.op]
    size = int(np.prod(node.shape, dtype=int))
    if node.op in GEMMS:
        return size * sum(2 * int(a.shape[-1]) for a in node.args[1::2])
    if node.op in ("einsum", "sum", "max"):
        return size * int(np.prod([s for _, s in reduced_axes(node)], dtype=int)) * op.cost
    if op.kind == "scan":
        return _of_recurrence(node)
    return size * op.cost if op.kind == "pointwise" else 0


def _of_recurrence(node: Node) -> int:
    """What a step takes as the recurrence says it, however many run at once: of each element of a matrix 1 for its
    decay, 2 for each product that is read of it, and 2 for each column along which is written."""
    size = int(np.prod(np.broadcast_shapes(*(a.shape for a in node.args)), dtype=int))
    if node.op in ("scan", "scan_max", "read_out"):
        return size * TABLE[node.op].cost * (len(node.args) // 2 if node.op == "scan" else 1)
    if node.op not in ("scan_matrix", "rescan"):  # what hands on
        return 0
    written, products = matrix_operands(node.args, node.attrs["writes"])
    columns = {column for column, _ in (*written, *products)}
    return size * (1 + TABLE[node.op].cost * (len(columns) + len(products)))


def flops_per_row(layers: Layers, directions: int) -> int:
    """FLOPs of one step of one batch row through all layers; what parameters alone decide is not counted."""
    total = 0
    for index in layers.of_layer:
        nodes = layers.graphs[index].nodes()
        leaves = depends(nodes)
        total += sum(node_flops(n) for n in nodes if not n.leaf and leaves[n])
    return total * directions


def graph_flops(graph: Graph, region: str = "") -> int:
    """Operations for one row of one step, with its part of the sums over rows; what follows these sums is not. region:
    of that one alone."""
    nodes = graph.nodes()
    leaves, total = depends(nodes), 0
    for node in nodes:
        if node.leaf or (region and graph.region_of(node) != region):
            continue
        if TABLE[node.op].kind == "sum_rows":
            total += int(np.prod(node.shape, dtype=int)) * (2 if node.op == "einsum_rows" else 1)
        elif leaves[node] and "sum_rows" not in leaves[node]:
            total += node_flops(node)
    return total
