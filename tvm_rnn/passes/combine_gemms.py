"""Make one GEMM of independent GEMMs: those of one dependency level that read the same operand get a gate axis.

In: a graph whose products are `gemm` nodes of one parameter and one vector each, in regions. Out: fewer, larger `gemm`
nodes. Gates that feed gates are on another level and stay apart; so do products of different widths.

Rewrite: gemm(W_i, x), gemm(W_f, x), ...   -->   z[G, N] = gemm(stack(W_i, W_f, ...), x);  z[0], z[1], ...
         gemm(W, x) + gemm(R, h)           -->   gemm(W, x, R, h), where both are in the same region
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..graph import Graph, Node, rewrite
from ..normalise import Builder
from . import Pass

if TYPE_CHECKING:
    from ..rnn import RNN
    from ..target import Target


@dataclass(frozen=True)
class CombineGemms(Pass):
    """Combine the products of each level. Does nothing where no two products share an operand."""

    name = "combine_gemms"

    def apply(self, graph: Graph, net: RNN, target: Target) -> Graph:
        return _stack(_merge_sums(graph))

    def ensures(self, graph: Graph) -> None:
        seen: dict[tuple[object, ...], Node] = {}
        for node in graph.nodes():
            if node.op != "gemm":
                continue
            key = (graph.region_of(node), node.args[1::2], node.shape[-1])
            self.check(key not in seen, "two products of one level still read the same operand", graph)
            seen[key] = node


def _with_args(node: Node, new: dict[Node, Node]) -> Node:
    args = tuple(new[a] for a in node.args)
    return node if args == node.args else replace(node, args=args)


def _merge_sums(graph: Graph) -> Graph:
    """add(gemm, gemm) of one region, neither used elsewhere, is one gemm over both operands."""
    users, builder = graph.users(), Builder()
    new: dict[Node, Node] = {}
    roots = set(graph.roots)
    region = dict(graph.region)
    for node in graph.nodes():
        new[node] = _with_args(node, new)
        if new[node] is not node:
            region[new[node]] = graph.region_of(node)
        if node.op != "add" or any(new[a].op != "gemm" or len(users[a]) > 1 or a in roots for a in node.args):
            continue
        if len({(graph.region_of(a), a.shape) for a in (*node.args, node)}) > 1:
            continue
        new[node] = builder.make("gemm", *(w for a in node.args for w in new[a].args), source=node.source)
        region[new[node]] = graph.region_of(node)
    return rewrite(graph, new, region=region)


def _stack(graph: Graph) -> Graph:
    families: dict[tuple[object, ...], list[Node]] = {}
    for node in graph.nodes():
        if node.op == "gemm" and len(node.shape) == 1:
            families.setdefault((graph.region_of(node), node.args[1::2], node.shape[0]), []).append(node)
    builder = Builder()
    new: dict[Node, Node] = {}
    region = dict(graph.region)
    leader = {n: family for family in families.values() if len(family) > 1 for n in family}
    for node in graph.nodes():
        if node not in leader:
            new[node] = _with_args(node, new)
            region[new[node]] = graph.region_of(node)
            continue
        family = leader[node]
        pairs: list[Node] = []
        for position, operand in enumerate(node.args[1::2]):
            gates = []
            for member in family:
                weight = member.args[2 * position]
                lifted = (1, *weight.shape)
                gates.append(builder.make("reshape", weight, rank=2, to=lifted))
            pairs += [builder.make("concat", *gates, axis=-3), new[operand]]
        combined = builder.make("gemm", *pairs, source=family[0].source)
        new[node] = builder.make("index", combined, axis=-2, at=family.index(node))
        region[combined] = region[new[node]] = graph.region_of(node)
    return rewrite(graph, new, region=region)
