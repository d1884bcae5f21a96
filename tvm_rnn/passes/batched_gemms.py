"""Products with an axis of members, or heads, that operand, parameter and result share: one batched GEMM.

In: a graph with regions, and its einsums of a parameter and a value. Out: those that are a GEMM for each member, as
`batched_gemm` nodes of one parameter [N, M, K] and one operand [N, K] each, outside of the step: within it, kernels
that run all steps cut a layer into its heads themselves (`cuda/layer/one_head.py`).

Rewrite: einsum("nki,ni->nk", W, x)  -->  batched_gemm(W[N, M, K], x[N, K])
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod

import numpy as np

from tvm_rnn.graph.graph import Graph, Node, depends, is_move, rewrite, with_args
from tvm_rnn.graph.node_text import in_words
from tvm_rnn.graph.ops import TABLE, Shape

from ..decisions import tell
from .normalise import Builder

LEAST = 8  # units, and summed elements, of a member: smaller products leave most of a tile empty


@dataclass(frozen=True)
class BatchedProduct:
    """An einsum as members' products: its letters that run along members, along what a member sums, and along its
    results. weight: which operand is the parameter."""

    weight: int
    batch: str
    summed: str
    rows: str


def batched_product(node: Node, free: Collection[Node]) -> BatchedProduct | None:
    """The members' products that an einsum is. free: values of parameters alone."""
    if node.op != "einsum" or (node.args[0] in free) == (node.args[1] in free) or node.args[1].op == "windows":
        return None
    inputs, out = node.attrs["spec"].split("->")
    words, weight = inputs.split(","), int(node.args[1] in free)
    own, other = words[weight], words[1 - weight]
    batch = "".join(t for t in out if t in own and t in other)
    summed = "".join(t for t in other if t in own and t not in out)
    rows = "".join(t for t in out if t in own and t not in other)
    whole = {*batch, *summed} == {*other} and {*batch, *summed, *rows} == {*own}
    distinct = len({*own}) == len(own) and len({*other}) == len(other)
    if not (batch and summed and rows and whole and distinct):
        return None
    return BatchedProduct(weight, batch, summed, rows)


def with_batched_gemms(graph: Graph) -> Graph:
    """The graph whose products of members before and after the steps are batched GEMMs."""
    nodes = graph.nodes()
    leaves = depends(nodes)
    free = {n for n in nodes if not leaves[n]}
    builders: dict[str, Builder] = {}
    new: dict[Node, Node] = {}
    region = dict(graph.region)
    for node in nodes:
        new[node], where = with_args(node, new), graph.region_of(node)
        found = batched_product(node, free) if leaves[node] and where != "step" else None
        made = None
        if found is not None:
            made = _gemm(builders.setdefault(where, Builder()), new[node], found)
            what, why = in_words(node), "one product for each member: a batched GEMM"
            tell(made is not None, what, why if made else "members' products are small, or their operands lie unevenly")
        if made is not None:
            new[node] = made
            views = _views(made)
            product = views[-1].args[0] if views else made
            for own in (product, *views, *_views(product.args[1])):
                region.setdefault(own, where)
        elif new[node] is not node and node in graph.region:
            region[new[node]] = where
    return rewrite(graph, new, region=region)


def _views(node: Node) -> list[Node]:
    """The views that a value is: itself, and what it is a view of."""
    return [node, *_views(node.args[0])] if is_move(node) and node.op != "concat" else []


def _gemm(builder: Builder, node: Node, of: BatchedProduct) -> Node | None:
    """The batched GEMM, as the einsum has its axes; None where it would not do."""
    inputs, out = node.attrs["spec"].split("->")
    words = inputs.split(",")
    sizes = dict(zip("".join(words), (s for a in node.args for s in a.shape), strict=True))
    count, depth, width = (prod(sizes[t] for t in letters) for letters in (of.batch, of.summed, of.rows))
    if min(depth, width) < LEAST or count < 2:
        return None

    def turned(number: int, letters: str, to: Shape) -> Node:
        axes = tuple(words[number].index(t) for t in letters)
        made = builder.make("transpose", node.args[number], axes=axes, source=node.source)
        return builder.make("reshape", made, rank=len(letters), to=to, source=node.source)

    weight = turned(of.weight, of.batch + of.rows + of.summed, (count, width, depth))
    operand = turned(1 - of.weight, of.batch + of.summed, (count, depth))
    if distance(operand) is None:
        return None
    made, letters = builder.make("batched_gemm", weight, operand, source=node.source), of.batch + of.rows
    made = builder.make("reshape", made, rank=2, to=tuple(sizes[t] for t in letters), source=node.source)
    return builder.make("transpose", made, axes=tuple(letters.index(t) for t in out), source=node.source)


def distance(operand: Node) -> int | None:
    """Elements from one member's vector to the next one's, in the value that they are views of; None where some lie
    further apart than others: a kernel finds each by its number."""
    places = _places(operand)
    steps = np.unique(np.diff(places, axis=0))
    return int(steps[0]) if steps.size == 1 and steps[0] >= 0 else None


def _places(node: Node) -> np.ndarray:
    """Where each element lies in the value that a view is of. What is joined becomes an array."""
    if not is_move(node) or node.op == "concat":
        return np.arange(prod(node.shape)).reshape(node.shape)
    found: np.ndarray = TABLE[node.op].numpy(_places(node.args[0]), **node.attrs)
    return found
